"""The scale of a metric: the samples it is measured on, the score of the reference, and the bound."""

from __future__ import annotations

from msgspec import Struct

from bisect_trt.probe.outcome import MetricScore
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.metrics import Evaluation, Metric
from bisect_trt.worker.protocol import Scored, Scoring


class Scale(Struct, frozen=True):
    """A metric on a set of samples, and its bound.

    Attributes:
        metric: The metric.
        asked: The metric as the user gave it.
        data: The set.
        reference: The score of the reference.
        bound: The bound of the score; ``None`` to measure only.
        runtime: The runtime of the reference, which runs the parts of the model around a piece.
    """

    metric: Metric
    asked: str
    data: Evaluation
    reference: float
    bound: float | None
    runtime: TargetSettings | None = None

    def scoring(self) -> Scoring:
        """The settings by which a worker scores."""
        return Scoring(self.data, self.asked, self.metric.lower_is_better, self.bound)

    def score(self, measured: Scored) -> MetricScore:
        """Return a score with the facts of the metric."""
        return MetricScore(
            name=self.metric.name,
            reference=self.reference,
            candidate=measured.value,
            bound=self.bound,
            lower_is_better=self.metric.lower_is_better,
            passed=measured.passed,
            samples=self.data.count,
            of=self.data.count,
            first=measured.first,
        )
