"""A diagnosis by a metric: from a number that dropped to the layers that cost it, and to the precision that brings it back."""

from __future__ import annotations

from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.reproducer import MODEL, pack
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.diagnose import DiagnoseSettings
from bisect_trt.workflows.investigation import Case, Investigation, saving_best
from bisect_trt.workflows.layerwise.scored import find_drop, tell_drop
from bisect_trt.workflows.metric_reproducer import leave_metric
from bisect_trt.workflows.next_steps import advised
from bisect_trt.workflows.precision.fix import MIXED, find_fix
from bisect_trt.workflows.reduce import deliver, find_minimum, smallest
from bisect_trt.workflows.reproducer import NEUTRAL, make_folder
from bisect_trt.workflows.settings import ReduceSettings


def diagnose_metric(investigation: Investigation, settings: DiagnoseSettings) -> Result:
    """Find why the metric drops on the target, and leave the layers that do it.

    A piece of a model has no metric without the rest of it and the whole set: the script that shows the drop is about all of it.

    Raises:
        DoesNotReproduce: It does not drop past its bound.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    console, subject, result = investigation.console, investigation.subject, investigation.result
    console.step(f"1. Does the metric drop on the target ({len(subject.network.nodes)} nodes)?")
    try:
        record = investigation.probe_original(settings.search)
    except DoesNotReproduce as error:
        raise advised(error, subject, settings.check) from error
    console.say(f"  yes: {record.reason}")
    make_folder(settings.output)
    reduced = ReduceSettings(settings.output / MODEL, overwrite=True)
    with saving_best(lambda: investigation.save_best(reduced.output)):
        console.step("2. How far may the target compute, with the reference for the rest?")
        unit, curve = find_drop(investigation)
        tell_drop(investigation, unit, curve)
        console.step("3. Extract a layer: not done, for a piece of the model has no metric")
        console.step(f"4. Which of its {len(subject.units)} units cost the metric, with the reference for all others?")
        case = Case(find_minimum(investigation, reduced.mode, unit))
        answer = smallest(investigation, reduced, settings.search, case)
        console.step(f"5. Deliver: leave them in {settings.output}")
        deliver(investigation, reduced, answer, case.minimum)
    result.extra["metric"]["layers"] = curve
    measured = result.extra["metric"]
    find_fix(investigation, settings.check, settings.search, answer, settings.output)
    fixed = result.extra["metric"]
    result.extra["metric"] = measured | ({} if fixed is measured else {"fixed": fixed["candidate"]})
    check = settings.check
    if settings.anonymous:
        console.warn("--anonymise: a set and what it scores cannot be renamed, so neither is left, nor a script")
        return result
    assert check.metric is not None
    assert check.target is not None
    files = leave_metric(investigation, check.metric, check.target, answer, settings.output)
    if settings.archive is not None:
        files += sorted({*settings.output.glob(f"{reduced.output.stem}.*"), *settings.output.glob(f"{MIXED}*")})
        pack(settings.output, files, settings.archive, NEUTRAL)
        result.artifacts["archive"] = str(settings.archive)
    return result
