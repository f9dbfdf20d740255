"""Score the outputs of each target on a whole set of samples, by a metric, and hold that against a bound if there is one."""

from __future__ import annotations

import math
from dataclasses import replace

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.options.run import RunOptions
from bisect_trt.probing.protocol import Failed
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.compare.compare import CompareSettings
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.scale import make_scale
from bisect_trt.workflows.settings import MetricSettings


def refuse_beside_metric(options: RunOptions) -> None:
    """Make sure that nothing is asked for that is about single outputs.

    Raises:
        UsageError: Something is.
    """
    given = {
        "--load-outputs": options.load_outputs,
        "--save-outputs": options.save_outputs,
        "--save-inputs": options.save_inputs,
        "--onnx-outputs": options.onnx_outputs or options.mark_all,
        "--onnx-exclude-outputs": options.onnx_exclude_outputs,
        "--save-onnx": options.save_onnx,
        "--self-check": options.self_check,
        "--fail-fast": options.fail_fast,
        "--check-average": options.check_average,
    }
    if beside := next((name for name, wanted in given.items() if wanted), None):
        raise UsageError(
            f"--metric scores all outputs on a whole set of samples; {beside} has no part in that: drop it."
        )


def score(examination: Examination, settings: CompareSettings, metric: MetricSettings) -> Result:
    """Score every target on the whole set.

    Raises:
        UsageError: A sample does not fit the model, or the metric does not fit the outputs or labels.
        UnavailableError: The reference or a target cannot run the model.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    scale = make_scale(subject, metric)
    model = subject.models.write("measured", subject.network.proto)
    targets = result.extra["targets"] = []
    for each in settings.each():
        console.step(f"{each.target.describe()}, on all {scale.data.count} samples")
        request = replace(scale.request(each.target, model, 0.0), warm_up=each.warm_up)
        measured = subject.models.ask(request, settings.timeout)
        if isinstance(measured, Failed):
            raise UnavailableError(f"the target cannot run {subject.settings.path}: {measured.message}.")
        found = scale.to_json(measured)
        targets.append({"name": each.target.describe(), "latency_ms": measured.latency_ms, "metric": found})
        result.extra.setdefault("metric", found)
        lost = measured.value - scale.reference
        change = f" ({lost:+.4g}{scale.metric.unit} against the reference)" if lost else " (the reference's)"
        if math.isnan(lost):
            change = " (the reference's)" if measured.value == scale.reference else ""
        console.answer(f"{scale.describe(measured)}{change}")
    failed = sum(target["metric"]["passed"] is False for target in targets)
    result.extra["comparisons"] = []
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    return result
