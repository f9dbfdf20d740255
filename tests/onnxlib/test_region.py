"""The region around some nodes, for any graph: it is near, connected, small, and says what it shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper
from random_models import models

from bisect_trt.commands.record import attribute_texts
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.units import HUB_READERS, neighbourhood


def adjacent(network: Network, one: int, other: int) -> bool:
    return one in network.parents(other) or other in network.parents(one)


@given(models(), st.data())
def test_the_nearest_nodes_are_found_however_few_are_asked_for(model: ModelProto, data: st.DataObject) -> None:
    network = Network(model)
    centre = data.draw(st.lists(st.sampled_from(network.order), min_size=1, max_size=2, unique=True))
    most = data.draw(st.integers(1, len(network.nodes) + 1))
    found = neighbourhood(network, centre, most)
    assert len(found) == len(set(found)) <= most
    assert found[: len(centre)] == centre[:most]
    for place, node in enumerate(found[len(centre) :], len(centre)):
        assert any(adjacent(network, node, earlier) for earlier in found[:place])
        assert not network.constant[node]
    if len(found) < most:  # then nothing is left out: there are no hubs in these models
        left = {other for node in found for other in network.order if adjacent(network, node, other)} - set(found)
        assert all(network.constant[node] for node in left)


def test_of_a_hub_only_the_nearest_readers_are_followed() -> None:
    readers = 100
    nodes = [helper.make_node("Relu", ["x"], ["mask"])]
    nodes += [helper.make_node("Neg", ["mask"], [f"y{place}"]) for place in range(readers)]
    info = helper.make_tensor_value_info
    ends = [info(f"y{place}", TensorProto.FLOAT, [1]) for place in range(readers)]
    network = Network(helper.make_model(helper.make_graph(nodes, "hub", [info("x", TensorProto.FLOAT, [1])], ends)))
    assert len(neighbourhood(network, [0], 50)) == 1 + HUB_READERS


def test_attributes_are_short_whatever_they_hold() -> None:
    weight = helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])
    node = helper.make_node("Plugin", [], ["y"], axes=[1, -2], alpha=0.1, mode="linear", value=weight)
    node.attribute.append(AttributeProto(name="state", type=AttributeProto.STRING, s=b"\xff\x00<b>" * 100_000))
    node.attribute.append(AttributeProto(name="many", type=AttributeProto.INTS, ints=range(10_000)))
    node.attribute.append(AttributeProto(name="words", type=AttributeProto.STRINGS, strings=[b"a", b"\xff"]))
    node.attribute.append(AttributeProto(name="none", type=AttributeProto.INTS))
    texts = attribute_texts(node)
    assert {name: texts[name] for name in ("axes", "alpha", "mode", "value", "words", "none")} == {
        "axes": "[1, -2]",
        "alpha": "0.1",
        "mode": "linear",
        "value": "<tensor>",
        "words": "[a, \ufffd]",
        "none": "[]",
    }
    assert texts["many"].startswith("[0, 1, 2")
    assert texts["many"].endswith("...]")
    assert max(map(len, texts.values())) < 150
