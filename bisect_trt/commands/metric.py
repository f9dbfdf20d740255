"""``run``, ``diagnose`` and ``workaround`` with ``--metric`` or limits: measure the whole model, find the nodes and forms.

``reproduce.py`` compares outputs, so ``diagnose`` prints the command that measures the model instead of a script.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_trt.commands.arbitration import Fault
from bisect_trt.commands.cause import name_cause
from bisect_trt.commands.checks import CheckSettings, make_scale
from bisect_trt.commands.minimal_case import find_minimum
from bisect_trt.commands.reduce import deliver, smallest
from bisect_trt.commands.reproducer import make_folder
from bisect_trt.commands.session import Case, Session, saving_best
from bisect_trt.commands.workaround import print_ways, work_around
from bisect_trt.errors import ModelRefusedError
from bisect_trt.mixed_precision.answer import MIXED, find_fix
from bisect_trt.options.compare import MetricOptions
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.reproducer import MODEL, pack
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Mode, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.worker.protocol import Score

if TYPE_CHECKING:
    from bisect_trt.commands.diagnose import Diagnosis


def score(session: Session, target: TargetSettings, metric: MetricOptions, timeout: float | None) -> Result:
    """Score the target on the whole set.

    Raises:
        UsageError: A sample does not fit the model, or the metric does not fit the outputs or labels.
        UnavailableError: The reference or a target cannot run the model.
    """
    subject, console, result = session.subject, session.console, session.result
    model = subject.models.write("measured", subject.network.proto)
    scale = make_scale(subject, metric)
    console.step(f"{target.describe()}, on all {scale.data.count} samples")
    measured = session.answered(subject.workers.ask(Score(target, model, scale.scoring()), timeout))
    lost = measured.value - scale.reference  # NaN where both are infinite
    change = "" if math.isnan(lost) else f" ({lost:+.4g}{scale.metric.unit} against the reference)"
    equal = measured.value == scale.reference
    console.answer(f"{scale.describe(measured)}{' (equal to the reference)' if equal else change}")
    result.extra |= {"metric": scale.to_json(measured), "comparisons": []}
    return result.end("not_reproduced" if result.extra["metric"]["passed"] is False else "found")


def measure(session: Session, check: CheckSettings) -> Result:
    """Measure the target beside its limits.

    Raises:
        UnavailableError: The target cannot run the model.
    """
    assert check.target is not None, "the options require one"
    session.console.step(f"{check.target.describe()}, measured beside its limits")
    record = session.prober.probe(session.subject.original)
    outcome = session.outcome(record)
    if outcome.ending is Ending.BROKEN:
        raise ModelRefusedError(f"the target cannot run {session.subject.settings.path}: {outcome.reason}.")
    session.result.extra["comparisons"] = []
    status, said = _ENDS[record.verdict]
    session.console.answer(f"{said}: {record.reason}.")
    return session.result.end(status, record.reason if record.verdict is Verdict.UNRESOLVED else None)


_ENDS = {
    Verdict.PASS: ("found", "Within the limits"),
    Verdict.FAIL: ("not_reproduced", "Past a limit"),
    Verdict.UNRESOLVED: ("inconclusive", "Unknown, because the machine is too noisy or the limit too close"),
}
"""The status and the words of a verdict."""


def diagnose_whole(diagnosis: Diagnosis) -> Result:
    """Find the layers that lower the metric on the target, or take it past a limit, and write them.

    Raises:
        DoesNotReproduce: The metric does not drop past its bound, or no limit is exceeded.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    session, check, output = diagnosis.session, diagnosis.check, diagnosis.output
    console, subject, result = session.console, session.subject, session.result
    limited = check.limits is not None
    wrong = "past its limits" if limited else "below the bound of the metric"
    console.step(f"Is the target {wrong} ({len(subject.network.nodes)} nodes)?")
    try:
        record = session.probe_original(diagnosis.search)
    except DoesNotReproduce as error:
        raise (error if limited else diagnosis.advised(error)) from error
    console.say(f"  yes: {record.reason}")
    make_folder(output)
    reduced = Reduce(subject.settings.path, output / MODEL, overwrite=True)
    with saving_best(lambda: session.save_best(reduced.output)):
        console.step(f"Which of {len(subject.units)} units take it there?")
        case = Case(find_minimum(session, reduced.mode))
        answer = smallest(session, reduced, diagnosis.search, case)
        console.step(f"Write them to {output}")
        deliver(session, reduced, answer, case.minimum)
    assert check.target is not None
    if limited:
        name_cause(session, check, answer)
    else:
        measured = result.extra["metric"]
        find_fix(session, check, diagnosis.search, answer, output)
        fixed = result.extra["metric"]
        result.extra["metric"] = measured | ({} if fixed is measured else {"fixed": fixed["candidate"]})
    result.suggest(session.command("run", check))
    if diagnosis.archive is not None:
        files = sorted({*output.glob(f"{reduced.output.stem}.*"), *output.glob(f"{MIXED}*")})
        pack(output, files, diagnosis.archive)
        result.artifacts["archive"] = str(diagnosis.archive)
    return result


def work_around_limits(session: Session, check: CheckSettings, search: Search, output: Path) -> Result:
    """Find the nodes that take the target past a limit, and a form of the model that keeps it; its values are compared too.

    Raises:
        DoesNotReproduce: No limit is exceeded.
        BudgetSpent: No more probes may be made.
        UsageError: The patched model cannot be written.
    """
    from bisect_trt.probe.limit_check import LimitCheck  # noqa: PLC0415 - of such checks alone

    console, subject, result = session.console, session.subject, session.result
    console.step(f"Is the target past its limits ({len(subject.network.nodes)} nodes)?")
    record = session.probe_original(search)
    console.step(f"Which of {len(subject.units)} units take it there?")
    minimum = find_minimum(session, Mode.AUTO)
    result.culprits = subject.describe_searched(minimum.units)
    name_cause(session, check, subject.original)
    console.step("Search barriers and rewrites")
    if isinstance(session.prober.check, LimitCheck):  # else a form that slows the baseline down would pass
        yardstick = subject.models.write("yardstick", subject.original.proto)
        session.prober.check = replace(session.prober.check, yardstick=yardstick)
    ways = work_around(session, Case(minimum), Fault("target", record.reason), output)
    print_ways(result, console)
    passes = any(way.passes for way in ways)
    session.conclude(minimum if passes else replace(minimum, proven=False, why="no workaround was found"))
    return result
