"""Counts of the nodes that a lowering changes, and of those that it cannot, in bodies and functions too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from bisect_trt.onnxlib.functions import inline_functions, is_call
from bisect_trt.onnxlib.low_plan import Planner, ShapeValues, Stays
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, bodies, first_output


@dataclass
class Census:
    """The number of nodes that are lowered, Casts aside, and of those that cannot be, by reason and operator."""

    lowered: int = 0
    left: Counter[tuple[Stays, str]] = field(default_factory=Counter)


def count_lowered(
    network: Network,
    keep: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
    low: int = TensorProto.FLOAT16,
) -> Census:
    """Return what :func:`lower_fp16` does with the nodes of a model, in bodies and functions too.

    Args:
        network: The model.
        keep: The nodes to keep in fp32, by address; they do not count.
        dtypes: ``TensorProto.DataType`` of tensors with a type that ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    if network.proto.functions:
        network = Network(inline_functions(network.proto, keep))
    model = network.proto
    planner = Planner(model, keep, low)
    census = Census()

    def count(graph: GraphProto, types: Mapping[str, int], sizes: ShapeValues, path: str) -> None:
        for node, slots in zip(graph.node, planner.plan(graph, types, sizes, path), strict=True):
            if slots.inputs or slots.outputs:
                census.lowered += node.op_type != "Cast"
            elif slots.stays is not None:
                domain = "" if node.domain in DEFAULT_DOMAINS else f"{node.domain}."
                census.left[slots.stays, f"{domain}{node.op_type}"] += 1
            for body, inside in planner.bodies_of(node, types, path):
                count(body, inside, sizes.inside(body), f"{path}{first_output(node)}/")

    count(model.graph, {**(dtypes or {}), **network.element_types}, ShapeValues(), "")
    return census


def lowers_inside(model: ModelProto, node: NodeProto, dtypes: Mapping[str, int], low: int) -> bool:
    """Return whether a node of the main graph has nodes to lower in its bodies, or in the function that it calls.

    Args:
        model: The model.
        node: The node.
        dtypes: ``TensorProto.DataType`` by tensor.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    if not any(bodies(node)) and not is_call(model, node):
        return False
    return count_lowered(Network(Planner(model, (), low).alone(node, dtypes)), low=low).lowered > 0
