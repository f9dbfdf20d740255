"""Wrong values that a refusal further down comes of are named first, alone; the nodes in between are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import text_model
from conftest import CommandLine
from support import onnx_tool, rest_slow

pytestmark = pytest.mark.any_version
WRONG_SHAPE = (
    "node.op_type = 'Transpose'; node.attribute.add(name='perm', type='INTS', ints=[1, 0])"
)
WRONG_INDEX = "node.op_type = 'Mul'"


def tool(change: str) -> str:
    """A tool that changes the node that makes ``bad``."""
    lines = (
        "for node in model.graph.node:",
        f"    if node.output[0] == 'bad': {change}",
        "del model.graph.value_info[:]",
        "for value in model.graph.output: value.type.tensor_type.ClearField('shape')",
    )
    return onnx_tool("\n".join(lines))


def shapes() -> onnx.ModelProto:
    text = "a = Abs(x) bad = Neg(a) b = Tanh(bad) c = Exp(b) d = Add(a, c) y = Relu(d)"
    return text_model("(float[2, 3] x) => (float[2, 3] y)", text, opset=17)


def indices() -> onnx.ModelProto:
    text = "a = Abs(i) bad = Div(a, hundred) b = Abs(bad) c = Gather(x, b) y = Neg(c)"
    weights = {"hundred": np.array(100, np.int64)}
    return text_model("(float[4, 3] x, int64[2] i) => (float[2, 3] y)", text, weights, opset=17)


@pytest.mark.parametrize(
    ("command", "make", "change"),
    rest_slow(
        [
            ("reduce", shapes, WRONG_SHAPE),
            ("diagnose", indices, WRONG_INDEX),
            ("diagnose", shapes, WRONG_SHAPE),
            ("reduce", indices, WRONG_INDEX),
        ],
        now=2,
    ),
)
def test_wrong_values_are_named_and_not_the_refusal_that_comes_of_them(
    cli: CommandLine, here: Path, command: str, make: Callable[[], onnx.ModelProto], change: str
) -> None:
    model = make()
    onnx.save(model, here / "m.onnx")
    np.savez(
        "in.npz", x=np.ones((4, 3) if make is indices else (2, 3), np.float32), i=np.array([1, 2])
    )
    if make is shapes:
        np.savez("in.npz", x=np.arange(6, dtype=np.float32).reshape(2, 3))
    output = {"reduce": "r.onnx", "diagnose": "d"}[command]
    words = [
        command,
        "m.onnx",
        "--load-inputs",
        "in.npz",
        "--through",
        tool(change),
        "-o",
        output,
        "--json",
        "r.json",
    ]
    result = cli(*words).ended(0).result
    assert [each["outputs"] for each in result["culprits"]] == [["bad"]]
    assert result["minimality"] == "1-minimal"


def test_wrong_values_behind_the_refused_node_are_no_reason_for_it(
    cli: CommandLine, here: Path
) -> None:
    text = "up = Neg(x) bad = Exp(up) y = Relu(bad)"
    onnx.save(text_model("(float[2, 3] x) => (float[2, 3] y)", text, opset=17), here / "m.onnx")
    change = onnx_tool(
        "made = {node.output[0]: node for node in model.graph.node}\n"
        "if 'bad' in made: made['bad'].op_type = 'Tanh'\n"
        "if {'up', 'bad'} <= made.keys(): made['up'].op_type = 'Mystery'"
    )
    words = ("reduce", "m.onnx", "-o", "r.onnx", "--json", "r.json")
    result = cli(*words, "--through", change).ended(3).result
    assert {each["outputs"][0] for each in result["culprits"]} == {"up", "bad"}
