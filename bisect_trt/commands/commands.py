"""Which commands there are, and the groups of options of each, in the order in which ``--help`` shows them."""

from __future__ import annotations

from bisect_trt.options import commands, searches
from bisect_trt.options.compare import Compare
from bisect_trt.options.metric import Metric
from bisect_trt.options.run import MoreTargets, Run, RunOptions
from bisect_trt.options.shared import Check, Data, General, Places, Plots, Search
from bisect_trt.targets.options import Target

COMMANDS: dict[str, tuple[type, ...]] = {
    "diagnose": (searches.Diagnose, Target, Places, Compare, Metric, Data, Search, General),
    "reduce": (searches.Reduce, Check, Target, Places, Compare, Metric, Data, Search, General),
    "precision": (searches.Precision, Check, Target, Places, Compare, Metric, Data, Search, General),
    "cause": (searches.Cause, Check, Target, Places, Compare, Data, Search, General),
    "workaround": (searches.Workaround, Target, Places, Compare, Data, Search, General),
    "repeat": (searches.Repeat, Check, Target, Places, Compare, Data, Search, General),
    "layerwise": (searches.Layerwise, Target, Places, Compare, Metric, Data, General),
    "samples": (searches.Samples, Check, Target, Places, Compare, Data, Search, General),
    "sweep": (searches.Sweep, Check, Target, Places, Compare, Data, Search, General),
    "releases": (searches.Releases, Check, Target, Compare, Data, Search, General),
    "extract": (commands.Extract, Data, General),
    "sanitize": (commands.Sanitize, Data, General),
    "inspect": (commands.Inspect,),
    "convert": (commands.Convert, Target, Data, General),
    "run": (Run, Target, Places, MoreTargets, RunOptions, Compare, Metric, Plots, Data, General),
    "resume": (commands.Resume,),
    "log": (commands.Log,),
    "report": (commands.Report,),
    "diff": (commands.Diff,),
    "view": (commands.View,),
    "doctor": (commands.Doctor, Places),
}
"""By name; the first group of each is its own, whose docstring says what it does. Its function of Python takes the same ones."""
