"""What a point of several dimensions is that fails: bounds and multiples of sizes, of their products, sums and differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

Point = tuple[int, ...]
"""A size for each dimension that is swept."""


@dataclass(frozen=True)
class Feature:
    """A number that the sizes of a point make: one of them, or the ``product``, ``sum`` or ``difference`` of some."""

    kind: str
    places: tuple[int, ...]

    def of(self, point: Point) -> int:
        """Its value."""
        if self.kind == "product":
            return prod(point[place] for place in self.places)
        if self.kind == "difference":
            return point[self.places[0]] - point[self.places[1]]
        return sum(point[place] for place in self.places)

    def said(self, names: Sequence[str]) -> str:
        """In words."""
        sign = {"product": " * ", "sum": " + ", "difference": " - ", "size": ""}[self.kind]
        return sign.join(names[place] for place in self.places)


@dataclass(frozen=True)
class Condition:
    """What a feature has to be.

    Attributes:
        feature: Of what.
        kind: ``from`` (``low`` on), ``up_to`` (``high``), ``between`` and ``outside`` (of ``low`` and ``high``), ``residue`` and
            ``but_residue`` (``low`` modulo ``period``).
        low: See there.
        high: The same.
        period: The same.
    """

    feature: Feature
    kind: str
    low: int = 0
    high: int = 0
    period: int = 0

    def holds(self, point: Point) -> bool:
        """Whether a point has it."""
        return self.met_by(self.feature.of(point))

    def met_by(self, value: int) -> bool:
        """Whether a value of the feature is what it has to be."""
        if self.period:
            return (value % self.period == self.low) is (self.kind == "residue")
        if self.kind == "from":
            return value >= self.low
        if self.kind == "up_to":
            return value <= self.high
        return (self.low <= value <= self.high) is (self.kind == "between")

    def negated(self) -> Condition:
        """The opposite."""
        if self.kind == "from":
            return replace(self, kind="up_to", low=0, high=self.low - 1)
        if self.kind == "up_to":
            return replace(self, kind="from", low=self.high + 1, high=0)
        other = {"between": "outside", "outside": "between", "residue": "but_residue", "but_residue": "residue"}
        return replace(self, kind=other[self.kind])

    @property
    def cost(self) -> float:
        """How far-fetched it is."""
        base = {"size": 1.0, "difference": 1.3, "product": 1.4, "sum": 1.5}[self.feature.kind]
        if self.period:
            usual = 0.4 if self.period == 2 else 0.6 if self.period & (self.period - 1) == 0 else 1.3
            return base + usual + (0.0 if not self.low or self.period == 2 else 1.0)
        if self.kind in ("from", "up_to"):
            return base
        if self.low == self.high:
            return base + (0.2 if self.feature.kind == "difference" and not self.low else 0.9)
        return base + 1.2

    def said(self, names: Sequence[str]) -> str:
        """In words, after "fails where"."""
        what = self.feature.said(names)
        if self.period:
            return self._said_remainder(what)
        if self.feature.kind == "difference" and (self.kind, self.low, self.high) in _SIGNS:
            return _SIGNS[self.kind, self.low, self.high].join(names[place] for place in self.feature.places)
        if self.kind == "from":
            return f"{what} >= {self.low}"
        if self.kind == "up_to":
            return f"{what} <= {self.high}"
        if self.low == self.high:
            return f"{what} {'=' if self.kind == 'between' else '!='} {self.low}"
        inside = f"between {self.low} and {self.high}"
        return f"{what} is {inside if self.kind == 'between' else 'not ' + inside}"

    def _said_remainder(self, what: str) -> str:
        does = self.kind == "residue"
        if self.period == 2:
            return f"{what} is {'even' if (self.low == 0) is does else 'odd'}"
        if self.low:
            return f"{what} {'leaves' if does else 'does not leave'} {self.low} when divided by {self.period}"
        return f"{what} is {'' if does else 'not '}a multiple of {self.period}"


_SIGNS = {
    ("from", 1, 0): " > ",
    ("from", 0, 0): " >= ",
    ("up_to", 0, -1): " < ",
    ("up_to", 0, 0): " <= ",
    ("between", 0, 0): " = ",
    ("outside", 0, 0): " != ",
}
"""How a difference is said that is held against zero."""


@dataclass(frozen=True)
class Relation:
    """Conditions that all (``every``) or of which any makes a point fail; none and ``every``: all points do."""

    conditions: tuple[Condition, ...]
    every: bool = True

    def fails(self, point: Point) -> bool:
        """What it says of a point."""
        held = (condition.holds(point) for condition in self.conditions)
        return all(held) if self.every else any(held)

    @property
    def cost(self) -> float:
        """How far-fetched it is."""
        return sum(each.cost for each in self.conditions) + (0.0 if self.every or len(self.conditions) == 1 else 0.6)

    def said(self, names: Sequence[str]) -> str:
        """In words, after "fails where"."""
        return (" and " if self.every else " or ").join(each.said(names) for each in self.conditions)
