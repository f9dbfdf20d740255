"""Cuts of the real architectures that the onnx wheel ships."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cutting import assert_same, model_of, run, tensor_info
from light import LIGHT, tag_light
from onnx import TensorProto, helper

from bisect_trt.onnxlib.cut import Cut, cut
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import input_infos
from bisect_trt.onnxlib.units import NetworkUnits


class Whole:
    """A light model, to be cut by the types that inference finds."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = tag_light(name, folder).path
        self.network = Network(load_model(self.path))
        self.infos = self.network.infos
        self.units = NetworkUnits(self.network, self.network.computed, self.infos)

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
        assert len(piece.proto.graph.node) == len(nodes)
        assert whole.units.count(window) == len(window)
        assert all(name in whole.infos for name in piece.inputs)


AWKWARD = {
    "empty list": helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS),
    "not text": helper.make_attribute("state", b"\x00\xff\xfe"),
}


@pytest.mark.parametrize("what", AWKWARD)
def test_nodes_are_kept_to_the_byte(what: str) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Plugin", ["a"], ["b"], domain="my.plugins", doc_string="a note"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    nodes[1].attribute.append(AWKWARD[what])
    x, y = (tensor_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = model_of(nodes, [x], [y], domains=["my.plugins"])
    network = Network(model)
    piece = cut(network, [1, 2], {}, _no_value)
    assert piece.proto.graph.node[0].SerializeToString() == model.graph.node[1].SerializeToString()
    assert (piece.inputs, piece.outputs) == (("a",), ("y",))
