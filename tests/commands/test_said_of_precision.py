"""What `diagnose` and `layerwise` say where a low precision is the reason: what is proven, what is mild, what was not rounded."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import read_json

WIDTH = 16


class Sketch:
    """Nodes in a row, each named like what it makes; ``x`` is fed."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def op(self, name: str, op: str, *inputs: str | float | np.ndarray, **attributes: Any) -> str:
        names = []
        for value in inputs:
            if not isinstance(value, str):
                self.weights.append(numpy_helper.from_array(np.asarray(value, np.float32), f"w{len(self.weights)}"))
            names.append(value if isinstance(value, str) else self.weights[-1].name)
        self.nodes.append(helper.make_node(op, names, [name], name=name, **attributes))
        return name

    def save(self, path: Path, shape: Sequence[int] = (4, WIDTH)) -> Path:
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))]
        made = [onnx.ValueInfoProto(name=self.nodes[-1].output[0])]
        graph = helper.make_graph(self.nodes, "g", ends, made, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
        return path


def moments(path: Path) -> Path:
    """A variance as the mean of the squares less the square of the mean: most of its nodes are needed, few are suspected."""
    g = Sketch()
    weight = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)) / 4
    g.op("far", "Add", g.op("tanh", "Tanh", g.op("product", "MatMul", "x", weight)), 8.0)
    g.op("mean", "ReduceMean", "far", axes=[-1])
    g.op("mean square", "ReduceMean", g.op("squares", "Mul", "far", "far"), axes=[-1])
    g.op("variance", "Sub", "mean square", g.op("square", "Mul", "mean", "mean"))
    g.op("deviation", "Sqrt", g.op("safe", "Max", "variance", 1e-3))
    g.op("y", "Div", g.op("centred", "Sub", "far", "mean"), "deviation")
    return g.save(path)


@pytest.mark.slow
def test_what_diagnose_calls_minimal_was_proven(cli: CommandLine) -> None:
    """Also where few of the needed nodes are suspected."""
    ran = cli("diagnose", moments(Path("model.onnx")), "--onnxrt", "--fp16", "--json", "r.json")
    result = read_json(Path("r.json"))
    assert result["minimality"] == "1-minimal", ran.out
    assert result["minimal_proven"]
    asked = cli(
        "precision", "model.onnx", "-o", "m.onnx", "--onnxrt", "--fp16", "--json", "r.json", "--fresh-samples", "0"
    )
    result = read_json(Path("r.json"))
    assert result["minimal_proven"] == (result["minimality"] == "1-minimal"), asked.out


def test_what_an_origin_reads_is_said_to_be_off_by_less(cli: CommandLine) -> None:
    """By definition an origin reads nothing as wrong as what it makes, so it cannot be said to read what is wrong."""
    g = Sketch()
    g.op("near", "Sub", g.op("far", "Add", "x", 20.0), 20.0)  # loses some digits, far fewer than all
    g.op("much", "Pow", g.op("hundreds", "Mul", "near", 400.0), 2.0)
    g.op("y", "Sqrt", g.op("mean", "ReduceMean", "much", axes=[1]))
    ran = cli("layerwise", g.save(Path("model.onnx")), "--onnxrt", "--fp16", "--json", "r.json")
    result = read_json(Path("r.json"))
    assert [origin["node"]["name"] for origin in result["origins"]] == ["much"], ran.out
    assert not next(each for each in result["tensors"] if each["name"] == "hundreds")["passed"]
    assert "input 'hundreds'" in ran.out
    assert "does not match" not in ran.out


# A fused group that is off by one quantization step, within the tolerance, and nodes behind it that amplify the step.


TOOL = '''
"""Fuses DequantizeLinear, {fused} and QuantizeLinear, one step too high in the first element of each row."""

import sys

import numpy as np
import onnx

model = onnx.load(sys.argv[1])
made = {{name: node for node in model.graph.node for name in node.output}}
for node in list(model.graph.node):
    middle = made.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
    first = made.get(middle.input[0]) if middle is not None and middle.op_type == "{fused}" else None
    if first is not None and first.op_type == "DequantizeLinear":
        step = np.zeros({size}, np.float32)
        step[0] = {step}
        model.graph.initializer.append(onnx.numpy_helper.from_array(step, "off"))
        add = onnx.helper.make_node("Add", [node.input[0], "off"], ["stepped"])
        node.input[0] = "stepped"
        model.graph.node.insert(list(model.graph.node).index(node), add)
onnx.save(model, sys.argv[2])
'''


SIZE, SCALE = 64, 0.02


def quantized(path: Path, fused: str, gain: float) -> Path:
    """x is quantized, passes ``fused`` between Q and DQ, and a norm without its mean amplifies what is left."""
    node = helper.make_node
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, SIZE]) for name in ("x", "y")]
    weights: dict[str, np.ndarray] = {
        "s": np.array(SCALE, np.float32),
        "z": np.array(0, np.int8),
        "gain": np.array(gain, np.float32),
        "bias": np.array(-gain, np.float32),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dequantize"),
        node(fused, ["d"], ["r"], name="fused"),
        node("QuantizeLinear", ["r", "s", "z"], ["q2"], name="quantize2"),
        node("DequantizeLinear", ["q2", "s", "z"], ["d2"], name="dequantize2"),
        node("Mul", ["d2", "gain"], ["m"], name="much"),
        node("Exp", ["m"], ["e"], name="exp"),
        node("Mul", ["e", "gain"], ["y"], name="more"),
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize(("fused", "gain"), [("Relu", 4.0)])
def test_the_nodes_that_differ_are_named_and_not_those_that_amplify(
    cli: CommandLine, here: Path, fused: str, gain: float
) -> None:
    model, tool = quantized(here / "model.onnx", fused, gain), here / "tool.py"
    tool.write_text(TOOL.format(fused=fused, size=SIZE, step=SCALE))
    words = shlex.join([sys.executable, str(tool), "{model}", "{out}"])
    ran = cli("diagnose", model, "--through", words, "--json", "r.json", "-o", "out")
    result = read_json(here / "r.json")
    assert ran.status == 0, ran.out + ran.err
    assert {node["name"] for node in result["culprits"]} == {"dequantize", "fused", "quantize2"}, ran.out
    assert "amplify" in result["why"]
    assert {node.name for node in onnx.load("out/model.onnx").graph.node} > {"dequantize", "fused", "quantize2"}
