"""Check for `reduce --check`: a runtime that returns the negative of one tensor, judged as its user judges it.

`python -m truth.negated TENSOR MODEL INPUTS` runs a candidate as it is and with TENSOR negated. It
fails where an output of several classes has another best class in more than 1% of the places, or an
output of one value changes by more than 5% of its range.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import helper

from truth.bare import onnxruntime_session


def negate(model: onnx.ModelProto, tensor: str) -> bool:
    """Let the node that makes a tensor, in no body, return its negative; return whether there is such a node."""
    for place, node in enumerate(model.graph.node):
        if tensor in node.output:
            slot = list(node.output).index(tensor)
            node.output[slot] = "positive"
            negative = helper.make_node("Neg", ["positive"], [tensor], name="negative")
            model.graph.node.insert(place + 1, negative)
            if not any(entry.domain == "" for entry in model.opset_import):
                model.opset_import.append(helper.make_opsetid("", 15))
            return True
    return False


def differs(expected: np.ndarray, result: np.ndarray) -> bool:
    """Return whether a user of the network gets another answer."""
    if expected.dtype.kind != "f":
        return bool(np.mean(expected != result) > 0.01)
    if expected.ndim and expected.shape[-1] > 1:
        return bool(np.mean(expected.argmax(axis=-1) != result.argmax(axis=-1)) > 0.01)
    scale = float(np.abs(expected).max(initial=1e-6))
    return bool(np.abs(expected - result).max(initial=0) > 0.05 * scale)


if __name__ == "__main__":
    tensor_name, path, inputs = sys.argv[1:4]
    feed = dict(np.load(inputs))
    candidate = onnx.load(path)
    right = onnxruntime_session(path)(feed)
    if not negate(candidate, tensor_name):
        sys.exit(0)
    wrong = onnxruntime_session(candidate.SerializeToString())(feed)
    sys.exit(any(map(differs, right, wrong)))
