"""``bisect-trt sanitize``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Data, General, Model, parse_size
from bisect_trt.cli.runs import open_run
from bisect_trt.errors import UsageError
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.inputs import parse_shapes
from bisect_trt.workflows.sanitize.sanitize import SanitizeSettings
from bisect_trt.workflows.sessions import Session


@command
def sanitize_command(
    model: Model,
    data: Data,
    general: General,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the sanitised model goes.")],
    override_input_shapes: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:[D,...]", help="Give inputs these shapes, in the model that is written too."),
    ] = None,
    fold_constants: Annotated[
        bool, typer.Option("--fold-constants/--no-fold-constants", help="Store what depends on no input.")
    ] = True,
    fold_size_threshold: Annotated[
        str, typer.Option(metavar="SIZE", help="Do not store a value that is larger, such as 512K or 16M.")
    ] = "16M",
    shape_inference: Annotated[
        bool, typer.Option("--shape-inference/--no-shape-inference", help="Fold the shapes that inference finds too.")
    ] = True,
    cleanup: Annotated[bool, typer.Option("--cleanup/--no-cleanup", help="Take away what nothing reads.")] = True,
    toposort: Annotated[bool, typer.Option("--toposort/--no-toposort", help="Sort the nodes.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that exists.")] = False,
) -> None:
    """Fold constants and clean a model up; the result is run beside the original, and refused if it differs."""

    def work(console: Console, result: Result) -> Result:
        limit = parse_size(fold_size_threshold)
        if limit is None:
            raise UsageError(
                f"--fold-size-threshold {fold_size_threshold}: write a size in bytes, such as 512K or 16M."
            )
        shapes = parse_shapes(override_input_shapes or [], "--override-input-shapes")
        settings = SanitizeSettings(output, shapes, fold_constants, limit, shape_inference, cleanup, toposort)
        check_output(output, overwrite=overwrite)
        fed = data.settings(model)
        fed = replace(fed, input_shapes={**fed.input_shapes, **shapes})
        workspace = open_run("sanitize", model, data.files(), weights=data.external_data_dir)
        return Session(fed, workspace, console, result).sanitize(settings)

    finish(work, "sanitize", general)
