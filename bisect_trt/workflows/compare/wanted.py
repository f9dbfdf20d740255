"""What a ``run`` is to compare, from its options."""

from __future__ import annotations

from bisect_trt.errors import UsageError
from bisect_trt.options.compare import Compare
from bisect_trt.options.run import MoreTargets, RunOptions
from bisect_trt.options.shared import Plots
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.targets.trt.options import LoweringChoice
from bisect_trt.workflows.compare.average import check_average
from bisect_trt.workflows.compare.chosen import MARK_ALL, MARK_UNFUSED
from bisect_trt.workflows.compare.compare import CompareSettings
from bisect_trt.workflows.from_options import pictures, tolerance_options


def targets_to_run(more: MoreTargets, target: Target) -> list[TargetSettings]:
    """All targets of a ``run``, the one under suspicion first; none if none was asked for.

    Raises:
        UsageError: An option of a target without the target, or one that others rule out.
    """
    if more.fp_to_fp16:
        by_cast = any(each.capabilities.lowers_layers for each in target.named())
        target = target.but(fp16=True, **({"lowering": LoweringChoice.CAST} if by_cast else {}))
    rest = [TargetSettings(own=OnnxRuntimeSettings(tuple(word.split(",")))) for word in more.also_providers]
    rest += [reference_settings()] if more.onnxrt_reference else []
    named = target.named()
    if more.onnx and not named:
        target.but(fp16=False, bf16=False, keep_fp32=[]).settings()  # raises if there is another option
        first = TargetSettings("onnx", fp16=target.fp16, bf16=target.bf16, keep=tuple(target.keep_fp32))
        return [first, *rest]
    if not named and rest and not target.given():
        return rest
    runtime = target.settings(engines=True)
    return [] if runtime is None else [runtime, *([TargetSettings("onnx")] if more.onnx else []), *rest]


def compare_settings(
    options: RunOptions, target: Target, more: MoreTargets, compare: Compare, plots: Plots
) -> CompareSettings:
    """What a ``run`` is to compare.

    Raises:
        UsageError: No target was asked for, or an option does not fit the others.
        UnavailableError: There are to be pictures, and matplotlib is not installed.
    """
    first, *also = targets_to_run(more, target) or [target.required(engines=True)]
    if options.self_check:
        _refuse_beside_self_check(options)
    tolerance = tolerance_options(compare, first, nonfinite_equal=False)
    if options.check_average:
        check_average(tolerance, fail_fast=options.fail_fast)
    marked, unfused = (options.onnx_outputs == [words] for words in ("mark all", "mark unfused"))
    marked = marked or options.mark_all
    return CompareSettings(
        target=first,
        tolerance=tolerance,
        onnx_outputs=MARK_ALL if marked else MARK_UNFUSED if unfused else tuple(options.onnx_outputs),
        exclude_outputs=tuple(options.onnx_exclude_outputs),
        also=tuple(also),
        warm_up=options.warm_up,
        save_onnx=options.save_onnx,
        fail_fast=options.fail_fast,
        timeout=options.timeout,
        save_inputs=options.save_inputs,
        save_outputs=options.save_outputs,
        load_outputs=tuple(options.load_outputs),
        pictures=pictures(plots),
        self_check=options.self_check,
        average=options.check_average,
    )


def _refuse_beside_self_check(options: RunOptions) -> None:
    """Make sure that nothing is asked for that is about the reference or about saved results.

    Raises:
        UsageError: Something is.
    """
    given = {
        "--load-outputs": options.load_outputs,
        "--save-outputs": options.save_outputs,
        "--onnx-outputs": options.onnx_outputs or options.mark_all,
        "--onnx-exclude-outputs": options.onnx_exclude_outputs,
        "--warm-up": options.warm_up is not None,
        "--save-onnx": options.save_onnx,
        "--check-average": options.check_average,
    }
    if beside := next((name for name, wanted in given.items() if wanted), None):
        raise UsageError(
            f"--self-check compares the outputs of the target with its own; {beside} has no part in that: drop it."
        )
