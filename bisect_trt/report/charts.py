"""Data and geometry of the report's chart: the error along the network; the templates draw it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from bisect_trt.report.parts import Comparison, Curve, CurvePoint
from bisect_trt.report.text import Entry

_LOWEST = -6
_HIGHEST = 12
_BAND = 0.15
"""Powers of ten, beyond which values are drawn at the edge; height of the band of infinite values,
as a share of the chart's."""
MOST_POINTS = 2000


def _powers(low: int, high: int) -> list[int]:
    """Return about six of the powers of ten in a range, the largest first."""
    step = max(1, math.ceil((high - low) / 6))
    return [power for power in range(high, low - 1, -1) if power % step == 0]


def curve_chart(curve: Curve) -> Entry:
    """Return the chart of the largest error of each tensor, in units of its tolerance, in topological order.

    The scale is logarithmic; infinite errors are in a band at the top.

    Returns:
        As shares of the size, from the left and the top: ``points``, each with x, y and the point
        of the curve; ``ticks``, each with y and its power of ten (``None`` for infinity); and y of
        the ``tolerance``.
    """
    ratios = [_ratio(point.ratio) for point in curve.points]
    # Zero and infinity have no place on a logarithmic scale.
    powers = [math.log10(ratio) for ratio in ratios if 0 < ratio < math.inf]
    # At least a decade on each side, so that the line of the tolerance is not at the edge.
    low = max(min([-1, *map(math.floor, powers)]), _LOWEST)
    high = min(max([1, *map(math.ceil, powers)]), _HIGHEST)
    band = 0.0 if all(ratio < math.inf for ratio in ratios) else _BAND

    def y(ratio: float) -> float:
        if not ratio < math.inf:
            return band / 2
        power = math.log10(ratio) if ratio > 0 else low
        return 1 - (min(max(power, low), high) - low) / (high - low) * (1 - band)

    points = [
        ((point.place + 0.5) / curve.total, y(ratio), point)
        for point, ratio in zip(curve.points, ratios, strict=True)
    ]
    ticks: list[tuple[float, int | None]] = [
        (y(10.0**power), power) for power in _powers(low, high)
    ]
    ticks += [(band / 2, None)] * (band > 0)
    return {"points": points, "ticks": ticks, "tolerance": y(1.0)}


def _ratio(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


def error_curve(tensors: Sequence[Comparison], limit: int = MOST_POINTS) -> Curve:
    """Return the error along the network, of at most so many tensors."""
    ratios = [tensor.tolerance_ratio for tensor in tensors]
    first_wrong = [place for place, tensor in enumerate(tensors) if not tensor.passed][:1]
    # The first wrong tensor stays, however many points are left out.
    places = downsample(ratios, limit, first_wrong)
    points = [
        CurvePoint(
            place=place,
            name=tensors[place].name,
            op=tensors[place].op or None,
            passed=tensors[place].passed,
            ratio=short_number(ratios[place]),
            error=tensors[place].max_abs,
        )
        for place in places
    ]
    return Curve(points=tuple(points), total=len(tensors))


def downsample(values: Sequence[float], limit: int, keep: Iterable[int] = ()) -> list[int]:
    """Return ascending places of a series that look like the whole series: min-max decimation, so that no extreme is lost.

    Args:
        values: The series; Inf and NaN count as larger than all numbers.
        limit: How many places at most; at least 2 for each that is kept whatever its value, and 2
            more.
        keep: Places that stay whatever their value.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    chosen = set(keep)
    windows = (limit - len(chosen)) // 2
    bounds = [len(values) * window // windows for window in range(windows + 1)]
    for start, stop in pairwise(bounds):
        places = sorted(range(start, stop), key=lambda place: _ratio(values[place]))
        chosen.update((places[0], places[-1]))
    return sorted(chosen)


def short_number(value: float) -> float:
    """Return a number to seven digits."""
    return float(f"{value:.7g}")
