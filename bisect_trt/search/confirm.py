"""Does a proof hold where the check may be flaky? The search itself is evidence; what it leaves open is asked again.

A check that shows a failure only sometimes says ``FAIL`` truly and ``PASS`` by chance. So a set that failed does fail, and
wrong passes during the search cost questions only. Only the minimality can be wrong:
that rests on a pass for each unit. A single unit needs none: that it failed is the proof.

Every set that failed, and that holds the answer, speaks against such a check, and so does every set that passed without one
of its units. Which unit looks needed by chance may be any of all there are, so that counts against the proof
(:func:`bisect_trt.search.statistics.luck`). What is then missing is asked: the answer once more, which has to fail and counts for
all its units at once, or it without one unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import combinations

from bisect_trt.search.oracle import (
    Again,
    Completion,
    Minimum,
    Oracle,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.statistics import Flakiness, confirmations
from bisect_trt.search.strategy import make_minimal, neighbours

FLAKY = "the check is flaky: {}; --repeat 20 measures how often it fails, and searches accordingly"
ORIGINAL_PASSED = "the original failed, and did not when asked again"
_ANSWERED_BOTH = "without one of these units the model passed, and failed when asked again"
_LARGER_PASSED = "a model that holds the answer passed, and failed when asked again"
_ANSWER_PASSED = "the answer failed, and did not when asked again"

_CONTRADICTIONS = 3
"""Number of runs, in all, of passing models that hold the answer: if none fails, they do pass."""
_ALLOWED = 0.024
"""Probability, where nothing was measured, that a unit looks needed by chance. ``benchmarks/flaky.py`` says what that
holds: it counts each way in which chance could have led to the answer, most of which a search does not come by."""
_CONTRADICTED = 0.01
"""That probability where answers contradict each other, so that earlier answers are no evidence."""
_FEW = range(3, 7)
"""Sizes of answers of which each pair is left out too, in 3 to 15 questions. A pair of two units is the whole answer."""


def confirm(minimum: Minimum, oracle: Transcript, complete: Completion, flakiness: Flakiness | None) -> Minimum:
    """Hold a proof of 1-minimality against all that was heard, and ask what is missing.

    Where a model that holds the answer passes, also when it is asked again, failures are not monotone; then a few units are
    left out two at a time as well.

    Args:
        minimum: What was found by leaving out units.
        oracle: The oracle, and its answers so far.
        complete: Adds to a set what cannot be left out while the rest is in it.
        flakiness: What was measured of the original: the proof is to hold with the confidence asked for. ``None`` if nothing was.

    Returns:
        The same; smaller where a pair could be left out; unproven, with the reason, where a second answer is another.
    """
    if not minimum.proven or len(minimum.units) == 1:
        return minimum
    steady = flakiness is None or flakiness.is_steady
    larger = [Units(units) for units in oracle.heard(Verdict.PASS) if units >= minimum.units]
    least = nsmallest(_CONTRADICTIONS, larger, key=lambda question: (len(question), sorted(question.units)))
    for number, question in enumerate(least if steady else ()):
        runs = max(_CONTRADICTIONS - len(larger), 0) + 1 if number == 0 else 1
        if oracle(Again(question, runs=runs)) is Verdict.FAIL:
            return _unproven(minimum, _LARGER_PASSED)
    if larger:
        minimum = _without_pairs(minimum, oracle, complete)
    decisive = [without for without in neighbours(minimum.units, complete) if without not in minimum.refused]
    if not steady or not decisive:
        return minimum  # where the failure is known to be flaky, each pass was confirmed when it was asked for
    measured = flakiness or Flakiness()
    failures, passes = _evidence(minimum.units, decisive, oracle, measured)
    allowed = (1 - flakiness.confidence) if flakiness is not None else _ALLOWED
    if larger:
        failures, passes, allowed = measured.runs, [0] * len(decisive), min(allowed, _CONTRADICTED)
    else:
        # Any of all units may look needed by chance; so many culprits are as likely as their number is small.
        every = max(map(len, oracle.heard(Verdict.FAIL)), default=len(minimum.units))
        allowed *= (len(minimum.units) - 1) / every
    return _ask_again(minimum, decisive, oracle, complete, confirmations(failures, passes, allowed))


def _evidence(
    answer: Subset, decisive: Sequence[Subset], oracle: Transcript, flakiness: Flakiness
) -> tuple[int, list[int]]:
    """Return the number of failures of sets that hold the answer, and of passes of sets without one unit, for each unit.

    The original failed too, and the answer will when it is read back, or there is no proof.
    """
    failures = sum(answer <= units for units in oracle.heard(Verdict.FAIL)) + 2 * flakiness.runs
    passed = [units for units in oracle.heard(Verdict.PASS) if not answer <= units]
    return failures, [sum(part <= units for units in passed) for part in decisive]


def _ask_again(
    minimum: Minimum, decisive: Sequence[Subset], oracle: Oracle, complete: Completion, more: tuple[int, list[int]]
) -> Minimum:
    """Run the answer, and what lacks one of its units, so often again."""
    failures, passes = more
    if failures and oracle(Again(Units(minimum.units), runs=failures, until=Verdict.PASS)) is not Verdict.FAIL:
        return _unproven(minimum, _ANSWER_PASSED)
    for part, runs in zip(decisive, passes, strict=True):
        if runs and oracle(Again(Units(part), runs=runs)) is Verdict.FAIL:
            smaller = make_minimal(part, about_units(oracle), complete)
            return replace(_unproven(smaller, _ANSWERED_BOTH), proven=len(smaller.units) == 1, steps=minimum.steps)
    if not failures + sum(passes):
        return minimum
    step = f"the answer was run {failures} times more, parts of it that passed {sum(passes)} times: the same verdicts"
    return replace(minimum, steps=(*minimum.steps, step))


def _unproven(minimum: Minimum, why: str) -> Minimum:
    return replace(minimum, proven=False, why=FLAKY.format(why))


def _without_pairs(minimum: Minimum, oracle: Oracle, complete: Completion) -> Minimum:
    """Return the answer, without two units where two of few can be left out together.

    1-minimal is not smallest: where two units do harm only together, or undo each other, neither can be left out alone.
    """
    ask = about_units(oracle)
    while len(minimum.units) in _FEW:
        tried = {minimum.units, *neighbours(minimum.units, complete)}
        pairs = {complete(minimum.units.difference(pair)) for pair in combinations(minimum.units, 2)}
        failing = next((each for each in sorted(pairs - tried, key=sorted) if each and ask(each) is Verdict.FAIL), None)
        if failing is None:
            return replace(minimum, pairs=True, steps=(*minimum.steps, "no two of them can be left out together"))
        minimum = replace(make_minimal(failing, ask, complete), steps=minimum.steps)
    return minimum


def confirm_enough(minimum: Minimum, oracle: Oracle, flakiness: Flakiness) -> Minimum:
    """Confirm a set that is enough to keep: failures prove that it is minimal, and its pass is asked again."""
    if not minimum.proven or not flakiness.is_steady:
        return minimum
    failures, (passes,) = confirmations(flakiness.runs, [1], 1 - flakiness.confidence)
    if passes and oracle(Again(Units(minimum.units), runs=passes)) is not Verdict.PASS:
        return _unproven(minimum, "the answer passed, and did not when asked again")
    nothing = Again(Units(frozenset()), runs=failures, until=Verdict.PASS)
    if failures and oracle(nothing) is not Verdict.FAIL:
        return _unproven(minimum, "with nothing kept it failed, and did not when asked again")
    return minimum
