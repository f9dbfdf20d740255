"""``workaround``: find the minimal case like ``diagnose``, and search all workarounds."""

from __future__ import annotations

from pathlib import Path

from bisect_trt.commands.arbitration import arbitrate
from bisect_trt.commands.call import Call
from bisect_trt.commands.cause import name_cause
from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.diagnose import Diagnosis
from bisect_trt.commands.minimal_case import by_blame, describe_answer, tell_modules
from bisect_trt.commands.session import Session
from bisect_trt.commands.workarounds import add_precision, print_ways, rewritten, work_around
from bisect_trt.mixed_precision.answer import MIXED, find_fix
from bisect_trt.options.searches import Diagnose, Workaround
from bisect_trt.options.shared import Search
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum
from bisect_trt.targets.options import Target


def find_workaround(session: Session, check: CheckSettings, search: Search, output: Path) -> Result:
    """Find the minimal case, attribute the failure, and search what fixes the whole model.

    Raises:
        DoesNotReproduce: The target does not differ from the reference.
        BudgetSpent: No more probes may be made.
        UsageError: The patched model cannot be written.
        KeyboardInterrupt: The user stops.
    """
    console, result = session.console, session.result
    folder, target = output.parent, check.target
    assert target is not None, "the options require one"
    result.extra["workarounds"] = []
    own = Diagnose(session.subject.settings.path)
    case, suspected = Diagnosis(session, check, search, own, folder).find_case()
    if case is None:
        return result
    answer = session.settle(case)
    blamed = by_blame(session, answer, suspected)
    result.culprits = session.subject.describe_nodes(blamed)
    fault = arbitrate(session, target, check.tolerance, answer)
    result.extra["fault"] = fault.to_json()
    console.answer(f"{describe_answer(session.subject.network, blamed)}.")
    tell_modules(session, blamed)
    console.answer(fault.sentence)
    why = None
    if fault.is_fixable or fault.whose == "rounding":  # another form may lose less
        if fault.whose != "precision":
            name_cause(session, check, answer)
        console.step("Which workaround makes the whole model pass: barriers, another form of the culprit?")
        work_around(session, case, fault, output)
        find_fix(session, check, search, answer, folder)
        add_precision(result)
        print_ways(result, console)
        passes = any(way["passes"] for way in result.extra["workarounds"])
        why = None if passes else "no workaround was found"
    else:
        console.answer("The target is not wrong, so no workaround is needed.")
    session.conclude(Minimum(case.minimum.units, proven=case.minimum.proven and why is None, why=why))
    return result


def run(call: Call) -> Result:
    """Find a workaround for the whole model.

    Raises:
        UsageError: An option is wrong, or the model cannot be written.
        UnavailableError: The target or the reference cannot run the model.
    """
    own = call[Workaround]
    check = call.comparison(call[Target].required(), own.timeout)
    call.may_write(own.output, rewritten(own.output), own.output.parent / MIXED, overwrite=own.overwrite)
    call.open()
    with call.searching(check) as session:
        return find_workaround(session, check, call[Search], own.output)
