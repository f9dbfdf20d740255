"""Command lines as people type them for this kind of tool.

Several values may follow one flag (``--input-shapes a:[1] b:[2]``) and ``--check`` takes all that comes after it.
Typer's options take one value each, so the words are rewritten to that before it sees them.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

_NUMBER = re.compile(r"-\d")
CHECK = "--check"


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command of a function whose parameters are groups of options.

    Each parameter's type is a dataclass whose fields are Typer options (``Annotated[type, typer.Option(...)]``), or an
    argument or option itself. The result has one flat parameter for each field, which is what Typer reads.
    """
    groups: dict[str, Any] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = parameter.annotation
        if not is_dataclass(kind):
            flat.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = kind
        inner = typing.get_type_hints(kind, include_extras=True)
        for annotation in inner.values():
            for option in typing.get_args(annotation)[1:]:
                option.rich_help_panel = (kind.__doc__ or "").strip().rstrip(".")
        for field in fields(kind):
            default: Any = field.default if field.default is not MISSING else inspect.Parameter.empty
            if field.default_factory is not MISSING:
                default = field.default_factory()
            flat.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=inner[field.name]
                )
            )

    def command(**values: Any) -> Any:  # noqa: ANN401 - whatever the function returns
        arguments: dict[str, Any] = {}
        for name, group in groups.items():
            arguments[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return function(**arguments, **values)

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__module__ = function.__module__
    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # read by inspect
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return command


def multiple_flags(command: Callable[..., Any]) -> frozenset[str]:
    """The flags of a command that take several values."""
    flags: set[str] = set()
    for name, parameter in inspect.signature(command).parameters.items():
        kind, *extras = typing.get_args(parameter.annotation) or (parameter.annotation,)
        if list in (typing.get_origin(each) for each in (kind, *typing.get_args(kind))):  # list[...] | None too
            flags.update(_declared(extras) or [f"--{name.replace('_', '-')}"])
    return frozenset(flags)


def _declared(extras: Sequence[Any]) -> list[str]:
    """The flags that an option's annotation names; Typer moves the first from where its default would be only later."""
    words = [
        word
        for extra in extras
        for word in (getattr(extra, "default", None), *(getattr(extra, "param_decls", None) or ()))
    ]
    return [word for word in words if isinstance(word, str) and word.startswith("-")]


def rewrite(words: Sequence[str], flags: Mapping[str, frozenset[str]]) -> list[str]:
    """Write ``--flag a b`` as ``--flag=a --flag=b``, and each word after ``--check`` as ``--check=word``.

    Args:
        words: The command line without the program's name.
        flags: For each command the flags that take several values.
    """
    command = next((word for word in words if word in flags), "")
    several = flags.get(command, frozenset())
    done: list[str] = []
    current = ""
    for place, word in enumerate(words):
        if word == CHECK and CHECK in several:
            rest = words[place + 1 :]
            return done + ([f"{CHECK}={each}" for each in rest] or [f"{CHECK}="])
        if word in several:
            current = word
            if place + 1 == len(words) or _is_flag(words[place + 1]):
                done.append(word)  # without a value: Typer says so
        elif current and not _is_flag(word):
            done.append(f"{current}={word}" if current.startswith("--") else f"{current}{word}")
        else:
            current = ""
            done.append(word)
    return done


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)
