"""The check by a metric: the score of a model's outputs on a whole set of samples, with the candidate on the target.

A candidate that is a piece of the model has no such outputs. For each sample the reference computes
the inputs of the piece, the target runs the piece, and the reference computes the model's outputs
from the result. So it is the score of a model in which only the piece runs on the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import onnx

from bisect_trt.probe.oracles import BuiltinCheck, EngineCache, outcome_of_failure
from bisect_trt.probe.outcome import Ending, MetricScore, Outcome
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.metrics import Evaluation, Metric
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import Failed, Score, Scored, Scoring

SIGNATURE = "metric"
Rest = Callable[[onnx.ModelProto], "tuple[onnx.ModelProto | None, onnx.ModelProto | None]"]
"""Returns the parts of the model before and after a piece; ``None`` for an empty part."""


@dataclass(frozen=True)
class Scale:
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

    def describe(self, measured: Scored) -> str:
        """A sentence without its end."""
        said = f"{self.metric.name} is {self.metric.say(measured.value)}"
        if self.bound is not None:
            side = "at most" if self.metric.lower_is_better else "at least"
            said += (
                f", {'' if measured.passed else 'required: '}{side} {self.metric.say(self.bound)}"
            )
        return f"{said} (of all {self.data.count} samples)"

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
        )


@dataclass(frozen=True)
class MetricCheck:
    """Decides by a metric whether a candidate fails; ``rest`` returns the parts of the model around a piece."""

    runs: BuiltinCheck
    scale: Scale
    rest: Rest
    compares: ClassVar[bool] = False
    parallel: bool = True

    @property
    def target(self) -> TargetSettings:
        """The runtime under test."""
        return self.runs.target

    @property
    def engine_cache(self) -> EngineCache | None:
        """The cache of the engines of passing candidates, if they are kept."""
        return self.runs.engine_cache

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: The metric does not fit the outputs or the labels.
        """
        reply = self.measure(files, cancel)
        if isinstance(reply, Failed):
            return outcome_of_failure(reply)
        if self.engine_cache is not None and files.engine is None:
            self.engine_cache.offer(files, passed=bool(reply.passed))
        reason = self.scale.describe(reply)
        files.note(reason)
        known: dict[str, Any] = {"latency_ms": reply.latency_ms, "layers": reply.layers}
        known["metric"] = self.scale.score(reply)
        ending, signature = (
            (Ending.PASSED, "match") if reply.passed else (Ending.MISMATCHED, SIGNATURE)
        )
        return Outcome(ending, signature, reason, **known)

    def measure(self, files: CandidateFiles, cancel: Cancel | None = None) -> Scored | Failed:
        """The score of a candidate."""
        before, after = self._rest(files)
        request = Score(
            self.runs.built(files),
            files.model,
            self.scale.scoring(),
            reference=self.scale.runtime if before or after else None,
            before=before,
            after=after,
            layers=self.runs.timed,
            timed=self.runs.timed,
        )
        return self.runs.workers.ask(
            request, self.runs.timeout, cancel, log=files.log, confirm=self.runs.confirm
        )

    def _rest(self, files: CandidateFiles) -> tuple[Path | None, Path | None]:
        """Write the models around a piece into its folder, which has the file of weights."""
        models = self.rest(onnx.load(str(files.model), load_external_data=False))
        paths: list[Path | None] = []
        for name, model in zip(("before", "after"), models, strict=True):
            path = files.model.with_name(f"{files.folder.name}.{name}.onnx")
            if model is not None:
                path.write_bytes(model.SerializeToString())
            paths.append(None if model is None else path)
        return paths[0], paths[1]
