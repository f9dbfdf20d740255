"""Any set of units of any model is a model that reproduces the original's activations."""

from __future__ import annotations

from cutting import Cutter, cutter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from random_models import feeds, models
from support import examples

quick = settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(model=models(), data=st.data())
def test_any_set_of_units_reproduces_its_activations(model: ModelProto, data: st.DataObject) -> None:
    whole = cutter(model, feeds())
    units = range(len(model.graph.node))
    for bare in (True, False):
        chosen = data.draw(st.sets(st.sampled_from(units), min_size=1))
        whole.check(chosen, bare=bare)
    whole.check(units)


@quick
@given(model=models(), data=st.data())
def test_nodes_stand_as_in_the_file_wherever_that_is_valid(model: ModelProto, data: st.DataObject) -> None:
    whole = cutter(model, feeds())
    piece, nodes = whole.cut(data.draw(st.sets(st.sampled_from(range(len(model.graph.node))), min_size=1)))
    in_file = [model.graph.node[index].name for index in sorted(nodes)]
    if in_order(whole, sorted(nodes)):
        assert [node.name for node in piece.proto.graph.node] == in_file
    else:
        assert sorted(node.name for node in piece.proto.graph.node) == sorted(in_file)


def in_order(whole: Cutter, nodes: list[int]) -> bool:
    """Whether each of these nodes stands behind those of them that make what it reads."""
    made: set[str] = {name for index in nodes for name in whole.network.made(index)}
    for index in nodes:
        if made.intersection(whole.network.reads[index]):
            return False
        made.difference_update(whole.network.made(index))
    return True
