"""What one sample adds to a metric, and what of a metric is the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError, quoted
from bisect_trt.tensors.info import is_extension, is_string

Array = NDArray[Any]
Outputs = Mapping[str, Array]
Labels = Any
"""Of one sample: an array, or a mapping of name to array; ``None`` without labels."""


@dataclass(frozen=True)
class Terms:
    """What one sample adds: a metric is ``sum(total) / sum(weight)`` over the samples, or an increasing function of that.

    Attributes:
        total: The sample's part.
        weight: What it counts. It follows from the reference's outputs and the labels alone.
        low: What ``total`` cannot be less than, whatever a candidate makes of the sample.
        high: What it cannot be more than.
    """

    total: float
    weight: float
    low: float
    high: float


@dataclass(frozen=True)
class Metric:
    """A number for a set of samples.

    Attributes:
        name: What the user called it.
        lower_is_better: Whether less of it is better.
        of_sample: What a sample adds, given the candidate's outputs, the reference's, and the labels; ``None`` for a metric
            that is not of that form, which takes the whole set.
        of_set: The number of the whole set, for such a one.
        spread: The increasing function of the quotient that the metric is.
        gather: Its inverse.
        unit: What follows the number in words.
    """

    name: str
    lower_is_better: bool
    of_sample: Callable[[Outputs, Outputs, Labels], Terms] | None = None
    of_set: Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Labels]], float] | None = None
    spread: Callable[[float], float] = float
    gather: Callable[[float], float] = float
    unit: str = ""

    def say(self, value: float) -> str:
        """A value in words."""
        return f"{value:.6g}{self.unit}"

    def value(self, total: float, weight: float) -> float:
        """The metric, of the sums over samples."""
        if not weight:
            return math.nan
        return self.spread(total / weight)


def to_float(values: Array) -> NDArray[np.float64]:
    """Numbers as float64, which for sums over thousands of samples loses nothing."""
    if is_extension(values.dtype):
        values = values.astype(np.float32)
    return np.asarray(values, dtype=np.float64)


def is_floating(values: Array) -> bool:
    """Whether it holds floating-point numbers of any width."""
    return values.dtype.kind == "f" or (is_extension(values.dtype) and "int" not in values.dtype.name)


def chosen_output(name: str | None, reference: Outputs, what: str, *, floating: bool = True) -> str:
    """The output that a metric looks at: the one that was named, else the first that it can be.

    Raises:
        UsageError: There is none.
    """
    if name is not None:
        if name not in reference:
            raise UsageError(f"--metric {what}:{name}: there is no such output; the outputs are {quoted(reference)}.")
        return name
    for each, values in reference.items():
        if not floating or (is_floating(values) and values.ndim and not is_string(values.dtype)):
            return each
    raise UsageError(
        f"--metric {what} is of an output of floating-point numbers, and there is none among {quoted(reference)}; name "
        "another metric, or give a function of your own (--metric SCRIPT.py)."
    )


def of_label(labels: Labels, name: str) -> Array | None:
    """The labels that go with an output: those of its name where there are several, else all there are."""
    if not isinstance(labels, Mapping):
        return None if labels is None else np.asarray(labels)
    if not labels:
        return None
    return np.asarray(labels.get(name, next(iter(labels.values()))))
