"""Switches of a runtime, each of which may make a failure disappear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bisect_trt.targets.settings import TargetSettings

Turn = Callable[["TargetSettings"], "TargetSettings"]
LIKELY = 30.0
"""The weight of a likely switch; the others have 1."""


class Tier(IntEnum):
    """The extent of the change that a switch makes."""

    PASS = 0
    """One thing that it does to this model: a pass over the graph, a tactic of a layer."""
    OPTION = 1
    """A setting that is about another thing."""
    SPARE = 2
    """As ``PASS``, but nothing shows that it does anything to this model; for where nothing else is found."""
    WHOLE = 3
    """A whole kind at once: all optimisations, a precision. It mostly helps, and costs most."""


@dataclass(frozen=True)
class Switch:
    """Something of a runtime that can be turned.

    Attributes:
        name: Its name in the result: kind and name, as ``optimizer:GemmTransposeFusion``.
        turn: The settings with it turned, from those without.
        tier: How much it turns.
        weight: How likely it is to be the one, beside the others; 1 where nothing is known.
        covers: The kinds of switches that are all turned with it, so that none of them helps if it does not.
        within: Of which kind it turns several, so that it does not help where the switch that covers them does not.
        how: What is done to it, in words; what has a value in its name is set to that.
    """

    name: str
    turn: Turn = field(compare=False)
    tier: Tier = Tier.OPTION
    weight: float = 1.0
    covers: str | None = None
    within: str | None = None
    how: str = "disabled"

    @property
    def said(self) -> str:
        """The change: ``disabled``, ``set to 0``."""
        _, equals, value = self.name.partition("=")
        return f"set to {value}" if equals else self.how

    @property
    def kind(self) -> str:
        """The kind of the switch."""
        return self.name.partition(":")[0]


@dataclass(frozen=True)
class Looked:
    """The facts about a model that its switches are chosen by.

    Attributes:
        trace: The runtime's report of what it does to the model, see ``Runtime.trace``; ``None`` without one.
        operators: The operators in it.
        suspects: The suspected ones, if any.
    """

    trace: Mapping[str, Any] | None = None
    operators: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()


def setting(**values: Any) -> Turn:  # noqa: ANN401 - of many types
    """Return a function that sets some of the settings that only one target has."""
    return lambda settings: settings.with_own(**values)


def changing(name: str, change: Callable[[Any], object]) -> Turn:
    """Return a function that changes a setting that only one target has, from its value then."""
    return lambda settings: settings.with_own(**{name: change(getattr(settings.of(settings.target.own), name))})


def adding(name: str, *values: object) -> Turn:
    """Return a function that adds values to such a setting."""
    return changing(name, lambda known: (*known, *values))


def dropping(name: str, key: str) -> Turn:
    """Return a function that leaves a value, or the pair of a name, out of such a setting."""
    return changing(
        name, lambda known: tuple(each for each in known if key != (each if isinstance(each, str) else each[0]))
    )


def precision_switches(settings: TargetSettings) -> list[Switch]:
    """Each low precision that it may run in, left out."""

    def without(name: str) -> Turn:
        def turn(given: TargetSettings) -> TargetSettings:
            changes: dict[str, Any] = {name: False}
            turned = replace(given, **changes)
            return turned if turned.fp16 or turned.bf16 else replace(turned, keep=(), held=False)

        return turn

    return [Switch(f"precision:{name}", without(name), Tier.WHOLE) for name in settings.low_precisions]
