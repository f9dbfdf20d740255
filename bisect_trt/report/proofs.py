"""Steps of a search, and reasons why its answer is not proven, in sentences."""

from __future__ import annotations

from msgspec import structs

from bisect_trt.probe.ledger import Record
from bisect_trt.probe.prober import Confirmation, Confirmed
from bisect_trt.report.console import Console
from bisect_trt.search.oracle import Minimum, Note, Remark

_FLAKY = "the check is flaky: {}; --repeat 20 measures how often it fails, and searches accordingly"
"""The reason where answers contradict each other."""
_FLAKY_BY = {
    Note.ORIGINAL_PASSED: "the original failed, and did not when asked again",
    Note.LARGER_PASSED: "a model that holds the answer passed, and failed when asked again",
    Note.ANSWER_PASSED: "the answer failed, and did not when asked again",
    Note.ANSWERED_BOTH: "without one of these units the model passed, and failed when asked again",
    Note.KEPT_FAILED: "the answer passed, and did not when asked again",
    Note.NOTHING_PASSED: "with nothing kept it failed, and did not when asked again",
    Note.RANDOM: "'{0}' passed, and failed when asked again",
}
"""Answers that contradict each other."""
_READ_BACK = "the final re-check disagreed: {0}"
_SENTENCES = {
    **{note: _FLAKY.format(answers) for note, answers in _FLAKY_BY.items()},
    Note.BROKEN: "without {0} of its units the model breaks in another way, which does not show that they are needed",
    Note.NOT_NEEDED: (
        "without one of these units a larger model fails: others fail together with the rest of them, or the check is flaky; "
        "--repeat 20 measures how often it fails"
    ),
    Note.STOPPED: "the search was ended after {0} questions",
    Note.LOWERED_BROKEN: (
        "with one of {0} of its units lowered the check ends in another way, which does not count as passing"
    ),
    Note.ONE_END: "only one end of the graph could move, and one unit further it was seen not to fail",
    Note.FOLLOWED: (
        "these nodes compute wrong values, and the part of the model that is refused does not fail without them"
    ),
    Note.READ_BACK: _READ_BACK,
    Note.READ_BACK_PASSED: (
        f"{_READ_BACK}; {_FLAKY.format('it failed, and passed when it was read back')}"
    ),
    Note.READ_BACK_RARER: (
        "the check is flaky: the original failed in {1} of {1} runs, the answer fails less often; "
        + _READ_BACK
    ),
    Note.AKIN: "without {1} of its units it may be the same failure: it {0}",
    Note.NOT_PROBED: "'{0}' could not be probed: {1}",
    Note.IDENTITY: "even a model of Identity nodes only does not pass, so the nodes may not be to blame{0}",
    Note.NONE_PASSED: "no probe has passed: {0}",
    Note.RATE: (
        "the failure is flaky ({0:.0%} of {1} runs); 1-minimal with {2:.1%} confidence: "
        "each of {3} passing candidates passed {4} times"
    ),
    Note.PRINTED: (
        " (the check printed '{0}' of the original, and '{1}'; --fail-regex with the message of the failure tells them apart)"
    ),
    Note.NO_FIX: "{0}",
    Note.ENDED: "the search did not come to its end",
    Note.ADDS_UP: "rounding adds up in many {0}s, and the fewest of these were not searched",
    Note.OTHER_STEPS: "it fails on other random steps",
    Note.EARLIER_RUN: "the run with the curve did not prove it",
    Note.BISECTED: "bisection of prefixes: {0} units left after {1} questions",
    Note.REDUCED: "delta debugging: {0} units left after {1} more questions",
    Note.REDUCED_BROKEN: (
        "most candidates broke in other ways, so delta debugging: {0} units left after {1} more questions"
    ),
    Note.REDUCED_KEPT: (
        "more units in fp32 do not always help, so delta debugging: {0} units left after {1} more questions"
    ),
    Note.PROVED: "proof of 1-minimality: {0} questions",
    Note.PROVED_KEPT: "proof that none of the {0} can be lowered: {1} more questions",
    Note.SUSPECTED: "the {0} most suspicious of {1} units in fp32: {2}",
    Note.LOWERED: "lowering in groups: {0} units left in fp32 after {1} questions",
    Note.REPEATED: (
        "the answer was run {0} times more, models without one of its units {1} times: the same verdicts"
    ),
}

HELD = "It fails with --hold-precision, as it does inside the whole model; alone, TensorRT may choose fp32."
UNJUDGED_WITHOUT = "Without these nodes the rest of the model cannot be judged"


def describe(*remarks: Remark | None) -> str | None:
    """Return remarks in words, one after the other; ``None`` where there is none."""
    return "".join(_SENTENCES[each.note].format(*each.figures) for each in remarks if each) or None


_CONFIRMED = {
    Confirmed.STEADY: "{0} of {0} runs pass, {1} of {1} fail without it",
    Confirmed.RATE: "{0} runs in a row pass, {1} of {2} fail without it",
    Confirmed.FAILED: "it passed, and did not when asked again: {reason}",
    Confirmed.LUCK: _FLAKY.format(
        "'{0}' failed, and did not when asked again, so that a pass may be luck"
    ),
    Confirmed.ONCE: "{reason}",
}


def describe_confirmation(believed: Confirmation) -> str:
    """Return what asking again showed, in words without a period."""
    template = _CONFIRMED[believed.ending]
    return template.format(*believed.figures, reason=believed.record.reason)


def last_record(believed: Confirmation) -> Record:
    """Return the last probe; if it may not be recommended, with what asking again showed as the reason."""
    if believed.passes:
        return believed.record
    return structs.replace(believed.record, reason=describe_confirmation(believed))


def tell_steps(minimum: Minimum, console: Console) -> None:
    """Print what the search for a minimum did."""
    for step in minimum.steps:
        console.say(f"  {describe(step)}")
