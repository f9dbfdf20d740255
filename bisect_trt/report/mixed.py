"""The nodes and groups that stay in a wider precision, in sentences."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from bisect_trt.onnxlib.nodes import in_module
from bisect_trt.report.console import IN_JSON, Console, listed
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.report.parts import FOR_FRESH, StepsWay, TradeOff, Unit, Validation
from bisect_trt.report.result import Result
from bisect_trt.report.summary import LARGE, why_no_use
from bisect_trt.report.text import named, plural
from bisect_trt.tensors.fresh import STRETCH, FreshSamples, Input, Kind, differ_in_size

_SHOWN = 30
_KINDS = {Kind.FIXED: "as given", Kind.MASK: "other masks of the same two values"}
"""Kinds of inputs that need no figures."""


def in_tolerances(error: float) -> str:
    """Return an error in units of the tolerance."""
    if not math.isfinite(error):
        return "NaN or Inf"
    return (
        f"{float(f'{100 * error:.2g}'):g}% of the tolerance"
        if error <= 1
        else f"{error:.3g} times the tolerance"
    )


def row_of(point: Validation) -> str:
    """Return the number of samples that fail with a set of the curve, and the worst error."""
    failed = point.samples - point.passed
    error = in_tolerances(math.inf if point.worst_error is None else point.worst_error)
    return f"{failed or 'none'} of {point.samples} fresh samples fail, worst error {error}"


def describe_fresh(fresh: FreshSamples) -> str:
    """Return how fresh samples vary."""
    kinds: dict[str, list[str]] = {}
    for name, source in fresh.inputs.items():
        kinds.setdefault(_vary(source, fresh.ways), []).append(f"'{name}'")
    described = [f"{', '.join(names)}: {words}" for words, names in kinds.items()]
    if differ_in_size(fresh.inputs.values()):
        between = ", and sizes between" if fresh.between else ""
        described.append(f"the sizes of the given samples{between}")
    return "; ".join(described)


def _vary(source: Input, variations: Sequence[str]) -> str:
    if source.kind in _KINDS:
        return _KINDS[source.kind]
    if source.kind is Kind.IDS:
        return f"other ids from {source.low} to {source.high}, and the same permuted"
    rescaled = "rescaled" in variations
    drawn = f"random values with the same distribution{',' if rescaled else ' and'} the given ones permuted"
    if not rescaled:
        return drawn
    if source.kind is Kind.UNIT:
        return f"{drawn}, rescaled within [0, 1] (by row and channel too), and N(0, 1), as normalised images"
    uniform = ", and uniform in [0, 1]" if source.standard else ""
    return f"{drawn}, rescaled by 1/{STRETCH:g} to {STRETCH:g} (by row and channel too){uniform}"


def describe_validation(point: Validation, allowed: float) -> str:
    """Return how a set does on fresh samples, of which the share ``allowed`` may fail."""
    learned = f", {point.learned} of them used in the search" if point.learned else ""
    spared = f"{allowed:.0%} may fail, " if point.passed < point.samples and point.holds else ""
    # Rounded to nearest, "under 2.3%" of 2.35 would be untrue.
    bound = math.ceil(1000 * point.fails_under) / 10
    worst = in_tolerances(math.inf if point.worst_error is None else point.worst_error)
    rate = f"{spared}failure rate under {bound:.1f}%, 95% confidence"
    return f"passes on {point.passed} of {point.samples} fresh samples{learned} ({rate}), worst error {worst}"


def why_no_fix(
    result: Result, high: str, disagreed: str | None, point: Validation | None
) -> str | None:
    """Return why what was written is no proven fix.

    Args:
        result: The result, with the files that were tried.
        high: The wider precision.
        disagreed: How what was written fails, if it does.
        point: The set on fresh samples, if it was run on some.
    """
    if disagreed:
        return f"the final re-check disagreed: {disagreed}"
    if refused := why_no_use(result):
        return refused
    if result.slow:
        return f"it is as slow as the model in {high}"
    if point and not point.holds:
        return f"the fix does not hold: {row_of(point)}"
    return f"{LARGE} in {high}" if result.large else None


PASSED = "as it passed in the search"
ENDED = "the search did not come to its end"
ENGINE_ALONE = "the engine was probed instead"
TRY_IT = "a check command judges engines; try the model yourself"
"""Reasons why a file was not probed as it is used."""


FAILS_AS_FILE = "{} does not pass as it is: {}"
"""The file, and how it fails where it is run by itself."""
PRELIMINARY = "  this fix is preliminary: {}; this command searches on for fewer nodes: {}"
SINGLE_STEPS = "Each sample is a step with the reference's state. The loop with this model's own state was not run."
NO_FIX = "No fix by precision: with {} of {} nodes in fp32 nothing that was written passes."
NOT_RUN_WHOLE = (
    "With all of it {} no number is wrong: {}. So this is what it takes for the model to run; "
    "`diagnose` finds what in it is not run, and looks for a way around that."
)
"""The form of the whole model, and how the target ends with it."""
UNUSED_RANGES = (
    "no ranges are found: TensorRT 8.6 to 10 do that, with --int8, of models without Q/DQ"
)
BESIDE = "beside {}; the target fails with the suspects in {}"
ON_RUNGS = "{}: of its nodes {} ({} on each rung)."
DROPPED = "; {} dropped, on which the model fails in {} too"
NONE_PASSES = "on none of them the model passes in {}"
NO_REFERENCE = "the reference does not run on other inputs"
NOTHING_VARIES = "no value of the inputs can vary"
METRIC_ON_GIVEN = "the metric is measured on all given samples"
CHECK_ON_GIVEN = "a check command judges the samples given"
"""Reasons why fresh samples do not judge a set."""
WRONG_ELSEWHERE = "{} is wrong elsewhere in the model"
LOWERED_ALONE = "alone in {} changes the outputs by {}"
NEAR_LIMIT = "makes values up to {:.6g}, past {:.6g} where it reads twice as large ones"
"""Reasons why a node is a suspect."""
INVALID_SCALE = "the scale {} is invalid: it has to be above 0"
CLIPPED = "{:.1%} of the values are clipped: there is room for {}, values are in {}"
BETTER_ZERO = "; instead of the zero point {}, {} would fit"
LARGE_SCALE = "the scale{} ({:.4g}) is {:.3g} times what values in {} need"
"""Problems of the scale and the zero point of a quantized tensor."""
QUANTIZED_LEFT = (
    "nodes that quantize or dequantize and stay as they are, in the reference too: {}; {}"
)
INTEGER_LEFT = "operators that compute with integers stay as they are, in the reference too: {}"
QUANTIZED_EMULATED = (
    "{} does not run the quantized model ({}), so it is emulated there: "
    "with graph optimisations off, where Q/DQ is computed in floats"
)
_PREPROCESSED = "if it was preprocessed before it was quantized (quant_pre_process), give the preprocessed model"
WEIGHTS_MISSING = f"{{}} of {{}} quantized weights are not found in {{}}: {_PREPROCESSED}"
OTHER_WEIGHTS = (
    "with the weights of {} the model computes something else, so they are dequantized: "
    f"{_PREPROCESSED}"
)
"""Parts of a quantized model that a search leaves, emulates, or takes from the model before quantization."""


def why_kept(rule: str, broken: str | None, *, proven: bool) -> str:
    """Return why a unit is kept.

    Args:
        rule: The rule that applies, where no value is lost.
        broken: How the target ends without it, where it does not run.
        proven: Whether each unit of the minimal set was left out.
    """
    if broken is not None:
        return f"without it: {broken}"
    if rule == FOR_FRESH:
        return "without it and others fresh samples fail"
    if proven:
        return "needed: without it the check fails"
    return "kept when the check passed; not proven to be needed"


def describe_data(
    runtime: str, samples: int, more: str, peaked: Mapping[str, str], rounded: str | None
) -> str:
    """Return the runtime and the data that an accuracy is measured on.

    Args:
        runtime: The runtime.
        samples: The number of samples.
        more: What others than a single one may need.
        peaked: Outputs that are compared by their largest value, with the operator that makes each.
        rounded: The precision to which values are rounded, where the written nodes are not run.
    """
    data = f"{plural(samples, 'input sample')}{f' only: others may need {more}' if samples == 1 else ''}"
    for name, operator in peaked.items():
        data += f"; '{name}' by its largest value, as {operator} makes it"
    if rounded is None:
        return f"{runtime}, on {data}"
    return f"{runtime}, with every value of fp32 nodes rounded to {rounded}, not the nodes of the written model; on {data}"


def atol_option(atol: Mapping[str, float], *, one: bool) -> str:
    """Return the option with which a set that does not hold passes; without names if there is ``one`` output."""
    values = [f"{value:g}" if one else f"{name}:{value:g}" for name, value in atol.items()]
    return shlex.join(["--atol", *values])


def describe_own_loop(own: StepsWay) -> str:
    """Return how a loop does with the state that the mixed-precision model returns itself."""
    if own.first is None:
        return "With its own state the loop passes in each step."
    return f"With its own state the loop is off from step {own.first} on, by up to {in_tolerances(own.worst)}."


class Mix(Struct, frozen=True):
    """A search: units that are lowered to a precision ``low``, or stay in a wider one.

    Attributes:
        low: The low precision.
        high: The wider one.
        count: Returns a number of units in words.
        total: The number of units.
    """

    low: str
    high: str
    count: Callable[[int], str]
    total: int

    def trade(
        self, trade: TradeOff, small: Validation, best: Validation, option: str, *, spared: bool
    ) -> str:
        """Return whether values are lost, and how large the error is, where the recommended set does not hold or is large.

        That no node loses its values alone and that the error is past the tolerance are two facts.

        Args:
            trade: The tolerances.
            small: The set that passes with them.
            best: The best set for the tolerance in use.
            option: The option with these tolerances; empty where a search was stopped before they were measured.
            spared: Whether no unit outside of ``small`` loses its values alone.
        """
        needed = self.count(best.nodes)
        text = ""
        if not trade.useful:
            share = f": {needed} of {self.total} would stay in {self.high}"
            text = f"No useful mix at this tolerance{share if best.holds else ' was seen'}. "
        kept = f"With {self.count(small.nodes)} in {self.high}"
        left = f"{kept} there are"
        if spared:
            none = f"{kept} no other" if small.nodes else "No node"
            text += f"{none} loses its values alone in {self.low}. "
            left = "Rounding then leaves"
        worst = math.inf if small.worst_error is None else small.worst_error
        text += f"{left} errors up to {in_tolerances(worst)}"
        if option:
            text += f": with `{option}` it passes on all {small.samples} fresh samples"
        # Rounded down, so that 100% is all.
        shares = [
            f"{math.floor(1000 * share) / 10:g}% of the rows of '{name}'"
            for name, share in trade.argmax.items()
        ]
        text += f"; the argmax agrees in {' and '.join(shares)}." if shares else "."
        if best.holds:
            return f"{text} For this tolerance {needed} are enough."
        if best.keep == small.keep:
            return f"{text} No larger set was seen to meet this tolerance."
        return f"{text} With {needed}: {row_of(best)}."

    def best(self, units: int, file: object) -> str:
        """Return the size of the best set so far, and the ``file`` with it, if it could be written."""
        count = f"{units} of {self.count(self.total)} in {self.high}"
        if file is None:
            return f"The best so far, {count}, cannot be written."
        return f"{file}: the best so far, {count}."

    def everywhere(self, *, few: bool) -> str:
        """Return that most of the model has to stay in floats, of which the given samples need ``few``."""
        reason = f"most of the model has to stay in {self.high}."
        if few:
            reason = f"rounding to {self.low} in most of the model adds up past it; no few nodes are the reason."
        return f"No useful mix at this tolerance: {reason}"

    def lost(self, number: int) -> str:
        """Return how many units are kept that no tolerance spares."""
        loss = f"{self.count(number)} lose values alone in {self.low}"
        return f"{loss}, or are near to it: a larger tolerance does not spare these."


def said_of_bf16(*, passes: bool, emulated: bool) -> str:
    """Return whether the whole model passes in bf16."""
    how = " when it is emulated" if emulated else ""
    return f"In bf16 the whole model {f'passes{how}: try --bf16' if passes else 'fails as well'}."


def tell_mixed(result: Result, console: Console, *lines: str | None) -> None:
    """Print what the summary leaves out, after some lines: the reason of each unit, the accuracy, and how to use the files."""
    for line in filter(None, lines):
        console.answer(line)
    tell_kept(result.keep_fp32 or (), console)
    comparisons = (result.accuracy or [])[:_SHOWN]
    notes = (
        *(
            f"accuracy: '{comparison.name}': {describe_comparison(comparison)}"
            for comparison in comparisons
        ),
        f"measured on {result.measured_on}",
        result.validation and f"fresh samples: {result.validation.drawn}",
        *_use_lines(result),
        result.why,
    )
    for text in filter(None, notes):
        console.answer(f"  {text}")


def _use_lines(result: Result) -> Iterator[str]:
    """Each file that was tried, with its command; those that passed first."""
    for use in sorted(
        result.uses or (), key=lambda use: (use.passed is not True, use.passed is None)
    ):
        verdict = {True: "seen to pass", False: "does not pass", None: "not tried"}[use.passed]
        reason = "" if use.passed else f" ({use.reason})"
        # A file that passed without a command has been named above.
        if use.command or not use.passed:
            yield f"{verdict}{reason}: {use.what}{': ' if use.command else ''}{use.command}"


def tell_kept(nodes: Sequence[Unit], console: Console) -> None:
    """Print the units to keep, with the reason of each."""
    for line in listed(
        [f"{named(node)}{in_module(node)}: {node.reason}" for node in nodes], _SHOWN, IN_JSON
    ):
        console.answer(line)
