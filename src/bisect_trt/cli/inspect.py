"""``bisect-trt inspect``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import General
from bisect_trt.errors import UsageError
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.reporting.tree import print_tree
from bisect_trt.workflows.inspect_data import data_tree, describe_data
from bisect_trt.workflows.inspect_engine import describe_engine, engine_tree
from bisect_trt.workflows.inspect_model import describe_model, model_tree


class Kind(str, Enum):
    """What a file is."""

    MODEL = "model"
    ENGINE = "engine"
    DATA = "data"


class Show(str, Enum):
    """What to say beside the summary."""

    LAYERS = "layers"
    ATTRS = "attrs"
    WEIGHTS = "weights"
    VALUES = "values"
    HISTOGRAM = "histogram"


class Mode(str, Enum):
    """The same in one word, as Polygraphy once had it."""

    NONE = "none"
    BASIC = "basic"
    ATTRS = "attrs"
    FULL = "full"


_FITTING = {
    Kind.MODEL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
    Kind.ENGINE: {Show.LAYERS},  # it is little without them, so they are always shown
    Kind.DATA: {Show.VALUES, Show.HISTOGRAM},
}
_MODES = {
    Mode.NONE: set[Show](),
    Mode.BASIC: {Show.LAYERS},
    Mode.ATTRS: {Show.LAYERS, Show.ATTRS},
    Mode.FULL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
}


@command
def inspect_command(
    kind: Annotated[Kind, typer.Argument(help="What the file is.", show_default=False)],
    file: Annotated[
        Path, typer.Argument(help="An ONNX model, a TensorRT engine, or saved values.", show_default=False)
    ],
    show: Annotated[
        list[Show] | None,
        typer.Option(
            help="Of a model its layers, their attributes (attrs), its weights; of data some values, a histogram."
        ),
    ] = None,
    show_values: Annotated[
        bool, typer.Option("-s", "--show-values", help="Of data: the same as --show values.")
    ] = False,
    histogram: Annotated[bool, typer.Option("--histogram", help="Of data: the same as --show histogram.")] = False,
    num_items: Annotated[
        int, typer.Option("-n", "--num-items", metavar="N", min=-1, help="Values to show of each end; -1 for all.")
    ] = 3,
    show_all: Annotated[  # noqa: ARG001 - nothing is ever left out
        bool, typer.Option("-a", "--all", help="Accepted: all samples are always shown.")
    ] = False,
    mode: Annotated[
        Mode | None, typer.Option(help="Of a model: basic is --show layers, attrs adds attributes, full weights.")
    ] = None,
    external_data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the files of the model's weights lie.")
    ] = None,
    ignore_external_data: Annotated[
        bool, typer.Option("--ignore-external-data", help="Read only the model's own file; the others may be missing.")
    ] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as JSON too.")] = None,
) -> None:
    """Show what a model, a TensorRT engine or a file of saved values holds."""

    def work(console: Console, result: Result) -> Result:  # noqa: ARG001 - it prints a tree
        given = {
            "--mode": mode is not None,
            "--external-data-dir": external_data_dir is not None,
            "--ignore-external-data": ignore_external_data,
        }
        if odd_option := next((option for option, wanted in given.items() if wanted and kind is not Kind.MODEL), None):
            raise UsageError(f"{odd_option} is about models, and this is to be read as {kind.value}; leave it out.")
        wanted = {*(show or ()), *(_MODES[mode] if mode is not None else ())}
        wanted |= {Show.VALUES} if show_values else set()
        wanted |= {Show.HISTOGRAM} if histogram else set()
        if odd := wanted - _FITTING[kind]:
            raise UsageError(
                f"--show {min(word.value for word in odd)} says nothing of {kind.value}; there is: "
                f"{', '.join(sorted(word.value for word in _FITTING[kind]))}."
            )
        if kind is Kind.MODEL:
            plain = describe_model(
                file, {word.value for word in wanted}, external_data_dir, structure=ignore_external_data
            )
            tree = model_tree(str(file), plain)
        elif kind is Kind.DATA:
            values = num_items if Show.VALUES in wanted else None
            plain = describe_data(file, values=values, histogram=Show.HISTOGRAM in wanted)
            tree = data_tree(str(file), plain)
        else:
            with TemporaryDirectory(prefix="bisect-trt-") as folder:
                plain = describe_engine(file, Path(folder))
            tree = engine_tree(str(file), plain)
        print_tree(tree)
        result.extra[kind.value] = plain
        result.status, result.minimality = "found", "1-minimal"
        return result

    finish(work, "inspect", General(json=json))
