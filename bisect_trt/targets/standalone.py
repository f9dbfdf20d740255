"""What every ``reproduce.py`` has: its source goes into that file, so it needs nothing but NumPy, and Python 3.8's syntax.

The model runs in a process of its own, so that a crash, too, is told from this failure: the script ends with status 1 while
this failure is there, 0 once it is gone, and 2, with a sentence, for anything else.
"""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
from typing import Any, Callable, Mapping  # noqa: UP035 - of Python 3.8

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
    print("%s: %s" % (case["target"], case["answer"]), flush=True)
    crash = case["failure"].startswith("signal ")
    waits = case["timeout"] if case["failure"] == "time-out" else None
    try:
        done = subprocess.run([sys.executable, __file__, _INSIDE], timeout=waits, check=False)
    except subprocess.TimeoutExpired:
        print("TIME-OUT: no answer after %g seconds" % waits)
        return THERE
    if done.returncode in _ENDINGS:
        return _ENDINGS[done.returncode]
    try:
        how = "signal %s" % signal.Signals(-done.returncode).name
    except ValueError:
        how = "signal exit status %d" % done.returncode
    if crash and how == case["failure"]:
        print("CRASHED: %s" % how)
        return THERE
    print("cannot tell: the process that runs the model ended otherwise (%s)" % how.replace("signal exit", "exit"))
    return UNKNOWN


def look(case: Mapping[str, Any], run: Run, sign: Sign) -> int:
    """Run the model and compare."""
    try:
        ending = _look(case, run, sign)
    except ImportError as error:
        print("cannot tell: %s. This needs %s." % (error, case["needs"]))
        ending = UNKNOWN
    except Exception as error:  # whatever else it is, it is not this failure
        print("cannot tell: %s: %s" % (type(error).__name__, error))
        ending = UNKNOWN
    sys.stdout.flush()
    return next(code for code, meaning in _ENDINGS.items() if meaning == ending)


def _look(case: Mapping[str, Any], run: Run, sign: Sign) -> int:
    folder = pathlib.Path(__file__).resolve().parent
    for name in (case["model"], "inputs.npz", "golden.npz"):
        if not (folder / name).is_file():
            print("cannot tell: %s is not here; it belongs beside this script" % name)
            return UNKNOWN
    inputs, golden = load(folder / "inputs.npz"), load(folder / "golden.npz")
    broken = case["failure"].startswith(("build: ", "run: ", "signal ", "time-out"))
    try:
        outputs = run(folder / case["model"], inputs, case["settings"])
    except Refused as refused:
        print("REFUSED: %s" % refused)
        seen = "%s: %s" % (refused.doing, sign(refused, case["names"]))
        if seen == case["failure"]:
            return THERE
        print("cannot tell: that is another failure than the one looked for (%s)" % case["failure"])
        return UNKNOWN
    found = False
    for name, (atol, rtol, statistic) in case["tolerances"].items():
        if name not in golden:
            continue
        if name not in outputs:
            failed, text = True, "the target has no such output"
        else:
            failed, text = differs(outputs[name], golden[name], float(atol), float(rtol), statistic)
            if case["validate"] and not failed:
                failed, text = holds_no_numbers(outputs[name])
        found = found or failed
        print("%s %s: %s" % ("MISMATCH" if failed else "match   ", name, text))
    if found and broken:
        print("cannot tell: the failure looked for is gone (%s), and there is another" % case["failure"])
        return UNKNOWN
    return THERE if found else GONE


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
    return count > 0, "%d of %d elements are NaN or Inf" % (count, values.size)


def differs(target: Any, golden: Any, atol: float, rtol: float, statistic: str) -> tuple[bool, str]:
    """Whether a tensor is off, and the largest error with its place."""
    import numpy as np

    if target.shape != golden.shape:
        return True, "shape %s instead of %s" % (target.shape, golden.shape)
    if not golden.size:
        return False, "no elements"
    if golden.dtype.kind in "OUS":
        same = np.asarray(target).astype(str) == np.asarray(golden).astype(str)
        return not same.all(), "%d of %d strings differ" % (np.count_nonzero(~same), same.size)
    whole = golden.dtype.kind in "iu" and target.dtype.kind in "iu"
    # Exact, also past 2**53.
    difference = target.astype(object) - golden.astype(object) if whole else None
    kind = np.complex128 if golden.dtype.kind == "c" else np.float64
    target, golden = np.asarray(target, kind), np.asarray(golden, kind)
    with np.errstate(all="ignore"):
        difference = target - golden if difference is None else np.asarray(difference, np.float64)
        absolute = np.atleast_1d(np.abs(difference))
        relative = absolute / np.atleast_1d(np.where(golden == 0, 2.0**-52, np.abs(golden)))
    same = np.atleast_1d((difference == 0) | (target == golden) & ~np.isfinite(golden) | np.isnan(target) & np.isnan(golden))
    absolute[same], relative[same] = 0, 0
    bad = ~((absolute <= atol) | (relative <= rtol))
    if statistic == "elemwise":
        failed = bool(bad.any())
    else:
        name, _, quantile = statistic.partition(" ")
        numbers = {"max": np.max, "mean": np.mean, "median": np.median}
        number = numbers.get(name, lambda errors: np.quantile(errors, float(quantile)))
        failed = not (number(absolute) <= atol or number(relative) <= rtol)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(absolute), np.inf, absolute)), golden.shape)
    text = "%s should be %s and is %s (atol %.3g, rtol %.3g; %d of %d elements off)"
    values = [int(i) for i in worst], "%.7g" % golden[worst], "%.7g" % target[worst]
    return failed, text % (*values, atol, rtol, np.count_nonzero(bad), golden.size)
