"""The one-file remedy on the real ms-swift and trl: devices, environment, ranks in the weight-sync group."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("swift.llm.infer.rollout")
pytest.importorskip("trl.scripts.vllm_serve")

from lockstep import remedies

LAYOUTS = [(tp, dp) for tp in (1, 2, 4) for dp in (2, 4)]
GONE = dict.fromkeys(
    ("VLLM_DP_RANK", "VLLM_DP_RANK_LOCAL", "VLLM_DP_SIZE", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT")
)


@pytest.fixture(scope="module")
def remedy() -> Iterator[ModuleType]:
    """Imported as ms-swift does it with `--external_plugins`: by its bare name, from its folder."""
    from swift.llm.infer import rollout
    from swift.utils import import_external_file

    original, path = rollout.SwiftRolloutDeploy.__dict__["get_infer_engine"], list(sys.path)
    file = remedies.plugin("independent ranks")
    assert file is not None
    module = import_external_file(str(file))
    yield module
    rollout.SwiftRolloutDeploy.get_infer_engine = original
    sys.path[:] = path
    del sys.modules["independent_ranks"]


def _env(rank: int, dp: int, **more: str) -> dict[str, str]:
    return {"VLLM_DP_RANK": str(rank), "VLLM_DP_SIZE": str(dp), **more}


def test_it_is_imported_under_its_bare_name(remedy: ModuleType) -> None:
    assert remedy.__name__ == "independent_ranks"
    assert remedy is not sys.modules.get("lockstep.remedies.independent_ranks")


@pytest.mark.parametrize(("tp", "dp"), LAYOUTS)
@pytest.mark.parametrize("visible", ["all", "shifted", None])
def test_engines_share_the_devices_out(remedy: ModuleType, tp: int, dp: int, visible: str | None) -> None:
    start = 8 if visible == "shifted" else 0
    devices = [str(start + i) for i in range(tp * dp)]
    given = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if visible else {}
    seen: list[str] = []
    for rank in range(dp):
        changes, first = remedy.split(_env(rank, dp, **given), tp)
        assert first == rank * tp
        own = changes.pop("CUDA_VISIBLE_DEVICES").split(",")
        assert len(own) == tp
        assert changes == GONE
        seen += own
    assert seen == devices


def test_two_devices_of_eight(remedy: ModuleType) -> None:
    changes = [remedy.split(_env(r, 2, CUDA_VISIBLE_DEVICES="6, 7"), 1)[0] for r in (0, 1)]
    assert [c["CUDA_VISIBLE_DEVICES"] for c in changes] == ["6", "7"]


def test_more_devices_than_needed(remedy: ModuleType) -> None:
    changes, first = remedy.split(_env(1, 2, CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"), 2)
    assert (changes["CUDA_VISIBLE_DEVICES"], first) == ("2,3", 2)


@pytest.mark.parametrize(("tp", "dp"), LAYOUTS)
def test_sets_of_cores_are_shared_out(remedy: ModuleType, tp: int, dp: int) -> None:
    cores = [f"{i}-{i + 1}" for i in range(0, 2 * tp * dp, 2)]
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(cores)}
    seen: list[str] = []
    for rank in range(dp):
        changes, _ = remedy.split(_env(rank, dp, **bound), tp)
        seen += changes["VLLM_CPU_OMP_THREADS_BIND"].split("|")
    assert seen == cores


@pytest.mark.parametrize("word", ["all", "auto", "nobind"])
def test_a_word_for_all_cores_stays(remedy: ModuleType, word: str) -> None:
    assert "VLLM_CPU_OMP_THREADS_BIND" not in remedy.split(_env(0, 2, VLLM_CPU_OMP_THREADS_BIND=word), 1)[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_VISIBLE_DEVICES", "6,7"), ("CUDA_VISIBLE_DEVICES", "0"), ("VLLM_CPU_OMP_THREADS_BIND", "0|1")],
)
def test_too_few_devices_are_an_error(remedy: ModuleType, name: str, value: str) -> None:
    number = len(value.replace("|", ",").split(","))
    with pytest.raises(
        remedy.IndependentRanksError, match=f"names {number} of the 4 that data parallel size 2"
    ):
        remedy.split(_env(0, 2, **{name: value}), 2)


@pytest.mark.parametrize(("tp", "dp"), LAYOUTS)
def test_ranks_in_the_weight_sync_group_are_distinct(
    remedy: ModuleType, monkeypatch: pytest.MonkeyPatch, tp: int, dp: int
) -> None:
    from trl.scripts import vllm_serve

    joined: list[tuple[int, int]] = []

    def create(host: str, port: int, rank: int, world_size: int, **kwargs: Any) -> Any:
        joined.append((rank, world_size))
        assert vllm_serve.get_world_group().local_rank == 7
        return SimpleNamespace(rank=rank, world_size=world_size)

    own = SimpleNamespace(rank=0, local_rank=7)
    monkeypatch.setattr(vllm_serve.StatelessProcessGroup, "create", create)
    monkeypatch.setattr(vllm_serve, "PyNcclCommunicator", lambda group, device: SimpleNamespace(group=group))
    monkeypatch.setattr(vllm_serve, "get_world_group", lambda: own)
    monkeypatch.setattr(vllm_serve.torch.cuda, "is_available", lambda: False)
    asked = vllm_serve.get_world_group
    world_size = dp * tp + 1
    for rank in range(dp):
        _, first = remedy.split(_env(rank, dp), tp)
        monkeypatch.setenv(remedy.FIRST_RANK, str(first))
        for own.rank in range(tp):
            worker = remedy.IndependentWeightSync()
            worker.device = "cpu"
            worker.init_communicator("127.0.0.1", 51216, world_size, "uuid")
            assert worker.client_rank == world_size - 1
            assert vllm_serve.get_world_group is asked
    assert joined == [(rank, world_size) for rank in range(dp * tp)]


def test_a_failed_join_puts_the_world_group_back(remedy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.scripts import vllm_serve

    def create(**kwargs: Any) -> Any:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(vllm_serve.StatelessProcessGroup, "create", create)
    monkeypatch.setattr(vllm_serve, "get_world_group", lambda: SimpleNamespace(rank=0))
    monkeypatch.setenv(remedy.FIRST_RANK, "2")
    asked = vllm_serve.get_world_group
    worker = remedy.IndependentWeightSync()
    worker.device = "cpu"
    with pytest.raises(ConnectionError):
        worker.init_communicator("127.0.0.1", 51216, 5, "uuid")
    assert vllm_serve.get_world_group is asked


def _arguments(**more: Any) -> SimpleNamespace:
    values = {
        "vllm_enable_expert_parallel": False,
        "vllm_use_async_engine": False,
        "vllm_tensor_parallel_size": 2,
        "vllm_data_parallel_size": 2,
        "vllm_max_lora_rank": 16,
        "vllm_enable_lora": False,
        "model": "m",
        "model_type": None,
        "model_revision": None,
        "torch_dtype": None,
        "infer_backend": "vllm",
        "get_vllm_engine_kwargs": lambda: {"engine_kwargs": {"seed": 1}},
        **more,
    }
    return SimpleNamespace(**values)


def test_an_engine_is_made_out_of_data_parallel_mode(
    remedy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift.llm.infer import rollout

    made: list[dict[str, Any]] = []

    def engine(**kwargs: Any) -> str:
        made.append(kwargs | {"env": dict(os.environ)})
        return "the engine"

    for name, value in _env(1, 2, VLLM_DP_MASTER_PORT="1", CUDA_VISIBLE_DEVICES="4,5,6,7").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(remedy.FIRST_RANK, "unset")
    monkeypatch.setattr(rollout, "GRPOVllmEngine", engine)
    assert rollout.SwiftRolloutDeploy.get_infer_engine(_arguments()) == "the engine"
    assert rollout.GRPOVllmEngine is engine
    (call,) = made
    assert call["engine_kwargs"] == {
        "seed": 1,
        "load_format": "dummy",
        "worker_extension_cls": "independent_ranks.IndependentWeightSync",
    }
    assert not GONE.keys() & call["env"].keys()
    assert (call["env"]["CUDA_VISIBLE_DEVICES"], call["env"][remedy.FIRST_RANK]) == ("6,7", "2")


def test_it_refuses_a_rollout_whose_ranks_vllm_does_not_know(
    remedy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from ms-swift 4.2.1 on."""
    from swift.llm.infer import rollout

    for name in GONE:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(remedy.IndependentRanksError, match=r"does not tell vLLM .* drop this plugin"):
        rollout.SwiftRolloutDeploy.get_infer_engine(_arguments())


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (
            "vllm_enable_expert_parallel",
            "experts of one layer.* must step together.*--vllm_enable_expert_parallel",
        ),
        ("vllm_use_async_engine", "asynchronous engine.*does not need.*--vllm_use_async_engine"),
    ],
)
def test_it_refuses_what_it_does_not_fit(
    remedy: ModuleType, monkeypatch: pytest.MonkeyPatch, argument: str, words: str
) -> None:
    from swift.llm.infer import rollout

    def engine(**kwargs: Any) -> None:
        raise AssertionError("an engine was made")

    monkeypatch.setattr(rollout, "GRPOVllmEngine", engine)
    for name, value in _env(0, 2).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(remedy.IndependentRanksError, match=words):
        rollout.SwiftRolloutDeploy.get_infer_engine(_arguments(**{argument: True}))
    assert os.environ["VLLM_DP_SIZE"] == "2"
