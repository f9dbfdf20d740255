"""What options with a choice take."""

from __future__ import annotations

from enum import Enum


class ErrorStat(str, Enum):
    """Which number is held against the tolerances (Polygraphy's ``--check-error-stat``)."""

    ELEMWISE = "elemwise"
    """Fails where an element exceeds both tolerances."""
    MAX = "max"
    """Fails where the largest absolute and the largest relative error each exceed their tolerance."""
    MEAN = "mean"
    MEDIAN = "median"
    QUANTILE = "quantile"
    """As ``max``, but of the errors without the largest few: their quantile, 0.99 unless said otherwise."""


class Algorithm(str, Enum):
    """How two tensors are compared (Polygraphy's ``--compare``)."""

    SIMPLE = "simple"
    """By how far each element is off."""
    INDICES = "indices"
    """As lists of indices, such as TopK makes: by how many places each is away from where it should be."""


class Mode(str, Enum):
    """How to search."""

    AUTO = "auto"
    """Bisection; delta debugging once most candidates break in other ways."""
    BISECT = "bisect"
    """Bisection only."""
    LINEAR = "linear"
    """One unit at a time."""
    DDMIN = "ddmin"
    """Delta debugging only."""


class Minimise(str, Enum):
    """What a search for precision has the least of."""

    NODES = "nodes"
    """Nodes in fp32."""
    LATENCY = "latency"
    """Milliseconds, among the sets of nodes that were seen to be enough."""


class Form(str, Enum):
    """What to convert a model to."""

    ONNX = "onnx"
    TRT = "trt"


class Show(str, Enum):
    """What to say of a file beside the summary."""

    LAYERS = "layers"
    ATTRS = "attrs"
    WEIGHTS = "weights"
    VALUES = "values"
    HISTOGRAM = "histogram"


class Depth(str, Enum):
    """The same of a model in one word, as Polygraphy once had it."""

    NONE = "none"
    BASIC = "basic"
    ATTRS = "attrs"
    FULL = "full"
