"""Options declared as annotations of dataclass fields, and the groups of options made from values.

Words of a command line and Python objects are read and checked by the same functions.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal, TypeVar

from bisect_trt.aliases import Fields, Plain
from bisect_trt.errors import ConflictError, MissingOptionError, ValueRefusedError

Group = TypeVar("Group")
NEGATIVE = " /"
"""Click's prefix of a flag that only negates, of an option that is enabled by default."""
STDOUT = Path("-")
"""As the value of ``--json``: standard output."""


@dataclass(frozen=True, eq=False)
class Option:
    """The declaration of an option, beside its type and default: ``Annotated[bool, option("--trt", help="TensorRT.")]``.

    The field's type is ``bool``, ``int``, ``float``, ``str``, ``Path`` or an ``Enum``, or one of
    these that may be missing (``X | None``), given several times (``list[X]``, ``tuple[X, ...]``),
    or given for one tensor or another (``dict[str, X]``, or ``tuple[tuple[str, X], ...]`` with
    ``need_name``: on the command line ``NAME:VALUE``, or ``VALUE`` for the name ``''``). A field
    without a declaration cannot be given.

    Attributes:
        flags: The flags; :func:`entries` makes them from the field's name where none are declared.
        metavar: The placeholder of its value there.
        min: The least number.
        max: The largest number; NaN is always refused.
        check: Checks a value (all of them, where there are several), and may change it; raises
            ``UsageError``.
        read: Converts a word or a Python value; raises ``ValueError`` with the expected form ("a
            number from 0 up").
        need_name: Whether every value of a ``dict`` needs a name.
        count: Whether it has no value and its repetitions are counted (``-vv``).
        positional: Whether it is an argument without a flag.
        writes: Whether the command writes the file that it names.
        updates: The option that may name the same file, because its content is read before it is
            written.
        name: The name of the field, and the keyword in Python; this and the next are set by
            :func:`entries`.
        form: One value, several, or some by name.
        default: The default; ``...`` if there is none.
        frozen: Whether several values are a tuple, those by name a tuple of pairs.
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    min: float = -math.inf
    max: float = math.inf
    check: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    need_name: bool = False
    count: bool = False
    positional: bool = False
    writes: bool = False
    updates: str = ""
    name: str = ""
    kind: type = str
    form: Literal["one", "list", "named"] = "one"
    default: Any = ...
    frozen: bool = False

    @property
    def flag(self) -> str:
        """Its long flag."""
        return next(
            flag
            for flag in (spelling.removeprefix(NEGATIVE) for spelling in self.flags)
            if flag.startswith("--")
        )

    @property
    def keyword(self) -> str:
        """The keyword in Python: the long flag with underscores."""
        return self.flag[2:].replace("-", "_")

    @property
    def python(self) -> str:
        """The keyword of the Python functions: the flag's word, or the field's name where the flag negates it."""
        if not self.flags or self.flags[0].startswith(NEGATIVE):
            return self.name
        return f"{self.keyword}_" if iskeyword(self.keyword) else self.keyword

    @property
    def several(self) -> bool:
        """Whether it may be given more than once."""
        return self.form != "one"

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is ...

    @property
    def placeholder(self) -> str:
        """The placeholder of its value: as declared, else the choices, else its type or name."""
        if self.metavar is not None:
            return self.metavar
        if issubclass(self.kind, Enum):
            return "|".join(str(choice.value) for choice in self.kind)
        if self.kind is Path and not self.positional:
            return "FILE"
        return "N" if self.kind is int else self.name.upper()

    @property
    def names_file(self) -> bool:
        """Whether its value may be a path, or a script in the form FILE:FUNC."""
        return self.kind is Path or self.positional or "FILE" in (self.metavar or "")

    def words(self, value: Any) -> list[str]:  # noqa: ANN401 - of the field's type
        """Return a value as words of a command line."""
        if self.kind is bool:
            return [self.flag]
        if self.form == "one":
            return [self.flag, _word(value)]
        between = "=" if "=" in self.placeholder else ":"
        several = value.items() if isinstance(value, Mapping) else value
        pairs = (item if isinstance(item, tuple) else ("", item) for item in several)
        words = [
            (f"{name}{between}" if name else "") + _word(item_value) for name, item_value in pairs
        ]
        # An empty list is a value too, and has to survive being written and read.
        return [self.flag, *(words or ["none"])]

    def parse(self, value: Any, called: str) -> Any:  # noqa: ANN401 - of many types
        """Return the value of the field from words or a Python value.

        Raises:
            UsageError: It has another type or range; the message begins with ``called``.
        """
        one = functools.partial(self._parse_one, called=called)
        if self.form == "named":
            pairs = {} if value == () else self._by_name(value, called)
            result: Any = {name: one(item) for name, item in pairs.items()}
            result = tuple(result.items()) if self.frozen else result
        elif self.form == "list":
            # A path or a text is iterable, or may be, and still one value.
            single = isinstance(value, str | os.PathLike) or not isinstance(value, Iterable)
            values = value.items() if isinstance(value, Mapping) else [value] if single else value
            result = (tuple if self.frozen else list)(map(one, values))
        else:
            result = one(value)
        return result if self.check is None else self.check(result)

    def _parse_one(self, value: Any, called: str) -> Any:  # noqa: ANN401 - of many types
        try:
            result = (self.read or _READERS.get(self.kind) or self.kind)(value)
        except (TypeError, ValueError, OverflowError) as error:
            wanted: object = error
            if self.read is None and issubclass(self.kind, Enum):
                wanted = f"one of {', '.join(choice.value for choice in self.kind)}"
            raise ValueRefusedError(f"{called} {value!s:.60}: give {wanted}.") from error
        except OSError as error:
            # The path is no name that a file can have, such as one that is too long.
            raise ValueRefusedError(
                f"{called} {value!s:.60}: {error.strerror}; give another path."
            ) from error
        low = self.min
        high = self.max
        # A comparison with NaN is false, so NaN is out of any range.
        if isinstance(result, int | float) and not low <= result <= high:
            limits = []
            if low > -math.inf:
                limits.append(f"at least {low:g}")
            if high < math.inf:
                limits.append(f"at most {high:g}")
            raise ValueRefusedError(
                f"{called} {result} is not {' and '.join(limits) or 'a number'}."
            )
        return result

    def _by_name(self, value: Any, called: str) -> Plain:  # noqa: ANN401 - of many types
        """Values by the name of their tensor, ``''`` for all others; the name ends at the last colon of a word."""
        if isinstance(value, Mapping):
            return {str(name): item for name, item in value.items()}
        first = (self.metavar or "NAME").partition(":")[0].strip("[]")
        # The error names what the value belongs to: a tensor, or for LAYER:TYPE a layer.
        about = "tensor" if first in ("NAME", "OUT") else first.lower()
        several = (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(word, str) for word in value)
        )
        by_name: Fields = {}
        for word in value if several else [value]:
            # Names of tensors may contain colons (`x:0` of TensorFlow), values do not.
            name, colon, text = word.rpartition(":") if isinstance(word, str) else ("", "", word)
            if self.need_name and not colon:
                raise MissingOptionError(
                    f"{called} {word!s:.60}: the {about} is missing; give {self.placeholder}."
                )
            if name in by_name:
                raise ConflictError(
                    f"{called} is given twice for {f'{name!r}' if name else f'all {about}s'}."
                )
            by_name[name] = text
        return by_name


def option(*flags: str, **declared: Any) -> Option:  # noqa: ANN401 - of many types
    """Declare an option; see :class:`Option`."""
    return Option(flags, **declared)


def argument(help: str, metavar: str | None = None) -> Option:  # noqa: A002 - as above
    """Declare an argument without a flag."""
    return Option(help=help, metavar=metavar, positional=True)


def switch(help: str) -> Option:  # noqa: A002 - as above
    """Declare a flag that is disabled by default."""
    return Option(help=help)


def seconds(help: str) -> Option:  # noqa: A002 - as above
    """Declare a time, of at most three years: no system call waits for infinity."""
    return Option(help=help, metavar="SECONDS", min=0.001, max=1e8)


MOST = 1_000_000
"""The largest number of runs, samples or probes: one more digit too many and a command would never
end."""


def counted(help: str, *flags: str, minimum: int = 1) -> Option:  # noqa: A002 - as above
    """Declare a number of runs, samples or probes.

    Args:
        help: The help of the option.
        flags: Its flags; derived from the name of the field without any.
        minimum: The least number allowed.
    """
    return Option(flags, help, metavar="N", min=minimum, max=MOST)


def entries(group: type) -> tuple[Option, ...]:
    """The fields of a group that are options, in their order, each with its type taken apart."""
    return _entries(group)


@functools.cache
def _entries(group: type) -> tuple[Option, ...]:
    # `from __future__ import annotations` makes annotations strings; this evaluates them.
    hints = typing.get_type_hints(group, include_extras=True)
    return tuple(
        _entry(
            declared,
            declaration.name,
            hints[declaration.name],
            declaration.default
            if declaration.default_factory is MISSING
            else declaration.default_factory(),
        )
        for declaration in fields(group)
        for declared in typing.get_args(hints[declaration.name])
        if isinstance(declared, Option)
    )


def _entry(declared: Option, name: str, hint: Any, default: Any) -> Option:  # noqa: ANN401 - an annotation, and a value of its type
    kind = typing.get_args(hint)[0]
    if type(None) in typing.get_args(kind):
        kind = next(member for member in typing.get_args(kind) if member is not type(None))
    origin = typing.get_origin(kind)
    inner = typing.get_args(kind)
    plain = name.replace("_", "-")
    default = ... if default is MISSING else default
    # An option that is enabled by default has only ``--no-NAME``.
    flags = declared.flags or ((f"{NEGATIVE}--no-{plain}",) if default is True else (f"--{plain}",))
    entry = functools.partial(
        replace, declared, flags=flags, name=name, default=default, frozen=origin is tuple
    )
    # What `read` makes of words may be of any type.
    first, last = (
        (member if isinstance(member, type) else str for member in (inner[0], inner[-1]))
        if inner
        else (str, str)
    )
    if origin is dict:
        return entry(kind=last, form="named")
    if origin is tuple and declared.need_name:
        return entry(form="named")
    if origin in (list, tuple):
        return entry(kind=first, form="list")
    return entry(kind=kind if origin is None else str)


def words_of(group: type) -> set[str]:
    """Return the flags, keywords and fields of a group; two groups of a command share none."""
    return {word for entry in entries(group) for word in (*entry.flags, entry.keyword, entry.name)}


class Params:
    """The parameters of one invocation: an instance of each group of options of its command."""

    def __init__(self, groups: Iterable[type], values: Plain, *, words: bool) -> None:
        """Read the values of all groups; see :func:`make_group`."""
        self._groups: dict[type, Any] = {
            group: make_group(group, values, words=words) for group in groups
        }

    def __contains__(self, group: type) -> bool:
        return group in self._groups

    def __iter__(self) -> Iterator[Any]:
        return iter(self._groups.values())

    def __getitem__(self, group: type[Group]) -> Group:
        """The group; with its defaults if the command does not have it."""
        if group not in self._groups:
            self._groups[group] = group()
        instance: Group = self._groups[group]
        return instance

    def change(self, group: type, **changes: Any) -> None:  # noqa: ANN401 - of many types
        """Give options of a group other values."""
        self._groups[group] = replace(self[group], **changes)


def make_group(group: type[Group], values: Plain, *, words: bool = False) -> Group:
    """Return a group of options from values by name, which may be of other groups too.

    ``None`` and, on a command line, an empty list count as not given.

    Args:
        group: The dataclass of the options.
        values: Words or Python values by the name of the field.
        words: Whether the values are words of a command line: errors then name the flag, else the
            keyword.

    Raises:
        UsageError: A value has another type or range than the option takes.
    """
    arguments = Fields()
    for entry in entries(group):
        value = values.get(entry.name)
        # Typer gives an empty list where nothing was given.
        if value is not None and not (words and value == []):
            arguments[entry.name] = entry.parse(value, entry.flag if words else f"{entry.name}:")
    return group(**arguments)


def _bool(value: Any) -> bool:  # noqa: ANN401 - of many types
    if isinstance(value, str | bytes) or value not in (True, False):
        raise ValueError("True or False")
    return bool(value)


def _int(value: Any) -> int:  # noqa: ANN401 - of many types
    try:
        return int(value) if isinstance(value, str) and value.isascii() else operator.index(value)
    except (TypeError, ValueError):
        raise ValueError("a whole number") from None


def _float(value: Any) -> float:  # noqa: ANN401 - of many types
    if isinstance(value, bytes | bool):
        raise ValueError("a number")
    try:
        # An integer is kept: a float of more than 2**53 would be another number.
        return value if isinstance(value, int) else float(value)
    except (TypeError, ValueError):
        raise ValueError("a number") from None


def _str(value: Any) -> str:  # noqa: ANN401 - of many types
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a text")
    return str(value)


def _path(value: Any) -> Path:  # noqa: ANN401 - of many types
    """Read a path; it becomes absolute if it begins with a dash, so that no command reads it as an option."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a path")
    path = Path(value)
    try:
        # Rejects names that no file can have; a file that does not exist yet is a valid value.
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except ValueError:
        raise ValueError("a path without null characters") from None
    return path.absolute() if str(path).startswith("-") and path != STDOUT else path


_READERS: Mapping[type, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: _path,
}


def changed(group: object) -> Fields:
    """The options of a group that differ from their defaults, by name."""
    defaults = type(group)()
    values = {
        declaration.name: (getattr(group, declaration.name), getattr(defaults, declaration.name))
        for declaration in fields(group)  # type: ignore[arg-type]  # a dataclass
    }
    return {name: value for name, (value, default) in values.items() if value != default}


def written(group: Any) -> list[str]:  # noqa: ANN401 - an instance of any group
    """Return the options of a group that differ from their defaults, as words of a command line."""
    values = changed(group)
    changed_entries = [
        entry for entry in entries(type(group)) if entry.name in values and not entry.positional
    ]
    return [word for entry in changed_entries for word in entry.words(values[entry.name])]


def _word(value: Any) -> str:  # noqa: ANN401 - of many types
    """A value as :attr:`Option.read` reads it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(repr, value))}]"
    return str(value.value if isinstance(value, Enum) else value)


def title(group: type) -> str:
    """Return the heading above the options of a group: the first line of its docstring."""
    return (group.__doc__ or "").strip().partition("\n")[0].rstrip(".")
