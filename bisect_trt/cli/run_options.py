"""The options of ``run`` alone, on the command line and as keywords of :func:`bisect_trt.compare`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.cli.options import Compare, Plots, Target, seconds
from bisect_trt.cli.options.target import LoweringChoice
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.reference import reference_settings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.compare.compare import CompareSettings
from bisect_trt.workflows.compare.outputs import MARK_ALL


@dataclass
class MoreTargets:
    """More targets."""

    onnx: Annotated[
        bool, typer.Option("--onnx", help="ONNX's reference evaluator as a target, beside another or alone.")
    ] = False
    onnxrt_reference: Annotated[
        bool, typer.Option("--onnxrt-reference", help="The reference itself as a target beside the others.")
    ] = False
    also_providers: Annotated[
        list[str],
        typer.Option(metavar="LIST", help="ONNX Runtime with these providers as one more target, such as cuda,cpu."),
    ] = field(default_factory=list)
    fp_to_fp16: Annotated[
        bool, typer.Option("--fp-to-fp16", help="The target runs a model with fp16 nodes: --fp16, lowered by Casts.")
    ] = False

    def settings(self, target: Target) -> list[TargetSettings]:
        """All targets, the one under suspicion first; none if none was asked for.

        Raises:
            UsageError: An option of a target without the target, or one that others rule out.
        """
        if self.fp_to_fp16:
            target = replace(target, fp16=True, lowering=LoweringChoice.CAST if target.trt else target.lowering)
        rest = [TargetSettings(own=OnnxRuntimeSettings(tuple(word.split(",")))) for word in self.also_providers]
        rest += [reference_settings()] if self.onnxrt_reference else []
        named = target.onnxrt or target.trt
        if self.onnx and not named:
            replace(target, fp16=False, bf16=False, keep_fp32=[]).settings()  # raises if there is another option
            first = TargetSettings("onnx", fp16=target.fp16, bf16=target.bf16, keep=tuple(target.keep_fp32))
            return [first, *rest]
        if not named and rest and target == Target():
            return rest
        runtime = target.settings(engines=True)
        return [] if runtime is None else [runtime, *([TargetSettings("onnx")] if self.onnx else []), *rest]


@dataclass
class RunOptions:
    """What to run and compare."""

    onnx_outputs: Annotated[
        list[str],
        typer.Option(
            "--onnx-outputs",
            "--trt-outputs",
            metavar="NAME",
            help="Tensors to compare instead of the outputs, by name or glob; or: mark all.",
        ),
    ] = field(default_factory=list)
    mark_all: Annotated[bool, typer.Option("--mark-all", help="The same as --onnx-outputs mark all.")] = False
    onnx_exclude_outputs: Annotated[
        list[str],
        typer.Option(
            "--onnx-exclude-outputs",
            "--trt-exclude-outputs",
            "--exclude-outputs",
            metavar="NAME",
            help="Tensors to leave out, by name or glob.",
        ),
    ] = field(default_factory=list)
    shape_inference: Annotated[
        bool,
        typer.Option(
            "--shape-inference/--no-shape-inference",
            help="Declare the shapes that ONNX's inference finds in the model before it is run and saved.",
        ),
    ] = False
    save_onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the model that the target runs.")] = None
    warm_up: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Time each target, after N runs to warm up.")
    ] = None
    use_subprocess: Annotated[bool, typer.Option("--use-subprocess", help="Accepted: it is always so.")] = False
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first output that does not match.")] = (
        False
    )
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time the target may take.", callback=seconds)
    ] = None
    save_inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the inputs: .npz, or Polygraphy's .json.")
    ] = None
    save_outputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the target's outputs: .npz, or Polygraphy's .json.")
    ] = None
    load_outputs: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Compare with these outputs, not with the reference's; two or more without a model and a target: "
            "compare them with the last.",
        ),
    ] = field(default_factory=list)

    def settings(self, target: Target, more: MoreTargets, compare: Compare, plots: Plots) -> CompareSettings:
        """As plain data.

        Raises:
            UsageError: No target was asked for, or an option does not fit the others.
            UnavailableError: There are to be pictures, and matplotlib is not installed.
        """
        first, *also = more.settings(target) or [target.required(engines=True)]
        return CompareSettings(
            target=first,
            tolerance=compare.settings(first, nonfinite_equal=False),
            onnx_outputs=MARK_ALL if self.mark_all or self.onnx_outputs == ["mark all"] else tuple(self.onnx_outputs),
            exclude_outputs=tuple(self.onnx_exclude_outputs),
            also=tuple(also),
            warm_up=self.warm_up,
            save_onnx=self.save_onnx,
            fail_fast=self.fail_fast,
            timeout=self.timeout,
            save_inputs=self.save_inputs,
            save_outputs=self.save_outputs,
            load_outputs=tuple(self.load_outputs),
            pictures=plots.settings(),
        )
