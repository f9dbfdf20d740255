"""Which sizes fail: nothing is claimed that was not seen, and planted truths of all kinds are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.oracle import Verdict
from bisect_trt.search.sizes import Point, fit, intervals, sweep_points

Truth = Callable[[int], bool]


def seen(sizes: range, fails: Truth, most: int = 64) -> dict[int, Verdict]:
    asked: list[Point] = []

    def ask(point: Point) -> Verdict:
        asked.append(point)
        return Verdict.FAIL if fails(point[0]) else Verdict.PASS

    found = sweep_points([sizes], ask, [()], most)
    assert len(asked) == len(set(asked)) == len(found) <= most
    return {size: verdict for (size,), verdict in found.items()}


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda n: n >= 5, "from 5 on"),
        (lambda n: n >= 777, "from 777 on"),
        (lambda n: n <= 300, "up to 300"),
        (lambda n: 100 <= n <= 300, "from 100 to 300"),
        (lambda n: n == 17, "at 17 only"),
        (lambda n: n % 2 == 1, "at odd sizes, from 1 to 4095"),
        (lambda n: n % 8 == 0, "at multiples of 8, from 8 to 4096"),
        (lambda n: n % 8 != 0, "at all but multiples of 8, from 1 to 4095"),
        (lambda _: True, "at every size"),
        (lambda _: False, "at no size"),
    ],
)
def test_a_planted_rule_is_found_in_64_of_4096(fails: Truth, said: str) -> None:
    rule = fit(seen(range(1, 4097), fails))
    assert rule is not None
    assert rule["said"] == said


def obeys(rule: dict[str, Any], size: int) -> bool:
    inside = (rule["low"] or 0) <= size <= (rule["high"] or 0)
    if rule["kind"] in ("always", "never"):
        return bool(rule["kind"] == "always")
    if rule["period"] is not None:
        return inside and (size % rule["period"] == rule["remainder"]) is (rule["kind"] == "residue")
    return inside


@given(st.dictionaries(st.integers(1, 60), st.sampled_from([Verdict.FAIL, Verdict.PASS]), min_size=1))
def test_a_rule_is_obeyed_by_all_that_was_tried(tried: dict[int, Verdict]) -> None:
    rule = fit(tried)
    if rule is not None:
        assert all(obeys(rule, size) is (verdict is Verdict.FAIL) for size, verdict in tried.items())


@given(st.sets(st.integers(1, 200), min_size=1), st.integers(1, 200), st.integers(2, 80))
def test_nothing_is_claimed_but_what_was_seen(failing: set[int], high: int, most: int) -> None:
    sizes = range(1, high + 1)
    found = seen(sizes, failing.__contains__, most)
    if high <= most:
        assert set(found) == set(sizes)
    assert {1, high} <= set(found)
    covered: list[int] = []
    for each in intervals(sizes, found):
        assert all(found[size].value == each["verdict"] for size in each["tried"])
        between = [size for low, end in each["inferred"] for size in range(low, end + 1)]
        assert not set(between) & set(found)
        row = sorted([*each["tried"], *between])
        assert row == list(range(each["from"], each["to"] + 1))
        covered += row
    assert set(found) <= set(covered)
    assert covered == sorted(set(covered))


@given(st.integers(1, 30), st.integers(1, 400), st.integers(16, 100))
def test_two_dimensions_are_tried_within_what_may_be_asked(one: int, other: int, most: int) -> None:
    def ask(point: Point) -> Verdict:
        return Verdict.FAIL if point[0] >= one and point[1] >= other else Verdict.PASS

    found = sweep_points([range(1, 31), range(1, 401)], ask, [(), ()], most)
    assert len(found) <= most
    assert found[30, 400] is Verdict.FAIL


def test_the_boundary_of_each_of_two_dimensions_is_found() -> None:
    def ask(point: Point) -> Verdict:
        return Verdict.FAIL if point[0] >= 5 and point[1] > 100 else Verdict.PASS

    found = sweep_points([range(1, 65), range(1, 513)], ask, [(), ()], 128)
    assert any(found.get((4, size)) is Verdict.PASS and found.get((5, size)) is Verdict.FAIL for size in range(513))
    assert any(found.get((n, 100)) is Verdict.PASS and found.get((n, 101)) is Verdict.FAIL for n in range(65))
