"""What a script has assigned so far: variables, which of them are exported, functions."""

from __future__ import annotations

from typing import Any

from lockstep.audit.meter import NAMES_PER_STEP, Meter
from lockstep.audit.model import Part, Setting, Value, Word, unknown


class Scope:
    """Variables of one shell. A subshell works on a copy; an isolated one (a container) starts with
    nothing."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.values: dict[str, Setting] = {}
        self.arrays: dict[str, list[Word]] = {}
        self.exported: set[str] = set()
        self.functions: dict[str, Any] = {}
        self.arguments: list[Value] | None = None
        """Positional parameters inside a function; None where nobody knows them."""
        self.export_all = False

    def copy(self) -> Scope:
        self.meter.spend((len(self.values) + len(self.arrays) + len(self.functions)) / NAMES_PER_STEP)
        other = Scope(self.meter)
        other.values = dict(self.values)
        other.arrays = dict(self.arrays)
        other.exported = set(self.exported)
        other.functions = dict(self.functions)
        other.arguments = self.arguments
        other.export_all = self.export_all
        return other

    def get(self, name: str) -> Value:
        """A variable's value; what the environment may give, where the script does not set it."""
        if name in self.values:
            return self.values[name].value
        if name.isdigit() and self.arguments is not None:
            place = int(name[:6])
            return self.arguments[place - 1] if 0 < place <= len(self.arguments) else Value()
        return unknown(f"${name}" if name.isidentifier() else f"${{{name}}}", f"environment {name}")

    def has(self, name: str) -> bool:
        return name in self.values or (name.isdigit() and self.arguments is not None)

    def set(self, setting: Setting) -> None:
        self.meter.spend_on(setting.value)
        self.values[setting.name] = setting
        self.arrays.pop(setting.name, None)
        if self.export_all:
            self.exported.add(setting.name)

    def unset(self, name: str) -> None:
        self.values.pop(name, None)
        self.arrays.pop(name, None)
        self.exported.discard(name)

    def environment(self) -> dict[str, Setting]:
        """What a command started here gets."""
        return {name: self.values[name] for name in sorted(self.exported) if name in self.values}

    def shell_only(self) -> dict[str, Setting]:
        """What a command started here does not get."""
        return {name: setting for name, setting in self.values.items() if name not in self.exported}

    def merge(self, branches: list[Scope], line: int) -> None:
        """Goes on after an `if` or `case`: what differs between its branches is unknown from here on."""
        for branch in branches:
            self.exported |= branch.exported
            self.functions.update(branch.functions)
            self.arrays.update(branch.arrays)
        names = {name for branch in branches for name in branch.values}
        self.meter.spend(len(names) * (len(branches) + 2) / NAMES_PER_STEP)
        for name in sorted(names):
            settings = [branch.values.get(name) for branch in branches]
            first = next(s for s in settings if s is not None)
            if all(s is not None and s.value.same(first.value) for s in settings):
                self.values[name] = first
                continue
            texts = dict.fromkeys(s.value.text if s else f"${name}" for s in settings)
            part = Part(" or ".join(texts)[:200], known=False, origin=f"branch {line} {name}")
            self.values[name] = Setting(name, Value((part,)), first.place, first.how, first.start, first.end)
