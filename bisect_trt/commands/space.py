"""Spaces: the units that a command searches, and the candidate of a subset of them.

A command declares its space and passes a strategy of :mod:`bisect_trt.search` to it. Probing, caching, speculation and budgets
are the same for all spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import Record
from bisect_trt.probe.prober import Prober
from bisect_trt.search.oracle import Ask, Subset, Verdict, over_units

T = TypeVar("T")
Unit = TypeVar("Unit", bound=Hashable)


@dataclass(frozen=True)
class Space:
    """Numbered units, and the candidate of a subset of them.

    Attributes:
        build: Returns the candidate of a subset.
    """

    build: Callable[[Subset], Candidate]

    def search(self, prober: Prober, strategy: Callable[[Ask], T]) -> T:
        """Run a strategy over subsets.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        return prober.search(over_units(strategy), self.build)


@dataclass(frozen=True)
class Series(Generic[Unit]):
    """Units that are probed one at a time, each a candidate of its own: sizes, samples, releases, runs.

    Attributes:
        build: Returns the candidate of a unit.
        refuse: Returns why a unit cannot be probed; such a unit is ``UNRESOLVED`` and costs no probe.
        apart: Whether each unit may fail in its own way, rather than like the first failure.
    """

    build: Callable[[Unit], Candidate]
    refuse: Callable[[Unit], str | None] = lambda _: None
    apart: bool = False
    _units: list[Unit] = field(default_factory=list)
    _keys: dict[Unit, str] = field(default_factory=dict)
    _refused: dict[Unit, str | None] = field(default_factory=dict)

    def search(self, prober: Prober, strategy: Callable[[Callable[[Unit], Verdict]], T]) -> T:
        """Run a strategy that asks about one unit at a time.

        Raises:
            BudgetSpent: No more probes may be made; :meth:`seen` has the verdicts so far.
        """

        def built(subset: Subset) -> Candidate:
            return self._built(self._units[next(iter(subset))])

        def number(unit: Unit) -> int:
            if unit not in self._units:
                self._units.append(unit)
            return self._units.index(unit)

        def asking(ask: Ask) -> T:
            def about(unit: Unit) -> Verdict:
                self._refused[unit] = self.refuse(unit)
                return Verdict.UNRESOLVED if self._refused[unit] is not None else ask(frozenset({number(unit)}))

            return strategy(about)

        before, prober.ledger.apart = prober.ledger.apart, self.apart
        try:
            return prober.search(over_units(asking), built)
        finally:
            prober.ledger.apart = before

    def probe(self, prober: Prober, unit: Unit) -> Verdict:
        """Probe one unit.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        return prober.probe(self._built(unit)).verdict

    def seen(self, prober: Prober) -> dict[Unit, Record]:
        """Return the last record of each probed unit, in the order of the probes."""
        records = {record.key: record for record in prober.ledger.records}
        return {unit: records[key] for unit, key in self._keys.items() if key in records}

    def verdicts(self, prober: Prober) -> dict[Unit, dict[str, Any]]:
        """Return ``verdict``, ``reason`` and ``signature`` of each unit as plain values; refused units have no signature."""
        refused = {unit: (Verdict.UNRESOLVED, why, None) for unit, why in self._refused.items() if why is not None}
        seen = {unit: (each.verdict, each.reason, each.signature) for unit, each in self.seen(prober).items()}
        return {
            unit: {"verdict": verdict.value, "reason": reason, "signature": signature}
            for unit, (verdict, reason, signature) in {**refused, **seen}.items()
        }

    def _built(self, unit: Unit) -> Candidate:
        candidate = self.build(unit)
        self._keys[unit] = candidate.key
        return candidate
