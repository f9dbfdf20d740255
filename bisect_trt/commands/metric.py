"""The check by a metric: the set on the disk, the score of the reference on it, and the bound that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ModelRefusedError, UnsuitableModelError
from bisect_trt.onnxlib.cut import between, nothing_stored, splice
from bisect_trt.onnxlib.shapes import input_infos
from bisect_trt.options.metric import MetricOptions
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck, Scale
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import Prober
from bisect_trt.report.result import Result
from bisect_trt.tensors.inputs import labelled_inputs
from bisect_trt.tensors.metrics import Evaluation, Metric, find_metric
from bisect_trt.worker.protocol import Failed, RunEach

_CHUNK = 64
"""Samples that the reference runs in one request: each takes at most what a model may take."""
_FEW = 30


def make_scale(subject: Subject, options: MetricOptions) -> Scale:
    """Write the set, run the reference on it, and score its outputs.

    Args:
        subject: The model, and where the set comes from.
        options: The metric, and how good it has to be.

    Raises:
        UsageError: A sample does not fit the model, or the metric does not fit the outputs or labels.
        UnavailableError: The reference does not run on a sample.
    """
    console, given, asked = subject.console, subject.settings.data, options.metric
    assert asked is not None, "there is no scale without a metric"
    metric = find_metric(asked, lower_is_better=options.lower_is_better)
    samples = labelled_inputs(input_infos(subject.network), given)
    data = Evaluation.write(subject.workspace.scratch("metric"), samples)
    _run_reference(subject, data)
    reference, _ = data.score(metric, lambda place: dict(data.reference(place)))
    bound = options.bound(reference, lower_is_better=metric.lower_is_better)
    _check_reference(metric, reference, bound, drop=options.max_drop is not None)
    limit = "most" if metric.lower_is_better else "least"
    bounded = "" if bound is None else f"; it must be at {limit} {metric.say(bound)}"
    labels = "" if data.labelled or asked.endswith(".py") else " (no labels, so its own outputs stand for them)"
    console.say(f"  {metric.name} of the reference: {metric.say(reference)} on {data.count} samples{labels}{bounded}")
    if data.count < _FEW and bound is not None:
        console.warn(
            f"{data.count} samples are few for a metric; give all there are (--data-loader-script, --iterations)"
        )
    return Scale(metric, asked, data, reference, bound, subject.models.reference)


def _run_reference(subject: Subject, data: Evaluation) -> None:
    model = subject.models.write("scored", subject.truth.proto)
    for start in range(0, data.count, _CHUNK):
        places = range(start, min(start + _CHUNK, data.count))
        files = tuple(map(data.inputs, places)), tuple(map(data.golden, places))
        reply = subject.workers.ask(RunEach(subject.models.reference, model, *files), here=True)
        if isinstance(reply, Failed):
            raise ModelRefusedError(
                f"the reference cannot run the model on all samples of the set: {reply.message}. Leave out the samples that it "
                "does not run on."
            )


def _check_reference(metric: Metric, reference: float, bound: float | None, *, drop: bool) -> None:
    """Check that the reference is as good as a candidate has to be.

    Raises:
        UsageError: It is not.
    """
    name, worse = f"{metric.name} of the reference", metric.lower_is_better
    if math.isnan(reference):
        fix = "correct the metric" if metric.of_set is not None else "no label of the set counts; correct the loader"
        raise UnsuitableModelError(f"{name} is NaN, so no candidate can be compared with it: {fix}.")
    if math.isinf(reference) and drop:
        raise UnsuitableModelError(
            f"{name} is {reference:g}, from which no drop can be measured; give --{'max' if worse else 'min'} instead of "
            "--max-drop."
        )
    if bound is not None and (reference > bound if worse else reference < bound):
        raise UnsuitableModelError(
            f"{name} itself is {metric.say(reference)}, which is worse than {metric.say(bound)}; give a weaker bound, or "
            "--max-drop."
        )


def metric_check(subject: Subject, runs: BuiltinCheck, options: MetricOptions) -> MetricCheck:
    """Return the check by a metric.

    Raises:
        UsageError: As :func:`make_scale`.
        UnavailableError: As :func:`make_scale`.
    """
    network = subject.network

    def part(inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto | None:
        if not outputs:
            return None
        return splice(network, between(network, tuple(inputs), tuple(outputs)), subject.infos, nothing_stored).proto

    def rest(piece: onnx.ModelProto) -> tuple[onnx.ModelProto | None, onnx.ModelProto | None]:
        """Return the parts of the model before and after a piece of it."""
        weights = {entry.name for entry in piece.graph.initializer}
        fed = [value.name for value in piece.graph.input if value.name not in weights]
        made = [value.name for value in piece.graph.output]
        inner = [name for name in fed if name not in network.inputs]
        ends = [name for name in network.outputs if name not in made and name in network.producer]
        return part((), inner), part([n for n in made if n in network.producer], ends)

    return MetricCheck(runs, make_scale(subject, options), rest)


def measure_whole(session: Session, candidate: Candidate) -> None:
    """Put the score of a candidate on the whole set into the result, if the check is a metric."""
    prober, result, console = session.prober, session.result, session.console
    check = prober.runner.check
    if not isinstance(check, MetricCheck):
        return
    scale, original = check.scale, session.outcome(prober.ledger.records[0]).metric
    measured = check.measure(prober.runner.write(candidate))
    if isinstance(measured, Failed):
        console.warn(f"the answer could not be scored on the whole set: {measured.message}")
        return
    result.extra["metric"] = scale.to_json(measured) | {
        "original": None if original is None else original["candidate"],
        "probes": [
            {"probe": record.number, "candidate": seen["candidate"]}
            for record in prober.ledger.records
            if (seen := session.outcome(record).metric) is not None
        ],
    }
    console.answer(f"  {scale.describe(measured)}; the reference has {scale.metric.say(scale.reference)}")


def note_first(prober: Prober, result: Result) -> None:
    """Put the score of the first candidate into a result that ends before there is an answer."""
    if "metric" in result.extra or not isinstance(prober.runner.check, MetricCheck):
        return
    outcomes = (prober.ledger.outcome(record.key) for record in prober.ledger.records)
    found = next((outcome.metric for outcome in outcomes if outcome is not None and outcome.metric is not None), None)
    if found is not None:
        result.extra["metric"] = dict(found)
