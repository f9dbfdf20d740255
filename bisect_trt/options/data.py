"""What to feed the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bisect_trt.options.spec import option
from bisect_trt.options.values import shape, size, value_range


@dataclass
class Data:
    """What to feed the model."""

    input_shapes: Annotated[
        dict[str, tuple[int, ...]],
        option(
            "--input-shapes",
            "--model-input-shapes",
            metavar="NAME:[D,...]",
            help="Shapes of inputs with free dimensions.",
            read=shape,
            need_name=True,
        ),
    ] = field(default_factory=dict)
    val_range: Annotated[
        dict[str, tuple[float, float]],
        option(metavar="[NAME:][LO,HI]", help="Range of random values; default [0,1].", read=value_range),
    ] = field(default_factory=dict)
    seed: Annotated[int, option(help="Seed of random values.")] = 1
    iterations: Annotated[
        int | None, option(metavar="N", min=1, help="Samples of random values, or of the script at most.")
    ] = None
    load_inputs: Annotated[
        list[Path], option(metavar="FILE", help="Input values by tensor name: .npz, or Polygraphy's .json.")
    ] = field(default_factory=list)
    data_loader_script: Annotated[
        str | None,
        option(metavar="FILE[:FUNC]", help="Python file with a load_data() that yields dicts of arrays."),
    ] = None
    data_loader_func_name: Annotated[
        str | None, option(metavar="FUNC", help="The script's function; default load_data.")
    ] = None
    external_data_dir: Annotated[
        Path | None,
        option(metavar="DIR", help="Where the files of the model's weights lie; default the model's folder."),
    ] = None
    array_swap_mb: Annotated[
        int | None,
        option(
            metavar="MIB",
            min=0,
            help="Past so much of weights and tensors, compute every tensor slice by slice, on the disk in between; "
            "default an eighth of the free memory, at most 1024.",
        ),
    ] = None
    memory_limit: Annotated[
        int | None,
        option(
            metavar="SIZE",
            help="Memory that one probe, with all that it starts, may hold, such as 8G; it is ended past that.",
            read=size,
        ),
    ] = None
