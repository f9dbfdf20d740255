"""The options of the command line as keywords of Python functions."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import typer

from bisect_trt.cli.options import seconds
from bisect_trt.errors import UsageError

Group = TypeVar("Group")
Choice = TypeVar("Choice", bound=Enum)


class Keywords:
    """What a function was given, until it is taken for one group of options or another."""

    def __init__(self, options: Mapping[str, Any], *, target: str | None = None, **named: Any) -> None:  # noqa: ANN401
        """Nothing is taken yet.

        Args:
            options: Options by their name on the command line, with underscores.
            target: ``onnxrt``, ``trt`` or neither.
            **named: More options; ``None`` and ``False`` count as not given.

        Raises:
            UsageError: There is no such target.
        """
        if target not in (None, "onnxrt", "trt"):
            raise UsageError(f"there is no target '{target}'; write 'onnxrt' or 'trt'.")
        self._left = {**options, **{name: v for name, v in named.items() if v is not None and v is not False}}
        if target is not None:
            self._left[target] = True
        self._all = dict(self._left)

    def words(self, free: Collection[str]) -> list[str]:
        """All that was given, as text, but for some options."""
        given = {name: value for name, value in sorted(self._all.items()) if name not in free}
        return [f"{name}={json.dumps(value, default=str, sort_keys=True)}" for name, value in given.items()]

    def take(self, **defaults: Any) -> dict[str, Any]:  # noqa: ANN401 - of many types
        """Single options with their defaults.

        Raises:
            UsageError: A time is none.
        """
        taken = {name: self._left.pop(name, default) for name, default in defaults.items()}
        if "timeout" in taken:
            _check_range("timeout", taken["timeout"], seconds)
        return taken

    def group(self, kind: type[Group]) -> Group:
        """A group of options, the rest of it as on the command line.

        Args:
            kind: The group, a dataclass.

        Raises:
            UsageError: A value is not one that the option takes.
        """
        hints = typing.get_type_hints(kind, include_extras=True)
        names = [entry.name for entry in fields(kind) if entry.name in self._left]  # type: ignore[arg-type]
        values: dict[str, Any] = {}
        for name in names:
            hint, *extras = typing.get_args(hints[name])
            values[name] = _as_option(name, self._left.pop(name), hint)
            for extra in extras:
                _check_range(name, values[name], extra.callback, extra.min, extra.max)
        return kind(**values)

    def finish(self, command: str) -> None:
        """Make sure that nothing is left.

        Raises:
            UsageError: Something is.
        """
        for name in self._left:
            raise UsageError(f"`{command}` has no option '{name}'; `bisect-trt {command} --help` lists them.")


def choice(name: str, kind: type[Choice], value: Any) -> Choice:  # noqa: ANN401 - of many types
    """One of the values that an option takes.

    Raises:
        UsageError: It takes others.
    """
    try:
        return kind(value)
    except ValueError as error:
        words = ", ".join(f"'{each.value}'" for each in kind)
        raise UsageError(f"{name}: there is no '{value}'; write one of {words}.") from error


def several(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - of many types
    """What may be given once or several times: a text is one value, not its letters."""
    return (value,) if isinstance(value, str | Path) else tuple(value)


def _check_range(
    name: str,
    value: object,
    callback: Callable[[Any], object] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Make sure that the command line would take a number too.

    Raises:
        UsageError: It would not.
    """
    try:
        if callback is not None:
            callback(value)
    except typer.BadParameter as error:
        raise UsageError(f"{name}: {error.message}") from error
    if isinstance(value, int | float) and ((low is not None and value < low) or (high is not None and value > high)):
        raise UsageError(f"{name}: {value} is {'too small' if low is not None and value < low else 'too large'}.")


def _as_option(name: str, value: Any, hint: Any) -> Any:  # noqa: ANN401 - of many types
    """A value as the command line's parser gives it: lists of words for what may be given several times."""
    kinds = [hint, *typing.get_args(hint)]
    several = next((kind for kind in kinds if typing.get_origin(kind) is list), None)
    if several is not None:
        (item,) = typing.get_args(several)
        return [_as_word(each, item) for each in _each(value)]
    kind = next((k for k in kinds if isinstance(k, type) and issubclass(k, Enum | Path)), None)
    if kind is None or value is None:
        return value
    return choice(name, kind, value) if issubclass(kind, Enum) else kind(value)


def _each(value: Any) -> list[Any]:  # noqa: ANN401 - of many types
    """``{"a": [1, 3]}`` as ``a:[1, 3]``; one value as a list of it."""
    if isinstance(value, Mapping):
        return [f"{name}:{_text(each)}" if name else _text(each) for name, each in value.items()]
    return list(value) if isinstance(value, list | tuple | set) and not _is_range(value) else [value]


def _is_range(value: Any) -> bool:  # noqa: ANN401 - of many types
    return isinstance(value, tuple) and all(isinstance(each, int | float) for each in value) and len(value) == 2


def _as_word(value: Any, item: Any) -> Any:  # noqa: ANN401 - of many types
    return _text(value) if item is str else item(value)


def _text(value: Any) -> str:  # noqa: ANN401 - of many types
    return str(list(value)).replace(" ", "") if isinstance(value, list | tuple) else str(value)
