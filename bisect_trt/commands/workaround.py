"""``workaround``: searches what fixes the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec import UNSET

from bisect_trt.aliases import Names
from bisect_trt.mixed_precision.answer import find_fix
from bisect_trt.options.searches import Diagnose, Workaround
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.report.result import Result
from bisect_trt.report.summary import NOT_NEEDED
from bisect_trt.session.call import Call
from bisect_trt.steps.diagnosis import Diagnosis, inner_check
from bisect_trt.steps.inside import look_inside
from bisect_trt.steps.switches import name_cause
from bisect_trt.steps.workarounds import (
    add_precision,
    beside,
    unless_none,
    work_around,
    work_around_limits,
)
from bisect_trt.targets.options import Target


def run(call: Call) -> Result:
    """Find the minimal case and the side that is wrong, and search what fixes the whole model.

    Raises:
        BudgetSpent: No more probes may be made.
        DoesNotReproduce: The target does not differ from the reference.
        UsageError: An option is wrong, or the patched model cannot be written.
        UnavailableError: The target or the reference cannot run the model.
    """
    settings = call[Workaround]
    console = call.console
    result = call.result
    check = inner_check(call, call[Target].required(), settings.timeout)
    output = settings.output
    mixed = beside(output, "mixed")
    call.may_write(output, beside(output, "rewrite"), mixed, overwrite=settings.overwrite)
    opened = call.open()
    with opened.searching(check) as session:
        result.workarounds = []
        if check.limits is not None:
            return work_around_limits(session, check, call[Search], output)
        search = replace(call[Search], shrink=False)
        options = Diagnose(
            session.subject.settings.path, no_other_release=settings.no_other_release
        )
        diagnosis = Diagnosis(session, check, search, options, output.parent)
        case, suspects = diagnosis.find_case()
        if case is None:
            return result
        answer = diagnosis.judge(case, suspects)
        fault = answer.fault
        result.culprits = session.subject.describe_nodes(answer.blamed)
        result.fault = fault.to_part()
        result.inside = look_inside(session, answer.whole) or UNSET
        diagnosis.arbiter.upgrade(answer.whole, fault)
        # Of rounding, another form may lose less.
        is_searched = fault.is_fixable or fault.whose == "rounding"
        if is_searched:
            fixed: Mapping[Names, Candidate] = {}
            if fault.whose != "precision":
                fixed = name_cause(session, check, answer.whole)
            console.step("Search barriers and rewrites")
            work_around(session, case, fault.whose, output, fixed=fixed)
            find_fix(session, check, search, answer.whole, mixed)
            add_precision(result)
        else:
            console.answer(NOT_NEEDED)
        session.conclude(answer.case.minimum)
        return unless_none(result) if is_searched else result
