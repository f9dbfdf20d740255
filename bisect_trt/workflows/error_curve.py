"""How the error grows along the network: a point for each tensor that was seen, few enough to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

MOST_POINTS = 2000
_NO_NUMBER = ("nan", "inf", "shape", "dtype", "missing")
"""Kinds of mismatch that no tolerance would forgive."""


def error_curve(tensors: Sequence[Mapping[str, Any]], most: int = MOST_POINTS) -> dict[str, Any]:
    """The error along the network.

    Args:
        tensors: Comparisons as the result has them, in topological order.
        most: How many points at most.

    Returns:
        ``points`` with ``place`` (of the tensor in that order), ``name``, ``op``, ``ratio`` (the error in units of the
        tolerance: over 1 does not pass) and ``error`` (the largest absolute one); ``total`` is how many tensors there
        were. Where each layer's own error is known, ``own`` is that in units of the tolerance, ``None`` of a tensor that
        could not be computed alone. Numbers that JSON lacks are the strings ``inf`` and ``nan``.
    """
    ratios = [tolerance_ratio(tensor) for tensor in tensors]
    first_wrong = [place for place, tensor in enumerate(tensors) if not tensor["passed"]][:1]
    isolated = any("own" in tensor for tensor in tensors)
    own = [None if tensor.get("own") is None else tolerance_ratio(tensor["own"]) for tensor in tensors]
    if isolated and len(tensors) > most:
        alone = downsample([ratio or 0.0 for ratio in own], most // 2)
        places = sorted({*downsample(ratios, most // 2, first_wrong), *alone})
    else:
        places = downsample(ratios, most, first_wrong)
    points = [
        {
            "place": place,
            "name": tensors[place]["name"],
            "op": tensors[place].get("op"),
            "passed": tensors[place]["passed"],
            "ratio": plain_number(ratios[place]),
            "error": tensors[place]["max_abs"],
            **({"own": _plain(own[place])} if isolated else {}),
        }
        for place in places
    ]
    return {"points": points, "total": len(tensors)}


def downsample(values: Sequence[float], most: int, keep: Iterable[int] = ()) -> list[int]:
    """Places of a series that look like all of it.

    The series is split into windows of equal length; the smallest and the largest value of each stay (the idea of
    min-max decimation, as plots of time series use it), so no extreme is lost.

    Args:
        values: The series; Inf and NaN count as larger than all numbers.
        most: How many places at most; at least 2 for each that is kept whatever its value, and 2 more.
        keep: Places that stay whatever their value.

    Returns:
        Places in ascending order.
    """
    if len(values) <= most:
        return list(range(len(values)))
    chosen = set(keep)
    windows = (most - len(chosen)) // 2
    bounds = [len(values) * window // windows for window in range(windows + 1)]
    for start, stop in pairwise(bounds):
        places = sorted(range(start, stop), key=lambda place: _weight(values[place]))
        chosen.update((places[0], places[-1]))
    return sorted(chosen)


def _weight(value: float) -> float:
    return math.inf if math.isnan(value) else value


def tolerance_ratio(comparison: Mapping[str, Any]) -> float:
    """An error in units of the tolerance: at most 1 where the tensor passes, more where it does not.

    The element, or the statistic, that decides is within the absolute or the relative tolerance if it passes, so the
    smaller of the two ratios counts.
    """
    if comparison["kind"] in _NO_NUMBER:
        return math.inf
    atol, rtol = _number(comparison["atol"]), _number(comparison["rtol"])
    stat, worst = comparison["stat"], comparison["worst"]
    if stat == "elemwise" and worst is not None:
        absolute = _number(worst["error"])
        divisor = worst["reference"] if isinstance(worst["reference"], (int, float)) else _number(worst["reference"])
        relative = _over(absolute, abs(divisor))
    else:
        absolute, relative = (_number(comparison.get(f"{stat}_{kind}")) for kind in ("abs", "rel"))
    ratios = [ratio for ratio in (_over(absolute, atol), _over(relative, rtol)) if not math.isnan(ratio)]
    ratio = min(ratios, default=0.0 if comparison["passed"] else math.inf)
    return min(ratio, 1.0) if comparison["passed"] else max(ratio, math.nextafter(1, 2))


def _over(error: float, tolerance: float) -> float:
    if tolerance == 0:
        return 0.0 if error == 0 else math.inf
    return error / tolerance


def _number(value: Any) -> float:  # noqa: ANN401 - of JSON, where NaN and Inf are strings
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return math.nan


def _plain(value: float | None) -> float | str | None:
    return None if value is None else plain_number(value)


def plain_number(value: float) -> float | str:
    """A number as JSON has it: NaN and Inf as strings, the rest to seven digits."""
    return float(f"{value:.7g}") if math.isfinite(value) else str(value)
