"""How an option is declared, the annotation of a field in a group of options (a dataclass), and how a group is read."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, Literal


@dataclass(frozen=True)
class Option:
    """What a group's field says beside its type and default: ``Annotated[bool, option("--trt", help="TensorRT.")]``.

    The field's type is ``bool``, ``int``, ``float``, ``str``, ``Path`` or an ``Enum``, or one of these that may be missing
    (``X | None``), given several times (``list[X]``), or given for one tensor or another (``dict[str, X]``: on the command
    line ``NAME:VALUE``, or ``VALUE`` for the name ``''``).

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


def option(
    *flags: str,
    help: str = "",  # noqa: A002 - as every command line library calls it
    metavar: str | None = None,
    min: float | None = None,  # noqa: A002 - as above
    max: float | None = None,  # noqa: A002 - as above
    check: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
    need_name: bool = False,
    count: bool = False,
) -> Option:
    """Declare an option; see :class:`Option`."""
    return Option(flags, help, metavar, min, max, check, read, need_name, count)


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
    """

    name: str
    option: Option
    kind: type
    form: Literal["one", "list", "named"]
    default: Any

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is written, ``--on/--no-on`` for what can be turned off."""
        plain = self.name.replace("_", "-")
        off = f"/--no-{plain}" if self.kind is bool and not self.option.switch else ""
        return self.option.flags or (f"--{plain}{off}",)

    @property
    def flag(self) -> str:
        """How it is written in messages."""
        return next(flag for flag in self.flags if flag.startswith("--")).partition("/")[0]

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


def entries(group: type) -> tuple[Entry, ...]:
    """The fields of a group, in their order."""
    return _entries(group)


@functools.cache
def _entries(group: type) -> tuple[Entry, ...]:
    hints = typing.get_type_hints(group, include_extras=True)
    return tuple(
        _entry(each.name, hints[each.name], each.default if each.default_factory is MISSING else each.default_factory())
        for each in fields(group)
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
    return Entry(name, declared, kind, "one", default)


def _optional(kind: Any) -> bool:  # noqa: ANN401 - an annotation
    return type(None) in typing.get_args(kind)


def _plain(kind: Any) -> type:  # noqa: ANN401 - an annotation
    """The type itself; what :attr:`Option.read` makes of words may be of any."""
    return kind if isinstance(kind, type) else str


def changed(group: object) -> dict[str, Any]:
    """The options of a group that differ from their defaults, by name."""
    defaults = type(group)()
    values = {each.name: (getattr(group, each.name), getattr(defaults, each.name)) for each in fields(group)}  # type: ignore[arg-type]  # a dataclass
    return {name: value for name, (value, default) in values.items() if value != default}


def title(group: type) -> str:
    """What a group is about, to stand above its options."""
    return (group.__doc__ or "").strip().partition("\n")[0].rstrip(".")
