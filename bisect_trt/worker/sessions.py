"""Work with a loaded model: feed it, run it, time it, compare its outputs with the reference's, or score them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.targets.base import RuntimeSession
from bisect_trt.targets.messages import RunError
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import NpzFile, load_npz, save_npz
from bisect_trt.tensors.store import ActivationStore
from bisect_trt.tensors.tolerance import Precision, Step
from bisect_trt.worker.protocol import Compare, Sample, Scored, Scoring

if TYPE_CHECKING:
    from bisect_trt.tensors.metrics import Metric, Outputs

TIMED_RUNS = 20
"""Number of runs for the median of a model's latency."""
_TIMED_FOR = 5.0
"""Seconds of timed runs after which there is no other one."""
Run = Callable[[dict[str, Any]], "Outputs"]
"""The outputs of a model by the inputs of a sample."""
Feed = dict[str, Any]
"""Values by the names of inputs, some of them left on disk till used."""


def feed_of(request: Compare, sample: Sample) -> Feed:
    """The values of a file; and activations of the reference, by the inputs that are ``fed`` them."""
    feed: Feed = load_npz(sample.inputs)
    if request.fed:
        reference = ActivationStore.open(sample.golden)
        feed |= {name: reference.get(tensor) for name, tensor in request.fed.items()}
    return feed


def run(session: RuntimeSession, feed: Mapping[str, Any], feeds: Path | None = None) -> Feed:
    """Run a model on values, possibly more than its inputs, and on values of a store where one is named."""
    if feeds is not None:
        store = ActivationStore.open(feeds)
        feed = {**feed, **{info.name: store[info.name] for info in session.inputs if info.name in store}}
    names = {info.name for info in session.inputs}
    return dict(session.run({name: value for name, value in feed.items() if name in names}))


def shapes_of(feed: Feed) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes of values, by name."""
    return tuple(sorted((name, value.shape) for name, value in feed.items()))


def median_ms(session: RuntimeSession, feed: Feed) -> float | None:
    """Milliseconds of one run, with inputs copied to the target and outputs back: the median of :data:`TIMED_RUNS` runs.

    Of a slow model fewer runs are timed. A model that does not run again is no failure, since its outputs are known: ``None``.

    Args:
        session: The loaded model.
        feed: The values, of which there may be more than it takes.

    Raises:
        RunError: The runtime fails at everything else from now on.
    """
    names = {info.name for info in session.inputs}
    feed = {name: value for name, value in feed.items() if name in names}
    there = getattr(session, "median_ms", None)
    if there is not None:
        return float(there(feed, TIMED_RUNS))
    seconds: list[float] = []
    try:
        session.run(feed)
        while len(seconds) < TIMED_RUNS and sum(seconds) <= _TIMED_FOR:
            began = time.perf_counter()
            session.run(feed)
            seconds.append(time.perf_counter() - began)
    except RunError as error:
        if error.poisoned:
            raise
        print(f"it does not run again, so it is not timed: {error.message}", flush=True)
        return None
    return 1000 * statistics.median(seconds)


def compare_sample(session: RuntimeSession, request: Compare, sample: Sample, number: int) -> list[TensorComparison]:
    """Run a model on one sample, keep the requested outputs, and compare them with the reference's."""
    from bisect_trt.tensors.compare import compare_all  # noqa: PLC0415 - a worker for the reference alone starts without

    feed = feed_of(request, sample)
    outputs = run(session, feed)
    if request.save_outputs:
        save_npz(request.save_outputs[number - 1], outputs)
    reference = ActivationStore.open(sample.golden) if sample.golden.is_dir() else NpzFile(sample.golden)
    # A candidate's values are those of its outputs: one that the target does not hand out is missing, not unasked for.
    wanted: Iterable[str] = request.names or (outputs if sample.golden.is_dir() else reference)
    known = [name for name in wanted if name in reference and name not in session.skipped]
    steps, lows = _grids(request.model, feed, reference)
    return compare_all(reference, outputs, request.tolerance, known, details=request.details, steps=steps, lows=lows)


def _grids(model: Path, feed: Feed, golden: NpzFile | ActivationStore) -> tuple[dict[str, Step], dict[str, Precision]]:
    """The steps of the model's quantized tensors, of which some scales are computed; and what is rounded to 16 bits."""
    try:
        from bisect_trt.onnxlib.roundings import find_roundings  # noqa: PLC0415 - it needs onnx, which may not be there
    except ImportError:
        return {}, {}

    def value(name: str) -> Any:  # noqa: ANN401 - an array, of either
        return next((values[name] for values in (feed, golden) if name in values), None)

    return find_roundings(model, feed, value)


@dataclass(frozen=True)
class FedPiece:
    """A piece of a model, of which the reference runs the rest: its inputs, and the outputs of the rest.

    Attributes:
        before: Makes what the piece is fed; ``None`` if the model's inputs are all.
        after: Makes the model's outputs; ``None`` if the piece makes them.
    """

    before: RuntimeSession | None
    after: RuntimeSession | None

    def feed(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The values at the inputs of the piece for a sample, possibly more."""
        return {**sample, **({} if self.before is None else run(self.before, sample))}

    def run(self, session: RuntimeSession, sample: Mapping[str, Any]) -> Outputs:
        """The model's outputs, with the piece on the target."""
        made = run(session, self.feed(sample))
        return {**made, **({} if self.after is None else run(self.after, {**sample, **made}))}


def measure(run: Run, asked: Scoring) -> Scored:
    """Score a model.

    Raises:
        UsageError: The metric does not fit the outputs or the labels, or the user's script fails.
    """
    from bisect_trt.tensors.metrics import Evaluation, find_metric  # noqa: PLC0415 - few workers score

    data = Evaluation.open(asked.data)
    metric = find_metric(asked.metric, lower_is_better=asked.lower_is_better)
    value = data.score(metric, lambda place: run(load_npz(data.inputs(place))))
    return Scored(value, None if asked.bound is None else is_within(metric, value, asked.bound))


def is_within(metric: Metric, value: float, bound: float) -> bool:
    """Whether a value is at the bound or on its good side; NaN is not."""
    slack = 1e-9 * max(abs(bound), 1.0)
    return value <= bound + slack if metric.lower_is_better else value >= bound - slack
