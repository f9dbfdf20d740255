"""Sizes that fail: planted boundaries of all kinds are found, within the number of questions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.oracle import Verdict
from bisect_trt.search.ordered import Point, intervals, sweep_points

Truth = Callable[[Point], bool]


def seen(axes: list[range], fails: Truth, most: int) -> dict[Point, Verdict]:
    asked: list[Point] = []

    def ask(point: Point) -> Verdict:
        asked.append(point)
        return Verdict.FAIL if fails(point) else Verdict.PASS

    found = sweep_points(axes, ask, most)
    assert len(asked) == len(set(asked)) == len(found) <= most
    return found


@pytest.mark.parametrize(
    ("low", "high"), [(5, 4096), (777, 4096), (1, 300), (100, 300), (17, 17), (1, 4096)]
)
def test_a_planted_interval_is_found_in_64_of_4096(low: int, high: int) -> None:
    found = {
        size: verdict
        for (size,), verdict in seen([range(1, 4097)], lambda at: low <= at[0] <= high, 64).items()
    }
    rows = [row for verdict, row in intervals(found) if verdict is Verdict.FAIL]
    assert [(row[0], row[-1]) for row in rows] == [(low, high)]


@given(st.sets(st.integers(1, 200), min_size=1), st.integers(1, 200), st.integers(2, 80))
def test_rows_say_what_was_seen_and_no_more(failing: set[int], high: int, most: int) -> None:
    found = {
        size: verdict
        for (size,), verdict in seen(
            [range(1, high + 1)], lambda at: at[0] in failing, most
        ).items()
    }
    assert {1, high} <= set(found)
    assert len(found) == min(high, most)
    rows = intervals(found)
    assert [size for _, row in rows for size in row] == sorted(found)
    assert all(found[size] is verdict for verdict, row in rows for size in row)


@given(st.integers(1, 30), st.integers(1, 400), st.integers(16, 100))
def test_two_dimensions_are_tried_within_what_may_be_asked(one: int, other: int, most: int) -> None:
    found = seen([range(1, 31), range(1, 401)], lambda at: at[0] >= one and at[1] >= other, most)
    assert found[30, 400] is Verdict.FAIL


def test_the_boundary_of_each_of_two_dimensions_is_found() -> None:
    found = seen([range(1, 65), range(1, 513)], lambda at: at[0] >= 5 and at[1] > 100, 128)
    assert any(
        found.get((4, size)) is Verdict.PASS and found.get((5, size)) is Verdict.FAIL
        for size in range(513)
    )
    assert any(
        found.get((n, 100)) is Verdict.PASS and found.get((n, 101)) is Verdict.FAIL
        for n in range(65)
    )
