"""``convert`` and ``extract``: write a model in lower precision, its engine, or a piece of a model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bisect_trt.commands.call import Call
from bisect_trt.commands.preflight import require_target
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.errors import ConflictError, MissingOptionError, ModelRefusedError, UnknownNameError
from bisect_trt.onnxlib.cleanup import sort_nodes
from bisect_trt.onnxlib.cut import extract
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.lower import LOW_TYPES, lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.qdq import has_quantized
from bisect_trt.onnxlib.save import said_beside, save_model
from bisect_trt.onnxlib.shapes import free_inputs
from bisect_trt.options.commands import Convert, Extract
from bisect_trt.options.shared import Data
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.npz import save_npz

_ONNX_SUFFIXES = (".onnx", ".onnxtxt", ".onnxjson", ".json", ".textproto", ".txtpb")


def run(call: Call) -> Result:
    """Write a model in fp16 or bf16, or its TensorRT engine.

    Raises:
        UsageError: An option is wrong, or the model or engine cannot be written.
        UnavailableError: The model cannot be read, or the target is not there or cannot build it.
    """
    own, target = call[Convert], call[Target]
    call.may_write(own.output, overwrite=own.overwrite)
    if own.calibration_cache is not None and not target.int8:
        raise MissingOptionError("--calibration-cache holds the ranges for INT8; add --int8.")
    if own.output.suffix in _ONNX_SUFFIXES:
        return _convert_to_onnx(call, own, target)
    runtime = (target if target.named() else target.but(trt=True)).required()
    if not runtime.target.engines:
        raise ConflictError(
            f"{runtime.target.title} has no engines to write to {own.output}; name TensorRT (--trt), or a .onnx file."
        )
    with call.open().examined(own.timeout, runtime, require=require_target) as session:
        subject, asked = session.subject, runtime
        if runtime.int8 and not has_quantized(subject.network.proto):
            samples = [subject.models.feed(f"inputs-{n}", sample) for n, sample in enumerate(subject.samples, 1)]
            runtime = runtime.target.calibrating(runtime, samples, own.calibration_cache)
        model, sample = subject.network.proto, subject.samples[0]
        failed = subject.models.build("convert", model, sample, own.output, runtime, own.timeout)
        if failed is not None:
            raise ModelRefusedError(
                f"{asked.describe()} cannot build {own.model}: {failed.message}; `bisect-trt reduce --trt` finds the smallest "
                "model with that message."
            )
        call.console.answer(f"{own.output}: the engine of {own.model}, {own.output.stat().st_size} bytes.")
        return _written(call.result, engine=own.output)


def _convert_to_onnx(call: Call, own: Convert, target: Target) -> Result:
    """Write the model with nodes of the low precision."""
    if target.named() or set(target.given()) - {"--fp16", "--bf16", "--keep-fp32"}:
        raise ConflictError("of a target's options only --fp16, --bf16 and --keep-fp32 fit an ONNX model.")
    if target.fp16 == target.bf16:
        raise MissingOptionError("an ONNX model is converted to fp16 or to bf16; add one of --fp16 and --bf16.")
    precision: Literal["fp16", "bf16"] = "bf16" if target.bf16 else "fp16"
    source, low = ModelSettings(own.model, call[Data]), LOW_TYPES[precision]
    model = load_model(source.path, source.data.external_data_dir)
    sort_nodes(model)
    first = {next(iter(node.output), "") for node in model.graph.node}
    for name in target.keep_fp32:
        if name not in first:
            raise UnknownNameError(
                f"--keep-fp32: no node makes '{name}' first; `bisect-trt inspect model {shlex.quote(str(own.model))} --show "
                "layers` lists them."
            )
    lowered = lower_fp16(model, target.keep_fp32, low=low, weights=source.weights)
    save_model(lowered, source.weights, own.output, beside=True)
    casts = sum(node.op_type == "Cast" for node in lowered.graph.node)
    call.console.answer(
        f"{own.output}: {own.model} in {precision}, {len(model.graph.node)} nodes before, {len(lowered.graph.node)} now, "
        f"{casts} of them Casts."
    )
    if (beside := said_beside(own.output)) is not None:
        call.console.answer(f"  {beside}")
    return _written(call.result, converted=own.output)


def extract_run(call: Call) -> Result:
    """Write a piece of the model, and the values of its inputs if the model's input values are given.

    Raises:
        UsageError: A name is no tensor of the model, or the piece cannot be written.
        UnavailableError: The model cannot be read, or the reference cannot run the nodes before the piece.
    """
    own, data = call[Extract], call[Data]
    values, sized = own.output.with_suffix(".inputs.npz") if data.given else None, bool(data.input_shapes)
    fixed = sized or values is not None  # else the piece's inputs keep free dimensions
    call.may_write(own.output, *([values] if values is not None else []), overwrite=own.overwrite)
    call.open()
    call.model = replace(call.model, stays_free=not fixed)
    with call.examined(own.timeout) as session:
        subject, result = session.subject, session.result
        network = subject.network if fixed else _as_in_file(subject)
        infos = network.infos
        starts, ends = _tensors(own.inputs, network), _tensors(own.outputs, network)
        piece, inputs = extract(network, starts, ends, infos)
        # The inputs of a valid model have types; a run finds those that shape inference does not.
        if values is not None or any(_unknown(infos.get(name), sized=sized) for name in inputs):
            if not fixed:
                subject.say_sizes()
            piece, inputs = extract(subject.network, starts, ends, subject.infos)
            unknown = [name for name in inputs if name not in subject.reference.infos]
            if unknown:
                raise ModelRefusedError(
                    f"the values of '{unknown[0]}' are unknown, because ONNX Runtime cannot run the nodes before it; start the "
                    "piece elsewhere."
                )
        save_model(piece, subject.workspace.weights.folder_of(piece), own.output)
        names = [value.name for value in piece.graph.output]
        call.console.answer(
            f"{own.output}: {len(piece.graph.node)} nodes from {', '.join(inputs)} to {', '.join(names)}."
        )
        if values is not None:
            save_npz(values, subject.reference.select(inputs))
            result.artifacts["inputs"] = str(values)
            call.console.answer(f"{values}: the values of its inputs.")
        return _written(result, extracted=own.output)


def _written(result: Result, **files: Path) -> Result:
    """Return the result with the files that were written."""
    result.artifacts |= {name: str(path) for name, path in files.items()}
    result.status, result.minimality = "found", "1-minimal"
    return result


def _as_in_file(subject: Subject) -> Network:
    """Return the network with the free dimensions of the file."""
    if not subject.has_free_dimensions:
        return subject.network
    return Network(free_inputs(subject.network.proto, subject.declared))


def _unknown(info: TensorInfo | None, *, sized: bool) -> bool:
    """Return whether the type or shape of an input can only be found by a run."""
    return info is None or info.shape is None or (sized and not info.is_static)


def _tensors(names: Sequence[str], network: Network) -> list[str]:
    """Return names of tensors without Polygraphy's suffix ``:auto:auto``."""
    known = {*network.producer, *network.inputs}
    return [name if name in known else name.removesuffix(":auto").removesuffix(":auto") for name in names]
