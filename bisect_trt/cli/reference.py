"""``docs/reference.md``, from the declarations of the options: ``python -m bisect_trt.cli.reference`` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bisect_trt.options.spec import Entry, entries, title
from bisect_trt.workflows.commands import COMMANDS

_HEAD = """# Reference

Every command with its options, as `bisect-trt COMMAND --help` shows them. This page is generated (`make docs`); what the
words mean is in [start.md](start.md), [json.md](json.md), [checks.md](checks.md), [precision.md](precision.md),
[layerwise.md](layerwise.md) and [tensorrt.md](tensorrt.md).

Options marked (T) are TensorRT's alone. Several values may follow one flag where its value ends in `...`.
"""


def reference() -> str:
    """The page."""
    return "\n".join([_HEAD, *(line for name, groups in COMMANDS.items() for line in _command(name, groups))])


def _command(name: str, groups: tuple[type, ...]) -> Iterator[str]:
    own, *others = groups
    yield f"## {name}\n"
    yield " ".join((own.__doc__ or "").split()) + "\n"
    yield "```text"
    yield " ".join(["bisect-trt", name, *filter(None, map(_usage, entries(own))), "[OPTIONS]"])
    yield "```\n"
    for heading, group in [("This command alone", own), *((title(group), group) for group in others)]:
        yield f"| {heading} | what |"
        yield "| --- | --- |"
        yield from (f"| {_names(entry)} | {_cell(entry.option.help)} |" for entry in entries(group))
        yield ""


def _usage(entry: Entry) -> str:
    """How an argument, or an option that must be given, stands in the line that shows how to call it."""
    if not entry.option.positional:
        return f"{entry.flags[0]} {_value(entry)}" if entry.required else ""
    return _value(entry) if entry.required else f"[{_value(entry)}]"


def _names(entry: Entry) -> str:
    """All ways to write it."""
    if entry.option.positional:
        return f"`{_cell(_value(entry))}`"
    flag = entry.kind is bool or entry.option.count
    return ", ".join(f"`{_cell(name if flag else f'{name} {_value(entry)}')}`" for name in entry.flags)


def _value(entry: Entry) -> str:
    """What stands for the value."""
    return f"{entry.placeholder} ..." if entry.several and not entry.placeholder.endswith("...") else entry.placeholder


def _cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
