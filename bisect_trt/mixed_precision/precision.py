"""The fewest nodes, or Q/DQ groups, that have to stay in floats for the rest to run in low precision."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from bisect_trt.commands.checks import make_check
from bisect_trt.commands.preflight import lowers_by
from bisect_trt.commands.session import Session, saving_best
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError, UnavailableError, UsageError, ValueRefusedError
from bisect_trt.mixed_precision.answer import (
    deliver,
    leave_best,
    recommended,
    tell_answer,
    tell_kept,
    tell_safe,
    tell_suspects,
    tell_unwritten,
    tell_uses,
    write_answer,
)
from bisect_trt.mixed_precision.curve import PrecisionAnswer, Progress, find_answer
from bisect_trt.mixed_precision.ladder import deliver_ladder
from bisect_trt.mixed_precision.lowering import marked
from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes
from bisect_trt.mixed_precision.parameters import Low, PrecisionSettings
from bisect_trt.mixed_precision.search import Task, refusal
from bisect_trt.mixed_precision.validation import refuse_validation
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Search
from bisect_trt.options.spec import written
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import DoesNotReproduce, Prober
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.report.result import RESULT_FILE, Result, read_result
from bisect_trt.search.oracle import Minimum, Verdict
from bisect_trt.worker.process import workers_within

MIXED = "mixed.onnx"
_MOST_QUESTIONS, _MOST_COSTLY_QUESTIONS = 20, 4
"""Questions that the search for a fix may ask after a diagnosis; fewer where a build takes minutes."""
_FRESH_SAMPLES = 60
"""None of so many failing says with 95% certainty that under 5% of all fail; the command that is said tries more."""


def find_precision(task: Task, search: Search) -> Result:
    """See that precision is the reason, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The model fails in floats too, or passes lowered.
        UsageError: Validation data does not fit the model, or there is nothing to compare on it.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    task.result.extra |= {"keep_fp32": [], "minimal": [], "latency_ms": None}
    refuse_validation(task)
    progress = Progress(task)
    if task.settings.options.keep_set is not None:
        return _write_set(task, progress, task.settings.options.keep_set)
    try:
        with saving_best(lambda: _leave(task, progress)):
            return task.until_done(lambda: _find(task, search, progress))
    except UsageError:
        tell_unwritten(task, progress)
        raise


def _write_set(task: Task, progress: Progress, count: int) -> Result:
    """Write a set of the last run's curve, and probe it.

    Raises:
        UsageError: No run of this model has a curve, or its curve has no such set.
    """
    last = _last_curve(task)
    chosen = next((point for point in last["curve"] if point["nodes"] == count), None)
    if chosen is None:
        sizes = ", ".join(str(point["nodes"]) for point in last["curve"])
        raise ValueRefusedError(
            f"--keep-set {count}: the curve of the last run has sets of {sizes} {task.space.noun}s; give one of these."
        )
    needed = [node["outputs"] for node in last["minimal"]]
    minimal = frozenset(
        unit for unit in chosen["keep"] if task.space.describe(frozenset({unit}))[0]["outputs"] in needed
    )
    answer = PrecisionAnswer(
        Minimum(minimal, proven=last["minimal_proven"], why=last["why"]), frozenset(chosen["keep"])
    )
    progress.keep(answer)
    task.console.step("Written and read back: does it pass?")
    minimum = write_answer(task, answer)
    curve = [{**point, "recommended": point is chosen} for point in last["curve"]]
    task.result.extra |= {"curve": curve, "validation": {**chosen, "recommended": True}}
    task.conclude(minimum)
    task.result.culprits = task.space.culprits(answer.units)
    tell_answer(task)
    return task.result


def _last_curve(task: Task) -> dict[str, Any]:
    """The result of the last run that searched this model for this precision.

    Raises:
        UsageError: There is none.
    """
    files = sorted(Path(RUNS_FOLDER).glob(f"*/{RESULT_FILE}"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in files:
        try:
            last = read_result(file)
        except UnavailableError:
            continue
        same = (
            last["model"].get("sha256") == task.result.model.get("sha256")
            and last.get("precision") == task.settings.low
        )
        if same and last.get("curve") and last["command"] == "precision":
            return last
    raise ValueRefusedError(
        f"--keep-set: no run under {RUNS_FOLDER} has a curve for this model in {task.settings.low}; run the same command "
        "without it."
    )


def _leave(task: Task, progress: Progress) -> None:
    best = leave_best(task, progress)
    if best is not None:
        task.result.culprits = task.space.culprits(best)


def _find(task: Task, search: Search, progress: Progress) -> Result:
    space, low, console = task.space, task.settings.low, task.console
    count, ladder = space.count(len(task.lowering.units)), bool(task.settings.bits and task.settings.half)
    console.step(f"What in the reference run speaks against {low} ({count} can be lowered)?")
    tell_suspects(task)
    for sentence in space.notes():
        console.warn(sentence)
    nothing = frozenset[int]()
    task.result.extra |= space.extra(nothing, nothing)
    console.step(
        f"Probe all {count} in {space.high}, then all in {low}, then search for the fewest to keep in {space.high}"
    )
    if search.repeat is not None:
        _measure_lowered(task, search)
    answer = find_answer(task, progress, nothing_may_pass=ladder)
    return deliver_ladder(task, answer, progress) if task.settings.rungs else deliver(task, answer)


def _measure_lowered(task: Task, search: Search) -> None:
    """Measure how often the model fails with everything lowered.

    Raises:
        DoesNotReproduce: It never does.
    """
    try:
        task.probe_original(search, task.lowering.candidate(frozenset()))
    except DoesNotReproduce:
        raise refusal(task, frozenset()) from None


def find_fix(session: Session, check: CheckSettings, search: Search, case: Candidate, folder: Path) -> None:
    """After a diagnosis: if the minimal case passes in fp32, look for the nodes to keep in fp32, and leave that model.

    What stands in the way of a fix is said, and is no reason to fail: the failure itself was found before.
    """
    target = check.target
    if target is None or target.fp16 == target.bf16:
        return
    subject, prober, console = session.subject, session.prober, session.console
    precision: Low = "fp16" if target.fp16 else "bf16"
    capabilities = target.target.capabilities
    by_layer = capabilities.lowers_layers and lowers_by(subject, target) == "layer"
    own = PrecisionOptions(subject.settings.path, folder / MIXED, fresh_samples=_FRESH_SAMPLES, overwrite=True)
    settings = PrecisionSettings(
        own,
        precision,
        target,
        by_layer=by_layer,
        most=_MOST_COSTLY_QUESTIONS if capabilities.costly else _MOST_QUESTIONS,
        tolerance=check.tolerance,
    )
    words = ["bisect-trt", "precision", str(subject.settings.path), *target.flags(), "-o", MIXED]
    command = shlex.join([*words, *session.place_words, *written(subject.settings.data), *written(check.tolerance)])
    console.step("6. Is it precision? Keep nodes in fp32, and see whether the rest passes")
    fixer = _fixer(subject, prober, built_in_check(replace(check, by_layer=by_layer), subject, precision), search)
    task, progress = None, None
    try:
        record = fixer.probe(_in_fp32(case, precision, by_layer=by_layer))
        if record.verdict is not Verdict.PASS:
            console.say(f"  no: the minimal case does not pass in fp32 either: {record.reason}")
            return
        task = Task(subject, console, session.result, fixer, make_nodes(subject, settings), settings)
        progress = Progress(task)
        answer = find_answer(task, progress)
        minimum = write_answer(task, answer)
    except BudgetSpent as error:
        if task is not None and progress is not None:
            leave_best(task, progress)
        console.say(f"  {error} This goes on: {command}")
        return
    except BisectError as error:
        if task is None or not session.result.extra.get("keep_fp32"):
            console.say(f"  no fix by precision: {error}")
        return
    finally:
        prober.wasted += fixer.wasted
    _tell_fix(task, answer, minimum, command)


def _tell_fix(task: Task, answer: PrecisionAnswer, minimum: Minimum, command: str) -> None:
    result, console, count = task.result, task.console, len(task.lowering.units)
    use, kept = recommended(result.extra["uses"]), len(answer.units)
    if use is None:
        console.answer(f"No fix by precision: with {kept} of {count} nodes in fp32 nothing that was written passes.")
        tell_uses(result.extra["uses"], console)
        console.answer(f"  {minimum.why}; this searches on: {command}")
        return
    console.answer(f"Fix: keep {kept} of {count} nodes in fp32, as {use} does.")
    tell_safe(result, console, "1-minimal" if minimum.proven else "unproven")
    tell_uses(result.extra["uses"], console)
    tell_kept(result.extra["keep_fp32"], console)
    console.answer(f"  measured on {result.extra['measured_on']}")
    if not minimum.proven:
        console.answer(f"  this fix is preliminary: {minimum.why}; this command searches on for fewer nodes: {command}")


def _in_fp32(case: Candidate, precision: Low, *, by_layer: bool) -> Candidate:
    """The minimal case, nothing of it lowered."""
    case = replace(case, title="the minimal case in fp32")
    if by_layer:
        return replace(case, keep=tuple(first_output(node) for node in case.proto.graph.node))
    return marked(case, precision)


def _fixer(subject: Subject, prober: Prober, check: CheckSettings, search: Search) -> Prober:
    """A prober of candidates that are lowered already; it shares the journal and the budget."""
    fixed = make_check(check, subject.workers)
    if isinstance(prober.runner.check, MetricCheck) and isinstance(fixed, BuiltinCheck):
        fixed = replace(prober.runner.check, runs=fixed)
    return prober.beside(fixed, workers_within(search.workers, subject.workers.width))
