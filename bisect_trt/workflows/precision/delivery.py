"""The answer of a search for precision: written, read back and probed; else the best so far."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from bisect_trt.probing.journal import Record
from bisect_trt.probing.prober import Prober
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.workflows.engine_layers import fp32_layers
from bisect_trt.workflows.precision.by_layer import engine_path
from bisect_trt.workflows.precision.lowering import Lowering
from bisect_trt.workflows.precision.ran import latencies, latency_of, ran_like
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
    """Write the mixed model, read it back, and probe what was read.

    Returns:
        The answer; unproven if what was written does not pass.
    """
    keep, minimum = answer.minimum.units, answer.minimum
    prober, lowering, output = task.prober, task.lowering, task.settings.output
    lowering.write(keep, output)
    record = prober.probe(lowering.read_back(keep, output), again=True)
    problem = checker_problem(checkable(task.subject), output) if lowering.writes_model(output) else None
    if record.verdict is not Verdict.PASS:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    elif problem is not None:
        minimum = replace(minimum, proven=False, why=f"ONNX's checker refuses {output}: {problem}")
    task.result.artifacts["mixed"] = str(output)
    fill_in(task, answer, task.outcome(record))
    add_measures(task, keep, record)
    return minimum


def add_measures(task: Task, keep: Subset, written: Record | None) -> None:
    """Put how long it runs, in what precision, and how it is used, into a result that has the answer.

    Args:
        task: The search.
        keep: The units in fp32.
        written: What was said of what was written; ``None`` if the search was ended before.
    """
    subject, settings, result = task.subject, task.settings, task.result
    uses = try_uses(task, keep, written)
    result.extra |= {"latency_ms": None, "ran_fp32": None, "ran_like": None, "uses": [vars(use) for use in uses]}
    if settings.target is None or not settings.target.target.capabilities.timed:
        return  # nothing was measured, and to look it up each candidate is made again
    result.extra["latency_ms"] = latencies(task, keep)
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
    fill_in(task, Answer(minimum, find_suspects(task)), outcome)
    add_measures(task, best, None)
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
