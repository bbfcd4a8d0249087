"""Cure for the hang of `swift rollout --vllm_data_parallel_size N` that keeps the ranks in lockstep: open
wave.

For models whose data-parallel ranks must step together (expert parallelism). Take this one file and give it
to the rollout:

    swift rollout --vllm_data_parallel_size 2 ... --external_plugins open_wave.py

or install Lockstep and set `OPEN_WAVE=1`: vLLM then loads it in all its processes (entry point
`vllm.general_plugins`).

A wave of vLLM's offline data parallelism ends when, at a 32nd step, no rank has an unfinished request; a
worker that is still adding requests does not count. Here every worker announces to its engine core that it
begins to add, also if it then adds nothing, and that it has ended. In between the engine core counts as
unfinished, and steps along. So the wave begins on every rank with the round and ends on every rank with it.
If a worker's call fails, it announces the end and waits for the end of the wave before it answers. An engine
core takes a dead worker's announcement for ended. The protocol and what was checked of it: docs/protocol.md.

Patches, in the releases of vLLM that RELEASES lists: `v1.engine.core.EngineCoreProc.run_engine_core`,
`DPEngineCoreProc._has_global_unfinished_reqs`, `v1.engine.llm_engine.LLMEngine.add_request` and `step`; in
ms-swift 3.10.3: `GRPOVllmEngine.infer`. Other users of `LLMEngine` put each batch into
`with open_wave.adding(engine):`, from before its first request to after its last answer, on every rank."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SWITCH = "OPEN_WAVE"
"""Environment variable: `1` lets the entry point put the cure in; `untested` does so on any release of vLLM,
for a test on one that is not in RELEASES."""
RELEASES = ("0.11.0", "0.13.0", "0.14.1", "0.15.1", "0.26.0", "0.32.0")
"""Releases of vLLM on which a test has shown that it applies: docs/moe.md."""

CORE = "vllm.v1.engine.core"
SWIFT = "swift.llm.infer.infer_engine.grpo_vllm_engine"

UNTESTED = "untested"

_BATCH = "open_wave_batch"
"""Attribute of a worker's client: within `adding`."""
_MARK = "open_wave_adding"
"""Attribute of an engine core and of a worker's client: between the two announcements."""


class OpenWaveError(RuntimeError):
    """This rollout, or this release of vLLM, cannot be cured so."""


def register() -> None:
    """Entry point: puts the cure into this process if the environment asks for it."""
    if os.environ.get(SWITCH) in ("1", UNTESTED):
        install()


def install() -> None:
    """Puts the cure into this process, and into the engine cores that it starts. Twice is once. Raises
    OpenWaveError."""
    import vllm

    _check_release(vllm.__version__)
    core = _find(CORE, "DPEngineCoreProc")
    if not hasattr(core, "open_wave_begin"):
        _patch_core(core, _find(CORE, "EngineCoreProc"))
        _patch_engine(_find("vllm.v1.engine.llm_engine", "LLMEngine"))
    if SWIFT in sys.modules:
        _patch_swift(_find(SWIFT, "GRPOVllmEngine"))


@contextmanager
def adding(engine: Any) -> Iterator[None]:
    """Keeps the wave of `engine` (an `LLMEngine`) open while the body adds requests, up to its first
    `engine.step()`.

    All ranks must enter it for each round, also those that have no request. The body ends when all its
    requests have been answered; if it raises, what it has added is answered to nobody, and the wave is seen
    to its end first."""
    client = engine.engine_core
    if not _is_parallel(engine):
        yield
        return
    _check_client(client)
    _announce_begin(client)
    setattr(client, _BATCH, True)
    try:
        yield
    finally:
        setattr(client, _BATCH, False)
        _announce_end(client)
        while engine.has_unfinished_requests():
            client.ensure_alive()
            engine.step()


def _is_parallel(engine: Any) -> bool:
    size: int = engine.vllm_config.parallel_config.data_parallel_size
    return size > 1


def _check_release(version: str) -> None:
    # A build of a release for other hardware is called 0.11.0.post2 or 0.11.0+cu129.
    if os.environ.get(SWITCH) != UNTESTED and not any(
        version == tested or version.startswith((f"{tested}.post", f"{tested}+")) for tested in RELEASES
    ):
        raise OpenWaveError(
            f"open wave has been tested with vLLM {', '.join(RELEASES)}, and this is {version}, which may do "
            f"otherwise. Take the plugin out; or test it on this release (nox -s open_wave -- --vllm "
            f"{version}), and then set {SWITCH}={UNTESTED}"
        )


def _check_client(client: Any) -> None:
    if not hasattr(client, "call_utility") or not hasattr(client, "engines_running"):
        raise OpenWaveError(
            f"{type(client).__name__} runs the engine core in the worker's own process "
            "(VLLM_ENABLE_V1_MULTIPROCESSING=0): it steps only when it is told to, so that no wave can end "
            "early. Take out one of the two"
        )


def _announce_begin(client: Any) -> None:
    """Waits for the answer: an engine core without the cure says so here, before anything is added."""
    try:
        client.call_utility("open_wave_begin")
    except Exception as error:
        raise OpenWaveError(f"the engine core cannot keep its wave open: {error}") from error
    client.engines_running = True
    setattr(client, _MARK, True)


def _announce_end(client: Any) -> None:
    """Does not wait: the engine core may be in a step that a peer has yet to join. It is read after all
    requests sent before."""
    if not getattr(client, _MARK, False):
        return
    setattr(client, _MARK, False)
    call = _Discarded()
    client.utility_results[call.id] = call
    client._send_input(
        _find("vllm.v1.engine", "EngineCoreRequestType").UTILITY, (0, call.id, "open_wave_end", ())
    )


class _Discarded:
    """Stands in `SyncMPClient.utility_results` for the answer to a call that nobody waits for."""

    def __init__(self) -> None:
        self.id = int.from_bytes(os.urandom(7), "big")

    def set_result(self, result: Any) -> None:
        pass

    def set_exception(self, error: BaseException) -> None:
        print(
            f"open wave: the engine core did not read the end of adding: {error}", file=sys.stderr, flush=True
        )


def _patch_core(core: Any, base: Any) -> None:
    """The engine core's side: two calls that its worker makes, and what counts as unfinished."""
    unfinished = _function(core, "_has_global_unfinished_reqs")
    run = _function(base, "run_engine_core")

    def open_wave_begin(self: Any) -> None:
        if self.has_coordinator:
            raise OpenWaveError(
                "it has a coordinator (asynchronous engine), which wakes idle ranks: take the plugin out"
            )
        setattr(self, _MARK, True)
        self.engines_running = True

    def open_wave_end(self: Any) -> None:
        setattr(self, _MARK, False)

    @functools.wraps(unfinished)
    def has_global_unfinished_reqs(self: Any, local_unfinished: bool) -> Any:
        return unfinished(self, local_unfinished or (getattr(self, _MARK, False) and _worker_lives()))

    core.open_wave_begin, core.open_wave_end = open_wave_begin, open_wave_end
    core._has_global_unfinished_reqs = has_global_unfinished_reqs
    # An engine core is a new interpreter: it imports what it is told to run, and so this file.
    run_engine_core.original = run  # type: ignore[attr-defined]
    base.run_engine_core = staticmethod(run_engine_core)


def run_engine_core(*args: Any, **kwargs: Any) -> Any:
    """What an engine core process runs: the same as without the cure, after putting it in."""
    install()
    return run_engine_core.original(*args, **kwargs)  # type: ignore[attr-defined]


def _worker_lives() -> bool:
    worker = multiprocessing.parent_process()
    return worker is None or worker.is_alive()


def _patch_engine(engine: Any) -> None:
    """The worker's side: with its first step it has ended adding. A request outside of `adding` is refused,
    since nothing would keep its wave open: so is a release of ms-swift whose `infer` has not been found."""
    add, step = _function(engine, "add_request"), _function(engine, "step")

    @functools.wraps(add)
    def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_parallel(self) and not getattr(self.engine_core, _BATCH, False):
            raise OpenWaveError(
                "a request is added outside of a batch: open wave makes one of each call of "
                f"{SWIFT}.GRPOVllmEngine.infer (ms-swift 3.10.3); other callers put theirs into "
                "`with open_wave.adding(engine):`"
            )
        return add(self, *args, **kwargs)

    @functools.wraps(step)
    def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
        _announce_end(self.engine_core)
        return step(self, *args, **kwargs)

    engine.add_request, engine.step = add_request, stepping


def _patch_swift(engine: Any) -> None:
    """Every call of the rollout's server, which it makes on all its workers in each round, is a batch."""
    infer = _function(engine, "infer")
    if getattr(infer, _MARK, False):
        return

    @functools.wraps(infer)
    def batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.use_async_engine:
            raise OpenWaveError(
                "the asynchronous engine has a coordinator, which wakes idle ranks: take the plugin out"
            )
        with adding(self.engine):
            return infer(self, *args, **kwargs)

    setattr(batch, _MARK, True)
    engine.infer = batch


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OpenWaveError(
            f"{module}.{name} is not there ({error}): open wave is made for vLLM {', '.join(RELEASES)}"
        ) from error


def _function(owner: Any, name: str) -> Any:
    if name not in vars(owner):
        where = f"{owner.__module__}.{owner.__qualname__}.{name}"
        raise OpenWaveError(f"{where} is not there: open wave is made for vLLM {', '.join(RELEASES)}")
    return getattr(owner, name)


if (
    __name__ == "open_wave"
):  # ms-swift imports an external plugin by its file's name: that is the request for it
    install()
