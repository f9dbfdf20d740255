"""What to feed the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.errors import UsageError
from bisect_trt.tensors.inputs import DataOptions, parse_shapes, parse_val_ranges
from bisect_trt.tensors.saved import files_of
from bisect_trt.tensors.user_script import split_script
from bisect_trt.workflows.settings import ModelSettings


@dataclass
class Data:
    """What to feed the model."""

    input_shapes: Annotated[
        list[str],
        typer.Option(
            "--input-shapes",
            "--model-input-shapes",
            metavar="NAME:[D,...]",
            help="Shapes of inputs with free dimensions.",
        ),
    ] = field(default_factory=list)
    val_range: Annotated[
        list[str], typer.Option(metavar="[NAME:][LO,HI]", help="Range of random values; default [0,1].")
    ] = field(default_factory=list)
    seed: Annotated[int, typer.Option(help="Seed of random values.")] = 1
    iterations: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples of random values, or of the script at most.")
    ] = None
    load_inputs: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Input values by tensor name: .npz, or Polygraphy's .json.")
    ] = field(default_factory=list)
    data_loader_script: Annotated[
        str | None,
        typer.Option(metavar="FILE[:FUNC]", help="Python file with a load_data() that yields dicts of arrays."),
    ] = None

    data_loader_func_name: Annotated[
        str | None, typer.Option(metavar="FUNC", help="The script's function; default load_data.")
    ] = None

    external_data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files of the model's weights lie; default the model's folder."),
    ] = None

    array_swap_mb: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=0,
            help="Past so much of weights and tensors, compute every tensor slice by slice, on the disk in between; "
            "default an eighth of the free memory, at most 1024.",
        ),
    ] = None

    def files(self) -> list[Path]:
        """The files that the values come from."""
        script = (
            [] if self.data_loader_script is None else [split_script(self.data_loader_script, "", "data-loader")[0]]
        )
        return [*(file for path in self.load_inputs for file in files_of(path)), *script]

    def script(self) -> str | None:
        """The data-loader script with its function, as ``FILE:FUNCTION`` if one is named.

        Raises:
            UsageError: There is a function and no script, or there are two functions.
        """
        if self.data_loader_func_name is None:
            return self.data_loader_script
        if self.data_loader_script is None:
            raise UsageError("--data-loader-func-name names a function of a script, and there is none; add one.")
        if not Path(self.data_loader_script).is_file():
            split_script(self.data_loader_script, "", "data-loader")
            raise UsageError("--data-loader-script names a function and so does --data-loader-func-name; name one.")
        return f"{self.data_loader_script}:{self.data_loader_func_name}"

    def settings(self, model: Path) -> ModelSettings:
        """As plain data."""
        data = DataOptions(
            self.seed, parse_val_ranges(self.val_range), tuple(self.load_inputs), self.script(), self.iterations
        )
        return ModelSettings(model, parse_shapes(self.input_shapes), data, self.array_swap_mb, self.external_data_dir)
