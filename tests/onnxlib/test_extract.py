"""The part of a model between two sets of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from cutting import activations, assert_same, cutter, model_of, run, tensor_info
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from random_models import feeds, models
from support import examples

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.cut import extract
from bisect_trt.onnxlib.network import Network

FLOAT = TensorProto.FLOAT
X = tensor_info("x", FLOAT, [2, 4])
node = helper.make_node


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=models(), data=st.data())
def test_it_computes_what_was_asked_from_what_was_given(model: ModelProto, data: st.DataObject) -> None:
    whole = cutter(model, feeds())
    made = [name for index in whole.network.order for name in whole.network.made(index)]
    outputs = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True))
    arrays = [name for name, value in whole.values.items() if isinstance(value, np.ndarray) and name not in outputs]
    inputs = data.draw(st.lists(st.sampled_from(arrays), max_size=2, unique=True)) if arrays else []
    makers, needed = walked_back(whole.network, outputs, inputs)
    if not needed.issuperset(inputs) or makers & {whole.network.producer.get(name) for name in inputs}:
        with pytest.raises(UsageError, match=r"^--inputs: "):
            extract(whole.network, inputs, outputs, whole.infos)
        return
    piece, ends = extract(whole.network, inputs, outputs, whole.infos)
    assert ends[: len(inputs)] == inputs
    assert set(ends[len(inputs) :]) <= set(whole.network.inputs)
    assert [value.name for value in piece.graph.output] == outputs
    assert [value.name for value in piece.graph.input][: len(ends)] == ends
    onnx.checker.check_model(piece)
    given_values = run(piece, {name: whole.values[name] for name in ends})
    assert_same(given_values, {name: whole.values[name] for name in outputs})
    assert {each.name for each in piece.graph.node} == {whole.network.nodes[index].name for index in makers}


def walked_back(network: Network, outputs: list[str], stop: list[str]) -> tuple[set[int], set[str]]:
    """The nodes that the outputs need, and the tensors."""
    makers: set[int] = set()
    needed: set[str] = set()
    tensors = set(outputs)
    while tensors:
        needed |= tensors
        found = {network.producer[name] for name in tensors.difference(stop) if name in network.producer}
        makers |= found
        tensors = {name for index in found for name in network.reads[index]} - needed
    return makers, needed


@pytest.fixture
def network() -> Network:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Split", ["a"], ["left", "right"], axis=1),
        node("Constant", [], ["half"], value=numpy_helper.from_array(np.array(0.5, np.float32))),
        node("Mul", ["left", "half"], ["b"]),
        node("Add", ["b", "right"], ["c"]),
        node("Add", ["c", "z"], ["y"]),
        node("MatMul", ["left", "sparse"], ["m"]),
    ]
    inputs = [X, tensor_info("z", FLOAT, [2, 2])]
    model = model_of(nodes, inputs, ["y", "m", "x", "w"], {"w": np.ones(1, np.float32)})
    values = helper.make_tensor("sparse", FLOAT, [1], [5.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [1])
    model.graph.sparse_initializer.add().CopyFrom(helper.make_sparse_tensor(values, places, [2, 2]))
    return Network(model)


VALUES = {"x": np.arange(-4, 4, dtype=np.float32).reshape(2, 4), "z": np.ones((2, 2), np.float32)}


def extracted(network: Network, inputs: list[str], outputs: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Inputs, operators and outputs of a piece, which computes what the original does."""
    whole = cutter(network.proto, VALUES)
    piece, ends = extract(network, inputs, outputs, whole.infos)
    onnx.checker.check_model(piece)
    weights = {"half": np.float32(0.5), "sparse": np.array([[0, 5], [0, 0]], np.float32)}
    values: dict[str, Any] = {**activations(network.proto, VALUES), **weights}
    given_values = run(piece, {name: np.asarray(values[name]) for name in ends})
    assert_same(given_values, {name: values[name] for name in given_values})
    return ends, [each.op_type for each in piece.graph.node], list(given_values)


def test_weights_can_be_inputs(network: Network) -> None:
    assert extracted(network, ["half", "left"], ["b"]) == (["half", "left"], ["Mul"], ["b"])
    assert extracted(network, ["left", "sparse"], ["m"]) == (["left", "sparse"], ["MatMul"], ["m"])
    assert extracted(network, ["left"], ["m"]) == (["left"], ["MatMul"], ["m"])


def test_without_outputs_those_of_the_graph_that_nodes_compute(network: Network) -> None:
    ends, ops, outputs = extracted(network, [], [])
    assert (ends, sorted(outputs)) == (["x", "z"], ["m", "y"])
    assert len(ops) == 7
    assert extracted(network, ["left", "right"], [])[0] == ["left", "right", "z"]
    # One of them that is an input is none to compute.
    model = model_of([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])], [X], ["a", "y"])
    piece, ends = extract(Network(model), ["a"], [], {})
    assert (ends, [value.name for value in piece.graph.output]) == (["a"], ["y"])


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["none"], ["y"], "--inputs: the model has no tensor 'none'"),
        (["x"], ["none"], "--outputs: the model has no tensor 'none'"),
        (["x"], ["x"], "--outputs: 'x' is not computed"),
        ([], ["w"], "--outputs: 'w' is not computed"),
        (["c"], ["b"], "--inputs: no output depends on 'c'"),
        (["x", "left", "right"], ["c"], "--inputs: no output depends on 'x'"),
        (["left"], ["c"], "--inputs: Split 'left', which makes 'left', is needed for its other outputs"),
    ],
)
def test_mistakes(network: Network, inputs: list[str], outputs: list[str], words: str) -> None:
    with pytest.raises(UsageError) as error:
        extract(network, inputs, outputs, {})
    assert str(error.value).startswith(words)
