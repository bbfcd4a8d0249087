"""What a process does when its probe is attached."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep import env
from lockstep.inside import attach


def test_a_probed_process_lets_the_runners_py_spy_look_at_its_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under Yama's ptrace_scope 1 a process may look at its own descendants only, unless they let it."""
    asked: list[tuple[int, int]] = []

    def prctl(option: int, who: object, *_: int) -> int:
        asked.append((option, who.value))  # type: ignore[attr-defined]
        return 0

    monkeypatch.setattr(attach.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=prctl))
    monkeypatch.setattr(attach, "Probe", lambda *_, **__: SimpleNamespace(pid=-1))
    monkeypatch.setattr(attach, "_own_log", lambda path: None)
    monkeypatch.setenv(env.RUN_DIR, str(tmp_path))
    monkeypatch.setattr(attach, "_probe", None)
    assert attach.attach("trainer", "rank", 0) is not None
    assert asked == [(0x59616D61, 2**64 - 1)]
    monkeypatch.undo()
    attach.let_trace()  # the real call, which must not raise wherever it is refused
