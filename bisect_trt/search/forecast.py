"""About how many questions a search has still to ask.

The search is a pure function of an oracle, so it can be run to its end on made-up answers: those of the fewest culprits
that agree with all that was heard. What it asks on the way is the estimate, whatever the algorithm, its proof included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bisect_trt.search.limit import Enough
from bisect_trt.search.oracle import Ask, Subset
from bisect_trt.search.verdict import Verdict


@dataclass(frozen=True)
class Forecast:
    """What lies ahead of a search.

    Attributes:
        left: About how many questions it has still to ask; 0 once it has its answer.
        capped: Whether it stopped counting there.
        best: The smallest set that was seen to be what is looked for.
        among: Of how many units the next one that is needed is one.
    """

    left: int
    capped: bool
    best: Subset | None
    among: int


def forecast(algorithm: Callable[[Ask], object], known: Mapping[Subset, Verdict], most: int) -> Forecast:
    """Run a search to its end on the likeliest answers.

    Args:
        algorithm: The search. It may be called several times and must ask the same each time.
        known: The verdicts so far, in the order in which they were given.
        most: How many questions to count at most.
    """
    ahead = _questions(algorithm, known, lambda _: Verdict.PASS, 2)
    goal = _goal(known, ahead)
    found = [units for units, verdict in known.items() if verdict is goal and min(units, default=0) >= 0]
    best = min(found, key=len, default=None)
    within = best if best is not None else frozenset().union(*ahead[:1])
    missed = [within - units for units, verdict in known.items() if verdict is not goal]
    if goal is Verdict.PASS:
        missed.append(within)  # with nothing kept it does not pass, or there would be no search
    culprits, among = _fewest_culprits(missed, len(within))
    other = Verdict.FAIL if goal is Verdict.PASS else Verdict.PASS

    def guess(units: Subset) -> Verdict:
        return goal if culprits <= units or min(units, default=0) < 0 else other

    asked = _questions(algorithm, known, guess, most + 1)
    return Forecast(min(len(asked), most), len(asked) > most, best, among)


def _goal(known: Mapping[Subset, Verdict], ahead: list[Subset]) -> Verdict:
    """The verdict of the sets that are looked for, which supersets of them have too.

    A search for what has to be kept asks first whether everything passes, and from then on about parts of that.
    """
    asked = [*known, *ahead]
    keeps = len(asked) > 1 and all(units < asked[0] for units in asked[1:])
    return Verdict.PASS if keeps and known.get(asked[0], Verdict.PASS) is Verdict.PASS else Verdict.FAIL


def _fewest_culprits(missed: list[Subset], units: int) -> tuple[Subset, int]:
    """Few units that explain why each of some sets is not enough, by greedy choice from the narrowest on.

    Args:
        missed: For each of those sets, what it lacks of one that is enough.
        units: How many that one has.

    Returns:
        The units, and of how many the last of them was chosen.
    """
    chosen: set[int] = set()
    among = units
    for lacking in sorted(filter(None, missed), key=len):
        if chosen.isdisjoint(lacking):
            chosen.add(max(lacking))  # weights come before what reads them, so this is no weight
            among = len(lacking)
    return frozenset(chosen), among


def _questions(
    algorithm: Callable[[Ask], object],
    known: Mapping[Subset, Verdict],
    guess: Callable[[Subset], Verdict],
    most: int,
) -> list[Subset]:
    """The new questions that a search asks if all of them are answered by a guess, ``most`` of them at most."""
    guessed: dict[Subset, Verdict] = {}

    def ask(units: Subset) -> Verdict:
        verdict = known.get(units) or guessed.get(units)
        if verdict is None:
            verdict = guessed[units] = guess(units)
            if len(guessed) == most:
                raise Enough
        return verdict

    with suppress(Enough):
        algorithm(ask)
    return list(guessed)
