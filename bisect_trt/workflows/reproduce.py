"""The first and the last step of every search: the original fails, and how sure the answer is."""

from __future__ import annotations

from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.journal import Record
from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Minimum
from bisect_trt.search.verdict import Verdict
from bisect_trt.workflows.settings import SearchSettings
from bisect_trt.workflows.subject import Subject


def probe_original(
    subject: Subject,
    prober: Prober,
    search: SearchSettings,
    console: Console,
    result: Result,
    candidate: Candidate | None = None,
) -> Record:
    """Probe the original model, or what stands for it; with ``--repeat``, measure how often it fails.

    Raises:
        DoesNotReproduce: It never fails.
    """
    record = prober.probe_original(
        candidate or subject.original, repeat=search.repeat, confidence=search.confidence, units=len(subject.units)
    )
    flakiness = prober.runner.flakiness
    if search.repeat > 1:
        result.extra["flaky"] = {
            "runs": flakiness.runs,
            "failures": flakiness.failures,
            "rate": flakiness.rate,
            "passes_needed": flakiness.passes_needed,
            "confidence": flakiness.confidence,
        }
    if flakiness.passes_needed > 1:
        console.say(
            f"  it fails in {flakiness.failures} of {flakiness.runs} runs, so a candidate counts as passing after "
            f"{flakiness.passes_needed} passes in a row ({flakiness.confidence:.0%} confidence over all)"
        )
    return record


def conclude(prober: Prober, minimum: Minimum, result: Result) -> None:
    """Say what was found and how sure that is."""
    flakiness = prober.runner.flakiness
    result.status = "found"
    result.minimality = "1-minimal" if minimum.proven else "unproven"
    result.why = minimum.why
    if minimum.proven and flakiness.passes_needed > 1:
        result.minimality = "unproven"
        passed = sum(record.verdict is Verdict.PASS for record in prober.ledger.records)
        confidence = flakiness.reached(passed)
        result.extra["flaky"]["reached"] = round(confidence, 6)
        result.why = (
            f"the failure is flaky ({flakiness.rate:.0%} of {flakiness.runs} runs); 1-minimal with "
            f"{confidence:.1%} confidence, each of {passed} passing candidates having passed {flakiness.passes_needed} times"
        )
