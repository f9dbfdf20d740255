"""INT8 by calibration: TensorRT 8.6 to 10 find the ranges of a float model's tensors themselves, and choose layer by layer.

Nothing of it is in the model, so what goes back to floats is a set of layers, as with fp16: those that are told to run in
fp32. The ranges are found once, on the samples of the search, and every build reads them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.qdq import is_dequantize, is_quantize
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.checks import lowers_by, require_target
from bisect_trt.workflows.precision.by_layer import ENGINES
from bisect_trt.workflows.precision.task import UNUSED_RANGES, PrecisionSettings
from bisect_trt.workflows.subject import Subject


def is_calibrated(subject: Subject, settings: PrecisionSettings) -> bool:
    """Whether 8 bits are the target's own choice: the model has no Q/DQ, and the target calibrates.

    Raises:
        UnavailableError: The target is not there.
        UsageError: Ranges are given to a search that has no use for them.
    """
    target, nodes = settings.target, subject.network.nodes
    able = target is not None and target.int8 and target.target.engines is not None
    if able and target is not None and not any(is_quantize(node) or is_dequantize(node) for node in nodes):
        require_target(subject, target)
        if lowers_by(subject, target) == "layer":
            return True
    if settings.calibration_cache is not None:
        raise UsageError(f"--calibration-cache: of {subject.settings.path} {UNUSED_RANGES}; drop it.")
    return False


def calibrate(subject: Subject, settings: PrecisionSettings) -> PrecisionSettings:
    """Find the ranges, unless they are there; what the search works with from then on.

    Raises:
        UnavailableError: The model cannot be built in INT8.
        UsageError: The answer is to be something that has no place for it.
    """
    target, output = settings.target, settings.output
    assert target is not None  # or nothing would be calibrated
    if settings.rungs:
        raise UsageError(
            "--ladder is of a quantized model, and this one has no Q/DQ: TensorRT chooses types for it layer by layer; give "
            "--int8, and --fp16 with it if that may be chosen too."
        )
    if output.suffix not in ENGINES:
        raise UsageError(
            f"-o {output}: INT8 by calibration is in no ONNX model, so the answer is an engine; name it "
            f"{output.with_suffix('.engine')}."
        )
    cache = settings.calibration_cache or subject.workspace.folder / "calibration.cache"
    if not cache.is_file():
        _find_ranges(subject, target, cache)
    engines = target.target.engines
    assert engines is not None
    known = engines.calibrate(target, (), cache)
    return replace(settings, target=known, precision="bf16", bits=(), by_layer=True, calibrated=True)


def _find_ranges(subject: Subject, target: TargetSettings, cache: Path) -> None:
    """Build once with the samples of the search."""
    samples = [subject.models.feed(f"calibration-{number}", sample) for number, sample in enumerate(subject.samples, 1)]
    engines = target.target.engines
    assert engines is not None
    subject.console.step(f"Find the ranges for INT8 on {len(samples)} input samples: {cache}")
    engine = subject.workspace.scratch("calibration.engine")
    found = engines.calibrate(target, samples, cache)
    failed = subject.models.build("calibration", subject.network.proto, subject.samples[0], engine, found)
    engine.unlink(missing_ok=True)
    if failed is not None or not cache.is_file():
        why = "it leaves no ranges" if failed is None else failed.message
        raise UnavailableError(
            f"{target.describe()} cannot calibrate {subject.settings.path}: {why}; `bisect-trt convert --int8` is that step."
        )
