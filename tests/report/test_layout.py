"""The drawing of a graph, for any graph: readers below makers, nothing upon anything else."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.report.charts import NODE_HEIGHT, NODE_WIDTH, Edge, draw_graph


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[Edge]]:
    """Nodes in topological order, numbered at random, and edges that go forward."""
    nodes = draw(st.permutations(range(draw(st.integers(0, 14)))))
    pairs = list(combinations(nodes, 2))
    return nodes, draw(st.lists(st.sampled_from(pairs), max_size=30)) if pairs else []


@given(graphs())
def test_readers_stand_below_makers_and_no_two_nodes_overlap(graph: tuple[list[int], list[Edge]]) -> None:
    nodes, edges = graph
    drawn = draw_graph(nodes, edges)
    assert set(drawn.places) == set(nodes)
    for maker, reader in edges:
        assert drawn.places[reader][1] - drawn.places[maker][1] > NODE_HEIGHT
        (start_x, start_y), (end_x, end_y) = drawn.places[maker], drawn.places[reader]
        path = drawn.paths[maker, reader]
        assert path.startswith(f"M{start_x:.1f} {start_y + NODE_HEIGHT / 2:.1f}C")
        assert path.endswith(f" {end_x:.1f} {end_y - NODE_HEIGHT / 2:.1f}")
    for one, other in combinations(drawn.places.values(), 2):
        assert one[1] != other[1] or abs(one[0] - other[0]) > NODE_WIDTH
    for x, y in drawn.places.values():
        assert NODE_WIDTH / 2 <= x <= drawn.width - NODE_WIDTH / 2
        assert NODE_HEIGHT / 2 <= y <= drawn.height - NODE_HEIGHT / 2


def test_a_chain_is_straight_and_a_dense_graph_is_drawn_all_the_same() -> None:
    chain = draw_graph(range(20), list(pairwise(range(20))))
    assert len({x for x, _ in chain.places.values()}) == 1
    edges = random.Random(1).sample(list(combinations(range(150), 2)), 2000)
    dense = draw_graph(range(150), edges)
    assert (len(dense.places), len(dense.paths)) == (150, 2000)
    assert min(path.count("C") for path in dense.paths.values()) == 1
