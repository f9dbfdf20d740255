"""The table of commands: the options of each, and the function that does it.

The command line, the Python function and ``docs/reference.md`` are derived from it. A package adds a command by an entry point
of the group ``bisect_trt.commands``, which has the command's name and is a :class:`Command`; and an oracle by one of the group
``bisect_trt.oracles``, which is an :class:`~bisect_trt.options.oracle.Oracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from bisect_trt.options import commands, searches
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.metric import MetricOptions
from bisect_trt.options.oracle import Oracle
from bisect_trt.options.run import MoreTargets, Run, RunOptions
from bisect_trt.options.shared import CheckOptions, Data, General, Places, Plots, Search
from bisect_trt.plugins import COMMANDS as GROUP
from bisect_trt.plugins import ORACLES, loaded
from bisect_trt.targets.options import Target

if TYPE_CHECKING:
    from bisect_trt.commands.call import Call
    from bisect_trt.report.result import Result


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        groups: Its options, as groups; the first is its own, and the docstring of that is its help.
        function: The function that does it, as ``module:name``; it is imported when the command runs.
        output: The file in the run's folder for what a Python call finds, where none is named; ``None`` if it writes none.
    """

    groups: tuple[type, ...]
    function: str
    output: str | None = None

    def load(self) -> Callable[[Call], Result]:
        """Import the function."""
        module, _, name = self.function.partition(":")
        found: Callable[[Call], Result] = getattr(import_module(module), name)
        return found

    @property
    def help(self) -> str:
        """What it does, in a sentence or two."""
        return " ".join((self.groups[0].__doc__ or "").split())


_HERE = "bisect_trt.commands"
ORACLE_GROUPS: tuple[type[Oracle], ...] = tuple(loaded(ORACLES).values())
"""The oracles of other packages."""
_CHECKS: tuple[type, ...] = (CheckOptions, *ORACLE_GROUPS)
_TESTED = (Target, Places, CompareOptions)
"""Options of commands that compare a target with the reference."""
_RUN = (Data, Search, General)
COMMANDS: dict[str, Command] = {
    "diagnose": Command(
        (searches.Diagnose, *_TESTED, MetricOptions, *_RUN), f"{_HERE}.diagnose:run", output="reproducer"
    ),
    "reduce": Command(
        (searches.Reduce, *_CHECKS, *_TESTED, MetricOptions, *_RUN), f"{_HERE}.reduce:run", output="reduced.onnx"
    ),
    "precision": Command(
        (searches.PrecisionOptions, *_CHECKS, *_TESTED, MetricOptions, *_RUN),
        f"{_HERE}.precision:run",
        output="mixed.onnx",
    ),
    "cause": Command((searches.Cause, *_CHECKS, *_TESTED, *_RUN), f"{_HERE}.cause:run"),
    "workaround": Command((searches.Workaround, *_TESTED, *_RUN), f"{_HERE}.workaround:run", output="patched.onnx"),
    "repeat": Command((searches.Repeat, *_CHECKS, *_TESTED, *_RUN), f"{_HERE}.repeat:run"),
    "layerwise": Command((searches.Layerwise, *_TESTED, MetricOptions, Data, General), f"{_HERE}.layerwise:run"),
    "samples": Command(
        (searches.Samples, *_CHECKS, *_TESTED, *_RUN), f"{_HERE}.samples:run", output="minimal-input.npz"
    ),
    "sweep": Command((searches.Sweep, *_CHECKS, *_TESTED, *_RUN), f"{_HERE}.sweep:run"),
    "releases": Command((searches.Releases, *_CHECKS, Target, CompareOptions, *_RUN), f"{_HERE}.releases:run"),
    "extract": Command((commands.Extract, Data, General), f"{_HERE}.convert:extract_run"),
    "sanitize": Command((commands.Sanitize, Data, General), f"{_HERE}.sanitize:run"),
    "inspect": Command((commands.Inspect,), f"{_HERE}.inspect:run"),
    "convert": Command((commands.Convert, Target, Data, General), f"{_HERE}.convert:run"),
    "run": Command(
        (Run, Target, Places, MoreTargets, RunOptions, CompareOptions, MetricOptions, Plots, Data, General),
        f"{_HERE}.run:run",
    ),
    "resume": Command((commands.Resume,), f"{_HERE}.runs:resume"),
    "log": Command((commands.LogOptions,), f"{_HERE}.runs:log"),
    "report": Command((commands.Report,), f"{_HERE}.runs:report"),
    "diff": Command((commands.Diff,), f"{_HERE}.build_choices:run"),
    "view": Command((commands.ViewOptions,), f"{_HERE}.runs:view"),
    "doctor": Command((commands.Doctor, Places), f"{_HERE}.doctor:run"),
}
"""By name, in the order of ``--help``."""
COMMANDS |= {name: command for name, command in loaded(GROUP).items() if name not in COMMANDS}
