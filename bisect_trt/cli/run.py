"""``bisect-trt run``."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Compare, Data, General, Plots, Target
from bisect_trt.cli.run_options import MoreTargets, RunOptions
from bisect_trt.cli.runs import open_run
from bisect_trt.errors import UsageError
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.compare.saved import compare_saved
from bisect_trt.workflows.gen_script import write_script
from bisect_trt.workflows.sessions import Session


@command
def run_command(
    target: Target,
    more: MoreTargets,
    options: RunOptions,
    compare_options: Compare,
    plots: Plots,
    data: Data,
    general: General,
    model: Annotated[
        Path | None, typer.Argument(help="The ONNX model; none to compare saved results alone.", show_default=False)
    ] = None,
    gen_script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Python program that does the same, and do not run it.")
    ] = None,
) -> None:
    """Compare a target with the reference, or with saved results, or saved results alone."""

    def work(console: Console, result: Result) -> Result:
        if model is None:
            targets = more.settings(target)
            if targets or not options.load_outputs:
                raise UsageError(
                    "there is no model to run; name one, or two saved results with --load-outputs and no target."
                )
            _refuse_without_model(options, data, gen_script)
            return compare_saved(
                options.load_outputs,
                compare_options.settings(None, nonfinite_equal=False),
                options.onnx_outputs,
                console,
                result,
                fail_fast=options.fail_fast,
                pictures=plots.settings(),
            )
        settings = options.settings(target, more, compare_options, plots)
        fed = replace(data.settings(model), shape_inference=options.shape_inference)
        for path in (settings.save_onnx, gen_script):
            if path is not None:
                check_output(path, overwrite=True)
        if gen_script is not None:
            given = [_given(group) for group in (target, more, options, compare_options, plots, data)]
            write_script(gen_script, model, {name: value for each in given for name, value in each.items()})
            console.answer(f"{gen_script}: does the same; run it with: python {gen_script}")
            result.artifacts["script"] = str(gen_script)
            result.extra["comparisons"] = []
            result.status, result.minimality = "found", "1-minimal"
            return result
        files = [*data.files(), *compare_options.files(), *settings.load_outputs]
        workspace = open_run("run", model, files, weights=data.external_data_dir)
        return Session(fed, workspace, console, result, target.fresh_process).compare(settings)

    finish(work, "run", general)


def _refuse_without_model(options: RunOptions, data: Data, gen_script: Path | None) -> None:
    """Make sure that nothing is asked for that only a model can give.

    Raises:
        UsageError: Something is.
    """
    given = {
        "--onnx-exclude-outputs": options.onnx_exclude_outputs,
        "--mark-all": options.mark_all,
        "--shape-inference": options.shape_inference,
        "--save-onnx": options.save_onnx,
        "--save-inputs": options.save_inputs,
        "--save-outputs": options.save_outputs,
        "--warm-up": options.warm_up is not None,
        "--external-data-dir": data.external_data_dir,
        "--gen-script": gen_script,
    }
    for option, wanted in given.items():
        if wanted:
            raise UsageError(
                f"{option} needs a model, and saved results are compared as they are; name one, or drop it."
            )


def _given(group: object) -> dict[str, Any]:
    """The options of a group that differ from their defaults, by name."""
    defaults = type(group)()
    names = [entry.name for entry in fields(group)]  # type: ignore[arg-type]  # a dataclass
    return {name: getattr(group, name) for name in names if getattr(group, name) != getattr(defaults, name)}
