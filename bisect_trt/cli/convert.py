"""``bisect-trt convert``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Data, General, Model, Target, seconds
from bisect_trt.cli.runs import open_run
from bisect_trt.errors import UsageError
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.convert import EngineSettings, LowerSettings, convert_to_onnx
from bisect_trt.workflows.sessions import Session

_ONNX_SUFFIXES = (".onnx", ".onnxtxt", ".onnxjson", ".json", ".textproto", ".txtpb")


class Form(str, Enum):
    """What to write."""

    ONNX = "onnx"
    TRT = "trt"


@command
def convert_command(
    model: Model,
    target: Target,
    data: Data,
    general: General,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where it goes.")],
    convert_to: Annotated[
        Form | None, typer.Option(help="What to write; default onnx if the file's name ends so, else an engine.")
    ] = None,
    fp_to_fp16: Annotated[bool, typer.Option("--fp-to-fp16", help="The same as --fp16, for an ONNX model.")] = False,
    io_fp16: Annotated[
        bool, typer.Option("--io-fp16", help="Lower the graph's inputs and outputs too, for an ONNX model.")
    ] = False,
    calibration_cache: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ranges for --int8: read if it is there, else written (TensorRT 8.6 to 10)."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time the build may take.", callback=seconds)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that exists.")] = False,
) -> None:
    """Write a model in fp16 or bf16, or its TensorRT engine."""

    def work(console: Console, result: Result) -> Result:
        check_output(output, overwrite=overwrite)
        form = convert_to or (Form.ONNX if output.suffix in _ONNX_SUFFIXES else Form.TRT)
        if calibration_cache is not None and not target.int8:
            raise UsageError("--calibration-cache holds the ranges for INT8, and that is not asked for; add --int8.")
        if form is Form.ONNX:
            return convert_to_onnx(
                data.settings(model), output, _lowering(target, fp_to_fp16, io_fp16), console, result
            )
        if fp_to_fp16 or io_fp16:
            option = "--fp-to-fp16" if fp_to_fp16 else "--io-fp16"
            raise UsageError(
                f"{option} is about the ONNX model that is written, and {output} is an engine; use --fp16."
            )
        target.trt = not target.onnxrt
        runtime = target.required()
        if runtime.target.engines is None:
            raise UsageError(
                f"ONNX Runtime has no engines to write to {output}; name TensorRT (--trt), or a .onnx file."
            )
        workspace = open_run("convert", model, data.files(), weights=data.external_data_dir)
        session = Session(data.settings(model), workspace, console, result)
        return session.build(EngineSettings(runtime, output, timeout, calibration_cache))

    finish(work, "convert", general)


def _lowering(target: Target, fp_to_fp16: bool, io_fp16: bool) -> LowerSettings:
    """How an ONNX model is lowered.

    Raises:
        UsageError: Not to exactly one precision, or a target is named.
    """
    if target != Target(fp16=target.fp16, bf16=target.bf16, keep_fp32=target.keep_fp32):
        raise UsageError(
            "an ONNX model is written for any runtime; of a target's options only --fp16, --bf16 and --keep-fp32 fit."
        )
    fp16 = target.fp16 or fp_to_fp16
    if fp16 == target.bf16:
        raise UsageError("an ONNX model is converted to fp16 or to bf16; add one of --fp16 and --bf16.")
    return LowerSettings("fp16" if fp16 else "bf16", tuple(target.keep_fp32), io_fp16)
