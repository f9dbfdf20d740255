"""``bisect-trt precision``."""

from __future__ import annotations

from bisect_trt.cli.invocation import invocation
from bisect_trt.cli.sessions import open_search
from bisect_trt.options.given import Given
from bisect_trt.options.search import Search
from bisect_trt.options.searches import Precision
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.workflows.from_options import low_precision, search_settings, validation_files
from bisect_trt.workflows.precision.settings import PrecisionSettings


def precision(given: Given, console: Console, result: Result) -> Result:
    """Find the fewest nodes that have to stay in fp32."""
    own = given[Precision]
    low, runtime = low_precision(given[Target])
    own.refuse_ends(low)
    settings = PrecisionSettings(
        own.output,
        low,
        runtime,
        tuple(own.include),
        tuple(own.exclude),
        own.io_fp16,
        own.keep_weights,
        own.overwrite,
        minimise=own.minimise,
        fresh_samples=own.fresh_samples,
        validation_data=tuple(own.validation_data),
        minimal_output=own.minimal_output,
    )
    if invocation.resumed is None:
        settings.check_output()
    session, checks = open_search(
        own.model, given, runtime, console, result, own.annotate, validation_files(own.validation_data)
    )
    return session.precision(settings, checks, search_settings(given[Search]))
