"""The answer of a search for precision: written, read back and probed; else the best so far."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from bisect_trt.probing.journal import Record
from bisect_trt.probing.prober import Prober
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.search.verdict import Verdict
from bisect_trt.workflows.engine_layers import fp32_layers
from bisect_trt.workflows.precision.by_layer import engine_path
from bisect_trt.workflows.precision.lowering import Lowering
from bisect_trt.workflows.precision.ran import latencies, latency_of, ran_like
from bisect_trt.workflows.precision.safe import find_safe
from bisect_trt.workflows.precision.search import find_suspects
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.precision.telling import Answer, checker_problem, fill_in, tell_details
from bisect_trt.workflows.precision.uses import recommended, try_uses
from bisect_trt.workflows.subject import Subject


def checkable(subject: Subject) -> Path:
    """The original with its weights beside it, which is where the checker looks for them."""
    if subject.settings.external_data_dir is None:
        return subject.settings.path
    copy = subject.workspace.scratch(subject.settings.path.name)  # its weights lie in that folder
    shutil.copyfile(subject.settings.path, copy)
    return copy


def write_answer(task: Task, answer: Answer) -> Minimum:
    """Grow the answer to the safe set, write its model, read that back, and probe what was read.

    Returns:
        The answer; unproven if what was written does not pass.
    """
    task.result.extra["probes_minimal"] = len(task.prober.ledger.records)
    answer = replace(answer, safe=find_safe(task, answer.minimum, answer.suspects))
    keep, minimum = answer.units, answer.minimum
    prober, lowering, output = task.prober, task.lowering, task.settings.output
    lowering.write(keep, output)
    record = prober.probe(lowering.read_back(keep, output), again=True)
    problem = checker_problem(checkable(task.subject), output) if lowering.writes_model(output) else None
    if record.verdict is not Verdict.PASS:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    elif problem is not None:
        minimum = replace(minimum, proven=False, why=f"ONNX's checker refuses {output}: {problem}")
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


def save_best(task: Task) -> Subset | None:
    """Write the model with the fewest nodes in fp32 that was seen to pass so far, and say all that is known of it.

    Returns:
        Its units in fp32; ``None`` if there is none but all of them.
    """
    best = best_keep(task)
    if best is None:
        return None
    output = task.settings.output
    task.lowering.write(best, output)
    minimum = Minimum(best, proven=False, why="the search did not come to its end")
    task.result.artifacts["mixed"] = str(output)
    outcome = task.prober.ledger.outcome(task.lowering.candidate(best).key)
    answer = Answer(minimum, find_suspects(task))
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
