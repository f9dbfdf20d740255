"""A fused group that is off by one quantization step, within the tolerance, and nodes behind it that amplify the step."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import read_json

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
