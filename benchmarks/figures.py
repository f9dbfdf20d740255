"""Every figure beside its aim, in one run: a table of benchmarks, and how one of them says what it measured.

A benchmark is a function without arguments that yields :class:`Figure`; its module is imported when
it is run. To add one, write the function and name it in :data:`BENCHMARKS`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

BENCHMARKS = {
    "questions": "benchmarks.questions:figures",
    "rankings": "benchmarks.questions:rankings",
    "algorithms": "benchmarks.questions:algorithms",
    "all": "benchmarks.questions:disjoint",
    "flaky": "benchmarks.flaky:figures",
    "own-time": "benchmarks.own_time:figures",
    "reduce": "benchmarks.reduce:figures",
    "reduce-two": "benchmarks.reduce:two_figures",
    "graphs": "benchmarks.large:figures",
    "weights": "benchmarks.large:weights",
    "zoo": "benchmarks.zoo:figures",
    "networks": "benchmarks.networks:figures",
    "latency": "benchmarks.latency:figures",
    "gpu": "benchmarks.tensorrt:figures",
}
"""By name, in the order in which they are run: the function, as ``MODULE:FUNCTION``. Its docstring
says what it measures."""


@dataclass(frozen=True)
class Figure:
    """What was measured of one thing.

    Attributes:
        what: The thing, with its unit: ``--help, s``.
        value: What was measured; ``None`` where that takes another machine, and the note says how.
        aim: What it is to reach; ``None`` where there is no aim.
        least: Whether more is better; otherwise less is.
        polygraphy: The same of Polygraphy, where it has such a thing.
        note: What else is to be said of it: the bound, why the aim is missed.
    """

    what: str
    value: float | None
    aim: float | None = None
    least: bool = False
    polygraphy: float | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the aim is reached; ``None`` without one, or where nothing was measured."""
        if self.aim is None or self.value is None:
            return None
        return self.value >= self.aim if self.least else self.value <= self.aim

    def row(self) -> str:
        """The figure as a row of :data:`HEAD`'s table."""
        sign = "at least " if self.least else "at most "
        aim = "" if self.aim is None else f"{sign}{say(self.aim)}"
        reached = {None: "", True: "yes", False: "**no**"}[self.reached]
        polygraphy = "" if self.polygraphy is None else say(self.polygraphy)
        value = "not here" if self.value is None else say(self.value)
        return f"| {self.what} | {value} | {aim} | {reached} | {polygraphy} | {self.note} |"


HEAD = "| what | measured | aim | reached | Polygraphy | |\n| --- | --- | --- | --- | --- | --- |"

Measure = Callable[[], Iterable[Figure]]


def say(value: float) -> str:
    """A number with as many digits as matter."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def benchmark(name: str) -> Measure:
    """The function that measures.

    Raises:
        KeyError: There is none of that name.
    """
    module, _, function = BENCHMARKS[name].partition(":")
    measure: Measure = getattr(import_module(module), function)
    return measure


@cache
def machine() -> dict[str, object]:
    """What the figures depend on: the versions and cores, and the load when this was first asked."""
    packages = (
        "onnx",
        "onnxruntime",
        "onnxruntime-gpu",
        "onnx-graphsurgeon",
        "numpy",
        "polygraphy",
        "bisect-trt",
    )
    return {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load average": os.getloadavg(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
