"""The check by limits: speed beside a baseline, latency, build time, memory and the size of the engine.

A piece fails like a slow original if it loses enough of the time that the original loses to the
baseline: up to :data:`ENOUGH` of it passes, more than :data:`LITTLE` fails, and in between it may
be called either. What a piece loses, every larger piece loses too. That is not so of the ratio:
nodes that are not slow bring it down. Each of up to five equal parts of a slow region loses clearly
more than the two shares, so that no part is left to chance. What an idle model loses does not
count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from bisect_trt.aliases import Fields
from bisect_trt.errors import UnknownNameError
from bisect_trt.options.compare import Limits
from bisect_trt.options.spec import entries
from bisect_trt.probe.engine_cache import ENGINE
from bisect_trt.probe.oracles import BuiltinCheck, outcome_of_failure
from bisect_trt.probe.outcome import SLOW, UNDECIDED, Ending, Finding, Outcome, Reason
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.targets.base import PRECISIONS, TargetSettings, names, reference_settings
from bisect_trt.targets.messages import OUT_OF_MEMORY
from bisect_trt.worker.place import Place
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import OVER_MEMORY, BuildEngine, Failed, Measure, Measured

LITTLE = 0.15
ENOUGH = 0.18
"""Shares of the original's lost time."""
LARGE = "large"
"""The signature of a file or memory past its limit."""
_MB = 1e6


def baseline_target(what: str | None, target: TargetSettings) -> TargetSettings:
    """Return the target that a baseline names: a precision, another target, or an option; by default the reference.

    Raises:
        UsageError: It names none of them.
    """
    if what is None:
        return reference_settings(target)
    name, equals, value = what.partition("=")
    options = {entry.keyword: entry for entry in entries(target.target.own)}
    entry = options.get(name.lstrip("-").replace("-", "_"))
    if equals and value.startswith("="):
        # The rest of it is a release.
        return target
    if equals and entry is not None:
        setting = entry.parse(value, f"--baseline {name}") if value else entry.default
        return target.with_own(**{entry.name: setting})
    if not equals and name in (*PRECISIONS, "fp32"):
        return replace(target, **{precision: precision == name for precision in PRECISIONS})  # type: ignore[arg-type]  # flags
    if not equals and name in names():
        return TargetSettings(name)
    listed = ", ".join(keyword.replace("_", "-") for keyword in options)
    raise UnknownNameError(
        f"--baseline {what}: give a release (PACKAGE==VERSION), a precision ({', '.join(PRECISIONS)} or fp32), a target "
        f"({', '.join(names())}), or NAME=VALUE with an option of {target.target.title}: {listed}."
    )


@dataclass(frozen=True)
class LimitCheck(BuiltinCheck):
    """Decides by limits whether a candidate fails.

    Attributes:
        limits: The limits.
        baseline: The runtime that speed is compared with.
        beside: The place of the baseline; ``None`` for this machine's own interpreter.
        yardstick: The ONNX file that the baseline runs instead of a candidate: for other forms of
            the whole model.
        lost: Returns the milliseconds that the original loses to the baseline, once they are known.
    """

    limits: Limits = field(default_factory=Limits)
    baseline: TargetSettings | None = None
    beside: Place | None = None
    yardstick: Path | None = None
    lost: Callable[[], float | None] = lambda: None
    parallel: bool = False

    compares = False
    """No: values are not looked at."""
    bounds_whole = True
    """Limits are of the whole model."""

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one candidate."""
        outcome = (
            self._measure(files, cancel) if self.limits.others else Outcome(Ending.PASSED, "match")
        )
        if outcome.ending is Ending.PASSED and self.limits.engine_size_limit is not None:
            sized = self._weigh(files, self.limits.engine_size_limit, cancel)
            outcome = replace(sized, findings=(*outcome.findings, *sized.findings))
        return outcome

    def _measure(self, files: CandidateFiles, cancel: Cancel | None) -> Outcome:
        limits = self.limits
        required = None
        if files.target is None and (lost := self.lost()) is not None:
            # With a switch turned, less of the limit is no pass.
            required = LITTLE * lost / 1e3, ENOUGH * lost / 1e3
        request = Measure(
            self.built(files),
            files.model,
            files.inputs,
            limits.measure_time if limits.times else None,
            self.baseline if limits.slower_than is not None else None,
            self.beside,
            self.yardstick,
            limits.slower_than,
            required,
            None if limits.latency_limit is None else limits.latency_limit / 1e3,
            None if limits.percentile is None else limits.percentile / 100,
            limits.build_time_limit,
            piecewise=files.target is None,
        )
        reply = self.workers.ask(request, self.timeout, cancel, log=files.log, confirm=self.confirm)
        if isinstance(reply, Failed):
            return self._failed(reply)
        if reply.refused is not None:
            skipped = Outcome(Ending.SKIPPED, "no baseline")
            return skipped.seeing(Reason.NO_BASELINE, reply.refused)
        outcome = self._judge(request, reply)
        return outcome if files.target is None else replace(outcome, severity=None)

    def _failed(self, reply: Failed) -> Outcome:
        """A model that does not fit is too large where memory is limited."""
        outcome = outcome_of_failure(reply)
        if self.limits.memory_limit_of and reply.signature.endswith((OUT_OF_MEMORY, OVER_MEMORY)):
            return replace(outcome, ending=Ending.MISMATCHED, signature=LARGE)
        return outcome

    def _judge(self, request: Measure, measured: Measured) -> Outcome:
        """Return the first limit that is exceeded, else one that could not be decided, else a pass."""
        limits = self.limits
        compared = list[tuple[bool | None, str, tuple[Finding, ...]]]()
        for kind, limit in limits.memory_limit_of.items():
            size = measured.memory[kind] / _MB
            reason = Reason.DEVICE_MEMORY if kind == "device" else Reason.HOST_MEMORY
            compared.append((size > limit, LARGE, (Finding(reason, (size, limit, kind)),)))
        if limits.build_time_limit is not None:
            finding = Finding(Reason.BUILD_TIME, (measured.build_s, limits.build_time_limit))
            compared.append((measured.build_s > limits.build_time_limit, SLOW, (finding,)))
        if request.budget_s is not None:
            kind = "blocks" if request.share is None else "runs"
            slow = Finding(Reason.TOO_SLOW, (measured.over, len(measured.seconds), kind))
            compared.append((measured.slow, SLOW, (_speed(request, measured), slow)))
        failed = next((limit for limit in compared if limit[0]), None)
        # An exceeded limit decides, whatever else is undecided.
        undecided = next((limit for limit in compared if limit[0] is None), None)
        figures: Fields = {"measured": _plain(measured), "latency_ms": _ms(measured.seconds)}
        if failed is not None:
            _, signature, findings = failed
            severity = None
            if signature == SLOW and request.lost_s is None and measured.baseline:
                severity = 1e3 * _lost(request, measured)
            return Outcome(
                Ending.MISMATCHED, signature, severity=severity, findings=findings, **figures
            )
        if undecided is not None and request.budget_s is not None:
            outcome = Outcome(Ending.SKIPPED, UNDECIDED, findings=undecided[2], **figures)
            return outcome.seeing(Reason.TIME_UNDECIDED, request.budget_s)
        findings = tuple(finding for limit in compared for finding in limit[2])
        return Outcome(Ending.PASSED, "match", findings=findings, **figures)

    def _weigh(self, files: CandidateFiles, limit: float, cancel: Cancel | None) -> Outcome:
        """Build the engine, and compare its size."""
        engine = (files.folder / ENGINE).absolute()
        target = self.built(files).with_own(save_engine=str(engine))
        request = BuildEngine(target, files.model, files.inputs)
        reply = self.workers.ask(request, self.timeout, cancel, log=files.log)
        if isinstance(reply, Failed):
            return self._failed(reply)
        size = engine.stat().st_size / _MB
        engine.unlink()
        ending, signature = (Ending.MISMATCHED, LARGE) if size > limit else (Ending.PASSED, "match")
        outcome = Outcome(ending, signature, measured={"engine_mb": size})
        return outcome.seeing(Reason.ENGINE_SIZE, size, limit)


def _lost(request: Measure, measured: Measured) -> float:
    """Seconds that a block loses, beyond what every model does."""
    return median(map(request.lost, measured.seconds, measured.baseline)) - measured.idle_s


def _ms(seconds: tuple[float, ...]) -> float | None:
    return 1e3 * median(seconds) if seconds else None


def _speed(request: Measure, measured: Measured) -> Finding:
    """Return the time in milliseconds that the limit is of, and the limit where the time has a baseline."""
    mine = _ms(measured.seconds) or 0.0
    theirs = _ms(measured.baseline)
    if request.share is not None:
        high = sorted(measured.seconds)[math.ceil(request.share * len(measured.seconds)) - 1]
        return Finding(Reason.PERCENTILE, (1e3 * high, 100 * request.share))
    if theirs is None:
        return Finding(Reason.LATENCY, (mine,))
    if request.lost_s is not None:
        lost = 1e3 * _lost(request, measured)
        return Finding(Reason.LOST_TIME, (mine, theirs, lost, 1e3 * request.lost_s[0]))
    assert request.ratio is not None, "a baseline has a limit of the ratio"
    return Finding(Reason.RATIO, (mine, theirs, mine / max(theirs, 1e-9), request.ratio))


def _plain(measured: Measured) -> Fields:
    """Plain values for the journal and the result."""
    mine = _ms(measured.seconds)
    theirs = _ms(measured.baseline)
    return {
        "latency_ms": mine,
        "fastest_ms": min(measured.seconds, default=math.nan) * 1e3 if measured.seconds else None,
        "baseline_ms": theirs,
        "ratio": None if mine is None or not theirs else mine / theirs,
        "blocks": len(measured.seconds),
        "blocks_too_slow": measured.over,
        "build_s": measured.build_s,
        "memory_mb": {name: size / _MB for name, size in measured.memory.items()},
    }
