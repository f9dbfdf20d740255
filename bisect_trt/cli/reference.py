"""``docs/reference.md``, from the declarations of the options: ``python -m bisect_trt.cli.reference`` prints it.

It is not made of the text that ``--help`` prints, nor of Typer's objects: both differ between its versions.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from bisect_trt.cli.app import COMMANDS, app

_HEAD = """# Reference

Every command with its options, as `bisect-trt COMMAND --help` shows them. This page is generated (`make docs`); what the
words mean is in the [README](../README.md), [checks.md](checks.md), [precision.md](precision.md), [layerwise.md](layerwise.md)
and [tensorrt.md](tensorrt.md).

Options marked (T) are TensorRT's alone. Several values may follow one flag where its value ends in `...`.
"""


def reference() -> str:
    """The page."""
    for name in COMMANDS:
        import_module(f"bisect_trt.cli.{name}")
    functions = {entry.name: entry.callback for entry in app.registered_commands}
    return "\n".join([_HEAD, *(line for name in COMMANDS for line in _command(name, functions[name]))])


def _command(name: str, function: Callable[..., Any] | None) -> Iterator[str]:
    assert function is not None, f"{name} is no command"
    parameters = [_Parameter(each) for each in inspect.signature(function).parameters.values()]
    yield f"## {name}\n"
    yield " ".join((function.__doc__ or "").split()) + "\n"
    yield "```text"
    yield " ".join(["bisect-trt", name, *(each.usage for each in parameters if each.usage), "[OPTIONS]"])
    yield "```\n"
    groups: dict[str, list[_Parameter]] = {}
    for each in parameters:
        groups.setdefault(each.info.rich_help_panel or "This command alone", []).append(each)
    for title, entries in groups.items():
        yield f"| {title} | |"
        yield "| --- | --- |"
        yield from (f"| {each.names} | {_cell(each.info.help or '')} |" for each in entries)
        yield ""


class _Parameter:
    """A parameter of a command's function."""

    info: ArgumentInfo | OptionInfo

    def __init__(self, parameter: inspect.Parameter) -> None:
        self._kind, *extras = typing.get_args(parameter.annotation)
        self.info = next(extra for extra in extras if isinstance(extra, ArgumentInfo | OptionInfo))
        self._name = parameter.name
        self._kinds = [self._kind, *typing.get_args(self._kind)]
        self._several = any(typing.get_origin(kind) is list for kind in self._kinds)
        self._needed = parameter.default is inspect.Parameter.empty

    @property
    def usage(self) -> str:
        """How an argument, or an option that must be given, stands in the line that shows how to call it."""
        if isinstance(self.info, OptionInfo):
            return f"{self._declared()[0]} {self._value()}" if self._needed else ""
        return self._value() if self._needed else f"[{self._value()}]"

    @property
    def names(self) -> str:
        """All ways to write it."""
        if isinstance(self.info, ArgumentInfo):
            return f"`{_cell(self._value())}`"
        flag = bool in self._kinds or bool(self.info.count)
        return ", ".join(f"`{_cell(name if flag else f'{name} {self._value()}')}`" for name in self._declared())

    def _declared(self) -> list[str]:
        # Typer moves the first declaration to where a default would be, later.
        words = [self.info.default, *(self.info.param_decls or ())]
        declared = [word for word in words if isinstance(word, str) and word.startswith("-")]
        plain = self._name.replace("_", "-")
        return declared or ([f"--{plain}/--no-{plain}"] if bool in self._kinds else [f"--{plain}"])

    def _value(self) -> str:
        """What stands for the value: as declared, else the choices, else its type or name."""
        choices = next((kind for kind in self._kinds if isinstance(kind, type) and issubclass(kind, Enum)), None)
        word = self.info.metavar or self._name.upper()
        if self.info.metavar is None and choices is not None:
            word = "|".join(str(choice.value) for choice in choices)
        elif self.info.metavar is None and int in self._kinds:
            word = "N"
        return f"{word} ..." if self._several and not word.endswith("...") else word


def _cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
