# ruff: noqa: E501 (a table: one row per text)
"""All telling lines but the NCCL watchdog's own. One table, one row per text: a new dialect is a new row.

Wording from torch 1.13 to 2.10 (gloo, TCPStore.cpp, socket.cpp, distributed_c10d.py, distributed/elastic), NCCL 2.14
to 2.27, torch_npu and HCCL, vLLM 0.6 to 0.13, SGLang 0.4, Ray 2.9 to 2.50, DeepSpeed 0.17, accelerate 1.12,
transformers 4.57, torchtune 0.6, ms-swift 3.10, trl 0.24, slurmstepd, LSF, Kubernetes, bash and the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from lockstep.diagnose.events import Mark
from lockstep.diagnose.log_prefixes import bare, origin, quote

TRIGGERS = (
    b"rror",
    b"xception",
    b"Traceback (most recent call",
    b"ProcessGroup",
    b"atchdog",
    b"imed out",
    b"xit",
    b"illed",
    b" signal",
    b"SIGTERM",
    b"of memory",
    b"No available ",
    b"core dumped",
    b" died ",
    b"unexpectedly",
    b"gloo/transport/tcp",
    b"NVRM: Xid",
    b"NCCL WARN",
    b"store based barrier",
    b"Init COMPLETE",
    b"> failed",
    b"times out",
    b"Forcefully terminating",
    b"by GPU node",
    b"GPU core dump",
    b"emporarily unavailable",
)
"""A line is looked at closely only if it holds one of these; searching for them is what a healthy gigabyte costs
(0.2 to 0.6 ms a MB each, the longer the faster). Each row of `_FAILURES` needs one that its lines hold."""

_Row = tuple[str, str, "re.Pattern[str]"]


def _row(kind: str, literal: str, pattern: str) -> _Row:
    return kind, literal, re.compile(pattern)


# Groups: `d` the detail, `n` the number, `s` the signal that is the number, `t` the total, `r` the global rank that wrote it, `p` the peer, `ranks` the
# ranks that it is about. Of the rows of one kind the first that fits counts.
_FAILURES: tuple[_Row, ...] = (
    # torch: gloo
    _row("mismatch", "op.preamble", r"(?P<d>op\.preamble\.\w{1,20} <= op\.\w{1,20}\. \d{1,18} vs \d{1,18})"),
    _row("gloo closed", "gloo/transport/tcp", r"\] (?P<d>Connection closed by peer|Read error|Write error)(?: \[(?P<p>[^\]]{1,80})\])?(?::\d+)?"),
    _row("gloo closed", "gloo/transport/tcp", r"(?P<d>Connection reset by peer|Broken pipe)"),
    _row("gloo timeout", "imed out waiting", r"[Tt]imed out waiting (?P<n>\d{1,12})ms for (?P<d>recv|send) operation"),
    _row("gloo pair", "Application timeout", r"(?P<d>Application timeout caused pair closure)"),
    _row("gloo connect", "connectFullMesh", r"(?P<d>[Gg]loo connectFullMesh failed)"),
    _row("gloo connect", "gloo/transport/tcp", r"(?P<d>[Cc]onnect timeout|timed out connecting)"),
    _row("gloo connect", "gloo", r"(?P<d>Unable to find address for|Gloo connect \w{1,20} failed)"),
    # torch: the store, rendezvous, barriers
    _row("store barrier", "tore based barrier", r"Timed out (?:initializing process group|waiting|\w{1,20}) (?:in )?store based barrier on rank:? (?P<r>\d{1,6}),? for key: ?(?P<d>[\w./-]{1,80}:\d{1,9}|\S{1,80}) ?\(world_size=(?P<t>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<n>\d{1,7})"),
    _row("barrier wait", "tore based barrier", r"Waiting in store based barrier .{0,80}?rank: (?P<r>\d{1,6}), key: (?P<d>\S{1,80}) \(world_size=(?P<t>\d{1,7}), (?:worker_count|num_workers_joined)=(?P<n>\d{1,7})"),
    _row("barrier wait", "tore based barrier", r"Waiting in store based barrier .{0,80}?rank: (?P<r>\d{1,6}), key: (?P<d>\S{1,80}) \(num_workers_joined=(?P<n>\d{1,7}), world_size=(?P<t>\d{1,7})"),
    _row("barrier", "monitoredBarrier", r"\[Rank (?P<r>\d{1,6})\]:? ?Ranks? (?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,4096}) failed to pass monitoredBarrier in (?P<n>\d{1,12}) ?ms"),
    _row("barrier", "monitoredBarrier", r"Ranks? (?P<ranks>\d{1,6}(?:, ?\d{1,6}){0,4096}) failed to pass monitoredBarrier in (?P<n>\d{1,12}) ?ms"),
    _row("barrier peer", "monitoredBarrier", r"[Rr]ank (?P<r>\d{1,6}) successfully reached monitoredBarrier, but .{0,80}?rank (?P<ranks>\d{1,6})"),
    _row("store timeout", "wait timeout after", r"wait timeout after (?P<n>\d{1,12})ms, keys: (?P<d>\S{1,200})"),
    _row("store timeout", "Socket Timeout", r"(?P<d>Socket Timeout)"),
    _row("clients timeout", "waiting for clients", r"Timed out after (?P<n>\d{1,9}) seconds waiting for clients\. (?P<d>\d+/\d+) clients"),
    _row("connect timeout", "client socket has", r"timed out after (?P<n>\d{1,12})m?s while trying to connect to (?P<d>\([^)]{1,200}\))"),
    _row("connect timeout", "client socket has failed", r"client socket has failed to connect to (?P<d>any network address of \([^)]{1,200}\))"),
    _row("unique id", "ncclUniqueId", r"\[(?P<r>\d{1,6})\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[0\](?P<d>)"),
    _row("rendezvous", "Rendezvous", r"(?P<d>Rendezvous(?:Timeout|Closed|Connection)Error(?:: .{1,120})?)"),
    _row("store closed", "failed to recv, got 0 bytes", r"(?P<d>failed to recv, got 0 bytes)"),
    _row("store closed", "sendBytes failed", r"(?P<d>sendBytes failed on SocketImpl|recvBytes failed on SocketImpl)"),
    _row("store closed", "recvValue failed", r"(?P<d>recvValue failed on SocketImpl)"),
    _row("mismatch", "Detected mismatch between collectives", r"(?P<d>Detected mismatch between collectives on ranks\. .{0,200})"),
    # ports
    _row("port taken", "ddress already in use", r"(?P<d>(?:\(?'?[\w.:*\[\]-]{0,60}'?,? ?\d{0,5}\)?:? ?)?\[?(?:[Ee]rrno|errno:)? ?\d{0,3}\]? ?-? ?[Aa]ddress already in use)"),
    _row("port taken", "EADDRINUSE", r"(?P<d>EADDRINUSE)"),
    _row("port taken", "bind the IP port", r"(?P<d>Failed to bind the IP port)"),
    _row("port taken", "already in use", r"(?P<d>[Pp]ort \d{2,5} is already in use)"),
    # memory of devices
    _row("gpu memory", "of memory", r"(?P<d>\b(?:CUDA|HIP|NPU|XPU|MUSA|MLU|MPS backend|GPU)) out of memory"),
    _row("gpu memory", "of memory", r"(?P<d>\b(?:CUDA|HIP|NPU))(?: driver)? error: out of memory"),
    _row("gpu memory", "No available memory", r"(?P<d>)No available memory for the cache blocks"),
    _row("gpu memory", "less than desired", r"(?P<d>)Free memory on device .{0,80}less than desired GPU memory utilization"),
    _row("gpu memory", "NCCL", r"(?P<d>NCCL).{0,60}out of memory"),
    _row("gpu memory", "STATUS_ALLOC_FAILED", r"(?P<d>\b(?:CUBLAS|CUSOLVER|CUDNN|HIPBLAS))_STATUS_ALLOC_FAILED"),
    _row("gpu memory", "rror", r"(?P<d>\b(?:hip|cuda))Error(?:OutOfMemory|MemoryAllocation)"),
    _row("gpu memory", "RESOURCE_EXHAUSTED", r"RESOURCE_EXHAUSTED: (?P<d>)Out of memory"),
    # memory of hosts
    _row("host memory", "ut of memory: Kill", r"(?P<d>(?:Memory cgroup o|O)ut of memory: Kill(?:ed)? process \d{1,9}(?: \([^)]{1,60}\))?)"),
    _row("host memory", "oom", r"(?P<d>Detected \d{1,9} oom[_-]kill event|oom-kill:constraint=\w{1,40}|oom_reaper: reaped process \d{1,9})"),
    _row("host memory", "of memory", r"(?P<d>task \d{1,6}: Out Of Memory|\bMemoryError: .{1,80}out of memory)"),
    _row("host memory", "Out Of Memory", r"error: \S{1,80}: (?P<d>task[\w \[\],-]{1,60}: Out Of Memory)"),
    _row("host memory", "OOMKilled", r"(?P<d>OOMKilled)"),
    _row("host memory", "OOM", r"(?P<d>killed due to memory pressure \(OOM\)).{0,160}?\bIP: (?P<p>[\w.:]{2,60})"),
    _row("host memory", "Memory on the node", r"Memory on the node \(IP: (?P<p>[\w.:]{2,60}),.{0,160}?(?P<d>name=.{1,80}?, pid=\d{1,9})"),
    _row("host memory", "Error Snippet", r"\[Rank (?P<r>\d{1,6}) Error Snippet\]:? .{0,200}?(?P<d>killed due to the node running low on memory)"),
    _row("host memory", "OOM", r"(?P<d>killed due to memory pressure \(OOM\)|OOM Killed)"),
    _row("host memory", "running low on memory", r"(?P<d>killed due to the node running low on memory)"),
    _row("host memory", "MEMLIMIT", r"(?P<d>TERM_MEMLIMIT: job killed after reaching LSF memory usage limit)"),
    _row("host memory", "allocate memory", r"(?P<d>DefaultCPUAllocator: (?:not enough|can't allocate) memory|(?:\[Errno 12\] )?Cannot allocate memory)"),
    _row("host memory", "MemoryError", r"(?:^|[ :\]])(?P<d>(?:numpy\.\S{0,60})?_?(?:Array)?MemoryError)\b"),
    _row("host memory", "bad_alloc", r"(?P<d>std::bad_alloc)"),
    # ends that nobody explains
    _row("killed", "illed", r"(?P<d>line \d{1,7}: +\d{1,9} Killed) "),
    _row("killed", "illed", r"^\s{0,8}(?P<d>(?:\[\d{1,4}\][+-]? +(?:\d{1,9} )?)?Killed)(?:\s{2,}\S.{0,200})?\s*$"),
    _row("killed", "illed", r"\b(?:zsh|bash|sh): (?:\d{1,9} )?(?P<d>killed) "),
    _row("crash", "core dumped", r"(?P<d>(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception) {0,24}\(core dumped\))"),
    _row("aborted", "core dumped", r"(?P<d>Aborted {0,24}\(core dumped\))"),
    _row("crash", "Fatal Python error", r"Fatal Python error: (?P<d>Segmentation fault|Bus error|Illegal instruction|.{1,60})"),
    _row("crash", "ignal", r"(?P<d>(?:Caught signal|Signal:|\*\*\* SIG\w{3,5}) ?\(?(?:4|7|8|11|SEGV|SEGFAULT|BUS|Segmentation fault|Bus error)\b.{0,60})"),
    _row("crash", "SIGSEGV", r"(?P<d>Fatal error detected by JVM|SIGSEGV received|\*\*\* SIGSEGV received)"),
    _row("child exit", "xitcode", r"exitcode\s{0,4}: ?(?P<n>-?\d{1,6})\)? (?P<d>local_rank: \d{1,6} \(pid: \d{1,9}\)|\(pid: \d{1,9}\))"),
    _row("child exit", "return code", r"exits with return code = (?P<n>-?\d{1,6})(?P<d>)"),
    _row("child exit", "xited with exit code", r"error: (?P<d>\S{1,80}: tasks? [\d,\[\]-]{1,60}): Exited with exit code (?P<n>\d{1,4})"),
    _row("child exit", "exited on signal", r"process rank (?P<r>\d{1,6}) with PID \d{1,9} on node (?P<d>\S{1,80}) exited on signal (?P<s>\d{1,3})"),
    _row("child exit", "xit", r"(?P<d>)(?:command terminated with exit code|exited with (?:exit )?code:?|[Ee]xit [Cc]ode:|returned non-zero exit status|exit status) +(?P<n>-?[1-9]\d{0,4})\b"),
    _row("engine died", "died unexpectedly", r"(?P<d>(?:Engine core|Worker) proc \S{1,80}) died unexpectedly"),
    _row("engine fatal", "EngineCore", r"(?P<d>EngineCore encountered (?:a fatal error|an issue)|EngineCore failed to start)"),
    _row("engine fatal", "Engine core initialization", r"(?P<d>Engine core initialization failed)"),
    _row("engine fatal", "ngine is not running", r"(?P<d>(?:Background loop has errored already|Engine is not running))"),
    _row("node died", "has crashed", r"(?P<d>(?:Owner's )?node has crashed)"),
    _row("node died", "NodeDied", r"(?P<d>NodeDiedError(?:: .{1,120})?)"),
    _row("node died", "missed too many heartbeats", r"\baddress: (?P<p>[\w.:-]{2,80}?) and .{0,300}?(?P<d>missed too many heartbeats)"),
    _row("node died", "missed too many heartbeats", r"(?P<d>missed too many heartbeats)"),
    _row("actor died", "ActorDied", r"(?P<d>ActorDiedError(?:: .{1,80})?)"),
    _row("actor died", "RayActorError", r"(?P<d>RayActorError(?:: .{1,80})?)"),
    _row("actor died", "WorkerCrashed", r"(?P<d>WorkerCrashedError(?:: .{1,80})?)"),
    _row("actor died", "Worker exit type", r"Worker exit type: (?P<d>SYSTEM_ERROR|NODE_OUT_OF_MEMORY)"),
    _row("loader died", "DataLoader worker", r"(?P<d>DataLoader worker \(pid(?:\(s\))? [\d, ]{1,80}\) (?:exited unexpectedly|is killed by signal: [\w ]{1,40}))"),
    _row("no resources", "emporarily unavailable", r"(?P<d>(?:thread|fork|pthread_create|resource)?.{0,20}Resource temporarily unavailable)"),
    _row("no resources", "can't start new thread", r"(?P<d>can't start new thread)"),
    _row("no resources", "pthread_create", r"(?P<d>pthread_create(?: failed|\(\) failed)?)"),
    _row("disk full", "No space left on device", r"(?P<d>No space left on device)"),
    _row("disk full", "isk quota exceeded", r"(?P<d>[Dd]isk quota exceeded)"),
    # devices
    _row("gpu fault", "Xid", r"NVRM: (?P<d>Xid \([^)]{1,60}\): \d{1,4}(?:, .{0,100})?)"),
    _row("gpu fault", "ECC error", r"(?P<d>uncorrectable (?:NVLink|ECC) error(?: encountered| was detected[\w ]{0,40})?)"),
    _row("cuda error", "watchdog thread terminated", r"(?:^|\s)(?:\[E \w{1,40}\.cpp:\d{1,6}\]|what\(\):) {1,4}\[Rank (?P<r>\d{1,6})\] NCCL watchdog thread terminated with exception: (?P<d>CUDA error: (?!out of memory)[a-zA-Z](?:(?!CUDA kernel)[\w ,'-]){3,100})"),
    _row("cuda error", "error", r"(?P<d>(?:CUDA|HIP) (?:driver )?error: (?!out of memory)[a-zA-Z](?:(?!CUDA kernel)[\w ,'-]){3,100})"),
    _row("gpu fault", "has fallen off the bus", r"(?P<d>GPU .{0,40}has fallen off the bus)"),
    _row("gpu fault", "device handle for", r"(?P<d>Unable to determine the device handle for)"),
    _row("gpu fault", "HSA_STATUS_ERROR", r"(?P<d>HSA_STATUS_ERROR\w{0,60})"),
    _row("gpu fault", "Memory access fault", r"(?P<d>Memory access fault by GPU node-\d{1,4})"),
    _row("gpu fault", "HW Exception", r"(?P<d>HW Exception by GPU node-\d{1,4}.{0,80})"),
    _row("gpu fault", "GPU core dump", r"(?P<d>GPU core dump (?:failed|created).{0,60})"),
    _row("cuda error", "rror code is", r"(?P<d>NPU function error: .{1,60}|ACL stream synchronize failed, error code is ?\d{4,7})"),
    # ends from outside
    _row("time limit", "DUE TO", r"CANCELLED AT \S{1,40} (?P<d>DUE TO [A-Z ]{3,40})"),
    _row("ended from outside", "CANCELLED AT", r"(?P<d>(?:JOB|STEP) [\d.]{1,30} ON \S{1,80} CANCELLED)"),
    _row("ended from outside", "ignal", r"Received (?:Signals\.)?(?P<d>SIG\w{2,6}|\d{1,2}) death signal"),
    _row("ended from outside", "got signal", r"SignalException: Process \d{1,9} got signal: (?P<d>\d{1,2})"),
    _row("ended from outside", "SIGTERM", r"(?i:received|caught|got) (?:signal )?(?:15 \()?(?P<d>SIGTERM)"),
    _row("ended from outside", "erminated", r"(?P<d>line \d{1,7}: +\d{1,9} Terminated) "),
    _row("time limit", "TERM_RUNLIMIT", r"(?P<d>TERM_RUNLIMIT: job killed after reaching LSF run time limit)"),
    _row("aborted", "Terminating the process after", r"(?P<d>Terminating the process after attempting to dump debug info)"),
    _row("child exit", "Forcefully terminating", r"(?:\[rank: (?P<r>\d{1,6})\] )?Child process with (?P<d>PID \d{1,9}) terminated with code (?P<n>-?\d{1,6})"),
    _row("closing signal", "Forcefully terminating", r"(?P<d>Forcefully terminating all other processes)"),
    _row("closing signal", "closing signal", r"(?P<d>Sending process \d{1,9} closing signal \w{3,10})"),
    # the weight sync
    _row("sync error", "requests.exceptions", r"requests\.exceptions\.\w{1,40}: .{0,300}?(?P<d>/(?:init_communicator|update_\w{1,40}|close_communicator)/)"),
    _row("sync error", "Multiple errors", r"Multiple errors: .{0,300}?(?P<d>Server \d{1,4} (?:init|update|update adapter|update flattened params) failed)"),
    _row("sync error", "Communicator not initialized", r"(?P<d>Communicator not initialized)"),
    _row("sync error", "eight", r"(?P<d>[Ff]ailed to (?:update|sync|transfer|broadcast) (?:the )?weights?.{0,80})"),
    # watchdogs and timeouts of others
    _row("gil", "acquire GIL", r"(?P<d>Could not acquire GIL) within (?P<n>\d{1,9}) ms"),
    _row("rpc timeout", "RPC call to", r"RPC call to (?P<d>\w{1,60}) timed out"),
    _row("no answer", "RayChannelTimeoutError", r"(?P<d>RayChannelTimeoutError)"),
    _row("no answer", "GetTimeoutError", r"(?P<d>GetTimeoutError)"),
    _row("no answer", "response from front-end", r"(?P<d>Did not receive response from front-end process)"),
    _row("no answer", "imed out", r"(?P<d>Timed out waiting for (?:engines?|engine core|worker|\w{1,30} processes?)\b.{0,80})"),
    _row("no answer", "The read operation timed out", r"(?P<d>The read operation timed out)"),
    _row("other watchdog", "atchdog", r"(?P<d>(?:Scheduler |Detokenizer |Tokenizer )?[Ww]atchdog timeout(?: \(.{0,160}\))?)"),
    _row("heartbeat", "eartbeat", r"(?P<d>(?:failed to send a keep-alive heartbeat|[Hh]eartbeat (?:monitor )?timed out|heartbeat timeout).{0,100})"),
    _row("kv transfer", "KVTransferError", r"(?P<d>(?:Prefill|Decode) instance \S{1,80} failed: KVTransferError.{0,120})"),
    _row("test hang", "Test hanged", r"(?P<d>Test hanged)"),
    _row("test hang", "Timeout", r"(?P<d>Failed: Timeout >[\d.]{1,12}s)"),
    # NCCL and HCCL
    _row("nccl remote", "remote process exited", r"(?P<d>remote process exited or there was a network error)"),
    _row("nccl remote", "ncclRemoteError", r"(?P<d>ncclRemoteError)"),
    _row("nccl hang", "may be hanging", r"(?P<d>may be hanging, this may be caused by a collective mismatch around rank (?P<ranks>\d{1,6}))"),
    _row("nccl peer", "<", r"(?P<d>Call to \w{1,20} (?:from|to) (?P<p>[\w.:%\[\]-]{2,80}<\d{1,5}>) (?:failed|returned) ?:? ?.{0,80})"),
    _row("nccl peer", "onnect", r"(?P<d>(?:Connect|connect) to (?P<p>[\w.:%\[\]-]{2,80}<\d{1,5}>) (?:failed|returned) ?:? ?.{0,80})"),
    _row("nccl peer", "NCCL WARN", r"NCCL WARN (?P<d>.{0,120}?(?:from peer|[Pp]eer|to|from|remote \w{1,10}) (?P<p>[\w.:%\[\]-]{2,80}<\d{1,5}>).{0,80})"),
    _row("nccl peer", "NCCL WARN", r"NCCL WARN (?P<d>.{0,160}?(?:remoteGid|localGid|peer) ?:?s? ?(?P<p>[\w.:]{2,60}).{0,60})"),
    _row("nccl error", "NCCL error", r"NCCL error(?: in)?:? ?(?:\S{1,200}:\d{1,6}, )?(?:\d{1,3}:? ?)?(?P<d>[a-z][\w .'/-]{3,80}?)(?:, NCCL version| ?\(run with|$|[;,:])"),
    _row("nccl error", "NCCL error", r"(?P<d>NCCL error)"),
    _row("nccl error", "nccl", r"(?P<d>\bnccl(?:System|Internal|UnhandledCuda|InvalidUsage|InvalidArgument)\w{0,12}: ?.{0,120})"),
    _row("nccl error", "NCCL WARN", r"NCCL WARN (?P<d>(?:Call to|NET/IB|NET/Socket|Cuda failure|[Bb]ootstrap|Error while|Could not|No ).{0,120})"),
    _row("hccl timeout", "Notify register", r"(?P<d>Notify register) (?:has not received|times out).{0,400}?remote rank: ?\[(?P<ranks>\d{1,6})\](?:.{0,900}?rankId\[(?P<r>\d{1,6}))?"),
    _row("hccl timeout", "HCCL", r"(?P<d>(?:HCCL|WorkHCCL).{0,80}(?:timeout|[Tt]imed out|Timeout\(ms\)).{0,80})"),
    _row("hccl timeout", "EI000", r"(?P<d>EI000[26]: .{1,160})"),
    _row("hccl timeout", "Notify register", r"(?P<d>wait execution of the Notify register times out.{0,120})"),
    _row("hccl heartbeat", "Heartbeat Lost", r"Exception Location\[IP/ID\]:\[(?P<p>[\w.:]{2,60}/\d{1,6})\].{0,300}?(?P<d>Heartbeat Lost)"),
    _row("hccl error", "HCCL", r"(?i:error|failed).{0,120}?(?P<d>HCCL\w{0,40}.{0,100})"),
    _row("hccl error", "HCCL", r"(?P<d>\bHCCL (?:function )?error.{0,140})"),
    _row("hccl error", "E", r"\b(?P<d>E[IJ]\d{4}: .{1,140})"),
)  # fmt: skip

# What speaks for nothing being wrong with what a line names.
_HARMLESS = re.compile(
    r"error_file|ChildFailedError|Loading \w+Error|No error(?! file)|no error|0 errors?\b|ignore_errors|on_error|--\w*error|error=None"
)
_CONTEXT: tuple[_Row, ...] = (
    _row("version", "LLM engine (v", r"V1 LLM engine \(v(?P<d>[\w.+-]{1,40})\)"),
    _row("version", "vllm==", r"\bvllm==(?P<d>[\w.+-]{1,40})"),
    _row("version", "vLLM API server version", r"vLLM API server version (?P<d>[\w.+-]{1,40})"),
    _row("engine config", "LLM engine (v", r"(?P<d>tensor_parallel_size=\d+, pipeline_parallel_size=\d+(?:, data_parallel_size=\d+)?)"),
    _row("coordinator", "DP Coordinator", r"(?P<d>Started DP Coordinator process) \(PID: (?P<n>\d+)\)"),
    _row("coordinator", "DP_Coordinator", r"(?P<d>VLLM_DP_Coordinator|DP_Coordinator pid)"),
    _row("server", "piServer", r"\((?P<d>Api_?Server(?:_\d+)?|APIServer) pid=\d+\)"),
    _row("server", "APIServer", r"\((?P<d>APIServer) pid=\d+\)"),
    _row("saving", "aving", r"\b(?P<d>Saving (?:model |full |sharded |the )?(?:checkpoint|model|state|weights|optimizer)\b(?: to \S{1,200})?)"),
    _row("saving", "save_", r"in (?P<d>save_(?:checkpoint|model|pretrained|state_dict))\b"),
    _row("saving", "saving checkpoint", r"(?P<d>saving checkpoint (?:at|to) .{1,100})"),
    _row("saved", "aved", r"(?P<d>\[Torch\] Saved |\b[Cc]heckpoint (?:successfully )?saved|model checkpoint saved|[Ss]uccessfully saved|Model weights saved in|Saved (?:model )?checkpoint|Model checkpoint of size .{1,40} saved)"),
    _row("preparing", "Map", r"\b(?P<d>Map(?: \(num_proc=\d+\))?):.{0,20}?\d+%\|[^|]{0,200}\| (?P<n>\d+)/(?P<t>\d+)"),
    _row("preparing", "%|", r"\b(?P<d>Filter|Tokenizing[\w ]{0,30}|Running tokenizer[\w ]{0,30}|Packing[\w ]{0,30}|Generating \w{1,20} split|Saving the dataset|Converting format of dataset|Grouping texts[\w ]{0,30}|Processing[\w ]{0,30})(?: \(num_proc=\d+\))?(?: \([^)]{1,40}\))?:.{0,20}?\d+%\|[^|]{0,200}\| (?P<n>\d+)/(?P<t>\d+)"),
    _row("preparing", "Loading checkpoint shards", r"(?P<d>Loading checkpoint shards):.{0,20}?\|[^|]{0,200}\| (?P<n>\d+)/(?P<t>\d+)"),
    _row("storage", "nfs: server", r"(?P<d>nfs: server \S{1,100} not responding)"),
    _row("storage", "Stale file handle", r"(?P<d>Stale file handle)"),
    _row("storage", "Input/output error", r"(?P<d>Input/output error)"),
    _row("storage", "blocked for more than", r"task (?P<d>\S{1,60}) blocked for more than (?P<n>\d+) seconds"),
    _row("multimodal", "VL", r"(?P<d>Qwen\d?(?:_\d)?_?(?:\.\d)?-?_?VL\w{0,40}|InternVL\w{0,40})"),
    _row("multimodal", "vl", r"(?P<d>qwen\d(?:[._]\d)?_vl\w{0,30}|internvl\w{0,30})"),
    _row("multimodal", "pixel_values", r"(?P<d>pixel_values)"),
    _row("trainer", "eep", r"(?P<d>\b[Dd]eep[Ss]peed\b)"),
    _row("trainer", "orch", r"(?P<d>\b(?:torchtune|torchtitan|pytorch_lightning)\b)"),
    _row("trainer", "egatron", r"(?P<d>\b[Mm]egatron\b)"),
    _row("trainer", "launch.py:", r"(?P<d>\[launch\.py:\d)"),
    _row("vllm", "llm", r"(?P<d>\bvllm\b)"),
    _row("vllm", "LLM", r"(?P<d>\bvLLM\b)"),
    _row("vllm", "VllmWorker", r"(?P<d>VllmWorker)"),
    _row("vllm", "EngineCore", r"(?P<d>EngineCore)"),
    _row("vllm", "shm_broadcast", r"(?P<d>shm_broadcast)"),
    _row("world size", "world", r"\bworld[ _]?size ?[=:] ?(?P<n>\d{1,6})(?P<d>)"),
    _row("success", "tartup complete", r"(?P<d>Application startup complete)"),
    _row("success", "200 OK", r"(?P<d>\"(?:POST|GET) \S{1,100} HTTP/[\d.]{1,4}\" 200 OK)"),
    _row("success", "generation throughput", r"(?P<d>[Aa]vg generation throughput: (?!0\.0)[\d.]{1,12})"),
    _row("success", "loss", r"(?P<d>\{'loss': [\d.e+-]{1,20}|\bloss[=:] ?\d[\d.e+-]{0,20})"),
    _row("step", "step", r"(?:^|[\s{(,\])])(?P<d>\"?(?:global_?)?step\"?)[:=] ?(?P<n>\d{1,12})(?= - |[\s,}]|$)"),
    _row("over", "train_runtime", r"(?P<d>'train_runtime')"),
    _row("over", "raining", r"(?P<d>raining (?:is |has )?(?:completed|complete|finished|done)\b)"),
    _row("over", "one training", r"(?P<d>one training\b)"),
    _row("over", "destroy_process_group", r"in (?P<d>destroy_process_group)\b"),
    _row("sync call", "ommunicator", r"(?:in |/)(?P<d>(?:init|close)_communicator)\b"),
    _row("sync call", "update_", r"(?:in |/)(?P<d>update_(?:weights?\w{0,40}|named_param\w{0,20}|flattened_params|adapter\w{0,20}|model_params))\b"),
    _row("sync call", "eight", r"in (?P<d>(?:_?sync_weights?|broadcast_weights|load_weights_from\w{0,20}|_move_model_to_vllm|update_weights_from_\w{1,20}))\b"),
    _row("progress", "%|", r"\d{1,3}%\|[^|]{0,300}\| ?(?P<n>\d{1,12})/(?P<t>\d{1,12}) \["),
)  # fmt: skip
_TITLE = re.compile(r"([A-Za-z][\w ()]{0,40}): +$")
_ELSEWHERE: tuple[_Row, ...] = (
    _row("init complete", "Init COMPLETE", r"\brank (?P<r>\d{1,6}) nranks (?P<t>\d{1,6}) (?P<d>).{0,200}Init COMPLETE"),
    _row("shm wait", "No available ", r"(?P<d>No available (?:shared memory broadcast )?block found) in (?P<n>\d{1,9}) second"),
)  # fmt: skip
_ROWS = (*_FAILURES, *_ELSEWHERE)

_EXCEPTION = re.compile(
    r"(?P<d>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}"
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Fault|Expired|Empty|Full|Abort|Died|Killed|Crashed)"
    r"(?:\([\w.]{1,60}\))?)(?P<rest>: .{0,300}|:?\s*)$"
)
_C10_WARNING = re.compile(r"\[W\d{0,4} (?:[\d:.]{1,20} )?\w{1,60}\.cpp:\d{1,6}\]")
_WARNS = re.compile(r"Warning\b")


def failures(text: str, file: str, line: int, collector: float | None) -> Iterator[tuple[int, int, Mark]]:
    """Yield what a line tells of failures: where its words begin and end, and the mark."""
    found = False
    for start, end, mark in _read(_ROWS, text, file, line, collector):
        found = True
        yield start, end, mark
    if not found and (error := exception(text, file, line, collector)):
        yield error


def exception(
    text: str, file: str, line: int, collector: float | None, *, any_name: bool = False
) -> tuple[int, int, Mark] | None:
    """Return a line that ends a traceback as a mark, if no row knows it.

    With `any_name`, the line is known to end one, and its exception may be called anything.
    """
    skipped = bare(text)
    rest = text[skipped : skipped + 2_000]
    if _WARNS.search(rest[:100]) or not rest or _HARMLESS.search(rest[:200]):
        return None
    found = _EXCEPTION.match(rest)
    if found is None and not (any_name and re.match(r"[A-Za-z_][\w.]{0,120}(?:: |$)", rest)):
        return None
    mark = Mark(file, line, quote(text), origin(text[:skipped], collector), "exception", rest.strip()[:300])
    return skipped, len(text), mark


def context(text: str, file: str, line: int, collector: float | None) -> Iterator[Mark]:
    """Yield what a line says about what the job was doing."""
    for start, _, mark in _read(_CONTEXT, text, file, line, collector):
        if mark.kind == "progress" and (
            title := _TITLE.search(text[max(0, start - 60) : start].rstrip(" ") + " ")
        ):
            mark = replace(mark, detail=title.group(1))
        yield mark


def _number(parts: dict[str, str | None]) -> int | None:
    if signal := parts.get("s"):
        return -int(signal)
    number = parts.get("n")
    return int(number) if number else None


def _read(
    rows: tuple[_Row, ...], text: str, file: str, line: int, collector: float | None
) -> Iterator[tuple[int, int, Mark]]:
    seen: set[str] = set()
    for kind, literal, pattern in rows:
        if literal not in text or kind in seen or not (found := pattern.search(text)):
            continue
        if ".cpp:" in text and _C10_WARNING.search(text[: found.start()][:200]):
            continue  # torch goes on after it, and says so if it cannot
        seen.add(kind)
        parts = found.groupdict()
        who = origin(text[: found.start()], collector)
        if parts.get("r"):
            who = replace(who, rank=int(parts["r"]))
        mark = Mark(
            file,
            line,
            quote(text, found.start()),
            who,
            kind=kind,
            detail=(parts.get("d") or "").strip().rstrip("."),
            number=_number(parts),
            total=int(parts["t"]) if parts.get("t") else None,
            peer=parts.get("p"),
            ranks=tuple(int(rank) for rank in parts["ranks"].split(",")) if parts.get("ranks") else (),
        )
        yield found.start(), found.end(), mark
