"""The answer of a search for precision: written, read back and probed; else the best so far.

In what it really ran is said too, where the target does not tell: as far as accuracy and latency suggest.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import onnx

from bisect_trt.errors import UsageError
from bisect_trt.graph.copying import copy_file
from bisect_trt.graph.externals import external_files
from bisect_trt.probing.journal import Record
from bisect_trt.probing.luck import look_again
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.prober import Prober
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.workflows.engine_layers import fp32_layers
from bisect_trt.workflows.precision.by_layer import engine_path
from bisect_trt.workflows.precision.lowering import Lowering
from bisect_trt.workflows.precision.safe import Safe, find_safe
from bisect_trt.workflows.precision.said import say
from bisect_trt.workflows.precision.search import find_suspects
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.precision.telling import Answer, checker_problem, fill_in, tell_details
from bisect_trt.workflows.precision.uses import recommended, try_uses
from bisect_trt.workflows.subject import Subject


def latencies(task: Task, keep: Subset, minimal: Subset | None = None) -> dict[str, float | None] | None:
    """Milliseconds of one run with everything in fp32, with the answer, and with everything lowered.

    Args:
        task: The search.
        keep: The answer.
        minimal: The minimal set, if that is to be told too.

    Returns:
        The median of several runs each; ``None`` where nothing was measured.
    """
    found = {name: latency_of(task.prober, key) for name, key in _keys(task, keep).items()}
    if minimal is not None:
        found["minimal"] = latency_of(task.prober, task.lowering.candidate(minimal).key)
    return found if any(value is not None for value in found.values()) else None


def latency_of(prober: Prober, key: str) -> float | None:
    """Milliseconds of one run of a candidate, if that was measured."""
    outcome = prober.ledger.outcome(key)
    return None if outcome is None else outcome.latency_ms


def ran_like(task: Task, keep: Subset) -> str | None:
    """What the measures suggest, in a sentence; ``None`` where one of both ends was not measured."""
    outcomes = {name: task.prober.ledger.outcome(key) for name, key in _keys(task, keep).items()}
    errors = {name: None if outcome is None else _error(outcome) for name, outcome in outcomes.items()}
    return suggest(errors, latencies(task, keep) or {}, task.settings.low)


def _keys(task: Task, keep: Subset) -> dict[str, str]:
    ends = {"fp32": frozenset(task.lowering.units), "mixed": keep, "lowered": frozenset[int]()}
    return {name: task.lowering.candidate(units).key for name, units in ends.items()}


def _error(outcome: Outcome) -> float | None:
    """The largest error of any output, in units of its tolerance."""
    errors = [
        comparison.max_abs / comparison.atol
        for comparison in outcome.comparisons
        if comparison.max_abs is not None and comparison.atol
    ]
    return max(errors, default=None)


def suggest(errors: dict[str, float | None], times: dict[str, float | None], precision: str) -> str | None:
    """Which of both ends the answer is nearer to: by the order of magnitude of its error, and by its time.

    Args:
        errors: In any unit, of ``fp32``, ``mixed`` and ``lowered``.
        times: The same in milliseconds.
        precision: What was lowered to.
    """
    by_error, by_time = _place(errors, logarithmic=True), _place(times, logarithmic=False)
    said = []
    if by_error is not None:
        said.append(f"its error is nearer to that of all {'fp32' if by_error < _MIDDLE else precision}")
    if by_time is not None:
        ends = f"{times['fp32']:.3f} ms in fp32 and {times['lowered']:.3f} ms"
        near = "fp32" if by_time < _MIDDLE else precision
        said.append(f"its {times['mixed']:.3f} ms, between {ends} in {precision}, are nearer to {near}")
    places = [place < _MIDDLE for place in (by_error, by_time) if place is not None]
    if not places:
        return None
    mostly = "fp32" if all(places) else f"{precision}, but for the nodes that are kept" if not any(places) else "both"
    return (
        f"the target does not tell all of what ran in {precision}: {', and '.join(said)}; it probably ran in {mostly}"
    )


_MIDDLE = 0.5
_SMALLEST = 1e-12


def _place(values: dict[str, float | None], *, logarithmic: bool) -> float | None:
    """Where the answer lies from 0, all fp32, to 1, all lowered; ``None`` where the ends are not known or not apart."""
    known = [values.get(name) for name in ("fp32", "mixed", "lowered")]
    numbers = [max(value, _SMALLEST) for value in known if value is not None and math.isfinite(value)]
    if len(numbers) < len(known):
        return None
    full, mixed, low = map(math.log, numbers) if logarithmic else numbers
    apart = math.log(_APART) if logarithmic else (_APART - 1) * full / 10
    return None if abs(low - full) < apart else (mixed - full) / (low - full)


_APART = 2.0
"""Errors of both ends have to be twice as large as each other for this to say anything, and times 10% apart."""


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


def grow_answer(task: Task, answer: Answer) -> Answer:
    """Grow the minimal set to the safe one; see :func:`~bisect_trt.workflows.precision.safe.find_safe`."""
    task.result.extra["probes_minimal"] = len(task.prober.ledger.records)
    return replace(answer, safe=find_safe(task, answer.minimum, answer.suspects, answer.safe))


def write_answer(task: Task, answer: Answer) -> Minimum:
    """Write the mixed model, read it back, and probe what was read.

    Returns:
        The answer; unproven if what was written does not pass.

    Raises:
        UsageError: It cannot be written; the result has the answer.
    """
    keep, minimum = answer.units, answer.minimum
    prober, lowering, output = task.prober, task.lowering, task.settings.output
    if answer.safe is None or not answer.safe.written:
        try:
            lowering.write(keep, output)
        except UsageError:  # the answer is known all the same
            fill_in(task, answer, prober.ledger.outcome(lowering.candidate(keep).key))
            task.result.extra |= {"uses": [], "said": []}
            task.result.culprits = task.subject.describe_searched(minimum.units)
            raise
    nothing = lowering.candidate(frozenset())
    believed = look_again(prober, nothing, lowering.read_back(keep, output))
    record = believed.record
    task.console.say(f"  {believed.seen or record.reason}")
    problem = checker_problem(checkable(task.subject), output) if lowering.writes_model(output) else None
    if record.verdict is not Verdict.PASS:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    elif problem is not None:
        minimum = replace(minimum, proven=False, why=f"ONNX's checker refuses {output}: {problem}")
    elif minimum.proven and minimum.units != keep:
        minimal = look_again(prober, nothing, lowering.candidate(minimum.units)).record
        if minimal.verdict is not Verdict.PASS:
            minimum = replace(minimum, proven=False, why=f"of the minimal set: {minimal.reason}")
    task.result.artifacts["mixed"] = str(output)
    if task.settings.minimal_output is not None:
        minimum = _write_minimal(task, minimum, task.settings.minimal_output)
    fill_in(task, replace(answer, minimum=minimum), task.outcome(record))
    add_measures(task, answer, record)
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


def add_measures(task: Task, answer: Answer, written: Record | None) -> None:
    """Put how long it runs, in what precision, and how it is used, into a result that has the answer.

    Args:
        task: The search.
        answer: The answer.
        written: What was said of what was written; ``None`` if the search was ended before.
    """
    subject, settings, result, keep = task.subject, task.settings, task.result, answer.units
    uses = try_uses(task, keep, written)
    result.extra |= {"latency_ms": None, "ran_fp32": None, "ran_like": None, "uses": [vars(use) for use in uses]}
    result.extra["said"] = [vars(each) for each in say(task, keep, tried=written is not None)]
    if settings.target is None or not settings.target.target.capabilities.timed:
        return  # nothing was measured, and to look it up each candidate is made again
    result.extra["latency_ms"] = latencies(task, keep, answer.minimum.units)
    network, outcome = subject.network, task.prober.ledger.outcome(task.lowering.candidate(keep).key)
    kept = frozenset(network.order[unit] for unit in keep)
    result.extra["ran_fp32"] = fp32_layers(network, outcome.layers, kept) if outcome is not None else None
    ran = result.extra["ran_fp32"]
    if ran is None or ran["inside"]:
        result.extra["ran_like"] = ran_like(task, keep)
    if settings.by_layer:
        result.artifacts["engine"] = str(engine_path(settings.output))


def save_best(task: Task, early: Safe | None = None) -> Subset | None:
    """Write the model with the fewest nodes in fp32 that was seen to pass so far, and say all that is known of it.

    Args:
        task: The search.
        early: A safe set, if one is known already, which is written then.

    Returns:
        Its units in fp32; ``None`` if there is none but all of them.
    """
    task.tell_not_run()
    smallest = best_keep(task)
    best = smallest if early is None else early.units
    if best is None:
        return None
    output = task.settings.output
    if early is None or not early.written:
        task.lowering.write(best, output)
    why = "the search did not come to its end"
    minimum = Minimum(best if smallest is None else smallest, proven=False, why=why)
    task.result.artifacts["mixed"] = str(output)
    outcome = task.prober.ledger.outcome(task.lowering.candidate(best).key)
    answer = Answer(minimum, find_suspects(task), early)
    fill_in(task, answer, outcome)
    add_measures(task, answer, None)
    name = recommended(task.result.extra["uses"]) or output
    task.console.answer(f"{name}: the best so far, {len(best)} of {len(task.lowering.units)} nodes in fp32.")
    tell_details(task.result, task.console)
    return best


def best_keep(task: Task) -> Subset | None:
    """The smallest set of units that was seen to be enough, if there is one but all of them."""
    everything = frozenset(task.lowering.units)
    passed = {identity.key: identity.units for identity in task.prober.ledger.passed if identity.units < everything}
    ordered = sorted(passed.items(), key=lambda entry: (len(entry[1]), sorted(entry[1])))
    # After a diagnosis the pieces that it probed are among them.
    return next((units for key, units in ordered if task.lowering.candidate(units).key == key), None)


def fastest(prober: Prober, lowering: Lowering, minimum: Minimum) -> Minimum:
    """Among all sets of units that were seen to be enough, the one that runs fastest.

    Args:
        prober: Who probed them.
        lowering: Makes the candidates.
        minimum: The one with the fewest units, which stays the answer where nothing was measured or nothing is faster.
    """
    everything = frozenset(lowering.units)
    measured = {
        identity.units: latency
        for identity in prober.ledger.passed
        if identity.units < everything and (latency := latency_of(prober, identity.key)) is not None
    }
    best = min(measured, key=lambda units: (measured[units], len(units), sorted(units)), default=minimum.units)
    if best == minimum.units:
        return minimum
    why = f"the fastest of {len(measured)} sets that pass ({measured[best]:.3f} ms), not the one with the fewest nodes"
    return Minimum(best, proven=False, why=why, steps=minimum.steps)
