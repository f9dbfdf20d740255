"""``bisect-trt run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bisect_trt.cli.app import command, finish
from bisect_trt.cli.options import Compare, Data, General, Plots, Target, seconds
from bisect_trt.cli.options.target import LoweringChoice
from bisect_trt.cli.runs import open_run
from bisect_trt.errors import UsageError
from bisect_trt.graph.save import check_output
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.reference import reference_settings
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.workflows.compare.compare import CompareSettings, compare
from bisect_trt.workflows.compare.outputs import MARK_ALL
from bisect_trt.workflows.compare.saved import compare_saved
from bisect_trt.workflows.gen_script import write_script
from bisect_trt.workflows.record import recorded
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.target import require_target


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
            help="Tensors to compare instead of the outputs, by name or glob; or: mark all.",
        ),
    ] = None,
    mark_all: Annotated[bool, typer.Option("--mark-all", help="The same as --onnx-outputs mark all.")] = False,
    onnx_exclude_outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--onnx-exclude-outputs",
            "--trt-exclude-outputs",
            "--exclude-outputs",
            metavar="NAME",
            help="Tensors to leave out, by name or glob.",
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="ONNX's reference evaluator as a target, beside another or alone.")
    ] = False,
    onnxrt_reference: Annotated[
        bool, typer.Option("--onnxrt-reference", help="The reference itself as a target beside the others.")
    ] = False,
    also_providers: Annotated[
        list[str] | None,
        typer.Option(metavar="LIST", help="ONNX Runtime with these providers as one more target, such as cuda,cpu."),
    ] = None,
    fp_to_fp16: Annotated[
        bool, typer.Option("--fp-to-fp16", help="The target runs a model with fp16 nodes: --fp16, lowered by Casts.")
    ] = False,
    save_onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model that the target runs.")
    ] = None,
    external_data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the files of the model's weights lie.")
    ] = None,
    warm_up: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Time each target, after N runs to warm up.")
    ] = None,
    use_subprocess: Annotated[  # noqa: ARG001 - models never run in this process
        bool, typer.Option("--use-subprocess", help="Accepted: it is always so.")
    ] = False,
    gen_script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Python program that does the same, and do not run it.")
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
        if fp_to_fp16:
            target.fp16, target.lowering = True, LoweringChoice.CAST if target.trt else target.lowering
        runtime, *also = _targets(target, also_providers or (), onnx=onnx, reference=onnxrt_reference)
        tolerance = compare_options.settings(runtime, nonfinite_equal=False)
        pictures = plots.settings()
        if model is None:
            if runtime is not None or not load_outputs:
                raise UsageError(
                    "there is no model to run; name one, or two saved results with --load-outputs and no target."
                )
            if onnx_exclude_outputs or save_onnx or gen_script or external_data_dir:
                raise UsageError(
                    "--onnx-exclude-outputs, --save-onnx, --gen-script and --external-data-dir need a model; name one."
                )
            wanted = onnx_outputs or ()
            return compare_saved(
                load_outputs, tolerance, wanted, console, result, fail_fast=fail_fast, pictures=pictures
            )
        settings = CompareSettings(
            target=runtime or target.required(engines=True),
            tolerance=tolerance,
            onnx_outputs=MARK_ALL if mark_all else tuple(onnx_outputs or ()),
            exclude_outputs=tuple(onnx_exclude_outputs or ()),
            also=tuple(each for each in also if each is not None),
            warm_up=warm_up,
            save_onnx=save_onnx,
            fail_fast=fail_fast,
            timeout=timeout,
            save_inputs=save_inputs,
            save_outputs=save_outputs,
            load_outputs=tuple(load_outputs or ()),
            pictures=pictures,
        )
        if save_onnx is not None:
            check_output(save_onnx, overwrite=True)
        if gen_script is not None:
            check_output(gen_script, overwrite=True)
            _refuse_in_script(settings, external_data_dir)
            options = {**_given(target), **_given(compare_options), **_given(data), **_given_here(settings)}
            name = "trt" if target.trt else "onnxrt"
            write_script(gen_script, model, name, {k: v for k, v in options.items() if k not in ("onnxrt", "trt")})
            console.answer(f"{gen_script}: does the same; run it with: python {gen_script}")
            result.artifacts["script"] = str(gen_script)
            result.extra["comparisons"] = []
            result.status, result.minimality = "found", "1-minimal"
            return result
        files = [*data.files(), *compare_options.files(), *settings.load_outputs]
        fed = replace(data.settings(model), external_data_dir=external_data_dir)
        with (
            Subject(fed, open_run("run", model, files), console, fresh_process=target.fresh_process) as subject,
            recorded(subject, result, console, target=settings.target),
        ):
            for each in (settings.target, *settings.also):
                require_target(subject, each)
            return compare(subject, settings, console, result)

    finish(work, "run", general)


def _targets(
    target: Target, also_providers: Sequence[str], *, onnx: bool, reference: bool
) -> list[TargetSettings | None]:
    """The target, ``None`` if there is none, and those beside it."""
    rest = [TargetSettings(providers=tuple(word.split(","))) for word in also_providers]
    rest += [reference_settings()] if reference else []
    if not (target.onnxrt or target.trt) and onnx:
        low = replace(target, fp16=False, bf16=False, keep_fp32=[]).settings()  # raises if there is another option
        assert low is None
        first = TargetSettings("onnx", fp16=target.fp16, bf16=target.bf16, keep=tuple(target.keep_fp32))
        return [first, *rest]
    if not (target.onnxrt or target.trt) and rest and target == Target():
        return list(rest)
    return [target.settings(engines=True), *([TargetSettings("onnx")] if onnx else []), *rest]


def _given(group: object) -> dict[str, Any]:
    """The options of a group that differ from their defaults, by name."""
    defaults = type(group)()
    names = [entry.name for entry in fields(group)]  # type: ignore[arg-type]  # a dataclass
    return {name: getattr(group, name) for name in names if getattr(group, name) != getattr(defaults, name)}


def _given_here(settings: CompareSettings) -> dict[str, Any]:
    """The options of this command alone that a script can have."""
    names = ("onnx_outputs", "fail_fast", "timeout", "save_inputs", "save_outputs", "load_outputs")
    return {name: value for name in names if (value := getattr(settings, name))}


def _refuse_in_script(settings: CompareSettings, external_data_dir: Path | None) -> None:
    """Make sure that a script can say all that was asked for.

    Raises:
        UsageError: It cannot.
    """
    given = {
        "--onnx-exclude-outputs": settings.exclude_outputs,
        "a second target": settings.also or settings.target.runtime == "onnx",
        "--save-onnx": settings.save_onnx,
        "--warm-up": settings.warm_up is not None,
        "--external-data-dir": external_data_dir,
    }
    for what, wanted in given.items():
        if wanted:
            raise UsageError(f"--gen-script: bisect_trt.compare has nothing for {what}; leave it out.")
