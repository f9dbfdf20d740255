"""The command line: Typer's commands, made from the option groups of each command.

Typer reads one value after a flag. Command lines of this kind of tool have several
(``--input-shapes a:[1] b:[2]``), and ``--check`` takes all that follows; :func:`expand` rewrites
both to repeated options first. Nothing but the options is imported until a command line has been
read, and only the named command's options are given to Typer.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from bisect_trt.aliases import Fields
from bisect_trt.cli.aliases import translated
from bisect_trt.commands.table import COMMANDS
from bisect_trt.errors import CommandLineError, PackageError
from bisect_trt.options.spec import Option, entries, title
from bisect_trt.plugins import FAILED
from bisect_trt.version import __version__

PROGRAM = "bisect-trt"
CHECK = "--check"
COMMON = frozenset(
    {
        *(
            "onnxrt",
            "trt",
            "trt_rtx",
            "openvino",
            "fp16",
            "bf16",
            "on",
            "atol",
            "rtol",
            "input_shapes",
            "load_inputs",
            "max_time",
        ),
        *("check", "fail_regex", "timeout", "json", "verbose"),
    }
)
"""The options of shared groups that ``--help`` shows; ``--help-all`` shows the others too."""
TAUGHT = {
    "precision": ("int8", "data_loader_script", "metric", "max_drop"),
    "releases": ("slower_than", "baseline"),
    "run": ("reference",),
    "diagnose": ("steps",),
}
"""Further ones by command, which README uses."""
RARE = frozenset(
    {
        *(
            "calibration_cache",
            "sensitivity",
            "save_onnx",
            "validation_data",
            "keep_set",
            "fail_share",
            "error",
            "no_other_release",
            "reference",
        ),
        *("fresh_samples", "int4", "min_good", "reduce_inputs", "reduce_outputs", "mode"),
    }
)
"""The options of single commands that only ``--help-all`` shows."""
# ClickException, of Click or of Typer's copy of it.
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
_UNBROKEN = "\u2011"
"""A hyphen at which Click breaks no line, so that no name of an option is cut."""
_NUMBER = re.compile(r"-(\.?\d|inf$)")


def parse(argv: Sequence[str]) -> tuple[str, Fields]:
    """Read a command line.

    Returns:
        The name of the command, and the values of its options by field name, ``None`` where not
        given.

    Raises:
        SystemExit: Help, the version or a completion was asked for (status 0), or a word is wrong
            (status 2).
    """
    # A shell that completes a word passes the command line in its environment.
    completed = (
        f"{os.environ.get('COMP_WORDS', '')} {os.environ.get('_TYPER_COMPLETE_ARGS', '')}".split()
    )
    named = next((word for word in argv or completed if word in COMMANDS), None)
    words = list(argv or ["--help"])
    if named is not None:
        words = expand(translated(words, flags_of(named), CHECK), flags_of(named, several=True))
    try:
        parsed = _parser(named)(words, prog_name=PROGRAM, standalone_mode=False)
    except _CLICK_ERROR as error:
        program = PROGRAM if named is None else f"{PROGRAM} {named}"
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]  # Typer names no base of its errors
        shown = f"`{program} {'--help' if named is None else '--help-all'}`"
        sys.stderr.write(f"error[{CommandLineError.code}]: {message}; {shown} lists the options.\n")
        sys.stderr.writelines(f"error[{PackageError.code}]: {problem}\n" for problem in FAILED)
        raise SystemExit(CommandLineError.status) from error
    if not isinstance(parsed, tuple):
        # The status of help, of the version or of a completion.
        raise SystemExit(parsed)
    return parsed


@cache
def _parser(named: str | None) -> Callable[..., Any]:
    """Click's parser with the options of one command; the others have their name and summary only."""
    app = typer.Typer(
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Finds why an ONNX model is wrong in TensorRT or in another runtime, precision or release.",
    )
    app.callback()(_program)
    for name, command in COMMANDS.items():
        groups = command.groups if name == named else ()
        examples = "\n\n".join(f"{PROGRAM} {_plain(line)}" for line in command.examples)
        app.command(
            name,
            cls=_Command,
            help=_plain(command.help),
            short_help=_plain(
                re.split(r"(?<=[.?!]) |[:;] ", command.help)[0].rstrip(".")
            ),  # the first sentence
            epilog=f"Examples:\n\n{examples}" if examples else None,
            rich_help_panel=command.panel,
        )(_function(name, groups))
    return typer.main.get_command(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", is_eager=True, callback=_show_version, help="Print the version."
)


def _program(version: Annotated[bool, _VERSION] = False) -> None:
    pass


def _function(name: str, groups: tuple[type, ...]) -> Callable[..., tuple[str, Fields]]:
    """Return a function with a signature from which Typer creates a command with the options of some groups."""

    def function(**values: Any) -> tuple[str, Fields]:  # noqa: ANN401 - of many types
        values.pop("help_all", None)
        return name, values

    annotations = {
        entry.name: _annotation(
            entry, group, taught=TAUGHT.get(name, ()), shared=group is not groups[0]
        )
        for group in groups
        for entry in entries(group)
    }
    if groups:
        about = "Show all options and exit."
        everything = typer.Option("--help-all", is_eager=True, callback=_show_all, help=about)
        annotations["help_all"] = (Annotated[bool, everything], False)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(key, kind, annotation=hint, default=value)
        for key, (hint, value) in annotations.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
    function.__annotations__ = {key: hint for key, (hint, _) in annotations.items()}
    return function


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        rare = [param for param in context.command.params if getattr(param, "hidden", False)]
        for parameter in rare:
            vars(parameter)["hidden"] = False
        typer.echo(context.get_help())
        for parameter in rare:
            vars(parameter)["hidden"] = True
        raise typer.Exit


class _Command(TyperCommand):
    """A command with help by Click's formatter, because Rich cuts names that are longer than its columns."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - of Click, or of Typer's copy
        """Write the options below the title of their group."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (row := parameter.get_help_record(ctx)) is not None:
                panel = vars(parameter).get("rich_help_panel") or "Options"
                panels.setdefault(panel, []).append((row[0], row[1].replace("-", _UNBROKEN)))
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl(rows)
        if "(T)" in formatter.getvalue():
            formatter.write("\n(T): of TensorRT only.\n")
        self.format_epilog(ctx, formatter)
        text = formatter.getvalue().replace("\\[", "[").replace(_UNBROKEN, "-")
        formatter.buffer[:] = [text]


def _annotation(
    option: Option, group: type, *, taught: Sequence[str] = (), shared: bool
) -> tuple[Any, Any]:
    """Return the annotation and the default of a parameter for Typer, which converts numbers and choices only."""
    words = option.read is not None or option.form == "named"
    # Typer completes paths only of what it knows to be one.
    one: Any = Path if option.placeholder == "FILE" else str if words else option.kind
    kind = list[one] if option.several else one
    if option.required:
        default: Any = inspect.Parameter.empty
    else:
        default, kind = (0, one) if option.count else (None, Optional[kind])  # noqa: UP045 - not a type expression
    # A default is shown where it tells more than that there is none.
    plain = (
        option.required
        or option.several
        or option.read
        or option.count
        or one is bool
        or option.default is None
    )
    value = option.default.value if isinstance(option.default, Enum) else option.default
    settings: Fields = {
        "help": _plain(option.help),
        "show_default": not plain and str(value),
    }
    if option.metavar is not None or words or option.positional or option.kind is Path:
        settings["metavar"] = option.placeholder
    if option.positional:
        return Annotated[kind, typer.Argument(**settings)], default
    settings["count"] = option.count
    if one is int and not option.several:
        settings |= {
            name: value for name in ("min", "max") if math.isfinite(value := getattr(option, name))
        }
    rare = option.name in RARE or (shared and option.name not in COMMON)
    settings["hidden"] = rare and option.name not in taught
    settings["rich_help_panel"] = title(group) if shared else None
    return Annotated[kind, typer.Option(*option.flags, **settings)], default


def _plain(text: str) -> str:
    """A text in which Rich sees no markup."""
    return text.replace("[", "\\[")


def flags_of(name: str, *, several: bool = False) -> frozenset[str]:
    """The flags of a command, or those that take several values."""
    return frozenset(
        flag
        for group in COMMANDS[name].groups
        for entry in entries(group)
        if entry.several or not several
        for flag in entry.flags
    )


def expand(words: Sequence[str], several: frozenset[str]) -> list[str]:
    """Write ``--flag a b`` as ``--flag=a --flag=b``, and each word after ``--check`` as ``--check=word``."""
    expanded: list[str] = []
    current = ""
    for place, word in enumerate(words):
        if word == CHECK and CHECK in several:
            return expanded + ([f"{CHECK}={word}" for word in words[place + 1 :]] or [f"{CHECK}="])
        if word in several:
            current = word
            if place + 1 == len(words) or _is_flag(words[place + 1]):
                # It has no value, which Typer refuses.
                expanded.append(word)
        elif current and not _is_flag(word):
            expanded.append(f"{current}={word}" if current.startswith("--") else f"{current}{word}")
        else:
            current = ""
            expanded.append(word)
    return expanded


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)
