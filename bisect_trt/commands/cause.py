"""``cause``: the switches of the target that make the failure go away."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.options.searches import Cause
from bisect_trt.options.shared import Search
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.report.summary import why_no_cause
from bisect_trt.session.call import Call
from bisect_trt.steps.arbiter import Arbiter
from bisect_trt.steps.refused_format import require_format
from bisect_trt.steps.switches import explain, switchable
from bisect_trt.targets.options import Target


def run(call: Call) -> Result:
    """Find the switches of the target that fix the model."""
    check = call.check(call[Target].required())
    opened = call.open(check)
    check = switchable(check)
    with opened.searching(check) as session:
        console = session.console
        result = session.result
        result.cause = []
        result.cause_detail = None
        console.step(
            f"1. Does it fail with these settings ({len(session.subject.network.nodes)} nodes)?"
        )
        arbiter = Arbiter(session, check, not call[Cause].no_other_release)
        try:
            record = session.probe_original(call[Search])
        except DoesNotReproduce as error:
            raise arbiter.doubted(error) from error
        console.say(f"  yes: {record.reason}")
        require_format(session, record, arbiter)
        console.step("2. Which of the target's switches fix it?")
        explain(session, check, wanted=call[Cause].compiler_switch)
        # A switch that fixes it says where, and not who is wrong.
        arbiter.judge(replace(session.subject.original, sample=session.outcome(record).sample or 1))
        detail = call.result.cause_detail
        if result.cause or not detail:
            return result.end()
        return result.end("inconclusive", why_no_cause(detail))
