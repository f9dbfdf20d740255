"""The drawing of a graph, for any graph: readers below makers, nothing upon anything else."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.report.graph_layout import Edge, assign_layers, lay_out, spread


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[Edge]]:
    """Nodes in topological order, numbered at random, and edges that go forward."""
    nodes = draw(st.permutations(range(draw(st.integers(0, 14)))))
    pairs = list(combinations(nodes, 2))
    return nodes, draw(st.lists(st.sampled_from(pairs), max_size=30)) if pairs else []


@given(graphs())
def test_readers_stand_below_makers_and_no_two_nodes_overlap(graph: tuple[list[int], list[Edge]]) -> None:
    nodes, edges = graph
    layout = lay_out(nodes, edges)
    assert set(layout.places) == set(nodes)
    for maker, reader in edges:
        way = [layout.places[maker], *layout.routes[maker, reader], layout.places[reader]]
        rows = [y for _, y in way]
        assert rows == [rows[0] + step for step in range(len(rows))]  # one layer after the other
    for one, other in combinations(layout.places.values(), 2):
        assert one[1] != other[1] or abs(one[0] - other[0]) >= 1
    for x, y in [*layout.places.values(), *(point for route in layout.routes.values() for point in route)]:
        assert 0 <= x <= layout.width
        assert 0 <= y < layout.height


@given(graphs())
def test_no_layer_is_empty(graph: tuple[list[int], list[Edge]]) -> None:
    layers = assign_layers(*graph).values()
    assert set(layers) == set(range(max(layers, default=-1) + 1))


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.1, 10)), max_size=20))
def test_things_are_moved_apart_but_no_farther_than_needed(wanted: list[tuple[float, float]]) -> None:
    values, widths = [value for value, _ in wanted], [width for _, width in wanted]
    places = spread(values, widths, gap=0.0)
    for (one, other), (left, right) in zip(pairwise(places), pairwise(widths), strict=True):
        assert other - one >= (left + right) / 2 - 1e-6
    if all(b - a >= (v + w) / 2 for (a, b), (v, w) in zip(pairwise(values), pairwise(widths), strict=True)):
        assert all(abs(place - value) < 1e-6 for place, value in zip(places, values, strict=True))


def test_a_chain_is_straight() -> None:
    layout = lay_out(range(20), list(pairwise(range(20))))
    assert {x for x, _ in layout.places.values()} == {0.5}
    assert layout.height == 20


def test_a_dense_graph_is_laid_out_all_the_same() -> None:
    pairs = list(combinations(range(150), 2))
    edges = random.Random(1).sample(pairs, 2000)
    layout = lay_out(range(150), edges)
    assert any(not layout.routes[edge] for edge in edges)  # there is no room for all ways
    assert len(layout.places) == 150
