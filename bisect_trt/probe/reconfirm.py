"""Confirms what is recommended: what passed is probed again, and so is what fails without it.

A failure that comes and goes passes by chance, and among many things that are tried some pass. Every sentence that says that
something fixes a failure rests on this, so that its figures are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.journal import Record
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.runner import Check
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.confirm import FLAKY
from bisect_trt.search.oracle import Verdict
from bisect_trt.search.statistics import Flakiness


@dataclass(frozen=True)
class Confirmation:
    """The result of probing again what passed.

    Attributes:
        record: The last probe; no ``PASS`` where the passing may be chance, with the reason.
        seen: How often it passed and how often the model failed without it, in words; empty where a user is asked.
    """

    record: Record
    seen: str = ""

    @property
    def passes(self) -> bool:
        """Whether it may be recommended."""
        return self.record.verdict is Verdict.PASS


def reconfirm(prober: Prober, failing: Candidate, passing: Candidate, ways: int = 1) -> Confirmation:
    """Probe a candidate that passed as often again as it takes for its passing not to be chance.

    Args:
        prober: Probed both.
        failing: What fails without it. Unless each probe takes minutes it is run again too, as often as that needs fewer runs
            in all.
        passing: What passed.
        ways: How many such answers there are; all of them are to hold with the confidence asked for.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check, flakiness = prober.runner.check, prober.runner.flakiness
    if isinstance(check, PromptCheck):
        return Confirmation(prober.probe(passing, again=True))
    if not flakiness.is_steady:  # each pass was as many passes, and so is this one
        seen = f"{flakiness.passes_needed} runs in a row pass, {flakiness.failures} of {flakiness.runs} fail without"
        return Confirmation(prober.probe(passing, again=True), seen)
    failures, passes = _runs(check, flakiness, ways)
    lost = bool(failures) and _passes_now(prober, failing, failures)
    record = prober.probe(_repeated(passing, passes, runs=1 if lost else passes))
    if lost:
        doubt = FLAKY.format(f"'{failing.title}' failed, and did not when asked again, so that a pass may be luck")
        return Confirmation(replace(record, verdict=Verdict.UNRESOLVED, reason=doubt))
    if record.verdict is Verdict.FAIL:
        record = replace(record, reason=f"it passed, and did not when asked again: {record.reason}")
    known = flakiness.runs + failures
    return Confirmation(record, f"{passes + 1} of {passes + 1} runs pass, {known} of {known} fail without")


def passes_needed(prober: Prober) -> int:
    """How often something has to pass in a row, for what is run beside the search."""
    flakiness = prober.runner.flakiness
    return _runs(prober.runner.check, flakiness, 1)[1] if flakiness.is_steady else flakiness.passes_needed


def _runs(check: Check, flakiness: Flakiness, ways: int) -> tuple[int, int]:
    """How often to run what fails, and what passes; 0 and 1 where a probe takes minutes and no rate was measured."""
    target = getattr(check, "target", None)
    costly = isinstance(check, MetricCheck) or (target is not None and target.target.capabilities.costly)
    if costly and flakiness.runs == 1:
        return 0, 1
    return flakiness.confirmations(ways, seen=0)


def _passes_now(prober: Prober, failing: Candidate, runs: int) -> bool:
    """Whether what failed passes when it is run again."""
    before = prober.ledger.outcome(failing.key)
    if before is not None and before.ending is Ending.PASSED:
        return False
    record = prober.probe(_repeated(failing, runs, until=Verdict.PASS))
    now = prober.ledger.outcome(record.key)
    return now is not None and now.ending is Ending.PASSED


def _repeated(candidate: Candidate, times: int, *, runs: int | None = None, until: Verdict = Verdict.FAIL) -> Candidate:
    title = f"{candidate.title}, once more" if times == 1 else f"{candidate.title}, {times} times more"
    return replace(candidate, title=title, again=True, runs=times if runs is None else runs, until=until)
