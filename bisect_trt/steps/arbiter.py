"""Decides whether the target, the reference, or a release is to blame: one arbiter for all commands that compare.

ONNX's reference evaluator is asked, the release of this environment where the target runs on an
older one, and the newest release on the package index, in one environment.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct, structs

from bisect_trt.onnxlib.nodes import drawing_nodes
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.check import Comparing, comparing
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.faults import NEWER_DIFFERS, TRY_NEWER, TRY_RELEASES, Fault, Rule
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import WrongSide
from bisect_trt.report.releases import NewerRelease
from bisect_trt.report.reproducer import Since
from bisect_trt.session.checks import CheckSettings, make_check
from bisect_trt.session.session import Session
from bisect_trt.steps.arbitration import arbitrate, exact_tolerance
from bisect_trt.steps.second_opinion import Disagreement, Vote, ask_evaluator, right_here
from bisect_trt.targets.base import TargetSettings, reference_settings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.deadline import BudgetSpent


class Arbiter(Struct, frozen=True):
    """Asks runtimes beside target and reference; prints the answers and puts them into the result.

    Attributes:
        session: The session of the command.
        check: The comparison of the target with the reference.
        installs: Whether the newest release may be installed.
    """

    session: Session
    check: CheckSettings
    installs: bool = True

    @property
    def comparison(self) -> Comparing | None:
        """The built-in comparison; ``None`` for a check command, a metric or limits."""
        session = self.session
        check = (
            make_check(self.check, session.subject.workers)
            if session.probing is None
            else session.probing.check
        )
        return comparing(check)

    def judge(self, case: Candidate) -> Fault | None:
        """Decide which side of a failing case is wrong.

        Returns:
            ``None`` where nothing is compared, or a case that was not probed does not fail.
        """
        comparison = self.comparison
        if comparison is None:
            return None
        target = case.target or comparison.runtime
        fault = self.arbitrate(target, case)
        if fault.rule is Rule.GONE and self.session.probing is None:
            return None
        self.session.result.fault = fault.to_part()
        self.session.console.answer(fault.sentence)
        self.upgrade(case, fault)
        return fault

    def arbitrate(self, target: TargetSettings, case: Candidate) -> Fault:
        """Decide which side of a failing case is wrong; a newer reference decides where the evaluator has no vote.

        If a newer reference computes what another runtime does, the older one is wrong. If it
        agrees with the older, that shows nothing: both may have the bug.
        """
        fault = arbitrate(self.session, target, self.check.tolerance, case)
        comparison = self.comparison
        # Where both sides are ONNX Runtime, a newer release is right or wrong on both.
        one_runtime = target.target is reference_settings().target
        if comparison is None or one_runtime or not fault.right or fault.whose != "unknown":
            return fault
        newest = self._newest_reference(case, fault, comparison.tolerances)
        if newest is None or newest.outcome is None or newest.outcome.ending is not Ending.PASSED:
            return fault
        release = f"{newest.package} {newest.release}"
        return structs.replace(fault, rule=Rule.NEWER, message=release)

    def upgrade(self, case: Candidate, fault: Fault) -> Since | None:
        """Return the verdict of a newer release on a failing case: of the target, or of the reference if that is to blame."""
        comparison = self.comparison
        since = None
        if comparison is None:
            return None
        if fault.is_bug and fault.rule is not Rule.GONE:
            since = right_here(self.session, comparison, case)
            if since is None and all(place.local for place in self.session.subject.workers.places):
                since = self._upgrade(self._newest(comparison, case, fresh=True))
        elif fault.right:
            exact = exact_tolerance(comparison.tolerances, fault.right)
            since = self._upgrade(self._newest_reference(case, fault, exact))
        self._show(since)
        return since

    def refuse(self, sentence: str) -> None:
        """Record that no model of this format runs, and ask newer releases about the original."""
        self.session.result.fault = WrongSide("unknown", sentence)
        self.upgrade(self.session.subject.original, Fault(Rule.UNREADABLE))

    def doubted(self, error: DoesNotReproduce) -> DoesNotReproduce:
        """Return the error with the next step, if the reference, which the target matches, may be wrong."""
        step = self.doubt()
        return error if step is None else DoesNotReproduce(f"{error}\n  - {step}")

    def doubt(self) -> str | None:
        """Ask whether the reference, which the target matches, may be wrong; returns what to do then.

        ONNX's evaluator is asked. Where it has no vote, and target and reference are one release,
        the newest release is asked. That the target matches is known, whether or not there is time.
        """
        try:
            return self._doubt()
        except BudgetSpent:
            self.session.console.warn("no time is left to ask whether the reference may be wrong")
            return None

    def _doubt(self) -> str | None:
        session = self.session
        subject = session.subject
        comparison = self.comparison
        if (
            comparison is None
            or comparison.runtime.build_only
            or drawing_nodes(subject.network.proto)  # no two runtimes draw the same numbers
        ):
            return None
        opinion = ask_evaluator(subject, comparison.tolerances)
        is_reference = (
            comparison.runtime.target is reference_settings().target and not subject.workers.places
        )
        # Two implementations of the standard that agree leave no doubt that another release could
        # raise.
        if opinion is Vote.AGREES or (opinion is Vote.NONE and not is_reference):
            return None
        if isinstance(opinion, Disagreement):
            self._tell(opinion.sentence)
            case = replace(subject.original, values=opinion.values)
            self._show(self._upgrade(self._newest(comparison, case)))
            return TRY_RELEASES.format(session.command("releases", self.check))
        newest = self._newest(comparison, subject.original)
        if newest is None or newest.outcome is None:
            return None
        if newest.outcome.ending is not Ending.MISMATCHED:
            return None
        release = f"{newest.package} {newest.release}"
        self._tell(NEWER_DIFFERS.format(release, describe_outcome(newest.outcome)))
        command = session.command("diagnose", self.check)
        command += f" --on env={newest.package}=={newest.release}"
        return TRY_NEWER.format(command)

    def _newest(
        self, comparison: Comparing, case: Candidate, *, fresh: bool = False
    ) -> NewerRelease | None:
        from bisect_trt.steps.release_boundary import ask_newest  # noqa: PLC0415 - not needed before the first probe

        return ask_newest(self.session, comparison, case, fresh=fresh) if self.installs else None

    def _newest_reference(
        self, case: Candidate, fault: Fault, tolerance: ToleranceOptions
    ) -> NewerRelease | None:
        """Compare the newest release of the reference with the outputs that it should have."""
        comparison = self.comparison
        assert comparison is not None, "only a comparison has a reference"
        check = comparison.under(target=reference_settings(), tolerance=tolerance)
        return self._newest(check, replace(case, target=None, values=fault.right))

    def _upgrade(self, newest: NewerRelease | None) -> Since | None:
        return None if newest is None else newest.since

    def _tell(self, doubt: str) -> None:
        self.session.result.reference_doubt = doubt
        self.session.console.answer(doubt)

    def _show(self, since: Since | None) -> None:
        if since is not None and since.fixed is not None:
            self.session.result.upgrade = since.fixed
            self.session.console.answer(f"Fix: {since.fixed}.")
