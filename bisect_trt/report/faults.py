"""The side of a failing case that is wrong: the rule that decides, its figures, and the sentence."""

from __future__ import annotations

import math
from enum import Enum

from msgspec import Struct, structs

from bisect_trt.errors import quoted
from bisect_trt.onnxlib.nodes import Node, in_module
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.report.parts import Loss, Names, Whose, WrongSide
from bisect_trt.report.text import Entry, named
from bisect_trt.tensors.comparison import TensorComparison, rounded_up
from bisect_trt.tensors.files import Values

FEW_ULPS = 4
"""Kernels of low precision approximate a function to this many units in the last place."""
STRING = "string"
NOT_NUMBERS = {
    "shape": "its shape",
    "missing": "an output that is missing",
    STRING: "its strings",
}
"""Differences without a size, by the kind of a comparison, or of its strings."""
_MOST = 160
"""The longest message in a sentence."""
SAME_RUNTIME = "the reference ({} on the CPU, graph optimisations off{})"
IN_FP32 = ", in fp32 because it has no bf16 kernels"
"""The reference beside a target of the same runtime, and what follows where it computes in fp32."""
DIFFERS_FIRST = "The reference may be wrong: {} of this environment and ONNX's reference evaluator differ first in {} ({})."
"""The runtime of the reference, the first node of which the evaluator computes other values, and the difference."""
NEWER_DIFFERS = (
    "The reference may be wrong: {0} computes other values than the release of this environment ({1}), "
    "and ONNX's reference evaluator has no vote. If the values of {0} are right, upgrade."
)
"""A newer release, and the difference."""
TRY_RELEASES = "`{}`: finds the releases that are right"
TRY_NEWER = "`{}`: finds the node that differs"
"""Commands to run next where the reference may be wrong."""


class Rule(Enum):
    """The rules that decide: the side that is wrong, and the sentence, with the fields of a :class:`Fault`."""

    _value_: tuple[Whose, str]
    UNREADABLE = "unknown", "Which side is wrong cannot be decided: no model of its format runs."
    REFUSED = (
        "unknown",
        "Which side is wrong cannot be decided: {target} does not run the case, and {no_vote}.",
    )
    REFUSED_TWICE = (
        "unknown",
        "Which side is wrong cannot be decided: {target} does not run the case, and {reference} does not run it either.",
    )
    DISPUTED = (
        "unknown",
        "Which side is wrong cannot be decided: {target} does not run the case, and {arbiter} and {reference} differ by {own}.",
    )
    CRASHED = (
        "target",
        "It is a bug in {target}, which crashes: {arbiter} and {reference} both run it.",
    )
    UNSUPPORTED = (
        "target",
        "It is a bug in {target}, or an operator that it does not support: {arbiter} and {reference} both run it.",
    )
    NOT_BUILT = (
        "target",
        "It is a bug in {target}, or an operator, a type or a shape that it does not support: {reference} runs the case.",
    )
    BUILT_NOWHERE = (
        "unknown",
        "Which side is wrong cannot be decided: {reference} does not run the case either.",
    )
    NO_KERNEL = (
        "precision",
        (
            "{target} has no bf16 kernel for the case, and {reference} runs it. "
            "This is not a bug: run the model in fp32 or fp16."
        ),
    )
    DRAWN = (
        "random",
        (
            "{draws} make the random tensor an input of the model, "
            "or give the node a seed so that one runtime repeats itself."
        ),
    )
    DROPPED = (
        "random",
        "{draws} export the model in eval mode (`model.eval()` in PyTorch), or set its training_mode to false.",
    )
    TIE = (
        "tie",
        "A tie: {turned} differ{s}, within the rounding of its inputs. Neither side is wrong.",
    )
    TURNED = (
        "precision",
        (
            "Rounding to {low} turns {turned}, which fp32 decides clearly. "
            "{no_bug}: keep the nodes that compute its inputs in a wider precision."
        ),
    )
    GONE = (
        "unknown",
        "Which side is wrong cannot be decided: run once more, the target does not fail.",
    )
    ROUNDED = (
        "rounding",
        "fp32 cannot represent {rounded}. {no_bug}: subtract the mean, or scale, before.",
    )
    TOO_ROUNDED = (
        "precision",
        "{low} cannot represent {rounded}. {no_bug}: keep these nodes in a wider precision.",
    )
    LOST = (
        "precision",
        "{low} cannot represent this value: {lost}. {no_bug}: keep these nodes in a wider precision.",
    )
    APPROXIMATED = (
        "precision",
        (
            f"{{low}} is too coarse for these nodes: if each is off by up to {FEW_ULPS} units in the last place, "
            "as approximations are, the case is off by {beside} without the target. "
            "{no_bug}: keep these nodes in a wider precision."
        ),
    )
    UNROUNDED = (
        "unknown",
        "Which side is wrong cannot be decided: rounding to {low} cannot be emulated ({message}).",
    )
    NOT_EMULATED = (
        "unknown",
        "Which side is wrong cannot be decided: rounding to {message} is not emulated here.",
    )
    NO_VOTE = "unknown", "Which side is wrong cannot be decided: {no_vote}."
    REFERENCE_OFF = "reference", "The reference is off: {compared}, and {reference} by {own}."
    BOTH_OFF = (
        "unknown",
        "Which side is wrong cannot be decided: {compared}, and {reference} by {own}.",
    )
    TARGET_OFF = "target", "It is a bug in {target}: {compared}, and {reference} by {own}."
    ALONE = (
        "target",
        "It is a bug in {target}: it is off by {seen}, and {reference} agrees with {arbiter} to within {own}{rounding}.",
    )
    NEWER = (
        "reference",
        "The reference is off: {message}, a newer one, computes the values of the target.",
    )


class Difference(Struct, frozen=True):
    """The difference of two sides.

    Attributes:
        passed: Whether they match.
        severity: The error in tolerances, of the element furthest past its own.
        largest: The largest absolute error.
        kind: The kind of a comparison without a size, or ``string``.
    """

    passed: bool
    severity: float
    largest: float
    kind: str

    def __str__(self) -> str:
        finite = math.isfinite(self.severity) and math.isfinite(self.largest)
        return f"{self.largest:.3g}" if finite else NOT_NUMBERS.get(self.kind, "NaN or Inf")

    def times(self, divisor: Difference) -> float:
        """Return how many times worse it is, absolute or in tolerances; 1 where both are NaN or Inf."""
        if not math.isfinite(divisor.severity):
            return 1.0
        if not math.isfinite(self.severity):
            return math.inf
        absolute = self.largest / divisor.largest if 0 < divisor.largest < math.inf else 0.0
        return max(absolute, self.severity / max(divisor.severity, 1.0))


class Lost(Struct, frozen=True):
    """The value of a tensor that a low precision cannot represent.

    Attributes:
        loss: How it is lost.
        tensor: The tensor.
        value: The value.
        becomes: The value in the low precision.
        limit: The largest value of the low precision.
        maker: The node that computes it, if one does.
        stored: Whether the tensor is a constant.
    """

    loss: Loss
    tensor: str
    value: float
    becomes: float
    limit: float
    maker: str | None
    stored: bool

    def __str__(self) -> str:
        if self.loss == "overflow":
            return f"{self.value:.5g} exceeds its maximum, {self.limit:.5g}"
        maker = f" of {self.maker}" if self.maker else ""
        text = f"{self.value:.7g} in {'the constant ' * self.stored}'{self.tensor}'{maker} becomes {self.becomes:.7g}"
        few = "few digits are left below 6e-5" if self.becomes else "all below 3e-8"
        return f"{text}, as {few}" if self.loss == "underflow" else text


class Fault(Struct, frozen=True):
    """The side that is wrong.

    Attributes:
        rule: The rule that decides.
        target: The target in sentences.
        reference: The reference in sentences.
        arbiter: The evaluator in sentences.
        message: The message of the runtime that does not run, or what else the rule names.
        low: The low precision.
        op: The operator of the node that decides or draws.
        node: Its name.
        decisions: How many decisions differ.
        seen: The difference of target and reference; ``None`` if the target does not run.
        own: The difference of reference and evaluator; ``None`` if that does not run.
        beside: The difference that decides: of target and evaluator, or of approximations.
        alone: The difference that rounding alone makes, where it is emulated.
        lost: The value that is lost by rounding, where one is found.
        releases: The release of the target and the older one of the reference, where they are one runtime.
        right: The inputs, and the outputs that the reference lacks: the evaluator's where the
            reference is to blame, the target's where the evaluator has no vote.
    """

    rule: Rule
    target: str = ""
    reference: str = ""
    arbiter: str = ""
    message: str = ""
    low: str | None = None
    op: str | None = None
    node: str | None = None
    decisions: int | None = None
    seen: Difference | None = None
    own: Difference | None = None
    beside: Difference | None = None
    alone: Difference | None = None
    lost: Lost | None = None
    releases: tuple[str, str] | None = None
    right: Values = {}

    @property
    def whose(self) -> Whose:
        """The side; see :class:`~bisect_trt.report.parts.WrongSide`."""
        return self.rule.value[0]

    @property
    def is_bug(self) -> bool:
        """Whether it may be worth a bug report to the vendor of the target."""
        return self.whose in ("target", "unknown")

    @property
    def is_fixable(self) -> bool:
        """Whether another setting of the target, or another form of the model, may make it pass."""
        return self.whose in ("target", "precision", "unknown")

    @property
    def sentence(self) -> str:
        """The reason, with the figures."""
        many = (self.decisions or 0) > 1
        message = " ".join(self.message.split())
        message = message if len(message) <= _MOST else f"{message[: _MOST - 3]}..."
        no_bug = f"This is not a bug in {self.target}"
        node = f"{self.op} '{self.node}'"
        compared = f"compared with {self.arbiter}, {self.target} is off by {self.beside}"
        rounding = ""
        if self.low and self.alone:
            rounding = f"; rounding to {self.low} alone is off by {self.alone.largest:.3g}"
        names = structs.asdict(self) | {
            "message": message,
            "no_vote": f"{self.arbiter} has no vote on the case ({message})",
            "no_bug": no_bug,
            "draws": f"{node} draws random numbers, so two runtimes need not agree. {no_bug}. To compare them,",
            "turned": f"{self.decisions} decision{'s' * many} of {node}",
            "s": "s" * (not many),
            "rounded": f"these values: rounding alone, without the target, is off by {self.alone}",
            "compared": compared,
            "rounding": rounding,
        }
        sentence = self.rule.value[1].format(**names)
        if self.releases and self.whose == "unknown":
            newer, here = self.releases
            sentence += (
                f" {newer} is newer than the reference ({here}): if its values are right, upgrade."
            )
        return sentence

    def to_part(self) -> WrongSide:
        """Return the field ``fault`` of the result."""
        figures: Entry = {"node": self.node, "op": self.op, "decisions": self.decisions}
        if self.own:
            figures |= {"reference_error": self.own.largest, "arbiter": self.arbiter}
        if self.seen:
            figures |= {"target_error": self.seen.largest, "severity": self.seen.severity}
        if self.seen and self.alone:
            figures |= {"rounding_error": self.alone.largest, "precision": self.low or "fp32"}
            figures["times_worse"] = self.seen.times(self.alone)
        if self.own and self.beside and self.rule is not Rule.APPROXIMATED:
            figures["target_error"] = self.beside.largest
            if self.whose != "reference":
                figures["times_worse"] = self.beside.times(self.own)
        if lost := self.lost:
            figures |= {"value": lost.value, "loss": lost.loss, "tensor": lost.tensor}
        return WrongSide(self.whose, self.sentence, **figures)


class Exported(Struct, frozen=True):
    """An exported model that does not compute what the module or the other model does that it was made from.

    Attributes:
        whose: The side that is wrong.
        title: The module or the other model in sentences.
        runtime: The runtime of the reference.
        sample: The first sample that differs.
        mismatch: Its first output that differs.
        explained: The sentence about rounding, or about the reference, where these explain it.
        quantizes: Whether the exported model alone has Q/DQ.
        ignored: Inputs that no node reads.
        line: ``file:line`` of the first line of the module with values that the export lacks.
        source: The text of that line.
        other: The first node of the other model with values that the export lacks.
        number: The line before it that takes values out of a tensor.
        branch: The line before it that branches on a tensor.
        node: The first wrong node of the export.
    """

    whose: Whose
    title: str
    runtime: str
    sample: int
    mismatch: TensorComparison
    explained: str = ""
    quantizes: bool = False
    ignored: Names = ()
    line: str | None = None
    source: str = ""
    other: Node | None = None
    number: str | None = None
    branch: str | None = None
    node: Node | None = None

    def to_part(self) -> WrongSide:
        """Return the field ``fault`` of the result."""
        starts = {
            "rounding": f"Neither the export nor {self.runtime} is wrong. {self.explained}",
            "export": f"The export is wrong: ONNX's reference evaluator agrees with {self.runtime}.",
            "reference": self.explained,
            "unknown": f"The export or {self.runtime} is wrong: ONNX's reference evaluator has no vote.",
        }
        start = starts[self.whose]
        if self.quantizes:
            start = f"The model is quantized and {self.title} is not, so they differ by design."
            start += " `precision --int8 --reference FLOAT.onnx` checks the scales."
        node = self.node
        output = self.mismatch
        parts = {
            start: True,
            f"The export ignores the input {quoted(self.ignored)}.": self.ignored,
            f"First line with values that it lacks: {self.line}: {self.source}.": self.line,
            f"First node of {self.title} with values that it lacks: {self.other and named(self.other)}.": self.other,
            f"{self.number} takes values out of a tensor: the export holds the values of its example.": self.number,
            f"Before it, {self.branch} branches on a tensor: a traced export holds the branch of its example.": self.branch,
            node
            and f"First wrong tensor: '{node.outputs[0]}' of {named(node)}{in_module(node)}.": node,
            f"Sample {self.sample}, '{output.name}' of {self.title}: {describe_comparison(output)}.": True,
        }
        sentence = " ".join(part for part, applies in parts.items() if part and applies)
        return WrongSide(self.whose, sentence, source=self.line)


def describe_amplified(
    output: str, moved: float, off: float, op: str | None, atol: float | None
) -> str:
    """Return that rounding explains a difference.

    Args:
        output: The output that is furthest off.
        moved: The error of rounding alone.
        off: The error of the target.
        op: The operator that amplifies errors most, if one does.
        atol: A tolerance with which it passes, if one makes sense.
    """
    amplifies = f" {op} amplifies errors most." if op else ""
    tolerance = "" if atol is None else f", or a larger tolerance (--atol {rounded_up(atol)})"
    return (
        "Rounding explains the difference: if every tensor of the reference is perturbed in its last place, "
        f"'{output}' changes by {moved:.3g}; on the target it is off by {off:.3g}.{amplifies} "
        f"Use real inputs (--load-inputs){tolerance}."
    )
