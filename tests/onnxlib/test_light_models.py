"""Cuts of the real architectures that the onnx wheel ships, held against what graphsurgeon makes of the same nodes."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from cut_oracle import cut_by_hand, normalised
from cutting import assert_same, model_of, run, tensor_info
from light import LIGHT, tag_light
from onnx import ModelProto, TensorProto, helper

from bisect_trt.onnxlib.cut import Cut, cut
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import inferred_infos, input_infos
from bisect_trt.onnxlib.units import Units


class Whole:
    """A light model, to be cut by the types that inference finds."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = tag_light(name, folder).path
        self.network = Network(load_model(self.path))
        self.infos = inferred_infos(self.network)
        self.units = Units(self.network, self.network.computed, self.infos)

    def cut(self, units: Iterable[int]) -> tuple[Cut, frozenset[int]]:
        nodes = self.units.to_nodes(self.units.with_weights(units))
        return cut(self.network, nodes, self.infos, _no_value), nodes

    def windows(self, count: int) -> list[list[int]]:
        rng, searched = random.Random(0), self.units.searched
        ends = [sorted(rng.sample(range(len(searched) + 1), 2)) for _ in range(count)]
        return [searched[start:stop] for start, stop in ends]

    def feeds(self, names: Collection[str]) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        shapes = {name: tuple(int(dim or 0) for dim in self.infos[name].shape or ()) for name in names}
        return {name: rng.random(shape, dtype=np.float32) for name, shape in shapes.items()}


def _no_value(name: str) -> TensorProto:
    raise AssertionError(f"the maker of {name} is missing")


@pytest.mark.parametrize("name", LIGHT)
def test_all_units_are_the_original(name: str, tmp_path: Path) -> None:
    whole = Whole(name, tmp_path)
    piece, nodes = whole.cut(range(len(whole.network.nodes)))
    assert len(nodes) == len(whole.network.nodes)
    ours = sorted(node.SerializeToString() for node in piece.proto.graph.node)
    assert ours == sorted(node.SerializeToString() for node in onnx.load(str(whole.path)).graph.node)
    inputs = [info.name for info in input_infos(whole.network)]
    assert list(piece.inputs) == inputs
    assert list(piece.outputs) == whole.network.outputs
    assert_same(run(piece.proto, whole.feeds(inputs)), run(whole.path, whole.feeds(inputs)))


@pytest.mark.parametrize("name", LIGHT)
def test_windows_are_models(name: str, tmp_path: Path) -> None:
    whole = Whole(name, tmp_path)
    for window in whole.windows(8):
        piece, nodes = whole.cut(window)
        onnx.checker.check_model(piece.proto)
        by_hand = cut_by_hand(whole.network, nodes, whole.infos, _no_value)
        assert normalised(piece.proto) == normalised(by_hand.proto)
        assert whole.units.count(window) == len(window)
        assert all(name in whole.infos for name in piece.inputs)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_graphsurgeon_cuts_the_same(name: str, tmp_path: Path) -> None:
    whole = Whole(name, tmp_path)
    for number, window in enumerate(whole.windows(12)):
        piece, nodes = whole.cut(window)
        theirs = by_graphsurgeon(whole.path, {whole.network.nodes[index].name for index in nodes})
        assert _summary(piece.proto) == _summary(theirs)
        if number < 3:
            feeds = whole.feeds(piece.inputs)
            assert_same(run(piece.proto, feeds), run(theirs, feeds))


def by_graphsurgeon(path: Path, names: Collection[str]) -> ModelProto:
    """The same cut as one writes it with graphsurgeon."""
    graph = gs.import_onnx(onnx.shape_inference.infer_shapes(onnx.load(str(path))))
    nodes = [node for node in graph.nodes if node.name in names]
    chosen = {node.name for node in nodes}
    returned = {tensor.name for tensor in graph.outputs}
    inputs = [
        tensor
        for node in nodes
        for tensor in node.inputs
        if isinstance(tensor, gs.Variable) and all(maker.name not in chosen for maker in tensor.inputs)
    ]
    weights = {tensor.name for tensor in graph.tensors().values() if _is_made_of_weights(tensor)}
    outputs = [
        tensor
        for node in nodes
        for tensor in node.outputs
        if tensor.name in returned
        or (tensor.name not in weights and any(reader.name not in chosen for reader in tensor.outputs))
    ]
    unique = {tensor.name: tensor for tensor in inputs}
    piece = gs.Graph(
        nodes, list(unique.values()), outputs, opset=graph.opset, import_domains=graph.import_domains, name=graph.name
    )
    exported: ModelProto = gs.export_onnx(piece, do_type_check=False)
    exported.ir_version = 8  # of graphsurgeon's own choice otherwise, which may be newer than ONNX Runtime knows
    return exported


def _is_made_of_weights(tensor: gs.Tensor) -> bool:
    if isinstance(tensor, gs.Constant):
        return True
    return bool(tensor.inputs) and all(_is_made_of_weights(each) for maker in tensor.inputs for each in maker.inputs)


def _summary(model: ModelProto) -> dict[str, Any]:
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    return {
        "inputs": {value.name for value in graph.input} - weights,
        "outputs": {value.name for value in graph.output},
        "weights": weights,
        "nodes": {node.name: (node.op_type, tuple(node.input), tuple(node.output)) for node in graph.node},
    }


# Attributes that ONNX allows, exporters write, and TensorRT plugins keep their state in.
AWKWARD = {
    "empty list": helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS),
    "not text": helper.make_attribute("state", b"\x00\xff\xfe"),
}


@pytest.mark.parametrize("what", AWKWARD)
def test_why_nodes_are_not_rebuilt_by_graphsurgeon(what: str) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Plugin", ["a"], ["b"], domain="my.plugins", doc_string="a note"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    nodes[1].attribute.append(AWKWARD[what])
    x, y = (tensor_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = model_of(nodes, [x], [y], domains=["my.plugins"])
    with pytest.raises(ValueError):  # noqa: PT011 - either of two kinds, with a message of its own
        gs.export_onnx(gs.import_onnx(model))
    network = Network(model)
    piece = cut(network, [1, 2], {}, _no_value)
    assert piece.proto.graph.node[0].SerializeToString() == model.graph.node[1].SerializeToString()
    assert (piece.inputs, piece.outputs) == (("a",), ("y",))
