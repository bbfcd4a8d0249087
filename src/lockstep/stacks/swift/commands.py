"""From a spec to two command lines with their environments, as the incident's script has them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep import remedies
from lockstep.env import FAULT, ROLLOUT_FIRST, ROLLOUT_SERVER, RUN_DIR, WEIGHT_SYNC_PORT
from lockstep.stacks.base import HOST, Command, Launch, Service
from lockstep.stacks.swift import plugins
from lockstep.stacks.swift.compat import CALLBACK, later_swift, place, swift_4
from lockstep.stacks.swift.inside import cpu, faults
from lockstep.stacks.swift.spec import Arguments, JobSpec

RING = {"cpu": "1000", "cuda": "2000"}
"""Records in torch's flight recorder. Each read takes all of them (12 ms of CPU time a thousand), so no more
than needed.
"""
PLUGINS = Path(plugins.__file__).parent


@dataclass(frozen=True)
class Ports:
    """Every port of the job that somebody must choose. vLLM's own groups take free ones by themselves."""

    http: int
    rendezvous: int
    weight_sync: int
    rollout: int
    """`MASTER_PORT` of the rollout: the script sets one, and no part of the pinned stack listens on it."""
    ras_rollout: int
    ras_trainer: int
    """Where NCCL answers questions about its communicators, on CUDA; see `lockstep.run.ras`."""
    others: tuple[tuple[int, int], ...] = ()
    """HTTP and weight-sync port of each rollout server after the first."""

    @staticmethod
    def needed(servers: int) -> int:
        """How many ports a job with so many rollout servers needs."""
        return 6 + 2 * (servers - 1)

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Ports:
        """From as many ports as are needed."""
        http, rendezvous, weight_sync, rollout, ras_rollout, ras_trainer, *more = numbers
        others = tuple(zip(more[::2], more[1::2], strict=True))
        return cls(http, rendezvous, weight_sync, rollout, ras_rollout, ras_trainer, others)

    def all(self) -> list[int]:
        own = [self.http, self.rendezvous, self.weight_sync, self.rollout, self.ras_rollout, self.ras_trainer]
        return [*own, *(port for pair in self.others for port in pair)]

    def of_server(self, server: int) -> Ports:
        """As the rollout server of this number, counted from 0, sees them."""
        if server == 0:
            return self
        http, weight_sync = self.others[server - 1]
        return replace(self, http=http, weight_sync=weight_sync)


def launch(spec: JobSpec, numbers: Sequence[int], run_dir: Path, base: Mapping[str, str]) -> Launch:
    """Return every command of the job, with its ports; `numbers` are as many as `Ports.needed` says."""
    ports = Ports.of(numbers)
    named = {"trainer's rendezvous": ports.rendezvous}
    services = []
    for server in range(spec.servers):
        seen = ports.of_server(server)
        number = f" {server + 1}" if server else ""
        http = f"rollout's HTTP server{number}"
        named |= {http: seen.http, f"weight sync{number}": seen.weight_sync}
        name = f"rollout-{server}" if server else "rollout"
        command = rollout_command(spec, seen, run_dir, base, server=server)
        services.append(Service(name, command, seen.http, http))
    ras = {"rollout": ports.ras_rollout, "trainer": ports.ras_trainer} if spec.device == "cuda" else {}
    return Launch(trainer_command(spec, ports, run_dir, base), named, tuple(services), ras)


def rollout_command(
    spec: JobSpec, ports: Ports, run_dir: Path, base: Mapping[str, str] = os.environ, *, server: int = 0
) -> Command:
    """`swift rollout`, data parallel over the layout's rollout devices, without the asynchronous engine.

    Of several servers, the one of number `server`, on its share of the devices; `ports` are as it sees them.
    """
    share = len(spec.layout.rollout) // spec.servers
    devices = spec.layout.rollout[server * share : (server + 1) * share]
    tensor_parallel = spec.layout.tensor_parallel
    data_parallel = share // tensor_parallel
    cure = [str(file)] if spec.remedy and (file := remedies.plugin(spec.remedy)) else []
    arguments: Arguments = {
        "model": str(spec.model),
        "port": ports.http,
        "host": HOST,
        "vllm_tensor_parallel_size": tensor_parallel,
        "vllm_data_parallel_size": data_parallel,
        "external_plugins": [*cure, OWN],
        **_model_type(spec),
        **spec.rollout,
    }
    env = _environment(spec, run_dir, base) | {"MASTER_ADDR": HOST, "MASTER_PORT": str(ports.rollout)}
    if spec.device == "cpu":
        env |= CPU_ONLY | cpu.rollout_environment(data_parallel, tensor_parallel, first=server * share)
    else:
        env |= _cuda("rollout", devices, ports.ras_rollout, run_dir)
    if server:
        env |= {ROLLOUT_SERVER: str(server), ROLLOUT_FIRST: str(server * data_parallel)}
    return Command([*_swift("rollout"), *_flags(arguments)], env | spec.rollout_env)


def trainer_command(
    spec: JobSpec, ports: Ports, run_dir: Path, base: Mapping[str, str] = os.environ
) -> Command:
    """`swift rlhf --rlhf_type grpo` on the layout's trainer devices, against the rollout's servers."""
    servers = [ports.of_server(server) for server in range(spec.servers)]
    arguments: Arguments = {
        "rlhf_type": "grpo",
        "model": str(spec.model),
        "dataset": str(spec.train_data),
        "val_dataset": spec.val_data,
        "external_plugins": [str(spec.reward), OWN],
        "reward_funcs": "shapes",
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_host": [HOST for _ in servers],
        "vllm_server_port": [str(server.http) for server in servers],
        "output_dir": str(run_dir / "output"),
        "run_name": spec.name,
        "add_version": False,
        **_model_type(spec),
        **{
            place("full training") if name == "train_type" else name: spec.trainer[name]
            for name in spec.trainer
        },
    }
    if swift_4():
        arguments["callbacks"] = CALLBACK
    if spec.resume_from is not None:
        arguments["resume_from_checkpoint"] = str(spec.resume_from)
    env = _environment(spec, run_dir, base) | {
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(ports.rendezvous),
        "NPROC_PER_NODE": str(len(spec.layout.trainer)),
        WEIGHT_SYNC_PORT: ",".join(str(server.weight_sync) for server in servers),
    }
    if spec.device == "cpu":
        env |= CPU_ONLY | cpu.trainer_environment()
    else:
        env |= _cuda("trainer", spec.layout.trainer, ports.ras_trainer, run_dir)
        if spec.cuda_home is not None:
            env["CUDA_HOME"] = str(spec.cuda_home)
    return Command([*_swift("rlhf"), *_flags(arguments)], env)


def _model_type(spec: JobSpec) -> Arguments:
    """Later releases than the pinned one know several kinds of model of the same architecture, and ask which
    it is; ms-swift's name for Qwen3-VL's is transformers'."""
    config = spec.model / "config.json"
    if not later_swift() or not config.exists():
        return {}
    return {"model_type": json.loads(config.read_text())["model_type"]}


def _swift(command: str) -> list[str]:
    return [str(Path(sys.executable).with_name("swift")), command]


OWN = str(PLUGINS / "lockstep_job.py")
"""Comes last of all plugins: what is loaded last wraps outermost, and sees the job as the others left it."""


FOREIGN = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "NPROC_PER_NODE",
        "NNODES",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
    # With these every collective is waited for as it is issued, and is recorded otherwise or not at all.
    | {"NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING"}
    # Without bytecode on disk each of the job's ten Python processes compiles the stack anew: twice the
    # start-up time.
    | {"PYTHONDONTWRITEBYTECODE"}
)
"""Variables of the caller that must not reach the job: most would make it part of another one, or change what
is recorded of it. The families that `without_foreign` names do not either."""


LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": HOST}
"""The job's groups meet on the loopback interface, whatever the machine's name resolves to."""
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", **LOOPBACK}
"""A GPU that is there all the same is not for this job."""


def _cuda(side: str, devices: Sequence[int], ras_port: int, run_dir: Path) -> dict[str, str]:
    """One side's devices, and what torch and NCCL must be told before they start.

    The flight recorder's own files, `evidence/<side>-nccl-rank-<N>`, only come when a watchdog's timeout is
    waited for. torch 2.8 reads the name from the first variable, earlier releases from the second.
    """
    dumps = str(run_dir / "evidence" / f"{side}-nccl-rank-")
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, dict.fromkeys(devices))),
        # nvidia-smi's numbers, which are the ones that people give, are in this order.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **LOOPBACK,
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        # torch's default, and it must stay so: the recorder holds bare pointers to CUDA events, which
        # a dump asks without its lock (`FlightRecorder::dump_entries`). Events of the cache are not freed.
        "TORCH_NCCL_CUDA_EVENT_CACHE": "1",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": dumps,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dumps,
        "NCCL_RAS_ENABLE": "1",
        "NCCL_RAS_ADDR": f"{HOST}:{ras_port}",
    }


def without_foreign(base: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment, less what is foreign to the job."""
    foreign = ("VLLM_", "TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "LOCKSTEP_")
    return {k: v for k, v in base.items() if k not in FOREIGN and not k.startswith(foreign)}


def _environment(spec: JobSpec, run_dir: Path, base: Mapping[str, str]) -> dict[str, str]:
    """What the caller has, and what every process of the job needs."""
    env = without_foreign(base)
    if spec.fault is not None:
        env[FAULT] = faults.encode(spec.fault)
    # The trainer asks the rollout by HTTP; a proxy of the caller's would be asked for it.
    direct = ",".join(filter(None, [HOST, "localhost", env.get("no_proxy") or env.get("NO_PROXY")]))
    return env | {
        RUN_DIR: str(run_dir),
        "TORCH_FR_BUFFER_SIZE": RING[spec.device],
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "no_proxy": direct,
        "NO_PROXY": direct,
        "ROOT_IMAGE_DIR": str(spec.train_data.parent),
        "IMAGE_MAX_TOKEN_NUM": "1024",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _flags(arguments: Arguments) -> list[str]:
    flags: list[str] = []
    for name, value in arguments.items():
        flags.append(f"--{name}")
        if isinstance(value, list):
            flags.extend(value)
        else:
            flags.append(str(value).lower() if isinstance(value, bool) else str(value))
    return flags
