"""INT8 by calibration: TensorRT 8.6 to 10 find the ranges of a float model's tensors themselves, and choose layer by layer.

Nothing of it is in the model, so what goes back to floats is a set of layers, as with fp16: those that are told to run in
fp32. The ranges are found once, on the samples of the search, and every build reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.network import Network
from bisect_trt.graph.qdq import has_quantized
from bisect_trt.options.choices import Cost
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.bits.rungs import Assignment, kept_units, node_rungs
from bisect_trt.workflows.engine_layers import engine_layers
from bisect_trt.workflows.fit import lowers_by, require_target
from bisect_trt.workflows.precision.by_layer import ENGINES
from bisect_trt.workflows.precision.lowering import known_types
from bisect_trt.workflows.precision.task import UNUSED_RANGES, PrecisionSettings, Task
from bisect_trt.workflows.subject import Subject


def is_calibrated(subject: Subject, settings: PrecisionSettings) -> bool:
    """Whether 8 bits are the target's own choice: the model has no Q/DQ, and the target calibrates.

    Raises:
        UnavailableError: The target is not there.
        UsageError: Ranges are given to a search that has no use for them.
    """
    target = settings.target
    able = target is not None and target.int8 and target.target.engines is not None
    if able and target is not None and not has_quantized(subject.network.proto):
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
    if settings.cost is Cost.BYTES:
        raise UsageError(
            "--cost bytes: TensorRT chooses the types of weights as it builds, so their bytes are not known; drop it, because it "
            "goes by latency."
        )
    if settings.rungs:  # in what it may choose among, each layer runs in what TensorRT measured to be the fastest
        target = replace(target, fp16=settings.half == "fp16", bf16=settings.half == "bf16")
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


_RUNGS = {"int8": "int8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def rungs_chosen(
    network: Network, lowered: Collection[int], layers: Iterable[Mapping[str, Any]], ladder: Sequence[str]
) -> dict[int, str]:
    """The rung of each node that TensorRT chose it for, as far as its engine tells; else the first, which it may be on."""
    told = engine_layers(network, layers)
    chosen = dict.fromkeys(lowered, ladder[0])
    for index in lowered:
        made = {_RUNGS.get(kind) for kind in told[index].precisions} if index in told else set()
        chosen[index] = next((rung for rung in ladder if rung in made), ladder[0])
    return chosen


def calibrated_ladder(task: Task) -> dict[str, Any]:
    """For the result of a search among nodes that are calibrated: which is on which rung, and what it costs."""
    network, ladder, extra = task.subject.network, task.settings.rungs, task.result.extra
    keep = kept_units(task)
    outcome = task.prober.ledger.outcome(task.lowering.candidate(keep).key)
    lowered = [network.order[unit] for unit in task.lowering.units if unit not in keep]
    chosen = rungs_chosen(network, lowered, () if outcome is None else outcome.layers, ladder)
    nodes = node_rungs(network, chosen, (), None, known_types(task.subject))
    latency = extra["latency_ms"] or {}
    every = f"{', '.join(ladder[:-1])} and {ladder[-1]}"
    found = [Assignment(every, None, latency.get("mixed")), Assignment("fp32", None, latency.get("fp32"))]
    faster = found[1].cost(Cost.LATENCY) < found[0].cost(Cost.LATENCY)
    return {
        "rungs": [*ladder],
        "counts": {rung: sum(node["rung"] == rung for node in nodes) for rung in ladder},
        "nodes": nodes,
        "cost": {"by": "latency", "chosen": every, "assignments": [each.to_json() for each in found]},
        "why": "all of it in fp32 was faster" if faster else None,
    }
