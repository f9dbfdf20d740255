"""``run``: compare the outputs of targets with the reference's or with saved ones, or saved ones with each other."""

from __future__ import annotations

from bisect_trt.commands.call import Call
from bisect_trt.commands.compare import CompareSettings, compare, compare_saved, refuse_options
from bisect_trt.commands.metric_commands import score
from bisect_trt.commands.self_consistency import self_check
from bisect_trt.commands.settings import tolerance_options
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.metric import MetricOptions
from bisect_trt.options.run import MoreTargets, Run, RunOptions
from bisect_trt.options.shared import Data, Plots
from bisect_trt.report.plots import check_plots
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings

_NEED_A_MODEL = {"onnx_exclude_outputs", "shape_inference", "save_onnx", "save_inputs", "save_outputs", "warm_up"}
"""Options that saved outputs have no use for."""
_NO_REFERENCE = {"load_outputs", "save_outputs", "onnx_outputs", "onnx_exclude_outputs", "warm_up", "save_onnx"}
"""Options that a comparison of a target with itself has no use for."""


def run(call: Call) -> Result:
    """Compare targets with the reference, or with saved results, or saved results alone.

    Raises:
        UsageError: An option is wrong, or a file cannot be written.
        UnavailableError: The target or the reference cannot run the model, or matplotlib is not installed.
    """
    options = call[RunOptions]
    check_plots(call[Plots])
    if call.source is None and (Run not in call.options or call[Run].model is None):
        return _compare_saved(call)
    target = call[Target]
    targets = targets_to_run(call[MoreTargets], target) or [target.required(engines=True)]
    if options.self_check:
        why = "does not apply to --self-check, which compares the target with itself; drop it."
        refuse_options(options, _NO_REFERENCE, why)
    tolerance = tolerance_options(call[CompareOptions], targets[0], nonfinite_equal=False)
    settings = CompareSettings(tuple(targets), tolerance, options, call[Plots])
    if options.save_onnx is not None:
        check_output(options.save_onnx, overwrite=True)
    metric = call.metric(bounded=False)
    call.open(None, options.load_outputs, shape_inference=options.shape_inference)
    with call.examined(options.timeout, *targets) as session:
        if metric is not None:
            return score(session, settings, metric)
        if options.self_check:
            return self_check(session, targets, tolerance, options.timeout)
        return compare(session, settings)


def targets_to_run(more: MoreTargets, target: Target) -> list[TargetSettings]:
    """Return all targets of a ``run``, the one under suspicion first; empty if none was given.

    Raises:
        UsageError: An option of a target without the target, or one that conflicts with others.
    """
    if more.onnx and not target.named():
        target.but(fp16=False, bf16=False, keep_fp32=()).settings()  # raises if there is another option
        return [TargetSettings("onnx", fp16=target.fp16, bf16=target.bf16, keep=tuple(target.keep_fp32))]
    runtime = target.settings(engines=True)
    return [] if runtime is None else [runtime, *([TargetSettings("onnx")] if more.onnx else [])]


def _compare_saved(call: Call) -> Result:
    """Compare saved results alone.

    Raises:
        UsageError: There are none, or an option needs a model.
    """
    options, result, console = call[RunOptions], call.result, call.console
    if targets_to_run(call[MoreTargets], call[Target]) or not options.load_outputs:
        raise UsageError("there is no model to run; name one, or two saved results with --load-outputs and no target.")
    why = "needs a model; name one, or drop it."
    refuse_options(options, _NEED_A_MODEL, why)
    if call[MetricOptions].metric is not None or call[Data].external_data_dir is not None:
        raise UsageError(f"--{'metric' if call[MetricOptions].metric is not None else 'external-data-dir'} {why}")
    call[MetricOptions].check(bounded=False)
    tolerance = tolerance_options(call[CompareOptions], None, nonfinite_equal=False)
    return compare_saved(options.load_outputs, tolerance, options, call[Plots], console, result)
