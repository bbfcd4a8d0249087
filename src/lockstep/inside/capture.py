"""Keeps the probe's thread from spoiling CUDA graphs that other threads of its process capture.

Reading the recorder's records asks the CUDA events of those not retired (torch 2.8, `FlightRecorder::
dump_entries` -> `update_state` -> `cudaEventQuery`). While a thread captures in mode "global", as
inference engines do, CUDA forbids that call in every other thread, and the capture fails. A thread whose own
mode is "relaxed" may call it all the same: NCCL asks its events in that mode for the same reason
(`ncclCommPollEventCallbacks` in `src/include/comm.h`). What has not been tried on a GPU is in docs/gpu.md.
"""

from __future__ import annotations

import ctypes
import os
import sys

from lockstep.inside.writer import complain

RELAXED = 2
"""`cudaStreamCaptureModeRelaxed` (`driver_types.h`)."""


class RelaxedThread:
    """The capture mode of the thread that calls `enter`."""

    def __init__(self) -> None:
        self._device: int | None = None
        self._entered: int | None = None
        self._failed = False

    def note_device(self) -> None:
        """Note the calling thread's device, for a thread of the job: the probe's must not open another."""
        if self._device is None and _cuda_runs():
            import torch

            self._device = torch.cuda.current_device()

    def enter(self) -> None:
        """Set this thread to relaxed mode, once CUDA runs in the process; says so if that cannot be done."""
        device = int(os.environ.get("LOCAL_RANK", "0")) if self._device is None else self._device
        if device == self._entered or self._failed or not _cuda_runs():
            return
        try:
            _relax(device)
            self._entered = device
        except (OSError, AttributeError, RuntimeError) as error:
            if self._device is None:
                return  # LOCAL_RANK need not be a device's number; the job's thread will say which it is
            self._failed = True
            complain(f"reading records may spoil the capture of CUDA graphs in this process: {error}")


def _cuda_runs() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.version.cuda is not None and bool(torch.cuda.is_initialized())


def _relax(device: int) -> None:
    import torch

    # On a thread without a device of its own the runtime opens the first one: half a gigabyte on GPU 0.
    torch.cuda.set_device(device)
    major = (torch.version.cuda or "").partition(".")[0]
    mode = ctypes.c_int(RELAXED)
    status = ctypes.CDLL(f"libcudart.so.{major}").cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if status:
        raise RuntimeError(f"cudaThreadExchangeStreamCaptureMode ends with {status}")
