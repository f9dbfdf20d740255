"""``diagnose``, ``reduce``, ``precision``, ``cause`` and ``layerwise``: what searches for the place where a target goes wrong.

Each imports its own workflow only: all of them together take a tenth of a second, which a quick search would wait for.
"""

from __future__ import annotations

from pathlib import Path

from bisect_trt.cli.arguments import invocation
from bisect_trt.cli.jobs import open_search, open_target_job
from bisect_trt.errors import UsageError
from bisect_trt.options.compare import Compare
from bisect_trt.options.given import Given
from bisect_trt.options.searches import (
    Cause,
    Diagnose,
    Layerwise,
    Precision,
    Reduce,
    Releases,
    Repeat,
    Samples,
    Sweep,
    Workaround,
)
from bisect_trt.options.shared import Check, Data, Search
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.workflows.from_options import (
    case_of,
    layerwise_settings,
    releases_settings,
    repeat_settings,
    search_settings,
    target_check,
)
from bisect_trt.workflows.settings import ReduceSettings


def diagnose(given: Given, console: Console, result: Result) -> Result:
    """Find out why the target is wrong."""
    from bisect_trt.workflows.diagnose import DiagnoseSettings  # noqa: PLC0415 - see above

    own = given[Diagnose]
    checks = target_check(given[Compare], given[Target].required(), own.timeout)
    folder = own.output or Path(f"{own.model.stem.lstrip('-')}-reproducer".lstrip("-"))
    search, overwrite = search_settings(given[Search]), own.overwrite or invocation.resumed is not None
    settings = DiagnoseSettings.of(own, checks, search, folder, overwrite=overwrite)
    job = open_target_job(own.model, given, console, result, annotation=own.annotate, confidence=search.confidence)
    return job.diagnose_itself(checks) if own.self_check else job.diagnose(settings)


def workaround(given: Given, console: Console, result: Result) -> Result:
    """Find what makes the whole model pass."""
    from bisect_trt.workflows.workaround.workaround import WorkaroundSettings  # noqa: PLC0415 - see above

    own = given[Workaround]
    checks = target_check(given[Compare], given[Target].required(), own.timeout)
    settings = WorkaroundSettings(checks, own.output, own.fresh_samples)
    if invocation.resumed is None:
        settings.check_output(overwrite=own.overwrite)
    return open_target_job(own.model, given, console, result).workaround(settings, search_settings(given[Search]))


def reduce(given: Given, console: Console, result: Result) -> Result:
    """Find the smallest model that still fails."""
    from bisect_trt.workflows.reduce import check_outputs  # noqa: PLC0415 - see above

    own = given[Reduce]
    if not (own.reduce_inputs or own.reduce_outputs):
        raise UsageError("--no-reduce-inputs and --no-reduce-outputs together leave nothing to reduce; drop one.")
    if own.find_all and not (own.reduce_inputs and own.reduce_outputs):
        raise UsageError(
            "--all takes what failed out of the model, so both its ends must be free to move; drop one option."
        )
    settings = ReduceSettings.of(own, own.output)
    if invocation.resumed is None:
        check_outputs(settings)
    job, checks = open_search(own.model, given, given[Target].settings(), console, result, own.annotate, scored=True)
    return job.reduce(settings, checks, search_settings(given[Search]))


def precision(given: Given, console: Console, result: Result) -> Result:
    """Find the fewest nodes that have to stay in fp32."""
    from bisect_trt.workflows.precision.task import PrecisionSettings  # noqa: PLC0415 - see above
    from bisect_trt.workflows.precision.wanted import low_precision, precision_files  # noqa: PLC0415 - see above

    own = given[Precision]
    low, runtime = low_precision(given[Target], own)
    own.refuse_ends(low[0])
    settings = PrecisionSettings.of(own, own.output, low, runtime)
    if invocation.resumed is None:
        settings.check_output()
    job, checks = open_search(
        own.model, given, runtime, console, result, own.annotate, precision_files(own), scored=True
    )
    return job.precision(settings, checks, search_settings(given[Search]))


def cause(given: Given, console: Console, result: Result) -> Result:
    """Find which switches of the target make it pass."""
    own, runtime = given[Cause], given[Target].required()
    job, checks = open_search(own.model, given, runtime, console, result, own.annotate)
    return job.cause(checks, search_settings(given[Search]))


def releases(given: Given, console: Console, result: Result) -> Result:
    """Find the release in which a failure appeared."""
    own, runtime = given[Releases], given[Target].settings()
    settings = releases_settings(own, runtime, given[Search], has_check=bool(given[Check].check))
    model, inputs = case_of(own.model)
    given = given.but(on=(), mixed_places=False)  # each release is a place of its own
    if not (given[Data].load_inputs or given[Data].data_loader_script):
        given = given.but(load_inputs=inputs)
    job, checks = open_search(model, given, runtime, console, result, None)
    return job.releases(settings, checks, search_settings(given[Search]))


def repeat(given: Given, console: Console, result: Result) -> Result:
    """Build or run a model again and again."""
    own, runtime = given[Repeat], given[Target].settings()
    settings = repeat_settings(own, given[Search], given[Check])
    job, checks = open_search(own.model, given, runtime, console, result, None)
    return job.repeat(settings, checks, search_settings(given[Search]))


def samples(given: Given, console: Console, result: Result) -> Result:
    """Find which of many inputs fail, and the smallest of them."""
    from bisect_trt.workflows.samples.samples import SamplesSettings  # noqa: PLC0415 - see above

    own = given[Samples]
    job, checks = open_search(own.model, given, given[Target].settings(), console, result, None)
    settings = SamplesSettings(checks, own.output)
    if invocation.resumed is None:
        settings.check_output(overwrite=own.overwrite)
    return job.samples(settings, search_settings(given[Search]))


def sweep(given: Given, console: Console, result: Result) -> Result:
    """Find the sizes at which the target goes wrong."""
    from bisect_trt.workflows.sweep.dimensions import SweepSettings  # noqa: PLC0415 - see above

    own = given[Sweep]
    job, checks = open_search(own.model, given, given[Target].settings(), console, result, None)
    return job.sweep(SweepSettings(checks, tuple(own.shapes), own.tries), search_settings(given[Search]))


def layerwise(given: Given, console: Console, result: Result) -> Result:
    """Compare every tensor on the target with the reference's."""
    own = given[Layerwise]
    settings = layerwise_settings(own, given[Compare], given[Target].required())
    job = open_target_job(own.model, given, console, result, annotation=own.annotate, confidence=Search().confidence)
    return job.layerwise(settings)
