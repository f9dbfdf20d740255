"""Spaces: the units that a command searches, and the candidate that some of them make.

A command declares its space and hands a strategy of :mod:`bisect_trt.search` to it; probing, memory, speculation and what is
known when the budget is spent are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.journal import Record
from bisect_trt.probe.prober import Prober
from bisect_trt.search.oracle import Ask, Search, Subset, Verdict, over_units

T = TypeVar("T")
AskUnit = Callable[[int], Verdict]
"""Returns the verdict of the candidate that one unit makes."""


@dataclass(frozen=True)
class Space:
    """Numbered units, and the candidate that a subset of them makes.

    Attributes:
        build: Makes the candidate of a subset.
        original: The candidate of the original model, where a strategy asks about it.
        refuse: Says why a unit cannot be probed at all; such a unit is ``UNRESOLVED`` and costs no probe.
        apart: Whether each unit may fail in a way of its own, rather than as the first one does.
    """

    build: Callable[[Subset], Candidate]
    original: Candidate | None = None
    refuse: Callable[[int], str | None] = lambda _: None
    apart: bool = False
    _keys: dict[str, int] = field(default_factory=dict)

    def search(self, prober: Prober, strategy: Callable[[Ask], T]) -> T:
        """Run a strategy over subsets.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        return self.run(prober, over_units(strategy))

    def run(self, prober: Prober, search: Search[T]) -> T:
        """Run a search that may ask other questions too; see :meth:`search`."""
        return prober.search(search, self._built, self.original)

    def search_units(self, prober: Prober, strategy: Callable[[AskUnit], T]) -> T:
        """Run a strategy that asks about one unit at a time.

        Raises:
            BudgetSpent: No more probes may be made; :meth:`seen` has what is known.
        """

        def asking(ask: Ask) -> T:
            return strategy(
                lambda unit: Verdict.UNRESOLVED if self.refuse(unit) is not None else ask(frozenset({unit}))
            )

        before, prober.ledger.apart = prober.ledger.apart, self.apart
        try:
            return self.search(prober, asking)
        finally:
            prober.ledger.apart = before

    def probe(self, prober: Prober, unit: int) -> Verdict:
        """Probe the candidate of one unit.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        return prober.probe(self._built(frozenset({unit}))).verdict

    def seen(self, prober: Prober) -> Mapping[int, Record]:
        """The last record of each single unit that was probed, by its number; complete at any time."""
        records = {record.key: record for record in prober.ledger.records if record.key in self._keys}
        found = {self._keys[key]: record for key, record in records.items()}
        return dict(sorted(found.items()))

    def _built(self, subset: Subset) -> Candidate:
        candidate = self.build(subset)
        if len(subset) == 1:
            self._keys[candidate.key] = next(iter(subset))
        return candidate
