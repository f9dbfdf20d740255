"""Checks whether a proof of 1-minimality holds if the check is flaky, and asks again what the search leaves open.

A check that shows a failure only sometimes fails truly and passes by chance. A set that failed
therefore fails; wrong passes during the search cost questions and nothing else. Only the claim that
no unit can be left out may be wrong, because it rests on a pass for each unit. A single unit needs
no pass: it failed alone.

Each set that failed and contains the answer is evidence against a flaky check, and so is each set
that passed without one of the answer's units. By chance any unit of the model may look needed, so
the required evidence grows with their number (:func:`bisect_trt.search.statistics.luck`). Missing
evidence is collected with the fewest questions:

- all units but one of the answer. This question also shows that the rest of the model does not fail, which is otherwise
  a question of its own;
- the answer again, which has to fail and counts for all of its units; or the answer without one unit again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest

from msgspec import Struct, structs

from bisect_trt.search.oracle import (
    Again,
    Completion,
    Minimum,
    Note,
    Oracle,
    Remark,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.statistics import Flakiness, confirmations, luck_by_size
from bisect_trt.search.strategy import make_minimal, neighbours

READ_BACK = "the result, read back"
_CONTRADICTIONS = 3
"""Number of runs, in all, of passing models that hold the answer: if none fails, they do pass."""


class Doubt(Struct, frozen=True):
    """Evidence required of a check without a measured failure rate.

    Attributes:
        likelihood: The largest likelihood of a flaky check for one unit of the model. At any rate,
            wrong proofs of two units are at most half of this: a steady check has one transcript
            for each pair, and either unit may be the only culprit.
        each: Each unit of answers of up to so many is left out of a large model too: a failure that
            shows more rarely in smaller models makes units look needed there.
    """

    likelihood: float
    each: int


COMPARISON = Doubt(likelihood=0.016, each=3)
"""Two runtimes are compared on the same values, which seldom comes and goes."""
USER_CODE = Doubt(likelihood=0.004, each=5)
"""Nothing is known of a user's code. ``benchmarks/flaky.py`` measures wrong proofs of any size."""
_LIKELY = 0.01
_FURTHER = 6
"""A unit of a larger answer is left out of the whole model too if such a failure makes it look
needed with this likelihood; each further unit would be another coincidence, and multiplies this."""
_CONTRADICTED = 0.01
"""The largest likelihood of a flaky check where answers contradict each other, so that earlier answers are no evidence."""


def _is_flaky(larger: Sequence[Subset], oracle: Transcript) -> bool:
    """Return whether a set that contains the answer and passed fails when it is asked about again.

    It contradicts that more units never hurt. Asking the smallest ones again tells a flaky check
    from failures that are not monotone.
    """
    smallest = nsmallest(_CONTRADICTIONS, larger, key=lambda units: (len(units), sorted(units)))
    for number, units in enumerate(smallest):
        runs = max(_CONTRADICTIONS - len(larger), 0) + 1 if number == 0 else 1
        if oracle(Again(Units(units), runs=runs)) is Verdict.FAIL:
            return True
    return False


def confirm(
    minimum: Minimum,
    oracle: Transcript,
    complete: Completion,
    flakiness: Flakiness | None,
    without: Callable[[Subset], Subset] | None = None,
    doubt: Doubt = COMPARISON,
) -> Minimum:
    """Compare a proof of 1-minimality with all verdicts of the search, and ask for the missing evidence.

    Args:
        minimum: The answer, found by leaving out units.
        oracle: The oracle with its verdicts so far.
        complete: Adds to a set what cannot be left out while the rest is in it.
        flakiness: The measured failure rate of the original, with the confidence to reach; ``None``
            if it was not measured.
        without: Returns all units of the model that can be kept without some; ``None`` if that is
            no candidate.
        doubt: How much the check is doubted where ``flakiness`` is ``None``.

    Returns:
        The same answer; unproven, with the reason, where a second verdict differs.
    """
    minimum = _resolve(minimum, oracle, without)
    if not minimum.proven or len(minimum.units) == 1:
        return minimum
    measured = flakiness or Flakiness()
    if not measured.is_steady:
        # Each pass of a failure that is known to be flaky was confirmed when it was asked for.
        return minimum
    larger = [units for units in oracle.heard(Verdict.PASS) if units >= minimum.units]
    if _is_flaky(larger, oracle):
        return minimum.unproven(Note.LARGER_PASSED)
    decisive = [part for part in neighbours(minimum.units, complete) if part not in minimum.refused]
    if not decisive:
        return minimum
    allowed = (1 - flakiness.confidence) if flakiness is not None else doubt.likelihood
    every = max(map(len, oracle.heard(Verdict.FAIL)), default=len(minimum.units))
    contradicted = bool(larger)
    if without is not None and not larger:
        every = len(without(frozenset()))
        minimum, contradicted = _ask_rest(minimum, decisive, oracle, without, doubt.each)
    if not minimum.proven:
        return minimum
    if contradicted:
        failures = measured.runs
        passes = [0] * len(decisive)
        allowed = min(allowed, _CONTRADICTED)
    else:
        failing, passing = _evidence(minimum.units, decisive, oracle, every)
        failures = len(failing) + 2 * (measured.runs - 1)
        passes = list(map(len, passing))
        # Any unit may look needed by chance; so many culprits are as likely as their number is
        # small.
        allowed *= (len(minimum.units) - 1) / every
    further_runs = confirmations(failures, passes, allowed)
    return _ask_again(
        minimum, decisive, oracle, complete, further_runs, without if minimum.rest_passes else None
    )


def _resolve(
    minimum: Minimum, oracle: Transcript, without: Callable[[Subset], Subset] | None
) -> Minimum:
    """Look for a larger model that passes without a unit, where the answer without it breaks in another way.

    Returns:
        The answer; proven if there is one for each of these units.
    """
    unresolved: list[Subset] = []
    for part in minimum.refused:
        # A larger model that passes without the unit shows that it is needed, at no cost.
        passed = any(
            part <= units and not minimum.units <= units for units in oracle.heard(Verdict.PASS)
        )
        larger = Subset() if passed or without is None else without(minimum.units - part)
        asks = part < larger and not minimum.units <= larger
        if not passed and not (asks and oracle(Units(larger)) is Verdict.PASS):
            unresolved.append(part)
    if unresolved or not minimum.refused:
        return (
            minimum
            if not unresolved
            else structs.replace(minimum, remark=Remark(Note.BROKEN, (len(unresolved),)))
        )
    return structs.replace(minimum, proven=True, remark=None)


def read_back(minimum: Minimum, oracle: Oracle) -> Minimum:
    """Run the answer once more, as its written model is run; return it unproven if that does not fail."""
    fails = oracle(Again(Units(minimum.units), READ_BACK, runs=None)) is Verdict.FAIL
    return minimum if fails or not minimum.proven else minimum.unproven(Note.ANSWER_PASSED)


def _ask_rest(
    minimum: Minimum,
    decisive: Sequence[Subset],
    oracle: Transcript,
    without: Callable[[Subset], Subset],
    each: int,
) -> tuple[Minimum, bool]:
    """Ask about all units except the unit of the answer with the least evidence.

    Args:
        minimum: The answer.
        decisive: The answer without one unit, for each unit.
        oracle: The oracle with its verdicts so far.
        without: Returns all units of the model that can be kept without some.
        each: Each unit of answers of up to so many is left out of a large model.

    Returns:
        The answer, with ``rest_passes`` if that passes, unproven if a large model without another
        unit fails; and whether it fails although the rest of the model passes.
    """
    every = len(without(frozenset()))
    failing, passing = _evidence(minimum.units, decisive, oracle, every)
    chances = [luck_by_size(failing, sizes) for sizes in passing]
    passes = list(map(len, passing))
    weakest = decisive[passes.index(min(passes))]
    without_weakest = without(minimum.units - weakest)
    without_answer = without(minimum.units)
    if not weakest | without_answer <= without_weakest or minimum.units <= without_weakest:
        return minimum, False
    verdict = oracle(Units(without_weakest))
    if verdict is Verdict.PASS:
        likely = _LIKELY * _FURTHER ** (len(decisive) - each - 1)
        for part, chance in zip(decisive, chances, strict=True):
            larger = without(minimum.units - part)
            doubtful = chance > likely
            if len(decisive) <= each:
                doubtful = not _passed_large(part, larger, minimum.units, oracle)
            usable = doubtful and part < larger and not minimum.units <= larger
            if usable and oracle(Units(larger)) is Verdict.FAIL:
                return minimum.unproven(Note.NOT_NEEDED), False
        return structs.replace(minimum, rest_passes=True), False
    # The rest may have a failure of its own, which says nothing of the answer.
    return minimum, verdict is Verdict.FAIL and not (
        without_answer and oracle(Units(without_answer)) is Verdict.FAIL
    )


def _passed_large(part: Subset, larger: Subset, answer: Subset, oracle: Transcript) -> bool:
    """Return whether a set without a unit passed that has the other units of the answer, and half of all units."""
    passed = (
        units for units in oracle.heard(Verdict.PASS) if part <= units and not answer <= units
    )
    return any(2 * len(units) >= len(larger) for units in passed)


def _evidence(
    answer: Subset, decisive: Sequence[Subset], oracle: Transcript, every: int
) -> tuple[list[int], list[list[int]]]:
    """Return the sizes of sets that hold the answer and failed, and of sets without one unit that passed, for each unit.

    The original failed too, and the answer will when it is read back, or there is no proof.

    Args:
        answer: The answer.
        decisive: The answer without one unit, for each unit.
        oracle: The oracle with its verdicts so far.
        every: The number of units of the original.
    """
    failing = [len(units) for units in oracle.heard(Verdict.FAIL) if answer <= units]
    passing: list[list[int]] = [[] for _ in decisive]
    # One set at a time: each may take megabytes.
    for units in oracle.heard(Verdict.PASS):
        for place, part in enumerate(decisive if not answer <= units else ()):
            if part <= units:
                passing[place].append(len(units))
    return [*failing, every, len(answer)], passing


def _ask_again(
    minimum: Minimum,
    decisive: Sequence[Subset],
    oracle: Transcript,
    complete: Completion,
    further_runs: tuple[int, list[int]],
    without: Callable[[Subset], Subset] | None,
) -> Minimum:
    """Run the answer, and what lacks one of its units, so often again.

    A failure may show more rarely in smaller models, so where the rest of the model passes,
    ``without`` a unit the largest model is run, and not the smallest.
    """
    failures, passes = further_runs
    if (
        failures
        and oracle(Again(Units(minimum.units), runs=failures, until=Verdict.PASS))
        is not Verdict.FAIL
    ):
        return minimum.unproven(Note.ANSWER_PASSED)
    for part, runs in zip(decisive, passes, strict=True):
        larger = part if without is None else without(minimum.units - part)
        usable = part < larger and not minimum.units <= larger
        question = Units(larger if usable else part)
        runs_left = runs
        fails = False
        if runs and usable and question not in oracle:
            runs_left -= 1
            fails = oracle(question) is Verdict.FAIL
        if runs_left and not fails:
            fails = oracle(Again(question, runs=runs_left)) is Verdict.FAIL
        # The larger model fails without this unit and the smaller does not: nodes outside the
        # answer fail too.
        if fails and usable and oracle(Again(Units(part), runs=runs)) is not Verdict.FAIL:
            return minimum.unproven(Note.NOT_NEEDED)
        if fails:
            smaller = make_minimal(part, about_units(oracle), complete)
            return structs.replace(
                smaller.unproven(Note.ANSWERED_BOTH),
                proven=len(smaller.units) == 1,
                steps=minimum.steps,
            )
    if not failures + sum(passes):
        return minimum
    step = Remark(Note.REPEATED, (failures, sum(passes)))
    return structs.replace(minimum, steps=(*minimum.steps, step))


def confirm_enough(minimum: Minimum, oracle: Oracle, flakiness: Flakiness) -> Minimum:
    """Confirm a set that is enough to keep: failures prove that it is minimal, and its pass is asked again.

    Args:
        minimum: The set of units that is enough to keep.
        oracle: Answers questions about sets of units, and repeated ones.
        flakiness: The measured failure rate of the original, with the confidence to reach.

    Returns:
        The same set; unproven, with the reason, where a second verdict differs.
    """
    if not minimum.proven or not flakiness.is_steady:
        return minimum
    failures, (passes,) = confirmations(flakiness.runs, [1], 1 - flakiness.confidence)
    if passes and oracle(Again(Units(minimum.units), runs=passes)) is not Verdict.PASS:
        return minimum.unproven(Note.KEPT_FAILED)
    # The failure with nothing kept is what makes each unit look needed.
    nothing = Again(Units(frozenset()), runs=failures, until=Verdict.PASS)
    if failures and oracle(nothing) is not Verdict.FAIL:
        return minimum.unproven(Note.NOTHING_PASSED)
    return minimum
