"""The answers of ``run``, ``sweep``, ``samples`` and ``repeat`` in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import Enum

from msgspec import Struct

from bisect_trt.errors import first_few, quoted
from bisect_trt.report.console import Console
from bisect_trt.report.parts import (
    Avoided,
    BuildReason,
    MinimalInput,
    SamplesVerdict,
    SweptDimension,
    SweptSizes,
)
from bisect_trt.report.result import Result
from bisect_trt.report.text import Json, spans
from bisect_trt.search.oracle import Verdict

_SHOWN = 12
_MOST_ROWS = 40
OUTSIDE_PROFILE = "it is outside of the profile: {}"
"""The reason why sizes have no verdict, with the error."""
_FOLDERS = ("good", "bad", "unresolved")


class Changed(Struct, frozen=True):
    """A verdict that changed when the candidate was probed again."""

    title: str
    before: Verdict
    now: Verdict

    def __str__(self) -> str:
        return f"{self.title} was {self.before.value} and, probed again, {self.now.value}"


def describe_partition(parts: Json) -> str:
    """Return which nodes the parser refuses, in a sentence, and which parts are left between them."""
    refused = parts["refused"]
    sizes = [len(part) for part in parts["parts"]]
    if not refused:
        return (
            "No single node is named as refused; `diagnose` with the same options searches for it."
        )
    nodes = quoted(entry["node"] for entry in refused)
    return (
        f"The parser refuses {len(refused)} of {len(refused) + sum(sizes)} nodes: {nodes}. The other nodes form "
        f"{len(sizes)} part(s) of {', '.join(map(str, sizes)) or 'no'} node(s), which may still fail to build."
    )


def describe_sizes(sizes: Mapping[str, int]) -> str:
    """Return sizes by dimension."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _describe_failing(dimension: SweptDimension) -> str:
    rows = spans(
        (row.first, row.last) for row in dimension.intervals if row.verdict == Verdict.FAIL.value
    )
    at = f" (with {describe_sizes(dimension.at)})" if dimension.at else ""
    return f"at {first_few(rows, _SHOWN)} of {dimension.name}{at}"


def describe_swept(swept: SweptSizes) -> str:
    """Return the sizes that fail, and how many were probed."""
    failing = f"{'; '.join(map(_describe_failing, swept.dimensions))}: " if swept.shapes else ""
    unknown = "" if swept.exhaustive else "; other sizes are unknown"
    return f"{failing}{swept.tried} of {swept.of} sizes were probed{unknown}."


def why_sizes(unsure: Mapping[str, int] | None, changed: Changed | None) -> str | None:
    """Return why it is not proven that the smallest sizes are that.

    Args:
        unsure: The next smaller sizes that did not pass.
        changed: A verdict that changed.
    """
    if changed:
        return f"the failure is flaky and does not depend on the size alone: {changed}"
    return f"the next smaller size, {describe_sizes(unsure)}, did not pass" if unsure else None


def tell_swept(swept: SweptSizes, console: Console, *, ended: bool) -> None:
    """Print the sizes that fail; each dimension too if the search has ``ended``."""
    console.answer(f"{'It' if ended else 'So far it'} fails {swept.said}")
    for dimension in swept.dimensions if ended else ():
        at = "".join(f", {name} {size}" for name, size in dimension.at.items())
        sizes = spans((row.first, row.last) for row in dimension.intervals)
        rows = [
            (row.verdict, span, f"{len(row.tried)} probed")
            for row, span in zip(dimension.intervals, sizes, strict=True)
        ]
        console.table(("verdict", f"{dimension.name}{at}", ""), rows, _MOST_ROWS)


def tell_smallest(swept: SweptSizes, inputs: str, console: Console, *, steady: bool) -> None:
    """Print the smallest sizes that fail, with the file of their inputs, and the command that goes on."""
    smallest = describe_sizes(swept.smallest_failing or {})
    console.answer(f"The smallest that fails is {smallest}. Its inputs: {inputs}")
    console.answer(f"To {'find out why' if steady else 'measure how often'}: {swept.command}")


def tell_samples(samples: SamplesVerdict, console: Console, *, ended: bool) -> None:
    """Print how many samples fail, and which if the search has ``ended``."""
    failing = samples.failing
    line = f"So far {len(failing)} of {len(samples.each)} samples fail; {samples.total} were given."
    if ended:
        numbers = first_few([*map(str, failing)], _SHOWN)
        line = f"{len(failing)} of {samples.total} samples fail: {numbers}."
    console.answer(line)


def why_input(changed: Changed | None, questions: int | None, *, ended: bool) -> str | None:
    """Return why it is not proven that an input is minimal.

    Args:
        changed: Its verdict, if that changed.
        questions: The number of questions after which the search was stopped.
        ended: Whether the search came to an end.
    """
    if changed:
        return f"the failure is flaky: {changed}; `repeat` measures how often"
    if questions:
        return f"stopped after {questions} questions"
    return None if ended else "the search did not end"


def tell_input(minimal: MinimalInput, console: Console, *, steady: bool) -> None:
    """Print the minimal input, and the command that shows the failure."""
    shapes = ", ".join(f"'{name}' {[*shape]}" for name, shape in minimal.shapes.items())
    kept = f"{minimal.kept} of {minimal.of} nonzero elements"
    console.answer(
        f"{minimal.file}: sample {minimal.sample}, {kept}, {shapes} ({minimal.minimality})."
    )
    if elements := minimal.elements_kept:
        rows = [(element.input, [*element.index], element.value) for element in elements]
        console.table(("input", "index", "value"), rows, _SHOWN)
    if minimal.why:
        console.answer(f"  {minimal.why}")
    aim = "reproduce it" if steady else "measure how often it fails"
    console.answer(f"To {aim}: {minimal.command}")


class Unexplained(Enum):
    """Why choices of a build are not proven to be the reason why it is bad; ``{}`` is the build, or the choices."""

    UNPINNED = "{} has no choice that can be pinned, for example because it ended before it chose"
    ALIKE = "it made the same choices as a good build, as far as they can be pinned"
    STAYS_GOOD = "with all pinnable choices of the bad build, the build is not bad, so something else decides"
    STAYS_BAD = "with all pinnable choices of a good build, the build is not good, so something else decides"
    DROPPED = "the build with it pinned does not report the choice {}"
    FORBIDDEN = "with it forbidden, the build is bad too"
    CHOSEN = "the target cannot forbid it"
    INCOMPLETE = "some builds with these choices pinned are good, so something else is needed"
    ANOTHER = "a build without it is bad too, so there is another reason; repeat with these options"
    UNSUPPORTED = "{} cannot pin a choice, so no reason can be proven"


class Try(Enum):
    """Steps to try where a failure does not reproduce; ``{lost}`` are inputs, ``{package}`` is the target's."""

    INPUTS = "other inputs: {lost} has no elements, or some NaN or Inf, which match where both sides have them"
    PRECISION = "the precision of the failing deployment (--fp16, --bf16, ...)"
    RELEASE = "the release of the failing deployment (--on env='{package}==VERSION')"
    SCALES = (
        "`precision --int8 --reference FLOAT.onnx`, which checks the scales of the quantized model"
    )
    LABELS = "the labels and preprocessing of the failing deployment, or a smaller --max-drop"
    GIVEN = "other samples of the failing deployment's inputs"
    DATA = "real input data (--load-inputs or --data-loader-script) instead of random values, or another --seed"
    SAMPLES = "`{samples}`: many random samples"
    TOLERANCE = "a smaller --atol and --rtol, and the other options of the failing deployment"
    LAYERS = "`{layerwise}`: inner tensors that differ although the outputs match"
    BUILDS = "`{repeat}`: builds that fail sometimes"
    SIZES = "`{sweep}`: other sizes of the free dimensions"
    MODULE = "`{run}`: compares with the PyTorch module itself"


class Unseen(Enum):
    """Why a tensor could not be seen; ``{}`` are numbers and messages."""

    FUSED = "the compiler does not keep it"
    NO_VALUE = "the reference has no value for this tensor"
    HIDES = "marking it and {} others hides the failure"
    REFUSED = "the target does not run the model with every tensor marked: {}"
    REFUSED_ALONE = "the target does not run the model with it marked: {}"
    NOT_RUN = "after {} builds no model with it marked was seen to run: {}"


MIXED_CHOICES = "{} of {} choices of {}, the others of good builds"
GOOD_CHOICES = "choices of good builds, {} of {} forbidden"
"""Titles of builds with choices pinned."""
TRY_LIBRARY = "Give the library that has {} (--custom-op-library FILE)."
TRY_OUTPUTS = (
    "It was compiled for a provider: write the outputs of the model that it was compiled from "
    "(run MODEL --onnxrt --save-outputs ref.npz), and compare with those (--load-outputs ref.npz)."
)
TRY_VALUES = "The random values of {} may be invalid: give real data (--load-inputs), or the valid range (--val-range)."
VALUES_REFUSED = "the reference does not run it"
PASSES_AT_LARGEST = "it passes with the largest value of {}, so widen its range"
FAILS_UNFUSED = "it fails with each value of {}, so without these fusions"
RUNS_UNCOMPARED = "runs, and its values are compared with none"
NO_NEW_PROBE = "No new probe ended in this time, so the run needs more."
UNFINISHED = "was running when the run ended"
NO_CHOICE = "no choice is in bad builds only"
CHOICES_OF_BAD = (
    "{} choices are in bad builds only, {} of them in every one. `repeat` finds the reason."
)
EXPORT_RIGHT = "The export is right, so the target is wrong: `diagnose` it."
NOISY = "Unknown, because the machine is too noisy or the limit too close"
SIZES_REFUSED = "ONNX Runtime does not run it with these sizes either"
FUSED = "{} runs several nodes in one in {} layers:"
NOT_LOWERED = (
    "{} requested, but {} of {} layers run in {}. A strongly typed network takes its types from the graph: "
    "`convert` adds Casts for fp16 and bf16; int8 and fp8 need Q/DQ nodes."
)
SAME_RESULTS = "the same results as the original"
ORIGINAL_REFUSED = "ONNX Runtime cannot run the original, so the results were not compared"
ONLY_A_PIECE = (
    "it fails in a setting in which the whole model passes, so the whole model may not have it"
)
ROUNDING_FAILS = "rounding alone fails the model too, and no node fails alone"


def why_rate(result: Result, noun: str, missing: Sequence[str], *, random: bool) -> str | None:
    """Return why the rate of failures is no answer, or needs none.

    Args:
        result: The builds or runs.
        noun: ``build`` or ``run``.
        missing: The verdicts that were waited for and not seen.
        random: Whether the model draws random numbers.
    """
    if not result.interval:
        return f"all {result.runs} {noun}s failed in another way; `bisect-trt log` lists them"
    if not result.bad:
        return f"all {result.good} {noun}s passed; up to {result.interval[1]:.1%} may still fail"
    if missing:
        return f"no {' or '.join(missing)} {noun} was seen in {result.runs}"
    return None if result.good or random else f"it fails in every {noun}"


def tell_rate(
    result: Result, noun: str, drawing: str | None, command: str, console: Console
) -> None:
    """Print the rate of failures, with its interval.

    Args:
        result: The builds or runs, with the reason of :func:`why_rate`.
        noun: ``build`` or ``run``.
        drawing: A node that draws random numbers, if one does.
        command: The command for a failure that is no chance.
        console: Where it goes.
    """
    if not result.interval:
        console.answer(f"Unknown: {result.why}.")
        return
    low, high = result.interval
    interval = f"{low:.1%} to {high:.1%} with {result.confidence:g} confidence, {result.method}"
    broke = f" {result.unresolved} failed in another way." if result.unresolved else ""
    judged = (result.good or 0) + (result.bad or 0)
    console.answer(
        f"It fails in {result.bad} of {judged} {noun}s: {result.rate:.1%} ({interval}).{broke}"
    )
    if drawing:
        console.answer(f"{drawing} draws random numbers, so two {noun}s need not agree.")
    if folders := [result.artifacts[name] for name in _FOLDERS if name in result.artifacts]:
        console.say(f"  their files are in {', '.join(map(str, folders))}")
    if not result.bad or not result.why:
        return
    if result.status == "inconclusive":
        console.answer(f"Stopped before --until {result.until}: {result.why}; -n allows more.")
    else:
        console.answer(
            f"It fails in every {noun}, so it is deterministic: `{command}` with the same options finds the reason."
        )


def rate_so_far(result: Result) -> str:
    """Return the rate of failures of a command that was stopped."""
    judged = (result.good or 0) + (result.bad or 0)
    return f"So far it fails in {result.bad} of {judged}: {result.rate:.1%}."


def why_not_compared(title: str | None, *, same_engine: bool) -> str:
    """Return why builds are not compared: they are one, or the target ``title``, or a check, reports no choices."""
    if same_engine:
        return "all runs used the same build, so the difference is between runs, not builds"
    return f"{title or 'A check command'} does not report the choices of its builds, so they cannot be compared"


def describe_reason(reason: BuildReason) -> str:
    """Return the choices that make builds bad, or why they are not proven."""
    words = " and ".join(f"'{choice.layer}' with {choice.choice}" for choice in reason.choices)
    if reason.proven:
        return (
            f"Reason: {words}. Pinned in an otherwise good build it is bad, forbidden it is good."
        )
    return f"Not proven{f' ({words})' if words else ''}: {reason.why}."


def tell_avoided(avoided: Avoided, console: Console) -> None:
    """Print the options that forbid the choices of bad builds."""
    console.answer(f"Fix: build with {shlex.join(avoided.options)}")
    console.answer(f"  {avoided.bad} of {avoided.runs} such builds are bad")
