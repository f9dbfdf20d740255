"""Groups of options that commands share, one module each; the door to them."""

from bisect_trt.cli.options.check import Check
from bisect_trt.cli.options.compare import Compare
from bisect_trt.cli.options.data import Data
from bisect_trt.cli.options.general import Annotation, General, Model
from bisect_trt.cli.options.plots import Plots
from bisect_trt.cli.options.search import Search
from bisect_trt.cli.options.target import Target
from bisect_trt.cli.options.values import between, parse_size, seconds

__all__ = [
    "Annotation",
    "Check",
    "Compare",
    "Data",
    "General",
    "Model",
    "Plots",
    "Search",
    "Target",
    "between",
    "parse_size",
    "seconds",
]
