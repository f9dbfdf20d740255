"""From what was given, as words on a command line or as values in Python, to groups of options."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from bisect_trt.errors import UsageError
from bisect_trt.options.spec import Entry, entries

T = TypeVar("T")
Group = TypeVar("Group")


def from_words(group: type[Group], values: Mapping[str, Any]) -> Group:
    """A group from a command line.

    Args:
        group: The group.
        values: What the command line's parser made of the words, by the name of the field: numbers, paths and choices are
            ready, and of the right range; a sequence for what may be given several times.

    Raises:
        UsageError: A word cannot be read, or is given twice for one tensor.
    """
    given = {entry: values[entry.name] for entry in entries(group) if values[entry.name] or not entry.several}
    return group(**{entry.name: _of_words(entry, value) for entry, value in given.items()})


class Given:
    """What a command line gave, from which a group is made when it is asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """See :func:`from_words`; the values of all groups."""
        self._values = values

    def but(self, **values: Any) -> Given:  # noqa: ANN401 - of many types
        """The same with other values, as the parser makes them."""
        return Given({**self._values, **values})

    def __getitem__(self, group: type[Group]) -> Group:
        return from_words(group, self._values)


def _of_words(entry: Entry, value: Any) -> Any:  # noqa: ANN401 - of many types
    read = entry.option.read
    if entry.form == "named":
        value = read_named(
            entry.flag, value, read or entry.kind, need_name=entry.option.need_name, about=entry.option.about
        )
    elif value is not None and (read is not None or issubclass(entry.kind, Enum)):
        each = _reader(entry.flag, read or entry.kind)
        value = [each(word) for word in value] if entry.several else each(value)
    elif entry.several:
        value = list(value)
    return _checked(entry, entry.flag, value)


def _checked(entry: Entry, called: str, value: Any) -> Any:  # noqa: ANN401 - of many types
    """A value that its option's own check has seen, and that is no path which cannot be one."""
    if entry.kind is Path and entry.option.read is None:
        for path in value if entry.several else [value]:
            _check_path(called, path)
        value = [_no_option(path) for path in value] if entry.several else _no_option(value)
    return value if entry.option.check is None else entry.option.check(value)


def _no_option(path: Path | None) -> Path | None:
    """The same path; absolute, where it begins as an option does: to whoever is given it, in a command that is shown too."""
    return path.absolute() if path is not None and str(path).startswith("-") else path


def _check_path(called: str, path: Path | None) -> None:
    try:
        if path is not None:
            path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:  # too long a name, links in a circle, a folder that may not be looked into
        raise UsageError(f"{called} {path!s:.60}: {error.strerror}; give another path.") from error
    except ValueError as error:
        raise UsageError(f"{called}: {error} in {str(path)!r:.60}; give another path.") from error


def _reader(flag: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def each(word: Any) -> Any:  # noqa: ANN401 - of many types
        try:
            return read(word)
        except ValueError as error:
            raise UsageError(f"{flag} {word}: write {error}.") from error

    return each


def read_named(
    option: str, words: Sequence[str], read: Callable[[Any], T], *, need_name: bool = False, about: str = "tensor"
) -> dict[str, T]:
    """Read words that are each for one tensor or, under the name ``''``, for all that are not named.

    Args:
        option: How it is called, for messages.
        words: What follows the last colon is the value, so names may contain colons.
        read: Reads one value, or raises ``ValueError`` saying what it should have been ("a number").
        need_name: Whether a value for all makes no sense.
        about: What each is for, in a word.

    Raises:
        UsageError: A value cannot be read, lacks a name that it needs, or is given twice for one tensor.
    """
    form = "NAME:VALUE" if need_name else "VALUE or NAME:VALUE"
    found: dict[str, T] = {}
    for word in words:
        name, colon, text = word.rpartition(":")
        if need_name and not colon:
            raise UsageError(f"{option} {word}: which {about} it is for is missing; write {form}")
        try:
            value = read(text)
        except ValueError as error:
            raise UsageError(f"{option} {word}: '{text}' is not {error}; write {form}") from error
        if name in found:
            raise UsageError(f"{option} is given twice for {f'{name!r}' if name else f'all {about}s'}; give it once")
        found[name] = value
    return found


def from_python(group: type[Group], values: Mapping[str, Any]) -> Group:
    """A group from Python values; ``None`` counts as not given.

    Args:
        group: The group.
        values: Values by the name of the field. A text stands for the word on a command line where that is read.

    Raises:
        UsageError: A value is of another type, or of another range, than the option takes.
    """
    known = {entry.name: entry for entry in entries(group)}
    return group(**{name: of_python(known[name], value) for name, value in values.items() if value is not None})


def of_python(entry: Entry, value: Any) -> Any:  # noqa: ANN401 - of many types
    """One value; see :func:`from_python`."""
    read = entry.option.read
    one = _converter(entry.name, read or _BY_TYPE.get(entry.kind) or entry.kind)
    if entry.form == "named":
        value = _named(entry, value, one)
    elif entry.form == "list":
        pairs = value.items() if isinstance(value, Mapping) else value
        value = [one(each) for each in ([value] if _is_single(value) else pairs)]
    else:
        value = one(value)
    for each in value if entry.form == "list" else [value]:
        _check_range(entry, each)
    return _checked(entry, f"{entry.name}:", value)


def _named(entry: Entry, value: Any, one: Callable[[Any], Any]) -> dict[str, Any]:  # noqa: ANN401 - of many types
    if isinstance(value, Mapping):
        return {str(name): one(each) for name, each in value.items()}
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list | tuple) and words and all(isinstance(word, str) for word in words):
        kind, wanted = entry.option.read or entry.kind, entry.option.need_name
        return read_named(entry.name, words, kind, need_name=wanted, about=entry.option.about)
    if entry.option.need_name:
        raise UsageError(
            f"{entry.name}: which {entry.option.about} it is for is missing; give a dict by name, not {_shown(value)}."
        )
    return {"": one(value)}


def _is_single(value: Any) -> bool:  # noqa: ANN401 - of many types
    """A text is one value, not its letters."""
    return isinstance(value, str | os.PathLike) or not isinstance(value, Iterable)


def _converter(name: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:  # noqa: ANN401 - of many types
        try:
            return read(value)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(read, type) and issubclass(read, Enum):
                words = ", ".join(f"'{each.value}'" for each in read)
                raise UsageError(f"{name}: there is no '{value}'; write one of {words}.") from error
            raise UsageError(f"{name}: give {error}, not {_shown(value)}.") from error

    return convert


def _shown(value: object) -> str:
    return f"{value!r:.60}"


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


def _str(value: Any) -> str:  # noqa: ANN401 - of many types
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a text")
    return str(value)


def _path(value: Any) -> Path:  # noqa: ANN401 - of many types
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a path")
    return Path(value)


_BY_TYPE: Mapping[type, Callable[[Any], Any]] = {bool: _bool, int: _int, float: _float, str: _str, Path: _path}


def _check_range(entry: Entry, value: Any) -> None:  # noqa: ANN401 - of many types
    low, high = entry.option.min, entry.option.max
    if (low is None and high is None) or not isinstance(value, int | float):
        return
    if complaint := out_of_range(entry, value):
        raise UsageError(f"{entry.name}: {complaint}")


def out_of_range(entry: Entry, value: float) -> str | None:
    """What is wrong with a number, if it is none that the option takes."""
    low, high = entry.option.min, entry.option.max
    if low is not None and high is not None and entry.kind is float:
        return None if low <= value <= high else f"{value} is not between {low:g} and {high:g}."
    if low is not None and not value >= low:
        return f"{value} is too small."
    return f"{value} is too large." if high is not None and not value <= high else None
