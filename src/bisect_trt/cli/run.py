"""``bisect-trt run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Compare, Data, General, Plots, seconds
from bisect_trt.cli.runs import open_run
from bisect_trt.cli.target import Target
from bisect_trt.errors import UsageError
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.checks import require_target
from bisect_trt.workflows.compare import CompareSettings, compare
from bisect_trt.workflows.compare_saved import compare_saved
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.subject import Subject


@command
def run_command(
    target: Target,
    compare_options: Compare,
    plots: Plots,
    data: Data,
    general: General,
    model: Annotated[
        Path | None, typer.Argument(help="The ONNX model; none to compare saved results alone.", show_default=False)
    ] = None,
    onnx_outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--onnx-outputs",
            "--trt-outputs",
            metavar="NAME",
            help="Tensors to compare instead of the outputs; or: mark all.",
        ),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first output that does not match.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time the target may take.", callback=seconds)
    ] = None,
    save_inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the inputs: .npz, or Polygraphy's .json.")
    ] = None,
    save_outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the target's outputs: .npz, or Polygraphy's .json.")
    ] = None,
    load_outputs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Compare with these outputs, not with the reference's; two or more without a model and a target: "
            "compare them with the last.",
        ),
    ] = None,
) -> None:
    """Compare a target with the reference, or with saved results, or saved results alone."""

    def work(console: Console, result: Result) -> Result:
        runtime = target.settings(engines=True)
        tolerance = compare_options.settings(runtime, nonfinite_equal=False)
        pictures = plots.settings()
        if model is None:
            if runtime is not None or not load_outputs:
                raise UsageError(
                    "there is no model to run; name one, or two saved results with --load-outputs and no target."
                )
            wanted = onnx_outputs or ()
            return compare_saved(
                load_outputs, tolerance, wanted, console, result, fail_fast=fail_fast, pictures=pictures
            )
        settings = CompareSettings(
            target=target.required(engines=True),
            tolerance=tolerance,
            onnx_outputs=tuple(onnx_outputs or ()),
            fail_fast=fail_fast,
            timeout=timeout,
            save_inputs=save_inputs,
            save_outputs=save_outputs,
            load_outputs=tuple(load_outputs or ()),
            pictures=pictures,
        )
        files = [*data.files(), *compare_options.files(), *settings.load_outputs]
        with (
            Subject(
                data.settings(model), open_run("run", model, files), console, fresh_process=target.fresh_process
            ) as subject,
            recorded(subject, result, console, target=settings.target),
        ):
            require_target(subject, settings.target)
            return compare(subject, settings, console, result)

    finish(work, "run", general)
