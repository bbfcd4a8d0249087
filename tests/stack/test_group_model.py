"""The models of vLLM's and DeepSpeed's process groups against the real libraries, on gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.diagnose.groups import RELEASES, Layout, Release, made_groups
from lockstep.diagnose.groups.trainer import GROUPS

pytest.importorskip("vllm")

_LAYOUTS = (Layout(dp=2), Layout(tp=2), Layout(tp=2, dp=2), Layout(pp=2, dp=2))

# One import of the library, then a fork per rank. Writes, per layout and rank, what was made in which order,
# and vLLM's names.
_WORKERS = """
import json, os, sys, tempfile
import torch.distributed as dist
import vllm
from torch.distributed import distributed_c10d as c10d
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state as ps

def work(rank, tp, pp, dp, store):
    made = []
    original = c10d._new_process_group_helper
    def record(*args, **kwargs):
        made.append([kwargs.get("group_name") or args[5], list(args[2])])
        return original(*args, **kwargs)
    c10d._new_process_group_helper = record
    config = VllmConfig()
    config.parallel_config.data_parallel_size = dp
    config.parallel_config.distributed_executor_backend = "external_launcher"
    with set_current_vllm_config(config):
        ps.init_distributed_environment(tp * pp * dp, rank, f"file://{store}", local_rank=0, backend="gloo")
        ps.initialize_model_parallel(tp, pp, backend="gloo")
    groups = dict(world=ps._WORLD, tp=ps._TP, dcp=ps._DCP, pp=ps._PP, dp=ps._DP, ep=ps._EP)
    names = {kind: [c10d._world.pg_names[g.device_group], g.ranks] for kind, g in groups.items()}
    return [made, names]

out, layouts = sys.argv[1], json.loads(sys.argv[2])
for n, (tp, pp, dp) in enumerate(layouts):
    store = f"{out}/{n}.store"
    children = []
    for rank in range(tp * pp * dp):
        child = os.fork()
        if not child:
            open(f"{out}/{n}.{rank}.json", "w").write(json.dumps(work(rank, tp, pp, dp, store)))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
print(vllm.__version__)
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Path]:
    """The release in use, and the folder with what its workers wrote."""
    folder = tmp_path_factory.mktemp("groups")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    sizes = json.dumps([[layout.tp, layout.pp, layout.dp] for layout in _LAYOUTS])
    done = subprocess.run(
        [sys.executable, "-c", _WORKERS, str(folder), sizes],
        env=environment,
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    version = done.stdout.split()[-1]
    return next(release for release in RELEASES if version.startswith(release.name)), folder


@pytest.mark.parametrize("n", range(len(_LAYOUTS)), ids=[str(layout) for layout in _LAYOUTS])
def test_model_is_what_vllm_makes(real: tuple[Release, Path], n: int) -> None:
    release, folder = real
    layout = _LAYOUTS[n]
    expected = made_groups(release, layout)
    for rank in range(layout.world):
        made, names = json.loads((folder / f"{n}.{rank}.json").read_text())
        assert [int(name) for name, _ in made] == [group.guid for group in expected]
        assert [tuple(ranks) for _, ranks in made[1:]] == [group.ranks for group in expected[1:]]
        mine = [group for group in expected if group.device and rank in group.ranks]
        assert [group.local for group in mine] == list(range(len(mine)))
        assert {group.kind: [str(group.guid), list(group.ranks)] for group in mine[1:]} == names


_TRAINER = """
import json, os, sys
import deepspeed, torch
from torch.distributed import distributed_c10d as c10d
out, rank = sys.argv[1], int(sys.argv[2])
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles its own all-reduce
store = f"file://{out}/store"
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, init_method=store, rank=rank, world_size=2)
for _ in range(2):  # the model and a reference model
    deepspeed.initialize(
        model=torch.nn.Linear(4, 4),
        config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}},
    )
names = {name: sorted(c10d._world.pg_group_ranks[group]) for group, name in c10d._world.pg_names.items()}
open(f"{out}/{rank}.json", "w").write(json.dumps(names))
"""


def test_model_is_what_deepspeed_makes(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCHDYNAMO_DISABLE": "1",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _TRAINER, str(tmp_path), str(rank)],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for worker in workers:
            _, errors = worker.communicate(timeout=80)
            assert worker.returncode == 0, errors[-3000:]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            str(group.guid): [0, 1] for group in GROUPS
        }
