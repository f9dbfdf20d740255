"""``precision``: the fewest nodes, or Q/DQ groups, that have to stay in fp32 for the rest to run in low precision."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.commands.call import Call
from bisect_trt.commands.preflight import lowers_by
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.mixed_precision import groups
from bisect_trt.mixed_precision.nodes import built_in_check, calibrate, is_calibrated, make_nodes
from bisect_trt.mixed_precision.parameters import BITS, PrecisionSettings, low_precision, precision_files
from bisect_trt.mixed_precision.precision import find_precision
from bisect_trt.mixed_precision.search import Task
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Search
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target


def run(call: Call) -> Result:
    """Find the fewest nodes that have to stay in fp32.

    Raises:
        UsageError: An option is wrong, or the model cannot be written.
        UnavailableError: The target or the reference cannot run the model.
    """
    own = call[PrecisionOptions]
    low, target = low_precision(call[Target], own)
    settings = PrecisionSettings(own, low[0], target, tuple(each for each in low if each in BITS))
    if not call.resumed:
        settings.check_output()
    # A check command may judge TensorRT's engines; whether it does is seen when TensorRT is asked.
    check = call.check(target)
    call.open(check, precision_files(own))
    if settings.bits:
        return _search_groups(call, settings, check)
    with call.subject(check.timeout, settings.target) as subject:
        if target is not None:
            by_layer = target.target.capabilities.lowers_layers and lowers_by(subject, target) == "layer"
            settings, check = replace(settings, by_layer=by_layer), replace(check, by_layer=by_layer)
            if check.argv and not by_layer:  # the command judges models
                check = replace(check, target=replace(target, fp16=False, bf16=False))  # the search lowers to these
                settings, check = replace(settings, target=None), check.without_target(call.console)
        return _search_nodes(call, subject, settings, check)


def _search_nodes(call: Call, subject: Subject, settings: PrecisionSettings, check: CheckSettings) -> Result:
    """The search among nodes, once it is known what lowers them."""
    settings = replace(settings, tolerance=check.tolerance)
    nodes = make_nodes(subject, settings)
    if settings.calibrated:
        check = replace(check, target=settings.target, by_layer=True)
    check = built_in_check(check, subject, settings.precision)
    with call.investigated(subject, check, settings.target) as session:
        return find_precision(Task(subject, call.console, call.result, session.prober, nodes, settings), call[Search])


def _search_groups(call: Call, settings: PrecisionSettings, check: CheckSettings) -> Result:
    """The search among the Q/DQ groups of a quantized model; see :mod:`bisect_trt.mixed_precision.groups`."""
    call.model = groups.with_samples(call.model)
    with call.subject(check.timeout, settings.target) as subject:
        if is_calibrated(subject, settings):
            return _search_nodes(call, subject, calibrate(subject, settings), check)
        if check.argv and check.target is not None:
            settings, check = replace(settings, target=None), check.without_target(call.console)
        if settings.target is not None:
            target, why = groups.runs_or_emulated(subject, groups.typed_by_graph(subject, settings.target))
            if why is not None:
                call.console.warn(why)
            call.result.extra["emulated"] = why
            settings, check = replace(settings, target=target), replace(check, target=target)
        settings = replace(settings, tolerance=check.tolerance)
        space = groups.GroupSpace(subject, settings)
        tolerance = groups.tolerance_of(subject, check.tolerance, settings.bits)
        tolerance.check_names(subject.network.outputs)
        timed = settings.target is not None and settings.target.target.capabilities.timed
        check = replace(check, tolerance=tolerance, timed=timed)
        with call.investigated(subject, check, settings.target) as session:
            return find_precision(
                Task(subject, call.console, call.result, session.prober, space, settings), call[Search]
            )
