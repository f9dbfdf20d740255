"""The fewest quantized groups that have to go back to floats for the rest to stay in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.fresh_check import SEVERE
from bisect_trt.probing.journal import Record
from bisect_trt.probing.luck import look_again
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.result import Result
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Search, Subset, Verdict, about_units
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.bits.bits_said import Told, fill_in_bits, fill_in_looked_at
from bisect_trt.workflows.bits.case import FEW, Case, suspected
from bisect_trt.workflows.bits.contradicted import CONTRADICTED
from bisect_trt.workflows.bits.ladder import climb_ladder
from bisect_trt.workflows.bits.odd_weights import suspicions
from bisect_trt.workflows.bits.refit import try_refit
from bisect_trt.workflows.bits.sensitivity import Errors, Sensitivity, measure_sensitivity
from bisect_trt.workflows.bits.telling import tell_bits, tell_misfits, tell_suspicions, untouched
from bisect_trt.workflows.bits.yardstick import TIMES, WAYS, mean_errors, run_files, tolerance_is_own
from bisect_trt.workflows.investigation import saving_best
from bisect_trt.workflows.precision.delivery import best_keep, checkable
from bisect_trt.workflows.precision.precision import measure_lowered
from bisect_trt.workflows.precision.rounds import Fresh, Round, refuse_validation
from bisect_trt.workflows.precision.search import untried
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.precision.telling import checker_problem
from bisect_trt.workflows.precision.uses import try_uses
from bisect_trt.workflows.precision.validation import Validation, hold_against, validated
from bisect_trt.workflows.scale import measure_whole
from bisect_trt.workflows.settings import SearchSettings

CLEAR = 3.0
"""A scale that costs so many bits more than usual is wrong, whatever comes of it on the samples here."""


_ROUNDS = 3


def find_bits(task: Task, case: Case, search: SearchSettings, given: ToleranceOptions) -> Result:
    """See that quantization is the reason, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The model fails in floats too, or passes quantized.
        UsageError: Validation data does not fit the model, or there is nothing to compare on it.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    task.result.extra |= {"keep_fp32": [], "minimal": [], "groups": [], "latency_ms": None}
    refuse_validation(task)
    with saving_best(lambda: _save_best(task, case)):
        return task.until_done(lambda: _find(task, case, search, given))


def _find(task: Task, case: Case, search: SearchSettings, given: ToleranceOptions) -> Result:
    console, lowering = task.console, case.lowering
    ranking = suspected(case)
    what = f"{'/'.join(task.settings.bits)} ({len(lowering.units)} quantized groups)"
    console.step(f"Which scales and zero points do not fit the values? {what}")
    if case.plain.why is not None:
        console.warn(case.plain.why)
    for sentence in untouched(task.subject, case):
        console.warn(sentence)
    tell_misfits(case.lowering.groups, case.misfits, ranking, console)
    task.result.extra["suspected_weights"] = suspicions([group.name for group in lowering.groups], case.misfits)
    tell_suspicions(task.result.extra["suspected_weights"], console)
    fill_in_looked_at(task, case, ranking)
    if case.yardstick is not None and tolerance_is_own(given) and isinstance(task.prober.runner.check, BuiltinCheck):
        console.say(f"  allowed: {case.yardstick.describe()}")
    console.step(f"Probe all {len(lowering.units)} groups in floats, then all quantized, then search for the fewest")
    if search.repeat is not None:
        measure_lowered(task, search)
    minimum = _search(task, case, ranking)
    task.result.extra["probes_minimal"] = len(task.prober.ledger.records)
    for step in minimum.steps:
        console.say(f"  {step}")
    errors = sensitivity = None
    check = task.prober.runner.check
    if isinstance(check, BuiltinCheck):
        errors = Errors(task.subject, check.tolerance)
        if task.settings.sensitivity:
            console.step("What does each group cost, alone?")
            sensitivity = measure_sensitivity(errors, lowering)
    kept, validation, why = _hold(task, case, minimum, sensitivity)
    doubted = any(each["rule"] == CONTRADICTED for each in task.result.extra["suspected_weights"])
    refit = None if doubted or task.not_run is not None else try_refit(task, case.misfits, minimum.units)
    told = Told(minimum, kept, ranking, case, sensitivity, errors, validation, why, refit)
    if task.settings.rungs:
        told = replace(told, ladder=climb_ladder(task, case, kept))
    return _deliver(task, case, told)


def _search(task: Task, case: Case, ranking: Sequence[int]) -> Minimum:
    units = task.lowering.units
    everything, nothing = frozenset(units), frozenset[int]()
    wanted = (
        task.settings
    )  # with all of it quantized, other nodes still have a rung to find, or groups are slower there
    ladder = wanted.half is not None or (bool(wanted.rungs) and wanted.measures_latency)

    def story(oracle: Oracle) -> Minimum | Subset:
        """The answer, or the set of groups about which the check did not say what it should have."""
        ask = about_units(oracle)
        if ask(everything) is not Verdict.PASS:
            return everything
        if (quantized := ask(nothing)) is not Verdict.FAIL:
            return Minimum(nothing, proven=True) if ladder and quantized is Verdict.PASS else nothing
        minimum = find_keep(units, ask, suspects=ranking)
        return confirm_enough(minimum, oracle, task.prober.runner.flakiness) if task.prober.measured else minimum

    answer = task.prober.search(Search(Verdict.PASS, story), task.lowering.candidate)
    if isinstance(answer, Minimum):
        return answer
    raise _refusal(task, case, answer)


def _refusal(task: Task, case: Case, asked: Subset) -> DoesNotReproduce:
    """Why quantization is not what is wrong with the model."""
    key, count = task.lowering.candidate(asked).key, len(task.lowering.units)
    record = next(record for record in task.prober.ledger.records if record.key == key)
    how = "in floats" if asked else "quantized"
    odd = task.result.extra["suspected_weights"]
    if record.verdict is Verdict.UNRESOLVED:
        return DoesNotReproduce(
            f"the check cannot judge the model with all {count} groups {how}: {record.reason}. So nothing can be learned "
            "from it; mend the check first."
        )
    if asked:
        others = len(case.quantized.groups) - count
        more = f" {others} groups of other types stay quantized: name these too." if others else ""
        return DoesNotReproduce(
            f"the check fails with all {count} groups in floats too: {record.reason}. So quantization is not the reason, or "
            f"not the only one; `bisect-trt diagnose` finds what fails there.{more}"
        )
    before = () if task.settings.float_model is not None else ("the model from before quantization (--reference)",)
    return DoesNotReproduce(
        f"the check passes with all {count} groups quantized: {record.reason}. So no group has to go back to floats; try "
        + untried(task, *before)
        + (" Scales that do not fit, but cost less than is allowed, are named above." if suspected(case) else "")
        + (
            " Stored weights that look odd, which only --reference can show to be wrong, are named above."
            if odd
            else ""
        )
    )


def _hold(
    task: Task, case: Case, minimum: Minimum, sensitivity: Sensitivity | None
) -> tuple[Subset, Validation | None, str | None]:
    """Grow the minimal set until it holds on samples that the search has not seen."""
    if not isinstance(task.prober.runner.check, BuiltinCheck):
        if isinstance(task.prober.runner.check, MetricCheck):
            return minimum.units, None, "the metric is of a whole set, on which the answer is measured"
        return minimum.units, None, "what a check of yours says of other inputs is for it to say"
    kept, fresh = _with_clear(task, case, minimum.units), Fresh(task, WAYS)
    if fresh.why_none is not None:
        return kept, None, fresh.why_none
    task.console.step("Does it hold on other inputs?")
    task.console.say(f"  fresh samples: {fresh.drawn}")
    held, learned = None, 0
    for number in range(_ROUNDS):
        samples = fresh.round(number)
        if samples is None:
            return kept, None, "the reference does not run on other inputs"
        outcome = hold_against(task, kept, samples, f"{len(samples.files)} fresh samples")
        if not outcome.errors:
            return kept, None, f"they cannot be compared: {outcome.reason}"
        outcome = replace(outcome, errors=_usual(task, case, samples, outcome.errors))
        held = validated(outcome, fresh, learned)
        failing = [place for place, error in enumerate(outcome.errors) if error > 1]
        if len(failing) <= len(outcome.errors) * FEW and max(outcome.errors) <= SEVERE:
            break
        worst = sorted(failing, key=lambda place: -outcome.errors[place])[:16]
        for units in _larger(case, kept, sensitivity):
            some = samples.only(worst)
            errors = hold_against(task, units, some, f"{len(worst)} that failed").errors
            if errors and max(_usual(task, case, some, errors)) <= 1:
                kept, learned = units, learned + len(worst) if fresh.given else 0
                break
        else:
            break
    return kept, held, None


def _usual(task: Task, case: Case, samples: Round, errors: Sequence[float]) -> tuple[float, ...]:
    """The errors on some samples, less what each is harder than those of the search: by what scales that fit make of it."""
    yardstick = case.yardstick
    if yardstick is None or not tolerance_is_own(task.settings.tolerance):
        return tuple(errors)
    made = run_files(task.subject, "fitted-fresh", yardstick.model, [each.inputs for each in samples.files])
    if made is None:
        return tuple(errors)
    harder = []
    for each, seen in zip(samples.files, made, strict=True):
        found = mean_errors(load_npz(each.golden), seen)
        harder.append(max((TIMES * error / yardstick.allowed(name) for name, error in found.items()), default=1.0))
    return tuple(error / max(hard, 1.0) for error, hard in zip(errors, harder, strict=True))


def _with_clear(task: Task, case: Case, units: Subset) -> Subset:
    """With what does no harm here, but is so far off that it will on other inputs; as it was if that does not pass."""
    more = units | frozenset(suspected(case, CLEAR))
    if more == units or task.prober.probe(task.lowering.candidate(more)).verdict is Verdict.PASS:
        return more
    return units


def _larger(case: Case, kept: Subset, sensitivity: Sensitivity | None) -> list[Subset]:
    """Ever larger sets: the groups that fit worst, or cost most alone."""
    costs = {unit: max((each.bits_lost for each in case.misfits[unit]), default=0.0) for unit in case.lowering.units}
    if sensitivity is not None:
        costs = {unit: sensitivity.quantized[unit] or 0.0 for unit in case.lowering.units}
    order = [unit for unit in sorted(costs, key=lambda unit: (-costs[unit], unit)) if unit not in kept]
    return [kept | frozenset(order[:size]) for size in (1, 2, 4, 8, 16) if size <= max(len(order) // 2, 1)]


def _deliver(task: Task, case: Case, told: Told) -> Result:
    """Write the answer, read it back, and probe what was read."""
    task.console.step("Written and read back: does it pass?")
    output, minimum, climb = task.settings.output, told.minimum, None if told.ladder is None else told.ladder.climb
    last, kept = (task, told.kept) if climb is None else (climb.task, climb.answer.units)
    if climb is None and told.ladder is not None and told.ladder.groups != kept:
        kept = told.ladder.groups
        told = _held_with(task, case, replace(told, kept=kept), task, kept)
    record, minimum = _written(last, kept, output, minimum)
    if climb is not None:
        minimum = _on_all_rungs(minimum, climb.answer.minimum)
        told = _held_with(task, case, told, climb.task, climb.answer.units)
    task.result.artifacts["mixed"] = str(output)
    if task.settings.minimal_output is not None:
        path = task.settings.minimal_output
        units = told.minimum.units if climb is None else climb.answer.minimum.units
        _, minimum = _written(last, units, path, minimum)
        task.result.artifacts["minimal"] = str(path)
    measure_whole(task, last.lowering.read_back(kept, output))
    fill_in_bits(task, replace(told, minimum=replace(told.minimum, proven=minimum.proven)), task.outcome(record))
    if climb is not None:
        task.result.extra["uses"] = [vars(use) for use in try_uses(climb.task, kept, record)]
    task.conclude(minimum)
    tell_bits(task, told)
    return task.result


def _written(task: Task, units: Subset, path: Path, minimum: Minimum) -> tuple[Record, Minimum]:
    """Write a set, read it back and probe it; the minimum, unproven if that does not pass."""
    task.lowering.write(units, path)
    candidate = replace(task.lowering.read_back(units, path), title=f"{path.name}, read back")
    believed = look_again(task.prober, task.lowering.candidate(frozenset()), candidate)
    record = believed.record
    task.console.say(f"  {believed.seen or record.reason}")
    problem = checker_problem(checkable(task.subject), path) if task.lowering.writes_model(path) else None
    if record.verdict is not Verdict.PASS:
        return record, replace(minimum, proven=False, why=f"the final re-check of {path} disagreed: {record.reason}")
    if problem is not None:
        return record, replace(minimum, proven=False, why=f"ONNX's checker refuses {path}: {problem}")
    return record, minimum


def _on_all_rungs(groups: Minimum, nodes: Minimum) -> Minimum:
    """Both rungs' proofs in one."""
    if groups.proven and not nodes.proven:
        return replace(groups, proven=False, why=nodes.why)
    return replace(groups, why=groups.why or nodes.why)


def _held_with(task: Task, case: Case, told: Told, last: Task, units: Subset) -> Told:
    """How the answer of the last rung does on fresh samples, with all below."""
    fresh = Fresh(task, WAYS, skip=_ROUNDS * task.settings.fresh_samples)
    samples = None if told.validation is None else fresh.round(_ROUNDS)
    if samples is None:
        return told
    outcome = hold_against(last, units, samples, f"{len(samples.files)} fresh samples")
    if not outcome.errors:
        return replace(told, validation=None, why=f"they cannot be compared: {outcome.reason}")
    outcome = replace(outcome, errors=_usual(task, case, samples, outcome.errors))
    return replace(told, validation=validated(outcome, fresh, 0))


def _save_best(task: Task, case: Case) -> None:
    task.tell_not_run()
    best = best_keep(task)
    if best is None:
        return
    case.lowering.write(best, task.settings.output)
    task.result.artifacts["mixed"] = str(task.settings.output)
    minimum = Minimum(best, proven=False, why="the search did not come to its end")
    told = Told(minimum, best, suspected(case), case, None, None, None, minimum.why, None)
    fill_in_bits(task, told, task.prober.ledger.outcome(task.lowering.candidate(best).key))
    task.console.answer(
        f"{task.settings.output}: the best so far, {len(best)} of {len(case.lowering.units)} groups in floats."
    )
