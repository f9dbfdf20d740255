"""The part of every ``reproduce.py`` for the process that runs the model; it needs nothing but NumPy.

The script joins it with :mod:`bisect_trt.targets.outside` and the runner of the target.
"""

from __future__ import annotations

import io
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from bisect_trt.aliases import Fields, Plain
from bisect_trt.errors import BisectError
from bisect_trt.targets.outside import GONE, INSIDE_STATUS, THERE, UNKNOWN, say
from bisect_trt.tensors.info import dtype_from_name

Make = Callable[[Plain], Any]
"""Makes a runner; see :mod:`bisect_trt.targets.runtime`."""


def run_inside(case: Plain, make: Make) -> int:
    """Run the model, compare, and return the process's exit status.

    Args:
        case: ``model`` and its ``names``, the files of samples that are run ``earlier``, the
            target's ``settings`` and ``hints``, the ``failure``'s signature, and ``tolerances`` by
            output.
        make: Makes the target's runner.
    """
    try:
        ending = _judge(case, make)
    except (ImportError, BisectError) as error:
        missing = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
        say(f"inconclusive: {str(missing).rstrip('.')}. This needs {case['needs']}.")
        ending = UNKNOWN
    except Exception as error:
        # Any other exception is not the failure of the case.
        say(f"inconclusive: {type(error).__name__}: {error}")
        ending = UNKNOWN
    return INSIDE_STATUS + ending


def _judge(case: Plain, make: Make) -> int:
    folder = pathlib.Path(__file__).resolve().parent
    files = [*case.get("earlier", ()), "inputs.npz"]
    for name in (case["model"], *files, "golden.npz"):
        if not (folder / name).is_file():
            say(f"inconclusive: {name} is not here; it belongs beside this script")
            return UNKNOWN
    samples = [*map(load_arrays, map(folder.joinpath, files))]
    golden = load_arrays(folder / "golden.npz")
    broken = case["failure"].startswith(("build: ", "run: ", "signal ", "time-out"))
    # Files beside the script are named from here.
    os.chdir(folder)
    try:
        runner = make(case["settings"])
        package = case["needs"].replace(",", " ").split()[0]
        say(f"{package} {getattr(runner, 'facts', {}).get('version', '')}")
        hints = {**case["hints"], "names": case["names"]}
        # One session, which may keep something of the earlier runs.
        *_, outputs = map(runner.load(folder / case["model"], samples[0], hints).run, samples)
    except (ImportError, BisectError):
        raise
    except Exception as error:
        return _refused(case, error)
    mismatch = False
    for name, (atol, rtol, statistic, step, max_ties) in case["tolerances"].items():
        if name not in golden:
            continue
        if name not in outputs:
            failed = True
            text = "the target does not have this output"
        else:
            failed, text = differs(
                outputs[name], golden[name], float(atol), float(rtol), statistic, step, max_ties
            )
            if case["validate"] and not failed:
                failed, text = holds_no_numbers(outputs[name])
        mismatch = mismatch or failed
        say(f"{'MISMATCH' if failed else 'match   '} {name}: {text}")
    if mismatch and broken:
        say(f"inconclusive: the expected failure is gone ({case['failure']}), and there is another")
        return UNKNOWN
    return THERE if mismatch else GONE


def _refused(case: Plain, error: Any) -> int:
    """Return what it means that the model does not run."""
    # By attribute: the class may be this script's or bisect-trt's.
    if hasattr(error, "sign"):
        doing = "build" if type(error).__name__ == "BuildError" else "run"
        message = error.message
        observed = f"{doing}: {error.sign(case['names'])}"
    else:
        message = f"{type(error).__name__}: {error}"
        observed = f"run: {type(error).__name__}"
        if observed != case["failure"]:
            raise error
    say(f"REFUSED: {message}")
    if observed == case["failure"]:
        return THERE
    say(f"inconclusive: that is another failure than the expected one ({case['failure']})")
    return UNKNOWN


def load_arrays(path: pathlib.Path) -> Fields:
    """Read tensors by name; the file's comments name the types that NumPy lacks."""
    arrays = {}
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            values = np.load(io.BytesIO(file.read(entry)), allow_pickle=False)
            if entry.comment:
                values = values.view(dtype_from_name(entry.comment.decode()))
            arrays[entry.filename[: -len(".npy")]] = values
    return arrays


def holds_no_numbers(values: Any) -> tuple[bool, str]:
    """Whether a tensor has any NaN or Inf."""
    count = (
        0
        if values.dtype.kind in "bU"
        else np.count_nonzero(~np.isfinite(np.asarray(values, np.float64)))
    )
    return bool(count > 0), f"{count} of {values.size} elements are NaN or Inf"


def differs(
    target: Any,
    golden: Any,
    atol: float,
    rtol: float,
    statistic: str,
    step: float = 0,
    max_ties: int = 0,
) -> tuple[bool, str]:
    """Whether a tensor is off, and the largest error with its place in words.

    Args:
        target: The target's tensor.
        golden: The reference's tensor, of any shape.
        atol: The absolute tolerance.
        rtol: The relative tolerance.
        statistic: ``elemwise``, ``max``, ``mean``, ``median``, or ``quantile`` with a number.
        step: The step of a quantized tensor; 0 for others.
        max_ties: The most elements that may be one step off.
    """
    if target.shape != golden.shape:
        return True, f"shape {target.shape} instead of {golden.shape}"
    if not golden.size:
        return False, "no elements"
    if golden.dtype.kind == "U":
        bad = np.atleast_1d(golden != target.astype(str))
        return bool(bad.any()), f"{np.count_nonzero(bad)} of {golden.size} strings differ"
    integers = golden.dtype.kind in "iu" and target.dtype.kind in "iu"
    # Exact, also past 2**53.
    difference = target.astype(object) - golden.astype(object) if integers else None
    target = np.asarray(target, np.float64)
    golden = np.asarray(golden, np.float64)
    with np.errstate(all="ignore"):
        difference = target - golden if difference is None else np.asarray(difference, np.float64)
        absolute = np.atleast_1d(np.abs(difference))
        relative = absolute / np.atleast_1d(np.where(golden == 0, 2.0**-52, np.abs(golden)))
    equal = np.atleast_1d(
        (difference == 0)
        | (target == golden) & ~np.isfinite(golden)
        | np.isnan(target) & np.isnan(golden)
    )
    absolute[equal], relative[equal] = 0, 0
    bad = ~((absolute <= atol) | (relative <= rtol))
    ties = bad & (absolute <= step * 1.001)
    if np.count_nonzero(ties) <= max_ties:
        bad &= ~ties
    if statistic == "elemwise":
        failed = bool(bad.any())
    else:
        name, _, quantile = statistic.partition(" ")
        numbers: Fields = {"max": np.max, "mean": np.mean, "median": np.median}
        number = numbers.get(name, lambda errors: np.quantile(errors, float(quantile)))
        failed = not (number(absolute) <= atol or number(relative) <= rtol)
    worst = np.unravel_index(
        np.argmax(np.where(np.isnan(absolute), np.inf, absolute)), golden.shape
    )
    position = [int(index) for index in worst]
    should = golden[worst]
    is_now = target[worst]
    text = f"{position} expected {should:.7g}, got {is_now:.7g} (atol {atol:.3g}, rtol {rtol:.3g}; "
    return failed, text + f"{np.count_nonzero(bad)} of {golden.size} elements mismatch)"
