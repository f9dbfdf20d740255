"""Does a proof hold where the check may be flaky? What it rests on is asked again.

A check that shows a failure only sometimes says ``FAIL`` truly and ``PASS`` by chance. So a set that failed does fail, and
whatever was passed wrongly on the way cost questions and no more. What can be wrong is only that nothing can be left out:
that rests on a pass for each unit. A single unit needs none: that it failed is the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import nsmallest

from bisect_trt.search.delta_debugging import make_smallest, neighbours
from bisect_trt.search.oracle import (
    Again,
    Completion,
    Minimum,
    Oracle,
    Original,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.statistics import Flakiness

FLAKY = "the check is flaky: {}; --repeat 20 measures how often it fails, and searches accordingly"
_ANSWERED_BOTH = "without one of these units the model passed, and failed when asked again"
_LARGER_PASSED = "a model that holds the answer passed, and failed when asked again"
ORIGINAL_PASSED = "the original failed, and did not when asked again"
_ANSWER_PASSED = "the answer failed, and did not when asked again"

_CONTRADICTIONS = 3
"""How often models that hold the answer, and passed, are run again in all: where none of so many fails, they do pass."""
_PASSES = 5
"""So many passes without a unit, of whatever models hold the rest of the answer, are evidence; fewer are thin. Of two units,
which is what one most often looks like by chance, one more is asked for."""
_THIN = 2
"""How often a pass is run again whose evidence is thin. ``benchmarks/flaky.py`` says what these numbers hold."""
_DOUBTED = 10
"""So many more runs are shared out where as many contradictions were seen, or fewer, one for each."""


def confirm(minimum: Minimum, oracle: Transcript, complete: Completion, flakiness: Flakiness | None) -> Minimum:
    """Ask again what a proof of 1-minimality rests on.

    Args:
        minimum: What was found by leaving out units.
        oracle: The oracle, and what it said on the way.
        complete: Adds to a set what cannot be left out while the rest is in it.
        flakiness: What was measured of the original: each decisive pass is confirmed so often that the proof holds with
            the confidence asked for. ``None`` if nothing was measured: then each of them is asked again, and the original:
            a question more than the answer has units, and some more where answers contradict each other.

    Returns:
        The same with a step that says so; smaller and unproven, with the reason, where the second answer is another.
    """
    decisive = [without for without in neighbours(minimum.units, complete) if without not in minimum.refused]
    if not minimum.proven or not decisive or (flakiness is not None and not flakiness.is_steady):
        return minimum  # where the failure is known to be flaky, each pass was confirmed when it was asked for
    if flakiness is None:
        doubt = _quick_doubt(oracle, minimum.units, decisive)
    else:
        doubt = _doubt(oracle, minimum.units, decisive, flakiness)
    if isinstance(doubt, str):
        return replace(minimum, proven=False, why=FLAKY.format(doubt))
    if doubt is not None:
        smaller = make_smallest(doubt, about_units(oracle), complete)
        proven = len(smaller.units) == 1
        return replace(smaller, proven=proven, why=FLAKY.format(_ANSWERED_BOTH), steps=minimum.steps)
    if flakiness is None:
        return minimum
    failures, passes = flakiness.confirmations(len(decisive))
    step = (
        f"what the proof rests on was run again ({failures} more failures of the answer, {passes} more passes of each of "
        f"{len(decisive)} parts of it), so it holds with {flakiness.confidence:.0%} confidence"
    )
    return replace(minimum, steps=(*minimum.steps, step))


def confirm_enough(minimum: Minimum, oracle: Oracle, flakiness: Flakiness) -> Minimum:
    """The same for what is enough to keep: the failures prove that nothing less is, and the answer's pass is asked again."""
    if not minimum.proven or not flakiness.is_steady:
        return minimum
    failures, passes = flakiness.confirmations(1)
    if passes and oracle(Again(Units(minimum.units), runs=passes)) is not Verdict.PASS:
        return replace(minimum, proven=False, why=FLAKY.format("the answer passed, and did not when asked again"))
    nothing = Again(Units(frozenset()), runs=failures, until=Verdict.PASS)
    if failures and oracle(nothing) is not Verdict.FAIL:
        return replace(
            minimum, proven=False, why=FLAKY.format("with nothing kept it failed, and did not when asked again")
        )
    return minimum


def _quick_doubt(oracle: Transcript, answer: Subset, decisive: Sequence[Subset]) -> Subset | str | None:
    """A part of the answer that fails after all, or what else disagrees; ``None`` if nothing does.

    What passed although it holds what failed is a contradiction: either the failure is not monotone, or it comes and goes.
    To see one costs nothing, and a search among answers that are by chance seldom ends without.
    """
    larger = [Units(units) for units in oracle.passed if units >= answer]
    least = nsmallest(_CONTRADICTIONS, larger, key=lambda question: (len(question), sorted(question.units)))
    for number, question in enumerate(least):
        runs = max(_CONTRADICTIONS - len(larger), 0) + 1 if number == 0 else 1
        if oracle(Again(question, runs=runs)) is Verdict.FAIL:
            return _LARGER_PASSED
    doubted = 1 + min(len(larger), _DOUBTED) // len(decisive)
    for part in decisive:
        seen = sum(part <= units and not units >= answer for units in oracle.passed)
        thin = seen < _PASSES + (len(decisive) == 2)
        if oracle(Again(Units(part), runs=max(doubted, _THIN if thin else 1))) is Verdict.FAIL:
            return part
    return None if oracle(Again(Original())) is Verdict.FAIL else ORIGINAL_PASSED


def _doubt(oracle: Oracle, answer: Subset, decisive: Sequence[Subset], flakiness: Flakiness) -> Subset | str | None:
    """The same with as many runs as the proof takes."""
    failures, passes = flakiness.confirmations(len(decisive))

    for part in decisive if passes else ():
        if oracle(Again(Units(part), runs=passes)) is Verdict.FAIL:
            return part
    if failures and oracle(Again(Units(answer), runs=failures, until=Verdict.PASS)) is not Verdict.FAIL:
        return _ANSWER_PASSED
    return None
