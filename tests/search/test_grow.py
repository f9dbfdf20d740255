"""Growing and shrinking a set: what is kept is enough for all samples seen, and little more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.keep import grow_and_shrink
from bisect_trt.search.oracle import Subset, Verdict

UNITS = range(60)
SETS = st.frozensets(st.sampled_from(UNITS), max_size=6)


class Samples:
    """Samples that pass if all units that one needs are kept."""

    def __init__(self, *needed: Subset) -> None:
        self.needed: Subset = frozenset().union(*needed)
        self.asked = 0

    def __call__(self, units: Subset) -> Verdict:
        self.asked += 1
        return Verdict.PASS if self.needed <= units else Verdict.FAIL


@given(SETS, SETS, SETS, st.permutations(UNITS))
def test_exactly_what_the_samples_need_is_added(
    start: Subset, before: Subset, needed: Subset, order: list[int]
) -> None:
    """What an earlier growth added and no sample needs goes again."""
    samples = Samples(needed)
    kept = start | before
    grown = grow_and_shrink(start, kept, order, samples, most=999)
    if needed - kept:  # otherwise the set was enough, and there was nothing to ask
        assert grown == start | needed
        assert samples.asked <= 4 * (len(needed) + 1) * 8


@given(SETS, SETS, st.integers(0, 40), st.permutations(UNITS))
def test_a_search_that_is_ended_has_a_set_that_is_enough_or_none(
    start: Subset, needed: Subset, most: int, order: list[int]
) -> None:
    samples = Samples(needed - start, frozenset({order[-1]}))
    grown = grow_and_shrink(start - {order[-1]}, start - {order[-1]}, order, samples, most=most)
    assert samples.asked <= most
    assert grown is None or (samples.needed <= grown and (len(grown) < len(UNITS)))


def test_the_whole_is_never_an_answer_that_was_not_halved() -> None:
    samples = Samples(frozenset({0, 4999}))
    assert grow_and_shrink(frozenset(), frozenset(), range(5000), samples, most=8) is None
    assert grow_and_shrink(frozenset(), frozenset(), range(5000), samples, most=99) == frozenset(
        {0, 4999}
    )
    samples = Samples(frozenset({1, 2}), frozenset({3}))
    assert grow_and_shrink(
        frozenset({0}), frozenset({0}), range(5000), samples, most=99
    ) == frozenset(range(4))
    assert samples.asked <= 10
