"""The fewest units that must stay in fp32 when all the rest is lowered.

Two ideas. Suspicion: if something is known of where the culprits are, keeping just those is tried
first, so that a small passing set is known early. And group testing: lower a group of units; if the
check still passes none of them needs fp32. Units that were cleared stay lowered from then on, so
each question is about all that was lowered so far, and what is kept passes at every moment and only
shrinks: whoever runs out of time has the smallest so far.

Where any of several sets is enough, :func:`find_alternatives` lists every smallest one as in
Reiter's tree of hitting sets ("A theory of diagnosis from first principles", Artificial
Intelligence 32, 1987): an answer that differs from those that are known lacks a unit of each of
them. Switches of a runtime mostly act alone, so a single one is looked for first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, combinations, islice

from msgspec import Struct, field

from bisect_trt.search.density import HOT, Density, cold
from bisect_trt.search.groups import Kept
from bisect_trt.search.oracle import Ask, Enough, Limited, Minimum, Note, Remark, Subset, Verdict
from bisect_trt.search.strategy import (
    find_culprits,
    make_minimal,
    reduce_by_counters,
    worth_counting,
)

_SHORT = 1 / 2
"""A list of suspects of up to this share of all units is tried as a whole."""
_TIER = 1 / 20
"""The share of a longer ranking that is tried."""
_FEW = 8
"""The number of units of which all are met as suspects are."""


def find_keep(
    units: Sequence[int],
    ask: Ask,
    *,
    suspects: Sequence[int] = (),
    groups: Collection[Subset] = (),
    most: int | None = None,
) -> Minimum:
    """A 1-minimal set of units that, kept in fp32, is enough for the check to pass.

    Where passing is monotone (more units in fp32 never hurt) and nothing is suspected, finding k
    culprits among N takes about log2 (N choose k) questions, the least there can be, and a few
    percent more; the proof takes one for each culprit.

    Args:
        units: In topological order. Kept in fp32 altogether they are known to pass, none kept is
            known not to.
        ask: The oracle: ``PASS`` where these units in fp32, all others lowered, are enough. No set
            is asked about twice.
        suspects: Units to try first, most suspicious first. They may be wrong, and may be all.
        groups: Suspects that are lowered together, the largest group first, before any are lowered
            one by one: a search that is ended early has left out most by then.
        most: How many questions may be asked, if that is limited; the answer is then the best so
            far, unproven.
    """
    limited = Limited(ask, frozenset(units), most)
    try:
        return _find(units, limited, suspects, groups)
    except Enough:
        return Minimum(limited.best, proven=False).unproven(Note.STOPPED, most or 0)


def _find(
    units: Sequence[int], ask: Ask, suspects: Sequence[int], groups: Collection[Subset]
) -> Minimum:
    state = Kept(units, ask)
    ranking = [unit for unit in dict.fromkeys(suspects) if unit in state.units]
    prime_suspects = (
        ranking
        if len(ranking) <= _SHORT * len(units)
        else ranking[: max(round(_TIER * len(units)), 1)]
    )
    ranked = frozenset(ranking)
    # The least suspicious first.
    order = [*(unit for unit in units if unit not in ranked), *reversed(ranking)]
    outside = order[: len(order) - len(prime_suspects)]
    inside = order[len(outside) :]
    enough = bool(prime_suspects) and state.shrinks_to(frozenset(prime_suspects))
    steps = list[Remark]()
    if 0 < len(prime_suspects) < len(units):
        verdict = "enough" if enough else "not enough"
        steps.append(Remark(Note.SUSPECTED, (len(prime_suspects), len(units), verdict)))
    if enough:
        for group in sorted(groups, key=len, reverse=True):
            if 1 < len(group & state.units) < len(state.units):
                state.leave_out(group & state.units)
        # Strong suspects are not met as others are: most groups would have to be kept, and the
        # questions be wasted.
        state.lower(inside, Density(HOT, neighbours=False), dirty=True)
    else:
        hot = prime_suspects and len(units) <= _FEW
        density = (
            Density(HOT, neighbours=False) if hot else Density(cold(len(units)), units=len(units))
        )
        if prime_suspects:
            density.suspects_after(len(outside))
        state.lower([*outside, *inside], density, dirty=len(outside) if prime_suspects else True)
    state.settle()
    steps.append(Remark(Note.LOWERED, (len(state.units), state.asked)))
    return _prove(state, steps)


def keep_if_enough(count: int, max_questions: int, ask: Ask) -> Minimum | None:
    """The fewest of so many units that are enough, in ``max_questions`` questions; ``None`` where all of them are not.

    Args:
        count: The number of units; they are numbered from 0.
        max_questions: The largest number of questions, without the one about all units.
        ask: The oracle: ``PASS`` where keeping these units is enough.
    """
    everything = range(count)
    return (
        find_keep(everything, ask, most=max_questions)
        if ask(frozenset(everything)) is Verdict.PASS
        else None
    )


def smallest_enough(count: int, max_questions: int, ask: Ask) -> Minimum | None:
    """The smallest set of few units that is enough, where more units may be worse; ``None`` where none is met.

    Args:
        count: The number of units; they are numbered from 0.
        max_questions: The largest number of questions.
        ask: The oracle: ``PASS`` where these units are enough.
    """
    sets = chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1))
    candidates = map(frozenset, islice(sets, max_questions))
    return next(
        (Minimum(units, proven=True) for units in candidates if ask(units) is Verdict.PASS), None
    )


def _prove(state: Kept, steps: list[Remark]) -> Minimum:
    """Lower what can still be lowered, and show that no single unit more can be."""

    def shows(chosen: Subset) -> Verdict:
        return state.verdict(chosen).opposite

    before = state.asked
    # Group testing assumes that more units never hurt; delta debugging does not.
    broke = state.lost
    if worth_counting(state.units, shows, lost=broke):
        note = Note.REDUCED_BROKEN if broke else Note.REDUCED_KEPT
        state.units = reduce_by_counters(state.units, shows)
        steps.append(Remark(note, (len(state.units), state.asked - before)))
        before = state.asked
    chosen = make_minimal(state.units, shows).units
    steps.append(Remark(Note.PROVED_KEPT, (len(chosen), state.asked - before)))
    broken = sum(state.verdict(chosen - {unit}) is Verdict.UNRESOLVED for unit in chosen)
    remark = Remark(Note.LOWERED_BROKEN, (broken,)) if broken else None
    return Minimum(chosen, proven=True, remark=remark, steps=tuple(steps))


_FIRST = 4
_TIMES = 4
"""Growing adds so many units first, and so many times as many if that is not enough."""
_COARSE = 8
"""The number of units to add is found to one part in so many."""


def grow_and_shrink(
    start: Subset, insufficient: Subset, order: Sequence[int], ask: Ask, *, most: int
) -> Subset | None:
    """A set that is enough for what ``ask`` is about now, which ``insufficient`` is not.

    The set grows by the first units of an order. Then each of its units outside ``start`` is
    lowered, the last in the order first, if the rest is enough.

    Args:
        start: Units that stay in the set.
        insufficient: A set that is known not to be enough.
        order: All units that may be added, the first to add first.
        ask: The oracle: ``PASS`` where these units are enough.
        most: The largest number of questions.

    Returns:
        ``None`` if all units are not enough, or if the questions end before any but all of them
        were seen to be.
    """
    candidates = [unit for unit in order if unit not in insufficient]
    everything = insufficient.union(candidates)
    limited = Limited(ask, everything, most)

    # Subsets of a set that is known not to be enough need no question.
    def enough(units: Subset) -> Verdict:
        return Verdict.FAIL if start | units <= insufficient else limited(start | units)

    try:
        size = shortest_prefix(
            candidates, lambda prefix: limited(insufficient.union(prefix)) is Verdict.PASS
        )
    except Enough:
        return None if limited.best == everything else limited.best
    if size is None:
        return None
    added = [*filter((insufficient.union(candidates[:size]) - start).__contains__, reversed(order))]
    # Many of so few are needed, so no proof follows, unlike in find_keep.
    fewest = Kept(added, enough)
    with suppress(Enough):
        fewest.lower(added, Density(cold(len(added))), dirty=True)
        fewest.settle()
    grown = start | fewest.units
    return None if grown == everything and limited.left == 0 else grown


def shortest_prefix(ordered: Sequence[int], enough: Callable[[Sequence[int]], bool]) -> int | None:
    """About how many of the first units are enough, in logarithmically many questions; ``None`` if all are not.

    The answer is enough itself, and at most an eighth more than what is needed where more units
    never hurt.
    """
    low = 0
    high = min(_FIRST, len(ordered))
    # Exponential search, then bisection of the last interval (Bentley and Yao, 1976).
    while not (high and enough(ordered[:high])):
        if high == len(ordered):
            return None
        low = high
        high = min(high * _TIMES, len(ordered))
    while high - low > max(high // _COARSE, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(ordered[:middle]) else (middle, high)
    return high


MOST_ALTERNATIVES = 8
_MOST_SINGLES = 16
"""Number of units that are asked about alone after their set broke in another way, which gives no
information, and of such sets that are halved."""


class Alternatives(Struct, frozen=True):
    """The result of :func:`find_alternatives`.

    Attributes:
        found: Sets that pass, in the order in which they were found. Without any one of its units
            none of them was seen to pass.
        complete: Whether there are no others, where more units never hurt.
    """

    found: tuple[Subset, ...] = ()
    complete: bool = True


def find_alternatives(
    units: Sequence[int],
    ask: Ask,
    *,
    weights: Mapping[int, float] | None = None,
    max_sets: int = MOST_ALTERNATIVES,
    likely: bool = True,
) -> Alternatives:
    """All 1-minimal sets of units that pass, up to a limit.

    For one unit among N that is enough alone this asks about log2 N + 2 questions, one of them to
    see that no other is; fewer where its weight is large. That no units at all do not pass is taken
    as known.

    Args:
        units: In the order in which they are tried, where nothing else is known of them.
        ask: The oracle. No set is asked about twice.
        weights: How likely each is to be among the answers; 1 where not given.
        max_sets: How many answers are enough.
        likely: Whether there probably is one. If not, all units at once are asked about first: one
            question where there is none.
    """
    answers = _Known(ask, {unit: (weights or {}).get(unit, 1.0) for unit in units})
    everything = frozenset(units)
    minimal_sets: list[Subset] = []
    queue: list[Subset] = [frozenset()]
    # The queue grows while it is read: Reiter's tree, breadth first.
    for without in queue:
        minimum = next((subset for subset in minimal_sets if subset.isdisjoint(without)), None)
        if minimum is None:
            if len(minimal_sets) == max_sets:
                if answers.has_one(everything - without):
                    return Alternatives(tuple(minimal_sets), complete=False)
                continue
            minimum = answers.smallest(everything - without, sure=bool(minimal_sets) or not likely)
            if minimum is None:
                continue
            minimal_sets.append(minimum)
        # Each further answer lacks a unit of this one: one branch for each of its units.
        queue += [
            extended for unit in sorted(minimum) if (extended := without | {unit}) not in queue
        ]
    return Alternatives(tuple(minimal_sets))


class _Known(Struct):
    """An oracle with its answers, and the probability of each unit."""

    ask: Ask
    weights: Mapping[int, float]
    _said: dict[Subset, Verdict] = field(default_factory=lambda: {frozenset(): Verdict.FAIL})

    def verdict(self, units: Subset) -> Verdict:
        if units not in self._said:
            self._said[units] = self.ask(units)
        return self._said[units]

    def passes(self, units: Subset) -> bool:
        return self.verdict(units) is Verdict.PASS

    def _failed(self) -> list[Subset]:
        return [units for units, verdict in self._said.items() if verdict is Verdict.FAIL]

    def has_one(self, pool: Subset) -> bool:
        """Whether an answer lies within a pool."""
        return not any(pool <= failed for failed in self._failed()) and self.passes(pool)

    def smallest(self, pool: Subset, *, sure: bool) -> Subset | None:
        """A 1-minimal set within a pool; ``sure`` to ask whether there is one before it is looked for."""
        # Less than what was not enough is not enough.
        if any(pool <= failed for failed in self._failed()):
            return None
        single = None if sure and not self.passes(pool) else self._single(pool)
        if single is not None:
            return single
        if self.passes(pool):
            return self._together(pool)
        return self._alone(pool) if self.verdict(pool) is Verdict.UNRESOLVED else None

    def _likeliest_first(self, pool: Subset) -> list[int]:
        return sorted(
            (unit for unit in self.weights if unit in pool), key=lambda unit: -self.weights[unit]
        )

    def _single(self, pool: Subset) -> Subset | None:
        """Return the unit that passes alone; each question covers half of the probability.

        Half of a group that breaks in another way may hold it too: it is halved unless the rest
        passes. ``None`` if it is not found.
        """
        groups = [self._likeliest_first(pool.difference(*self._failed()))]
        broken = 0
        while groups:
            group = groups.pop()
            first = self._likeliest_half(group)
            remainder = group[len(first) :]
            verdict = self.verdict(frozenset(first))
            # A group that cannot be judged may hold the unit, so its parts are asked about, a few
            # times. One question about all the others spares the wrong half, unless a single unit
            # is so likely that it is asked about next.
            halve = verdict is Verdict.UNRESOLVED and len(first) > 1 and broken < _MOST_SINGLES
            broken += halve
            if halve and len(self._likeliest_half(first)) > 1:
                others = self.verdict(frozenset(remainder))
                if others is Verdict.PASS:
                    first = remainder
                    verdict = others
                elif others is Verdict.FAIL:
                    remainder = []
            if verdict is Verdict.PASS:
                if len(first) == 1:
                    return frozenset(first)
                groups = [first]
                continue
            if remainder:
                groups.append(remainder)
            if halve:
                groups.append(first)
        return None

    def _likeliest_half(self, group: list[int]) -> list[int]:
        """The first units of a group with half of its probability; at least one, and not all of several."""
        weights = [self.weights[unit] for unit in group]
        reached = accumulate(weights)
        fits = sum(1 for weight in reached if weight <= sum(weights) / 2)
        return group[: max(min(fits, len(group) - 1), 1)]

    def _alone(self, pool: Subset) -> Subset | None:
        """The likeliest that passes alone, each asked about."""
        order = self._likeliest_first(pool.difference(*self._failed()))[:_MOST_SINGLES]
        return next((one for unit in order if self.passes(one := frozenset({unit}))), None)

    def _together(self, pool: Subset) -> Subset:
        """Several that pass only together, of a pool that does."""

        def shows(units: Subset) -> Verdict:
            return self.verdict(units).opposite

        return make_minimal(find_culprits(self._likeliest_first(pool), shows), shows).units
