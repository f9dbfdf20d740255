"""The check by a metric: the score of a model's outputs on a whole set of samples, with the candidate on the target.

A candidate that is a piece of the model has no such outputs. For each sample the reference computes
the inputs of the piece, the target runs the piece, and the reference computes the model's outputs
from the result. So it is the score of a model in which only the piece runs on the target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from bisect_trt.probe.check import Check, Conditions
from bisect_trt.probe.engine_cache import EngineCache
from bisect_trt.probe.oracles import BuiltinCheck, outcome_of_failure
from bisect_trt.probe.outcome import Ending, Outcome, Reason
from bisect_trt.probe.scale import Scale
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.base import TargetSettings
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import Failed, Score, Scored

if TYPE_CHECKING:
    from typing_extensions import Unpack

SIGNATURE = "metric"
Rest = Callable[[onnx.ModelProto], "tuple[onnx.ModelProto | None, onnx.ModelProto | None]"]
"""Returns the parts of the model before and after a piece; ``None`` for an empty part."""


@dataclass(frozen=True)
class MetricCheck(Check):
    """Decides by a metric whether a candidate fails.

    Attributes:
        runs: Runs a candidate.
        scale: The metric.
        rest: Returns the parts of the model around a piece.
        parallel: Whether several may run at a time.
        other_stream: See :class:`Check`.
    """

    runs: BuiltinCheck
    scale: Scale
    rest: Rest
    parallel: bool = True
    other_stream: Callable[[int], Check] | None = None

    runs_user_code = False
    """No: a metric has one value for the same outputs."""

    @property
    def runtime(self) -> TargetSettings:
        """The runtime under test."""
        return self.runs.target

    bounds_whole = True
    """The bound is of the outputs of the whole model."""

    @property
    def metric(self) -> Scale:
        """The metric."""
        return self.scale

    @property
    def engines(self) -> EngineCache | None:
        """The cache of the engines of passing candidates, if they are kept."""
        return self.runs.engine_cache

    def under(self, **conditions: Unpack[Conditions]) -> MetricCheck:
        """Return the same metric, with candidates run under other conditions."""
        return replace(self, runs=self.runs.under(**conditions))

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: The metric does not fit the outputs or the labels.
        """
        reply = self.measure(files, cancel)
        if isinstance(reply, Failed):
            return outcome_of_failure(reply)
        if self.engines is not None and files.engine is None:
            self.engines.offer(files, passed=bool(reply.passed))
        figures: dict[str, Any] = {"latency_ms": reply.latency_ms, "layers": reply.layers}
        figures["metric"] = self.scale.score(reply)
        ending, signature = (
            (Ending.PASSED, "match") if reply.passed else (Ending.MISMATCHED, SIGNATURE)
        )
        outcome = Outcome(ending, signature, **figures)
        return outcome.seeing(Reason.SCORE, self.scale.metric.unit)

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
