"""``bisect_trt/keywords.pyi``, from the functions and the declarations of the options: ``python docs/keywords.py`` prints it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from enum import Enum

from bisect_trt import api
from bisect_trt.commands.table import COMMANDS
from bisect_trt.options.searches import Run
from bisect_trt.options.shared import CheckOptions, General
from bisect_trt.options.spec import Option, entries

_HEAD = '''"""Types of the Python functions, and of their keywords, one of each group of options.

Nothing imports them: this stub is for type checkers. It is generated from the declarations of the
options (``make docs``).
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, Protocol, TypeAlias, TypedDict

from typing_extensions import Unpack

from bisect_trt.api import Check
from bisect_trt.report import answers
from bisect_trt.session.source import Inputs, Model

File: TypeAlias = str | PathLike[str]
"""A path."""
Files: TypeAlias = File | Sequence[File]
Texts: TypeAlias = str | Sequence[str]
Pairs: TypeAlias = Texts | Mapping[str, object]
"""Pairs as on the command line, or by name."""
Numbers: TypeAlias = Sequence[int | float]
Sizes: TypeAlias = Texts | Numbers | Mapping[str, str | Numbers]
"""Shapes or ranges, of one input or by name."""


class CallGroup(TypedDict, total=False):
    """Keywords of every function."""

    output: File
    run: File
    verbose: bool | int

'''
_PLAIN = {"bool": "bool", "int": "int", "float": "float", "str": "str", "Path": "File"}


def keywords() -> str:
    """Return the module: a ``TypedDict`` for each group of options, then one for each function, and its type."""
    functions = {name: command for name, command in COMMANDS.items() if command.panel in _PANELS}
    shared = dict.fromkeys(group for each in functions.values() for group in each.groups)
    groups = (line for group in shared if group not in _LEFT_OUT for line in _group(group))
    lines = (line for name, each in functions.items() for line in _function(name, each.groups))
    both = [group for group in functions["run"].groups if group in functions["diagnose"].groups]
    bases = ", ".join(_name(group) for group in both if group not in _LEFT_OUT)
    match = f"\nclass MatchKeywords({bases}, total=False):\n    {_MATCH}\n\n    output: File\n"
    return "\n".join([_HEAD, *groups, *lines, match])


_MATCH = (
    '"""Keywords of :func:`bisect_trt.assert_matches`: what ``run`` and ``diagnose`` both take."""'
)
_PANELS = ("Find", "Explain", "Fix")
"""The headings of the commands that are Python functions."""
_LEFT_OUT = (General, Run)
_PARAMETERS = ("model", "output", "check")
"""Options that every function takes as parameters, or as keywords of its own."""


def _name(group: type) -> str:
    return f"{group.__name__.removesuffix('Options')}Group"


def _group(group: type) -> Iterator[str]:
    options = [entry for entry in entries(group) if entry.name not in _PARAMETERS]
    yield f'\nclass {_name(group)}(TypedDict, total=False):\n    """Options of one group."""\n'
    yield from (f"    {entry.python}: {_type(entry)}" for entry in options)
    yield ""


def _function(name: str, groups: tuple[type, ...]) -> Iterator[str]:
    public = "compare" if name == "run" else name
    title = public.capitalize()
    bases = [_name(group) for group in groups if group not in _LEFT_OUT]
    yield f"\nclass {title}Keywords({', '.join(bases)}, CallGroup, total=False):"
    yield f'    """Keywords of :func:`bisect_trt.{public}`."""\n'
    if CheckOptions in groups and name in ("cause", "sweep"):  # the others have it as a parameter
        yield "    check: Callable[..., object] | Texts"
    if name == "precision":
        yield '    low: Literal["fp16", "bf16", "fp8", "int8", "int4"]'
    yield ""
    if (function := getattr(api, public, None)) is None:
        return  # the command line has it alone
    yield f'class {title}(Protocol):\n    """{COMMANDS[name].help.partition(". ")[0].rstrip(".")}."""\n'
    yield "    def __call__(\n        self,"
    for entry in inspect.signature(function).parameters.values():
        if entry.kind is entry.VAR_KEYWORD:
            yield f"        **{entry.name}: Unpack[{title}Keywords],"
            continue
        if entry.name == "inputs" and "check" in inspect.signature(function).parameters:
            yield "        *,"
        default = "" if entry.default is entry.empty else f" = {json.dumps(entry.default)}"
        yield f"        {entry.name}: {entry.annotation}{default.replace('null', 'None')},"
    yield f"    ) -> answers.{title}Answer: ...\n"


def _type(entry: Option) -> str:
    one = _PLAIN.get(entry.kind.__name__, "str")
    if issubclass(entry.kind, Enum):
        one = (
            "str"
            if entry.several
            else f"Literal{json.dumps([str(choice.value) for choice in entry.kind])}"
        )
    elif entry.kind is str and "FILE" in (entry.metavar or ""):
        one = "File"
    if entry.name == "max_drop":
        return "float | str"
    if entry.read is not None and one in ("int", "float"):
        one = f"{one} | str"
    if entry.name == "ladder":
        return "Texts"
    if entry.form == "named":
        texts = "Texts" if one == "str" else f"{one} | Texts"
        # What is read are shapes and ranges.
        return "Sizes" if entry.read is not None else f"{texts} | Mapping[str, {one}]"
    if entry.form == "list":
        several = {"str": "Texts", "File": "Files"}.get(one, f"{one} | Sequence[{one}]")
        pairs = {":", "="} & set(entry.metavar or "")
        if pairs:
            several = "Pairs" if one == "str" else f"{several} | Mapping[str, object]"
        return several
    return one


if __name__ == "__main__":
    sys.stdout.write(keywords())
