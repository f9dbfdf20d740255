"""Questions and answers of a search, their number, and their limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import TypeVar

from msgspec import Struct, structs


class Verdict(str, Enum):
    """The verdict of a probe.

    Three values, never a bool: a candidate that broke in another way proves nothing.
    """

    FAIL = "FAIL"
    """It shows the failure that is being looked for."""
    PASS = "PASS"
    """It does not."""
    UNRESOLVED = "UNRESOLVED"
    """It broke in some other way, so it says nothing."""

    @property
    def opposite(self) -> Verdict:
        """Return the verdict for a search for a passing set."""
        return {Verdict.PASS: Verdict.FAIL, Verdict.FAIL: Verdict.PASS}.get(self, self)


class Mode(str, Enum):
    """Search modes."""

    AUTO = "auto"
    """Bisection; delta debugging once most candidates break in other ways."""
    BISECT = "bisect"
    """Bisection only."""
    LINEAR = "linear"
    """One unit at a time."""
    DDMIN = "ddmin"
    """Delta debugging only."""


Result = TypeVar("Result")
Subset = frozenset[int]
"""Some of the units, by number."""


class Units(Struct, frozen=True):
    """Does the candidate made of these units show the failure?"""

    units: Subset


class Original(Struct, frozen=True):
    """Does the original model show it?"""


class Again(Struct, frozen=True):
    """A repeated question, asked again despite an earlier answer; both answers are remembered.

    Attributes:
        question: What was asked.
        title: What the candidate is called this time; ``None`` for "..., once more".
        runs: How often the check runs at most; ``None`` for as often as the original was run, and
            to fail each time if that did; where that did not, for as often as for a question that
            is asked the first time.
        until: The answer that ends the runs, if their number is given.
    """

    question: Units | Original
    title: str | None = None
    runs: int | None = 1
    until: Verdict = Verdict.FAIL


Question = Units | Original | Again
Oracle = Callable[[Question], Verdict]
"""Says what a check says of the candidate that a question is about."""

Search = Callable[[Oracle], Result]
"""A search: a plain function of an oracle. It may be called several times and must ask the same
each time."""


class Transcript(Struct):
    """An ``Oracle`` that remembers which units passed and which failed: evidence that costs no probe.

    Attributes:
        oracle: The one to pass questions to.
    """

    oracle: Oracle
    _heard: dict[Units, Verdict] = {}

    def heard(self, verdict: Verdict) -> Iterator[Subset]:
        """The sets of units with a verdict, in the order in which they were first asked about."""
        return (question.units for question, answer in self._heard.items() if answer is verdict)

    def __contains__(self, question: Units) -> bool:
        return question in self._heard

    def __call__(self, question: Question) -> Verdict:
        """Ask, and remember."""
        verdict = self.oracle(question)
        if isinstance(question, Units):
            self._heard[question] = verdict
        return verdict


def about_units(oracle: Oracle) -> Ask:
    """An oracle for algorithms that ask about sets of units only."""
    return lambda units: oracle(Units(units))


def over_units(algorithm: Callable[[Ask], Result]) -> Search[Result]:
    """A search that asks about sets of units only."""
    return lambda oracle: algorithm(about_units(oracle))


Ask = Callable[[Subset], Verdict]
"""Says whether the candidate made of these units shows the failure."""

Completion = Callable[[Subset], Subset]
"""Adds to a set of units what they cannot do without. ``frozenset`` adds nothing."""


Note = Enum(
    "Note",
    "ORIGINAL_PASSED LARGER_PASSED ANSWER_PASSED ANSWERED_BOTH KEPT_FAILED NOTHING_PASSED "
    "RANDOM BROKEN NOT_NEEDED STOPPED LOWERED_BROKEN ONE_END FOLLOWED READ_BACK "
    "READ_BACK_PASSED READ_BACK_RARER AKIN NOT_PROBED IDENTITY "
    "NONE_PASSED RATE PRINTED NO_FIX ENDED ADDS_UP OTHER_STEPS EARLIER_RUN BISECTED REDUCED "
    "REDUCED_BROKEN REDUCED_KEPT PROVED PROVED_KEPT SUSPECTED LOWERED REPEATED",
)
"""Steps of a search, and remarks on its answer; ``report/proofs.py`` has the sentences, with the figures of each."""


class Remark(Struct, frozen=True):
    """A note with its figures: numbers, titles and messages."""

    note: Note
    figures: tuple[float | str, ...] = ()


class Minimum(Struct, frozen=True):
    """The result of a search.

    Attributes:
        units: A set of units that shows the failure.
        proven: Whether each single unit was left out and the rest did not show it.
        remark: The reason for a missing proof, or another remark.
        steps: What the search did.
        refused: The sets with one unit less that broke in another way.
        rest_passes: Whether a set passed that contains every unit outside the answer.
    """

    units: Subset
    proven: bool
    remark: Remark | None = None
    steps: tuple[Remark, ...] = ()
    refused: tuple[Subset, ...] = ()
    rest_passes: bool = False

    def unproven(self, note: Note, *figures: float | str) -> Minimum:
        """Return the same without a proof, with the reason."""
        return structs.replace(self, proven=False, remark=Remark(note, figures))


class Tally(Struct):
    """An ``Ask`` that remembers how often it heard each verdict, so that a search can change its mind.

    Attributes:
        ask: The one to pass questions to.
    """

    ask: Ask
    questions: int = 0
    unresolved: int = 0

    def __call__(self, units: Subset) -> Verdict:
        """Ask, and count."""
        verdict = self.ask(units)
        self.questions += 1
        self.unresolved += verdict is Verdict.UNRESOLVED
        return verdict

    @property
    def mostly_unresolved(self) -> bool:
        """Whether most candidates break in other ways, so that what is asked should stay close to what fails."""
        return self.unresolved >= 8 and 2 * self.unresolved > self.questions


class Enough(Exception):  # noqa: N818 - how a search that costs too much ends
    """It has asked as much as it may."""


class Limited(Struct):
    """An ``Ask`` that ends the search after a number of questions.

    Attributes:
        ask: The one to pass questions to.
        best: The smallest set that is known to meet the ``goal``.
        left: The number of questions, if that is limited.
    """

    ask: Ask
    best: Subset
    left: int | None
    goal: Verdict = Verdict.PASS

    def __call__(self, units: Subset) -> Verdict:
        """Ask.

        Raises:
            Enough: No more questions may be asked.
        """
        if self.left is not None:
            if self.left <= 0:
                raise Enough
            self.left -= 1
        verdict = self.ask(units)
        if verdict is self.goal and len(units) < len(self.best):
            self.best = units
        return verdict
