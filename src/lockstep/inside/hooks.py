"""Wraps functions of the pinned releases where they offer no callback.

Every function that Lockstep wraps or replaces at import time goes through here, named in full, so that a
release in which it is not there stops with its name instead of watching nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class HookError(RuntimeError):
    """A function of the stack that Lockstep needs is not where the pinned release has it."""


def wrap(where: str, around: Callable[..., Any]) -> None:
    """Replaces `package.module:Class.function` by one that calls `around(original, *args, **kwargs)`.

    Static methods stay static; wrapping twice nests.
    """
    owner, name, original = _find(where)
    function = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(function, *args, **kwargs)

    setattr(owner, name, staticmethod(wrapper) if isinstance(original, staticmethod) else wrapper)


def replace(where: str, value: Any) -> Any:
    """Sets `package.module:name` to `value` and returns what it was."""
    owner, name, original = _find(where)
    setattr(owner, name, value)
    return original


def find(where: str) -> Any:
    """What `package.module:name` is."""
    return _find(where)[2]


def after_import(module: str, call: Callable[[], None]) -> None:
    """Calls `call` once `module` has been imported, by whomever; at once if it has been already."""
    if module in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(module, call))


class _AfterImport(MetaPathFinder):
    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module, self._call = module, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._call()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _find(where: str) -> tuple[Any, str, Any]:
    module, _, path = where.partition(":")
    *owners, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        return owner, name, vars(owner)[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise HookError(
            f"{where} is not there ({type(error).__name__}: {error}); is the pinned release installed?"
        ) from error
