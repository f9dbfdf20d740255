"""Spaces: the units that a command searches, and the candidate that some of them make.

A command declares its space and hands a strategy of :mod:`bisect_trt.search` to it; probing, memory, speculation and what is
known when the budget is spent are the same for all of them.
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
    """Numbered units, and the candidate that a subset of them makes.

    Attributes:
        build: Makes the candidate of a subset.
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
    """Units that are probed one by one, each a candidate of its own: sizes, samples, releases, runs.

    Attributes:
        build: Makes the candidate of a unit.
        refuse: Returns why a unit cannot be probed at all; such a unit is ``UNRESOLVED`` and costs no probe.
        apart: Whether each unit may fail in a way of its own, rather than as the first one does.
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
            BudgetSpent: No more probes may be made; :meth:`seen` has what is known.
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
        """The last record of each unit that was probed, in the order in which they were; complete at any time."""
        records = {record.key: record for record in prober.ledger.records}
        return {unit: records[key] for unit, key in self._keys.items() if key in records}

    def told(self, prober: Prober) -> dict[Unit, dict[str, Any]]:
        """The ``verdict``, ``reason`` and ``signature`` of each unit, as plain values; what was refused has no signature."""
        seen = self.seen(prober)
        told = {unit: _told(Verdict.UNRESOLVED, why) for unit, why in self._refused.items() if why is not None}
        return told | {unit: _told(record.verdict, record.reason, record.signature) for unit, record in seen.items()}

    def _built(self, unit: Unit) -> Candidate:
        candidate = self.build(unit)
        self._keys[unit] = candidate.key
        return candidate


def _told(verdict: Verdict, reason: str, signature: str | None = None) -> dict[str, Any]:
    return {"verdict": verdict.value, "reason": reason, "signature": signature}
