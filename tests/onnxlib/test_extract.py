"""The part of a model between two sets of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import BARE, ort_run, text_model
from conftest import CommandLine
from cutting import activations, assert_same, cutter, feeds, models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from light import Light
from onnx import ModelProto, numpy_helper
from support import TARGET, examples, overflowing

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.cut import extract, plan_slices
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.reference import Models, Reference
from bisect_trt.probe.workspace import Workspace
from bisect_trt.tensors.store import ActivationStore
from bisect_trt.worker.pool import WorkerPool


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=models(), data=st.data())
def test_it_computes_what_was_asked_from_what_was_given(
    model: ModelProto, data: st.DataObject
) -> None:
    whole = cutter(model, feeds())
    made = [name for index in whole.network.order for name in whole.network.made(index)]
    outputs = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True))
    arrays = [
        name
        for name, value in whole.values.items()
        if isinstance(value, np.ndarray) and name not in outputs
    ]
    inputs = data.draw(st.lists(st.sampled_from(arrays), max_size=2, unique=True)) if arrays else []
    makers, needed = walked_back(whole.network, outputs, inputs)
    if not needed.issuperset(inputs) or makers & {
        whole.network.producer.get(name) for name in inputs
    }:
        with pytest.raises(UsageError, match=r"^--inputs: "):
            extract(whole.network, inputs, outputs, whole.infos)
        return
    piece, ends = extract(whole.network, inputs, outputs, whole.infos)
    assert ends[: len(inputs)] == inputs
    assert set(ends[len(inputs) :]) <= set(whole.network.inputs)
    assert [value.name for value in piece.graph.output] == outputs
    assert [value.name for value in piece.graph.input][: len(ends)] == ends
    onnx.checker.check_model(piece)
    given_values = ort_run(piece, {name: whole.values[name] for name in ends})
    assert_same(given_values, {name: whole.values[name] for name in outputs})
    assert {each.name for each in piece.graph.node} == {
        whole.network.nodes[index].name for index in makers
    }


def walked_back(network: Network, outputs: list[str], stop: list[str]) -> tuple[set[int], set[str]]:
    """The nodes that the outputs need, and the tensors."""
    makers: set[int] = set()
    needed: set[str] = set()
    tensors = set(outputs)
    while tensors:
        needed |= tensors
        found = {
            network.producer[name] for name in tensors.difference(stop) if name in network.producer
        }
        makers |= found
        tensors = {name for index in found for name in network.reads[index]} - needed
    return makers, needed


@pytest.fixture
def network() -> Network:
    body = """a = Relu(x) left, right = Split<axis = 1>(a) half = Constant<value = float {0.5}>() b = Mul(left, half)
        c = Add(b, right) y = Add(c, z) m = MatMul(left, dense)"""
    model = text_model(
        "(float[2, 4] x, float[2, 2] z) => (float[2, 2] y, float[2, 2] m)",
        body,
        {"dense": DENSE},
        opset=17,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    model.graph.output.extend(BARE(name=name) for name in "xw")
    return Network(model)


DENSE = np.array([[0, 5], [0, 0]], np.float32)
VALUES = {"x": np.arange(-4, 4, dtype=np.float32).reshape(2, 4), "z": np.ones((2, 2), np.float32)}


def extracted(
    network: Network, inputs: list[str], outputs: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """Inputs, operators and outputs of a piece, which computes what the original does."""
    whole = cutter(network.proto, VALUES)
    piece, ends = extract(network, inputs, outputs, whole.infos)
    onnx.checker.check_model(piece)
    weights = {"half": np.float32(0.5), "dense": DENSE}
    values: dict[str, Any] = {**activations(network.proto, VALUES), **weights}
    given_values = ort_run(piece, {name: np.asarray(values[name]) for name in ends})
    assert_same(given_values, {name: values[name] for name in given_values})
    return ends, [each.op_type for each in piece.graph.node], list(given_values)


def test_weights_can_be_inputs(network: Network) -> None:
    assert extracted(network, ["half", "left"], ["b"]) == (["half", "left"], ["Mul"], ["b"])
    assert extracted(network, ["left", "dense"], ["m"]) == (["left", "dense"], ["MatMul"], ["m"])
    assert extracted(network, ["left"], ["m"]) == (["left"], ["MatMul"], ["m"])


def test_without_outputs_those_of_the_graph_that_nodes_compute(network: Network) -> None:
    ends, ops, outputs = extracted(network, [], [])
    assert (ends, sorted(outputs)) == (["x", "z"], ["m", "y"])
    assert len(ops) == 7
    assert extracted(network, ["left", "right"], [])[0] == ["left", "right", "z"]
    # One of them that is an input is none to compute.
    model = text_model(
        "(float[2, 4] x) => (float[2, 4] a, float[2, 4] y)", "a = Relu(x) y = Neg(a)"
    )
    piece, ends = extract(Network(model), ["a"], [], {})
    assert (ends, [value.name for value in piece.graph.output]) == (["a"], ["y"])


def test_a_node_that_makes_an_input_is_not_kept_for_its_other_output(network: Network) -> None:
    with pytest.raises(
        UsageError, match="Split 'left', which makes 'left', is needed for its other outputs"
    ):
        extract(network, ["left"], ["c"], {})


# Slices: whatever the limit, what they compute together is what the whole computes, and none is
# larger than it must be.


def test_slices_cover_every_node_once(light: Light) -> None:
    network = Network(onnx.load(str(light.path)))
    computing = [index for index in network.order if not network.constant[index]]
    for limit, number in ((0, len(computing)), (1 << 16, None), (1 << 20, None), (1 << 40, 1)):
        slices = plan_slices(network, network.order, limit)
        assert [index for part in slices for index in part] == computing
        assert number in (None, len(slices))
    for most in (1, 7, len(computing)):
        slices = plan_slices(network, network.order, 1 << 40, most)
        bound = max(most, len(network.order) // 16)
        assert [index for part in slices for index in part] == computing
        assert max(map(len, slices)) <= bound
        assert len(slices) == -(-len(computing) // bound)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path_factory.mktemp("pool")) as workers:
        yield workers


@given(models(), st.sampled_from([0, 30, 80]))
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
def test_slices_compute_what_the_whole_computes(
    pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory, model: ModelProto, limit: int
) -> None:
    stores = []
    for bytes_at_once in (1 << 40, limit):
        workspace = Workspace(tmp_path_factory.mktemp("run"))
        reference = Reference(
            Network(model), feeds(), workspace, Models(workspace, pool), 1, bytes_at_once
        )
        assert not reference.missing
        stores.append(ActivationStore(reference.store))
    whole, sliced = stores
    assert sorted(whole) == sorted(sliced)
    for name in whole:
        np.testing.assert_array_equal(whole[name], sliced[name])


def test_layerwise_in_slices_finds_the_same(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    found = []
    for limit in ([], ["--array-swap-mb", "0"]):
        result = (
            cli("layerwise", model, *TARGET, *limit, "--iterations", "2", "--json", "r.json")
            .ended(0)
            .result
        )
        found.append((result["first_mismatch"], result["origins"], result["tensors"]))
    assert found[0] == found[1]
