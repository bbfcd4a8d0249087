"""Wrapping functions of the real packages, and saying which one is not there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lockstep.inside.hooks import HookError, after_import, replace, wrap

SOURCE = '''
def double(x):
    """Twice."""
    return 2 * x

class Base:
    def inherited(self):
        return "base"

class Thing(Base):
    @staticmethod
    def static(x):
        return x + 1

    def method(self, x, *, y=0):
        return (self.name, x, y)

    class Inner:
        def deep(self):
            return "deep"
'''


@pytest.fixture
def thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "hooked_thing.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hooked_thing", raising=False)
    return importlib.import_module("hooked_thing")


def _add(k: int) -> Any:
    return lambda original, *args, **kwargs: original(*args, **kwargs) + k


def test_a_function_keeps_its_name_and_wraps_nest(thing: ModuleType) -> None:
    wrap("hooked_thing:double", _add(1))
    wrap("hooked_thing:double", lambda original, x: 10 * original(x))
    assert thing.double(3) == 70
    assert (thing.double.__name__, thing.double.__doc__) == ("double", "Twice.")


def test_methods_get_self_and_keywords(thing: ModuleType) -> None:
    seen = []

    def around(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((self.name, args, kwargs))
        return original(self, *args, **kwargs)

    wrap("hooked_thing:Thing.method", around)
    one = thing.Thing()
    one.name = "one"
    assert one.method(1, y=2) == ("one", 1, 2)
    assert seen == [("one", (1,), {"y": 2})]


def test_static_methods_stay_static_and_nest(thing: ModuleType) -> None:
    wrap("hooked_thing:Thing.static", _add(10))
    wrap("hooked_thing:Thing.static", _add(100))
    assert thing.Thing.static(1) == 112
    assert thing.Thing().static(1) == 112


def test_classes_in_classes(thing: ModuleType) -> None:
    wrap("hooked_thing:Thing.Inner.deep", lambda original, self: original(self).upper())
    assert thing.Thing.Inner().deep() == "DEEP"


def test_replace_returns_what_was_there(thing: ModuleType) -> None:
    original = replace("hooked_thing:double", lambda x: 0)
    assert (thing.double(3), original(3)) == (0, 6)


@pytest.mark.parametrize(
    "where",
    [
        "hooked_thing:triple",
        "hooked_thing:Thing.absent",
        "hooked_thing:Nothing.method",
        "hooked_thing.sub:double",
        "no_such_package_at_all:double",
        "hooked_thing:Thing.inherited",  # it must be named where it is
    ],
)
def test_what_is_missing_is_named(thing: ModuleType, where: str) -> None:
    for hook in (wrap, replace):
        with pytest.raises(HookError, match=where.replace(".", r"\.")):
            hook(where, _add(1))
    assert not hasattr(thing, "triple")


def test_after_import_waits_for_the_whole_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "hooked_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("value = 1\nlast = 'there'\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    called: list[str] = []

    def note(name: str) -> Any:
        return lambda: called.append(f"{name} {sys.modules['hooked_package.inner'].last}")

    after_import("hooked_package.inner", note("one"))
    after_import("hooked_package.inner", note("two"))
    import hooked_package  # type: ignore[import-not-found]

    assert not called
    importlib.import_module("hooked_package.inner")
    assert sorted(called) == ["one there", "two there"]
    assert sys.meta_path == finders
    after_import("hooked_package.inner", note("at once"))
    assert called[-1] == "at once there"
    importlib.reload(sys.modules["hooked_package.inner"])
    assert len(called) == 3
    del sys.modules["hooked_package.inner"], sys.modules[hooked_package.__name__]


def test_after_import_of_a_module_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    finders = list(sys.meta_path)
    after_import("no_such_package_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_at_all")
    assert sys.meta_path == finders


def test_the_entry_points_are_found() -> None:
    torch = [e for e in entry_points(group="torch.backends") if e.name == "lockstep"]
    vllm = [e for e in entry_points(group="vllm.general_plugins") if e.name == "lockstep"]
    assert [e.value for e in torch] == ["lockstep.stacks.swift.inside.entry_point:register"]
    assert [e.value for e in vllm] == ["lockstep.stacks.swift.inside.vllm_plugin:register"]
    assert all(callable(e.load()) for e in (*torch, *vllm))


IMPORTS = """
import json, sys
sys.argv[0] = {argv!r}
finders = list(sys.meta_path)
import torch
from lockstep.probe import vllm_plugin
vllm_plugin.register()
new = [type(f).__name__ for f in sys.meta_path if f not in finders]
print(json.dumps([sorted(m for m in sys.modules if m.startswith("lockstep.")), new]))
"""


def _imports(argv: str, env: dict[str, str]) -> tuple[list[str], list[str]]:
    """Modules of Lockstep and finders that are there after torch's import and vLLM's call, in a new one."""
    base = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    base.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(argv=argv)],
        env=base | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | env,
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    modules, finders = json.loads(done.stdout.splitlines()[-1])
    return modules, finders


def test_outside_a_run_the_entry_points_do_nothing() -> None:
    pytest.importorskip("torch")
    modules, finders = _imports("rlhf.py", {})
    assert "_AfterImport" not in finders
    assert not {"lockstep.stacks.swift.inside.cpu", "lockstep.inside.hooks"} & set(modules)


def test_in_a_run_only_the_trainer_waits_for_its_client(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = {"LOCKSTEP_RUN_DIR": str(tmp_path)}
    assert "_AfterImport" in _imports("/site-packages/swift/cli/rlhf.py", run)[1]
    assert "_AfterImport" not in _imports("/site-packages/swift/cli/rollout.py", run)[1]
    assert not list(tmp_path.iterdir())


def test_the_clients_port_is_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("swift.trainers.rlhf_trainer.vllm_client")
    from lockstep.stacks.swift.inside import group_port

    made: list[Any] = []

    def init(self: Any, *args: Any, group_ports: Any = 51216, **kwargs: Any) -> None:
        made.append(group_ports)

    monkeypatch.setattr(client.VLLMClient, "__init__", init)
    monkeypatch.delenv(group_port.PORT, raising=False)
    group_port.choose_group_port()
    client.VLLMClient()
    monkeypatch.setenv(group_port.PORT, "4711")
    group_port.choose_group_port()
    client.VLLMClient()
    client.VLLMClient(group_ports=99)
    assert made == [51216, 4711, 99]
    monkeypatch.setattr(client.VLLMClient, "__init__", init)
    monkeypatch.setenv(group_port.PORT, "4711,4712")
    group_port.choose_group_port()
    client.VLLMClient(hosts=["a", "b"])
    assert made[-1] == [4711, 4712]


def test_the_real_client_uses_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("swift.trainers.rlhf_trainer.vllm_client")
    from lockstep.stacks.swift.inside import group_port

    original = client.VLLMClient.__init__
    monkeypatch.setenv(group_port.PORT, "4711")
    monkeypatch.setattr(client.VLLMClient, "__init__", original)  # put back afterwards
    monkeypatch.setattr(client.VLLMClient, "check_server", lambda self, timeout: None)
    group_port.choose_group_port()
    assert client.VLLMClient(hosts=["127.0.0.1"], server_ports=[8000]).group_ports == [4711]
