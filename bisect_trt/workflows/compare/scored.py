"""Score the outputs of each target on a whole set of samples, by a metric, and hold that against a bound if there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.options.run import RunOptions
from bisect_trt.probing.metric_check import Scale
from bisect_trt.probing.protocol import Failed, Measure, Measured
from bisect_trt.probing.workers.guard import scratch
from bisect_trt.probing.workers.measuring import measure
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.inputs import given_labels
from bisect_trt.tensors.saved import SavedRun, Selected, load_runs
from bisect_trt.tensors.scores.evaluation import Evaluation
from bisect_trt.workflows.compare.compare import CompareSettings
from bisect_trt.workflows.compare.saved import same_outputs, same_samples, saved_runs
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.scale import make_scale, scale_of
from bisect_trt.workflows.settings import MetricSettings


def refuse_beside_metric(options: RunOptions) -> None:
    """Make sure that nothing is asked for that is about single outputs.

    Raises:
        UsageError: Something is.
    """
    given = {
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
        UsageError: A sample does not fit the model, saved outputs do not fit the set, or the metric does not fit
            the outputs or labels.
        UnavailableError: The reference or a target cannot run the model.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    model = subject.models.write("measured", subject.network.proto)
    references: list[SavedRun | None] = [run for path in settings.load_outputs for run in load_runs(path)]
    for saved in references or [None]:
        scale = make_scale(subject, metric, saved)
        against = "" if saved is None else f" against {saved.name}"
        for each in settings.each():
            console.step(f"{each.target.describe()}{against}, on all {scale.data.count} samples")
            request = Measure(each.target, model, scale.scoring(0.0), warm_up=each.warm_up)
            measured = subject.models.ask(request, settings.timeout)
            if isinstance(measured, Failed):
                raise UnavailableError(f"the target cannot run {subject.settings.path}: {measured.message}.")
            _tell(scale, measured, each.target.describe(), saved, console, result)
    return _conclude(result)


def score_saved(paths: Sequence[Path], metric: MetricSettings, console: Console, result: Result) -> Result:
    """Score each saved run on the whole set, with the last one for the reference, as :func:`score` does of live ones.

    Labels come from where samples do; the inputs among these are not looked at.

    Raises:
        UsageError: There are not two runs, they or the labels do not fit each other, or the metric does not fit them.
    """
    runs, right = saved_runs(paths)
    count = len(right.samples)
    none: list[Any] = [None] * count
    labels = list(islice(given_labels(metric.data), count + 1)) or none
    if len(labels) != count:
        gives = f"more than {count}" if len(labels) > count else len(labels)
        raise UsageError(
            f"{right.name} holds {count} sample(s) and there are labels for {gives}; give those of the samples that were saved "
            "(--iterations)."
        )
    for run in runs:
        same_samples(run, count, f"{right.name} holds")
        names = same_outputs(run.name, run.samples[0], list(right.samples[0]), console)
        with scratch() as folder:
            # A target that gives what it is fed: then all is done as of a live one.
            data = Evaluation.write(Path(folder), zip(run.samples, labels, strict=True), metric.data.seed)
            data.write_golden(
                Selected(sample, same_outputs(right.name, sample, names, console)) for sample in right.samples
            )
            scale = scale_of(data, metric, console, right.name)
            console.step(f"{run.name} against {right.name}, on all {count} samples")
            _tell(scale, measure(lambda outputs: outputs, scale.scoring(0.0)), run.name, right, console, result)
    return _conclude(result)


def _tell(
    scale: Scale, measured: Measured, name: str, saved: SavedRun | None, console: Console, result: Result
) -> None:
    """Say what one target scores, and put it into the result."""
    found = scale.to_json(measured)
    result.extra.setdefault("targets", []).append({"name": name, "latency_ms": measured.latency_ms, "metric": found})
    result.extra.setdefault("metric", found)
    whose, equal = ("the reference", "the reference's") if saved is None else (saved.name, f"as {saved.name}")
    lost = measured.value - scale.reference
    change = f" ({lost:+.4g}{scale.metric.unit} against {whose})" if lost else f" ({equal})"
    if math.isnan(lost):
        change = f" ({equal})" if measured.value == scale.reference else ""
    console.answer(f"{scale.describe(measured)}{change}")


def _conclude(result: Result) -> Result:
    failed = any(target["metric"]["passed"] is False for target in result.extra["targets"])
    result.extra["comparisons"] = []
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    return result
