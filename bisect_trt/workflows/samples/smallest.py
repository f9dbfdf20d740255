"""The smallest input that still fails: shorter first, then with fewer elements that are not zero, from slices to elements.

The search is the one that finds nodes; its units are places along a free dimension, then parts of the inputs. A part that is left
out is zero. That a set is 1-minimal means that no place and no element that is left can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.search.oracle import Ask, Enough, Minimum, Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.tensors.info import is_string
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.samples.fed import Fed, Values

Part = tuple[str, tuple[int, ...]]
"""An input, and the first indices of a part of it; all of it for none."""
MOST_QUESTIONS = 400
_MOST_AGAIN = 16
"""So many elements of the answer are left out once more."""
_TWICE = 2
"""The answer is asked about so often once more, and again when it was read back."""


@dataclass
class Smallest:
    """What is left of a sample.

    Attributes:
        values: The input; it was seen to fail.
        proven: Whether it is 1-minimal.
        why: What stands in the way.
        steady: Whether it failed again, and what was seen to pass did not.
        asked: How many questions that took.
        steps: What was done, in words.
    """

    values: Values
    proven: bool = True
    why: str | None = None
    steady: bool = True
    asked: int = 0
    steps: list[str] = field(default_factory=list)

    @property
    def kept(self) -> list[Part]:
        """Its elements that are not zero."""
        return [
            (name, tuple(int(place) for place in index))
            for name, value in self.values.items()
            for index in np.argwhere(not_nothing(value))
        ]


def reduce_input(
    investigation: Investigation,
    fed: Fed,
    found: Smallest,
    symbols: Mapping[str, Sequence[tuple[str, int]]],
) -> None:
    """Make an input smaller for as long as it fails in the same way.

    Args:
        investigation: Whose failure it is; the signature of the failure is known to its ledger.
        fed: Makes candidates.
        found: Its values fail; it has the smallest that were seen to, however this ends.
        symbols: The free dimensions of the inputs.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    run = _Run(investigation, fed, found)
    try:
        run.shorten(symbols)
        run.zero()
        if run.shorten(symbols):
            run.zero()
        run.try_again()
    except Enough:
        found.proven, found.why = False, f"after {found.asked} questions there may be more to leave out"


class _Run:
    def __init__(self, investigation: Investigation, fed: Fed, found: Smallest) -> None:
        self._investigation, self._fed, self._found = investigation, fed, found

    def shorten(self, symbols: Mapping[str, Sequence[tuple[str, int]]]) -> bool:
        """Leave out places along each free dimension; whether any went."""
        before = {name: value.shape for name, value in self._found.values.items()}
        for symbol, places in chain(symbols.items(), self._alike(symbols)):  # the latter once these are done
            values = self._found.values
            size = values[places[0][0]].shape[places[0][1]]

            def build(units: Subset, values: Values = values, places: Sequence[tuple[str, int]] = places) -> Values:
                kept, made = sorted(units), dict(values)
                for name, axis in places:
                    made[name] = made[name].take(kept, axis=axis)
                return made

            if size > 1 and all(values[name].shape[axis] == size for name, axis in places):
                self._search(range(size), build, f"places along {symbol}", least=1)
        return before != {name: value.shape for name, value in self._found.values.items()}

    def _alike(self, symbols: Mapping[str, Sequence[tuple[str, int]]]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Dimensions of one size under several names, by all of these: inputs may have to fit each other."""
        by_size: dict[int, list[str]] = {}
        for symbol, ((name, axis), *_) in symbols.items():
            by_size.setdefault(self._found.values[name].shape[axis], []).append(symbol)
        for together in by_size.values():
            if len(together) > 1:
                yield " and ".join(together), [place for symbol in together for place in symbols[symbol]]

    def zero(self) -> None:
        """Make parts zero: whole inputs, then their slices, then slices of those, down to elements."""
        depth = max((value.ndim for value in self._found.values.values()), default=0)
        for level in range(depth + 1):
            values = self._found.values
            parts = _parts(values, level)
            if level == 0 and len(parts) < 2:
                continue

            def build(units: Subset, values: Values = values, parts: Sequence[Part] = parts) -> Values:
                made = {name: _nothing_like(value) for name, value in values.items()}
                for unit in units:
                    name, index = parts[unit]
                    made[name][index] = values[name][index]
                return made

            what = "inputs" if level == 0 else "elements" if level == depth else "slices"
            if parts:
                self._search(range(len(parts)), build, f"{what} that are not zero")

    def _search(self, units: Sequence[int], build: Callable[[Subset], Values], what: str, least: int = 0) -> None:
        """Keep the fewest units that fail; the smallest set that was seen to fail stays if there is no time for more.

        Questions are asked one at a time: a search that is run ahead is run again from its start for each, and this one has
        many units.
        """
        found, everything = self._found, frozenset(units)
        known: dict[Subset, Verdict] = {everything: Verdict.FAIL}
        best = everything

        def ask(chosen: Subset) -> Verdict:
            nonlocal best
            if chosen not in known:
                if found.asked >= MOST_QUESTIONS:
                    raise Enough
                found.asked += 1
                known[chosen] = self._probe(build(chosen), f"{len(chosen)} of {len(units)} {what}")
                if known[chosen] is Verdict.FAIL and len(chosen) < len(best):
                    best = chosen
            return known[chosen]

        try:
            minimum = minimise(units, ask)
            best = (minimum if least else _with_none(minimum, ask)).units
        finally:  # what was seen to fail before the budget was spent is kept
            found.values = build(best)
            if len(best) < len(units):
                asked = f"{len(known) - 1} question{'s' * (len(known) != 2)}"
                found.steps.append(f"{len(best)} of {len(units)} {what} left, after {asked}")

    def try_again(self) -> None:
        """Ask again what the proof rests on: a failure that comes and goes is none of the input alone."""
        found, whole = self._found, self._found.values
        doubt = "the input that failed passed when it was asked again"
        asked = (self._probe(whole, "the smallest input", again=True) for _ in range(_TWICE))
        if found.proven and all(verdict is Verdict.FAIL for verdict in asked):
            doubt = "without one of these elements it passed, and failed when it was asked again"
            for name, index in found.kept[:_MOST_AGAIN]:
                less = {**whole, name: whole[name].copy()}
                less[name][index] = _nothing_like(whole[name])[index]
                if self._probe(less, f"without '{name}' at {list(index)}", again=True) is Verdict.FAIL:
                    break
            else:
                return
        if found.proven:
            found.proven, found.steady, found.why = (
                False,
                False,
                f"the failure comes and goes: {doubt}; `bisect-trt repeat` says how often",
            )

    def _probe(self, values: Values, title: str, *, again: bool = False) -> Verdict:
        if self._fed.refused(values) is not None:
            return Verdict.UNRESOLVED
        return self._investigation.prober.probe(self._fed.candidate(values, title), again=again).verdict


def not_nothing(value: NDArray[Any]) -> NDArray[np.bool_]:
    """Which elements are neither zero nor an empty string; -0.0 is not zero, for kernels tell them apart."""
    if is_string(value.dtype):
        return np.asarray(value != "", bool)
    used = value.astype(bool)
    return used | np.signbit(value) if value.dtype.kind == "f" else used


def _nothing_like(value: NDArray[Any]) -> NDArray[Any]:
    """Zeros; empty strings."""
    return np.full_like(value, "") if is_string(value.dtype) else np.zeros_like(value)


def _with_none(minimum: Minimum, ask: Ask) -> Minimum:
    """Of one unit that is left, whether not even that is needed."""
    if len(minimum.units) == 1 and ask(frozenset()) is Verdict.FAIL:
        return Minimum(frozenset(), proven=True)
    return minimum


def _parts(values: Values, level: int) -> list[Part]:
    """The parts at so many indices that are not all zero."""
    found: list[Part] = []
    for name, value in values.items():
        used = not_nothing(value)
        depth = min(level, value.ndim)
        flat = used.reshape(*used.shape[:depth], -1).any(axis=-1) if used.size else np.zeros(used.shape[:depth], bool)
        found += [(name, tuple(int(place) for place in index)) for index in np.argwhere(flat)]
    return found
