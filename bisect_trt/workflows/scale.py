"""From the options of a metric to the check by it: the whole set on the disk, and what the reference scores there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.shapes import input_infos
from bisect_trt.graph.surgeon import between, nothing_stored, splice
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.metric_check import MetricCheck, Scale
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.protocol import Failed, Series
from bisect_trt.probing.times import spending
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.search.flakiness import expected_verdicts
from bisect_trt.tensors.inputs import labelled_inputs
from bisect_trt.tensors.saved import SavedRun
from bisect_trt.tensors.scores.asked import find_metric, script_of
from bisect_trt.tensors.scores.evaluation import Evaluation
from bisect_trt.tensors.scores.terms import Metric
from bisect_trt.workflows.compare.saved import same_samples
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.settings import MetricSettings
from bisect_trt.workflows.subject import Subject

_CHUNK = 64
"""So many samples the reference runs in one request: each takes at most what a model may take."""
_TRIED = 16
"""With so many samples it is seen whether a function of the user's is a mean over samples."""
_FEW = 30
_MANY = 10_000

Labelled = tuple[Mapping[str, Any], Any]
"""Inputs and labels of a sample."""


def make_scale(subject: Subject, settings: MetricSettings, saved: SavedRun | None = None) -> Scale:
    """Write the set, run the reference on it, and see what it scores.

    Args:
        subject: The model.
        settings: The metric, and where the set comes from.
        saved: What is taken for the reference's outputs, in place of running it.

    Raises:
        UsageError: A sample does not fit the model, or the metric does not fit the outputs or labels.
        UnavailableError: The reference does not run on a sample.
    """
    with spending("reference"):
        samples = _counted(labelled_inputs(input_infos(subject.network), settings.data), subject.console)
        data = Evaluation.write(subject.workspace.scratch("metric"), samples, settings.data.seed)
        if saved is None:
            _run_reference(subject, data)
        else:
            same_samples(saved, data.count, "the set has")
            data.write_golden(saved.samples)
    scale = scale_of(data, settings, subject.console, "the reference" if saved is None else saved.name)
    verdicts = max(4 * expected_verdicts(len(subject.units)), 100)
    error = 0.0 if settings.confidence >= 1 else (1 - settings.confidence) / verdicts
    return replace(scale, error=error, runtime=subject.models.reference)


def scale_of(data: Evaluation, settings: MetricSettings, console: Console, whose: str) -> Scale:
    """See what the reference scores on a set, of which its outputs are known; whole sets decide by it.

    Args:
        data: The set.
        settings: The metric.
        console: Who is told.
        whose: What the reference is called.

    Raises:
        UsageError: The metric does not fit the outputs or labels.
    """
    options = settings.options
    metric = find_metric(settings.asked, lower_is_better=options.lower_is_better)
    with spending("reference"):
        script, by_sample = script_of(metric), False
        if script is not None:
            first = data.order[:_TRIED]
            golden = [data.reference(place) for place in first]
            by_sample = script.is_mean(golden, golden, [data.labels(place) for place in first])
            # Read again: what a script keeps from call to call is not to hold these samples twice.
            metric = find_metric(settings.asked, lower_is_better=options.lower_is_better)
            if by_sample and (script := script_of(metric)) is not None:
                mean = script.by_sample(metric)
                # Of what is infinite, as a PSNR without noise, no part can be told from a few samples.
                by_sample = bool(np.isfinite(data.known(mean).total).all())
                metric = mean if by_sample else metric
        reference = _of_reference(metric, data)
    bound = options.bound(reference, lower_is_better=metric.lower_is_better)
    _refuse_reference(metric, reference, bound, drop=options.max_drop is not None)
    bounded = (
        "" if bound is None else f"; it must be at {'most' if metric.lower_is_better else 'least'} {metric.say(bound)}"
    )
    labels = "" if data.labelled or settings.asked.endswith(".py") else " (no labels, so what it says is the truth)"
    console.say(f"  {metric.name} of {whose}: {metric.say(reference)} on {data.count} samples{labels}{bounded}")
    if data.count < _FEW and bound is not None:
        console.warn(
            f"{data.count} samples are few for a metric; give all there are (--data-loader-script, --iterations)"
        )
    return Scale(metric, settings.asked, by_sample, data, reference, bound)


def _counted(samples: Iterable[Labelled], console: Console) -> Iterator[Labelled]:
    """The same, and a word at times: nobody else can tell a large set from a loader that never ends."""
    said = _MANY
    for number, sample in enumerate(samples, 1):
        yield sample
        if number == said:
            console.say(f"  {number} samples of the set so far; of a loader that never ends, --iterations N takes N")
            said *= 2


def _run_reference(subject: Subject, data: Evaluation) -> None:
    model = subject.models.write("scored", subject.truth.proto)
    for start in range(0, data.count, _CHUNK):
        places = range(start, min(start + _CHUNK, data.count))
        request = Series(
            subject.models.reference, model, tuple(map(data.inputs, places)), tuple(map(data.golden, places))
        )
        reply = subject.models.ask(request, here=True)
        if isinstance(reply, Failed):
            raise UnavailableError(
                f"the reference cannot run the model on all samples of the set: {reply.message}. A metric needs its outputs; "
                "leave those samples out that it does not run on."
            )


def _of_reference(metric: Metric, data: Evaluation) -> float:
    if metric.of_sample is not None:
        return data.known(metric).value(metric)
    assert metric.of_set is not None, "it is one or the other"
    places = range(data.count)
    golden = [data.reference(place) for place in places]
    return metric.of_set(golden, golden, [data.labels(place) for place in places])


def _refuse_reference(metric: Metric, reference: float, bound: float | None, *, drop: bool) -> None:
    """Make sure that the reference is as good as a candidate is to be.

    Raises:
        UsageError: It is not.
    """
    if math.isnan(reference):
        why = "NaN" if script_of(metric) else "a mean of nothing, because no label of the set counts"
        mend = "metric" if script_of(metric) else "loader"
        raise UsageError(
            f"{metric.name} of the reference's outputs is {why}, so nothing can be held against it; mend the {mend}."
        )
    if math.isinf(reference) and drop:
        raise UsageError(
            f"{metric.name} of the reference's outputs is {reference:g}, from which no drop can be measured; give "
            f"--{'max' if metric.lower_is_better else 'min'} instead of --max-drop, or have the metric end somewhere."
        )
    worse = bound is not None and (reference > bound if metric.lower_is_better else reference < bound)
    if worse and bound is not None:
        raise UsageError(
            f"{metric.name} of the reference itself is {metric.say(reference)}, which is worse than {metric.say(bound)}; ask for "
            "no more than it has, or say by --max-drop how much may be lost."
        )


def metric_check(subject: Subject, runs: BuiltinCheck, settings: MetricSettings) -> MetricCheck:
    """The check by a metric.

    Raises:
        UsageError: As :func:`make_scale`.
        UnavailableError: As :func:`make_scale`.
    """
    network = subject.network

    def rest(piece: onnx.ModelProto) -> tuple[onnx.ModelProto | None, onnx.ModelProto | None]:
        weights = {entry.name for entry in piece.graph.initializer}
        fed = [value.name for value in piece.graph.input if value.name not in weights]
        made = [value.name for value in piece.graph.output]
        inner = [name for name in fed if name not in network.inputs]
        ends = [name for name in network.outputs if name not in made and name in network.producer]
        return _between(subject, (), inner), _between(subject, [n for n in made if n in network.producer], ends)

    return MetricCheck(runs, make_scale(subject, settings), rest)


def measure_whole(investigation: Investigation, candidate: Candidate) -> None:
    """Put what a candidate scores on the whole set into the result, and say it; nothing where no metric is the check."""
    prober, result, console = investigation.prober, investigation.result, investigation.console
    check = prober.runner.check
    if not isinstance(check, MetricCheck):
        return
    scale, original = check.scale, investigation.outcome(prober.ledger.records[0]).metric
    measured = check.measure(prober.runner.write(candidate), 0.0)
    if isinstance(measured, Failed):
        console.warn(f"what the answer scores on the whole set is not known: {measured.message}")
        return
    result.extra["metric"] = scale.to_json(measured) | {
        "confidence": scale.confidence(len(prober.ledger.records)),
        "original": None if original is None else original["candidate"],
        "probes": [
            {"probe": record.number, **{name: seen[name] for name in ("candidate", "samples")}}
            for record in prober.ledger.records
            if (seen := investigation.outcome(record).metric) is not None
        ],
    }
    console.answer(f"  {scale.describe(measured)}; the reference has {scale.metric.say(scale.reference)}")


def note_first(prober: Prober, result: Result) -> None:
    """Put what the first candidate scores into a result that ends before there is an answer."""
    if "metric" in result.extra or not isinstance(prober.runner.check, MetricCheck):
        return
    outcomes = (prober.ledger.outcome(record.key) for record in prober.ledger.records)
    found = next((outcome.metric for outcome in outcomes if outcome is not None and outcome.metric is not None), None)
    if found is not None:
        result.extra["metric"] = dict(found)


def _between(subject: Subject, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto | None:
    if not outputs:
        return None
    piece = between(subject.network, tuple(inputs), tuple(outputs))
    return splice(subject.network, piece, subject.infos, nothing_stored).proto
