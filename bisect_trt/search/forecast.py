"""About how many questions a search has still to ask.

The search is a pure function of an oracle, so it can be run to its end on made-up answers: those of the fewest culprits
that agree with all that was heard. What it asks on the way is the estimate, whatever the algorithm, its proof included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from bisect_trt.search.oracle import Again, Enough, Question, Search, Subset, Units, Verdict


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


def forecast(search: Search[object], known: Mapping[Question, Verdict], most: int) -> Forecast:
    """Run a search to its end on the likeliest answers.

    Args:
        search: The search.
        known: The verdicts so far, in the order in which they were given.
        most: How many questions to count at most.
    """
    goal = search.goal
    heard = {question.units: verdict for question, verdict in known.items() if isinstance(question, Units)}
    best = smallest_seen(search, known)
    within = best if best is not None else _first_asked(search, known)
    missed = [within - units for units, verdict in heard.items() if verdict is not goal]
    if goal is Verdict.PASS:
        missed.append(within)  # with nothing kept it does not pass, or there would be no search
    culprits, among = _fewest_culprits(missed, len(within))
    other = Verdict.FAIL if goal is Verdict.PASS else Verdict.PASS

    def guess(question: Question) -> Verdict:
        if isinstance(question, Again):
            return known.get(question.question) or guess(question.question)
        return other if isinstance(question, Units) and not culprits <= question.units else goal

    asked = _questions(search, known, guess, most + 1)
    return Forecast(min(len(asked), most), len(asked) > most, best, among)


def smallest_seen(search: Search[object], known: Mapping[Question, Verdict]) -> Subset | None:
    """The smallest set of units whose verdict was what a search looks for, if any was."""
    found = (
        question.units for question, verdict in known.items() if verdict is search.goal and isinstance(question, Units)
    )
    return min(found, key=len, default=None)


def _first_asked(search: Search[object], known: Mapping[Question, Verdict]) -> Subset:
    """The first set of units that a search asks about from here on; empty if it asks about none."""
    for question in _questions(search, known, lambda _: search.goal, 2):
        if isinstance(question, Units):
            return question.units
    return frozenset()


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
    search: Search[object], known: Mapping[Question, Verdict], guess: Callable[[Question], Verdict], most: int
) -> list[Question]:
    """The new questions that a search asks if all of them are answered by a guess, ``most`` of them at most."""
    guessed: dict[Question, Verdict] = {}

    def oracle(question: Question) -> Verdict:
        verdict = known.get(question) or guessed.get(question)
        if verdict is None:
            verdict = guessed[question] = guess(question)
            if len(guessed) == most:
                raise Enough
        return verdict

    with suppress(Enough):
        search.algorithm(oracle)
    return list(guessed)
