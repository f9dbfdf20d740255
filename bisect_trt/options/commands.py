"""The options of the commands about files and runs; the docstring of each group is the help of its command."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated

from bisect_trt.aliases import Names
from bisect_trt.options.reading import shape
from bisect_trt.options.shared import Model, Overwrite, RunFolder, time_out, to_file
from bisect_trt.options.spec import argument, counted, option, seconds, switch


class Show(str, Enum):
    """Details that ``inspect`` shows."""

    LAYERS = "layers"
    ATTRS = "attrs"
    WEIGHTS = "weights"
    VALUES = "values"


@dataclass(frozen=True)
class Extract:
    """Cut a piece out of a model; with input values given, also write the values of its inputs.

    Examples:
        extract model.onnx -o head.onnx --outputs conv1_out
        extract model.onnx -o tail.onnx --inputs a --load-inputs x.npz
    """

    model: Model
    output: Annotated[Path, to_file("Where the piece goes.")]
    inputs: Annotated[
        Names,
        option(metavar="TENSOR", help="Where the piece starts; default the graph's inputs."),
    ] = ()
    outputs: Annotated[
        Names, option(metavar="TENSOR", help="Where it ends; default the graph's outputs.")
    ] = ()
    timeout: Annotated[float | None, time_out("the reference", "10 minutes")] = None
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Sanitize:
    """Fold constants and clean a model up, and check that its results are the same.

    Examples:
        sanitize model.onnx -o folded.onnx
        sanitize model.onnx -o fixed.onnx --override-input-shapes x:[8]
    """

    model: Model
    output: Annotated[Path, to_file("Where the sanitised model goes.")]
    override_input_shapes: Annotated[
        dict[str, tuple[int, ...]],
        option(
            metavar="NAME:[D,...]",
            help="Give inputs these shapes, in the model that is written too.",
            read=shape,
            need_name=True,
        ),
    ] = field(default_factory=dict)
    fold_constants: Annotated[bool, option(help="Do not fold constants.")] = True
    shape_inference: Annotated[bool, option(help="Do not fold inferred shapes.")] = True
    cleanup: Annotated[bool, option(help="Do not remove unused nodes and weights.")] = True
    opset: Annotated[
        int | None, option(help="Write it in this opset (onnx.version_converter).", min=1)
    ] = None
    timeout: Annotated[float | None, time_out("one run", "10 minutes")] = None
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Convert:
    """Write a model in fp16 or bf16, or its TensorRT engine.

    Examples:
        convert model.onnx -o half.onnx --fp16
        convert model.onnx -o model.engine --trt --fp16
    """

    model: Model
    output: Annotated[Path, to_file("Where it goes.")]
    calibration_cache: Annotated[
        Path | None,
        option(
            help="Ranges for --int8: read if the file exists, else written (TensorRT 8.6 to 10).",
            writes=True,
        ),
    ] = None
    io_fp16: Annotated[
        bool, switch("The inputs and outputs of an ONNX model become fp16 too; needs --fp16.")
    ] = False
    timeout: Annotated[float | None, time_out("the build", "2 hours")] = None
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Inspect:
    """Show the contents of a model, a TensorRT engine or a file of saved values.

    Examples:
        inspect model.onnx --show layers
        inspect data inputs.npz --show values
    """

    file_kind: Annotated[
        str | None,
        argument("The kind of the file; default by its suffix.", metavar="model|engine|data"),
    ] = None
    path: Annotated[
        Path | None,
        argument("An ONNX model, a TensorRT engine or saved values.", metavar="FILE"),
    ] = None
    show: Annotated[
        tuple[Show, ...],
        option(
            help="Layers, their attributes (attrs), weights (names and shapes); of data, values."
        ),
    ] = ()
    num_items: Annotated[
        int,
        option(
            "-n", "--num-items", metavar="N", min=-1, help="Values to show at each end; -1 for all."
        ),
    ] = 3


@dataclass(frozen=True)
class Diff:
    """Show the choices of bad builds that good builds did not make: tactics, precisions, formats and fusions.

    Examples:
        diff .bisect-trt/repeat-model
        diff good bad
    """

    paths: Annotated[
        tuple[Path, ...],
        argument(
            "A run of repeat, or the good builds, then the bad ones: a file or folder each.",
            metavar="RUN | GOOD BAD",
        ),
    ] = ()


@dataclass(frozen=True)
class Doctor:
    """Print versions, GPUs and driver of this machine, and what each target lacks.

    Examples:
        doctor
        doctor --on python=other/bin/python
    """


@dataclass(frozen=True)
class Resume:
    """Resume a run that was interrupted by Ctrl-C, kill -9 or a reboot.

    Known verdicts are not probed again.

    Examples:
        resume
        resume .bisect-trt/reduce-model --max-time 600
    """

    run: RunFolder = None
    max_probes: Annotated[int | None, counted("Stop after N probes in all sessions.")] = None
    max_time: Annotated[float | None, seconds("Stop after this time.")] = None


@dataclass(frozen=True)
class LogOptions:
    """Show all probes of a run with their reasons, or one probe with its candidate, command and output.

    Examples:
        log
        log .bisect-trt/reduce-model 12
    """

    run: RunFolder = None
    number: Annotated[int | None, argument("The number of a probe to show in full.")] = None


@dataclass(frozen=True)
class Report:
    """Write the report.html of a run again, from its result.json.

    Examples:
        report
        report result.json -o page.html
    """

    run: Annotated[
        Path | None,
        argument("The run's folder, under .bisect-trt, or a result.json; default the newest run."),
    ] = None
    output: Annotated[
        Path | None, to_file("Where the page goes; default report.html beside the result.")
    ] = None
