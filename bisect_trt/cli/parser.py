"""The command line's parser and its ``--help``, made from the groups of options by click.

Nothing but the options is imported for it, and only the named command's are read.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

import bisect_trt
from bisect_trt.cli.arguments import INSTEAD, TOOLS
from bisect_trt.cli.completion import PROGRAM, VARIABLE, install, last_flag, show, tensors
from bisect_trt.errors import ExitStatus
from bisect_trt.options.given import out_of_range
from bisect_trt.options.spec import Entry, entries, title
from bisect_trt.workflows.commands import COMMANDS

_HELP = ["-h", "--help"]
_SUMMARY = "Finds why an ONNX model that runs right in ONNX Runtime runs wrong in TensorRT."
TENSOR = "TENSOR"
"""What stands for a value that is a tensor of the model."""
_COLUMN = 32
"""How wide the options may be, beside their help."""

Run = Callable[[str, dict[str, Any]], None]
"""Given the name of a command, and the values of its options by the names of their fields."""


def _type(entry: Entry) -> Any:  # noqa: ANN401 - click's types are generic in some versions and not in others
    if entry.option.read is not None:
        return click.STRING
    if issubclass(entry.kind, Enum):
        return click.Choice([str(each.value) for each in entry.kind])
    return {int: click.INT, float: click.FLOAT, Path: click.Path(path_type=Path)}.get(entry.kind, click.STRING)


def _in_range(entry: Entry) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:  # noqa: ANN401 - as in click
        complaint = None if value is None or entry.several else out_of_range(entry, value)
        if complaint is not None:
            raise click.BadParameter(complaint, ctx, param)
        return value

    return callback


def _parameter(entry: Entry) -> click.Parameter:
    if entry.option.positional:
        number = -1 if entry.several else 1
        return click.Argument(
            [entry.name], type=_type(entry), required=entry.required, metavar=_metavar(entry), nargs=number
        )
    known: dict[str, Any] = {"required": entry.required, "help": entry.option.help}
    declared = [entry.name, *entry.flags]
    if entry.option.count:
        return click.Option(declared, count=True, **known)
    if entry.kind is bool and entry.form == "one":
        return click.Option(declared, is_flag=True, default=bool(entry.default), **known)
    if not (entry.required or entry.several or entry.default is None):
        known["default"] = _plain(entry.default)
    if entry.option.min is not None or entry.option.max is not None:
        known["callback"] = _in_range(entry)
    if entry.placeholder == TENSOR:
        known["shell_complete"] = lambda ctx, param, incomplete: tensors(incomplete)  # noqa: ARG005 - as click calls it
    return click.Option(declared, type=_type(entry), multiple=entry.several, **known)


def _plain(value: Any) -> Any:  # noqa: ANN401 - of many types
    return value.value if isinstance(value, Enum) else value


def _metavar(entry: Entry) -> str:
    word = entry.placeholder if entry.option.metavar else entry.name.upper()
    return word if entry.required else f"[{word}]"


def several(name: str) -> frozenset[str]:
    """The flags of a command that take several values."""
    return frozenset(
        flag for group in COMMANDS[name] for entry in entries(group) if entry.several for flag in entry.flags
    )


class _Command(click.Command):
    """A command whose options come from its groups."""

    def __init__(self, name: str, run: Run) -> None:
        own, *_ = self.groups = COMMANDS[name]
        super().__init__(
            name,
            params=[_parameter(entry) for group in self.groups for entry in entries(group)],
            callback=lambda **values: run(name, values),
            help=own.__doc__,
            context_settings={"help_option_names": _HELP},
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click's, and of a flag with several values all but the first."""
        if not incomplete.startswith("-"):
            named = [entry for group in self.groups for entry in entries(group) if entry.placeholder == TENSOR]
            if last_flag() in {flag for entry in named for flag in entry.flags}:
                return [CompletionItem(name) for name in tensors(incomplete)]
        return super().shell_complete(ctx, incomplete)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(_top(ctx, self.help or ""))
        own, *others = self.groups
        arguments = [entry for entry in entries(own) if entry.option.positional]
        options = [entry for entry in entries(own) if not entry.option.positional]
        formatter.write(_panel("Arguments", [(_metavar(entry).strip("[]"), _said(entry)) for entry in arguments]))
        rows = [(_written(entry), _said(entry)) for entry in options]
        formatter.write(_panel("Options", [*rows, ("-h, --help", "Show this message and exit.")]))
        for group in others:
            rows = [(_written(entry), _said(entry)) for entry in entries(group)]
            formatter.write(_panel(title(group), rows))


def _written(entry: Entry) -> str:
    flags = ", ".join(flag.replace("/", " / ") for flag in entry.flags)
    return flags if entry.option.count or entry.kind is bool else f"{flags} {entry.placeholder}"


def _said(entry: Entry) -> str:
    """The help of an option, with what it is by default and what numbers it takes."""
    notes = ["required"] if entry.required else []
    low, high = entry.option.min, entry.option.max
    if entry.kind is int and (low is not None or high is not None):
        notes.append(f"{'' if low is None else f'{low:g}<='}x{'' if high is None else f'<={high:g}'}")
    if entry.kind is bool and "/" in entry.flags[0]:
        notes.append(f"default: {entry.flags[0].split('/')[0 if entry.default else 1].lstrip('-')}")
    elif (
        entry.default and not entry.required and not entry.several and not entry.option.read and entry.kind is not bool
    ):
        notes.append(f"default: {_plain(entry.default)}")
    return " ".join([entry.option.help, *(f"[{note}]" for note in notes)])


def make_command(name: str, run: Run = lambda name, values: None) -> click.Command:  # noqa: ARG005 - does nothing
    """The parser of a command; see :func:`parse`."""
    return _Command(name, run)


class _Program(click.Group):
    """The program; a command is made when it is named."""

    def __init__(self, run: Run) -> None:
        super().__init__(PROGRAM, no_args_is_help=True, help=_SUMMARY, context_settings={"help_option_names": _HELP})
        self._run = run
        self.params = [
            _eager("--version", "Print the version.", lambda: click.echo(f"{PROGRAM} {bisect_trt.__version__}")),
            _eager("--install-completion", "Install completion for the current shell.", install),
            _eager("--show-completion", "Show completion for the current shell, to copy it.", show),
        ]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as in click
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as in click
        return make_command(cmd_name, self._run) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing and (like := _like(args[0])):
            ctx.fail(f"No such command '{args[0]}'. Did you mean {', '.join(map(repr, like))}?")
        if args[0] in TOOLS and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'; {TOOLS[args[0]]}.")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(_top(ctx, self.help or ""))
        rows = [(each.opts[0], each.help or "") for each in self.params if isinstance(each, click.Option)]
        formatter.write(_panel("Options", [*rows, ("-h, --help", "Show this message and exit.")]))
        formatter.write(_panel("Commands", [(name, _summary(groups[0])) for name, groups in COMMANDS.items()]))


def _like(word: str) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 - it takes 5 ms, and is for misspelt commands alone

    return get_close_matches(word, COMMANDS)


def _summary(group: type) -> str:
    return " ".join((group.__doc__ or "").split())


def _eager(flag: str, said: str, act: Callable[[], object]) -> click.Option:
    """An option that does something and ends."""

    def callback(ctx: click.Context, param: click.Parameter, given: bool) -> None:  # noqa: ARG001 - as in click
        if given and not ctx.resilient_parsing:
            act()
            ctx.exit()

    return click.Option([flag], is_flag=True, is_eager=True, expose_value=False, help=said, callback=callback)


def _top(ctx: click.Context, said: str) -> str:
    usage = " ".join([ctx.command_path, *ctx.command.collect_usage_pieces(ctx)])
    return f"\n Usage: {usage}\n\n{_filled(' '.join(said.split()), _width() - 2, ' ')}\n\n"


def _width() -> int:
    return max(shutil.get_terminal_size().columns, 40)


def _filled(text: str, width: int, indent: str = "") -> str:
    return click.wrap_text(text, width, indent, indent)


def _panel(heading: str, rows: Iterable[tuple[str, str]]) -> str:
    """Rows of two columns in a frame."""
    formatter = click.HelpFormatter(width=_width() - 4)
    formatter.write_dl(list(rows), col_max=_COLUMN)
    return framed(heading, formatter.getvalue().splitlines())


def framed(heading: str, lines: Sequence[str]) -> str:
    """Lines in a frame, none wider than the terminal less four."""
    width = _width()
    body = "".join(f"│ {_styled(line.ljust(width - 4))} │\n" for line in lines)
    return f"╭─ {heading} {'─' * (width - len(heading) - 5)}╮\n{body}╰{'─' * (width - 2)}╯\n"


def _styled(line: str) -> str:
    """Flags at the beginning of a line in colour; click leaves it out where the output is no terminal."""
    return re.sub(r"^(-{1,2}[\w-]+|(?<=, )-{1,2}[\w-]+)", lambda match: click.style(match[0], fg="cyan"), line)


def parse(argv: Sequence[str], run: Run) -> NoReturn:
    """Read the words after the program's name, run the command, and end the process.

    Args:
        argv: The words, several values of a flag each with a flag of its own.
        run: Does what is asked for.
    """
    program = _Program(run)
    asked = os.environ.get(VARIABLE, "")
    if asked.startswith("source_"):  # as --show-completion of earlier versions had it
        os.environ[VARIABLE] = f"{asked.removeprefix('source_')}_source"
    try:
        status = program.main(list(argv), PROGRAM, standalone_mode=False)
    except click.UsageError as error:
        click.echo(_refused(error), err=True, nl=False)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(ExitStatus.INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _refused(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"{error.format_message()}\n"
    ctx = error.ctx
    head = "" if ctx is None else f"{ctx.get_usage()}\nTry '{ctx.command_path} -h' for help.\n"
    return head + framed("Error", _filled(_elsewhere(error) or error.format_message(), _width() - 4).splitlines())


def _elsewhere(error: click.UsageError) -> str | None:
    """What to say of an option that other commands have, which helps more than one that is spelt alike."""
    if not isinstance(error, click.NoSuchOption):
        return None
    flag = error.option_name
    command = "" if error.ctx is None else error.ctx.command.name
    if instead := INSTEAD.get(f"{command} {flag}") or INSTEAD.get(flag):
        return f"There is no {flag} here: {instead}."
    have = [
        name
        for name, groups in COMMANDS.items()
        if any(flag in written.split("/") for group in groups for entry in entries(group) for written in entry.flags)
    ]
    return f"No such option '{flag}' here. It is one of {', '.join(have)}." if have else None
