"""After an answer: does the rest of the model fail too?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bisect_trt.commands.session import Case, Session
from bisect_trt.errors import ConflictError
from bisect_trt.options.choices import Mode
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import reconfirm
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Verdict

MOST_FAILURES = 10
"""Failing sets that are searched for at most."""

Delivery = Callable[[Case, int], dict[str, Any]]
"""Writes another answer, given its number from 2 on; returns its entry in ``failures``."""


def check_finds_all(session: Session) -> None:
    """Refuse ``--all`` at a prompt.

    Raises:
        UsageError: The user would be asked about one failure after the other.
    """
    if isinstance(session.prober.runner.check, PromptCheck):
        raise ConflictError(
            "--all asks about each failure, which is too much to answer at a prompt; give a --check command."
        )


def look_for_others(
    session: Session,
    case: Case,
    deliver: Delivery | None = None,
    mode: Mode = Mode.AUTO,
) -> None:
    """Probe the model without an answer; if it fails and all failures are wanted, search the rest.

    Args:
        session: The answer is in its result; ``failures`` and ``more_failures`` are added.
        case: The answer.
        deliver: Writes the next answer; ``None`` to find out only whether there is one.
        mode: How to search.

    Raises:
        BudgetSpent: No more probes may be made, and all failures are wanted; those found so far are in the result.
    """
    console, result = session.console, session.result
    if deliver is None and isinstance(session.prober.runner.check, PromptCheck):
        return
    first = {"culprits": result.culprits, "minimality": result.minimality, "why": result.why}
    failures = [first | {"reduced": result.artifacts["reduced"]}]
    result.extra |= {"failures": failures, "more_failures": None}
    taken = searched_of(session, case.minimum.units)
    try:
        while rest := failing_rest(session, case, taken, sure=deliver is not None):
            if deliver is None or len(failures) == MOST_FAILURES:
                more = "At least one more: without these nodes the rest of the model still fails (--all finds each)."
                console.answer(more if deliver is None else f"The rest still fails: more than these {MOST_FAILURES}.")
                return
            console.step(f"The rest of the model fails too: failure {len(failures) + 1}")
            other = search_rest(session, case, rest, mode)
            if other is None:
                return
            failures.append(deliver(other, len(failures) + 1))
            taken |= searched_of(session, other.minimum.units)
    except BudgetSpent:
        if deliver is not None:
            raise
    if deliver is not None and result.extra["more_failures"] is False:
        console.answer(f"That is all: {len(failures)} found, and the rest of the model does not fail.")


def searched_of(session: Session, units: Subset) -> Subset:
    """Return the units that a search walks; those that make weights where there are no others, for then they are guilty."""
    return units.intersection(session.subject.units.searched) or units


def failing_rest(session: Session, case: Case, taken: Subset, *, sure: bool) -> Sequence[int]:
    """The units that can be cut without any of those that are taken, where they fail; none where they do not.

    ``more_failures`` in the result is filled in: ``None`` if the rest breaks in another way. A pass is confirmed by more
    probes where it has to be ``sure``.
    """
    subject, extra = session.subject, session.result.extra
    rest = [unit for unit in subject.units.searched if taken.isdisjoint(subject.units.with_weights({unit}))]
    extra["more_failures"] = None if rest else False
    if not rest:
        return ()
    candidate = subject.cut(subject.units.with_weights(rest), held=case.held)
    candidate = replace(candidate, title=f"the rest: {candidate.title}")
    record = session.prober.probe(candidate)
    if sure and record.verdict is Verdict.PASS:
        record = reconfirm(session.prober, subject.original, candidate).record
    check, outcome = session.prober.runner.check, session.outcome(record)
    builds = isinstance(check, BuiltinCheck) and check.target.build_only
    if sure and builds and record.verdict is Verdict.UNRESOLVED and outcome.ending is Ending.BROKEN:
        session.console.say("  it cannot be built for another reason, which is searched for now")
        session.prober.ledger.follow(outcome)
        record = session.prober.probe(candidate)
    if record.verdict is not Verdict.UNRESOLVED:
        extra["more_failures"] = record.verdict is Verdict.FAIL
    return rest if record.verdict is Verdict.FAIL else ()


def search_rest(session: Session, case: Case, rest: Sequence[int], mode: Mode) -> Case | None:
    """The fewest units of the rest that fail, with the target held if the answer was; ``None`` if it fails no more."""
    subject = session.subject
    # No failure is among the first units of the rest alone, as far as they are within something that passed.
    passed = (identity.units for identity in session.prober.ledger.passed)
    within = (next((place for place, unit in enumerate(rest) if unit not in units), 0) for units in passed)
    passing = max(within, default=0)

    def search(oracle: Oracle) -> Minimum:
        return session.minimise(oracle, mode, searched=rest, passing=passing)

    minimum = session.prober.search(search, lambda units: subject.cut(units, held=case.held), subject.original)
    if not minimum.units:  # it failed once, and did not when it was asked again
        session.result.extra["more_failures"] = None
        return None
    for step in minimum.steps:
        session.console.say(f"  {step}")
    return Case(session.doubted(minimum), case.held)
