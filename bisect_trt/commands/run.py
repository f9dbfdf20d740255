"""``run``: compare the outputs of targets with the reference's, or with saved ones, or write a script that does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from bisect_trt.commands.call import Call
from bisect_trt.commands.compare import compare, compare_saved, compare_settings, refuse_options, targets_to_run
from bisect_trt.commands.metric_commands import score
from bisect_trt.commands.self_consistency import self_check
from bisect_trt.commands.settings import tolerance_options
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
    for path in (options.save_onnx, script):
        if path is not None:
            check_output(path, overwrite=True)
    if script is not None and model is not None:
        return _write_script(call, model, script)
    job = call.open(None, options.load_outputs, shape_inference=options.shape_inference, bounded=False)
    with job.examined(options.timeout, *settings.targets) as session:
        if job.metric is not None:
            return score(session, settings, job.metric)
        if options.self_check:
            return self_check(session, settings.targets, settings.tolerance, options.timeout)
        return compare(session, settings)


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
    why = "needs a model; name one, or drop it."
    refuse_options(options, _NEED_A_MODEL, why)
    other = {"gen-script": call[Run].gen_script, "external-data-dir": call[Data].external_data_dir}
    if given := [name for name, value in {**other, "metric": call[Metric].metric}.items() if value is not None]:
        raise UsageError(f"--{given[0]} {why}")
    call[Metric].check(bounded=False)
    check_plots(call[Plots])
    tolerance = tolerance_options(call[Compare], None, nonfinite_equal=False)
    return compare_saved(options.load_outputs, tolerance, options, call[Plots], console, result)


_NEED_A_MODEL = {"onnx_exclude_outputs", "shape_inference", "save_onnx", "save_inputs", "save_outputs", "warm_up"}
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
