"""Whether a pass is luck: what passes is probed again before it is recommended, and so is what fails without it.

A failure that comes and goes passes by chance, and among many things that are tried some pass. Whoever says that something
mends a failure asks here first, so that it is known of every such sentence how often it was seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.journal import Record
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.outcome import Ending
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.prompt import PromptCheck
from bisect_trt.probing.runner import Check
from bisect_trt.search.confirm import FLAKY
from bisect_trt.search.flakiness import Flakiness
from bisect_trt.search.oracle import Verdict


@dataclass(frozen=True)
class Believed:
    """What was said of something that passed, asked again.

    Attributes:
        record: The last look at it; no ``PASS`` where that may be luck, with the reason.
        seen: How often it passed, and how often the model failed without it, in words; empty for a user at a prompt.
    """

    record: Record
    seen: str = ""

    @property
    def passes(self) -> bool:
        """Whether it may be recommended."""
        return self.record.verdict is Verdict.PASS


def look_again(prober: Prober, failing: Candidate, passing: Candidate, ways: int = 1) -> Believed:
    """Probe what passed so often again that its passing is no luck, with the confidence asked for.

    Args:
        prober: Probed both.
        failing: What fails without it. Unless each time takes minutes it is run again too, as often as that makes it less in all.
        passing: What passed.
        ways: How many such answers there are; all of them are to hold with that confidence.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    check, flakiness = prober.runner.check, prober.runner.flakiness
    if isinstance(check, PromptCheck):
        return Believed(prober.probe(passing, again=True))
    if not flakiness.is_steady:  # each pass was as many passes, and so is this one
        record = prober.probe(passing, again=True)
        rate = f"{flakiness.failures} of {flakiness.runs} fail without"
        return Believed(record, f"{flakiness.passes_needed} runs in a row pass, {rate}")
    failures, passes = _how_often(check, flakiness, ways)
    lost = bool(failures) and _passes_now(prober, failing, failures)
    again = replace(passing, title=_title(passing, passes), again=True, runs=1 if lost else passes)
    record = prober.probe(again)
    if lost:
        doubt = FLAKY.format(f"'{failing.title}' failed, and did not when asked again, so that a pass may be luck")
        return Believed(replace(record, verdict=Verdict.UNRESOLVED, reason=doubt))
    if record.verdict is Verdict.FAIL:
        record = replace(record, reason=f"it passed, and did not when asked again: {record.reason}")
    known = flakiness.runs + failures
    return Believed(record, f"{passes + 1} of {passes + 1} runs pass, {known} of {known} fail without")


def passes_to_see(prober: Prober) -> int:
    """How often something has to pass in a row, for what is looked at beside the search."""
    flakiness = prober.runner.flakiness
    return _how_often(prober.runner.check, flakiness, 1)[1] if flakiness.is_steady else flakiness.passes_needed


def _how_often(check: Check, flakiness: Flakiness, ways: int) -> tuple[int, int]:
    """How often to run what fails, and what passes; once, and not what fails, where each is minutes and nobody has measured."""
    target = getattr(check, "target", None)
    costly = isinstance(check, MetricCheck) or (target is not None and target.target.capabilities.costly)
    if costly and flakiness.runs == 1:
        return 0, 1
    return flakiness.confirmations(ways, seen=0)


def _passes_now(prober: Prober, failing: Candidate, runs: int) -> bool:
    """Whether what failed passes when it is run again, which says more than a pass of anything else."""
    before = prober.ledger.outcome(failing.key)
    if before is not None and before.ending is Ending.PASSED:
        return False
    record = prober.probe(replace(failing, title=_title(failing, runs), again=True, runs=runs, until=Verdict.PASS))
    now = prober.ledger.outcome(record.key)
    return now is not None and now.ending is Ending.PASSED


def _title(candidate: Candidate, runs: int) -> str:
    return f"{candidate.title}, once more" if runs == 1 else f"{candidate.title}, {runs} times more"
