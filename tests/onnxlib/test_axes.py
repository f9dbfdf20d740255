"""Which axes belong together: groups can be cut to any sizes of their own, and the operators still fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bisect_trt.onnxlib.shrink import Piece, axis_groups, cut_axes

SIZE = 8
CASES: dict[str, tuple[list[str], list[str], dict[str, Any], int]] = {
    # steps (operator, what it reads), what is fed with its shape, and how many groups that leaves
    "elementwise": (["Add x w", "Relu 0", "Softmax 1"], ["x ss", "w s"], {}, 2),
    "product": (["MatMul x w"], ["x ss", "w ss"], {}, 3),
    "batched": (["MatMul x w", "Add 0 b"], ["x sss", "w ss", "b s"], {}, 4),
    "attention": (["Transpose x", "MatMul y 0", "MatMul 1 x"], ["x ss", "y ss"], {}, 3),
    "gemm": (["Gemm x w b"], ["x ss", "w ss", "b s"], {"transB": 1}, 3),
    "gemm turned": (["Gemm x w b"], ["x ss", "w ss", "b s"], {"transA": 1}, 3),
    "conv": (["Conv x w b", "Relu 0"], ["x ss34", "w ss11", "b s"], {}, 3),
    "norm": (["BatchNormalization x a b c d"], ["x ss3", "a s", "b s", "c s", "d s"], {}, 2),
    "concat": (["Concat x w"], ["x ss", "w ss"], {"axis": 1}, 3),
    "gather": (["Gather x i", "Add 0 w"], ["x ss", "i s", "w s"], {}, 3),
    "turned": (["Transpose x", "Add 0 w"], ["x sss", "w sss"], {"perm": [2, 0, 1]}, 3),
    "reduced": (["ReduceMean x", "Sub x 0"], ["x ss"], {"axes": [1]}, 2),
    "another operator": (["Einsum x w"], ["x ss", "w ss"], {"equation": "ij,jk->ik"}, 1),
    "squeezed": (["Unsqueeze x one", "Mul 0 w"], ["x ss", "w sss"], {}, 3),
}


def piece_of(steps: list[str], fed: list[str], attributes: dict[str, Any]) -> Piece:
    """A model of these steps, ``0`` being what the first makes; ``w`` is a weight."""
    nodes = []
    for place, step in enumerate(steps):
        op, *reads = step.split()
        nodes.append(helper.make_node(op, reads, [str(place)], **(attributes if place == 0 else {})))
    shapes = {name: [SIZE if dim == "s" else int(dim) for dim in dims] for name, dims in map(str.split, fed)}
    values = {name: np.ones(shape, np.int64 if name == "i" else np.float32) for name, shape in shapes.items()}
    weights = [numpy_helper.from_array(values.pop("w"), "w")] if "w" in values else []
    weights.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
    ends = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in values.items()
    ]
    last = [helper.make_tensor_value_info(str(len(steps) - 1), TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "test", ends, last, weights)
    return Piece(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), values)


@pytest.mark.parametrize("kind", CASES)
def test_each_group_can_be_cut_by_itself(kind: str) -> None:
    steps, fed, attributes, count = CASES[kind]
    piece = piece_of(steps, fed, attributes)
    groups = axis_groups(piece, SIZE)
    assert len(groups) == count
    cut = cut_axes(piece, {axis: slice(0, 3 + place) for place, group in enumerate(groups) for axis in group})
    (made,) = ReferenceEvaluator(cut.proto).run(None, dict(cut.inputs))
    assert np.size(made)
    sizes = {dim for value in cut.inputs.values() for dim in value.shape}
    sizes |= {dim for tensor in cut.proto.graph.initializer for dim in tensor.dims}
    assert sizes >= {3 + place for place in range(count)}
    assert SIZE not in sizes
