"""``run``, ``layerwise`` and ``diagnose`` with ``--metric``: score whole sets, and find the layers that cost the metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.commands.compare import CompareSettings
from bisect_trt.commands.compare_saved import same_outputs, saved_runs
from bisect_trt.commands.metric import make_scale, measure_whole, scale_of
from bisect_trt.commands.metric_reproducer import leave_metric
from bisect_trt.commands.next_steps import advised
from bisect_trt.commands.reduce import deliver, find_minimum, smallest
from bisect_trt.commands.reproducer import NEUTRAL, make_folder
from bisect_trt.commands.session import Case, Session, saving_best
from bisect_trt.commands.settings import MetricSettings, ReduceSettings, SearchSettings
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.mixed_precision.precision import MIXED, find_fix
from bisect_trt.options.run import RunOptions
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck, Scale
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.console import Console
from bisect_trt.report.reproducer import MODEL, pack
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Oracle, Subset, about_units
from bisect_trt.search.strategy import shortest_failing_prefix
from bisect_trt.tensors.inputs import given_labels
from bisect_trt.tensors.metrics import Evaluation
from bisect_trt.tensors.saved import SavedRun, Selected, load_runs, same_samples
from bisect_trt.worker.guard import scratch
from bisect_trt.worker.protocol import Failed, Measure, Measured
from bisect_trt.worker.sessions import measure

if TYPE_CHECKING:
    from bisect_trt.commands.diagnose import DiagnoseSettings


def refuse_beside_metric(options: RunOptions) -> None:
    """Refuse options of ``run`` that are about single outputs.

    Raises:
        UsageError: One was given.
    """
    given = {
        "--save-outputs": options.save_outputs,
        "--save-inputs": options.save_inputs,
        "--onnx-outputs": options.onnx_outputs or options.mark_all,
        "--onnx-exclude-outputs": options.onnx_exclude_outputs,
        "--save-onnx": options.save_onnx,
        "--self-check": options.self_check,
        "--fail-fast": options.fail_fast,
        "--check-average": options.check_average,
    }
    if beside := next((name for name, wanted in given.items() if wanted), None):
        raise UsageError(
            f"--metric scores all outputs on a whole set of samples; {beside} has no part in that: drop it."
        )


def score(session: Session, settings: CompareSettings, metric: MetricSettings) -> Result:
    """Score every target on the whole set.

    Raises:
        UsageError: A sample does not fit the model, saved outputs do not fit the set, or the metric does not fit
            the outputs or labels.
        UnavailableError: The reference or a target cannot run the model.
    """
    subject, console, result = session.subject, session.console, session.result
    model = subject.models.write("measured", subject.network.proto)
    references: list[SavedRun | None] = [run for path in settings.load_outputs for run in load_runs(path)]
    for saved in references or [None]:
        scale = make_scale(subject, metric, saved)
        against = "" if saved is None else f" against {saved.name}"
        for each in settings.each():
            console.step(f"{each.target.describe()}{against}, on all {scale.data.count} samples")
            request = Measure(each.target, model, scale.scoring(0.0), warm_up=each.warm_up)
            measured = subject.models.ask(request, settings.timeout)
            if isinstance(measured, Failed):
                raise UnavailableError(f"the target cannot run {subject.settings.path}: {measured.message}.")
            _tell(scale, measured, each.target.describe(), saved, console, result)
    return _conclude(result)


def score_saved(paths: Sequence[Path], metric: MetricSettings, console: Console, result: Result) -> Result:
    """Score each saved run on the whole set, with the last one for the reference.

    Labels come from the same options as samples; the inputs among these are ignored.

    Raises:
        UsageError: There are not two runs, they or the labels do not fit each other, or the metric does not fit them.
    """
    runs, right = saved_runs(paths)
    count = len(right.samples)
    none: list[Any] = [None] * count
    labels = list(islice(given_labels(metric.data), count + 1)) or none
    if len(labels) != count:
        gives = f"more than {count}" if len(labels) > count else len(labels)
        raise UsageError(
            f"{right.name} holds {count} sample(s) and there are labels for {gives}; give those of the samples that were saved "
            "(--iterations)."
        )
    for run in runs:
        same_samples(run, count, f"{right.name} holds")
        names = same_outputs(run.name, run.samples[0], list(right.samples[0]), console)
        with scratch() as folder:
            # A target that returns its inputs: then all is done as for a live one.
            data = Evaluation.write(Path(folder), zip(run.samples, labels, strict=True), metric.data.seed)
            data.write_golden(
                Selected(sample, same_outputs(right.name, sample, names, console)) for sample in right.samples
            )
            scale = scale_of(data, metric, console, right.name)
            console.step(f"{run.name} against {right.name}, on all {count} samples")
            _tell(scale, measure(lambda outputs: outputs, scale.scoring(0.0)), run.name, right, console, result)
    return _conclude(result)


def _tell(
    scale: Scale, measured: Measured, name: str, saved: SavedRun | None, console: Console, result: Result
) -> None:
    """Print the score of one target, and put it into the result."""
    found = scale.to_json(measured)
    result.extra.setdefault("targets", []).append({"name": name, "latency_ms": measured.latency_ms, "metric": found})
    result.extra.setdefault("metric", found)
    against, equal = ("the reference", "the reference's") if saved is None else (saved.name, f"as {saved.name}")
    lost = measured.value - scale.reference
    change = f" ({lost:+.4g}{scale.metric.unit} against {against})" if lost else f" ({equal})"
    if math.isnan(lost):
        change = f" ({equal})" if measured.value == scale.reference else ""
    console.answer(f"{scale.describe(measured)}{change}")


def _conclude(result: Result) -> Result:
    failed = any(target["metric"]["passed"] is False for target in result.extra["targets"])
    result.extra["comparisons"] = []
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    return result


def layerwise_scored(session: Session) -> Result:
    """Find up to which layer the target may compute before the metric is past its bound; the reference computes the rest.

    Raises:
        DoesNotReproduce: The whole model on the target is within the bound.
    """
    result, subject, console = session.result, session.subject, session.console
    console.step(f"How far may the target compute? ({len(subject.units)} units, the reference computes the rest)")
    session.probe_original(SearchSettings())
    unit, curve = find_drop(session)
    result.culprits = subject.describe_searched([unit])
    result.status, result.minimality = "found", "1-minimal"
    measure_whole(session, subject.original)
    result.extra["metric"]["layers"] = curve
    result.extra |= {"first_mismatch": None, "tensors": []}
    return result


def find_drop(session: Session) -> tuple[int, list[dict[str, Any]]]:
    """The last unit of the shortest prefix with which the metric is past its bound, as it is for the whole model.

    Returns:
        The unit; and what was measured, the shortest prefix first: how many units, the last of them, the metric, whether it
        is within its bound, and the samples that it took.
    """
    subject, prober = session.subject, session.prober
    units, keys = subject.units, {len(subject.units.searched): subject.original.key}

    def build(chosen: Subset) -> Candidate:
        candidate = subject.cut(units.with_weights(chosen))
        keys[len(chosen)] = candidate.key
        return candidate

    def story(oracle: Oracle) -> int:
        return shortest_failing_prefix(units.searched, frozenset(), about_units(oracle))

    length = prober.search_from(subject.original, story, build)
    asked, curve = {record.key for record in prober.ledger.records}, []
    for count, key in sorted(keys.items()):
        outcome = prober.ledger.outcome(key)
        # What was probed ahead of time was not asked for.
        if key not in asked or outcome is None or outcome.metric is None:
            continue
        node = subject.describe_searched([units.searched[count - 1]])
        seen = {name: outcome.metric[name] for name in ("candidate", "passed", "samples")}
        curve.append({"units": count, "node": node[0] if node else None, **seen})
    unit = units.searched[length - 1]
    _tell_drop(session, unit, curve)
    return unit, curve


def _tell_drop(session: Session, unit: int, curve: Sequence[Mapping[str, Any]]) -> None:
    network, check = session.subject.network, session.prober.runner.check
    assert isinstance(check, MetricCheck)
    metric = check.scale.metric
    for entry in curve:
        word, node = "within " if entry["passed"] else "too bad", entry["node"]
        name = "" if node is None else f", up to {node['op']} '{node['name'] or node['outputs'][0]}'"
        value = metric.say(float(entry["candidate"]))
        session.console.say(f"  {word} {metric.name} {value} with {entry['units']} units on the target{name}")
    session.console.answer(
        f"{metric.name} is past its bound once the target computes {network.describe(network.order[unit])} with all before "
        "it; with one unit less it is not."
    )


def diagnose_metric(session: Session, settings: DiagnoseSettings) -> Result:
    """Find why the metric drops on the target, and write the layers that cause it.

    A piece of a model has no metric without the rest of it and the whole set: the script that shows the drop runs all of it.

    Raises:
        DoesNotReproduce: The metric does not drop past its bound.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    console, subject, result, check = session.console, session.subject, session.result, settings.check
    console.step(f"1. Does the metric drop on the target ({len(subject.network.nodes)} nodes)?")
    try:
        record = session.probe_original(settings.search)
    except DoesNotReproduce as error:
        raise advised(error, subject, check) from error
    console.say(f"  yes: {record.reason}")
    make_folder(settings.output)
    reduced = ReduceSettings(settings.output / MODEL, overwrite=True)
    with saving_best(lambda: session.save_best(reduced.output)):
        console.step("2. How far may the target compute, with the reference for the rest?")
        unit, curve = find_drop(session)
        console.step("3. Extract a layer: not done, for a piece of the model has no metric")
        console.step(f"4. Which of its {len(subject.units)} units cost the metric, with the reference for all others?")
        case = Case(find_minimum(session, reduced.mode, unit))
        answer = smallest(session, reduced, settings.search, case)
        console.step(f"5. Deliver: leave them in {settings.output}")
        deliver(session, reduced, answer, case.minimum)
    measured = result.extra["metric"]
    measured["layers"] = curve
    find_fix(session, check, settings.search, answer, settings.output)
    fixed = result.extra["metric"]
    result.extra["metric"] = measured | ({} if fixed is measured else {"fixed": fixed["candidate"]})
    if settings.anonymous:
        console.warn("--anonymise: a set and what it scores cannot be renamed, so neither is left, nor a script")
        return result
    assert check.metric is not None
    assert check.target is not None
    files = leave_metric(session, check.metric, check.target, answer, settings.output)
    if settings.archive is not None:
        files += sorted({*settings.output.glob(f"{reduced.output.stem}.*"), *settings.output.glob(f"{MIXED}*")})
        pack(settings.output, files, settings.archive, NEUTRAL)
        result.artifacts["archive"] = str(settings.archive)
    return result
