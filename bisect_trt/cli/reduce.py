"""``bisect-trt reduce``."""

from __future__ import annotations

from bisect_trt.cli.invocation import invocation
from bisect_trt.cli.sessions import open_search
from bisect_trt.errors import UsageError
from bisect_trt.options.given import Given
from bisect_trt.options.search import Search
from bisect_trt.options.searches import Reduce
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.workflows.from_options import search_settings
from bisect_trt.workflows.reduce import check_outputs
from bisect_trt.workflows.settings import ReduceSettings


def reduce(given: Given, console: Console, result: Result) -> Result:
    """Find the smallest model that still fails."""
    own = given[Reduce]
    if not (own.reduce_inputs or own.reduce_outputs):
        raise UsageError("--no-reduce-inputs and --no-reduce-outputs together leave nothing to reduce; drop one.")
    if own.find_all and not (own.reduce_inputs and own.reduce_outputs):
        raise UsageError(
            "--all takes what failed out of the model, so both its ends must be free to move; drop one option."
        )
    settings = ReduceSettings(
        own.output, own.min_good, own.reduce_inputs, own.reduce_outputs, own.mode, own.overwrite, own.find_all
    )
    if invocation.resumed is None:
        check_outputs(settings)
    session, checks = open_search(own.model, given, given[Target].settings(), console, result, own.annotate)
    return session.reduce(settings, checks, search_settings(given[Search]))
