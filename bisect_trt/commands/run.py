"""``run``: compare the outputs of targets with the reference's, or with saved ones, or write a script that does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from bisect_trt.commands.call import Call
from bisect_trt.commands.compare import compare, compare_settings, targets_to_run
from bisect_trt.commands.compare_saved import check_average, compare_saved
from bisect_trt.commands.metric_commands import refuse_beside_metric, score, score_saved
from bisect_trt.commands.settings import data_options, metric_settings, tolerance_options
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Drop, Metric
from bisect_trt.options.reading import TopK
from bisect_trt.options.run import MoreTargets, Run, RunOptions
from bisect_trt.options.shared import Data, Places, Plots
from bisect_trt.options.spec import changed
from bisect_trt.report.plots import check_plots
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target, selectable
from bisect_trt.tensors.npz import replacing


def run(call: Call) -> Result:
    """Compare a target with the reference, or with saved results, or saved results alone.

    Raises:
        UsageError: An option is wrong, or a file cannot be written.
        UnavailableError: The target or the reference cannot run the model.
    """
    options = call[RunOptions]
    model, script = (call[Run].model, call[Run].gen_script) if Run in call.options else (None, None)
    if model is None and call.source is None:
        return _compare_saved(call)
    settings = compare_settings(options, call[Target], call[MoreTargets], call[Compare], call[Plots])
    if call[Metric].metric is not None:
        refuse_beside_metric(options)
    for path in (settings.save_onnx, script):
        if path is not None:
            check_output(path, overwrite=True)
    if script is not None and model is not None:
        return _write_script(call, model, script)
    job = call.open(None, settings.load_outputs, shape_inference=options.shape_inference, bounded=False)
    with job.examined(settings.timeout, settings.target, *settings.also) as session:
        return compare(session, settings) if job.metric is None else score(session, settings, job.metric)


def _write_script(call: Call, model: Path, script: Path) -> Result:
    """Write a Python program that does the same."""
    groups = (Target, Places, MoreTargets, RunOptions, Compare, Metric, Plots, Data)
    options = {name: value for group in groups for name, value in changed(call[group]).items()}
    write_script(script, model, options)
    call.console.answer(f"{script}: does the same; run it with: {shlex.join(['python', str(script)])}")
    call.result.artifacts["script"] = str(script)
    call.result.extra["comparisons"] = []
    call.result.status, call.result.minimality = "found", "1-minimal"
    return call.result


def _compare_saved(call: Call) -> Result:
    """Compare saved results alone.

    Raises:
        UsageError: There are none, or an option needs a model.
    """
    options, result, console = call[RunOptions], call.result, call.console
    if targets_to_run(call[MoreTargets], call[Target]) or not options.load_outputs:
        raise UsageError("there is no model to run; name one, or two saved results with --load-outputs and no target.")
    _refuse_without_model(options, call[Data], call[Run].gen_script)
    metric = metric_settings(call[Metric], data_options(call[Data]), call[Compare], bounded=False)
    if metric is not None:
        refuse_beside_metric(options)
        return score_saved(options.load_outputs, metric, console, result)
    check_plots(call[Plots])
    tolerance = tolerance_options(call[Compare], None, nonfinite_equal=False)
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
        plots=call[Plots],
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
            raise UsageError(f"{option} needs a model; name one, or drop it.")


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
