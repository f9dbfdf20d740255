"""The graph of a model: nodes by number, producers and consumers of each tensor, and a topological order for searches.

It is immutable. Nodes stay the protobuf messages of the original; ``cut.py`` explains why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from graphlib import CycleError
from itertools import chain
from typing import TYPE_CHECKING

import onnx

from bisect_trt.aliases import Names
from bisect_trt.errors import ModelFileError
from bisect_trt.onnxlib.functions import flattened
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.nodes import (
    IR_WITHOUT_INITIALIZER_INPUTS,
    Node,
    captured_names,
    describe_module,
    drawing_nodes,
    held,
    is_end,
    label,
    module_of,
    reads,
)
from bisect_trt.onnxlib.shapes import tensor_infos
from bisect_trt.tensors.info import TensorInfo

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs


_INVALID = "so the model is not valid ONNX."


_SHAPE_BYTES = 1 << 16
"""A larger weight is no shape: inference gets only its type, since it copies, and no message can
have 2 GB."""


def infer(
    network: Network, *, follow_values: bool = False
) -> dict[str, onnx.ValueInfoProto] | None:
    """Return the types that are declared and inferred, of sequences too, by name; ``None`` where inference fails.

    Args:
        network: The model.
        follow_values: Whether sizes that nodes compute from shapes are propagated.
    """
    source = network.proto
    types = dict(network.declared)
    model = onnx.ModelProto(
        ir_version=max(source.ir_version, IR_WITHOUT_INITIALIZER_INPUTS),
        opset_import=source.opset_import,
        functions=source.functions,
    )
    graph = model.graph
    graph.node.extend(network.nodes[index] for index in network.order)
    for end in filter(is_end, graph.node):
        # ONNX Runtime's Q/DQ of 16 bits infer as ONNX's.
        end.domain = ""
    for name in network.consumers:
        weight = network.initializers.get(name)
        # Inference reads the values of small weights, such as the shape of a Reshape.
        if weight is not None and weight.ByteSize() <= _SHAPE_BYTES:
            graph.initializer.append(weight)
        elif name not in network.producer and name in types:
            graph.input.append(types[name])
    typed = network.producer.keys() & types.keys()
    graph.value_info.extend(types[name] for name in typed - network.returned)
    graph.output.extend(types[name] for name in network.outputs if name in typed)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=follow_values).graph
    except Exception:
        # ONNX raises several exceptions, for an unknown operator for example.
        return None
    for value in chain(inferred.value_info, inferred.output):
        if value.HasField("type"):
            types[value.name] = value
    return types


def depth_first_order(count: int, parents: Callable[[int], Iterable[int]]) -> list[int]:
    """Return so many node numbers so that each follows its parents and a branch stays in one piece.

    It is the post-order of a depth-first walk against the edges. Contiguous windows are therefore
    mostly connected regions, and cutting one out opens few edges; exporters often write breadth
    first.

    Raises:
        CycleError: The second argument is a node on a cycle.
    """
    done: list[int] = []
    new, open_, closed = range(3)
    state = bytearray(count)
    used = {parent for node in range(count) for parent in parents(node)}
    # Sinks first; only a cycle leaves others unvisited.
    for start in sorted(range(count), key=used.__contains__):
        stack = [(start, iter(parents(start)))] if state[start] == new else []
        # An explicit stack: a chain of thousands of nodes would exceed Python's recursion limit.
        state[start] = state[start] or open_
        while stack:
            node, unvisited = stack[-1]
            parent = next((p for p in unvisited if state[p] != closed), None)
            if parent is None:
                stack.pop()
                state[node] = closed
                done.append(node)
            elif state[parent] == open_:
                raise CycleError("a node depends on itself", parent)
            else:
                state[parent] = open_
                stack.append((parent, iter(parents(parent))))
    return done


class Network:
    """The graph of a model.

    Attributes:
        proto: The model; read-only.
        nodes: Its nodes, by number, in the file's order.
        order: Node numbers in topological order: depth first from the outputs, so that a branch
            stays together.
        rank: The place of each node in ``order``.
        reads: The tensors that each node reads, captured ones of nested graphs included; no empty
            names, no repeats.
        producer: The node that makes a tensor, by tensor name.
        consumers: The nodes that read a tensor, by tensor name.
        inputs: Names of the graph's inputs that are not initializers.
        outputs: Names of the graph's outputs, in order.
        returned: The same as a set.
        initializers: Weights by name.
        constant: Whether each node depends on no graph input, and so only makes a weight.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        """Read the structure.

        Raises:
            UnavailableError: The graph has a cycle, a tensor made twice, or one that nothing makes.
        """
        graph = proto.graph
        self.proto = proto
        self.nodes: Sequence[onnx.NodeProto] = graph.node
        self.initializers: dict[str, onnx.TensorProto] = {
            tensor.name: tensor for tensor in graph.initializer
        }
        self.inputs = [value.name for value in graph.input if value.name not in self.initializers]
        self.outputs = [value.name for value in graph.output]
        self.returned = frozenset(self.outputs)
        self._made: list[Names] = [tuple(filter(None, node.output)) for node in self.nodes]
        self.reads: list[Names] = [tuple(dict.fromkeys(reads(node))) for node in self.nodes]
        self._fed = frozenset(self.inputs)
        self.producer: dict[str, int] = {}
        self.consumers: dict[str, list[int]] = {}
        self._number_ends()
        self._check_dangling()
        try:
            self.order = depth_first_order(len(self.nodes), self.parents)
        except CycleError as error:
            cycle = self.describe(error.args[1])
            raise ModelFileError(f"the graph has a cycle through {cycle}, {_INVALID}") from None
        self.rank = {index: place for place, index in enumerate(self.order)}
        self.constant = self._find_constants()

    def _number_ends(self) -> None:
        """Fill ``producer`` and ``consumers``."""
        if len(self.inputs) > len(self._fed):
            name = next(name for name in self.inputs if self.inputs.count(name) > 1)
            raise ModelFileError(f"the graph has two inputs named '{name}', {_INVALID}")
        for index in range(len(self.nodes)):
            for name in self.reads[index]:
                self.consumers.setdefault(name, []).append(index)
            for name in self.made(index):
                if name in self.producer:
                    raise ModelFileError(f"the tensor '{name}' is made by two nodes, {_INVALID}")
                if name in self._fed or name in self.initializers:
                    raise ModelFileError(
                        f"{self.describe(index)} makes '{name}', which is an input or an initializer too, {_INVALID}"
                    )
                self.producer[name] = index

    def _check_dangling(self) -> None:
        for name in (*self.consumers, *self.outputs):
            if (
                name not in self.producer
                and name not in self._fed
                and name not in self.initializers
            ):
                if name not in self.consumers:
                    raise ModelFileError(f"nothing makes the output '{name}', {_INVALID}")
                raise ModelFileError(
                    f"{self.describe(self.consumers[name][0])} reads '{name}', which no node, input or initializer makes, "
                    f"{_INVALID}"
                )

    def _find_constants(self) -> list[bool]:
        # Random values differ from run to run, so their nodes are no constants.
        random = frozenset(drawing_nodes(self.proto))
        constant = [False] * len(self.nodes)
        for index in self.order:
            constant[index] = (
                index not in random
                and self._fed.isdisjoint(self.reads[index])
                and all(constant[parent] for parent in self.parents(index))
            )
        if all(constant) and any(self.reads):
            # A model without inputs: all nodes that read a tensor are searched.
            return [not reads for reads in self.reads]
        return [False] * len(constant) if all(constant) else constant

    def parents(self, index: int) -> list[int]:
        """Return the nodes that make what a node reads."""
        return self.producers_of(self.reads[index])

    def producers_of(self, names: Iterable[str]) -> list[int]:
        """Return the nodes that make some tensors, in their order."""
        return [self.producer[name] for name in names if name in self.producer]

    def readers_of(self, names: Iterable[str]) -> list[int]:
        """Return the nodes that read some tensors, once for each of these."""
        return [index for name in names for index in self.consumers.get(name, ())]

    def computed_reads(self, index: int) -> list[str]:
        """Return what a node reads except weights."""
        return [name for name in self.reads[index] if not self.is_weight(name)]

    def in_order(self, nodes: Iterable[int]) -> list[int]:
        """Return nodes in topological order."""
        return sorted(nodes, key=self.rank.__getitem__)

    def made(self, index: int) -> Names:
        """Return the tensors that a node makes."""
        return self._made[index]

    def made_by(self, nodes: Iterable[int]) -> list[str]:
        """Return the tensors that some nodes make, in their order."""
        return [name for index in nodes for name in self.made(index)]

    def leading_to(self, nodes: Iterable[int], through: Callable[[str], bool] = bool) -> set[int]:
        """Return these nodes and all nodes that they depend on, ``through`` tensors for which that holds."""
        reached = set(nodes)
        waiting = list(reached)
        while waiting:
            names = self.reads[waiting.pop()]
            producers = {
                self.producer[name] for name in names if name in self.producer and through(name)
            } - reached
            reached |= producers
            waiting += producers
        return reached

    def in_file_order(self, nodes: Iterable[int]) -> list[int]:
        """Return these nodes in the file's order, or in topological order where the file has a reader before its maker."""
        ordered = sorted(nodes)
        if not self.is_sorted:
            # Sorting by rank is correct too, but the file's own order changes less of the model.
            place = {index: at for at, index in enumerate(ordered)}
            if any(
                place.get(parent, -1) > at
                for at, index in enumerate(ordered)
                for parent in self.parents(index)
            ):
                return self.in_order(ordered)
        return ordered

    @cached_property
    def is_sorted(self) -> bool:
        """Whether the file's order is topological."""
        return all(
            parent < index for index in range(len(self.nodes)) for parent in self.parents(index)
        )

    @cached_property
    def skeleton(self) -> gs.Graph:
        """The graph in onnx-graphsurgeon for walks: nodes named by their numbers, without attributes, types or data.

        Tensors that bodies capture are inputs of their nodes. Treat it as read-only; its ``copy()``
        can be changed.
        """
        import onnx_graphsurgeon as gs  # noqa: PLC0415 - most searches do not need it

        model = onnx.ModelProto(
            ir_version=onnx.IR_VERSION, opset_import=[onnx.helper.make_opsetid("", 1)]
        )
        graph = model.graph
        for index, node in enumerate(self.nodes):
            graph.node.add(
                name=str(index),
                op_type=node.op_type,
                input=self.reads[index],
                output=self.made(index),
            )
        # An empty tensor stands for the data, which a walk does not need.
        for name in self.initializers:
            graph.initializer.add(name=name, data_type=onnx.TensorProto.UINT8, dims=[0])
        for field, names in ((graph.input, self.inputs), (graph.output, self.outputs)):
            for name in names:
                field.add(name=name)
        return gs.import_onnx(model)

    @cached_property
    def flat(self) -> Network:
        """The nodes of bodies and functions with Q/DQ too; see :func:`~bisect_trt.onnxlib.functions.flattened`."""
        model = flattened(self.proto)
        return self if model is self.proto else Network(model)

    @cached_property
    def has_external_data(self) -> bool:
        """Whether any weight is external."""
        return has_external_data(self.proto)

    def stored(self, name: str) -> onnx.TensorProto | None:
        """Return the tensor of an initializer or of a Constant; ``None`` for another tensor."""
        if name in self.initializers:
            return self.initializers[name]
        return held(self.nodes[self.producer[name]]) if name in self.producer else None

    def is_weight(self, name: str) -> bool:
        """Return whether a tensor is an initializer or made by a constant node."""
        maker = self.producer.get(name)
        return name not in self._fed if maker is None else self.constant[maker]

    @cached_property
    def names(self) -> frozenset[str]:
        """All tensor names, those in bodies too."""
        captured = (captured_names(node) for node in self.nodes)
        return frozenset(self.inputs).union(self.initializers, self.producer, *captured)

    @cached_property
    def computed(self) -> list[str]:
        """The tensors that nodes make which are not constant, in topological order."""
        return self.made_by(index for index in self.order if not self.constant[index])

    @cached_property
    def declared(self) -> dict[str, onnx.ValueInfoProto]:
        """The types that the model declares, its weights' too, by tensor name."""
        graph = self.proto.graph
        weights = (
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in graph.initializer
        )
        values = chain(weights, graph.value_info, graph.input, graph.output)
        return {value.name: value for value in values if value.HasField("type")}

    @cached_property
    def inferred(self) -> dict[str, onnx.ValueInfoProto]:
        """The types that are declared or inferred by ONNX, also of sequences, by tensor name."""
        return infer(self) or self.declared

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        """Declared and inferred types and shapes of plain tensors, as NumPy's."""
        return tensor_infos(self.inferred)

    @cached_property
    def element_types(self) -> dict[str, int]:
        """The known element types of tensors, as ONNX's numbers, by name."""
        types = ((name, value.type.tensor_type.elem_type) for name, value in self.inferred.items())
        return {name: int(kind) for name, kind in types if kind}

    def describe(self, index: int) -> str:
        """Return a node for messages: its operator, and its name or its first output."""
        return f"{self.nodes[index].op_type} '{label(self.nodes[index])}'"

    def plain(self, index: int) -> Node:
        """Return a node as results have it: name, operator, outputs, and its module if known."""
        node = self.nodes[index]
        outputs = tuple(self.made(index))
        return Node(name=node.name, op=node.op_type, outputs=outputs, module=module_of(node))

    def written(self, index: int) -> str | None:
        """Return the module and source line of a node; see :func:`~bisect_trt.onnxlib.nodes.describe_module`."""
        module = module_of(self.nodes[index])
        return None if module is None else describe_module(module)
