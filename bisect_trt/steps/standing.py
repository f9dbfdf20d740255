"""Operators on which ONNX's reference evaluator has no vote, because it computes other values than the ONNX standard says.

Each entry is held by a test against NumPy in float64. What the evaluator refuses needs none: it has
no outputs then.
"""

from __future__ import annotations

import onnx

from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, all_nodes, attribute, opset_of

_RECURRENT = ("GRU", "LSTM", "RNN")
_RECURRENT_OBEYED = {"hidden_size", "direction", "linear_before_reset"}
_WIDEST_STRIDE = 2 if onnx.defs.onnx_opset_version() >= 23 else 0
"""The widest stride with which an AveragePool is right where the last window reaches past the padding."""
_FOUR_BITS = (onnx.TensorProto.UINT4, onnx.TensorProto.INT4)
"""Types to which a Cast rounds, and the evaluator truncates."""
_LENGTHS = 4
"""The input of a recurrent node with the lengths of the sequences."""


def objection(model: onnx.ModelProto) -> str:
    """Return why the evaluator has no vote on a model; empty if it has one."""
    opset = opset_of(model) or 1
    ours = (node for node in all_nodes(model) if node.domain in DEFAULT_DOMAINS)
    return next(filter(None, (_objection(node, opset) for node in ours)), "")


def _ignored(node: onnx.NodeProto) -> list[str]:
    """Return the attributes and inputs of a recurrent node that the evaluator ignores."""
    names = [attribute.name for attribute in node.attribute]
    ignored = [name for name in names if name not in _RECURRENT_OBEYED]
    if len(node.input) > _LENGTHS and node.input[_LENGTHS]:
        ignored.append("sequence_lens")
    return ignored


def _objection(node: onnx.NodeProto, opset: int) -> str:
    op = node.op_type
    if op in _RECURRENT:
        ignored = _ignored(node)
        return f"it ignores '{ignored[0]}' of {op}" if ignored else ""
    pixels = attribute(node, "coordinate_transformation_mode", b"")
    nearest = attribute(node, "nearest_mode", b"")
    # Each entry was held against float64 by hand; see the table in the tests.
    wrong = {
        "LRN of other channels": op == "LRN",
        "AveragePool with ceil_mode": op == "AveragePool"
        and attribute(node, "ceil_mode", 0) == 1
        and max(attribute(node, "strides", [1])) > _WIDEST_STRIDE,
        "LpNormalization of signed values": op == "LpNormalization"
        and attribute(node, "p", 2) == 1,
        f"{op} with SAME_LOWER": op == "MaxPool"
        and attribute(node, "auto_pad", b"") == b"SAME_LOWER",
        "RoiAlign before opset 16": op == "RoiAlign" and opset < 16,
        "GridSample with border": op == "GridSample"
        and attribute(node, "mode", b"") in (b"cubic", b"bicubic")
        and attribute(node, "padding_mode", b"") == b"border",
        "Resize with align_corners": op == "Resize" and pixels == b"align_corners",
        "Resize with floor or ceil": op == "Resize" and nearest in (b"floor", b"ceil"),
        "Cast to 4 bits": op == "Cast" and attribute(node, "to", 0) in _FOUR_BITS,
        "the mask of Dropout": op == "Dropout" and opset < 12 and len(node.output) > 1,
    }
    return next(
        (f"it computes {kind} in another way" for kind, applies in wrong.items() if applies), ""
    )
