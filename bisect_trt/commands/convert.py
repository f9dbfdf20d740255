"""A model in another form: in half precision, or as an engine."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import ModelSettings
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.cleanup import sort_nodes
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.lower import LOW_TYPES, lower_fp16, lower_io, store_weights
from bisect_trt.onnxlib.qdq import has_quantized
from bisect_trt.onnxlib.save import said_beside, save_model
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import TargetSettings


@dataclass(frozen=True)
class LowerSettings:
    """How to lower a model.

    Attributes:
        named: The file that the user named, which the model may have been exported from.
        precision: What to.
        keep: Nodes that stay in fp32, each by the first tensor it makes.
        lower_ends: Whether the graph's inputs and outputs are lowered too.
    """

    named: Path
    precision: Literal["fp16", "bf16"]
    keep: tuple[str, ...] = ()
    lower_ends: bool = False


def convert_to_onnx(
    source: ModelSettings, output: Path, settings: LowerSettings, console: Console, result: Result
) -> Result:
    """Write the model with real nodes of the low precision.

    Raises:
        UnavailableError: The model cannot be read.
        UsageError: The output cannot be written, a name is no node's, or the model is too old to be lowered.
    """
    path, low = settings.named, LOW_TYPES[settings.precision]
    model = load_model(source.path, source.external_data_dir)
    sort_nodes(model)
    first = {next(iter(node.output), "") for node in model.graph.node}
    for name in settings.keep:
        if name not in first:
            raise UsageError(
                f"--keep-fp32: no node makes '{name}' first; `bisect-trt inspect model {shlex.quote(str(path))} --show layers` "
                "lists them."
            )
    lowered = lower_fp16(model, settings.keep, low=low)
    if settings.lower_ends:
        lowered = lower_io(lowered, low)
    store_weights(lowered, source.weights, low)
    save_model(lowered, source.weights, output, beside=True)
    casts = sum(node.op_type == "Cast" for node in lowered.graph.node)
    result.artifacts["converted"] = str(output)
    result.status, result.minimality = "found", "1-minimal"
    console.answer(
        f"{output}: {path} in {settings.precision}, {len(model.graph.node)} nodes before, {len(lowered.graph.node)} now, "
        f"{casts} of them Casts."
    )
    if (beside := said_beside(output)) is not None:
        console.answer(f"  {beside}")
    return result


@dataclass(frozen=True)
class EngineSettings:
    """How to build an engine.

    Attributes:
        target: TensorRT with its options.
        output: Where it goes.
        timeout: Seconds it may take.
        calibration_cache: Where the ranges for INT8 are read from, if it is there, and else written to.
    """

    target: TargetSettings
    output: Path
    timeout: float | None = None
    calibration_cache: Path | None = None


def convert_to_engine(session: Session, settings: EngineSettings) -> Result:
    """Build the model's engine; in INT8 with ranges found on the input samples, unless the model itself is quantized.

    Raises:
        UnavailableError: There is no TensorRT or no GPU, or it cannot build the model.
        UsageError: The output cannot be written.
    """
    subject, result, target, output = session.subject, session.result, settings.target, settings.output
    samples = [subject.models.feed(f"inputs-{number}", sample) for number, sample in enumerate(subject.samples, 1)]
    if target.int8 and not has_quantized(subject.network.proto):
        assert target.target.engines is not None  # or there would be none to build
        target = target.target.engines.calibrate(target, samples, settings.calibration_cache)
    failed = subject.models.build(
        "convert", subject.network.proto, subject.samples[0], output, target, settings.timeout
    )
    if failed is not None:
        raise UnavailableError(
            f"{settings.target.describe()} cannot build {subject.settings.path}: {failed.message}; `bisect-trt reduce "
            "--trt` finds the smallest model with that message."
        )
    result.artifacts["engine"] = str(output)
    result.status, result.minimality = "found", "1-minimal"
    session.console.answer(f"{output}: the engine of {subject.settings.path}, {output.stat().st_size} bytes.")
    return result
