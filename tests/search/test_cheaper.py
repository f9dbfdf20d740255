"""The cheapest of what can only be measured as a whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.search.cheaper import find_cheaper

COSTS = st.lists(st.floats(-5, 5).filter(lambda each: abs(each) > 0.01), max_size=20)


@given(COSTS)
def test_costs_that_add_up_are_all_found(costs: list[float]) -> None:
    found = find_cheaper(range(len(costs)), lambda units: 1000 + sum(costs[unit] for unit in units), 1000, 0, 99)
    assert found.complete
    assert found.units == {unit for unit, cost in enumerate(costs) if cost < 0}
    assert found.asked == max(2 * len(costs) - 1, 0)


@given(COSTS, st.integers(0, 30), st.floats(0, 0.01), st.sets(st.integers(0, 19)))
def test_what_is_found_was_measured_and_is_allowed(costs: list[float], most: int, margin: float, bad: set[int]) -> None:
    """No more than so many sets are, and the answer is one of them, cheaper by the margin or nothing at all."""
    seen: dict[frozenset[int], float | None] = {}

    def cost_of(units: frozenset[int]) -> float | None:
        seen[units] = None if units & bad else 1000 + sum(costs[unit] for unit in units)
        return seen[units]

    found = find_cheaper(range(len(costs)), cost_of, 1000, margin, most)
    assert found.asked <= most
    assert found.complete == (found.asked == max(2 * len(costs) - 1, 0))
    assert found.cost == (seen[found.units] if found.units else 1000)
    assert not found.units or found.cost < 1000 * (1 - margin)
