"""The Q/DQ groups of a quantized model as the space of a search: how well their scales fit, and what each costs alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
from msgspec import structs

from bisect_trt.errors import UnsuitableModelError, UsageError
from bisect_trt.mixed_precision.lowering import GroupLowering
from bisect_trt.mixed_precision.misfit import find_misfit
from bisect_trt.mixed_precision.plain import make_plain
from bisect_trt.mixed_precision.search import (
    BREAKS,
    PrecisionSettings,
    PrecisionSpace,
    Suspect,
    Task,
)
from bisect_trt.onnxlib.nodes import Node, all_nodes, label
from bisect_trt.onnxlib.qdq import TYPES, Group, Quantized, find_quantized
from bisect_trt.options.compare import ErrorStat
from bisect_trt.probe.reference import Reference
from bisect_trt.report.mixed import INTEGER_LEFT, QUANTIZED_EMULATED, QUANTIZED_LEFT
from bisect_trt.report.parts import QuantizedGroup, Unit
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Subset
from bisect_trt.session.places import require_target
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.onnxrt import OFF, OnnxRuntimeSettings
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed
from bisect_trt.worker.protocol import Sample as SampleFiles

ALLOWED = 0.05
"""The share of fresh samples that may fail, none of them severely: calibration on other data leaves
some out of range."""
SHARES = {"int8": 0.05, "fp8": 0.12, "int4": 0.3}
"""The mean absolute error that an output may have, as a share of its mean absolute deviation,
unless the user gives a tolerance.

About twice what models of a few layers are off by with scales that fit; of several types the
largest counts.
"""
_BAD = 1.5
_CLEAR = 3.0
"""A scale that costs so many bits is suspected; one that costs so many is wrong whatever the
samples show."""
_LOOKED_AT = 4
_MEASURED = 2
_RANDOM = 4
"""Samples that scales are compared with; samples on which each group is measured; random samples
where none are given."""
_INTEGER = ("QLinear", "QOrdered", "DynamicQuantize", "MatMulInteger", "MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "ConvInteger",
            "GatherBlockQuantized", "QMoE", "QGemm", "QAttention", "QEmbedLayerNormalization")  # fmt: skip
"""Prefixes of ONNX's and ONNX Runtime's operators that compute with integers."""


class GroupSpace(PrecisionSpace):
    """The Q/DQ groups of the types that are searched."""

    noun = "group"
    high = "floats"
    state = "quantized"
    cause = "quantization"
    allowed = ALLOWED
    # Rescaled samples would leave the ranges that were calibrated.
    ways = ("alike", "permuted")

    lowering: GroupLowering

    def __init__(self, subject: Subject, settings: PrecisionSettings) -> None:
        """Find the groups, and make the model with none of them quantized the reference.

        Raises:
            UsageError: It has none, or the model before quantization does not fit it.
            UnavailableError: ONNX Runtime does not dequantize its weights.
        """
        quantized = find_quantized(subject.network)
        chosen = _chosen_groups(subject, quantized, settings)
        self.plain = make_plain(subject, chosen, settings.options.reference)
        assert not subject.has_reference, "it would be a run of the quantized model"
        # The quantized model is what is doubted, so the floats it was made of are right.
        subject.truth = self.plain.truth
        self.groups = self.plain.groups
        self._settings = settings
        self._left = quantized.left
        lowering = GroupLowering(subject, self.groups, self.plain.weights, settings.low)
        super().__init__(subject, lowering, ())
        self.values = self._reference()
        references = [self.values, *self.values.more][:_LOOKED_AT]
        self.misfits = [
            [find_misfit(subject, self.plain, pair, references) for pair in group.pairs]
            for group in self.groups
        ]
        self._everything: float | None = None
        """The error with all groups quantized."""
        self._alone: dict[str, list[float | None]] = {}
        """The errors with each group alone in floats (``removed``), and alone quantized
        (``quantized``), if measured."""
        self._lost = [
            max((misfit.bits_lost for misfit in misfits if misfit.bad), default=0.0)
            for misfits in self.misfits
        ]
        self.suspects = [
            Suspect(unit, BREAKS + min(self._lost[unit], 32.0) / 33, *self._reason(unit))
            for unit in sorted(lowering.units, key=lambda unit: (-self._lost[unit], unit))
            if self._lost[unit] > _BAD
        ]

    @property
    def certain(self) -> Subset:
        """The groups with a scale that is wrong whatever it does on the samples given."""
        return frozenset(unit for unit in self.lowering.units if self._lost[unit] > _CLEAR)

    def _reason(self, unit: int) -> tuple[str, str]:
        """The rule and the sentence of the worst problem of a group; empty if there is none."""
        for misfit in sorted(self.misfits[unit], key=lambda misfit: -misfit.bits_lost):
            for rule, sentence in misfit.problems:
                return rule.value, f"'{misfit.pair.tensor}': {sentence}"
        return "", ""

    @property
    def walk(self) -> Sequence[int]:
        """The groups that cost least alone first."""
        return self.order([])[::-1] if self._alone else self.lowering.units

    def order(self, failing: Sequence[Sample]) -> list[int]:  # noqa: ARG002 - scales were compared with given samples
        """The groups that cost most alone first; where that is not measured, the ones with the worst scales."""
        costs = [cost or 0.0 for cost in self._alone.get("quantized", self._lost)]
        return sorted(self.lowering.units, key=lambda unit: (-costs[unit], unit))

    def label(self, unit: int) -> str:
        """The name of a group."""
        return self.groups[unit].name

    def describe(self, units: Subset) -> list[Unit]:
        """Groups as nodes are described: the first operator, and what the group has."""
        return [self._entry(unit) for unit in sorted(units)]

    def _entry(self, unit: int) -> Unit:
        group = self.groups[unit]
        network = self.subject.network.flat
        operators = [*map(network.plain, group.operators)]
        first = next(iter(operators), Node(name="", op="", outputs=(group.name,)))
        points = (pair.zero_point for pair in group.pairs)
        nodes = (label(network.nodes[index]) for pair in group.pairs for index in pair.nodes)
        return Unit(
            name=first.name or group.name,
            op=first.op,
            outputs=first.outputs,
            module=first.module,
            group=unit,
            operators=tuple(node.name or next(iter(node.outputs), "") for node in operators),
            nodes=tuple(nodes),
            scales=tuple(dict.fromkeys(pair.scale for pair in group.pairs)),
            zero_points=tuple(dict.fromkeys(point for point in points if point is not None)),
            tensors=tuple(pair.tensor for pair in group.pairs),
            bad_scales=tuple(
                dict.fromkeys(misfit.pair.scale for misfit in self.misfits[unit] if misfit.bad)
            ),
        )

    def culprits(self, units: Subset) -> list[Node]:
        """The operators of some groups."""
        return [
            node
            for unit in sorted(units)
            for node in map(self.subject.network.flat.plain, self.groups[unit].operators)
        ]

    def fill_in(self, result: Result, kept: Subset, minimal: Subset) -> None:
        """Put the table of groups and the reference into a result."""
        original = self._settings.options.reference
        result.groups = [self._row(unit, kept, minimal) for unit in self.lowering.units]
        result.not_lowered = len(self._left)
        result.reference = "the model without Q/DQ" if original is None else str(original)
        result.error_all_quantized = _finite(self._everything)

    def _row(self, unit: int, kept: Subset, minimal: Subset) -> QuantizedGroup:
        """A group of the table."""
        single_errors = self._alone
        network = self.subject.network.flat
        entry = self._entry(unit)
        misfits = self.misfits[unit]
        rule, sentence = self._reason(unit)
        return QuantizedGroup(
            id=unit,
            name=self.groups[unit].name,
            operators=tuple(map(network.plain, self.groups[unit].operators)),
            nodes=entry.nodes or (),
            scales=entry.scales or (),
            zero_points=entry.zero_points or (),
            tensors=tuple(misfit.to_part(network) for misfit in misfits),
            kept=unit in kept,
            minimal=unit in minimal,
            suspected=any(suspect.unit == unit for suspect in self.suspects),
            bits_lost=round(max((misfit.bits_lost for misfit in misfits), default=0.0), 3),
            error_alone_removed=_finite(single_errors["removed"][unit]) if single_errors else None,
            error_alone_quantized=_finite(single_errors["quantized"][unit])
            if single_errors
            else None,
            rule=rule or None,
            reason=sentence or None,
        )

    def measure(self, task: Task) -> None:
        """Measure each group alone, both ways, and all of them, on ONNX Runtime's CPU provider, optimisations off.

        That computes what Q/DQ says, whichever target the search is for: for all groups a target
        that builds engines would take hours. It decides nothing.
        """
        check = task.prober.check
        if check.tolerances is None:
            return
        error = _meter(self.subject, check.tolerances)
        units = self.lowering.units
        everything = frozenset(units)
        if self._settings.options.sensitivity:
            task.console.step("What does each group cost, alone?")
            self._alone = {
                "removed": [
                    error(self.lowering.candidate(frozenset({unit})).proto) for unit in units
                ],
                "quantized": [
                    error(self.lowering.candidate(everything - {unit}).proto) for unit in units
                ],
            }
        self._everything = error(self.lowering.candidate(frozenset()).proto)

    def _reference(self) -> Reference:
        subject = self.subject
        plain = self.plain
        if plain.truth is plain.network:
            return subject.reference
        return subject.run_reference(plain.network, 5001)

    def notes(self) -> Iterator[str]:
        """Return a sentence for each quantized part that is neither searched nor removed from the reference."""
        skipped = self._left
        operators = _integer_operators(self.subject)
        if skipped:
            yield QUANTIZED_LEFT.format(len(skipped), next(iter(skipped.values())))
        if operators:
            yield INTEGER_LEFT.format(", ".join(operators[:4]))
        if self.plain.why is not None:
            yield self.plain.why


def _meter(
    subject: Subject, tolerance: ToleranceOptions
) -> Callable[[onnx.ModelProto], float | None]:
    """A function that measures the error of a model on some samples of the search, in units of the tolerance.

    It is the largest of any output, infinite for a NaN, and ``None`` where the model does not run;
    past 1 the model fails.
    """
    models = subject.models
    outputs = tuple(subject.network.outputs)
    samples = tuple(
        SampleFiles(
            models.feed(f"sensitivity-in-{place}", reference.inputs),
            models.feed(f"sensitivity-out-{place}", reference.select(outputs)),
        )
        for place, reference in enumerate([subject.reference, *subject.reference.more][:_MEASURED])
    )

    def error(model: onnx.ModelProto) -> float | None:
        path = models.write("sensitivity", model)
        request = Compare(models.reference, path, samples, tolerance, names=outputs, every=True)
        reply = models.ask(request)
        return (
            None
            if isinstance(reply, Failed)
            else max((comparison.tolerance_ratio for comparison in reply.comparisons), default=None)
        )

    return error


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


def with_samples(model: ModelSettings) -> ModelSettings:
    """The model with several random samples, where none are given: the error of one is a matter of chance."""
    data = model.data
    if data.given or data.iterations is not None:
        return model
    return structs.replace(model, data=replace(data, iterations=_RANDOM))


def tolerance_of(
    subject: Subject, options: ToleranceOptions, bits: Sequence[str]
) -> ToleranceOptions:
    """The tolerance of a model that is quantized to some types: the user's, else a mean absolute error by ``SHARES``.

    Args:
        subject: The quantized model; its reference outputs give the size of values.
        options: The tolerance of the user.
        bits: The quantized types, of ``SHARES``; the widest share applies.
    """
    # 8 bits have no automatic tolerance of their own; bf16's is the widest that there is.
    options = replace(options, precision=Precision.BF16)
    if (
        options.compare_func_script is not None
        or options.atol
        or options.rtol
        or options.check_error_stat
    ):
        return options
    atol = {}
    share = max(SHARES[precision] for precision in bits)
    for name, value in subject.reference.select(subject.network.outputs).items():
        if value.dtype.kind in "fiub" and value.size:
            exact = value.astype(np.float64)
            # A constant offset is no signal; where there is nothing else, its size has to do.
            size = float(np.mean(np.abs(exact - exact.mean()))) or float(np.mean(np.abs(exact)))
            atol[name] = max(share * size, 1e-12)
    return replace(
        options,
        atol=atol,
        rtol=dict.fromkeys(atol, 0.0),
        check_error_stat=dict.fromkeys(atol, ErrorStat.MEAN),
    )


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
    """The target as it runs the quantized model; where a CPU's runtime does not, with Q/DQ computed in floats.

    Returns:
        The target, and how it had to be set up for it, if so.
    """
    plugin = target.target
    models = subject.models
    if not plugin.emulates_low(target):
        return target, None
    proto = subject.network.proto
    sample = subject.samples[0]
    failed = models.run("quantized", proto, sample, target)
    if isinstance(failed, Failed) and isinstance(target.of(plugin.own), OnnxRuntimeSettings):
        unoptimized = target.with_own(graph_optimization_level=OFF)
        if not isinstance(models.run("quantized", proto, sample, unoptimized), Failed):
            return unoptimized, QUANTIZED_EMULATED.format(target.describe(), failed.message)
    return target, None


def _chosen_groups(
    subject: Subject, quantized: Quantized, settings: PrecisionSettings
) -> list[Group]:
    """The groups of the types that are searched.

    Raises:
        UsageError: There are none.
    """
    path = subject.settings.path
    wanted = {name for bits in settings.bits for name in TYPES[bits]}
    types = {
        group: {p.type_name for p in group.pairs if p.kind != "bias"} for group in quantized.groups
    }
    chosen = [group for group in quantized.groups if types[group] & wanted]
    operators = ", ".join(_integer_operators(subject)[:4])
    skipped = next(iter(quantized.left.values()), None)
    if chosen:
        return chosen
    if types:
        stored = set().union(*types.values())
        flags = " ".join(f"--{bits}" for bits, names in TYPES.items() if set(names) & stored)
        options = " and ".join(f"--{bits}" for bits in settings.bits)
        reason = f"nothing quantized for {options}, but {', '.join(sorted(stored))}; give {flags}"
    elif operators:
        reason = (
            f"operators that compute with integers themselves ({operators}), which cannot be searched one by one; quantize in "
            "QDQ format (onnxruntime.quantization.quantize_static: quant_format=QuantFormat.QDQ) and give that model"
        )
    elif skipped is not None:
        reason = f"no QuantizeLinear/DequantizeLinear pair that can be taken out: {skipped}"
    else:
        reason = (
            "no QuantizeLinear or DequantizeLinear node, so there is nothing to search; quantize it first, for example by "
            "onnxruntime.quantization.quantize_static(..., quant_format=QuantFormat.QDQ) or ModelOpt, and give that model, with "
            f"--reference {path}"
        )
    raise UnsuitableModelError(f"{path} has {reason}.")


def _integer_operators(subject: Subject) -> list[str]:
    """The operators of the model, its bodies and its functions that compute with integers themselves, by name."""
    return sorted(
        {
            node.op_type
            for node in all_nodes(subject.network.proto)
            if node.op_type.startswith(_INTEGER)
        }
    )
