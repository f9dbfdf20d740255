"""From a space to an answer: search, hold it against fresh samples, write it, read it back, probe what was written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import onnx

from bisect_trt.commands.metric import measure_whole
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.answer import (
    Answer,
    checker_problem,
    fill_in,
    recommended,
    tell_answer,
    tell_details,
    tell_kept,
)
from bisect_trt.mixed_precision.samples import Fresh
from bisect_trt.mixed_precision.search import fastest, search_keep
from bisect_trt.mixed_precision.task import Task
from bisect_trt.mixed_precision.validation import Safe, find_safe
from bisect_trt.onnxlib.external_data import copy_file, external_files
from bisect_trt.options.choices import Minimise
from bisect_trt.probe.reconfirm import reconfirm
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum, Subset, Verdict

_ENDED = "the search did not come to its end"


class Progress:
    """The best answer so far, which is also what the output file holds.

    Attributes:
        answer: The answer; ``None`` before the minimal set is known.
    """

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self._written: Subset | None = None

    def next(self) -> Progress:
        """The progress of a search that goes on from this answer, and writes to the same file."""
        self._written = None
        return Progress()

    def keep(self, task: Task, answer: Answer) -> None:
        """Write an answer, unless its set is written already: an engine that is built again is another one.

        Raises:
            UsageError: It cannot be written.
        """
        self.answer = answer
        if self._written != answer.units:
            task.lowering.write(answer.units, task.settings.output)
            self._written = answer.units


def find_answer(task: Task, progress: Progress, fresh: Fresh, *, nothing_may_pass: bool = False) -> Answer:
    """The minimal set, and the set that holds on fresh samples.

    Raises:
        DoesNotReproduce: Precision is not the reason.
        BudgetSpent: No more probes may be made.
        UsageError: The answer cannot be written.
    """
    minimum = search_keep(task, nothing_may_pass=nothing_may_pass)
    if task.settings.minimise is Minimise.LATENCY:
        minimum = fastest(task, minimum)
    for step in minimum.steps:
        task.console.say(f"  {step}")
    task.result.extra["probes_minimal"] = len(task.prober.ledger.records)
    _keep(task, progress, Answer(minimum, Safe(minimum.units, why=_ENDED)))
    task.space.measure(task)
    answer = Answer(minimum, find_safe(task, minimum, fresh))
    _keep(task, progress, answer)
    return answer


def _keep(task: Task, progress: Progress, answer: Answer) -> None:
    """Write the best so far; where that fails, say what to keep all the same."""
    try:
        progress.keep(task, answer)
    except UsageError as error:
        outcome = task.prober.ledger.outcome(task.lowering.candidate(answer.units).key)
        fill_in(task, answer, outcome, None)
        task.result.extra["uses"] = []
        nodes = task.result.extra["keep_fp32"]
        task.console.answer(f"{task.space.count(len(nodes))} in {task.space.high} would mend it: {error}")
        tell_kept(nodes, task.console)
        raise


def write_answer(task: Task, answer: Answer) -> Minimum:
    """Read back what was written, probe it, and fill in the result.

    Returns:
        The minimal set; unproven if what was written does not pass.
    """
    minimum, output, prober, lowering = answer.minimum, task.settings.output, task.prober, task.lowering
    nothing = lowering.candidate(frozenset())
    believed = reconfirm(prober, nothing, lowering.read_back(answer.units, output))
    record = believed.record
    task.console.say(f"  {believed.seen or record.reason}")
    problem = checker_problem(checkable(task.subject), output) if lowering.writes_model(output) else None
    if record.verdict is not Verdict.PASS:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    elif problem is not None:
        minimum = replace(minimum, proven=False, why=f"ONNX's checker refuses {output}: {problem}")
    elif minimum.proven and minimum.units != answer.units:
        minimal = reconfirm(prober, nothing, lowering.candidate(minimum.units)).record
        if minimal.verdict is not Verdict.PASS:
            minimum = replace(minimum, proven=False, why=f"of the minimal set: {minimal.reason}")
    task.result.artifacts["mixed"] = str(output)
    if task.settings.minimal_output is not None:
        minimum = _write_minimal(task, minimum, task.settings.minimal_output)
    fill_in(task, replace(answer, minimum=minimum), task.outcome(record), record)
    measure_whole(task, lowering.read_back(answer.units, output))
    return minimum


def _write_minimal(task: Task, minimum: Minimum, path: Path) -> Minimum:
    """Write the model of the minimal set too, read it back, and probe what was read."""
    lowering = task.lowering
    lowering.write(minimum.units, path)
    candidate = replace(lowering.read_back(minimum.units, path), title=f"{path.name}, the minimal set, read back")
    record = task.prober.probe(candidate, again=True)
    task.result.artifacts["minimal"] = str(path)
    if record.verdict is Verdict.PASS:
        return minimum
    return replace(minimum, proven=False, why=f"the final re-check of {path} disagreed: {record.reason}")


def deliver(task: Task, answer: Answer) -> Result:
    """Probe what was written, conclude, and say so."""
    task.console.step("Written and read back: does it pass?")
    task.conclude(write_answer(task, answer))
    task.result.culprits = task.space.culprits(answer.minimum.units)
    tell_answer(task)
    return task.result


def leave_best(task: Task, progress: Progress) -> Subset | None:
    """Where the search ends early, write the best set so far and say what is known of it.

    Returns:
        Its units; ``None`` if nothing smaller than the whole model was seen to pass.
    """
    task.tell_not_run()
    answer = progress.answer
    if answer is None:
        best = _smallest_passing(task)
        if best is None:
            return None
        answer = Answer(Minimum(best, proven=False, why=_ENDED), Safe(best, why=_ENDED))
    answer = replace(answer, minimum=replace(answer.minimum, proven=False, why=_ENDED))
    progress.keep(task, answer)
    task.result.artifacts["mixed"] = str(task.settings.output)
    fill_in(task, answer, task.prober.ledger.outcome(task.lowering.candidate(answer.units).key), None)
    name, space = recommended(task.result.extra["uses"]) or task.settings.output, task.space
    count = f"{len(answer.units)} of {space.count(len(task.lowering.units))} in {space.high}"
    task.console.answer(f"{name}: the best so far, {count}.")
    tell_details(task.result, task.console)
    return answer.units


def _smallest_passing(task: Task) -> Subset | None:
    """The smallest set of units that was seen to be enough, if there is one but all of them."""
    passed = {each.key: each.units for each in task.prober.ledger.passed if each.units < task.everything}
    ordered = sorted(passed.items(), key=lambda entry: (len(entry[1]), sorted(entry[1])))
    # After a diagnosis the pieces that it probed are among them.
    return next((units for key, units in ordered if task.lowering.candidate(units).key == key), None)


def checkable(subject: Subject) -> Path:
    """The original with its weights beside it, which is where the checker looks for them."""
    if subject.settings.external_data_dir is None:
        return subject.settings.path
    copy = subject.workspace.scratch(subject.settings.path.name)  # its weights lie in that folder
    shutil.copyfile(subject.settings.path, copy)
    for name in external_files(onnx.load(copy, load_external_data=False)):
        beside = copy.parent / name  # the checker takes no link
        if not beside.exists():
            beside.parent.mkdir(parents=True, exist_ok=True)
            copy_file(subject.settings.external_data_dir / name, beside)
    return copy
