"""``--max-latency MS``: an oracle by which a candidate fails if one run on the target takes longer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from bisect_trt.errors import UsageError
from bisect_trt.options.spec import option
from bisect_trt.probe.check import Check
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.session.oracle import Oracle
from bisect_trt.targets.base import TargetSettings
from bisect_trt.worker.process import Cancel


@dataclass
class Latency(Oracle):
    """A limit on the latency of the target."""

    max_latency: Annotated[
        float | None,
        option(metavar="MS", min=0, help="A candidate fails if one run takes more milliseconds."),
    ] = None

    def check(self, builtin: Check) -> Check:
        """Return the check; the comparison with the reference runs the model and measures its latency.

        Raises:
            UsageError: No target is named.
        """
        if builtin.runtime is None or self.max_latency is None:
            raise UsageError("--max-latency measures a target; add --trt or --onnxrt.")
        return LatencyCheck(builtin.under(timed=True), self.max_latency)


@dataclass(frozen=True)
class LatencyCheck(Check):
    """Compares the latency of a candidate with a limit in milliseconds; its outputs do not matter."""

    timed: Check
    limit: float

    @property
    def runs_user_code(self) -> bool:
        """No: the clock decides."""
        return False

    @property
    def runtime(self) -> TargetSettings | None:
        """The target, which runs in the places of --on too."""
        return self.timed.runtime

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Measure one candidate; a target that cannot run it gives no answer."""
        outcome = self.timed.run(files, cancel)
        if outcome.latency_ms is None:
            return replace(outcome, ending=Ending.OTHER)
        ending = Ending.FAILED if outcome.latency_ms > self.limit else Ending.PASSED
        return replace(
            outcome,
            ending=ending,
            signature="slow",
            reason=f"{outcome.latency_ms:.3f} ms",
            severity=None,
        )
