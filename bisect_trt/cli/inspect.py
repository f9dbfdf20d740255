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
from bisect_trt.workflows.inspect_kind import Kind, guess_kind
from bisect_trt.workflows.inspect_model import describe_model, model_tree


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
    said: Annotated[
        str | None,
        typer.Argument(metavar="model|engine|data", help="What the file is; guessed if left out.", show_default=False),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="An ONNX model, a TensorRT engine, or saved values.", show_default=False),
    ] = None,
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
        kind, file = read_words(said, path)
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


def read_words(said: str | None, path: Path | None) -> tuple[Kind, Path]:
    """The kind and the file of ``KIND FILE`` or of ``FILE``.

    Raises:
        UnavailableError: The file is not there.
        UsageError: There is no such kind, or no file, or the file does not show its kind.
    """
    kinds = [kind.value for kind in Kind]
    if said is None:
        raise UsageError("there is no file to inspect; name one.")
    if path is not None:
        if said not in kinds:
            raise UsageError(f"there is nothing to inspect as '{said}'; write {', '.join(kinds)}, or the file alone.")
        return Kind(said), path
    if said in kinds and not Path(said).exists():
        raise UsageError(f"there is no file to inspect as {said}; name one.")
    return guess_kind(Path(said)), Path(said)
