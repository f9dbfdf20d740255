"""``precision``: the fewest nodes, or Q/DQ groups, that have to stay in fp32 for the rest to run in low precision."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from bisect_trt.errors import (
    ConflictError,
    MissingOptionError,
    UnavailableError,
    UsageError,
    ValueRefusedError,
)
from bisect_trt.mixed_precision import groups
from bisect_trt.mixed_precision.answer import deliver, leave_best, tell, write_answer
from bisect_trt.mixed_precision.curve import Fix
from bisect_trt.mixed_precision.ladder import deliver_ladder
from bisect_trt.mixed_precision.lowering import calibrate, is_calibrated
from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes, with_peaked
from bisect_trt.mixed_precision.search import (
    BITS,
    PrecisionSettings,
    PrecisionSpace,
    Task,
    low_precision,
    precision_files,
    refusal,
    tell_suspects,
)
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Loop, Search
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.probe.workspace import RUNS_FOLDER
from bisect_trt.report.mixed import row_of, why_no_fix
from bisect_trt.report.parts import Validation
from bisect_trt.report.result import RESULT_FILE, Result, read_result
from bisect_trt.search.oracle import Minimum, Note
from bisect_trt.session.call import Call, OpenCall
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import saving_best
from bisect_trt.session.subject import Subject
from bisect_trt.targets.options import Target


def run(call: Call) -> Result:
    """Find the fewest nodes that have to stay in fp32."""
    options = call[PrecisionOptions]
    low, target = low_precision(call[Target], options)
    settings = PrecisionSettings(
        options, low[0], target, tuple(precision for precision in low if precision in BITS)
    )
    call.may_write(options.output, overwrite=options.overwrite)
    # A check command may judge TensorRT's engines; whether it does is seen when TensorRT is asked.
    check = call.check(target)
    if check.limits is not None and check.limits.slower_than is not None:
        raise ConflictError(
            "--slower-than compares each candidate of `precision` with itself; use --latency-limit."
        )
    if check.limits is not None and settings.emulated and not settings.bits:
        raise ConflictError(
            f"{settings.low} is emulated on this target, so its time and memory are not measured; drop the limit."
        )
    if settings.bits and call[Loop].steps and check.metric is None and options.reference is None:
        raise MissingOptionError(
            f"--steps beside {settings.low}: the reference is the quantized model, so no step is wrong; add --metric."
        )
    opened = call.open(check, precision_files(options))
    if settings.bits:
        return _search_groups(opened, settings, check)
    with opened.subject(check.timeout, settings.target) as subject:
        if target is not None:
            by_layer = target.target.compiles and subject.about(target) == "layer"
            settings = structs.replace(settings, by_layer=by_layer)
            check = replace(check, by_layer=by_layer)
            if check.argv and not by_layer:
                # The search itself lowers to these.
                # The command judges models.
                check = replace(check, target=replace(target, fp16=False, bf16=False))
                settings = structs.replace(settings, target=None)
                check = check.without_target(call.console)
        return _search_nodes(opened, subject, settings, check)


def _search_nodes(
    opened: OpenCall, subject: Subject, settings: PrecisionSettings, check: CheckSettings
) -> Result:
    """The search among nodes, once it is known what lowers them."""
    check = replace(check, tolerance=with_peaked(check.tolerance, subject.network))
    settings = structs.replace(settings, tolerance=check.tolerance)
    nodes = make_nodes(subject, settings)
    if settings.calibrated:
        check = replace(check, target=settings.target, by_layer=True)
    return _search(
        opened, subject, settings, built_in_check(check, subject, settings.precision), nodes
    )


def _search_groups(opened: OpenCall, settings: PrecisionSettings, check: CheckSettings) -> Result:
    """The search among the Q/DQ groups of a quantized model; see :mod:`bisect_trt.mixed_precision.groups`."""
    call = opened.call
    model = groups.with_samples(opened.model)
    # A cache that is quantized is a group too.
    model = structs.replace(model, float_ends=call[Loop].steps is not None)
    opened = structs.replace(opened, model=model)
    with opened.subject(check.timeout, settings.target) as subject:
        if is_calibrated(subject, settings):
            return _search_nodes(opened, subject, calibrate(subject, settings), check)
        if check.argv and check.target is not None:
            settings = structs.replace(settings, target=None)
            check = check.without_target(call.console)
        if settings.target is not None:
            target, reason = groups.runs_or_emulated(
                subject, groups.typed_by_graph(subject, settings.target)
            )
            if reason is not None:
                call.console.warn(reason)
            call.result.emulated = reason
            settings = structs.replace(settings, target=target)
            check = replace(check, target=target)
        settings = structs.replace(settings, tolerance=check.tolerance)
        # This goes before the reference runs, which is of the model in floats.
        space = groups.GroupSpace(subject, settings)
        tolerance = groups.tolerance_of(subject, check.tolerance, settings.bits)
        tolerance.check_names(subject.network.outputs)
        check = replace(check, tolerance=tolerance, timed=settings.compiles)
        return _search(opened, subject, settings, check, space)


def _search(
    opened: OpenCall,
    subject: Subject,
    settings: PrecisionSettings,
    check: CheckSettings,
    space: PrecisionSpace,
) -> Result:
    call = opened.call
    with opened.searching(check, subject, settings.target) as session:
        return find_precision(
            Task(subject, call.console, call.result, session.prober, space, settings), call[Search]
        )


def find_precision(task: Task, search: Search) -> Result:
    """See that precision is the reason, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The model fails in floats too, or passes lowered.
        UsageError: Validation data does not fit the model, or there is nothing to compare on it.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    task.result.keep_fp32 = []
    task.result.minimal = []
    task.result.latency_ms = None
    fix = Fix(task)
    options = task.settings.options
    if (options.keep_set, options.fail_share, options.error) != (None, None, None):
        return _write_set(fix, options)
    try:
        with saving_best(lambda: leave_best(fix)):
            return task.until_done(lambda: _find(fix, search))
    except UsageError:
        # What was found cannot be written.
        leave_best(fix)
        raise


def _find(fix: Fix, search: Search) -> Result:
    task = fix.task
    space = task.space
    low = task.settings.low
    console = task.console
    count = space.count(len(task.lowering.units))
    nothing = frozenset[int]()
    if task.settings.bits or not task.cheap:
        console.step(f"Which of {count} are likely to fail in {low}, by the reference run?")
        tell_suspects(task)
    for sentence in space.notes():
        console.warn(sentence)
    space.fill_in(task.result, nothing, nothing)
    console.step(f"Keep the fewest of {count} in {space.high}")
    if search.repeat is not None:
        try:
            task.probe_original(search, task.lowering.candidate(nothing))
        except DoesNotReproduce:
            raise refusal(task, nothing) from None
    # A quantized model that passes needs nothing; a float one is still to be lowered. A command that
    # passes says that the failure is not there.
    check = task.prober.check
    judged = check.metric is not None or check.tolerances is not None
    lowers_all = not task.settings.bits and judged
    fix.search(nothing_may_pass=lowers_all or bool(task.settings.bits and task.settings.half))
    return deliver_ladder(fix) if task.settings.rungs else deliver(fix)


def _fits(point: Validation, options: PrecisionOptions) -> bool:
    """Return whether a set of the curve is what the options select."""
    failing = 1 - point.passed / point.samples
    worst = math.inf if point.worst_error is None else float(point.worst_error)
    return (
        options.keep_set in (None, point.nodes)
        and (options.fail_share is None or failing <= options.fail_share)
        and (options.error is None or worst <= options.error)
    )


def _write_set(fix: Fix, options: PrecisionOptions) -> Result:
    """Write the smallest set of the last run's curve that the options select, and probe it.

    Raises:
        UsageError: No run of this model has a curve, or its curve has no such set.
    """
    task, space = fix.task, fix.task.space
    last = _last_curve(task)
    curve = last.curve or []
    chosen = next((point for point in curve if _fits(point, options)), None)
    if chosen is None:
        sets = "; ".join(f"{point.nodes} ({row_of(point)})" for point in curve)
        raise ValueRefusedError(
            f"--keep-set, --fail-share and --error: no set of the last run's curve fits. It has, by {space.noun}s: {sets}."
        )
    needed = [node.outputs for node in last.minimal or ()]
    units = frozenset(chosen.keep)
    minimal = frozenset(
        unit for unit in units if space.describe(frozenset({unit}))[0].outputs in needed
    )
    proven = bool(last.minimal_proven)
    fix.minimum = Minimum(minimal, proven=proven)
    if not proven:
        # The reason of the last run is about the set that it wrote.
        fix.minimum = fix.minimum.unproven(Note.EARLIER_RUN)
    fix.why = None
    fix.keep(units)
    minimum = write_answer(fix)
    task.result.curve = [structs.replace(point, recommended=point is chosen) for point in curve]
    task.result.validation = structs.replace(chosen, recommended=True)
    if fix.is_large(units) and not task.settings.bits:
        task.result.large = True
    # As of a set that is searched: who picks a set that does not hold is told so.
    why = why_no_fix(task.result, space.high, None, chosen)
    task.conclude(minimum if why is None else minimum.unproven(Note.NO_FIX, why))
    task.result.culprits = space.culprits(units)
    tell(task)
    return task.result


def _last_curve(task: Task) -> Result:
    """The result of the last run that searched this model for this precision.

    Raises:
        UsageError: There is none.
    """
    files = sorted(
        Path(RUNS_FOLDER).glob(f"*/{RESULT_FILE}"),
        key=lambda file: file.stat().st_mtime_ns,
        reverse=True,
    )
    wanted = ("precision", task.result.model.sha256, task.settings.low)
    for file in files:
        try:
            last = read_result(file)
        # A run that was killed, or of another version, has no curve to offer.
        except UnavailableError:
            continue
        if (last.command, last.model.sha256, last.precision) == wanted and last.curve:
            return last
    raise ValueRefusedError(
        f"--keep-set: no run under {RUNS_FOLDER} has a curve for this model in {task.settings.low}; run the same command "
        "without it."
    )
