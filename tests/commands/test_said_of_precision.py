"""What `diagnose` and `layerwise` say where a low precision is the reason: what is proven, what is mild, what was not rounded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import read_json, save, script

# A fused group that is off by one quantization step, within the tolerance, and nodes behind it that amplify the step.


SIZE, SCALE = 64, 0.02


def fuse(path: Path, output: Path) -> None:
    """Fuse DequantizeLinear, Relu and QuantizeLinear, one step too high in the first element of each row."""
    model = onnx.load(path)
    made = {name: node for node in model.graph.node for name in node.output}
    for node in list(model.graph.node):
        middle = made.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        first = made.get(middle.input[0]) if middle is not None and middle.op_type == "Relu" else None
        if first is not None and first.op_type == "DequantizeLinear":
            step = np.eye(1, SIZE, dtype=np.float32)[0] * np.float32(SCALE)
            model.graph.initializer.append(numpy_helper.from_array(step, "off"))
            add = helper.make_node("Add", [node.input[0], "off"], ["stepped"])
            node.input[0] = "stepped"
            model.graph.node.insert(list(model.graph.node).index(node), add)
    onnx.save(model, output)


@pytest.fixture
def tool(here: Path) -> Iterator[str]:
    """A tool's command line. This process does the work: one that imports ONNX for each model takes longer than all else."""
    asked, done = here / "asked", here / "done"
    os.mkfifo(asked)
    os.mkfifo(done)
    body = f'exec 9> "{here}/lock"; flock 9; echo "$1 $2" > "{asked}"; cat "{done}"'

    def serve() -> None:
        while words := asked.read_text().split():
            fuse(*map(Path, words))
            done.write_text("")

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    yield f"{script(here / 'tool', body)} {{model}} {{out}}"
    asked.write_text("")
    server.join()


def quantized(path: Path) -> Path:
    """x is quantized, passes a Relu between Q and DQ, and what follows amplifies what is left."""
    node = helper.make_node
    weights = {"s": SCALE, "z": np.array(0, np.int8), "gain": 4.0}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], name="quantize"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], name="dequantize"),
        node("Relu", ["d"], ["r"], name="fused"),
        node("QuantizeLinear", ["r", "s", "z"], ["q2"], name="quantize2"),
        node("DequantizeLinear", ["q2", "s", "z"], ["d2"], name="dequantize2"),
        node("Mul", ["d2", "gain"], ["m"], name="much"),
        node("Exp", ["m"], ["e"], name="exp"),
        node("Mul", ["e", "gain"], ["y"], name="more"),
    ]
    return save(path, nodes, weights, inputs={"x": [4, SIZE]}, outputs={"y": [4, SIZE]}, opset=17)


def test_the_nodes_that_differ_are_named_and_not_those_that_amplify(cli: CommandLine, here: Path, tool: str) -> None:
    ran = cli("diagnose", quantized(here / "model.onnx"), "--through", tool, "--json", "r.json", "-o", "out")
    result = read_json(here / "r.json")
    assert ran.status == 0, ran.out + ran.err
    assert {node["name"] for node in result["culprits"]} == {"dequantize", "fused", "quantize2"}, ran.out
    assert "amplify" in result["why"]
    assert {node.name for node in onnx.load("out/model.onnx").graph.node} > {"dequantize", "fused", "quantize2"}
