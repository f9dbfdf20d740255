"""``run``: compare the outputs of a target with the reference's or with saved ones, or saved ones with each other."""

from __future__ import annotations

from bisect_trt.commands.call import Call
from bisect_trt.commands.compare import CompareSettings, compare, compare_saved, refuse_options
from bisect_trt.commands.metric_commands import score
from bisect_trt.commands.precision_audit import audit_precision
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import tolerance_options
from bisect_trt.errors import ConflictError, MissingOptionError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.metric import MetricOptions
from bisect_trt.options.run import Run, RunOptions
from bisect_trt.options.shared import Data, Plots
from bisect_trt.report.plots import check_plots
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Failed, Sample

_NEED_A_MODEL = {"onnx_exclude_outputs", "save_onnx", "save_inputs", "save_outputs"}
"""Options that saved outputs have no use for."""


def run(call: Call) -> Result:
    """Compare a target with the reference, or with saved results, or saved results alone.

    Raises:
        UsageError: An option is wrong, or a file cannot be written.
        UnavailableError: The target or the reference cannot run the model, or matplotlib is not installed.
    """
    options = call[RunOptions]
    check_plots(call[Plots])
    if call.source is None and (Run not in call.options or call[Run].model is None):
        return _compare_saved(call)
    target = call[Target].required(engines=True)
    tolerance = tolerance_options(call[CompareOptions], target, nonfinite_equal=False)
    settings = CompareSettings(target, tolerance, options, call[Plots])
    if options.save_onnx is not None:
        check_output(options.save_onnx, overwrite=True)
    metric = call.metric(bounded=False)
    call.open(None, options.load_outputs)
    with call.examined(options.timeout, target) as session:
        if target.build_only:
            return build(session, target, tolerance, options.timeout)
        if metric is not None:
            return score(session, settings, metric)
        return compare(session, settings)


def build(session: Session, target: TargetSettings, tolerance: ToleranceOptions, timeout: float | None) -> Result:
    """Parse and build the model, and report the precisions of its layers; nothing is run."""
    subject, console, result = session.subject, session.console, session.result
    console.step(f"{target.describe()}: does it parse and build?")
    inputs = subject.models.feed("inputs", subject.samples[0])
    model = subject.models.write("built", subject.network.proto)
    reply = subject.workers.ask(Compare(target, model, (Sample(inputs, inputs),), tolerance, layers=True), timeout)
    if isinstance(reply, Failed):
        result.status, result.why = "not_reproduced", reply.message
        console.answer(f"It does not: {reply.message}.")
        return result
    audit = audit_precision(target, reply.layers)
    result.status, result.minimality = "found", "1-minimal"
    result.extra["layers"], result.extra["precision_audit"] = list(reply.layers), audit.to_json()
    console.answer(f"It does: {audit.sentence}")
    return result


def _compare_saved(call: Call) -> Result:
    """Compare saved results alone.

    Raises:
        UsageError: There are none, or an option needs a model.
    """
    options, result, console = call[RunOptions], call.result, call.console
    if call[Target].settings(engines=True) is not None or not options.load_outputs:
        raise MissingOptionError(
            "there is no model to run; name one, or two saved results with --load-outputs and no target."
        )
    why = "needs a model; name one, or drop it."
    refuse_options(options, _NEED_A_MODEL, why)
    if call[MetricOptions].metric is not None or call[Data].external_data_dir is not None:
        raise ConflictError(f"--{'metric' if call[MetricOptions].metric is not None else 'external-data-dir'} {why}")
    call[MetricOptions].check(bounded=False)
    tolerance = tolerance_options(call[CompareOptions], None, nonfinite_equal=False)
    return compare_saved(options.load_outputs, tolerance, options, call[Plots], console, result)
