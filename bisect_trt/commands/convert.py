"""``convert`` and ``extract``: write a model in lower precision, its engine, or a piece of it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from bisect_trt.commands.call import Call
from bisect_trt.commands.preflight import require_target
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import ModelSettings
from bisect_trt.commands.subject import Subject
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
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.npz import save_npz


def convert_to_onnx(
    source: ModelSettings, options: Convert, target: Target, console: Console, result: Result
) -> Result:
    """Write the model with nodes of the low precision.

    Args:
        source: The model, which may have been exported from the file that is named in the options.
        options: What to write.
        target: Its precision, and the nodes to keep, each by the first tensor it makes.
        console: Prints the answer.
        result: Is filled in.

    Raises:
        UnavailableError: The model cannot be read.
        UsageError: The output cannot be written, a node to keep does not exist, or the model is too old to be lowered.
    """
    if target.named() or set(target.given()) - {"--fp16", "--bf16", "--keep-fp32"}:
        raise ConflictError("of a target's options only --fp16, --bf16 and --keep-fp32 fit an ONNX model.")
    if target.fp16 == target.bf16:
        raise MissingOptionError("an ONNX model is converted to fp16 or to bf16; add one of --fp16 and --bf16.")
    precision: Literal["fp16", "bf16"] = "bf16" if target.bf16 else "fp16"
    path, low = options.model, LOW_TYPES[precision]
    model = load_model(source.path, source.data.external_data_dir)
    sort_nodes(model)
    first = {next(iter(node.output), "") for node in model.graph.node}
    for name in target.keep_fp32:
        if name not in first:
            raise UnknownNameError(
                f"--keep-fp32: no node makes '{name}' first; `bisect-trt inspect model {shlex.quote(str(path))} --show layers` "
                "lists them."
            )
    lowered = lower_fp16(model, target.keep_fp32, low=low, weights=source.weights)
    save_model(lowered, source.weights, options.output, beside=True)
    casts = sum(node.op_type == "Cast" for node in lowered.graph.node)
    console.answer(
        f"{options.output}: {path} in {precision}, {len(model.graph.node)} nodes before, {len(lowered.graph.node)} now, "
        f"{casts} of them Casts."
    )
    if (beside := said_beside(options.output)) is not None:
        console.answer(f"  {beside}")
    return _written(result, converted=options.output)


def convert_to_engine(session: Session, options: Convert, target: TargetSettings) -> Result:
    """Build the model's engine for a target; INT8 is calibrated on the input samples, unless the model is quantized.

    Raises:
        UnavailableError: There is no TensorRT or no GPU, or it cannot build the model.
        UsageError: The output cannot be written.
    """
    subject, output, asked = session.subject, options.output, target
    samples = [subject.models.feed(f"inputs-{number}", sample) for number, sample in enumerate(subject.samples, 1)]
    if target.int8 and not has_quantized(subject.network.proto):
        target = target.target.calibrating(target, samples, options.calibration_cache)
    failed = subject.models.build("convert", subject.network.proto, subject.samples[0], output, target, options.timeout)
    if failed is not None:
        raise ModelRefusedError(
            f"{asked.describe()} cannot build {subject.settings.path}: {failed.message}; `bisect-trt reduce "
            "--trt` finds the smallest model with that message."
        )
    session.console.answer(f"{output}: the engine of {subject.settings.path}, {output.stat().st_size} bytes.")
    return _written(session.result, engine=output)


def extract_model(session: Session, options: Extract, values: Path | None = None, *, sized: bool = False) -> Result:
    """Write a piece of the model.

    Args:
        session: The model.
        options: Where the piece starts and ends, and the file to write.
        values: The file for the values that a run of the original has at the piece's inputs, if wanted.
        sized: Whether the sizes of the piece's inputs are fixed; else they are free where the original's are.

    Raises:
        UsageError: A name is no tensor of the model.
        UnavailableError: The values of an input are unknown, because ONNX Runtime cannot run the nodes before it.
    """
    subject, result, fixed = session.subject, session.result, sized or values is not None
    network = subject.network if fixed else _as_in_file(subject)
    infos = network.infos
    starts, ends = _tensors(options.inputs, network), _tensors(options.outputs, network)
    piece, inputs = extract(network, starts, ends, infos)
    # The input of a valid model has a type; a run knows those that shape inference does not find.
    if values is not None or any(_unknown(infos.get(name), sized=sized) for name in inputs):
        if not fixed:
            subject.say_sizes()
        piece, inputs = extract(subject.network, starts, ends, subject.infos)
        unknown = [name for name in inputs if name not in subject.reference.infos]
        if unknown:
            raise ModelRefusedError(
                f"the values of '{unknown[0]}' are not known, because ONNX Runtime cannot run what comes before it; "
                "start the piece elsewhere."
            )
    save_model(piece, subject.workspace.weights.folder_of(piece), options.output)
    ends = [value.name for value in piece.graph.output]
    session.console.answer(
        f"{options.output}: {len(piece.graph.node)} nodes from {', '.join(inputs)} to {', '.join(ends)}."
    )
    if values is not None:
        save_npz(values, subject.reference.select(inputs))
        result.artifacts["inputs"] = str(values)
        session.console.answer(f"{values}: the values of its inputs.")
    return _written(result, extracted=options.output)


def _written(result: Result, **files: Path) -> Result:
    """Return the result with the files that were written."""
    result.artifacts |= {name: str(path) for name, path in files.items()}
    result.status, result.minimality = "found", "1-minimal"
    return result


def _as_in_file(subject: Subject) -> Network:
    """Return the network whose inputs have the free dimensions of the file."""
    if all(isinstance(dim, int) for shape in subject.declared.values() for dim in shape):
        return subject.network
    return Network(free_inputs(subject.network.proto, subject.declared))


def _unknown(info: TensorInfo | None, *, sized: bool) -> bool:
    """Return whether only a run shows the type and shape of an input."""
    return info is None or info.shape is None or (sized and not info.is_static)


def _tensors(names: Sequence[str], network: Network) -> list[str]:
    """Return names of tensors without Polygraphy's suffix ``:auto:auto``."""
    known = {*network.producer, *network.inputs}
    return [name if name in known else name.removesuffix(":auto").removesuffix(":auto") for name in names]


_ONNX_SUFFIXES = (".onnx", ".onnxtxt", ".onnxjson", ".json", ".textproto", ".txtpb")


def run(call: Call) -> Result:
    """Write a model in fp16 or bf16, or its TensorRT engine.

    Raises:
        UsageError: An option is wrong, or the model or engine cannot be written.
        UnavailableError: The model cannot be read, or the target is not there.
    """
    own, target = call[Convert], call[Target]
    call.may_write(own.output, overwrite=own.overwrite)
    if own.calibration_cache is not None and not target.int8:
        raise MissingOptionError("--calibration-cache holds the ranges for INT8; add --int8.")
    if own.output.suffix in _ONNX_SUFFIXES:
        return convert_to_onnx(ModelSettings(own.model, call[Data]), own, target, call.console, call.result)
    runtime = (target if target.named() else target.but(trt=True)).required()
    if not runtime.target.capabilities.engines:
        raise ConflictError(
            f"{runtime.target.title} has no engines to write to {own.output}; name TensorRT (--trt), or a .onnx file."
        )
    # What is to be quantized is calibrated there.
    with call.open().examined(own.timeout, runtime, require=require_target) as session:
        return convert_to_engine(session, own, runtime)


def extract_run(call: Call) -> Result:
    """Cut a piece out of a model.

    Raises:
        UsageError: An option is wrong, or the piece cannot be written.
        UnavailableError: The model cannot be read, or the reference cannot run it.
    """
    own, data = call[Extract], call[Data]
    values = own.output.with_suffix(".inputs.npz") if data.given else None
    sized = bool(data.input_shapes)
    call.may_write(own.output, *([values] if values is not None else []), overwrite=own.overwrite)
    call.open()
    call.model = replace(call.model, stays_free=not (sized or values is not None))
    with call.examined(own.timeout) as session:
        return extract_model(session, own, values, sized=sized)
