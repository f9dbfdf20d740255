"""``docs/reference.md``, from the declarations of the options: ``python docs/reference.py`` prints it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from bisect_trt.commands.table import COMMANDS, Command
from bisect_trt.errors import kinds
from bisect_trt.options.spec import NEGATIVE, Option, entries, title
from bisect_trt.session import session  # noqa: F401 - it imports every class of errors

_HEAD = """# Reference

Every command and option, as `bisect-trt COMMAND --help-all` shows them. This page is generated (`make docs`). Each command has a
table of its own options and links to the groups of options that it shares with other commands.

Options marked (T) apply to TensorRT only. Several values may follow one option where its value ends in `...`.
"""


def reference() -> str:
    """Return the page: the commands with their own options, then each group of shared options once."""
    shared = dict.fromkeys(group for command in COMMANDS.values() for group in command.groups[1:])
    commands = (line for name, command in COMMANDS.items() for line in _command(name, command))
    tables = (line for group in shared for line in (f"### {title(group)}\n", *_table(group)))
    return "\n".join([_HEAD, *commands, "## Shared options\n", *tables, *_codes()])


def _codes() -> Iterator[str]:
    yield "## Error codes\n"
    yield "| code | exit status | cause | what to do |\n| --- | --- | --- | --- |"
    for kind in kinds():
        known = kind.describe()
        yield f"| {known['code']} | {int(kind.status)} | {known['cause']} | {known['remedy']} |"
    yield ""


def _command(name: str, command: Command) -> Iterator[str]:
    own, *others = command.groups
    needed = [_named(entry) for entry in entries(own) if entry.positional or entry.required]
    yield f"## {name}\n\n{command.help}\n"
    yield f"```text\n{' '.join(['bisect-trt', name, *needed, '[OPTIONS]'])}\n```\n"
    yield from (
        "Examples:\n\n```text",
        *(f"bisect-trt {line}" for line in command.examples),
        "```\n",
    )
    yield from _table(own)
    if others:
        links = (f"[{title(group)}](#{_anchor(title(group))})" for group in others)
        yield f"Shared options: {', '.join(links)}.\n"


def _table(group: type) -> Iterator[str]:
    if not entries(group):
        return
    yield "| option | meaning |\n| --- | --- |"
    for entry in entries(group):
        names = (
            [_value(entry)]
            if entry.positional
            else [_with_value(entry, flag.removeprefix(NEGATIVE)) for flag in entry.flags]
        )
        yield f"| {', '.join(f'`{_cell(each)}`' for each in names)} | {_cell(entry.help)} |"
    yield ""


def _anchor(heading: str) -> str:
    """Return the link target of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _named(entry: Option) -> str:
    """An argument or a required option in the usage line."""
    value = _value(entry) if entry.positional else _with_value(entry, entry.flags[0])
    return value if entry.required else f"[{value}]"


def _with_value(entry: Option, flag: str) -> str:
    return flag if entry.kind is bool or entry.count else f"{flag} {_value(entry)}"


def _value(entry: Option) -> str:
    return (
        f"{entry.placeholder} ..."
        if entry.several and not entry.placeholder.endswith("...")
        else entry.placeholder
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
