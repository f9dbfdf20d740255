"""Nodes that an accelerator leaves to the CPU: each becomes the body of a Loop of one iteration.

An execution provider that compiles graphs takes no Loop (Qualcomm's HTP, most NPUs), and so not
what is in it: ONNX Runtime runs both on its CPU provider, in fp32. ONNX has no field for the device
of a node, and ONNX Runtime's rules for it (``session.layer_assignment_settings``) are not part of a
model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    bodies,
    clone,
    defined_names,
    first_output,
    free_name,
    keep_only,
    opset_of,
    rename_reads,
)
from bisect_trt.onnxlib.shapes import element_type
from bisect_trt.tensors.info import TensorInfo

_SQUEEZE_BY_INPUT = 13
"""The opset from which on Squeeze reads its axes from an input."""


def with_inferred_shapes(
    network: Network, infos: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """Return the types of tensors, with shapes where ONNX infers them and no sizes of a sample."""
    types = {name: replace(info, shape=None) for name, info in infos.items()}
    return {**types, **network.infos}


def keep_on_host(
    model: ModelProto, outputs: Collection[str], infos: Mapping[str, TensorInfo]
) -> ModelProto:
    """Return a model in which the CPU runs some nodes whatever accelerator runs the others.

    Args:
        model: The model.
        outputs: The first output of each of these nodes; a node in a body moves with the node
            around it.
        infos: Types and shapes by tensor.
    """
    # Without its shape the tensor behind a Loop would be too free for an accelerator.
    values = {
        name: helper.make_tensor_value_info(name, element_type(info.dtype), info.shape)
        for name, info in infos.items()
    }
    moved = clone(model)
    used = defined_names(moved.graph)
    opset = opset_of(moved) or 1
    nodes: list[NodeProto] = []
    for node in moved.graph.node:
        inside = (defined_names(body) for body in bodies(node))
        chosen = first_output(node) in outputs or any(
            not names.isdisjoint(outputs) for names in inside
        )
        # Of a runtime's operator on weights no type is known.
        if chosen and all(tensor in values for tensor in (*node.input, *node.output) if tensor):
            nodes += _in_loop(node, values, used, opset)
        else:
            nodes.append(node)
    keep_only(moved.graph.node, nodes)
    return moved


def _in_loop(
    node: NodeProto, values: Mapping[str, ValueInfoProto], used: set[str], opset: int
) -> list[NodeProto]:
    """Return the nodes that compute what a node computes, in a Loop; ``used`` gets their names.

    What the node reads is carried by the Loop: providers that divide a graph look at the inputs of
    nodes, and not at what a body reads from outside.
    """

    def name(stem: str) -> str:
        chosen = free_name(f"{first_output(node)}_{stem}", used)
        used.add(chosen)
        return chosen

    def described(tensor: str, like: str) -> ValueInfoProto:
        value = clone(values[like])
        value.name = tensor
        return value

    def copies(sources: Collection[str], targets: Collection[str]) -> list[NodeProto]:
        pairs = zip(sources, targets, strict=True)
        return [helper.make_node("Identity", [source], [target]) for source, target in pairs]

    once = name("once")
    axis = name("axis")
    integers = helper.make_tensor("value", TensorProto.INT64, [], [1])
    first = helper.make_tensor("value", TensorProto.INT64, [1], [0])
    reads = [tensor for tensor in dict.fromkeys(node.input) if tensor in values]
    makes = [tensor for tensor in node.output if tensor]
    inside = {tensor: name("inside") for tensor in (*reads, *makes)}
    moved = rename_reads(node, inside)
    keep_only(moved.output, [inside.get(tensor, tensor) for tensor in node.output])
    condition = name("condition")
    # A Loop has to carry its condition beside the state.
    carried = [name("carried") for _ in (condition, *reads)]
    body = helper.make_graph(
        [moved, *copies([condition, *(inside[tensor] for tensor in reads)], carried)],
        name("body"),
        [
            helper.make_tensor_value_info(name("iteration"), TensorProto.INT64, []),
            helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
            *(described(inside[tensor], tensor) for tensor in reads),
        ],
        [
            helper.make_tensor_value_info(carried[0], TensorProto.BOOL, []),
            *(described(*pair) for pair in zip(carried[1:], reads, strict=True)),
            *(described(inside[tensor], tensor) for tensor in makes),
        ],
    )
    stacked = [name("stacked") for _ in makes]
    loop = helper.make_node(
        "Loop",
        [once, "", *reads],
        [*(name("left") for _ in reads), *stacked],
        name("loop"),
        body=body,
    )
    nodes = [helper.make_node("Constant", [], [once], once, value=integers), loop]
    axes: list[str] = []
    attributes: dict[str, Any] = {"axes": [0]}
    # Since opset 13 the axes are an input. A Loop stacks what it scans on a new first axis.
    if opset >= _SQUEEZE_BY_INPUT:
        nodes.insert(1, helper.make_node("Constant", [], [axis], axis, value=first))
        axes = [axis]
        attributes = {}
    for stack, tensor in zip(stacked, makes, strict=True):
        squeezed = [stack, *axes]
        nodes.append(helper.make_node("Squeeze", squeezed, [tensor], name("squeeze"), **attributes))
    return nodes
