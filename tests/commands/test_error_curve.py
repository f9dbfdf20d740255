"""The error along the network: the points that are left look like all of them, and the ratio says what passes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support import compared

from bisect_trt.options.compare import ErrorStat
from bisect_trt.report.charts import downsample, error_curve
from bisect_trt.report.parts import Comparison
from bisect_trt.tensors.tolerance import Tolerance

SERIES = st.lists(st.floats(0) | st.just(math.nan), max_size=300)


@given(SERIES, st.integers(4, 60), st.data())
def test_few_points_keep_the_extremes(values: list[float], most: int, data: st.DataObject) -> None:
    keep = (
        data.draw(st.lists(st.integers(0, max(len(values) - 1, 0)), max_size=1)) if values else []
    )
    places = downsample(values, most, keep)
    assert len(places) <= max(most, 1)
    assert places == sorted(set(places))
    assert set(keep) <= set(places)
    if len(values) <= most:
        assert places == list(range(len(values)))
        return
    heights = [math.inf if math.isnan(value) else value for value in values]
    assert max(heights[place] for place in places) == max(heights)
    assert min(heights[place] for place in places) == min(heights)
    widest = max(after - before for before, after in pairwise(places))
    assert widest <= 2 * math.ceil(
        2 * len(values) / (most - len(keep) - 1)
    )  # none of the series is passed over


FLOATS = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from(
    [0.0, math.inf, -math.inf, math.nan]
)


@given(
    arrays(np.float32, 5, elements=FLOATS),
    arrays(np.float32, 5, elements=FLOATS),
    st.sampled_from([0.0, 1e-5, 1.0, 1e20]),
    st.sampled_from([0.0, 1e-2, 1.0]),
    st.sampled_from([ErrorStat.ELEMWISE, ErrorStat.MAX, ErrorStat.MEAN, ErrorStat.MEDIAN]),
)
def test_a_ratio_over_1_is_what_does_not_pass(
    reference: np.ndarray, target: np.ndarray, atol: float, rtol: float, stat: ErrorStat
) -> None:
    comparison = compared("t", reference, target, Tolerance(atol, rtol), stat)
    ratio = comparison.tolerance_ratio
    assert not math.isnan(ratio)
    assert (ratio <= 1) == comparison.passed
    assert ratio >= 0


def test_other_mismatches_are_beyond_any_tolerance() -> None:
    one = np.ones(3, np.float32)
    for target in (None, np.ones(4, np.float32), np.array([1, np.nan, 1], np.float32)):
        assert compared("t", one, target, Tolerance(1.0, 1.0)).tolerance_ratio == math.inf


def test_the_first_wrong_tensor_is_always_drawn() -> None:
    one = np.ones(1, np.float32)
    off = np.full(1, 1.1, np.float32)
    tolerance = Tolerance(1e-3, 1e-3)
    right, wrong = (
        Comparison.of(compared("t", one, value, tolerance), "Add") for value in (one, off)
    )
    tensors = [wrong if place in range(777, 900) else right for place in range(5000)]
    curve = error_curve(tensors, 100)
    assert (curve.total, len(curve.points) <= 100) == (5000, True)
    drawn = {point.place: point for point in curve.points}
    assert not drawn[777].passed
    assert drawn[777].ratio > 1
