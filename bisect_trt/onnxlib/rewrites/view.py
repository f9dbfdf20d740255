"""What a rewrite reads of a graph, and what it writes: a fragment made with graphsurgeon, spliced in for some nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.onnxlib.lower_plan import LOW_TYPES
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    IR_WITHOUT_INITIALIZER_INPUTS,
    attribute,
    held,
    reads,
    rename_reads,
)
from bisect_trt.onnxlib.shapes import to_info
from bisect_trt.tensors.info import TensorInfo

Array = NDArray[Any]
_SMALL_BYTES = 1 << 20
"""Of a constant that a pattern looks at; larger ones are weights."""


class View:
    """A network as patterns see it.

    Attributes:
        network: The model.
        opset: Of the standard operators.
    """

    def __init__(self, network: Network, infos: Mapping[str, TensorInfo] | None = None) -> None:
        """``infos`` are types and shapes that are known better than by inference."""
        self.network = network
        self.opset = next((o.version for o in network.proto.opset_import if o.domain in DEFAULT_DOMAINS), 1)
        self._infos = infos or {}

    @cached_property
    def names(self) -> set[str]:
        """Every name that a tensor has."""
        network = self.network
        return {*network.inputs, *network.initializers, *network.producer}

    def node(self, index: int) -> onnx.NodeProto:
        """A node."""
        return self.network.nodes[index]

    def makes(self, name: str, *ops: str) -> int | None:
        """The node that makes a tensor, if it is one of these standard operators."""
        index = self.network.producer.get(name)
        if index is None:
            return None
        node = self.network.nodes[index]
        return index if node.op_type in ops and node.domain in DEFAULT_DOMAINS else None

    def readers(self, name: str) -> list[int]:
        """The nodes that read a tensor."""
        return list(self.network.consumers.get(name, ()))

    def value(self, name: str) -> Array | None:
        """The value of a small constant."""
        tensor = self.network.initializers.get(name)
        if tensor is None:
            index = self.makes(name, "Constant", "Identity", "Cast")
            if index is None:
                return None
            node = self.node(index)
            if node.op_type != "Constant":
                value = self.value(node.input[0])
                if value is None or node.op_type == "Identity":
                    return value
                to = attribute(node, "to")
                return value.astype(onnx.helper.tensor_dtype_to_np_dtype(to)) if to not in LOW_TYPES.values() else None
            tensor = held(node)
        if tensor is None or tensor.external_data or tensor.ByteSize() > _SMALL_BYTES:
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def scalar(self, name: str) -> float | None:
        """The value of a constant that is one number."""
        value = self.value(name)
        return (
            float(value.reshape(-1)[0]) if value is not None and value.size == 1 and value.dtype.kind in "fiu" else None
        )

    def info(self, name: str) -> TensorInfo | None:
        """Type and shape of a tensor, as far as they are known."""
        if name in self._infos:
            return self._infos[name]
        declared = self.network.declared.get(name) or self.network.inferred.get(name)
        return None if declared is None else to_info(declared)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor, if all of it is known."""
        info = self.info(name)
        if info is None or info.shape is None or not info.is_static:
            return None
        return tuple(int(dim or 0) for dim in info.shape)

    def is_float(self, name: str) -> bool:
        """Whether a tensor is known to be float32."""
        info = self.info(name)
        return info is not None and info.dtype == np.float32

    def axes(self, node: onnx.NodeProto) -> list[int] | None:
        """The axes that a reduction goes over; ``None`` where it goes over all, or that is not constant."""
        named = attribute(node, "axes")
        if named is None and len(node.input) > 1 and node.input[1]:
            value = self.value(node.input[1])
            named = None if value is None else value.reshape(-1).tolist()
        return None if named is None else [int(axis) for axis in named]


@dataclass
class Fragment:
    """What takes the place of some nodes.

    Attributes:
        view: The graph.
        anchor: The node that makes the first of the results, behind which nothing of the pattern stands.
        matched: All nodes of the pattern; those whose results nothing reads any more go.
        aliases: Tensors that are read in place of others.
    """

    view: View
    anchor: int
    matched: frozenset[int] = frozenset()
    aliases: dict[str, str] = field(default_factory=dict)
    _graph: gs.Graph = field(default_factory=gs.Graph)
    _tensors: dict[str, gs.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Include the anchor in the pattern."""
        self.matched |= {self.anchor}
        self._graph.opset = self.view.opset
        self._stem = next(iter(self.view.network.made(self.anchor)))

    def op(
        self,
        op: str,
        *inputs: str | Array | float,
        to: str | None = None,
        **attributes: Any,  # noqa: ANN401 - of many types
    ) -> str:
        """Add a node.

        Args:
            op: A standard operator.
            inputs: Tensors by name, or constants; numbers are float32. An empty name leaves an optional input out.
            to: The tensor that it makes, if that is one of the pattern's results.
            attributes: Its attributes.

        Returns:
            The tensor that it makes.
        """
        number = len(self._graph.nodes)
        name = to or self._fresh(f"{self._stem}/rewritten_{number}_{op}")
        self._graph.nodes.append(
            gs.Node(
                op,
                name=self._fresh(f"{self._stem}/rewritten_{number}_{op}/node"),
                attrs=attributes,
                inputs=[self._tensor(each) for each in inputs],
                outputs=[self._named(name)],
            )
        )
        return name

    def reduce(self, op: str, value: str, axes: Sequence[int], to: str | None = None) -> str:
        """Add a reduction that keeps the dimensions; its axes are an attribute or an input, as the opset has it."""
        since = {"ReduceSum": 13}.get(op, 18)
        if self.view.opset < since:
            return self.op(op, value, to=to, axes=list(axes), keepdims=1)
        return self.op(op, value, np.array(axes, np.int64), to=to, keepdims=1)

    def _tensor(self, value: str | Array | float) -> gs.Tensor:
        if isinstance(value, str):
            return self._named(value) if value else gs.Variable.empty()
        array = np.asarray(value, np.float32) if isinstance(value, float | int) else value
        return gs.Constant(self._fresh(f"{self._stem}/rewritten_constant_{len(self._tensors)}"), array)

    def _named(self, name: str) -> gs.Tensor:
        if name not in self._tensors:
            self._tensors[name] = gs.Variable(name)
        return self._tensors[name]

    def _fresh(self, name: str) -> str:
        while name in self.view.names:
            name += "_"
        self._tensors.setdefault(f"\0{name}", gs.Variable.empty())  # so that the next constant has another number
        return name

    def export(self) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
        """Its nodes in order, and its constants."""
        if not self._graph.nodes:
            return [], []
        graph = gs.export_onnx(self._graph, do_type_check=False).graph
        return list(graph.node), list(graph.initializer)


Rule = Callable[[View, int], "Fragment | None"]
"""Given a node at which its pattern may end: what takes the pattern's place."""


def splice_in(view: View, fragments: Iterable[Fragment]) -> onnx.ModelProto:
    """The model with fragments in the place of what they match; no two may redefine the same tensor.

    Messages of all other nodes are the original's own.
    """
    network, chosen = view.network, list(fragments)
    made: dict[int, list[onnx.NodeProto]] = {}
    weights: list[onnx.TensorProto] = []
    aliases: dict[str, str] = {}
    gone: set[int] = set()
    for fragment in chosen:
        nodes, constants = fragment.export()
        made[fragment.anchor] = nodes
        weights += constants
        aliases |= fragment.aliases
        gone.add(fragment.anchor)
    final = {name: _follow(aliases, name) for name in aliases}
    order = range(len(network.nodes)) if network.is_sorted else network.order
    nodes = [node for index in order for node in (made[index] if index in gone else [network.nodes[index]])]
    nodes = [rename_reads(node, final) if final and final.keys() & reads(node) else node for node in nodes]
    dead = {id(network.nodes[index]) for fragment in chosen for index in fragment.matched}
    nodes = _pruned(nodes, set(network.outputs), dead)
    return _model(network, nodes, weights)


def _follow(aliases: Mapping[str, str], name: str) -> str:
    while name in aliases:
        name = aliases[name]
    return name


def _pruned(nodes: list[onnx.NodeProto], outputs: set[str], maybe: set[int]) -> list[onnx.NodeProto]:
    """Without those of some nodes whose results nothing reads."""
    kept: list[onnx.NodeProto] = []
    read = set(outputs)
    for node in reversed(nodes):
        if id(node) in maybe and not read.intersection(node.output):
            continue
        read.update(reads(node))
        kept.append(node)
    return kept[::-1]


def _model(network: Network, nodes: Sequence[onnx.NodeProto], weights: Iterable[onnx.TensorProto]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    graph = model.graph
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in reads(node)} | {value.name for value in graph.output}
    # What is listed as an input too would have to be fed if its value were gone.
    read |= {value.name for value in graph.input}
    stored = [tensor for tensor in graph.initializer if tensor.name in read or tensor.name not in network.consumers]
    added = list(weights)
    del graph.initializer[:]
    graph.initializer.extend([*stored, *added])
    if model.ir_version < IR_WITHOUT_INITIALIZER_INPUTS:
        graph.input.extend(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in added
        )
    made = {name for node in nodes for name in node.output}
    known = [value for value in graph.value_info if value.name in made]
    del graph.value_info[:]
    graph.value_info.extend(known)
    return model
