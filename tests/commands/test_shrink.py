"""The tensors of the minimal case get smaller, axis by axis where those of one size do not go together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import arrays

SIZE = 16


def square(path: Path, op: str, weight: np.ndarray) -> Path:
    """One node on a square input and a square weight."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE, SIZE]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(weight.astype(np.float32), "w")]
    graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"], name="only")], "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def lonely() -> np.ndarray:
    """One element, off the diagonal, that fp16 does not have."""
    weight = np.ones((SIZE, SIZE))
    weight[11, 3] = 1e5
    return weight


@pytest.mark.parametrize(
    ("op", "weight", "shapes", "probes"),
    [
        # Only the whole sum is too large; the outer axes are of the same size as the one that is summed over.
        ("MatMul", np.full((SIZE, SIZE), 4100.0), [(1, SIZE), (SIZE, 1)], 12),
        ("Mul", lonely(), [(1, 1), (1, 1)], 6),
    ],
    ids=["one axis stays", "off the diagonal"],
)
def test_axes_of_one_size_that_are_not_linked(
    cli: CommandLine, op: str, weight: np.ndarray, shapes: list[tuple[int, ...]], probes: int
) -> None:
    options = ["--onnxrt", "--fp16", "--val-range", "[1,1]", "-o", "out.onnx"]
    ran = cli("reduce", square(Path("model.onnx"), op, weight), *options)
    assert ran.status == 0, ran.err
    (left,) = onnx.load("out.onnx").graph.initializer
    assert [arrays("out.inputs.npz")["x"].shape, tuple(left.dims)] == shapes
    assert ran.out.count("  probe ") <= probes
