"""What a telling line can be: the kinds, the part that each plays in a hang, and the sentence for it.

`{who}` is the rank or process that wrote the line, `{at}` its time. `{d}`, `{n}`, `{t}`, `{peer}` and
`{ranks}` are what the line says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["end", "wait", "effect", "warning", "error", "context"]
"""`end`: something ended or broke, and others may have waited for it. `wait`: somebody waited until its
patience ended; that alone is never a cause. `effect`: a consequence of another's end. `warning`: may be
nothing, and is nothing if success followed. `error`: an error that no other kind describes; it is nothing as
well if success followed. `context`: what the job was doing.
"""


@dataclass(frozen=True)
class Kind:
    role: Role
    says: str = ""


KINDS: dict[str, Kind] = {
    # Memory.
    "gpu memory": Kind("end", "{who} ran out of {d} memory{at}"),
    "host memory": Kind("end", "{who} ran out of host memory{at}{on} ({d})"),
    # Ends.
    "killed": Kind("end", "a process was killed by SIGKILL{at} ({d}); host memory is the likely reason"),
    "child exit": Kind("end", "{who} ended{at} with exit code {n}{signal}"),
    "crash": Kind("end", "{who} crashed{at}: {d}"),
    "engine died": Kind("end", "{d} of vLLM died{at}"),
    "actor died": Kind("end", "a Ray worker died{at}: {d}"),
    "node died": Kind("end", "a node was lost{at}{on}: {d}"),
    "loader died": Kind("end", "a data loader's worker of {who} ended{at}: {d}"),
    "gpu fault": Kind("end", "{who}'s GPU failed{at}: {d}"),
    "cuda error": Kind("end", "{who} failed{at}: {d}"),
    "no resources": Kind("end", "{who} could start no more threads or processes{at} ({d})"),
    "disk full": Kind("error", "{who} had no space left{at} ({d})"),
    "time limit": Kind("end", "the scheduler ended the job{at}: {d}"),
    "ended from outside": Kind("end", "the job was ended from outside by {d}{at}"),
    "sync error": Kind("end", "a call of the weight sync failed{at}: {d}"),
    "port taken": Kind("end", "{who} found its port in use{at}: {d}"),
    "mismatch": Kind("end", "{who} found{at} that the ranks' collectives differ: {d}"),
    # Waits that ended.
    "dump signal": Kind("wait", "{who} was told{at} that another rank timed out"),
    "watchdog stuck": Kind("wait", "{who}'s NCCL watchdog got no further for {n} s until {time}"),
    "gil": Kind("wait", "{who} could not take Python's GIL within {n} ms{at}: a thread of it held it"),
    "gloo timeout": Kind("wait", "{who} waited {n} ms in a gloo operation for {d} and gave up{at}"),
    "gloo pair": Kind("wait", "{who}'s gloo connection was closed after a timeout{at}"),
    "gloo connect": Kind("wait", "{who} could not connect to the others by gloo{at}"),
    "store timeout": Kind("wait", "{who} waited in vain for a key of the store{at}: {d}"),
    "clients timeout": Kind("wait", "{who} waited in vain for others to join{at}: {d} clients came"),
    "connect timeout": Kind("wait", "{who} could not reach {d}{at}"),
    "unique id": Kind("wait", "{who} waited in vain for rank 0's NCCL id{at}"),
    "barrier": Kind("wait", "{ranks} did not come to a monitored barrier; {who} waited {n} ms for them{at}"),
    "barrier peer": Kind(
        "wait",
        "{who} came to a monitored barrier{at} and got no answer from {ranks}: its log names who is missing",
    ),
    "nccl hang": Kind("wait", "NCCL suspects{at} that the ranks' collectives do not match around {ranks}"),
    "store barrier": Kind("wait", "{who} waited at the store-based barrier {d}: {n} of {t} ranks came"),
    "rendezvous": Kind("wait", "{who} waited in vain for the rendezvous{at}: {d}"),
    "rpc timeout": Kind("wait", "{who} got no answer to {d}{at}: whoever should have answered hangs"),
    "no answer": Kind("wait", "{who} waited in vain for an answer{at}: {d}"),
    "watchdog silent": Kind("wait", "{who}'s NCCL watchdog gave no sign of life{at}"),
    "other watchdog": Kind("wait", "{who}'s own watchdog saw no progress{at}: {d}"),
    "hccl timeout": Kind("wait", "{who} waited in HCCL{for_ranks} and gave up{at}: {d}"),
    "hccl heartbeat": Kind("wait", "{who} heard no heartbeat any more of {peer} (host and device){at}"),
    "heartbeat": Kind("wait", "{who} missed another's heartbeat{at}: {d}"),
    "test hang": Kind("wait", "a test ran out of time{at}: {d}"),
    # Consequences.
    "gloo closed": Kind("effect", "{who} lost its connection to {peer}{at}: {d}"),
    "store closed": Kind("effect", "{who} lost its connection to the store{at}: {d}"),
    "nccl remote": Kind("effect", "{who}'s NCCL lost a remote process{at}"),
    "engine fatal": Kind("effect", "{who}: {d}{at}"),
    "closing signal": Kind("effect", "an agent ended its processes{at}: {d}"),
    "killed with the rest": Kind("effect", "a process was killed{at} ({d}) after another failure"),
    "aborted": Kind("effect", "{who} was taken down after a failure{at}"),
    # Others.
    "nccl error": Kind("error", "{who}'s NCCL failed{at}: {d}{peers}"),
    "nccl peer": Kind("error", "{who} could not talk to {peer}{at}: {d}"),
    "hccl error": Kind("error", "{who}'s HCCL failed{at}: {d}{peers}"),
    "exception": Kind("error", "{who} ended with an error{at}: {d}"),
    "kv transfer": Kind("error", "{who} could not take over a KV cache{at}: {d}"),
    "traceback": Kind("error", "{who} has a traceback without an end{at}"),
    "shm wait": Kind("warning", "a reader of vLLM's shared memory has been slow for {n} s{at}"),
    "barrier wait": Kind("warning", "{who} waits at the store-based barrier {d}: {n} of {t} ranks came"),
    # Context.
    **{
        name: Kind("context")
        for name in (
            "version", "coordinator", "engine config", "server", "progress", "saving", "saved", "preparing",
            "storage", "multimodal", "trainer", "vllm", "init complete", "world size", "success", "over",
            "sync call", "step",
        )
    },
}  # fmt: skip
