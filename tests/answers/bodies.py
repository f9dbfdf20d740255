"""Models with one node ``outer`` that has a body, with other nodes before and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from support import line, model_of

STEPS = 6
"""Iterations of a Loop or Scan."""
KINDS = ("if", "nested", "loop", "scan", "function")
Steps = Callable[[str, str], list[onnx.NodeProto]]
"""Makes the nodes of a body, between the tensor that they read and the one that they return."""
_OPSET = 17


def adding(names: str) -> Steps:
    """Nodes of these names, one behind the other; each adds 1, a weight of the graph around the body."""
    words = names.split()

    def steps(begin: str, end: str) -> list[onnx.NodeProto]:
        read = [begin, *(f"{name}_out" for name in words[:-1])]
        ends = zip(words, read, [*read[1:], end], strict=True)
        return [
            helper.make_node("Add", [one, "one"], [made], name=name) for name, one, made in ends
        ]

    return steps


def with_body(
    path: Path,
    kind: str,
    steps: Steps,
    around: int = 2,
    shape: Sequence[int] = (2, 4),
    weights: dict[str, float] | None = None,
    name: str = "outer",
) -> Path:
    """Write a chain with a node of a kind in its middle, and its inputs, zeros, beside it.

    Args:
        path: The model's file; its inputs are ``.npz``.
        kind: One of ``KINDS``: an If, an If within an If, a Loop of six iterations, a Scan, a call
            of a function.
        steps: The nodes of its body.
        around: The number of nodes before it, and behind it.
        shape: Of all tensors in the chain.
        weights: Weights that the body reads, besides ``one``.
        name: The node's name.
    """
    before = line([("Add", "one", f"b{place}") for place in range(around)])
    after = line([("Add", "one", f"e{place}") for place in range(around)])
    read = before[-1].output[0]
    after[0].input[0] = "outer_out"
    stored: dict[str, Any] = {
        "one": 1.0,
        **(weights or {}),
        "yes": np.array(1, bool),
        "count": np.array(STEPS, np.int64),
    }
    stored["rows"] = np.zeros((STEPS, *shape), np.float32)
    captured = [name for name in stored if name not in ("yes", "count", "rows")]
    end = after[-1].output[0]
    outer = _outer(kind, steps, read, captured, shape)
    outer.name = name
    nodes = [*before, outer, *after]
    model = model_of(nodes, stored, inputs={"x": shape}, outputs={end: shape}, opset=_OPSET)
    if kind == "function":
        opset = helper.make_opsetid("", _OPSET)
        model.functions.append(
            helper.make_function(
                "local", "block", ["a", *captured], ["t"], steps("a", "t"), [opset]
            )
        )
        model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    np.savez(path.with_suffix(".npz"), x=np.zeros(shape, np.float32))
    return path


def _outer(
    kind: str, steps: Steps, read: str, captured: Sequence[str], shape: Sequence[int]
) -> onnx.NodeProto:
    """The node with the body, which makes ``outer_out``."""

    def typed(
        name: str, dims: Sequence[int] = shape, element: int = TensorProto.FLOAT
    ) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element, dims)

    def branches(name: str, nodes: Sequence[onnx.NodeProto], end: str, made: str) -> onnx.NodeProto:
        other = helper.make_node("Neg", [read], [f"{name}_neg"], name=f"{name}_no")
        taken = helper.make_graph(nodes, "taken", [], [typed(end)])
        left = helper.make_graph([other], "left", [], [typed(f"{name}_neg")])
        return helper.make_node(
            "If", ["yes"], [made], name=name, then_branch=taken, else_branch=left
        )

    if kind == "if":
        return branches("outer", steps(read, "t"), "t", "outer_out")
    if kind == "nested":
        return branches("outer", [branches("inner", steps(read, "t"), "t", "u")], "u", "outer_out")
    if kind == "loop":
        go = helper.make_node("Identity", ["go"], ["still"], name="go_on")
        fed = [typed("i", (), TensorProto.INT64), typed("go", (), TensorProto.BOOL), typed("s")]
        returned = [typed("still", (), TensorProto.BOOL), typed("t")]
        body = helper.make_graph([go, *steps("s", "t")], "body", fed, returned)
        return helper.make_node("Loop", ["count", "", read], ["outer_out"], name="outer", body=body)
    if kind == "scan":
        add = helper.make_node("Add", ["s", "row"], ["r"], name="add_row")
        body = helper.make_graph(
            [add, *steps("r", "t")], "body", [typed("s"), typed("row")], [typed("t")]
        )
        return helper.make_node(
            "Scan", [read, "rows"], ["outer_out"], name="outer", body=body, num_scan_inputs=1
        )
    return helper.make_node("block", [read, *captured], ["outer_out"], name="outer", domain="local")
