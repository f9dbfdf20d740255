"""Slices: whatever the limit, what they compute together is what the whole computes, and none is larger than it must be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st
from light import Light
from onnx import TensorProto, helper
from support import TARGET, examples, overflowing, read_json

from bisect_trt.onnxlib.cut import plan_slices
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.reference import Models, Reference
from bisect_trt.probe.workspace import Workspace
from bisect_trt.tensors.store import ActivationStore
from bisect_trt.worker.pool import WorkerPool


def test_slices_cover_every_node_once(light: Light) -> None:
    network = Network(onnx.load(str(light.path)))
    infos = network.infos
    for limit in (0, 1 << 16, 1 << 20, 1 << 40):
        slices = plan_slices(network, network.order, infos, limit)
        tensors = [name for part in slices for name in part.tensors]
        assert sorted(tensors) == sorted(network.computed)
        known = set(network.inputs)
        for part in slices:
            assert known.issuperset(part.inputs)
            known.update(part.tensors)
        if limit == 1 << 40:
            assert len(slices) == 1
        if limit == 0:
            assert len(slices) == network.constant.count(False)


def test_slices_of_a_network_of_many_nodes_are_bounded_in_number_and_in_nodes(light: Light) -> None:
    network = Network(onnx.load(str(light.path)))
    infos, computing = network.infos, network.constant.count(False)
    for most in (1, 7, computing):
        slices = plan_slices(network, network.order, infos, 1 << 40, most)
        bound = max(most, len(network.order) // 16)
        assert sorted(name for part in slices for name in part.tensors) == sorted(network.computed)
        assert max(sum(not network.constant[index] for index in part.nodes) for part in slices) <= bound
        assert len(slices) == -(-computing // bound)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path_factory.mktemp("pool")) as workers:
        yield workers


def branching(seed: int, count: int) -> onnx.ModelProto:
    """Random adds, products and concatenations over what is there, weights that nodes make, and a sequence on the way."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.full(3, 0.5, np.float32))),
        helper.make_node("Neg", ["c"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["e"]),
        helper.make_node("Mul", ["e", "c"], ["f"]),
    ]
    known = ["x", "e", "f"]
    for place in range(count):
        one, other = rng.choice(known[:1] + known[-3:], 2)
        op = str(rng.choice(["Add", "Sub", "Max"]))
        nodes.append(helper.make_node(op, [one, other], [f"t{place}"], name=f"n{place}"))
        known.append(f"t{place}")
    nodes.append(helper.make_node("SequenceConstruct", [known[-1], "x"], ["parts"]))
    nodes.append(helper.make_node("Abs", [known[-2]], ["between"]))
    nodes.append(helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=0))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "between", "d")]
    start = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "g", [start], ends)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@given(st.integers(0, 99), st.integers(1, 12), st.sampled_from([0, 30, 80]))
@settings(max_examples=examples(15))
def test_slices_compute_what_the_whole_computes(
    pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, limit: int
) -> None:
    model = branching(seed, count)
    values = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    stores = []
    for bytes_at_once in (1 << 40, limit):
        workspace = Workspace(tmp_path_factory.mktemp("run"))
        reference = Reference(Network(model), values, workspace, Models(workspace, pool), limit=bytes_at_once)
        assert not reference.missing
        stores.append(ActivationStore.open(reference.store))
    whole, sliced = stores
    assert sorted(whole) == sorted(sliced)
    assert whole.skipped.keys() == sliced.skipped.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], sliced[name])


def test_layerwise_in_slices_finds_the_same(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    found = []
    for limit in ([], ["--array-swap-mb", "0"]):
        ran = cli("layerwise", model, *TARGET, *limit, "--iterations", "2", "--json", "r.json")
        assert ran.status == 0
        result = read_json(Path("r.json"))
        found.append((result["first_mismatch"], result["origins"], result["tensors"]))
    assert found[0] == found[1]
