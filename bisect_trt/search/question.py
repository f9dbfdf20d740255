"""What a search asks: about some units, about the original, or about one of them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bisect_trt.search.oracle import Ask, Subset
from bisect_trt.search.verdict import Verdict

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Units:
    """Does the candidate made of these units show the failure?"""

    units: Subset


@dataclass(frozen=True)
class Original:
    """Does the original model show it?"""


@dataclass(frozen=True)
class Again:
    """The same question once more, whatever was answered before; both answers are remembered.

    Attributes:
        question: What was asked.
        title: What the candidate is called this time; ``None`` for "..., once more".
        runs: How often the check runs at most; ``None`` for as often as for a question that is asked the first time.
        until: The answer that ends the runs.
    """

    question: Units | Original
    title: str | None = None
    runs: int | None = 1
    until: Verdict = Verdict.FAIL


Question = Units | Original | Again
Oracle = Callable[[Question], Verdict]
"""Says what a check says of the candidate that a question is about."""


@dataclass(frozen=True)
class Search(Generic[Result_co]):
    """A search: what it is after, and how it goes about it.

    Attributes:
        goal: The verdict of the sets of units that are looked for, which supersets of them mostly have too: ``FAIL`` for
            what is needed to fail, ``PASS`` for what is enough to keep.
        algorithm: A plain function of an oracle. It may be called several times and must ask the same each time.
    """

    goal: Verdict
    algorithm: Callable[[Oracle], Result_co]


def about_units(oracle: Oracle) -> Ask:
    """An oracle for algorithms that ask about sets of units only."""
    return lambda units: oracle(Units(units))


def over_units(goal: Verdict, algorithm: Callable[[Ask], Result]) -> Search[Result]:
    """A search that asks about sets of units only."""
    return Search(goal, lambda oracle: algorithm(about_units(oracle)))
