"""``convert``, ``extract`` and ``sanitize``: what writes another model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from bisect_trt.cli.jobs import exported, open_job
from bisect_trt.commands.convert import EngineSettings, ExtractSettings, LowerSettings, convert_to_onnx
from bisect_trt.commands.from_options import model_settings
from bisect_trt.commands.from_torch import SUFFIX
from bisect_trt.commands.sanitize import SanitizeSettings
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.commands import Convert, Extract, Sanitize
from bisect_trt.options.shared import Data
from bisect_trt.options.spec import Params
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.worker.guard import scratch

_ONNX_SUFFIXES = (".onnx", ".onnxtxt", ".onnxjson", ".json", ".textproto", ".txtpb")


def convert(given: Params, console: Console, result: Result) -> Result:
    """Write a model in fp16 or bf16, or its TensorRT engine."""
    own, target, data = given[Convert], given[Target], given[Data]
    check_output(own.output, overwrite=own.overwrite)
    if own.calibration_cache is not None and not target.int8:
        raise UsageError("--calibration-cache holds the ranges for INT8, and that is not asked for; add --int8.")
    if own.output.suffix in _ONNX_SUFFIXES:
        settings = _lowering(own, target)
        model = model_settings(own.model, data)
        with scratch() if own.model.suffix == SUFFIX else nullcontext() as folder:
            model = model if folder is None else exported(model, Path(folder), console, result)
            convert_to_onnx(model, own.output, settings, console, result)
        if folder is not None:  # the model that was exported went with its folder
            del result.extra["export"]["model"]
        return result
    if own.fp_to_fp16 or own.io_fp16:
        flag = "--fp-to-fp16" if own.fp_to_fp16 else "--io-fp16"
        raise UsageError(f"{flag} is about the ONNX model that is written, and {own.output} is an engine; use --fp16.")
    runtime = (target if target.named() else target.but(trt=True)).required()
    if runtime.target.engines is None:
        raise UsageError(
            f"{runtime.target.title} has no engines to write to {own.output}; name TensorRT (--trt), or a .onnx file."
        )
    job = open_job(own.model, given, console, result)
    return job.build(EngineSettings(runtime, own.output, own.timeout, own.calibration_cache))


def _lowering(own: Convert, target: Target) -> LowerSettings:
    """How an ONNX model is lowered.

    Raises:
        UsageError: Not to exactly one precision, or a target is named.
    """
    if target.named() or set(target.given()) - {"--fp16", "--bf16", "--keep-fp32"}:
        raise UsageError(
            "an ONNX model is written for any runtime; of a target's options only --fp16, --bf16 and --keep-fp32 fit."
        )
    fp16 = target.fp16 or own.fp_to_fp16
    if fp16 == target.bf16:
        raise UsageError("an ONNX model is converted to fp16 or to bf16; add one of --fp16 and --bf16.")
    return LowerSettings(own.model, "fp16" if fp16 else "bf16", tuple(target.keep_fp32), own.io_fp16)


def extract(given: Params, console: Console, result: Result) -> Result:
    """Cut a piece out of a model."""
    own, data = given[Extract], given[Data]
    with_inputs = bool(data.load_inputs or data.data_loader_script)
    ends = tuple(own.inputs), tuple(own.outputs)
    settings = ExtractSettings(*ends, own.output, bool(data.input_shapes), with_inputs, own.timeout)
    check_output(settings.output, overwrite=own.overwrite)
    if with_inputs:
        check_output(settings.values, overwrite=own.overwrite)
    return open_job(own.model, given, console, result).extract(settings)


def sanitize(given: Params, console: Console, result: Result) -> Result:
    """Fold constants and clean a model up."""
    own = given[Sanitize]
    settings = SanitizeSettings(
        own.output,
        own.override_input_shapes,
        own.fold_constants,
        own.shape_inference,
        own.cleanup,
        own.toposort,
        own.timeout,
    )
    check_output(own.output, overwrite=own.overwrite)
    job = open_job(own.model, given, console, result, input_shapes=own.override_input_shapes)
    return job.sanitize(settings)
