"""``convert``: writes a model in lower precision, or its engine."""

from __future__ import annotations

import shlex
from typing import Literal

from bisect_trt.errors import (
    ConflictError,
    MissingOptionError,
    UnknownNameError,
    UnsuitableModelError,
)
from bisect_trt.onnxlib.cleanup import (
    sort_nodes,
)
from bisect_trt.onnxlib.ends import narrow_ends
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.low_census import count_lowered
from bisect_trt.onnxlib.low_plan import LOW_TYPES
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import addressed, all_nodes
from bisect_trt.onnxlib.qdq import has_quantized
from bisect_trt.onnxlib.save import said_beside, save_model
from bisect_trt.options.commands import Convert
from bisect_trt.options.shared import Data
from bisect_trt.report.lowering import BUILT, CONVERTED, describe_left
from bisect_trt.report.result import Result
from bisect_trt.session.call import Call
from bisect_trt.session.places import require_target
from bisect_trt.session.subject import ModelSettings
from bisect_trt.targets.options import Target

_ONNX_SUFFIXES = (".onnx", ".onnxtxt", ".onnxjson", ".json", ".textproto", ".txtpb")


def run(call: Call) -> Result:
    """Write a model in fp16 or bf16, or its TensorRT engine."""
    options = call[Convert]
    target = call[Target]
    call.may_write(options.output, overwrite=options.overwrite)
    if options.calibration_cache is not None and not target.int8:
        raise MissingOptionError("--calibration-cache holds the ranges for INT8; add --int8.")
    to_onnx = options.output.suffix in _ONNX_SUFFIXES
    if options.io_fp16 and not (to_onnx and target.fp16):
        raise MissingOptionError(
            "--io-fp16 is for an ONNX model in fp16; add --fp16 and -o NAME.onnx."
        )
    if to_onnx:
        return _convert_to_onnx(call, options, target)
    runtime = (target if target.named() else target.but(trt=True)).required()
    if not runtime.target.engines:
        raise ConflictError(
            f"{runtime.target.title} has no engines to write to {options.output}; name TensorRT (--trt), or a .onnx file."
        )
    opened = call.open()
    with opened.examined(options.timeout, runtime, require=require_target) as session:
        subject = session.subject
        title = runtime.describe()
        if runtime.int8 and not has_quantized(subject.network.proto):
            runtime = runtime.target.calibrating(
                runtime, subject.feeds(), options.calibration_cache
            )
        model = subject.network.proto
        sample = subject.samples[0]
        failed = subject.models.build(
            "convert", model, sample, options.output, runtime, options.timeout
        )
        session.answered(failed, title)
        # A worker wrote the file already.
        call.paths.record(opened.workspace.folder, options.output, options.output)
        size = options.output.stat().st_size
        call.console.answer(BUILT.format(options.output, options.model, size))
        return call.result.wrote(engine=options.output)


def _convert_to_onnx(call: Call, options: Convert, target: Target) -> Result:
    """Write the model with nodes of the low precision."""
    if target.named() or set(target.given()) - {"--fp16", "--bf16", "--keep-fp32"}:
        raise ConflictError(
            "of a target's options only --fp16, --bf16 and --keep-fp32 fit an ONNX model."
        )
    if target.fp16 == target.bf16:
        raise MissingOptionError(
            "an ONNX model is converted to fp16 or to bf16; add one of --fp16 and --bf16."
        )
    precision: Literal["fp16", "bf16"] = "bf16" if target.bf16 else "fp16"
    source = ModelSettings(options.model, call[Data])
    model = load_model(source.path, source.data.external_data_dir)
    sort_nodes(model)
    addresses = {address for address, _ in addressed(model.graph)}
    if unknown := set(target.keep_fp32) - addresses:
        raise UnknownNameError(
            f"--keep-fp32: '{min(unknown)}' is the first output of no node; give that tensor, not the node's name: "
            f"`bisect-trt inspect model {shlex.quote(str(options.model))} --show layers` lists them.",
            min(unknown),
            addresses,
        )
    census = count_lowered(Network(model), target.keep_fp32, low=LOW_TYPES[precision])
    unchanged = describe_left(census, precision)
    # A file that is called fp16 and computes in fp32 would be deployed as it is.
    if not census.lowered:
        scope = " outside --keep-fp32" if target.keep_fp32 else ""
        reason = unchanged or f"no node computes in fp32{scope}"
        raise UnsuitableModelError(
            f"{options.model} cannot be converted to {precision}: {reason}. Nothing was written."
        )
    lowered = lower_fp16(model, target.keep_fp32, low=LOW_TYPES[precision], weights=source.weights)
    if options.io_fp16:
        lowered = narrow_ends(lowered)
    save_model(lowered, source.weights, options.output, beside=True)
    before = sum(1 for _ in all_nodes(model))
    nodes = list(all_nodes(lowered))
    casts = sum(node.op_type == "Cast" for node in nodes)
    call.console.answer(
        CONVERTED.format(options.output, options.model, precision, before, len(nodes), casts)
    )
    if unchanged:
        call.console.answer(f"  {unchanged}.")
    if (warning := said_beside(options.output)) is not None:
        call.console.answer(f"  {warning}")
    return call.result.wrote(converted=options.output)
