"""``run``: compare, or write a short Python program that does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from bisect_trt.cli.jobs import open_target_job
from bisect_trt.commands.compare import compare_settings, targets_to_run
from bisect_trt.commands.compare_saved import check_average, compare_saved
from bisect_trt.commands.from_options import data_options, metric_settings, model_settings, tolerance_options
from bisect_trt.commands.metric_commands import refuse_beside_metric, score_saved
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Drop, Metric
from bisect_trt.options.reading import TopK
from bisect_trt.options.run import MoreTargets, Run, RunOptions
from bisect_trt.options.shared import Data, Places, Plots
from bisect_trt.options.spec import Params, changed
from bisect_trt.report.console import Console
from bisect_trt.report.plots import check_plots
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target, selectable
from bisect_trt.tensors.npz import replacing


def run(given: Params, console: Console, result: Result) -> Result:
    """Compare a target with the reference, or with saved results, or saved results alone."""
    own, options = given[Run], given[RunOptions]
    if own.model is None:
        return _compare_saved(given, console, result)
    settings = compare_settings(options, given[Target], given[MoreTargets], given[Compare], given[Plots])
    model_settings(own.model, given[Data])  # raises before anything is written
    if given[Metric].metric is not None:
        refuse_beside_metric(options)
    for path in (settings.save_onnx, own.gen_script):
        if path is not None:
            check_output(path, overwrite=True)
    if own.gen_script is not None:
        groups = [
            changed(given[group]) for group in (Target, Places, MoreTargets, RunOptions, Compare, Metric, Plots, Data)
        ]
        write_script(own.gen_script, own.model, {name: value for each in groups for name, value in each.items()})
        console.answer(f"{own.gen_script}: does the same; run it with: {shlex.join(['python', str(own.gen_script)])}")
        result.artifacts["script"] = str(own.gen_script)
        result.extra["comparisons"] = []
        result.status, result.minimality = "found", "1-minimal"
        return result
    files, shaped = settings.load_outputs, options.shape_inference
    job = open_target_job(
        own.model, given, console, result, files, shape_inference=shaped, confidence=1.0, bounded=False
    )
    return job.compare(settings)


def _compare_saved(given: Params, console: Console, result: Result) -> Result:
    """Compare saved results alone.

    Raises:
        UsageError: There are none, or an option needs a model.
    """
    options = given[RunOptions]
    if targets_to_run(given[MoreTargets], given[Target]) or not options.load_outputs:
        raise UsageError("there is no model to run; name one, or two saved results with --load-outputs and no target.")
    _refuse_without_model(options, given[Data], given[Run].gen_script)
    metric = metric_settings(given[Metric], data_options(given[Data]), given[Compare], bounded=False)
    if metric is not None:
        refuse_beside_metric(options)
        return score_saved(options.load_outputs, metric, console, result)
    check_plots(given[Plots])
    tolerance = tolerance_options(given[Compare], None, nonfinite_equal=False)
    if options.check_average:
        check_average(tolerance, fail_fast=options.fail_fast)
    return compare_saved(
        options.load_outputs,
        tolerance,
        options.onnx_outputs,
        console,
        result,
        fail_fast=options.fail_fast,
        average=options.check_average,
        plots=given[Plots],
    )


def _refuse_without_model(options: RunOptions, data: Data, gen_script: Path | None) -> None:
    """Make sure that nothing is asked for that only a model can give.

    Raises:
        UsageError: Something is.
    """
    given = {
        "--onnx-exclude-outputs": options.onnx_exclude_outputs,
        "--mark-all": options.mark_all,
        "--shape-inference": options.shape_inference,
        "--save-onnx": options.save_onnx,
        "--save-inputs": options.save_inputs,
        "--save-outputs": options.save_outputs,
        "--warm-up": options.warm_up is not None,
        "--external-data-dir": data.external_data_dir,
        "--gen-script": gen_script,
    }
    for option, wanted in given.items():
        if wanted:
            raise UsageError(
                f"{option} needs a model, and saved results are compared as they are; name one, or drop it."
            )


_PROGRAM = '''\
"""Compare a model on a target with the reference; ends with the exit status of `bisect-trt run`."""

import sys

import bisect_trt

try:
    result = bisect_trt.compare(
{arguments}
        verbose=True,
    )
except bisect_trt.BisectError as error:
    print(f"error: {{error}}", file=sys.stderr)
    sys.exit(int(error.status))
sys.exit(int(result.exit_status))
'''


def write_script(path: Path, model: Path, options: Mapping[str, Any]) -> None:
    """Write the program.

    Args:
        path: Where to.
        model: The model.
        options: What was given, by the names of :func:`bisect_trt.api.compare`; the name of a target for that.

    Raises:
        UsageError: It cannot be written.
    """
    names = [plugin.name for plugin in selectable()]
    target = next((name for name in reversed(names) if name in options), None)
    rest = {name: plain(value) for name, value in options.items() if name not in names or value is not True}
    lines = [repr(str(model)), f"target={target!r}", *(f"{name}={value!r}" for name, value in rest.items())]
    text = _PROGRAM.format(arguments="\n".join(f"        {line}," for line in lines))
    with replacing(path) as file:
        file.write(text.encode())


def plain(value: Any) -> Any:  # noqa: ANN401 - of options
    """A value of an option as one that Python code can spell, and that means the same there."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TopK):
        return f"top-{value.k},axis={value.axis}"
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, (Path, Drop)) else value
