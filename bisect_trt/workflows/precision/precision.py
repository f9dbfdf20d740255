"""The fewest nodes that have to stay in fp32 for the rest to run in fp16 or bf16."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Minimise
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Minimum, Verdict
from bisect_trt.tensors.tolerance import Precision
from bisect_trt.workflows.investigation import saving_best
from bisect_trt.workflows.precision.by_layer import LayerLowering
from bisect_trt.workflows.precision.delivery import fastest, grow_answer, save_best, write_answer
from bisect_trt.workflows.precision.lowering import CastLowering, Lowering, known_types, lowerable_units, refuse_lowered
from bisect_trt.workflows.precision.rounds import refuse_validation
from bisect_trt.workflows.precision.safe import Safe, find_safe
from bisect_trt.workflows.precision.search import find_suspects, refusal, search_keep
from bisect_trt.workflows.precision.task import Low, PrecisionSettings, Task
from bisect_trt.workflows.precision.telling import Answer, tell_answer, tell_suspects, tell_unwritten
from bisect_trt.workflows.scale import measure_whole
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion.facts import Suspect


def built_in_check(check: CheckSettings, subject: Subject, precision: Low) -> CheckSettings:
    """The check for candidates that are lowered already.

    The target takes them as they are. Tolerances that were not given become those of the low precision, as numbers: the
    outputs are always the original's.

    Raises:
        UsageError: A tolerance names no output.
    """
    if check.target is None:
        return check
    tolerance = replace(check.tolerance, precision=Precision(precision))
    tolerance.check_names(subject.network.outputs)
    atol, rtol = dict(tolerance.atol), dict(tolerance.rtol)
    for name, value in subject.reference.select(subject.network.outputs).items():
        resolved = tolerance.for_output(name)[0].resolve(value, tolerance.precision)
        atol[name], rtol[name] = resolved.atol, resolved.rtol
    target = check.target if check.by_layer else replace(check.target, fp16=False, bf16=False)
    timed = target.target.capabilities.timed
    return replace(check, target=target, tolerance=replace(tolerance, atol=atol, rtol=rtol), timed=timed)


def make_lowering(subject: Subject, settings: PrecisionSettings) -> Lowering:
    """The way of lowering that the target needs.

    Raises:
        UsageError: The model is not an fp32 one, a pattern matches nothing, or there is nothing to lower.
    """
    refuse_lowered(subject.network, str(subject.settings.path))
    return lowering_but(subject, settings)


def lowering_but(subject: Subject, settings: PrecisionSettings, left: Collection[int] = ()) -> Lowering:
    """The same of what may be quantized in part.

    Args:
        subject: The model.
        settings: What was asked for.
        left: Nodes that stay as they are, and as the target likes where it lowers itself: those that are quantized.

    Raises:
        UsageError: A pattern matches nothing, or there is nothing to lower.
    """
    lowest = "fp16" if settings.calibrated else settings.precision
    units = lowerable_units(subject, lowest, known_types(subject), settings.include, settings.exclude, left)
    cast = CastLowering(
        subject,
        units,
        settings.precision,
        emulated=settings.emulated,
        by_arithmetic=settings.by_arithmetic,
        lower_ends=settings.io_low,
        keep_weights=settings.keep_weights,
    )
    target = settings.target
    if target is None or not settings.by_layer:
        return cast
    return LayerLowering(subject, units, target, None if settings.calibrated else cast, left)


def find_precision(task: Task, search: SearchSettings) -> Result:
    """See that precision is the reason, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The model fails in fp32 too, or passes lowered.
        UsageError: Validation data does not fit the model, or there is nothing to compare on it.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    task.result.extra |= {"keep_fp32": [], "minimal": [], "latency_ms": None}
    refuse_validation(task)
    early: list[Safe] = []  # what may be recommended before anything is proven
    with saving_best(lambda: _leave_best(task, early[-1] if early else None)):
        return task.until_done(lambda: _find(task, search, early))


def _find(task: Task, search: SearchSettings, early: list[Safe]) -> Result:
    low, count, console = task.settings.low, len(task.lowering.units), task.console
    console.step(f"What in the reference run speaks against {low} ({count} nodes can be lowered)?")
    suspects = find_suspects(task)
    tell_suspects(task.subject, suspects, console)
    console.step(f"Probe all {count} in fp32, then all in {low}, then search for the fewest to keep in fp32")
    if search.repeat is not None or search.pin:
        measure_lowered(task, search)
    if task.settings.target is not None and task.settings.target.target.capabilities.costly:
        early += filter(None, [find_early(task, suspects)])
    if early:
        console.step("Which of them are needed?")
    minimum = search_keep(task, suspects)
    if task.settings.minimise is Minimise.LATENCY:
        minimum = fastest(task.prober, task.lowering, minimum)
    for step in minimum.steps:
        console.say(f"  {step}")
    answer = grow_answer(task, Answer(minimum, suspects, early[-1] if early else None))
    return deliver(task, answer)


def find_early(task: Task, suspects: Sequence[Suspect]) -> Safe | None:
    """A safe set before the minimal one is known, where a probe takes minutes: what is suspected and near overflow.

    It is written, so that whoever ends the search has it; a search for what is needed may then go on. ``None`` if
    there is none, or precision is not the reason, which the search will say.
    """
    began = time.monotonic()
    everything, nothing = frozenset(task.lowering.units), frozenset[int]()
    for units, wanted in ((everything, Verdict.PASS), (nothing, Verdict.FAIL)):
        if task.prober.probe(task.lowering.candidate(units)).verdict is not wanted:
            return None
    safe = find_safe(task, Minimum(nothing, proven=False), suspects)
    if not safe.units or safe.validation is None:
        return None
    try:
        task.lowering.write(safe.units, task.settings.output)
    except UsageError as error:
        task.console.warn(str(error))
        return safe
    seconds = time.monotonic() - began
    task.result.extra["safe_after_s"] = round(seconds, 1)
    kept = f"{len(safe.units)} of {len(everything)} nodes in fp32"
    task.console.say(f"  {task.settings.output}: {kept} {safe.validation.describe()}, found in {seconds:.0f} s")
    return replace(safe, written=True)


def _leave_best(task: Task, early: Safe | None) -> None:
    best = save_best(task, early)
    if best is not None:
        task.result.culprits = task.subject.describe_searched(best)


def measure_lowered(task: Task, search: SearchSettings) -> None:
    """Measure how often the model fails with everything lowered.

    Raises:
        DoesNotReproduce: It never does.
    """
    lowered = task.lowering.candidate(frozenset())
    try:
        task.probe_original(search, lowered)
    except DoesNotReproduce:
        raise refusal(task, frozenset()) from None


def deliver(task: Task, answer: Answer) -> Result:
    """Write the answer, read it back, and probe what was read."""
    task.console.step("Written and read back: does it pass?")
    try:
        minimum = write_answer(task, answer)
    except UsageError as error:
        tell_unwritten(task, error)
        raise
    measure_whole(task, task.lowering.read_back(answer.units, task.settings.output))
    task.conclude(minimum)
    task.result.culprits = task.subject.describe_searched(minimum.units)
    tell_answer(task)
    return task.result
