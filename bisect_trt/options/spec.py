"""How an option is declared, as the annotation of a dataclass field, and how a group of options is made from values.

The values are words of a command line or Python objects; both are read and checked by the same functions.
"""

from __future__ import annotations

import functools
import operator
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar

from bisect_trt.errors import ConflictError, MissingOptionError, ValueRefusedError

Group = TypeVar("Group")


@dataclass(frozen=True)
class Option:
    """What a group's field says beside its type and default: ``Annotated[bool, option("--trt", help="TensorRT.")]``.

    The field's type is ``bool``, ``int``, ``float``, ``str``, ``Path`` or an ``Enum``, or one of these that may be missing
    (``X | None``), given several times (``list[X]``, ``tuple[X, ...]``), or given for one tensor or another
    (``dict[str, X]``, or ``tuple[tuple[str, X], ...]`` with ``need_name``: on the command line ``NAME:VALUE``, or ``VALUE``
    for the name ``''``). A field without an option is none that a user gives.

    Attributes:
        flags: How it is written on a command line; made from the field's name where empty.
        help: What it does, for ``--help``; one sentence or two.
        metavar: What stands for its value there.
        min: The least number it takes.
        max: The largest; NaN is in no range.
        check: Makes sure of a value (of all of them, where there are several), and may change it; raises ``UsageError``.
        read: What a value becomes, of a word or of a Python value; raises ``ValueError`` saying what it should have been
            ("a number from 0 up").
        need_name: Whether every value of a ``dict`` needs a name.
        count: Whether it has no value and its repetitions are counted (``-vv``).
        positional: Whether it is no flag but stands by its place.
        switch: Whether it can be turned on only; what is true or false can be turned off too (``--no-``).
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    check: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    need_name: bool = False
    count: bool = False
    positional: bool = False
    switch: bool = False

    @property
    def about(self) -> str:
        """What its values are for, where each has a name: a tensor, or the first word of ``LAYER:TYPE``."""
        first = (self.metavar or "NAME").partition(":")[0]
        return "tensor" if first == "NAME" else first.lower()


def option(*flags: str, **declared: Any) -> Option:  # noqa: ANN401 - of many types
    """Declare an option; see :class:`Option`."""
    return Option(flags, **declared)


def argument(help: str, metavar: str | None = None) -> Option:  # noqa: A002 - as above
    """Declare a value that stands by its place; see :class:`Option`."""
    return Option(help=help, metavar=metavar, positional=True)


def switch(help: str) -> Option:  # noqa: A002 - as above
    """Declare what is off unless it is given."""
    return Option(help=help, switch=True)


def seconds(help: str) -> Option:  # noqa: A002 - as above
    """Declare a time. The longest is three years; what waits cannot wait for infinity."""
    return Option(help=help, metavar="SECONDS", min=0.001, max=1e8)


@dataclass(frozen=True, eq=False)
class Entry:
    """A field of a group, with what its type says.

    Attributes:
        name: Of the field, and of the keyword in Python.
        option: What is declared.
        kind: The type of one value.
        form: Whether it is one value, several, or some by name.
        default: What it is if not given; :data:`dataclasses.MISSING` if it must be.
        frozen: Whether several values are a tuple, those by name one of pairs.
    """

    name: str
    option: Option
    kind: type
    form: Literal["one", "list", "named"]
    default: Any
    frozen: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is written; what is on by default has only ``--no-NAME``, in Click's form `` /--no-NAME``."""
        plain = self.name.replace("_", "-")
        return self.option.flags or ((f" /--no-{plain}",) if self.default is True else (f"--{plain}",))

    @property
    def flag(self) -> str:
        """How it is written in messages."""
        return next(flag for flag in map(_shown_flag, self.flags) if flag.startswith("--"))

    @property
    def keyword(self) -> str:
        """The keyword in Python; that of :attr:`flag` where it is declared, else the field's name."""
        return self.flag[2:].replace("-", "_")

    def words(self, value: Any) -> list[str]:  # noqa: ANN401 - of the field's type
        """Return a value as words of a command line."""
        if self.kind is bool:
            return [self.flag]
        if self.form == "one":
            return [self.flag, _word(value)]
        between = "=" if "=" in self.placeholder else ":"
        several = value.items() if isinstance(value, Mapping) else value
        pairs = (each if isinstance(each, tuple) else ("", each) for each in several)
        words = [(f"{name}{between}" if name else "") + _word(held) for name, held in pairs]
        return [self.flag, *(words or ["none"])]

    @property
    def several(self) -> bool:
        """Whether it may be given more than once."""
        return self.form != "one"

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def placeholder(self) -> str:
        """What stands for its value: as declared, else the choices, else its type or name."""
        if self.option.metavar is not None:
            return self.option.metavar
        if issubclass(self.kind, Enum):
            return "|".join(str(choice.value) for choice in self.kind)
        return "N" if self.kind is int else self.name.upper()


def _shown_flag(flag: str) -> str:
    return flag.removeprefix(" /")


def entries(group: type) -> tuple[Entry, ...]:
    """The fields of a group that are options, in their order."""
    return _entries(group)


@functools.cache
def _entries(group: type) -> tuple[Entry, ...]:
    hints = typing.get_type_hints(group, include_extras=True)
    return tuple(
        _entry(each.name, hints[each.name], each.default if each.default_factory is MISSING else each.default_factory())
        for each in fields(group)
        if any(isinstance(extra, Option) for extra in typing.get_args(hints[each.name]))
    )


def _entry(name: str, hint: Any, default: Any) -> Entry:  # noqa: ANN401 - an annotation, and a value of its type
    kind, *extras = typing.get_args(hint)
    declared = next(extra for extra in extras if isinstance(extra, Option))
    kind = next((each for each in typing.get_args(kind) if each is not type(None)), kind) if _optional(kind) else kind
    origin = typing.get_origin(kind)
    if origin is dict:
        return Entry(name, declared, _plain(typing.get_args(kind)[1]), "named", default)
    if origin is list:
        return Entry(name, declared, _plain(typing.get_args(kind)[0]), "list", default)
    if origin is tuple and declared.need_name:
        return Entry(name, declared, str, "named", default, frozen=True)
    if origin is tuple:
        return Entry(name, declared, _plain(typing.get_args(kind)[0]), "list", default, frozen=True)
    return Entry(name, declared, kind, "one", default)


def _optional(kind: Any) -> bool:  # noqa: ANN401 - an annotation
    return type(None) in typing.get_args(kind)


def _plain(kind: Any) -> type:  # noqa: ANN401 - an annotation
    """The type itself; what :attr:`Option.read` makes of words may be of any."""
    return kind if isinstance(kind, type) else str


class Params:
    """The parameters of one invocation: an instance of each group of options of its command."""

    def __init__(self, groups: Iterable[type], values: Mapping[str, Any], *, words: bool) -> None:
        """Read the values of all groups; see :func:`make_group`."""
        known = {group: [entry.name for entry in entries(group)] for group in groups}
        self._groups: dict[type, Any] = {
            group: make_group(group, {name: values[name] for name in names if name in values}, words=words)
            for group, names in known.items()
        }

    def __contains__(self, group: type) -> bool:
        return group in self._groups

    def __iter__(self) -> Iterator[Any]:
        return iter(self._groups.values())

    def __getitem__(self, group: type[Group]) -> Group:
        """The group; with its defaults if the command does not have it."""
        if group not in self._groups:
            self._groups[group] = group()
        found: Group = self._groups[group]
        return found

    def change(self, group: type, **changes: Any) -> None:  # noqa: ANN401 - of many types
        """Give options of a group other values."""
        self._groups[group] = replace(self[group], **changes)


def make_group(group: type[Group], values: Mapping[str, Any], *, words: bool = False) -> Group:
    """A group of options from values; ``None`` and, on a command line, an empty list count as not given.

    Args:
        group: The group.
        values: Values by field name. A text stands for what it means on a command line where the option reads words.
        words: Whether the values come from a command line: errors then name the flag, not the keyword.

    Raises:
        UsageError: A value has another type or range than the option takes.
    """
    known = {entry.name: entry for entry in entries(group)}
    given = {name: value for name, value in values.items() if value is not None and not (words and value == [])}
    return group(
        **{name: _value(known[name], known[name].flag if words else f"{name}:", each) for name, each in given.items()}
    )


def _value(entry: Entry, called: str, value: Any) -> Any:  # noqa: ANN401 - of many types
    read = _reader(entry, called)
    if entry.form == "named":
        value = _named(entry, called, dict(value) if entry.frozen and value == () else value, read)
        value = tuple(value.items()) if entry.frozen else value
    elif entry.form == "list":
        pairs = value.items() if isinstance(value, Mapping) else value
        value = [read(each) for each in ([value] if _is_single(value) else pairs)]
        value = tuple(value) if entry.frozen else value
    else:
        value = read(value)
    return value if entry.option.check is None else entry.option.check(value)


def _reader(entry: Entry, called: str) -> Callable[[Any], Any]:
    convert = entry.option.read or _BY_TYPE.get(entry.kind) or entry.kind

    def read(value: Any) -> Any:  # noqa: ANN401 - of many types
        try:
            found = convert(value)
        except (TypeError, ValueError, OverflowError) as error:
            wanted: object = error
            if isinstance(convert, type) and issubclass(convert, Enum):
                wanted = f"one of {', '.join(each.value for each in convert)}"
            raise ValueRefusedError(f"{called} {value!s:.60}: give {wanted}.") from error
        if isinstance(found, int | float) and (complaint := out_of_range(entry, found)):
            raise ValueRefusedError(f"{called} {complaint}")
        return _usable(called, found) if entry.kind is Path and isinstance(found, Path) else found

    return read


def _named(entry: Entry, called: str, value: Any, read: Callable[[Any], Any]) -> dict[str, Any]:  # noqa: ANN401 - of many types
    """One value for each tensor, by its name; ``''`` for all that are not named.

    What follows the last colon of a word is the value, so names may contain colons.

    Raises:
        UsageError: A name is missing or given twice.
    """
    if isinstance(value, Mapping):
        return {str(name): read(each) for name, each in value.items()}
    several = isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value)
    words: Sequence[Any] = value if several else [value]
    found: dict[str, Any] = {}
    for word in words:
        name, colon, text = word.rpartition(":") if isinstance(word, str) else ("", "", word)
        if entry.option.need_name and not colon:
            raise MissingOptionError(
                f"{called} {word!s:.60}: the {entry.option.about} is missing; give {entry.placeholder}."
            )
        if name in found:
            raise ConflictError(f"{called} is given twice for {f'{name!r}' if name else f'all {entry.option.about}s'}.")
        found[name] = read(text)
    return found


def _is_single(value: Any) -> bool:  # noqa: ANN401 - of many types
    """Whether it is one value; a text is one, not its letters."""
    return isinstance(value, str | os.PathLike) or not isinstance(value, Iterable)


def _usable(called: str, path: Path) -> Path:
    """The path; absolute if it begins with a dash, so that no command takes it for an option.

    Raises:
        UsageError: No file can have it: too long a name, links in a circle, a folder without permission.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ValueRefusedError(f"{called} {path!s:.60}: {error.strerror}; give another path.") from error
    except ValueError as error:
        raise ValueRefusedError(f"{called} {error} in {str(path)!r:.60}; give another path.") from error
    return path.absolute() if str(path).startswith("-") else path


def _bool(value: Any) -> bool:  # noqa: ANN401 - of many types
    if isinstance(value, str | bytes) or value not in (True, False):
        raise ValueError("True or False")
    return bool(value)


def _int(value: Any) -> int:  # noqa: ANN401 - of many types
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError("a whole number") from None


def _float(value: Any) -> float:  # noqa: ANN401 - of many types
    if isinstance(value, str | bytes | bool) or not hasattr(value, "__float__"):
        raise ValueError("a number")
    return value if isinstance(value, int) else float(value)


def _text(kind: type, wanted: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:  # noqa: ANN401 - of many types
        if not isinstance(value, str | os.PathLike):
            raise ValueError(wanted)
        return kind(value)

    return read


_BY_TYPE: Mapping[type, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _text(str, "a text"),
    Path: _text(Path, "a path"),
}


def out_of_range(entry: Entry, value: float) -> str | None:
    """The complaint about a number that the option does not take; NaN is in no range."""
    low, high = entry.option.min, entry.option.max
    if (low is None or value >= low) and (high is None or value <= high):
        return None
    return f"{value} is not {'' if low is None else f'at least {low:g}'}{' and ' * (None not in (low, high))}" + (
        "." if high is None else f"at most {high:g}."
    )


def changed(group: object) -> dict[str, Any]:
    """The options of a group that differ from their defaults, by name."""
    defaults = type(group)()
    values = {each.name: (getattr(group, each.name), getattr(defaults, each.name)) for each in fields(group)}  # type: ignore[arg-type]  # a dataclass
    return {name: value for name, (value, default) in values.items() if value != default}


def written(group: Any) -> list[str]:  # noqa: ANN401 - an instance of any group
    """The options of a group that differ from their defaults, as the words of a command line."""
    values = changed(group)
    known = [entry for entry in entries(type(group)) if entry.name in values and not entry.option.positional]
    return [word for entry in known for word in entry.words(values[entry.name])]


def _word(value: Any) -> str:  # noqa: ANN401 - of many types
    """A value as :attr:`Option.read` reads it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(repr, value))}]"
    return str(value.value if isinstance(value, Enum) else value)


def title(group: type) -> str:
    """What a group is about, to stand above its options."""
    return (group.__doc__ or "").strip().partition("\n")[0].rstrip(".")
