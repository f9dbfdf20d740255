"""The built-in check: run the candidate on the target and compare with the reference."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bisect_trt.probing.outcome import CANCELLED, Ending, Outcome
from bisect_trt.probing.process import Cancel, ProcessEnd
from bisect_trt.probing.worker import WorkerDied, WorkerPool
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions


@dataclass(frozen=True)
class BuiltinCheck:
    """Compares a target with the reference, in a worker process.

    Attributes:
        workers: Who runs the models.
        target: The runtime under suspicion.
        tolerance: How far it may be off.
        timeout: Seconds a candidate may take.
    """

    workers: WorkerPool
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    parallel: bool = True

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate.

        Raises:
            UsageError: A tolerance names no output.
            UnavailableError: The target's runtime is not installed.
        """
        request: dict[str, Any] = {
            "op": "compare",
            "model": str(files.model),
            "inputs": str(files.inputs),
            "golden": str(files.golden),
        }
        request |= {"log": str(files.log), "target": self.target.to_json(), "tolerance": self.tolerance.to_json()}
        began = time.monotonic()
        try:
            reply = self.workers.ask(request, self.timeout, cancel)
        except WorkerDied as death:
            outcome = outcome_of_death(death.end)
        else:
            outcome = outcome_of_reply(reply, time.monotonic() - began)
        with files.log.open("a", encoding="utf-8") as log:
            log.write(outcome.reason + "\n")
        (files.folder / "command.txt").write_text(self.by_hand(files) + "\n")
        return outcome

    def by_hand(self, files: CandidateFiles) -> str:
        """The command that does the same."""
        tolerance = self.tolerance
        words = ["bisect-trt", "run", str(files.model), "--onnxrt"]
        words += ["--fp16"] if self.target.fp16 else []
        words += [word for name in self.target.providers for word in ("--providers", name)]
        words += [*_flags("--atol", tolerance.atol), *_flags("--rtol", tolerance.rtol)]
        words += _flags("--check-error-stat", {name: stat.value for name, stat in tolerance.stat.items()})
        return shlex.join([*words, "--load-inputs", str(files.inputs), "--load-outputs", str(files.golden)])


def _flags(option: str, values: Mapping[str, object]) -> list[str]:
    """``--option out:value`` for each output, and ``--option value`` for all others."""
    return [word for name, value in values.items() for word in (option, f"{name}:{value}" if name else str(value))]


def outcome_of_death(end: ProcessEnd) -> Outcome:
    """What it means that the worker died over a candidate."""
    if end.cancelled:
        return Outcome(Ending.SKIPPED, CANCELLED, "its answer was not needed any more", end.seconds)
    if end.timed_out:
        return Outcome(Ending.BROKEN, "time-out", f"no answer after {end.seconds:.1f} s", end.seconds)
    name = end.signal_name or f"exit status {end.code}"
    return Outcome(Ending.BROKEN, f"signal {name}", f"the target crashed ({name})", end.seconds)


def outcome_of_reply(reply: dict[str, Any], seconds: float) -> Outcome:
    """What a worker's answer to ``compare`` means."""
    if "error" in reply:
        doing = "the target refuses the model" if reply["error"] == "build" else "the target fails while running"
        return Outcome(Ending.BROKEN, reply["signature"], f"{doing}: {reply['message']}", seconds)
    comparisons = [TensorComparison.from_json(entry) for entry in reply["comparisons"]]
    failed = [comparison for comparison in comparisons if not comparison.passed]
    if not failed:
        return Outcome(
            Ending.PASSED, "match", f"{len(comparisons)} outputs match", seconds, comparisons=tuple(comparisons)
        )
    worst = failed[0]
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    reason = f"'{worst.name}': {worst.describe()}{more}"
    return Outcome(Ending.MISMATCHED, worst.kind.value, reason, seconds, comparisons=tuple(comparisons))
