"""After a diagnosis: if precision is the reason, what to keep in fp32."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.graph.lower import first_output
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.runner import Runner
from bisect_trt.search.oracle import Minimum, Verdict
from bisect_trt.workflows.checks import make_check
from bisect_trt.workflows.fit import lowers_by
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.precision.delivery import grow_answer, save_best, write_answer
from bisect_trt.workflows.precision.lowering import marked
from bisect_trt.workflows.precision.precision import built_in_check, find_early, make_lowering
from bisect_trt.workflows.precision.said import FILE, tell_said, write_said
from bisect_trt.workflows.precision.search import find_suspects, search_keep
from bisect_trt.workflows.precision.task import Low, PrecisionSettings, Task
from bisect_trt.workflows.precision.telling import Answer, tell_lowered, tell_nodes, tell_safe, tell_unwritten
from bisect_trt.workflows.precision.uses import recommended, tell_uses
from bisect_trt.workflows.scale import measure_whole
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.subject import Subject

MIXED = "mixed.onnx"
_MOST_QUESTIONS, _MOST_COSTLY_QUESTIONS = 20, 1
"""What looking for the fix may cost after a diagnosis, where a build takes minutes; the command that goes on is said."""

_NOT_ASKED = "which of them are needed was not asked"
_FRESH_SAMPLES = 60
"""None of so many failing says with 95% certainty that under 5% of all fail; the command that is said tries more."""


def find_fix(
    investigation: Investigation, check: CheckSettings, search: SearchSettings, case: Candidate, folder: Path
) -> None:
    """Step 6: if the minimal case passes in fp32, look for the nodes to keep in fp32, and leave that model.

    What stands in the way of a fix is said, and is no reason to fail: the failure itself was found before.
    """
    precision = _precision(check)
    if precision is None:
        return
    subject, prober, console = investigation.subject, investigation.prober, investigation.console
    target = check.target
    assert target is not None  # or there would be no precision
    by_layer = target.target.capabilities.lowers_layers and lowers_by(subject, target) == "layer"
    settings = PrecisionSettings(
        folder / MIXED,
        precision,
        target,
        overwrite=True,
        by_layer=by_layer,
        fresh_samples=_FRESH_SAMPLES,
        tolerance=check.tolerance,
    )
    command = ["bisect-trt", "precision", str(subject.settings.path), *target.flags(), "-o", MIXED]
    command += [*investigation.place_words, *subject.settings.words(), *check.tolerance.words()]
    console.step("6. Is it precision? Keep nodes in fp32, and see whether the rest passes")
    prober.close()  # what runs from here on is timed, and nothing is timed beside a build
    fixer = _fixer(subject, prober, built_in_check(replace(check, by_layer=by_layer), subject, precision), search)
    task = None
    try:
        record = fixer.probe(_in_fp32(case, precision, by_layer=by_layer))
        if record.verdict is not Verdict.PASS:
            console.say(f"  no: the minimal case does not pass in fp32 either: {record.reason}")
            return
        task = Task(subject, console, investigation.result, fixer, make_lowering(subject, settings), settings)
        answer = _find(task, costly=target.target.capabilities.costly)
        minimum = write_answer(task, answer)
        measure_whole(task, task.lowering.read_back(answer.units, settings.output))
    except BudgetSpent as error:
        if task is not None:
            save_best(task)
        console.say(f"  {error} This goes on: {shlex.join(command)}")
        return
    except BisectError as error:
        if task is not None and investigation.result.extra.get("keep_fp32"):
            tell_unwritten(task, error)
        else:
            console.say(f"  no fix by precision: {error}")
        return
    finally:
        prober.wasted += fixer.wasted
    _tell(task, minimum, shlex.join(command))


def _find(task: Task, *, costly: bool) -> Answer:
    """What to keep in fp32: the fewest that a few questions tell and what is safe, or where probes are costly the latter alone.

    Raises:
        DoesNotReproduce: Precision is not the reason.
        BudgetSpent: No more probes may be made.
    """
    suspects = find_suspects(task)
    safe = find_early(task, suspects) if costly else None
    held = None if safe is None else safe.validation
    if (
        safe is not None and held is not None and held.passed == held.samples
    ):  # so no smaller one, which is not, is built
        task.result.extra["probes_minimal"] = len(task.prober.ledger.records)
        return Answer(Minimum(safe.units, proven=False, why=_NOT_ASKED), suspects, safe)
    return grow_answer(
        task, Answer(search_keep(task, suspects, _MOST_COSTLY_QUESTIONS if costly else _MOST_QUESTIONS), suspects)
    )


def _tell(task: Task, minimum: Minimum, command: str) -> None:
    result, console = task.result, task.console
    nodes, count = result.extra["keep_fp32"], len(task.lowering.units)
    use = recommended(result.extra["uses"])
    if use is None:
        console.answer(
            f"No fix by precision: with {len(nodes)} of {count} nodes in fp32 nothing that was written passes."
        )
        tell_uses(result.extra["uses"], console)
        console.answer(f"  {minimum.why}; this searches on: {command}")
        return
    console.answer(f"To mend it: keep {len(nodes)} of {count} nodes in fp32, as {use} does.")
    tell_safe(result, console, "1-minimal" if minimum.proven else "unproven")
    tell_uses(result.extra["uses"], console)
    tell_said(result.extra["said"], console)
    _leave_said(task)
    tell_nodes(nodes, console)
    tell_lowered(result, console)
    console.answer(f"  measured on {result.extra['measured_on']}")
    if not minimum.proven:
        console.answer(f"  {minimum.why}; fewer nodes may do: {command}")


def _leave_said(task: Task) -> None:
    path = task.settings.output.with_name(FILE)
    try:
        write_said(task.result.extra["said"], path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; make room and run again.") from error
    task.result.artifacts["other_tools"] = str(path)


def _precision(check: CheckSettings) -> Low | None:
    """The one low precision that the target runs in, if it is lowered by Casts."""
    target = check.target
    if target is None or target.fp16 == target.bf16:
        return None
    return "fp16" if target.fp16 else "bf16"


def _in_fp32(case: Candidate, precision: Low, *, by_layer: bool) -> Candidate:
    """The minimal case, nothing of it lowered."""
    case = replace(case, title="the minimal case in fp32")
    if by_layer:
        return replace(case, keep=tuple(first_output(node) for node in case.proto.graph.node))
    return marked(case, precision)


def _fixer(subject: Subject, prober: Prober, check: CheckSettings, search: SearchSettings) -> Prober:
    """Probes candidates that are lowered already; what it learns goes into the same journal, and counts as much."""
    fixed = make_check(check, subject.workers)
    if isinstance(prober.runner.check, MetricCheck) and isinstance(fixed, BuiltinCheck):
        fixed = replace(prober.runner.check, runs=fixed)
    runner = Runner(fixed, subject.workspace, subject.reference)
    runner.flakiness = prober.runner.flakiness
    return Prober(runner, prober.ledger, subject.workers.width if search.workers is None else search.workers)
