"""Growing a set until it holds on new samples: what is kept is enough for all of them, and little more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.keep import grow_until_held
from bisect_trt.search.oracle import Subset, Verdict

UNITS = range(60)
SETS = st.frozensets(st.sampled_from(UNITS), max_size=6)


class Samples:
    """Samples that pass if all units that one needs are kept; each round draws some, and failing ones are remembered."""

    def __init__(self, rounds: list[list[Subset]]) -> None:
        self.rounds = iter(rounds)
        self.seen: list[Subset] = []
        self.asked = 0

    def draw(self, units: Subset) -> bool:
        failing = [needed for needed in next(self.rounds, []) if not needed <= units]
        self.seen += failing
        return not failing

    def ask(self, units: Subset) -> Verdict:
        self.asked += 1
        return Verdict.PASS if all(needed <= units for needed in self.seen) else Verdict.FAIL


@given(SETS, st.lists(st.lists(SETS, max_size=4), min_size=1, max_size=5), st.permutations(UNITS))
def test_what_is_kept_passes_all_samples_seen(start: Subset, rounds: list[list[Subset]], order: list[int]) -> None:
    samples = Samples(rounds)
    grown = grow_until_held(start, lambda: order, samples.draw, samples.ask, rounds=9, most=999)
    assert start <= grown
    assert all(needed <= grown for needed in samples.seen)


@given(SETS, st.lists(SETS, min_size=1, max_size=4), st.integers(0, 12))
def test_it_asks_no_more_than_it_may(start: Subset, drawn: list[Subset], most: int) -> None:
    samples = Samples([drawn])
    grown = grow_until_held(start, lambda: list(UNITS), samples.draw, samples.ask, rounds=2, most=most)
    assert samples.asked <= most
    assert start <= grown


def test_few_questions_where_the_order_is_right() -> None:
    """Nothing like the whole is kept for a few, and none of it is asked one by one."""
    samples = Samples([[frozenset({1, 2}), frozenset({3})]])
    grown = grow_until_held(frozenset({0}), lambda: list(range(5000)), samples.draw, samples.ask, rounds=5, most=99)
    assert grown == {0, 1, 2, 3}
    assert samples.asked <= 10
