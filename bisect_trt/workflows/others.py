"""After an answer: does the rest of the model fail too?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Mode
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.luck import look_again
from bisect_trt.probing.prompt import PromptCheck
from bisect_trt.search.oracle import Minimum, Question, Search, Subset, Units, Verdict
from bisect_trt.workflows.investigation import Case, Investigation
from bisect_trt.workflows.minimal_case import may_choose_precision
from bisect_trt.workflows.subject import Subject

MOST_FAILURES = 10
"""So many failing sets are looked for at most."""

Delivery = Callable[[Case, int], dict[str, Any]]
"""Delivers another answer, given its number from 2 on; what the result says of it."""


@dataclass(frozen=True)
class Other:
    """Another failure that was delivered already.

    Attributes:
        units: Its units.
        said: What the result says of it.
    """

    units: Subset
    said: dict[str, Any]


def check_finds_all(investigation: Investigation) -> None:
    """Make sure that nobody is asked at a prompt for one failure after the other.

    Raises:
        UsageError: Somebody would be.
    """
    if isinstance(investigation.prober.runner.check, PromptCheck):
        raise UsageError(
            "--all asks about each failure, which is too much to answer at a prompt; give a --check command."
        )


def look_for_others(
    investigation: Investigation,
    case: Case,
    deliver: Delivery | None = None,
    mode: Mode = Mode.AUTO,
    also: Sequence[Other] = (),
) -> None:
    """Probe what is left of the model without an answer; if it fails and all failures are wanted, search that.

    Args:
        investigation: The answer is in its result; what is found here goes there too.
        case: The answer.
        deliver: Delivers the next answer, and says of it what the result does; ``None`` to see only whether there is one.
        mode: How to search.
        also: Other failures that are known.

    Raises:
        BudgetSpent: No more probes may be made, and all failures are wanted; those found so far are in the result.
    """
    console, result, prober = investigation.console, investigation.result, investigation.prober
    if deliver is None and isinstance(prober.runner.check, PromptCheck):
        return
    first = {"culprits": result.culprits, "minimality": result.minimality, "why": result.why}
    fault = {"fault": result.extra["fault"]} if also else {}
    failures = [{**first, "reduced": result.artifacts["reduced"], **fault}, *(other.said for other in also)]
    result.extra |= {"failures": failures, "more_failures": None}
    taken = case.minimum.units.union(*(other.units for other in also))
    try:
        all_wanted = deliver is not None
        while _fails(investigation, case, rest := _rest(investigation.subject, taken), sure=all_wanted):
            if deliver is None:
                console.answer(
                    "At least one more: without these nodes the rest of the model still fails (--all finds each)."
                )
                return
            if len(failures) == MOST_FAILURES:
                console.answer(f"The rest still fails: there are more than these {MOST_FAILURES}.")
                return
            console.step(f"The rest of the model fails too: failure {len(failures) + 1}")
            other = _search(investigation, case, rest, mode)
            if other is None:
                return
            failures.append(deliver(other, len(failures) + 1))
            taken |= other.minimum.units
    except BudgetSpent:
        if deliver is not None:
            raise
    if deliver is not None and result.extra["more_failures"] is False:
        console.answer(f"That is all: {len(failures)} found, and the rest of the model does not fail.")


def next_failure(investigation: Investigation, case: Case, taken: Subset, most: int | None = None) -> Case | None:
    """The next failure, of the rest of the model without some units; ``None`` where that does not fail.

    Args:
        investigation: The result is told whether the rest fails.
        case: The first answer.
        taken: The units.
        most: So many questions are asked at most; the smallest that failed is the answer then.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    rest = _rest(investigation.subject, taken)
    if not _fails(investigation, case, rest):
        return None
    investigation.console.say("  no, the rest of the model fails too")
    return _search(investigation, case, rest, Mode.AUTO, most)


def asked_next(investigation: Investigation) -> Callable[[Minimum], Question | None]:
    """What :func:`look_for_others` asks first of an answer that a search has found, unless the answer may be held."""
    check = investigation.prober.runner.check
    if isinstance(check, BuiltinCheck) and may_choose_precision(check.target):
        return lambda _: None
    known: dict[Subset, Question | None] = {frozenset(): None}

    def asked(minimum: Minimum) -> Question | None:
        if minimum.units not in known:
            rest = _rest(investigation.subject, minimum.units)
            known[minimum.units] = Units(investigation.subject.units.with_weights(rest)) if rest else None
        return known[minimum.units]

    return asked


def _rest(subject: Subject, taken: Subset) -> list[int]:
    """The units that can be cut without any of those that are taken."""
    units = subject.units
    searched = taken.intersection(units.searched)
    return [unit for unit in units.searched if searched.isdisjoint(units.with_weights({unit}))]


def without(subject: Subject, taken: Subset, *, held: bool = False) -> Candidate | None:
    """The candidate that :func:`look_for_others` asks about first; ``None`` where nothing is left."""
    rest = _rest(subject, taken)
    return _cut(subject, rest, held=held) if rest else None


def _cut(subject: Subject, rest: Sequence[int], *, held: bool) -> Candidate:
    candidate = subject.cut(subject.units.with_weights(rest), held=held)
    return replace(candidate, title=f"the rest: {candidate.title}")


def _fails(investigation: Investigation, case: Case, rest: Sequence[int], *, sure: bool = False) -> bool:
    """Probe the rest, and put into the result whether it fails; ``None`` there if it breaks in another way.

    That it passes has to be ``sure`` where it is said that this is all.
    """
    subject, extra = investigation.subject, investigation.result.extra
    extra["more_failures"] = None
    if not rest:
        extra["more_failures"] = False
        return False
    candidate = _cut(subject, rest, held=case.held)
    record = investigation.prober.probe(candidate)
    if sure and record.verdict is Verdict.PASS:
        record = look_again(investigation.prober, subject.original, candidate).record
    if record.verdict is not Verdict.UNRESOLVED:
        extra["more_failures"] = record.verdict is Verdict.FAIL
    return record.verdict is Verdict.FAIL


def _search(
    investigation: Investigation, case: Case, rest: Sequence[int], mode: Mode, most: int | None = None
) -> Case | None:
    """The fewest units of the rest that fail, with the target held if the answer was; ``None`` if it fails no more."""
    subject = investigation.subject
    passing = _passing(investigation, rest)
    search = Search(
        Verdict.FAIL, lambda oracle: investigation.minimise(oracle, mode, searched=rest, passing=passing, most=most)
    )
    minimum = investigation.prober.search(
        search, lambda units: subject.cut(units, held=case.held), investigation.subject.original
    )
    if not minimum.units:  # it failed once, and did not when it was asked about again
        investigation.result.extra["more_failures"] = None
        return None
    for step in minimum.steps:
        investigation.console.say(f"  {step}")
    return Case(investigation.doubted(minimum), case.held)


def _passing(investigation: Investigation, rest: Sequence[int]) -> int:
    """How many of the first units of the rest are within something that passed: no failure is among those alone."""
    passed = (identity.units for identity in investigation.prober.ledger.passed if not identity.marks)
    within = (next((place for place, unit in enumerate(rest) if unit not in units), 0) for units in passed)
    return max(within, default=0)
