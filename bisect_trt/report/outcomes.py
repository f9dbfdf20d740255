"""Outcomes of probes, comparisons and scores in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from bisect_trt.options.compare import ErrorStat
from bisect_trt.probe.outcome import MetricScore, Outcome, Reason
from bisect_trt.tensors.comparison import (
    ComparisonKind,
    Details,
    TensorComparison,
    rounded_up,
)

_EXIT = "exit status {0}"
_UNREAD = "--fail-regex may match in "
_BASELINE = "{0:.4g} ms, the baseline {1:.4g} ms: "
_SENTENCES = {
    Reason.EXIT: _EXIT,
    Reason.IGNORED_EXIT: f"{_EXIT}, which --ignore-fail-code lists",
    Reason.SKIP_EXIT: f"{_EXIT}: cannot be judged",
    Reason.OTHER_EXIT: f"{_EXIT}, but not the failure asked for",
    Reason.OTHER_PASS: f"{_EXIT}, and not the failure asked for",
    Reason.OUTPUT_LEFT_OUT: f"{_UNREAD}the {{0}} bytes of output that are not kept",
    Reason.LOG_GONE: f"{_UNREAD}the log, which is gone",
    Reason.KILLED: "killed by {0}",
    Reason.KILLED_OFTEN: "the check was killed {0} times ({1}), which says nothing of the model",
    Reason.TIME_OUT: "no answer after {0:g} s",
    Reason.NOT_NEEDED: "its answer was not needed any more",
    Reason.RAISED: "the check raised {0}",
    Reason.CHECK_FAILS: "the check says that it fails",
    Reason.CHECK_PASSES: "the check says that it passes",
    Reason.CHECK_SKIPS: "the check cannot judge it",
    Reason.PROMPT_GOOD: "judged good at the prompt",
    Reason.PROMPT_BAD: "judged bad at the prompt",
    Reason.PROMPT_SKIPS: "skipped at the prompt",
    Reason.BUILDS: "it builds",
    Reason.NO_BASELINE: "the baseline does not run it: {0}",
    Reason.DEVICE_MEMORY: "{0:.1f} MB of GPU memory (limit {1:g})",
    Reason.HOST_MEMORY: "{0:.1f} MB of host memory at the peak of the {2} (limit {1:g})",
    Reason.BUILD_TIME: "{0:.3g} s to build (limit {1:g})",
    Reason.ENGINE_SIZE: "the engine has {0:.2f} MB (limit {1:g})",
    Reason.LATENCY: "{0:.4g} ms",
    Reason.PERCENTILE: "{0:.4g} ms at percentile {1:g}",
    Reason.LOST_TIME: f"{_BASELINE}{{2:.4g}} ms lost (limit {{3:.4g}})",
    Reason.RATIO: f"{_BASELINE}ratio {{2:.3g}} (limit {{3:g}})",
    Reason.FUSED: "fused: {0}",
    Reason.PIECE_REFUSED: "the reference does not run this piece either: {0}",
    Reason.UNSUPPORTED: "it does not support the model: {0}",
}
_BEFORE = {
    Reason.MILDER: "milder than the original's failure: ",
    Reason.AKIN: "breaks where the original does, but not on the same: ",
    Reason.SAMPLE: "sample {0}: ",
    Reason.SAMPLES_FAIL: "{0} of {1} samples fail, worst sample {2}: ",
}
"""Circumstances that stand before the reasons, in this order."""
_AFTER = {
    Reason.TOO_SLOW: ", too slow in {0} of {1} {2}",
    Reason.TIME_UNDECIDED: ": not decided in {0:g} s (--measure-time)",
    Reason.RUN: " (run {0})",
    Reason.RATE: " ({0} of {1} runs fail)",
}
"""Circumstances that follow the reason before them."""


def describe_outcome(outcome: Outcome, runtime: str = "the target") -> str:
    """Return the reasons of an outcome in words, without a period.

    Args:
        outcome: The outcome of its probe.
        runtime: The name of what runs it.
    """
    figures = {finding.reason: finding.figures for finding in outcome.findings}
    before = [
        text.format(*figures[reason]) for reason, text in _BEFORE.items() if reason in figures
    ]
    sentences = [outcome.message if outcome.failed is None else outcome.failed.describe(runtime)]
    for finding in outcome.findings:
        if finding.reason in _AFTER:
            sentences[-1] += _AFTER[finding.reason].format(*finding.figures)
        elif finding.reason in _WORDED:
            sentences.append(_WORDED[finding.reason](outcome, *finding.figures))
        elif finding.reason in _SENTENCES:
            sentences.append(_SENTENCES[finding.reason].format(*finding.figures))
    return f"{''.join(before)}{'; '.join(filter(None, sentences))}"


def _matches(outcome: Outcome, outputs: int) -> str:
    text = "1 output matches" if outputs == 1 else f"{outputs} outputs match"
    left_out = [
        "'{}': {}".format(*finding.figures)
        for finding in outcome.findings
        if finding.reason is Reason.NOT_COMPARED
    ]
    return f"{text} (not compared: {'; '.join(left_out)})" if left_out else text


def _samples_match(_: Outcome, samples: int, worst: float) -> str:
    matches = "sample matches" if samples == 1 else "samples match"
    return f"{samples} {matches}, worst error {worst:.2g} of the tolerance"


def _worst(outcome: Outcome, name: str, others: int) -> str:
    worst = next(comparison for comparison in outcome.comparisons if comparison.name == name)
    more = f", and {others} more" if others else ""
    return f"'{name}': {describe_comparison(worst)}{more}"


def _score(outcome: Outcome, unit: str) -> str:
    return "" if outcome.metric is None else describe_score(outcome.metric, unit)


_WORDED: Mapping[Reason, Callable[..., str]] = {
    Reason.MATCH: _matches,
    Reason.SAMPLES_MATCH: _samples_match,
    Reason.WORST: _worst,
    Reason.SCORE: _score,
}


def describe_score(score: MetricScore, unit: str) -> str:
    """Return a score beside its bound, in words without a period.

    Args:
        score: The score of a candidate.
        unit: The unit of the metric, as it follows a number.
    """

    def value(number: float) -> str:
        return f"{number:.6g}{unit}"

    text = f"{score.name} is {value(score.candidate)}"
    if score.bound is not None:
        side = "at most" if score.lower_is_better else "at least"
        text += f", {'' if score.passed else 'required: '}{side} {value(score.bound)}"
    if score.first and not score.passed:
        step, first = score.first
        text += f", past it first in step {step}: {value(first)}"
    return f"{text} (of all {score.of} samples)"


def describe_comparison(comparison: TensorComparison) -> str:
    """Return the difference of a tensor from the reference in one line."""
    worst = comparison.worst
    if comparison.reason is not None:
        return comparison.reason
    if comparison.kind is ComparisonKind.MISSING:
        if comparison.reference_dtype is None:
            return "the target has this member, and the reference does not"
        return "the target does not have this output"
    if comparison.kind is ComparisonKind.SHAPE:
        shapes = (
            list(shape or ()) for shape in (comparison.reference_shape, comparison.target_shape)
        )
        return "expected shape {}, got {}".format(*shapes)
    if worst is None:
        return "no elements"
    text = f"max error {worst.error:.5g}"
    stat = comparison.stat
    if stat in (ErrorStat.MEAN, ErrorStat.MEDIAN, ErrorStat.QUANTILE):
        quantile = f" {comparison.quantile:g}" if stat is ErrorStat.QUANTILE else ""
        error = getattr(comparison, f"{stat.value}_abs")
        text = f"{stat.value}{quantile} error {error:.5g}, {text}"
    if worst.error != 0:
        text += f" at {worst.index}: expected {_value(worst.reference)}, got {_value(worst.target)}"
    mismatching = f"{comparison.mismatching} of {comparison.total} elements mismatch"
    text += f" (atol {comparison.atol:.3g}, rtol {comparison.rtol:.3g}; {mismatching})"
    if comparison.ties:
        are = "element is" if comparison.ties == 1 else "elements are"
        text += f"; {comparison.ties} {are} one quantization step off, as ties in rounding are"
    return text


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return repr(value)
    # Integers below a million million and bools in full; the rest to the digits that fp32 has.
    if isinstance(value, int) and abs(value) < 10**12:
        return str(value)
    return f"{value:.7g}"


def describe_details(details: Details) -> str:
    """Return the options that a comparison would have passed with, and the similarity."""
    needed = {"--atol": details.atol_needed, "--rtol": details.rtol_needed}
    options = [
        f"{option} {rounded_up(value)}" for option, value in needed.items() if math.isfinite(value)
    ]
    text = f"passes with {' or '.join(options)}" if options else "no tolerance passes"
    if details.cosine is None or details.snr_db is None or not math.isfinite(details.snr_db):
        return text
    return f"{text}; cosine similarity {details.cosine:.6f}, SNR {details.snr_db:.1f} dB"
