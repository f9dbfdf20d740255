"""``bisect-trt diagnose``."""

from __future__ import annotations

from pathlib import Path

from bisect_trt.cli.invocation import invocation
from bisect_trt.cli.sessions import open_target_session
from bisect_trt.options.compare import Compare
from bisect_trt.options.given import Given
from bisect_trt.options.search import Search
from bisect_trt.options.searches import Diagnose
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.workflows.diagnose import DiagnoseSettings
from bisect_trt.workflows.from_options import search_settings, tolerance_options
from bisect_trt.workflows.reproducer import check_folder
from bisect_trt.workflows.settings import CheckSettings


def diagnose(given: Given, console: Console, result: Result) -> Result:
    """Find out why the target is wrong."""
    own, compare = given[Diagnose], given[Compare]
    runtime = given[Target].required()
    compare.require_numbers()
    checks = CheckSettings(target=runtime, tolerance=tolerance_options(compare, runtime), timeout=own.timeout)
    folder = own.output or Path(f"{own.model.stem}-reproducer")
    packed = (folder if folder.name else folder.resolve()).with_suffix(f"{folder.suffix}.zip") if own.archive else None
    settings = DiagnoseSettings(checks, search_settings(given[Search]), folder, packed, own.anonymise, own.find_all)
    check_folder(settings.output, packed, overwrite=own.overwrite or invocation.resumed is not None)
    return open_target_session(own.model, given, console, result, annotation=own.annotate).diagnose(settings)
