"""Changes of the settings of a target: what its switches are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bisect_trt.targets.base import LIKELY, OwnSettings, Switch, Turn


def setting(**values: Any) -> Turn:  # noqa: ANN401 - of many types
    """Return a function that sets some of the settings that only one target has."""
    return lambda settings: settings.with_own(**values)


def changing(name: str, change: Callable[[Any], object]) -> Turn:
    """Return a function that changes a setting that only one target has, from its value then."""
    return lambda settings: settings.with_own(
        **{name: change(getattr(settings.of(settings.target.own), name))}
    )


def adding(name: str, *values: object) -> Turn:
    """Return a function that adds values to such a setting."""
    return changing(name, lambda current: (*current, *values))


def left_out(
    options: OwnSettings,
    field: str,
    kind: str = "option",
    how: str = "left out",
    weight: float = LIKELY,
) -> Iterator[Switch]:
    """Yield each value, or pair by its name, of such a setting, left out.

    Args:
        options: The settings of one target.
        field: The name of a setting with several values.
        kind: The kind of the switches.
        how: The change in words.
        weight: The weight of each switch, beside others.
    """
    for entry in getattr(options, field):
        turn = changing(field, partial(_without, entry))
        yield Switch(
            f"{kind}:{entry if isinstance(entry, str) else entry[0]}", turn, weight=weight, how=how
        )


def _without(dropped: object, entries: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value for value in entries if value != dropped)
