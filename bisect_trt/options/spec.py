"""How an option is declared: the annotation of a field in a group of options, which is a dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """What a group's field says beside its type and default: ``Annotated[bool, option("--trt", help="TensorRT.")]``.

    Attributes:
        flags: How it is written on a command line; made from the field's name where empty.
        help: What it does, for ``--help``; one sentence or two.
        metavar: What stands for its value there.
        min: The least number it takes.
        max: The largest.
        check: Makes sure of a value, and may change it; raises ``UsageError`` if it is none.
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    check: Callable[[Any], Any] | None = None


def option(
    *flags: str,
    help: str = "",  # noqa: A002 - as every command line library calls it
    metavar: str | None = None,
    min: float | None = None,  # noqa: A002 - as above
    max: float | None = None,  # noqa: A002 - as above
    check: Callable[[Any], Any] | None = None,
) -> Option:
    """Declare an option; see :class:`Option`."""
    return Option(flags, help, metavar, min, max, check)
