"""The table of commands: the options of each, and the function that runs it.

The command line, the Python function and ``docs/reference.md`` are derived from it. A package adds
a command by an entry point of the group ``bisect_trt.commands``, which has the command's name and
is a :class:`Command`; and an oracle by one of the group ``bisect_trt.oracles``, which is an
:class:`~bisect_trt.session.oracle.Oracle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from bisect_trt.options import commands, searches
from bisect_trt.options.compare import CompareOptions, Limits, MetricOptions
from bisect_trt.options.searches import Run, RunOptions
from bisect_trt.options.shared import (
    CheckOptions,
    Data,
    General,
    Loop,
    Places,
    Plots,
    Search,
    Verbosity,
)
from bisect_trt.options.spec import words_of
from bisect_trt.plugins import COMMANDS as GROUP
from bisect_trt.plugins import FAILED, ORACLES, contained, installed, load, loaded, refused
from bisect_trt.session.oracle import Oracle
from bisect_trt.targets.options import Target

if TYPE_CHECKING:
    from bisect_trt.report.result import Result
    from bisect_trt.session.call import Call


class Command(Struct, frozen=True):
    """A command.

    Its function raises ``UsageError`` where options are wrong or do not fit the model, or a file
    cannot be written, ``UnavailableError`` where the target or the reference cannot run the model,
    and ``DoesNotReproduce``. What is known when a budget is spent or the user stops is in the
    result.

    Attributes:
        groups: Its options, as groups; the first is its own, and the docstring of that is its help
            and its examples.
        function: The function that runs it, as ``module:name``; it is imported when the command
            runs.
        output: The file in the run's folder for what a Python call finds, where none is named;
            ``None`` if it writes none.
        panel: The heading above it in the list of commands.
    """

    groups: tuple[type, ...]
    function: str
    output: str | None = None
    panel: str = "Plug-ins"

    def load(self) -> Callable[[Call], Result]:
        """Import the function."""
        function: Callable[[Call], Result] = load(self.function, self.function)
        return function

    def run(self, call: Call) -> Result:
        """Run it.

        Raises:
            PluginError: It is another package's, and raises an error of its own or returns no result.
        """
        from bisect_trt.report.result import Result  # noqa: PLC0415 - a command line is read without

        return contained(self.load(), Result, call)

    @property
    def help(self) -> str:
        """Its description, in a sentence or two."""
        return " ".join((self.groups[0].__doc__ or "").partition("Examples:")[0].split())

    @property
    def examples(self) -> list[str]:
        """Command lines that use it."""
        lines = (self.groups[0].__doc__ or "").partition("Examples:")[2].splitlines()
        return [line.strip() for line in lines if line.strip()]


_TESTED = (Target, Places, CompareOptions)
"""Options of commands that compare a target with the reference."""
_RUN = (Data, Loop, Search, General)
_METRIC = (*_TESTED, MetricOptions, *_RUN)
_SEARCH = (CheckOptions, *_TESTED, *_RUN)
_LIMITED = (CheckOptions, *_TESTED, Limits, *_RUN)
_COMPARE = (
    Run,
    Target,
    Places,
    RunOptions,
    CompareOptions,
    MetricOptions,
    Limits,
    Plots,
    Data,
    Loop,
    General,
)
_PANELS: dict[str, dict[str, tuple[type, ...]]] = {
    "Find": {
        "diagnose": (searches.Diagnose, *_METRIC, Limits),
        "reduce": (searches.Reduce, CheckOptions, *_METRIC, Limits),
        "layerwise": (searches.Layerwise, *_TESTED, Data, General),
        "run": _COMPARE,
    },
    "Explain": {
        "cause": (searches.Cause, *_LIMITED),
        "releases": (searches.Releases, CheckOptions, Target, CompareOptions, Limits, *_RUN),
        "matrix": (searches.Matrix, Target, CompareOptions, Data, General),
        "repeat": (searches.Repeat, *_LIMITED),
        "sweep": (searches.Sweep, *_LIMITED),
        "samples": (searches.Samples, *_SEARCH),
    },
    "Fix": {
        "precision": (searches.PrecisionOptions, CheckOptions, *_METRIC, Limits),
        "workaround": (searches.Workaround, *_TESTED, Limits, *_RUN),
    },
    "Files": {
        "extract": (commands.Extract, Data, General),
        "sanitize": (commands.Sanitize, Data, General),
        "convert": (commands.Convert, Target, Data, General),
        "inspect": (commands.Inspect, General),
    },
    "Runs": {
        "resume": (commands.Resume, Verbosity),
        "log": (commands.LogOptions,),
        "report": (commands.Report,),
        "diff": (commands.Diff, General),
    },
    "This machine": {"doctor": (commands.Doctor, Places, General)},
}
_OUTPUTS = {
    "diagnose": "reproducer",
    "reduce": "reduced.onnx",
    "samples": "minimal-input.npz",
    "precision": "mixed.onnx",
    "workaround": "patched.onnx",
}
COMMANDS: dict[str, Command] = {
    name: Command(groups, f"bisect_trt.commands.{name}:run", _OUTPUTS.get(name), panel)
    for panel, table in _PANELS.items()
    for name, groups in table.items()
}
"""By name, in the order of ``--help``."""


def _redefined(group: type, others: Iterable[type]) -> str | None:
    """Return why a group cannot stand beside others in a command: an option that one of them has."""
    shared = words_of(group) & set[str]().union(*map(words_of, others))
    return f"redefines {min(shared)}" if shared else None


def _command_objection(plugin: Any) -> str | None:  # noqa: ANN401 - whatever an entry point names
    if not isinstance(plugin, Command):
        return "is no Command"
    return _redefined(plugin.groups[0], plugin.groups[1:])


def _oracle_objection(plugin: Any) -> str | None:  # noqa: ANN401 - as above
    is_oracle = isinstance(plugin, type) and issubclass(plugin, Oracle) and is_dataclass(plugin)
    if not is_oracle:
        return "is no dataclass that is derived from Oracle"
    return _redefined(plugin, chain.from_iterable(command.groups for command in _CHECKED.values()))


def _oracles() -> Iterator[type]:
    """Yield the oracles, without those that define the same option: a call could mean either."""
    oracles = loaded(ORACLES, _oracle_objection)
    for name, oracle in oracles.items():
        reasons = [
            f"{reason}, as the plug-in '{rival}' does"
            for rival in oracles
            if rival != name and (reason := _redefined(oracle, [oracles[rival]]))
        ]
        if reasons:
            FAILED.append(refused(name, installed(ORACLES)[name], reasons[0]))
        else:
            yield oracle


COMMANDS |= loaded(GROUP, _command_objection, COMMANDS.keys())
_CHECKED = {name: command for name, command in COMMANDS.items() if CheckOptions in command.groups}
_ORACLES = tuple(_oracles())
COMMANDS |= {
    name: structs.replace(command, groups=(*command.groups, *_ORACLES))
    for name, command in _CHECKED.items()
}
