"""Which nodes of a model a search for precision may lower, and the models that it cannot be about."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import onnx
from onnx import TensorProto

from bisect_trt.errors import UsageError
from bisect_trt.graph.lower import LOW_TYPES, check_opset, plan_slots
from bisect_trt.graph.network import Network
from bisect_trt.graph.values import element_type
from bisect_trt.workflows.subject import Subject

OPERATOR = "op:"
"""Before a pattern that is about operators and not about names."""
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def known_types(subject: Subject) -> dict[str, int]:
    """ONNX's element type of each tensor, as it ran or else as inference says."""
    return {name: element_type(info.dtype) for name, info in subject.infos.items()}


def refuse_lowered(network: Network, name: str) -> None:
    """Make sure that a model is an fp32 one.

    Args:
        network: The model.
        name: Its file, for messages.

    Raises:
        UsageError: It has low-precision tensors already, or quantized ones.
    """
    quantized = [index for index, node in enumerate(network.nodes) if node.op_type in _QUANTIZED]
    if quantized:
        raise UsageError(
            f"{name} is quantized ({network.describe(quantized[0])}; {len(quantized)} such nodes in all), so what it "
            "computes in fp32 is not known; give the model from before quantization."
        )
    types = {n: v.type.tensor_type.elem_type for n, v in {**network.declared, **network.inferred}.items()}
    lowered = [tensor for tensor, element in types.items() if element in LOW_TYPES.values()]
    if lowered:
        kind = TensorProto.DataType.Name(types[lowered[0]]).lower()
        raise UsageError(
            f"{name} is in low precision already ('{lowered[0]}' is {kind}; {len(lowered)} such tensors in all), so what "
            "it computes in fp32 is not known; give the fp32 model that it was made from."
        )


def lowerable_units(
    subject: Subject, precision: str, types: Mapping[str, int], include: Sequence[str], exclude: Sequence[str]
) -> list[int]:
    """The units that compute in fp32 and may be lowered, in topological order.

    The others stay as they are: integers and bools, arithmetic on shapes, scales of Resize and the like, control flow,
    custom operators, what ONNX does not allow in the low precision, and what only makes weights.

    Args:
        subject: The model.
        precision: ``fp16`` or ``bf16``.
        types: ONNX's element type of each tensor.
        include: If any, only nodes that one of these patterns matches.
        exclude: No node that one of these matches.

    Raises:
        UsageError: The opset is too old, a pattern matches no node, or nothing is left.
    """
    network = subject.network
    check_opset(network.proto, LOW_TYPES[precision])
    slots = plan_slots(network.proto, (), types, opaque=False, low=LOW_TYPES[precision])
    units = [unit for unit in subject.units.searched if (slot := slots[network.order[unit]]).inputs or slot.outputs]
    if not units:
        raise UsageError(
            f"{subject.settings.path} has no node that computes in fp32 and can be lowered to {precision}, so there is "
            "nothing to search."
        )
    wanted = _matching(network, "--include", include) if include else range(len(network.nodes))
    unwanted = _matching(network, "--exclude", exclude)
    chosen = [unit for unit in units if (index := network.order[unit]) in wanted and index not in unwanted]
    if not chosen:
        raise UsageError(
            f"--include and --exclude leave none of the {len(units)} nodes that can be lowered to {precision}; widen the "
            "patterns."
        )
    return chosen


def _matching(network: Network, option: str, patterns: Sequence[str]) -> Collection[int]:
    """The nodes that some pattern matches; each has to match one."""
    found: set[int] = set()
    for pattern in patterns:
        matched = [index for index, node in enumerate(network.nodes) if _matches(node, pattern)]
        if not matched:
            raise UsageError(
                f"{option} '{pattern}' matches no node of the model; a pattern is a glob over the names of nodes, or with "
                "op: before it over operators (op:Softmax)."
            )
        found.update(matched)
    return found


def _matches(node: onnx.NodeProto, pattern: str) -> bool:
    if pattern.startswith(OPERATOR):
        return fnmatchcase(node.op_type, pattern.removeprefix(OPERATOR))
    # A node without a name goes by what it makes, as in all messages.
    return fnmatchcase(node.name or next(filter(None, node.output), ""), pattern)
