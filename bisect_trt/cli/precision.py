"""``bisect-trt precision``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Annotation, Check, Compare, Data, General, Model, Search, Target
from bisect_trt.cli.runs import invocation
from bisect_trt.cli.sessions import open_search
from bisect_trt.errors import UsageError
from bisect_trt.graph.annotate import check_annotated
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.precision.settings import Low, Minimise, PrecisionSettings


def chosen(target: Target) -> tuple[Low, TargetSettings | None]:
    """What to lower to, and the target without it: the search lowers the model itself.

    Raises:
        UsageError: Not exactly one of --fp16 and --bf16 is given, or another option does not fit.
    """
    runtime = target.settings() if target.onnxrt or target.trt else replace(target, fp16=False, bf16=False).settings()
    if target.fp16 == target.bf16:
        raise UsageError("a search for precision is about one of --fp16 and --bf16; say which, and only one.")
    return "fp16" if target.fp16 else "bf16", runtime


def refuse_ends(low: Low, *, io_fp16: bool) -> None:
    """Make sure that the model's ends are to be lowered to what the rest is lowered to.

    Raises:
        UsageError: They are not.
    """
    if io_fp16 and low != "fp16":
        raise UsageError("--io-fp16 makes inputs and outputs fp16, which goes with --fp16; drop it.")


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
        refuse_ends(low, io_fp16=io_fp16)
        patterns = tuple(include or ()), tuple(exclude or ())
        settings = PrecisionSettings(
            output, low, runtime, *patterns, io_fp16, keep_weights, overwrite, minimise=minimise
        )
        if invocation.resumed is None:
            settings.check_output()
        session, checks = open_search(model, check, runtime, target, compare, data, console, result, annotation)
        return session.precision(settings, checks, search.settings())

    finish(work, "precision", general)
