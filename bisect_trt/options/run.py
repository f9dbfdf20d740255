"""The options of ``run`` alone, and of :func:`bisect_trt.compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bisect_trt.options.shared import time_out
from bisect_trt.options.spec import argument, option


@dataclass(frozen=True)
class Run:
    """Compare a target with the reference, or with saved results, or saved results alone.

    Examples:
        run model.onnx --trt --atol 1e-3
        run --load-outputs before.npz after.npz
    """

    model: Annotated[Path | None, argument("The ONNX model; none to compare saved results alone.")] = None


@dataclass(frozen=True)
class RunOptions:
    """Outputs to compare."""

    onnx_outputs: Annotated[
        list[str],
        option(
            metavar="TENSOR",
            help="Tensors to compare instead of the outputs, by name, glob or op:TYPE; or: mark all.",
        ),
    ] = field(default_factory=list)
    onnx_exclude_outputs: Annotated[
        list[str],
        option(
            metavar="TENSOR",
            help="Tensors to leave out, by name, glob or op:TYPE.",
        ),
    ] = field(default_factory=list)
    save_onnx: Annotated[Path | None, option(metavar="FILE", help="Write the model that the target runs.")] = None
    timeout: Annotated[float | None, time_out("the target")] = None
    save_inputs: Annotated[
        Path | None, option(metavar="FILE", help="Write the inputs: .npz, or Polygraphy's .json.")
    ] = None
    save_outputs: Annotated[
        Path | None, option(metavar="FILE", help="Write the target's outputs: .npz, or Polygraphy's .json.")
    ] = None
    load_outputs: Annotated[
        list[Path],
        option(
            metavar="FILE",
            help="Compare with these outputs, not with the reference's; two or more without a model and a target: "
            "compare them with the last.",
        ),
    ] = field(default_factory=list)
