"""The search for a minimal failing set: bisection, delta debugging where it learns little, and the proof of 1-minimality.

Bisection finds one needed unit after the other, each in about log2 N questions. The prefixes of any
order are nested sets, whichever way the graph branches, so the shortest failing prefix is well
defined and its last unit is needed: without it the rest of that prefix does not fail. Keep that
unit, and find the shortest prefix that fails together with it, until the kept units fail alone.
Source: QuickXplain (Junker, "QUICKXPLAIN: Preferred Explanations and Relaxations for
Over-Constrained Problems", AAAI 2004) and Zeller's "dd" with a fixed order. Delta debugging leaves
out windows of units where failures are not monotone.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from msgspec import structs

from bisect_trt.search.density import MEMBERS, Density, cold
from bisect_trt.search.groups import SKIPS, Kept, skipping
from bisect_trt.search.oracle import (
    Ask,
    Completion,
    Minimum,
    Mode,
    Note,
    Remark,
    Subset,
    Tally,
    Verdict,
)

_SMALL = 8
"""So few units are left out one by one as cheaply as in windows."""
_FEW = 16
"""Fewer lengths of a prefix are halved: it makes no difference which ones take a question less."""
_TRIED = 4
"""Number of units that are left out alone to see whether windows are worth their questions."""


def worth_counting(
    units: Subset, ask: Ask, complete: Completion = frozenset, *, lost: bool
) -> bool:
    """Whether windows may leave out what one unit after the other would be dear for.

    Unless bisection was ``lost``, units are left out alone until one can be; where none can, that
    is the proof, and nothing was asked in vain.

    Args:
        units: A set that is known to fail.
        ask: The oracle: the verdict of the candidate made of a set of units.
        complete: Adds to a set what cannot be left out while the rest is in it.
        lost: Whether most candidates of the bisection broke in other ways.
    """
    if len(units) <= _SMALL:
        return False
    smaller = (complete(units - {unit}) for unit in sorted(units, reverse=True))
    # A few units are asked about: where one can go, many may.
    tried = islice((without for without in smaller if 0 < len(without) < len(units)), _TRIED)
    return lost or any(ask(without) is Verdict.FAIL for without in tried)


_FIRST_CHANCE = 0.1
_GROWTH = 1 / (1 - math.exp(-1))


def reduce_by_counters(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Subset:
    """Leave out windows of units, smaller from round to round.

    Counter-based delta debugging, CDD (Zhang et al., "Deep Dive into Probabilistic Delta Debugging:
    Insights and Simplifications", 2024): probabilistic delta debugging amounts to a fixed schedule
    of window sizes. Each unit starts with a chance p of being needed; a round tries windows of
    about -1/ln(1-p) units, and each round raises p by 1/(1-1/e). Unlike ddmin it never goes back to
    large windows, which costs it nothing where few units are needed.

    Args:
        units: A set that is known to fail.
        ask: The oracle.
        complete: Adds to a set what its members cannot be cut from.

    Returns:
        A set that was seen to fail (or is ``units``). Not necessarily 1-minimal: follow with
        ``make_minimal``.
    """
    chosen = sorted(units)
    chance = _FIRST_CHANCE
    while len(chosen) > 1:
        # The window that leaves out most units on average: d/ds of s (1-p)**s is 0 at -1/ln(1-p).
        size = min(max(round(-1 / math.log1p(-chance)), 1), len(chosen) - 1)
        place = len(chosen)
        while place > 0 and len(chosen) > size:
            start = max(place - size, 0)
            without = complete(frozenset(chosen[:start] + chosen[place:]))
            if 0 < len(without) < len(chosen) and ask(without) is Verdict.FAIL:
                chosen = sorted(without)
            place = start
        if size == 1:
            break
        chance = min(chance * _GROWTH, 0.9)
    return frozenset(chosen)


_PATIENCE = 0.98
"""A window that could not be left out makes the next ones so much smaller; one that could makes
them twice as large."""


def reduce_by_chance(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Subset:
    """Leave out windows anywhere, of half of the units at first: for a failure that comes and goes.

    There whatever failed did fail, though what passed may fail the next time, so nothing is taken
    from a pass, and no question rests on another. For one unit among N, seen in a share r of the
    runs, about 2 log2(N) / r questions lead to it; the least there can be is log2(N) over the
    capacity of a Z-channel, log2(1 + r (1 - r)^((1 - r) / r)), which at r = 0.2 is 12% less.

    Args:
        units: A set that is known to fail.
        ask: The oracle: the verdict of the candidate made of a set of units.
        complete: Adds to a set what its members cannot be cut from.

    Returns:
        A set that was seen to fail (or is ``units``), as :func:`reduce_by_counters` does.
    """
    chosen = sorted(units)
    share = 0.5
    tried: set[Subset] = set()
    # Seeded, so that the same verdicts lead to the same questions (speculation, resuming).
    anywhere = random.Random(len(chosen))
    while share * len(chosen) >= 0.5 and len(chosen) > 1:
        size = max(round(share * len(chosen)), 1)
        start = anywhere.randrange(len(chosen))
        # Windows wrap around, so that the first and the last units are left out as often as others.
        window = (chosen + chosen)[start : start + size]
        without = complete(frozenset(chosen).difference(window))
        new = 0 < len(without) < len(chosen) and without not in tried
        tried.add(without)
        if new and ask(without) is Verdict.FAIL:
            chosen = sorted(without)
            share = min(2 * share, 0.5)
        else:
            share *= _PATIENCE
    return frozenset(chosen)


def make_minimal(units: Iterable[int], ask: Ask, complete: Completion = frozenset) -> Minimum:
    """Leave out units one at a time while the rest fails, then prove that no unit can be left out.

    A set is 1-minimal when it fails and no set with one unit less does (Zeller and Hildebrandt,
    "Simplifying and isolating failure-inducing input", TSE 2002). Nothing is assumed of sets that
    were not asked about, so the proof holds for failures that are not monotone too. A set of one
    unit needs no question.

    Args:
        units: A set that is known to fail.
        ask: The oracle.
        complete: Adds to a set what cannot be left out while the rest is in it; such units are
            never tried alone.

    Returns:
        The minimal set; unproven, with the reason, where leaving out a unit breaks the model in
        another way.
    """
    chosen = sorted(units)
    refused: dict[int, Subset] = {}
    # Needed units in a row, since the set last shrank: once it is all of them, that is the proof.
    needed = 0
    place = len(chosen) - 1
    while len(chosen) > 1 and needed < len(chosen):
        unit = chosen[place]
        without = complete(frozenset(chosen) - {unit})
        verdict = ask(without) if len(without) < len(chosen) else Verdict.PASS
        if verdict is Verdict.FAIL:
            chosen = sorted(without)
            # That a larger set broke without a unit says nothing of this one.
            refused.clear()
            needed = 0
            place = min(place, len(chosen))
        else:
            needed += 1
            if verdict is Verdict.UNRESOLVED:
                refused[unit] = without
        place = (place - 1) % len(chosen)
    return Minimum(
        frozenset(chosen),
        proven=not refused,
        remark=Remark(Note.BROKEN, (len(refused),)) if refused else None,
        refused=tuple(refused.values()),
    )


def neighbours(units: Subset, complete: Completion = frozenset) -> list[Subset]:
    """The sets with one unit less, and what cannot be without it; the first lacks the first unit.

    None is empty.
    """
    smaller = (complete(units - {unit}) for unit in sorted(units))
    return [without for without in dict.fromkeys(smaller) if without and without != units]


def _late_half(count: int) -> int:
    """Return how many of the last of so many lengths to split off, of 2 or more.

    No length takes more than ceil(log2) questions. Of those that take one less, as many as possible
    are late: of several culprits the last ends the prefix, so late lengths are likelier.
    """
    if count < _FEW:
        return count - count // 2
    half = 1 << ((count - 1).bit_length() - 1)
    return max(half // 2, count - half)


def shortest_failing_prefix(
    units: Sequence[int],
    fixed: Subset,
    ask: Ask,
    *,
    guess: int | None = None,
    passing: int = 0,
    again: Callable[[Subset, int], Verdict] | None = None,
) -> int:
    """The least n of 1 or more for which ``fixed`` with the first n of ``units`` fails, all of them being known to fail.

    Each question halves what is possible. For one culprit among N that is ceil(log2 N) questions.

    The end point has always been seen to fail (or is all of them), also where failures are not
    monotone; the length one below has been seen not to.

    Args:
        units: The order to take prefixes of.
        fixed: Units that are in every question.
        ask: The oracle.
        guess: A length that is worth asking first, and the one below it next; they narrow the rest
            down if it is wrong.
        passing: So many of the first units are known not to fail together, less than all.
        again: Asked where a length is unresolved, about a few others instead, and the number of
            other candidates it may be asked; those may have more units.
    """
    longest = len(units)
    passed = passing
    # A stack: the guess itself is asked about first, then the length below it.
    guesses = [] if guess is None else [guess - 1, guess]
    while longest - passed > 1:
        middle = guesses.pop() if guesses else longest - _late_half(longest - passed)
        if not passed < middle < longest:
            continue
        lengths = list(skipping(middle, range(passed + 1, longest)))
        for length in lengths:
            verdict = ask(fixed.union(units[:length]))
            if verdict is not Verdict.UNRESOLVED:
                middle = length
                break
        else:
            if again is not None and len(lengths) <= SKIPS:
                verdict = again(fixed.union(units[:middle]), SKIPS + 2 - len(lengths))
        if verdict is Verdict.FAIL:
            longest = middle
        else:
            passed = middle
    return longest


_CERTAIN_OF_FEW = 2
"""Common number of culprits; after each the question "is that all?" is worth asking at once."""

Pattern = Callable[[int], Subset]
"""The units that a unit belongs together with, itself included."""


def alone(unit: int) -> Subset:
    """No pattern."""
    return frozenset({unit})


def find_culprits(
    units: Sequence[int],
    ask: Ask,
    weights: Completion = frozenset,
    pattern: Pattern = alone,
    suspect: int | None = None,
    passing: int = 0,
) -> Subset:
    """Units that fail together, each needed when it was found.

    With k culprits among N, at most about k (log2(N/k) + 2) questions where failures are monotone.
    Where most candidates break in other ways it stops early, because bisection then learns nothing.

    What was found is asked about without its weights. If the first culprit does not fail alone, its
    pattern is asked about before other culprits are looked for one by one. Where a pattern fails
    and more than a few of its units are needed, most of them probably are: then it stops, because
    leaving out one at a time is cheaper.

    Args:
        units: In topological order; with their weights they are known to fail.
        ask: The oracle: the verdict of the candidate made of a set of units.
        weights: Adds the units that come along with others until the end of the search.
        pattern: The units that a unit belongs together with, tried as a whole before its parts.
        suspect: The unit that is probably the last of the shortest failing prefix.
        passing: So many of the first units, less than all, are known not to fail together.

    Returns:
        A set that was seen to fail, or is all there is: the culprits, unless it stopped early or a
            pattern fails.
    """
    state = Kept(units, ask, goal=Verdict.FAIL, complete=weights)
    guess = None if suspect is None else bisect_left(units, suspect) + 1
    # The number of first units that passed together.
    passed = passing

    def shorten(prefix: Subset, again: int = 0) -> Verdict:
        nonlocal passed
        verdict = state.leave_out(
            [unit for unit in state.units if unit not in prefix], again=again, remainder=prefix
        )
        passed = len(prefix) if verdict is Verdict.PASS else passed
        return verdict

    length = shortest_failing_prefix(
        units, frozenset(), shorten, guess=guess, passing=passing, again=shorten
    )
    first = units[length - 1]
    candidates = units[: length - 1]
    state.found(first, doubtful=passed < len(candidates))
    if (
        not candidates
        or state.lost
        or (itself := state.leave_out(frozenset(candidates), again=SKIPS)) is Verdict.FAIL
    ):
        return _bare(state, ask, weights)
    density = Density(cold(len(units)), units=len(units))
    max_needed = None
    # Everything after the shortest failing prefix is known not to be needed.
    density.cleared(len(units) - length)
    density.hit()
    density.some_left()
    dirty = itself is not Verdict.UNRESOLVED
    around = pattern(first).intersection(candidates)
    if 0 < len(around) < len(candidates) and state.shrinks_to(around | {first}):
        candidates = [unit for unit in candidates if unit in around]
        density = Density(MEMBERS)
        max_needed = _CERTAIN_OF_FEW
    state.lower(candidates[::-1], density, dirty=dirty, max_needed=max_needed)
    # Passes of a failure that comes and goes say nothing, so only failures are used from here.
    if state.astray:
        return reduce_by_chance(weights(state.units), ask, weights)
    state.settle()
    return _bare(state, ask, weights)


def _bare(state: Kept, ask: Ask, weights: Completion) -> Subset:
    """Return the kept units, without their weights if they fail without them."""
    if state.units <= state.needed and ask(state.units) is Verdict.FAIL:
        return state.units
    return weights(state.units)


def minimise(
    units: Sequence[int],
    ask: Ask,
    mode: Mode = Mode.AUTO,
    *,
    weights: Completion = frozenset,
    inseparable: Completion = frozenset,
    pattern: Pattern = alone,
    suspect: int | None = None,
    passing: int = 0,
) -> Minimum:
    """A 1-minimal failing set of units.

    Args:
        units: In topological order; with their weights they are known to fail.
        ask: The oracle.
        mode: How to search. Every mode ends with the same proof.
        weights: Adds the units that come along with others until the end of the search.
        inseparable: Adds the units that others can never be cut from.
        pattern: What a unit belongs together with, tried as a whole before its parts.
        suspect: The unit that is probably the last of the shortest failing prefix, if one is known.
        passing: So many of the first units, less than all, are known not to fail together: they are
            within a set that passed. Where failures are not monotone that may be wrong; it costs
            questions then, and no proof.
    """
    tally = Tally(ask)
    steps: list[Remark] = []
    if mode in (Mode.AUTO, Mode.BISECT):
        failing = find_culprits(units, tally, weights, pattern, suspect, passing)
        steps.append(Remark(Note.BISECTED, (len(failing), tally.questions)))
    else:
        failing = weights(frozenset(units))
    before = tally.questions
    lost = tally.mostly_unresolved
    if mode is Mode.DDMIN or (
        mode is Mode.AUTO and worth_counting(failing, tally, inseparable, lost=lost)
    ):
        # Chance is about culprits that are few and independent; unresolved answers break both.
        if mode is Mode.AUTO and not tally.unresolved:
            failing = reduce_by_chance(failing, tally, inseparable)
        failing = reduce_by_counters(failing, tally, inseparable)
        note = Note.REDUCED_BROKEN if lost else Note.REDUCED
        steps.append(Remark(note, (len(failing), tally.questions - before)))
    before = tally.questions
    # No heuristic before this line has to be right: the proof asks about each unit that is left.
    minimum = make_minimal(failing, tally, inseparable)
    steps.append(Remark(Note.PROVED, (tally.questions - before,)))
    return structs.replace(minimum, steps=tuple(steps))


def shrink_end(units: Sequence[int], ask: Ask) -> Minimum:
    """The earliest end at which the failure shows: the shortest failing prefix of units that fail together.

    Of units in reverse order that is the latest start.
    """
    failing = frozenset(units[: shortest_failing_prefix(units, frozenset(), ask)])
    return Minimum(failing, proven=True, remark=Remark(Note.ONE_END))
