"""A machine with GPUs that are not there: an `nvidia-smi` on PATH that answers as the real one does (driver
570)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

GPU = "GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-00000000000{n})"


def install(
    folder: Path,
    gpus: int,
    *,
    processes: dict[int, str] | None = None,
    used_mib: int = 4,
    nvlink: bool = True,
    status: int = 0,
    driver: str = "570.124.06",
) -> dict[str, str]:
    """Writes `nvidia-smi` into `folder` and returns an environment that finds it first.

    `processes`: pid -> program on the first GPU. `status`: with what every call ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listing = "\n".join(GPU.format(n=n) for n in range(gpus))
    memory = "\n".join(f"{n}, {used_mib}" for n in range(gpus))
    apps = "\n".join(f"{pid}, {program}" for pid, program in (processes or {}).items())
    links = "\n".join(
        f"{GPU.format(n=n)}\n" + "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18 if nvlink else 0))
        for n in range(gpus)
    )
    script = folder / "nvidia-smi"
    script.write_text(
        f"""#!/bin/sh
case "$*" in
  -L) cat <<'END'
{listing}
END
  ;;
  *query-compute-apps*) cat <<'END'
{apps}
END
  ;;
  *memory.used*) cat <<'END'
{memory}
END
  ;;
  *driver_version*) echo {driver} ;;
  "nvlink --status") cat <<'END'
{links}
END
  ;;
  *) echo "Mon Dec  8 00:00:00 2025   NVIDIA-SMI 570.124.06" ;;
esac
exit {status}
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}
