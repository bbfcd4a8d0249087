"""Whether this host can run the job on its GPUs now: asked first, so that a run that cannot work does not
begin.

`python -m lockstep.ci.preflight [--gpus N] [--rollout-gpus N]`: a line for each check; exit code 1, with the
reasons, if one refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep import devices
from lockstep.ci import leftovers
from lockstep.guard import guarded

LEAST_DRIVER = (525, 60, 13)
"""The oldest driver that runs programs of CUDA 12 (CUDA's table of minor version compatibility); torch 2.8.0
has 12.8."""
USED_MIB = 1024
"""Memory in use on a GPU that still counts as free: the driver itself takes some."""
DISK_GIB = {"new": 40, "there": 15}
"""Environment of 10 GB with its downloads, and the runs; without the environment once it is there."""
SHM_GIB = 4
"""NCCL's buffers between processes of a host; a container has 64 MiB unless it is started with --shm-size."""
OPEN_FILES = 4096
PROCESSES = 4096
SMI_S = 20.0


class Refused(Exception):
    """Why the run cannot begin, and what to do."""


@dataclass(frozen=True)
class Host:
    """Where to look; all parts can be others in tests."""

    env: Mapping[str, str]
    checkout: Path
    shm: Path = Path("/dev/shm")
    gpus: str | None = None
    rollout_gpus: str | None = None
    without_nvlink: bool = False

    def smi(self, *arguments: str) -> str:
        """What nvidia-smi answers. Raises Refused."""
        program = shutil.which("nvidia-smi", path=self.env.get("PATH"))
        if program is None:
            raise Refused("nvidia-smi is not there: no NVIDIA driver, or a container without --gpus all")
        try:
            done = subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=SMI_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Refused(f"nvidia-smi has not answered for {SMI_S:.0f} s: reboot the host") from None
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise Refused(f"nvidia-smi {' '.join(arguments)} ends with {done.returncode}: {''.join(last)}")
        return done.stdout

    def used(self) -> tuple[int, ...]:
        """The GPUs that the job would use. Raises Refused."""
        try:
            used = devices.use(devices.find_gpus(self.env), self.gpus)
            if devices.scale(used).job:
                trainer, rollout = devices.split(used, None, self.rollout_gpus)
                used = trainer + rollout
        except devices.DeviceError as error:
            raise Refused(str(error)) from error
        return tuple(sorted(used))


def driver(host: Host) -> str:
    found = host.smi("--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0].strip()
    number = tuple(int(part) for part in re.findall(r"\d+", found))
    if number < LEAST_DRIVER:
        raise Refused(
            f"driver {found or 'unknown'}: torch 2.8.0 needs {'.'.join(map(str, LEAST_DRIVER))} or later"
        )
    return found


def gpus(host: Host) -> str:
    return ", ".join(map(str, host.used()))


def free(host: Host) -> str:
    """Nobody else uses the GPUs."""
    used = host.used()
    apps = host.smi("--query-compute-apps=pid,process_name", "--format=csv,noheader").strip()
    rows = host.smi("--query-gpu=index,memory.used", "--format=csv,noheader,nounits").strip().splitlines()
    memory = {}
    for row in rows:
        index, _, mib = (word.strip() for word in row.partition(","))
        if not index.isdigit() or not (mib.isdigit() or int(index) not in used):
            raise Refused(
                f"GPU {index}: nvidia-smi says '{mib}' for the memory in use, expected a number: MIG is on "
                "(nvidia-smi -mig 0), or this user may not read it"
            )
        memory[int(index)] = int(mib) if mib.isdigit() else 0
    full = [f"GPU {gpu}: {memory.get(gpu, 0)} MiB in use" for gpu in used if memory.get(gpu, 0) > USED_MIB]
    if full:
        raise Refused(
            "; ".join([*full, "processes: " + (apps.replace("\n", "; ") or "none that nvidia-smi shows")])
        )
    return "no memory in use"


def nvlink(host: Host) -> str:
    if host.without_nvlink:
        return "not looked at"
    links: dict[int, int] = {}
    gpu = -1
    for line in host.smi("nvlink", "--status").splitlines():
        if match := re.match(r"GPU (\d+):", line):
            gpu = int(match[1])
        elif re.search(r"Link \d+: [\d.]+ GB/s", line):
            links[gpu] = links.get(gpu, 0) + 1
    if bare := [str(number) for number in host.used() if not links.get(number)]:
        raise Refused(
            f"GPU {', '.join(bare)} without an active NVLink: is the fabric manager running "
            "(systemctl status nvidia-fabricmanager)? For GPUs that have none: --without-nvlink"
        )
    return f"{min(links[number] for number in host.used())} links and more on each GPU"


def processes(host: Host) -> str:
    if found := leftovers.jobs():
        told = "; ".join(f"{process.pid} {process.command[:60]}" for process in found[:5])
        raise Refused(
            f"{len(found)} processes of another run: {told}. If that is over: ci/end.sh in its checkout"
        )
    return "none of another run"


def disk(host: Host) -> str:
    there = (host.checkout / ".nox" / "stack-gpu" / "complete").exists()
    needed = DISK_GIB["there" if there else "new"]
    have = shutil.disk_usage(host.checkout).free / 2**30
    if have < needed:
        raise Refused(f"{host.checkout}: {have:.0f} GiB free, {needed} GiB needed")
    return f"{have:.0f} GiB free"


def shared_memory(host: Host) -> str:
    have = shutil.disk_usage(host.shm).free / 2**30
    if have < SHM_GIB:
        needed = f"{SHM_GIB} GiB needed (docker run --shm-size=16g, or --ipc=host)"
        raise Refused(f"{host.shm}: {have:.2f} GiB free, {needed}")
    return f"{have:.0f} GiB free"


def limits(host: Host) -> str:
    told = []
    for name, number, least, option in (
        ("open files", resource.RLIMIT_NOFILE, OPEN_FILES, "-n"),
        ("processes", resource.RLIMIT_NPROC, PROCESSES, "-u"),
    ):
        # ci/run.sh raises the soft limit to the hard one.
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY and hard < least:
            raise Refused(f"{name}: at most {hard}, {least} needed (ulimit {option} {least})")
        told.append(f"{name}: {'unlimited' if hard == resource.RLIM_INFINITY else hard}")
    return ", ".join(told)


CHECKS: dict[str, Callable[[Host], str]] = {
    "driver": driver,
    "GPUs": gpus,
    "free": free,
    "NVLink": nvlink,
    "processes": processes,
    "disk": disk,
    "shared memory": shared_memory,
    "limits": limits,
}


def check(host: Host) -> list[tuple[str, bool, str]]:
    """Every check's name, whether it passes, and what was found or why not."""
    found = []
    for name, look in CHECKS.items():
        try:
            found.append((name, True, look(host)))
        except Refused as why:
            found.append((name, False, str(why)))
    return found


def record(host: Host, found: Sequence[tuple[str, bool, str]]) -> dict[str, object]:
    """What begins now: when (UTC), of which commit, where, with what, and why not if it may not begin."""
    git = ["git", "-C", str(host.checkout), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(
            git, capture_output=True, text=True, timeout=SMI_S, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    told = {name: text for name, good, text in found if good}
    return {
        "begin": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit or "unknown",
        "host": platform.node(),
        "versions": {"python": platform.python_version(), "driver": told.get("driver", "unknown")},
        "refused": [f"{name}: {text}" for name, good, text in found if not good],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Say whether the job can run on this host's GPUs now.")
    parser.add_argument("--gpus")
    parser.add_argument("--rollout-gpus")
    parser.add_argument("--without-nvlink", action="store_true")
    parser.add_argument("--record", type=Path, help="where to write what is to run, and whether it may")
    options, _ = parser.parse_known_args(arguments)
    host = Host(
        os.environ,
        Path.cwd(),
        gpus=options.gpus,
        rollout_gpus=options.rollout_gpus,
        without_nvlink=options.without_nvlink,
    )
    found = check(host)
    if options.record is not None:
        options.record.write_text(json.dumps(record(host, found), indent=2) + "\n")
    for name, good, text in found:
        print(f"{name + ':':15} {'' if good else 'REFUSED: '}{text}")
    return 0 if all(good for _, good, _ in found) else 1


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1:]))
