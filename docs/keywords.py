"""``bisect_trt/keywords.pyi``, from the declarations of the options: ``python docs/keywords.py`` prints it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum

from bisect_trt.commands.table import COMMANDS
from bisect_trt.options.searches import Run
from bisect_trt.options.shared import CheckOptions, General
from bisect_trt.options.spec import Option, entries

_HEAD = '''"""Keywords of the Python functions, as types of each group of options.

Nothing imports them: this stub is for type checkers. It is generated from the declarations of the
options (``make docs``).
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, TypeAlias, TypedDict

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
    """Return the module: a ``TypedDict`` for each group of options, then one for each function."""
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
    title = "Compare" if name == "run" else name.capitalize()
    bases = [_name(group) for group in groups if group not in _LEFT_OUT]
    yield f"\nclass {title}Keywords({', '.join(bases)}, CallGroup, total=False):"
    yield f'    """Keywords of :func:`bisect_trt.{"compare" if name == "run" else name}`."""\n'
    if CheckOptions in groups and name in ("cause", "sweep"):  # the others have it as a parameter
        yield "    check: Callable[..., object] | Texts"
    if name == "precision":
        yield '    low: Literal["fp16", "bf16", "fp8", "int8", "int4"]'
    yield ""


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
