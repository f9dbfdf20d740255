"""``bisect-trt run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Compare, Data, General, Model, Target, seconds
from bisect_trt.cli.runs import open_run
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.compare import CompareSettings, compare
from bisect_trt.workflows.subject import Subject


@command
def run_command(
    model: Model,
    target: Target,
    compare_options: Compare,
    data: Data,
    general: General,
    onnx_outputs: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Tensors to compare instead of the outputs; or: mark all.")
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first output that does not match.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time the target may take.", callback=seconds)
    ] = None,
    save_inputs: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the inputs, .npz.")] = None,
    save_outputs: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the target's outputs, .npz.")] = None,
    load_outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with these outputs, .npz, not with the reference's.")
    ] = None,
) -> None:
    """Compare a target with the reference."""

    def work(console: Console, result: Result) -> Result:
        runtime = target.required()
        settings = CompareSettings(
            target=runtime,
            tolerance=compare_options.settings(runtime, nonfinite_equal=False),
            onnx_outputs=tuple(onnx_outputs or ()),
            fail_fast=fail_fast,
            timeout=timeout,
            save_inputs=save_inputs,
            save_outputs=save_outputs,
            load_outputs=load_outputs,
        )
        with Subject(data.settings(model), open_run("run", model, data.files()), console) as subject:
            subject.record(result)
            return compare(subject, settings, console, result)

    finish(work, "run", general)
