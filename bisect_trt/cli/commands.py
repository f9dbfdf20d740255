"""Which commands there are, and the groups of options of each, in the order in which ``--help`` shows them."""

from __future__ import annotations

from bisect_trt.options.commands import Convert, Diff, Doctor, Extract, Inspect, Log, Report, Resume, Sanitize, View
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Metric
from bisect_trt.options.places import Places
from bisect_trt.options.run import MoreTargets, Run, RunOptions
from bisect_trt.options.searches import (
    Cause,
    Diagnose,
    Layerwise,
    Precision,
    Reduce,
    Releases,
    Repeat,
    Samples,
    Sweep,
    Workaround,
)
from bisect_trt.options.shared import Check, Data, General, Plots, Search
from bisect_trt.targets.options import Target

COMMANDS: dict[str, tuple[type, ...]] = {
    "diagnose": (Diagnose, Target, Places, Compare, Metric, Data, Search, General),
    "reduce": (Reduce, Check, Target, Places, Compare, Metric, Data, Search, General),
    "precision": (Precision, Check, Target, Places, Compare, Metric, Data, Search, General),
    "cause": (Cause, Check, Target, Places, Compare, Data, Search, General),
    "workaround": (Workaround, Target, Places, Compare, Data, Search, General),
    "repeat": (Repeat, Check, Target, Places, Compare, Data, Search, General),
    "layerwise": (Layerwise, Target, Places, Compare, Metric, Data, General),
    "samples": (Samples, Check, Target, Places, Compare, Data, Search, General),
    "sweep": (Sweep, Target, Places, Compare, Data, Search, General),
    "releases": (Releases, Check, Target, Compare, Data, Search, General),
    "extract": (Extract, Data, General),
    "sanitize": (Sanitize, Data, General),
    "inspect": (Inspect,),
    "convert": (Convert, Target, Data, General),
    "run": (Run, Target, Places, MoreTargets, RunOptions, Compare, Metric, Plots, Data, General),
    "resume": (Resume,),
    "log": (Log,),
    "report": (Report,),
    "diff": (Diff,),
    "view": (View,),
    "doctor": (Doctor, Places),
}
"""By name; the first group of each is the command's own, and its docstring says what the command does."""

HOMES: dict[str, str] = {
    **dict.fromkeys(
        (
            *("diagnose", "reduce", "precision", "cause", "layerwise", "releases", "repeat", "samples", "sweep"),
            "workaround",
        ),
        "searches",
    ),
    **dict.fromkeys(("extract", "sanitize", "convert"), "conversions"),
    "run": "run",
    **dict.fromkeys(("inspect", "diff", "resume", "log", "report", "view", "doctor"), "looks"),
}
"""In which module of this package the function of a command's name lies, which does it."""
