"""What a process does once: a model is parsed once, and orders that come to the same are one build.

On the stand-in, whose builder notes in what types each layer was told to run when it is asked for an engine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import overflowing
from trt_api import OLD, STRONG, WEAK
from trt_standin import StandIn, make_tensorrt, trt_target

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt import builder
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.builder import build_engine
from bisect_trt.targets.trt.parse import Orders, Parsed, name_nodes
from bisect_trt.targets.trt.plans import network_key

on_each = pytest.mark.parametrize("version", [OLD, WEAK])


PARSERS_OWN = {"QuantizeLinear": "INT8", "DequantizeLinear": "INT8", "Softmax": "a type"}
"""What the stand-in's parser tells layers by itself: TensorRT 8.6's tells those that quantize to make INT8."""


QUANTIZING = (("Quantize", "x", "q"), ("Dequantize", "q", "d"))


class Tensor(StandIn):
    """A float."""

    def __init__(self, version: str) -> None:
        types = make_tensorrt(version).trt.DataType
        super().__init__(
            version, "ITensor", {"dtype": types.FLOAT, "is_shape_tensor": False, "is_network_output": False}
        )


class Layer(StandIn):
    """A layer of one node with one output, which remembers what it is told."""

    def __init__(self, version: str, name: str, kind: str = "SOFTMAX") -> None:
        kinds, made = make_tensorrt(version).trt.LayerType, Tensor(version)
        super().__init__(
            version,
            "ILayer",
            {
                "name": name,
                "type": kinds[kind],
                "num_inputs": 0,
                "num_outputs": 1,
                "get_output": lambda _: made,
                "precision_is_set": False,
                "output_type_is_set": lambda _: "output" in self.values,
                "get_output_type": lambda _: self.values["output"],
                "set_output_type": lambda _, kind: self.values.update(output=kind),
                "reset_output_type": lambda _: self.values.pop("output"),
                "reset_precision": self._reset,
            },
        )

    def _reset(self) -> None:
        self.values.pop("precision")
        self.values["precision_is_set"] = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "precision":
            self.values["precision_is_set"] = True

    @property
    def told(self) -> tuple[Any, Any]:
        return self.values.get("precision"), self.values.get("output")


class Builds:
    """A TensorRT whose builds are counted: what each was told of its layers, and how often a model was parsed."""

    def __init__(self, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[list[tuple[Any, Any]]] = []
        self.parsed = 0
        self.tensorrt: TensorRt = make_tensorrt(version)
        self.tensorrt.builder.values["build_serialized_network"] = self._build
        self._version = version
        monkeypatch.setattr(builder, "parse", self._parse)
        monkeypatch.setattr(builder, "_use_timing_cache", lambda *_: None)

    def _parse(self, model: onnx.ModelProto, *_: Any) -> Parsed:
        self.parsed += 1
        # What a Constant makes cannot be held to a type.
        kinds = {"Constant": "CONSTANT", "QuantizeLinear": "QUANTIZE", "DequantizeLinear": "DEQUANTIZE"}
        layers = [Layer(self._version, node.name, kinds.get(node.op_type, "SOFTMAX")) for node in model.graph.node]
        for layer, node in zip(layers, model.graph.node, strict=True):
            if node.op_type in PARSERS_OWN:
                layer.precision = PARSERS_OWN[node.op_type]
                layer.set_output_type(0, PARSERS_OWN[node.op_type])
        values = {"num_inputs": 0, "num_outputs": 0, "num_layers": len(layers), "get_layer": layers.__getitem__}
        network = StandIn(self._version, "INetworkDefinition", values)
        return Parsed(network, model, Orders(network))

    def _build(self, network: StandIn, _: StandIn) -> bytes:
        self.told.append([network.get_layer(index).told for index in range(network.num_layers)])
        return f"engine {len(self.told)}".encode()

    def __call__(self, path: Path, settings: TargetSettings) -> bytes:
        model = onnx.load(path)
        name_nodes(model)
        return build_engine(model, path, settings, None, self.tensorrt)[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two nodes, and one that makes a weight."""
    model = onnx.load(overflowing(tmp_path / "m.onnx"))
    weight = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["one"], value=weight))
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@on_each
def test_a_model_is_parsed_once_whatever_is_kept(version: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each build is told what a fresh one would be, whichever came before it."""
    names = [node.output[0] for node in onnx.load(path).graph.node if node.op_type != "Constant"]
    sets = [(), tuple(names[:1]), tuple(names[1:]), tuple(names), ()]
    builds = Builds(version, monkeypatch)
    fresh = []
    for keep in sets:
        settings = replace(trt_target("fp16", keep=keep), held=bool(len(keep) % 2))
        builds(path, settings)
        alone = Builds(version, monkeypatch)
        alone(path, settings)
        fresh += alone.told
        monkeypatch.setattr(builder, "parse", builds._parse)
    assert builds.told == fresh
    assert builds.parsed == 1
    assert len({repr(told) for told in fresh}) == 4


@on_each
def test_what_the_parser_told_stays(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is kept, held or built before: a layer that quantizes and does not make INT8 makes TensorRT refuse the network."""
    pair = [onnx.helper.make_node(f"{op}Linear", [read, "s"], [made], name=made) for op, read, made in QUANTIZING]
    last = onnx.helper.make_node("Softmax", ["d"], ["y"], name="y")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 4)) for name in ("x", "y")]
    scale = onnx.numpy_helper.from_array(np.array(0.1, np.float32), "s")
    path = tmp_path / "q.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([*pair, last], "g", ends[:1], ends[1:], [scale])), path)
    builds = Builds(version, monkeypatch)
    types = make_tensorrt(version).trt.DataType
    last_told = []
    for number, keep in enumerate([(), ("y",), ("q", "d", "y"), ()]):
        builds(path, replace(trt_target("fp16", keep=keep), held=number == 1))
        assert builds.told[-1][:2] == [("INT8", "INT8")] * 2
        last_told.append(builds.told[-1][2])
    assert last_told == [
        ("a type", "a type"),
        (types.FLOAT, types.FLOAT),
        (types.FLOAT, types.FLOAT),
        ("a type", "a type"),
    ]
    assert builds.parsed == 1


@on_each
def test_sets_that_come_to_the_same_orders_are_built_once(
    version: str, path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = next(node.output[0] for node in onnx.load(path).graph.node if node.op_type != "Constant")
    builds = Builds(version, monkeypatch)
    with_weight, without = (trt_target("fp16", keep=keep) for keep in ((first,), ("one", first)))
    assert builds(path, with_weight) == builds(path, without) == b"engine 1"
    assert "an engine that was built before" in capfd.readouterr().out
    assert len(builds.told) == 1
    # What is asked again shall be seen again: builds of the same differ.
    assert builds(path, without) == b"engine 2"
    assert builds(path, with_weight) == b"engine 2"
    assert builds(path, with_weight) == b"engine 3"


def test_nothing_is_taken_for_the_same_that_is_told_otherwise(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds(WEAK, monkeypatch)
    keep = ("one",)
    settings = [
        trt_target("fp16", keep=keep),
        replace(trt_target("fp16", keep=keep), held=True),
        trt_target("bf16", keep=keep),
        trt_target("fp16", keep=keep, builder_optimization_level=0),
        trt_target("fp16", keep=keep, precision_constraints="prefer"),
        trt_target("fp16"),  # nothing is held, so nothing has to be obeyed
    ]
    for each in settings:
        builds(path, each)
    assert len(builds.told) == len(settings)


def test_a_network_is_named_by_all_that_goes_into_it(path: Path, tmp_path: Path) -> None:
    def key(model: onnx.ModelProto, version: str = WEAK, feed: Any = None, **own: Any) -> bytes:
        settings = trt_target("fp16", **own)
        return network_key(model, path, settings, feed, make_tensorrt(version), show_unfused=False)

    model = onnx.load(path)
    other = onnx.load(path)
    other.graph.node[-1].name = "renamed"
    floats, sizes = {"x": np.ones(3, np.float32)}, {"s": np.array([2, 3])}
    assert key(model) == key(onnx.load(path)) == key(model, feed=floats)
    keys = [
        key(model),
        key(other),
        key(model, STRONG),
        key(model, feed=sizes),
        key(model, feed={"s": np.array([3, 2])}),
        key(model, onnx_flags=("NATIVE_INSTANCENORM",)),
        network_key(model, path, trt_target("fp16"), None, make_tensorrt(WEAK), show_unfused=True),
    ]
    assert len(set(keys)) == len(keys)
    model.graph.initializer.add(name="far", data_location=onnx.TensorProto.EXTERNAL)
    here, there = (
        network_key(model, folder / "m.onnx", trt_target(), None, make_tensorrt(WEAK), show_unfused=False)
        for folder in (tmp_path, tmp_path.parent)
    )
    assert here != there
