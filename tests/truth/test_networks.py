"""The networks of the corpus are what they say: valid, of their size, and the reference runs them."""

from __future__ import annotations

import onnx
import pytest
from support import rest_slow

from truth.cases import Case, onnxruntime_cases

CASES = {(case.pattern.name, case.where): case for case in onnxruntime_cases()}
"""Releases make no other networks."""


@pytest.mark.parametrize("case", rest_slow(CASES.values(), now=4), ids=str)
def test_the_guilty_are_nodes_of_a_valid_model(case: Case) -> None:
    network = case.make()
    onnx.checker.check_model(network.model, full_check=True)
    names = [node.name for node in network.model.graph.node]
    assert len(names) == len(set(names))
    assert len(network.guilty) == (2 if case.where.startswith("twice") else 1)
    operators = {node.name: node.op_type for node in network.model.graph.node}
    for guilty in network.guilty:
        assert sorted(operators[name] for name in guilty) == sorted(case.pattern.name.split(", "))
    if case.where.endswith("nodes"):
        assert len(names) == pytest.approx(int(case.where.split()[0]), abs=30)
