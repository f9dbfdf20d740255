"""``bisect-trt precision``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Check, Compare, Data, General, Model, Search
from bisect_trt.cli.runs import invocation, open_run
from bisect_trt.cli.target import Target
from bisect_trt.errors import UsageError
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.workflows.checks import make_prober
from bisect_trt.workflows.precision import (
    Minimise,
    PrecisionSettings,
    built_in_check,
    check_outputs,
    find_precision,
    make_lowering,
)
from bisect_trt.workflows.precision_layers import lowers_by
from bisect_trt.workflows.precision_search import Low
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.subject import Subject


def chosen(target: Target) -> tuple[Low, TargetSettings | None]:
    """What to lower to, and the target without it: the search lowers the model itself.

    Raises:
        UsageError: Not exactly one of --fp16 and --bf16 is given, or another option does not fit.
    """
    runtime = target.settings() if target.onnxrt or target.trt else replace(target, fp16=False, bf16=False).settings()
    if target.fp16 == target.bf16:
        raise UsageError("a search for precision is about one of --fp16 and --bf16; say which, and only one.")
    return "fp16" if target.fp16 else "bf16", runtime


def by_whom(
    subject: Subject, settings: PrecisionSettings, checks: CheckSettings
) -> tuple[PrecisionSettings, CheckSettings]:
    """Settle who lowers: the target layer by layer, where it does; else candidates are models with Casts."""
    if settings.target is None or settings.target.runtime != "trt":
        return settings, checks
    by_layer = lowers_by(subject, settings.target) == "layer"
    if checks.argv and not by_layer:  # the command says good or bad of models
        return replace(settings, target=None), replace(checks, target=None)
    return replace(settings, by_layer=by_layer), replace(checks, by_layer=by_layer)


@command
def precision_command(
    model: Model,
    check: Check,
    target: Target,
    compare: Compare,
    data: Data,
    search: Search,
    general: General,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the mixed model goes.")],
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Lower these nodes only: globs over names, or over operators (op:Softmax)."
        ),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Never lower these nodes.")] = None,
    io_fp16: Annotated[bool, typer.Option("--io-fp16", help="Graph inputs and outputs in fp16 too.")] = False,
    keep_weights: Annotated[
        bool,
        typer.Option("--keep-weights", help="Leave weights in fp32 and cast them, instead of storing them as fp16."),
    ] = False,
    minimise: Annotated[
        Minimise, typer.Option(help="Have the fewest nodes in fp32, or the least latency where the target measures it.")
    ] = Minimise.NODES,
    annotation: Annotation = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that exists.")] = False,
) -> None:
    """Find the fewest nodes that have to stay in fp32 for the rest to run in fp16 or bf16, and write that model."""

    def work(console: Console, result: Result) -> Result:
        if annotation is not None:
            check_annotated(annotation, model)
        low, runtime = chosen(target)
        if io_fp16 and low != "fp16":
            raise UsageError("--io-fp16 makes inputs and outputs fp16, which goes with --fp16; drop it.")
        if check.check and runtime is not None and runtime.runtime == "onnxrt":
            runtime = None  # the command says good or bad
        settings = PrecisionSettings(
            output, low, runtime, tuple(include or ()), tuple(exclude or ()), io_fp16, keep_weights, overwrite
        )
        settings = replace(settings, minimise=minimise)
        if invocation.resumed is None:
            check_outputs(settings)
        checks = check.settings(runtime, compare)
        if checks.candidate is not None:
            check_output(checks.candidate, overwrite=True)  # whether it is somebody else's file is seen later
        workspace = open_run("precision", model, [*data.files(), *compare.files(), *check.files()], checks.fixed_path)
        with Subject(data.settings(model), workspace, console, fresh_process=target.fresh_process) as subject:
            settings, checks = by_whom(subject, settings, checks)
            lowering = make_lowering(subject, settings)
            prober = make_prober(built_in_check(checks, subject, low), search.settings(), subject, console)
            known = recorded(subject, result, console, prober=prober, target=runtime, annotation=annotation)
            try:
                with known:
                    return find_precision(subject, prober, lowering, settings, search.settings(), console, result)
            finally:
                prober.ledger.close()

    finish(work, "precision", general)
