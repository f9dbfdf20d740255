"""The nodes that a lowering changes, and those that it cannot, in bodies and functions too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from msgspec import Struct, field
from onnx import GraphProto, TensorProto

from bisect_trt.onnxlib.bodies import has_body
from bisect_trt.onnxlib.functions import inline_functions, is_call
from bisect_trt.onnxlib.low_plan import Planner, ShapeValues, Stays
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, Node, Types, first_output, label


class Census(Struct):
    """The nodes that are lowered, Casts aside, and the number of those that cannot be, by reason and operator.

    ``lowered`` has them by address, in the order of the graph; names of nodes in bodies have the
    names of the nodes around before them, and their outputs the addresses.
    """

    lowered: dict[str, Node] = {}
    left: Counter[tuple[Stays, str]] = field(default_factory=Counter)


def count_lowered(
    network: Network,
    keep: Collection[str] = (),
    dtypes: Types | None = None,
    low: int = TensorProto.FLOAT16,
) -> Census:
    """Return what :func:`lower_fp16` does with the nodes of a model, in bodies and functions too.

    Args:
        network: The model.
        keep: The nodes to keep in fp32, by address; they do not count.
        dtypes: ``TensorProto.DataType`` of tensors with a type that ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    # Nodes of a function are lowered at each call, so they are counted at each.
    if network.proto.functions:
        network = Network(inline_functions(network.proto, keep))
    model = network.proto
    planner = Planner(model, keep, low)
    census = Census()

    def count(graph: GraphProto, types: Types, sizes: ShapeValues, path: str, around: str) -> None:
        for node, slots in zip(graph.node, planner.plan(graph, types, sizes, path), strict=True):
            address = path + first_output(node)
            name = around + label(node)
            if slots.inputs or slots.outputs:
                if node.op_type != "Cast":
                    outputs = tuple(f"{path}{output}" for output in node.output if output)
                    census.lowered[address] = Node(name=name, op=node.op_type, outputs=outputs)
            elif slots.stays is not None:
                domain = "" if node.domain in DEFAULT_DOMAINS else f"{node.domain}."
                census.left[slots.stays, f"{domain}{node.op_type}"] += 1
            for body, inside in planner.bodies_of(node, types, path):
                count(body, inside, sizes.inside(body), f"{address}/", f"{name}/")

    count(model.graph, {**(dtypes or {}), **network.element_types}, ShapeValues(), "", "")
    return census


def lowered_inside(
    network: Network, keep: Collection[str], dtypes: Types, low: int
) -> dict[str, Node]:
    """Return the lowered nodes of bodies and of functions, inlined, by address.

    Args:
        network: The model.
        keep: See :func:`count_lowered`.
        dtypes: ``TensorProto.DataType`` by tensor.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    if not any(has_body(network.proto, node) for node in network.nodes):
        return {}
    plain = {first_output(node) for node in network.nodes if not is_call(network.proto, node)}
    lowered = count_lowered(network, keep, dtypes, low).lowered
    return {address: node for address, node in lowered.items() if address not in plain}
