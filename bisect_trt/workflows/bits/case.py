"""What a search for quantized groups is about, before anything is probed: the groups, what is right, what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bisect_trt.errors import UsageError
from bisect_trt.graph.nodes import all_nodes
from bisect_trt.graph.qdq import TYPES, Group, Quantized
from bisect_trt.graph.qdq_groups import find_quantized
from bisect_trt.probing.activations import Reference
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.bits.contradicted import with_contradictions
from bisect_trt.workflows.bits.group_lowering import GroupLowering
from bisect_trt.workflows.bits.guessed import guess_inputs
from bisect_trt.workflows.bits.measured import find_misfits
from bisect_trt.workflows.bits.misfit import BAD, Misfit, usual_ratio
from bisect_trt.workflows.bits.odd_weights import with_suspicions
from bisect_trt.workflows.bits.plain import Plain, make_plain
from bisect_trt.workflows.bits.yardstick import Yardstick, measure_yardstick
from bisect_trt.workflows.fit import require_target
from bisect_trt.workflows.precision.task import PrecisionSettings
from bisect_trt.workflows.settings import ModelSettings
from bisect_trt.workflows.subject import Subject

_LOOKED_AT = 4
"""Samples whose values are held against the scales."""
_RANDOM = 4
FEW = 0.05
"""The share of fresh samples that may fail, none of them severely: calibration on other data leaves some out of range."""


@dataclass(frozen=True)
class Case:
    """What a search for quantized groups is about, before anything is probed.

    Attributes:
        lowering: Makes candidates.
        quantized: All that is quantized in the model.
        plain: The model in floats.
        misfits: How each pair fits, by group.
        yardstick: What the model is off by with scales that fit; ``None`` if that is not known.
    """

    lowering: GroupLowering
    quantized: Quantized
    plain: Plain
    misfits: Sequence[Sequence[Misfit]]
    yardstick: Yardstick | None


def with_samples(model: ModelSettings) -> ModelSettings:
    """The model with several random samples, where none are given: the error of one is a matter of chance."""
    data = model.data
    if data.load_inputs or data.data_loader_script is not None or data.iterations is not None:
        return model
    return replace(model, data=replace(data, iterations=_RANDOM))


def open_case(subject: Subject, settings: PrecisionSettings, *, guess: bool = False) -> Case:
    """Find the groups, and what is right: the model with none of them quantized.

    Args:
        subject: The model.
        settings: What was asked for.
        guess: Whether nothing is said of its inputs, so that they may be any.

    Raises:
        UsageError: It has none, or the model that it was made from does not fit it.
        UnavailableError: ONNX Runtime does not dequantize its weights.
    """
    quantized = find_quantized(subject.network)
    chosen = chosen_groups(subject, quantized, settings)
    if guess:
        words = guess_inputs(subject, lambda: make_plain(subject, chosen, settings.float_model))
        if words is not None:
            subject.console.say(f"no inputs are given; of those tried, the model's scales fit these best: {words}")
    plain = make_plain(subject, chosen, settings.float_model)
    assert "reference" not in vars(subject), "it would be a run of the quantized model"
    subject.truth, groups = plain.truth, plain.groups
    lowering = GroupLowering(subject, groups, plain.weights, "/".join(settings.bits))
    first = subject.reference
    if plain.truth is plain.network:
        references = [first, *first.more][:_LOOKED_AT]
    else:
        references = [
            Reference(plain.network, sample, subject.workspace, subject.models, 5001 + place, subject.swap_limit)
            for place, sample in enumerate(subject.samples[:_LOOKED_AT])
        ]
    misfits = [find_misfits(subject, plain, group.pairs, references) for group in groups]
    misfits = with_contradictions(subject, plain, with_suspicions(subject, plain, misfits))
    yardstick = None
    if settings.target is not None:
        yardstick = measure_yardstick(subject, plain, [each for found in misfits for each in found])
    return Case(lowering, quantized, plain, misfits, yardstick)


def typed_by_graph(subject: Subject, target: TargetSettings) -> TargetSettings:
    """The target, without the quantized types where it knows no option for them: a strongly typed build takes the graph's.

    Raises:
        UnavailableError: It is not there.
        UsageError: It has no such option.
    """
    plain = replace(target, int8=False, fp8=False)
    try:
        require_target(subject, target)
    except UsageError:
        if plain == target:
            raise
        require_target(subject, plain)
        return plain
    return target


def runs_or_emulated(subject: Subject, target: TargetSettings) -> tuple[TargetSettings, str | None]:
    """The target as it runs the quantized model; where a CPU's runtime does not, without what makes it refuse.

    Returns:
        The target, and how it had to be set up for it, if so.
    """
    plugin = target.target
    if not plugin.emulates_low(target):
        return target, None
    path = subject.models.write("quantized", subject.network.proto)
    inputs, made = (
        subject.models.feed("quantized-in", subject.samples[0]),
        subject.workspace.scratch("quantized.made.npz"),
    )
    failed = subject.models.collect(path, inputs, made, target)
    if failed is None:
        return target, None
    for title, other in plugin.alternatives(target):
        if other.runtime == target.runtime and subject.models.collect(path, inputs, made, other) is None:
            return other, (
                f"{target.describe()} does not run the quantized model ({failed.message}), so it is emulated there: "
                f"{title[0].lower()}{title[1:]}, where Q/DQ is computed in floats"
            )
    return target, None


def chosen_groups(subject: Subject, quantized: Quantized, settings: PrecisionSettings) -> list[Group]:
    """The groups of the types that are asked for.

    Raises:
        UsageError: There are none.
    """
    path, wanted = subject.settings.path, {name for bits in settings.bits for name in TYPES[bits]}
    types = sorted({pair.type_name for group in quantized.groups for pair in group.pairs if pair.kind != "bias"})
    chosen = [
        group
        for group in quantized.groups
        if any(pair.type_name in wanted for pair in group.pairs if pair.kind != "bias")
    ]
    asked = " and ".join(f"--{bits}" for bits in settings.bits)
    if chosen:
        return chosen
    if types:
        flags = " ".join(f"--{bits}" for bits, names in TYPES.items() if set(names) & set(types))
        raise UsageError(f"{path} has nothing quantized that {asked} is about, but {', '.join(types)}; give {flags}.")
    operators = integer_operators(subject)
    if operators:
        raise UsageError(
            f"{path} is quantized by operators that compute with integers themselves ({', '.join(operators[:4])}), which "
            f"cannot be taken back one by one; {_instead(operators)}."
        )
    left = next(iter(quantized.left.values()), None)
    if left is not None:
        raise UsageError(f"{path} has no QuantizeLinear/DequantizeLinear pair that can be taken out: {left}.")
    raise UsageError(
        f"{path} has no QuantizeLinear or DequantizeLinear node, so there is nothing to take back; quantize it first, for "
        "example by onnxruntime.quantization.quantize_static(..., quant_format=QuantFormat.QDQ) or ModelOpt, and give that "
        f"model, with --reference {path}."
    )


def integer_operators(subject: Subject) -> list[str]:
    """The operators of the model, its bodies and its functions that compute with integers themselves, by name."""
    return sorted({node.op_type for node in all_nodes(subject.network.proto) if _is_integer_operator(node.op_type)})


def _instead(operators: Sequence[str]) -> str:
    """What to do with a model that such operators quantize."""
    if any(op.startswith("DynamicQuantize") for op in operators):
        return (
            "what is quantized as the model runs has no stored scale that could be wrong, but for its weights: leave operators "
            "out (onnxruntime.quantization.quantize_dynamic: nodes_to_exclude) until it is right, or quantize by quantize_static "
            "in QDQ format and give that model"
        )
    return "quantize in QDQ format (onnxruntime.quantization: quant_format=QuantFormat.QDQ) and give that model"


def _is_integer_operator(op: str) -> bool:
    """ONNX's and ONNX Runtime's own, which take their weights quantized."""
    return op.startswith(("QLinear", "QOrdered", "DynamicQuantize")) or op in (
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MatMulBnb4",
        "MatMulFpQ4",
        "GatherBlockQuantized",
        "QMoE",
        "QGemm",
        "QAttention",
        "QEmbedLayerNormalization",
    )


def suspected(case: Case, least: float = BAD) -> list[int]:
    """The groups with a scale that does not fit, the worst first.

    Args:
        case: The search.
        least: By how many bits more than is usual in this model.
    """
    usual = math.log2(usual_ratio([each for found in case.misfits for each in found]))
    scores = {
        unit: max((each.bits_lost for each in case.misfits[unit] if each.bad), default=0.0)
        for unit in case.lowering.units
    }
    return [unit for unit in sorted(scores, key=lambda unit: (-scores[unit], unit)) if scores[unit] > least + usual]
