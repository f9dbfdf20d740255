"""Score what a model makes of a set of samples, one after the other, until enough of them were seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bisect_trt.probe.times import spending
from bisect_trt.search.statistics import MeanTest
from bisect_trt.targets.base import Session
from bisect_trt.tensors.metrics import Evaluation, Metric, Outputs, find_metric
from bisect_trt.tensors.npz import load_npz
from bisect_trt.worker.protocol import Measured, Scoring
from bisect_trt.worker.sessions import run

Run = Callable[[dict[str, Any]], Outputs]
"""What the model makes of the inputs of a sample."""


@dataclass(frozen=True)
class Piece:
    """A piece of a model, of which the reference runs the rest: what it is fed, and what comes of what it makes.

    Attributes:
        before: Makes what the piece is fed; ``None`` if the model's inputs are all.
        after: Makes the model's outputs; ``None`` if the piece makes them.
    """

    before: Session | None
    after: Session | None

    def feed(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """What the piece is fed, of a sample; there may be more in it."""
        return {**sample, **({} if self.before is None else run(self.before, sample))}

    def run(self, session: Session, sample: Mapping[str, Any]) -> Outputs:
        """The model's outputs, with the piece on the target."""
        made = run(session, self.feed(sample))
        return {**made, **({} if self.after is None else run(self.after, {**sample, **made}))}


def measure(run: Run, asked: Scoring) -> Measured:
    """Score a model.

    Raises:
        UsageError: The metric does not fit the outputs or the labels, or the user's script fails.
    """
    data = Evaluation.open(asked.data)
    metric = find_metric(asked.metric, lower_is_better=asked.lower_is_better)
    if metric.of_sample is None:
        return _measure_whole(run, asked, metric, data)
    known = data.known(metric)
    low, high = known.gains()
    needed = -math.inf if asked.bound is None else known.needed(asked.bound)
    test = MeanTest(data.count, low, high, max(needed, -1e300), asked.error if asked.bound is not None else 0.0)
    gains: list[float] = []
    for place, sample in enumerate(data.order):
        outputs, reference = run(load_npz(data.inputs(sample))), data.reference(sample)
        with spending("comparing"):
            seen = metric.of_sample(outputs, dict(reference), data.labels(sample))
            gains.append(known.gain(place, seen))
            decided = test.add(gains[-1])
        if decided is not None and asked.error > 0:
            break
    value = known.estimate(test.mean)
    passed = test.decided if asked.bound is not None else None
    return Measured(value, test.seen, passed, gains=() if asked.error > 0 else tuple(gains))


def _measure_whole(run: Run, asked: Scoring, metric: Metric, data: Evaluation) -> Measured:
    places = range(data.count)
    seen = [run(load_npz(data.inputs(place))) for place in places]
    assert metric.of_set is not None, "it is one or the other"
    with spending("comparing"):
        value = metric.of_set(
            seen, [data.reference(place) for place in places], [data.labels(place) for place in places]
        )
    return Measured(value, data.count, None if asked.bound is None else is_within(metric, value, asked.bound))


def is_within(metric: Metric, value: float, bound: float) -> bool:
    """Whether a value is at the bound or on its good side; NaN is not."""
    slack = 1e-9 * max(abs(bound), 1.0)
    return value <= bound + slack if metric.lower_is_better else value >= bound - slack
