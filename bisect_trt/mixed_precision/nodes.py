"""The nodes of a float model as the space of a search: which may be lowered, and which are likely to need fp32."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.commands.binding import require_target
from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ConflictError, ModelRefusedError, UnsuitableModelError, ValueRefusedError
from bisect_trt.mixed_precision.lowering import (
    ENGINES,
    CastLowering,
    LayerLowering,
    lowerable_units,
    refuse_lowered,
)
from bisect_trt.mixed_precision.search import UNUSED_RANGES, Low, Lowering, PrecisionSettings, PrecisionSpace
from bisect_trt.mixed_precision.suspicion import INSIDE, Errors, Sensitivity, suspect
from bisect_trt.onnxlib.qdq import has_quantized
from bisect_trt.search.oracle import Subset
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

_MOST_GIVEN, _MOST_MEASURED = 4, 12
"""The numbers of given and of failing fresh samples on which the error of each node is measured."""


class NodeSpace(PrecisionSpace):
    """The nodes that compute in fp32 and may be lowered."""

    allowed = 0.01

    def __init__(self, subject: Subject, lowering: Lowering, settings: PrecisionSettings) -> None:
        """Look at the reference run; errors in fp16 and bf16 do not show which nodes INT8 breaks."""
        super().__init__(subject, lowering, ())
        self._sensitivity: Sensitivity | None = None
        self._errors, self._measured = list[Errors](), 0
        if settings.calibrated or subject.models.build_only:
            return
        tolerance = replace(settings.tolerance or ToleranceOptions(), precision=Precision(settings.precision))
        allowed = {}
        for name, value in subject.reference.select(subject.network.outputs).items():
            if value.dtype == np.float32 and np.isfinite(value).all():
                resolved = tolerance.for_output(name)[0].resolve(value, tolerance.precision)
                allowed[name] = resolved.atol, resolved.rtol
        nodes = [subject.network.order[unit] for unit in lowering.units]
        self._sensitivity = Sensitivity(subject, nodes, settings.precision, allowed)
        self._errors = self._sensitivity.errors(subject.samples[:_MOST_GIVEN])
        alone = np.max(self._errors, axis=0) if self._errors else None
        self.suspects = suspect(subject, lowering.units, settings.precision, alone)

    @property
    def certain(self) -> Subset:
        """The nodes that break the outputs alone, or would if they read twice as large values."""
        return frozenset(each.unit for each in self.suspects if each.score >= INSIDE)

    def order(self, failing: Sequence[Sample]) -> list[int]:
        """The nodes that use most of the tolerance on these samples first, then suspects, then the others from the input on.

        A node that breaks the tolerance alone counts as one. Errors of roundings add up as independent ones, so squares are
        added.
        """
        units, used = self.lowering.units, {each.unit: each.score for each in self.suspects}
        if self._errors and self._sensitivity is not None:
            self._errors += self._sensitivity.errors(failing[self._measured : _MOST_MEASURED])
            self._measured = len(failing)
            shares = np.square(np.minimum(self._errors, 1.0)).sum(axis=0)
            used = dict(zip(units, shares.tolist(), strict=True))
        return sorted(units, key=lambda unit: (-used.get(unit, 0.0), unit))

    def describe(self, units: Subset) -> list[dict[str, Any]]:
        """Names, operators and outputs of the nodes."""
        return self.subject.describe_searched(units)


def make_nodes(subject: Subject, settings: PrecisionSettings) -> NodeSpace:
    """The space of a float model.

    Raises:
        UsageError: The model is not an fp32 one, a pattern matches nothing, or there is nothing to lower.
    """
    refuse_lowered(subject.network, str(subject.settings.path))
    return NodeSpace(subject, make_lowering(subject, settings), settings)


def make_lowering(subject: Subject, settings: PrecisionSettings, left: Collection[int] = ()) -> Lowering:
    """The way of lowering nodes that the target needs.

    Raises:
        UsageError: A pattern matches nothing, or there is nothing to lower.
    """
    lowest, target, options = "fp16" if settings.calibrated else settings.precision, settings.target, settings.options
    units = lowerable_units(subject, lowest, options.include, options.exclude, left)
    cast = None if settings.calibrated else CastLowering(subject, units, settings)
    if target is not None and settings.by_layer:
        return LayerLowering(subject, units, target, cast, left)
    assert cast is not None, "a calibrated model is lowered layer by layer"
    return cast


def built_in_check(check: CheckSettings, subject: Subject, precision: Low) -> CheckSettings:
    """The check for candidates that are lowered already.

    The target takes them as they are. Tolerances that were not given become the low precision's, as numbers: the
    outputs are always the original's.

    Raises:
        UsageError: A tolerance names no output.
    """
    if check.target is None:
        return check
    tolerance = replace(check.tolerance, precision=Precision(precision))
    tolerance.check_names(subject.network.outputs)
    atol, rtol = dict(tolerance.atol), dict(tolerance.rtol)
    for name, value in subject.reference.select(subject.network.outputs).items():
        resolved = tolerance.for_output(name)[0].resolve(value, tolerance.precision)
        atol[name], rtol[name] = resolved.atol, resolved.rtol
    target = check.target if check.by_layer else replace(check.target, fp16=False, bf16=False)
    timed = target.target.compiles
    return replace(check, target=target, tolerance=replace(tolerance, atol=atol, rtol=rtol), timed=timed)


def is_calibrated(subject: Subject, settings: PrecisionSettings) -> bool:
    """Whether 8 bits are the target's own choice: the model has no Q/DQ, and the target calibrates.

    Raises:
        UnavailableError: The target is not there.
        UsageError: Ranges are given to a search that has no use for them.
    """
    target = settings.target
    able = target is not None and target.int8 and target.target.engines
    if able and target is not None and not has_quantized(subject.network.proto):
        require_target(subject, target)
        if subject.about(target) == "layer":
            return True
    if settings.options.calibration_cache is not None:
        raise ConflictError(f"--calibration-cache: of {subject.settings.path} {UNUSED_RANGES}; drop it.")
    return False


def calibrate(subject: Subject, settings: PrecisionSettings) -> PrecisionSettings:
    """Return the settings with ranges, which are calibrated if missing.

    Raises:
        UnavailableError: The model cannot be built in INT8.
        UsageError: The answer is to be something that has no place for it.
    """
    target, output = settings.target, settings.output
    assert target is not None  # or nothing would be calibrated
    if settings.rungs:
        raise UnsuitableModelError(
            f"--ladder: {subject.settings.path} has no Q/DQ to take out, and TensorRT chooses among the types itself; drop it."
        )
    if output.suffix not in ENGINES:
        raise ValueRefusedError(
            f"-o {output}: INT8 by calibration is in no ONNX model, so the answer is an engine; name it "
            f"{output.with_suffix('.engine')}."
        )
    cache = settings.options.calibration_cache or subject.workspace.folder / "calibration.cache"
    if not cache.is_file():
        _find_ranges(subject, target, cache)
    known = target.target.calibrating(target, (), cache)
    return replace(settings, target=known, precision="bf16", bits=(), by_layer=True, calibrated=True)


def _find_ranges(subject: Subject, target: TargetSettings, cache: Path) -> None:
    """Build once with the samples of the search."""
    samples = [subject.models.feed(f"calibration-{number}", sample) for number, sample in enumerate(subject.samples, 1)]
    subject.console.step(f"Find the ranges for INT8 on {len(samples)} input samples: {cache}")
    engine = subject.workspace.scratch("calibration.engine")
    found = target.target.calibrating(target, samples, cache)
    failed = subject.models.build("calibration", subject.network.proto, subject.samples[0], engine, found)
    engine.unlink(missing_ok=True)
    if failed is not None or not cache.is_file():
        why = "it leaves no ranges" if failed is None else failed.message
        raise ModelRefusedError(
            f"{target.describe()} cannot calibrate {subject.settings.path}: {why}; `bisect-trt convert --int8` is that step."
        )
