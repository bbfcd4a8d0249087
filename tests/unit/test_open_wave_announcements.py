"""Open wave's two sides without vLLM: what is announced, and what an engine core makes of it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lockstep.remedies import open_wave
from lockstep.remedies.open_wave import OpenWaveError


class Client:
    """Has of `SyncMPClient` what open wave uses; `sent` is what went to the engine core, in order."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.engines_running = False
        self.utility_results: dict[int, Any] = {}
        self.understands = True

    def call_utility(self, method: str) -> None:
        if not self.understands:
            raise Exception(f"Call to {method} method failed: no attribute")
        self.sent.append(method)

    def _send_input(self, kind: str, request: tuple[int, int, str, tuple[()]]) -> None:
        assert kind == "utility"
        assert request[1] in self.utility_results
        self.sent.append(request[2])

    def ensure_alive(self) -> None:
        self.sent.append("alive?")


class Engine:
    """Has of `LLMEngine` what open wave uses: it is unfinished until it has stepped after its client ran."""

    def __init__(self, size: int = 2) -> None:
        self.engine_core = Client()
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=size))

    def has_unfinished_requests(self) -> bool:
        return self.engine_core.engines_running

    def add_request(self, name: str) -> None:
        self.engine_core.sent.append(name)

    def step(self) -> None:
        self.engine_core.sent.append("step")
        self.engine_core.engines_running = False


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    module = ModuleType("vllm.v1.engine")
    module.EngineCoreRequestType = SimpleNamespace(UTILITY="utility")  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", module)
    stepping = type("Stepping", (Engine,), {"step": Engine.step, "add_request": Engine.add_request})
    open_wave._patch_engine(stepping)
    return stepping()


def test_the_end_is_announced_with_the_first_step(engine: Engine) -> None:
    with open_wave.adding(engine):
        assert engine.engine_core.sent == ["open_wave_begin"]
        assert engine.has_unfinished_requests()
        engine.step()
        engine.step()
    assert engine.engine_core.sent == ["open_wave_begin", "open_wave_end", "step", "step"]


def test_a_body_that_raises_sees_the_wave_to_its_end(engine: Engine) -> None:
    with pytest.raises(ValueError, match="broken image"), open_wave.adding(engine):
        raise ValueError("broken image")
    assert engine.engine_core.sent == ["open_wave_begin", "open_wave_end", "alive?", "step"]


def test_a_body_without_requests_or_steps_does_too(engine: Engine) -> None:
    with open_wave.adding(engine):
        pass
    assert engine.engine_core.sent == ["open_wave_begin", "open_wave_end", "alive?", "step"]


def test_steps_outside_a_batch_announce_nothing(engine: Engine) -> None:
    engine.step()
    assert engine.engine_core.sent == ["step"]


def test_one_rank_alone_needs_nothing() -> None:
    engine = Engine(size=1)
    with open_wave.adding(engine):
        engine.step()
    assert engine.engine_core.sent == ["step"]


def test_an_engine_core_without_the_cure_is_refused_before_anything_is_added(engine: Engine) -> None:
    engine.engine_core.understands = False
    with pytest.raises(OpenWaveError, match="cannot keep its wave open"), open_wave.adding(engine):
        pytest.fail("the body must not run")


def test_an_engine_in_the_workers_process_is_refused(engine: Engine) -> None:
    engine.engine_core = object()  # type: ignore[assignment]
    with pytest.raises(OpenWaveError, match="VLLM_ENABLE_V1_MULTIPROCESSING"), open_wave.adding(engine):
        pytest.fail("the body must not run")


class Core:
    """Has of `DPEngineCoreProc` what open wave uses."""

    has_coordinator = False
    engines_running = False

    @staticmethod
    def run_engine_core() -> str:
        return "ran"

    def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
        return local_unfinished


@pytest.fixture
def core() -> Any:
    made = type("Made", (Core,), {k: v for k, v in vars(Core).items() if not k.startswith("__")})
    open_wave._patch_core(made, made)
    return made()


def test_an_engine_core_is_unfinished_while_its_worker_adds(core: Any) -> None:
    assert not core._has_global_unfinished_reqs(False)
    core.open_wave_begin()
    assert core.engines_running
    assert core._has_global_unfinished_reqs(False)
    core.open_wave_end()
    assert not core._has_global_unfinished_reqs(False)
    assert core._has_global_unfinished_reqs(True)


def test_a_dead_worker_adds_nothing(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    core.open_wave_begin()
    monkeypatch.setattr(open_wave, "_worker_lives", lambda: False)
    assert not core._has_global_unfinished_reqs(False)


def test_a_coordinator_is_refused(core: Any) -> None:
    core.has_coordinator = True
    with pytest.raises(OpenWaveError, match="coordinator"):
        core.open_wave_begin()


def test_a_function_that_is_gone_is_named() -> None:
    class Renamed:
        pass

    with pytest.raises(OpenWaveError, match=r"Renamed\._has_global_unfinished_reqs is not there"):
        open_wave._patch_core(Renamed, Core)
    with pytest.raises(OpenWaveError, match=r"collections\.Wave is not there"):
        open_wave._find("collections", "Wave")


def test_the_entry_point_does_nothing_unless_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(open_wave, "install", lambda: called.append(1))
    for value, times in (("", 0), ("0", 0), ("1", 1)):
        monkeypatch.setenv(open_wave.SWITCH, value)
        open_wave.register()
        assert len(called) == times


def test_a_request_outside_of_a_batch_is_refused(engine: Engine) -> None:
    with open_wave.adding(engine):
        engine.add_request("first")
        engine.step()
        engine.add_request("second")
        engine.step()
    with pytest.raises(OpenWaveError, match="outside of a batch"):
        engine.add_request("third")
    assert [said for said in engine.engine_core.sent if said in ("first", "second", "third")] == [
        "first",
        "second",
    ]
    engine.vllm_config.parallel_config.data_parallel_size = 1
    engine.add_request("no data parallelism")


@pytest.mark.parametrize("build", ["{}", "{}.post2", "{}+cu129"])
@pytest.mark.parametrize("release", open_wave.RELEASES)
def test_every_build_of_a_tested_release_is_taken(release: str, build: str) -> None:
    open_wave._check_release(build.format(release))


@pytest.mark.parametrize("release", ["0.10.2", "0.11.00", "0.11.1", "0.12.0", "0.99.0", "0.11.0rc1", "dev"])
def test_another_release_is_refused_with_the_tested_ones_named(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(open_wave.SWITCH, "1")
    with pytest.raises(
        OpenWaveError, match=rf"tested with vLLM 0\.11\.0.*this is {release}.*OPEN_WAVE=untested"
    ):
        open_wave._check_release(release)
    monkeypatch.setenv(open_wave.SWITCH, "untested")
    open_wave._check_release(release)
