"""A Python function as the check."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.probing.outcome import Ending, Outcome, of_samples
from bisect_trt.probing.times import spending
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.npz import load_npz

_OUTCOMES = {
    Verdict.FAIL: (Ending.FAILED, "bad", "the check says that it fails"),
    Verdict.PASS: (Ending.PASSED, "pass", "the check says that it passes"),
    Verdict.UNRESOLVED: (Ending.SKIPPED, "skip", "the check cannot judge it"),
}
_TAIL_LINES = 5


@dataclass(frozen=True)
class FunctionCheck:
    """Calls a function with each candidate, in this process, one at a time.

    Attributes:
        function: Takes the path of the candidate, and ``inputs`` and ``golden``, dicts of arrays by tensor name, if it has
            parameters of these names. It returns ``True`` or ``Verdict.FAIL`` for "it fails", ``False``, ``None`` or
            ``Verdict.PASS`` for "it does not"; an ``AssertionError`` is a failure too, any other exception says nothing.
    """

    function: Callable[..., object]
    parallel: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - it cannot be ended
        """Call it with one input sample after the other, until one fails.

        Raises:
            UsageError: It returns something else.
        """
        return of_samples((each.sample, self._call(each)) for each in files.samples())

    def _call(self, files: CandidateFiles) -> Outcome:
        began = time.monotonic()
        takes = _parameters(self.function)
        paths = {"inputs": files.inputs, "golden": files.golden}
        values = {name: load_npz(path) for name, path in paths.items() if name in takes}
        (files.folder / "command.txt").write_text(
            f"{_name(self.function)}({str(files.model)!r})\n", "utf-8", "surrogateescape"
        )
        try:
            with spending("running"):
                said = self.function(files.model, **values)
        except BisectError:
            raise
        except AssertionError as error:
            signature, reason = "AssertionError", f"AssertionError: {_first_line(error)}".rstrip(": ")
            return Outcome(Ending.FAILED, signature, reason, time.monotonic() - began)
        except Exception as error:
            tail = "\n".join(traceback.format_exc().rstrip().splitlines()[-_TAIL_LINES:])
            kind = type(error).__name__
            reason = f"the check raised {kind}: {_first_line(error)}".rstrip(": ")
            return Outcome(Ending.OTHER, f"raised {kind}", reason, time.monotonic() - began, tail)
        ending, signature, reason = _OUTCOMES[self._verdict(said)]
        return Outcome(ending, signature, reason, time.monotonic() - began)

    def _verdict(self, said: Any) -> Verdict:  # noqa: ANN401 - whatever the function returns
        if isinstance(said, Verdict):
            return said
        if said is None or isinstance(said, bool | np.bool_):
            return Verdict.FAIL if said else Verdict.PASS
        raise UsageError(
            f"the check {_name(self.function)} returns a {type(said).__name__}; return True if the model fails, "
            "False if not, or a bisect_trt.Verdict."
        )


def _parameters(function: Callable[..., object]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a builtin need not say
        return ()


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
