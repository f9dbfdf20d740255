"""``workaround``: find the minimal case as a diagnosis does, and look for all ways around it."""

from __future__ import annotations

from bisect_trt.errors import UsageError
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Minimum
from bisect_trt.workflows.blame import by_blame
from bisect_trt.workflows.cause import name_cause
from bisect_trt.workflows.diagnose import (
    DiagnoseSettings,
    confirm,
    describe_answer,
    look_at_layers,
    reduce_all,
    tell_modules,
    who_is_named,
)
from bisect_trt.workflows.fault.arbitrate import arbitrate
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.minimal_case import extract_suspect
from bisect_trt.workflows.precision.fix import find_fix
from bisect_trt.workflows.settings import SearchSettings
from bisect_trt.workflows.workaround.workaround import WorkaroundSettings, add_precision, tell, work_around


def find_workaround(investigation: Investigation, settings: WorkaroundSettings, search: SearchSettings) -> Result:
    """The command: where does it fail, whose fault is that, and what makes the whole model pass?

    Raises:
        DoesNotReproduce: The target does not differ from the reference.
        BudgetSpent: No more probes may be made.
        UsageError: The model with a way around cannot be written; the result has what it is.
        KeyboardInterrupt: The user stops.
    """
    console, result = investigation.console, investigation.result
    folder, target = settings.output.parent, settings.check.target
    assert target is not None, "the options ask for one"
    result.extra |= {"workarounds": [], "workaround_baseline": None}
    found = DiagnoseSettings(settings.check, search, folder)
    confirm(investigation, found)
    suspects = who_is_named(investigation) or look_at_layers(investigation, found)
    case = reduce_all(investigation, found, suspects, extract_suspect(investigation, target, suspects, "3. "))
    answer = investigation.settle(case)
    blamed = by_blame(investigation, answer, suspects.nodes)
    result.culprits = investigation.subject.describe_nodes(blamed)
    fault = arbitrate(investigation, target, settings.check.tolerance, answer)
    result.extra["fault"] = fault.to_json()
    console.answer(f"{describe_answer(investigation.subject.network, blamed)}.")
    tell_modules(investigation.subject.network, blamed, console)
    console.answer(fault.sentence)
    console.step("5. What makes the whole model pass: barriers, another form of the culprit?")
    if fault.whose in ("reference", "random"):
        console.answer("The target is not wrong, so there is nothing to work around.")
    else:
        if fault.whose != "precision":
            name_cause(investigation, settings.check, answer, fault.whose)
        work_around(investigation, settings, case, fault)
    find_fix(investigation, settings.check, search, answer, folder)
    add_precision(result)
    tell(result, investigation.console)
    for way in result.extra["workarounds"]:
        if way["passes"] and way["file"] is None and way["kind"] != "switch":
            raise UsageError(f"{way['what']}: {way['why']}")
    passes = any(way["passes"] for way in result.extra["workarounds"])
    why = None if passes or fault.whose in ("reference", "random") else "no way around it was found"
    investigation.conclude(Minimum(case.minimum.units, proven=case.minimum.proven and why is None, why=why))
    return result
