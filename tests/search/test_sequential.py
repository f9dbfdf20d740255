"""The sequential sign test: what it takes to decide, and how often it is wrong."""

from __future__ import annotations

import random

import pytest

from bisect_trt.search.sequential import ERROR, SignTest, evidence


def decide(chance: float, source: random.Random, most: int) -> SignTest:
    test = SignTest()
    while not test.known and test.cases < most:
        test.add(holds=source.random() < chance)
    return test


def test_thirteen_cases_that_agree_are_enough_and_twelve_are_not() -> None:
    assert evidence(12, 12) < 1 / ERROR <= evidence(13, 13)


def test_evidence_has_a_mean_of_one_where_it_holds_in_half_of_the_cases() -> None:
    from math import comb

    cases = 20
    mean = sum(comb(cases, holds) / 2**cases * evidence(cases, holds) for holds in range(cases + 1))
    assert mean == pytest.approx(1)


def test_a_fair_coin_is_almost_never_called_unfair_however_often_one_looks() -> None:
    source = random.Random(1)
    assert sum(decide(0.5, source, 300).known for _ in range(1000)) <= 5


def test_a_clear_majority_is_found() -> None:
    source = random.Random(2)
    assert all(decide(0.9, source, 300).known for _ in range(200))
