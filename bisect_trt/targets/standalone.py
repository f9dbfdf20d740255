"""What every ``reproduce.py`` has: its source goes into that file, so it needs nothing but NumPy, and Python 3.8's syntax.

The model runs in a process of its own, so that a crash, too, is told from this failure: the script ends with status 1 while
this failure is there, 0 once it is gone, and 2, with a sentence, for anything else.
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
from typing import Any, Callable, Mapping

THERE, GONE, UNKNOWN = 1, 0, 2
_INSIDE = "--inside"
"""Says that this is the process that runs the model."""
_ENDINGS = {41: THERE, 40: GONE, 42: UNKNOWN}
"""How that one ends, in statuses that Python itself has no use for."""


class Refused(Exception):  # noqa: N818 - a finding, not an error
    """The target does not take the model: it fails to "build" or to "run" it.

    Attributes:
        doing: Which.
        message: What it says.
    """

    def __init__(self, doing: str, message: str) -> None:
        """``message`` in the target's words."""
        super().__init__(message)
        self.doing = doing
        self.message = message


Run = Callable[[pathlib.Path, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
Sign = Callable[[Refused, "list[str]"], str]


def main(case: Mapping[str, Any], run: Run, sign: Sign) -> int:
    """The script's exit status.

    Args:
        case: What it is about: ``answer`` and ``target`` in words, ``model`` and its ``names``, the target's ``settings``,
            the ``failure``'s signature, by output ``tolerances``, and how long to wait (``timeout``) where that is the failure.
        run: Gives the outputs of a model by name, fed inputs by name, with the settings; raises :class:`Refused`.
        sign: The signature of what the target says, given the names in the model.
    """
    if sys.argv[1:] == [_INSIDE]:
        return look(case, run, sign)
    print("{}: {}".format(case["target"], case["answer"]), flush=True)
    crash = case["failure"].startswith("signal ")
    waits = case["timeout"] if case["failure"] == "time-out" else None
    try:
        done = subprocess.run([sys.executable, __file__, _INSIDE], timeout=waits, check=False)
    except subprocess.TimeoutExpired:
        print(f"TIME-OUT: no answer after {waits} seconds")
        return THERE
    if done.returncode in _ENDINGS:
        return _ENDINGS[done.returncode]
    try:
        how = f"signal {signal.Signals(-done.returncode).name}"
    except ValueError:
        how = f"signal exit status {done.returncode}"
    if crash and how == case["failure"]:
        print(f"CRASHED: {how}")
        return THERE
    print(
        "cannot tell: the process that runs the model ended otherwise ({})".format(how.replace("signal exit", "exit"))
    )
    return UNKNOWN


def look(case: Mapping[str, Any], run: Run, sign: Sign) -> int:
    """Run the model and compare."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a crash loses nothing of it
    try:
        ending = _look(case, run, sign)
    except ImportError as error:
        print("cannot tell: {}. This needs {}.".format(error, case["needs"]))
        ending = UNKNOWN
    except Exception as error:  # whatever else it is, it is not this failure
        print(f"cannot tell: {type(error).__name__}: {error}")
        ending = UNKNOWN
    sys.stdout.flush()
    return next(code for code, meaning in _ENDINGS.items() if meaning == ending)


def _look(case: Mapping[str, Any], run: Run, sign: Sign) -> int:
    folder = pathlib.Path(__file__).resolve().parent
    for name in (case["model"], "inputs.npz", "golden.npz"):
        if not (folder / name).is_file():
            print(f"cannot tell: {name} is not here; it belongs beside this script")
            return UNKNOWN
    inputs, golden = load(folder / "inputs.npz"), load(folder / "golden.npz")
    broken = case["failure"].startswith(("build: ", "run: ", "signal ", "time-out"))
    try:
        outputs = run(folder / case["model"], inputs, case["settings"])
    except ImportError:
        raise
    except Exception as error:
        return _refused(case, error, sign)
    found = False
    for name, (atol, rtol, statistic, step, most) in case["tolerances"].items():
        if name not in golden:
            continue
        if name not in outputs:
            failed, text = True, "the target has no such output"
        else:
            failed, text = differs(outputs[name], golden[name], float(atol), float(rtol), statistic, step, most)
            if case["validate"] and not failed:
                failed, text = holds_no_numbers(outputs[name])
        found = found or failed
        print("{} {}: {}".format("MISMATCH" if failed else "match   ", name, text))
    if found and broken:
        print("cannot tell: the failure looked for is gone ({}), and there is another".format(case["failure"]))
        return UNKNOWN
    return THERE if found else GONE


def _refused(case: Mapping[str, Any], error: Exception, sign: Sign) -> int:
    """What it means that the model does not run."""
    if isinstance(error, Refused):
        said, seen = str(error), "{}: {}".format(error.doing, sign(error, case["names"]))
    else:
        said, seen = f"{type(error).__name__}: {error}", f"run: {type(error).__name__}"
        if seen != case["failure"]:
            raise error
    print(f"REFUSED: {said}")
    if seen == case["failure"]:
        return THERE
    print("cannot tell: that is another failure than the one looked for ({})".format(case["failure"]))
    return UNKNOWN


def load(path: pathlib.Path) -> dict[str, Any]:
    """Tensors by name; of types that NumPy itself lacks, whose names stand in the file's comments, with ml_dtypes."""
    import io
    import zipfile

    import numpy as np

    found = {}
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            values = np.load(io.BytesIO(file.read(entry)), allow_pickle=False)
            if entry.comment:
                import ml_dtypes

                values = values.view(getattr(ml_dtypes, entry.comment.decode()))
            found[entry.filename[: -len(".npy")]] = values
    return found


def holds_no_numbers(values: Any) -> tuple[bool, str]:
    """Whether a tensor has any NaN or Inf."""
    import numpy as np

    count = 0 if values.dtype.kind in "OUSb" else np.count_nonzero(~np.isfinite(np.asarray(values, np.float64)))
    return bool(count > 0), f"{count} of {values.size} elements are NaN or Inf"


def differs(
    target: Any, golden: Any, atol: float, rtol: float, statistic: str, step: float = 0, most: int = 0
) -> tuple[bool, str]:
    """Whether a tensor is off, and the largest error with its place; the ``most`` elements one ``step`` off are ties."""
    import numpy as np

    if target.shape != golden.shape:
        return True, f"shape {target.shape} instead of {golden.shape}"
    if not golden.size:
        return False, "no elements"
    if golden.dtype.kind in "OUS":
        same = np.asarray(target).astype(str) == np.asarray(golden).astype(str)
        return not bool(same.all()), f"{np.count_nonzero(~same)} of {same.size} strings differ"
    whole = golden.dtype.kind in "iu" and target.dtype.kind in "iu"
    # Exact, also past 2**53.
    difference = target.astype(object) - golden.astype(object) if whole else None
    kind = np.complex128 if golden.dtype.kind == "c" else np.float64
    target, golden = np.asarray(target, kind), np.asarray(golden, kind)
    with np.errstate(all="ignore"):
        difference = target - golden if difference is None else np.asarray(difference, np.float64)
        absolute = np.atleast_1d(np.abs(difference))
        relative = absolute / np.atleast_1d(np.where(golden == 0, 2.0**-52, np.abs(golden)))
    same = np.atleast_1d(
        (difference == 0) | (target == golden) & ~np.isfinite(golden) | np.isnan(target) & np.isnan(golden)
    )
    absolute[same], relative[same] = 0, 0
    bad = ~((absolute <= atol) | (relative <= rtol))
    ties = bad & (absolute <= step * 1.001)
    if np.count_nonzero(ties) <= most:
        bad &= ~ties
    if statistic == "elemwise":
        failed = bool(bad.any())
    else:
        name, _, quantile = statistic.partition(" ")
        numbers: dict[str, Any] = {"max": np.max, "mean": np.mean, "median": np.median}
        number = numbers.get(name, lambda errors: np.quantile(errors, float(quantile)))
        failed = not (number(absolute) <= atol or number(relative) <= rtol)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(absolute), np.inf, absolute)), golden.shape)
    where, should, is_now = [int(index) for index in worst], golden[worst], target[worst]
    text = f"{where} should be {should:.7g} and is {is_now:.7g} (atol {atol:.3g}, rtol {rtol:.3g}; "
    return failed, text + f"{np.count_nonzero(bad)} of {golden.size} elements off)"
