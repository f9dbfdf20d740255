"""A model as the search sees it: nodes by number, who makes and who reads each tensor, and the order in which it is walked.

Read once, never changed. Nodes are kept as the protobuf messages of the original; ``cut.py`` says why.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from sys import intern
from typing import TYPE_CHECKING, Any, TypeVar

import onnx
from google.protobuf.message import Message

from bisect_trt.errors import ModelFileError
from bisect_trt.onnxlib.exported import describe_module, module_of
from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.onnxlib.nodes import Draws, captured_names, label, reads
from bisect_trt.onnxlib.shapes import Declarations, infer
from bisect_trt.tensors.info import Infos

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs


_M = TypeVar("_M", bound=Message)
_LARGE = 4096
"""Bytes: what is larger holds a weight, which is not kept twice."""
_GRAPH_OF_MODEL, NODE, INITIALIZER, VALUE_INFO = (number << 3 | 2 for number in (7, 1, 5, 13))
"""Tags of fields (onnx.proto): the number, and 2 for what says its length."""


def _field(tag: int, *parts: bytes | bytearray) -> tuple[bytes | bytearray, ...]:
    """A message, in pieces, as a field of another: the tag, the length in groups of seven bits, the message."""
    head, length = bytearray([tag]), sum(map(len, parts))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head), *parts


class Written:
    """Messages of a kind as fields of the graph that has them: small ones are serialized once, all in one piece of memory."""

    def __init__(self, tag: int, messages: Sequence[Message]) -> None:
        """``messages`` do not change; ``tag`` is that of their field."""
        self._tag, self._messages = tag, messages
        kept, self._ends = bytearray(), array("Q", [0])
        for message in messages:
            kept += b"" if message.ByteSize() > _LARGE else self.other(message)
            self._ends.append(len(kept))
        self._kept = bytes(kept)

    def __getitem__(self, place: int) -> bytes:
        return self._kept[self._ends[place] : self._ends[place + 1]] or self.other(self._messages[place])

    def other(self, message: Message) -> bytes:
        """Another message, as such a field."""
        return b"".join(_field(self._tag, message.SerializeToString(deterministic=True)))


class Named(Mapping[str, _M]):
    """Messages by name; Python holds none of them, for each in its hands takes half a kilobyte.

    Attributes:
        places: Where each stands in the field that has them.
    """

    def __init__(self, messages: Sequence[_M], names: Iterable[str]) -> None:
        self._messages = messages
        self.places = {intern(name): place for place, name in enumerate(names)}

    def __getitem__(self, name: str) -> _M:
        return self._messages[self.places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places


def model_bytes(head: bytes, graph: Sequence[bytes | bytearray], tail: bytes) -> bytes:
    """A model: its fields before the graph, the graph in pieces that are in the order of its own, and the fields behind it."""
    return b"".join((head, *_field(_GRAPH_OF_MODEL, *graph), tail))


def depth_first_order(count: int, parents: Callable[[int], Iterable[int]]) -> list[int]:
    """Order nodes so that each comes after its parents and a branch stays in one piece.

    Post-order of a depth-first walk against the edges: before a node, all of one parent's chain, then all of the next
    one's. Contiguous windows of the result are therefore mostly connected regions, which the order of many exporters
    (breadth first) is not; cutting a window out then opens few edges.

    Args:
        count: How many nodes there are.
        parents: Gives the nodes that one depends on.

    Returns:
        Node numbers. Nodes on a cycle, and those that depend on one, are missing.
    """
    done: list[int] = []
    state = bytearray(count)  # 0 not seen, 1 on the stack, 2 in the order, 3 stands on a cycle
    used = bytearray(count)
    for node in range(count):
        for needed in parents(node):
            used[needed] = 1
    sinks = (node for node in range(count) if not used[node])
    for start in chain(sinks, range(count)):  # only a cycle leaves nodes unvisited that something depends on
        stack = [(start, iter(parents(start)))] if state[start] == 0 else []
        state[start] = state[start] or 1
        while stack:
            node, rest = stack[-1]
            parent = next((p for p in rest if state[p] != 2), None)
            if parent is None:
                stack.pop()
                state[node] = 2
                done.append(node)
            elif state[parent] == 0:
                state[parent] = 1
                stack.append((parent, iter(parents(parent))))
            else:  # on the stack already: a cycle
                for member, _ in stack:
                    state[member] = 3
                stack.clear()
    return done


class Network:
    """The graph of a model.

    Attributes:
        proto: The model; treat it as read-only.
        nodes: Its nodes, by number, in the file's order.
        order: Node numbers in topological order: depth first from the outputs, so that a branch stays together.
        rank: The place of each node in ``order``.
        reads: For each node the tensors it consumes, captured ones of nested graphs included; no empty names, no repeats.
        producer: The node that makes a tensor, by the tensor's name.
        consumers: The nodes that read a tensor, by the tensor's name.
        inputs: Names of the graph's inputs that are not initializers.
        outputs: Names of the graph's outputs, in order.
        initializers: Weights by name.
        constant: For each node whether it depends on no graph input (so it only makes a weight).
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        """Read the structure.

        Raises:
            UnavailableError: The graph has a cycle, a tensor made twice, or one that nothing makes.
        """
        graph = proto.graph
        self.proto = proto
        self.nodes: Sequence[onnx.NodeProto] = graph.node
        self.initializers = Named(graph.initializer, (tensor.name for tensor in graph.initializer))
        sparse = graph.sparse_initializer
        self.sparse_initializers = Named(sparse, (tensor.values.name for tensor in sparse))
        self.inputs = [value.name for value in graph.input if not self._is_stored(value.name)]
        self.outputs = [value.name for value in graph.output]
        # Protobuf is slow to ask again, and makes each name anew. What one node makes, one node alone mostly reads.
        same: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._made: list[tuple[str, ...]] = []
        self.reads: list[tuple[str, ...]] = []
        for node in self.nodes:
            made = tuple(name for name in map(intern, node.output) if name)
            read = tuple(dict.fromkeys(map(intern, reads(node))))
            self._made.append(same.setdefault(made, made))
            self.reads.append(same.setdefault(read, read))
        del same
        self._fed = frozenset(self.inputs)
        self.producer: dict[str, int] = {}
        self.consumers: dict[str, Sequence[int]] = {}
        self._number_ends()
        self._check_dangling()
        self.order = depth_first_order(len(self.nodes), self.parents)
        if len(self.order) < len(self.nodes):
            raise ModelFileError(
                f"the graph has a cycle through {self.describe(self._on_cycle())}, so the model is not valid ONNX."
            )
        self.rank = array("L", bytes(len(self.nodes) * array("L").itemsize))
        for place, index in enumerate(self.order):
            self.rank[index] = place
        self.constant = self._find_constants()

    def _is_stored(self, name: str) -> bool:
        return name in self.initializers or name in self.sparse_initializers

    def _number_ends(self) -> None:
        """Find who makes and who reads each tensor."""
        if len(self.inputs) > len(self._fed):
            name = next(name for name in self.inputs if self.inputs.count(name) > 1)
            raise ModelFileError(f"the graph has two inputs named '{name}', so the model is not valid ONNX.")
        several: dict[str, list[int]] = {}
        for index in range(len(self.nodes)):
            alone = (index,)  # one for all that this node alone reads
            for name in self.reads[index]:
                if (first := self.consumers.setdefault(name, alone)) is not alone:
                    several.setdefault(name, [*first]).append(index)
            for name in self.made(index):
                if name in self.producer:
                    raise ModelFileError(f"the tensor '{name}' is made by two nodes, so the model is not valid ONNX.")
                if name in self._fed or self._is_stored(name):
                    raise ModelFileError(
                        f"{self.describe(index)} makes '{name}', which is an input or an initializer too, "
                        "so the model is not valid ONNX."
                    )
                self.producer[name] = index
        self.consumers |= several

    def _on_cycle(self) -> int:
        """A node that depends on itself: walking back among the nodes that have no place in the order ends on one."""
        left = set(range(len(self.nodes))).difference(self.order)
        seen: set[int] = set()
        node = min(left)
        while node not in seen:
            seen.add(node)
            node = next(parent for parent in self.parents(node) if parent in left)
        return node

    def _check_dangling(self) -> None:
        for index, names in enumerate(self.reads):
            for name in names:
                if name not in self.producer and name not in self._fed and not self._is_stored(name):
                    raise ModelFileError(
                        f"{self.describe(index)} reads '{name}', which no node, input or initializer makes, "
                        "so the model is not valid ONNX."
                    )
        for name in self.outputs:
            if name not in self.producer and name not in self._fed and not self._is_stored(name):
                raise ModelFileError(f"nothing makes the output '{name}', so the model is not valid ONNX.")

    def _find_constants(self) -> list[bool]:
        random = Draws(self.proto, {}, unsure=True)  # they depend on no input, and are no constants
        constant = [False] * len(self.nodes)
        for index in self.order:
            constant[index] = (
                self._fed.isdisjoint(self.reads[index])
                and all(constant[parent] for parent in self.parents(index))
                and not random.by(self.nodes[index])
            )
        if all(constant):
            # A model without inputs: every node that computes is worth searching, only bare weights are not.
            return (
                [not self.reads[index] for index in range(len(self.nodes))]
                if any(self.reads)
                else [False] * len(constant)
            )
        return constant

    def parents(self, index: int) -> list[int]:
        """The nodes that make what a node reads."""
        return [self.producer[name] for name in self.reads[index] if name in self.producer]

    def made(self, index: int) -> tuple[str, ...]:
        """The tensors that a node makes."""
        return self._made[index]

    def leading_to(self, nodes: Iterable[int], *, constants: bool = False) -> set[int]:
        """These nodes and all that they depend on; of that, with ``constants``, only what makes weights."""
        found = set(nodes)
        waiting = list(found)
        while waiting:
            more = {each for each in self.parents(waiting.pop()) if self.constant[each] or not constants} - found
            found |= more
            waiting += more
        return found

    def in_file_order(self, nodes: Iterable[int]) -> list[int]:
        """These nodes as they stand in the file, or in topological order where a reader stands before its maker there."""
        ordered = sorted(nodes)
        if not self.is_sorted:
            place = {index: at for at, index in enumerate(ordered)}
            if any(place.get(parent, -1) > at for at, index in enumerate(ordered) for parent in self.parents(index)):
                return sorted(ordered, key=self.rank.__getitem__)
        return ordered

    @cached_property
    def is_sorted(self) -> bool:
        """Whether each node of the file stands behind those that make what it reads."""
        return all(parent < index for index in range(len(self.nodes)) for parent in self.parents(index))

    @cached_property
    def skeleton(self) -> gs.Graph:
        """The graph in onnx-graphsurgeon, of what it takes to select from it: nodes named by their numbers, and tensors.

        Nodes have no attributes; what their bodies take from outside is among their inputs. Tensors have no types and no
        data. Treat it as read-only; its ``copy()`` can be changed.
        """
        import onnx_graphsurgeon as gs  # noqa: PLC0415 - most searches select by numbers, and their start would wait for it

        model = onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=[onnx.helper.make_opsetid("", 1)])
        graph = model.graph
        for index, node in enumerate(self.nodes):
            graph.node.add(name=str(index), op_type=node.op_type, input=self.reads[index], output=self.made(index))
        for name in (*self.initializers, *self.sparse_initializers):
            graph.initializer.add(name=name, data_type=onnx.TensorProto.UINT8, dims=[0])
        for field, names in ((graph.input, self.inputs), (graph.output, self.outputs)):
            for name in names:
                field.add(name=name)
        return gs.import_onnx(model)

    @cached_property
    def first_readers(self) -> frozenset[int]:
        """The nodes that read an input, or a weight that no node makes."""
        return frozenset(i for i, reads in enumerate(self.reads) if any(name not in self.producer for name in reads))

    @cached_property
    def last_makers(self) -> frozenset[int]:
        """The nodes that make a tensor which no node reads, or which the graph returns."""
        last = self.returned.union(self.producer.keys() - self.consumers.keys())
        return frozenset(self.producer[name] for name in last if name in self.producer)

    @cached_property
    def has_external_data(self) -> bool:
        """Whether any weight lies outside the model's file."""
        return has_external_data(self.proto)

    @cached_property
    def written_nodes(self) -> Written:
        """The nodes as bytes, by number."""
        return Written(NODE, self.nodes)

    @cached_property
    def written_weights(self) -> Written:
        """The initializers as bytes, in the file's order."""
        return Written(INITIALIZER, self.proto.graph.initializer)

    def written_weight(self, name: str) -> bytes:
        """An initializer as bytes."""
        return self.written_weights[self.initializers.places[name]]

    @cached_property
    def stated(self) -> list[tuple[str, bytes]]:
        """What the model says of its inner tensors, as bytes, by name, in the file's order."""
        values = self.proto.graph.value_info
        written = Written(VALUE_INFO, values)
        return [(value.name, written[place]) for place, value in enumerate(values)]

    def is_weight(self, name: str) -> bool:
        """Whether a tensor is an initializer, or made by a node that depends on no input."""
        maker = self.producer.get(name)
        return name not in self._fed if maker is None else self.constant[maker]

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name of a tensor, those in bodies too."""
        captured = (captured_names(node) for node in self.nodes)
        return frozenset(self.inputs).union(self.initializers, self.sparse_initializers, self.producer, *captured)

    @cached_property
    def returned(self) -> frozenset[str]:
        """Names of the graph's outputs, to look one up."""
        return frozenset(self.outputs)

    @cached_property
    def computed(self) -> list[str]:
        """Every tensor made by a node that is not constant, in topological order."""
        return [name for index in self.order if not self.constant[index] for name in self.made(index)]

    @cached_property
    def declared(self) -> Declarations:
        """The types that the model itself declares, those of its weights too, by tensor name."""
        graph = self.proto.graph
        dense = ((tensor.name, tensor.data_type, tensor.dims) for tensor in graph.initializer)
        sparse = ((t.values.name, t.values.data_type, t.dims) for t in graph.sparse_initializer)
        declared = Declarations()
        for name, kind, dims in chain(dense, sparse):
            value = onnx.ValueInfoProto(name=name)
            tensor = value.type.tensor_type
            tensor.elem_type = kind
            tensor.shape.SetInParent()
            for dim in dims:
                tensor.shape.dim.add(dim_value=dim)
            declared.put(value)
        for value in chain(graph.value_info, graph.input, graph.output):
            if value.HasField("type"):
                declared.put(value)
        return declared

    @cached_property
    def inferred(self) -> Declarations:
        """The types that are declared and that ONNX's shape inference finds, of sequences too, by tensor name."""
        return infer(self) or self.declared

    @cached_property
    def infos(self) -> Infos:
        """The same of plain tensors, as types and shapes of NumPy."""
        return self.inferred.infos()

    @cached_property
    def element_types(self) -> dict[str, int]:
        """ONNX's element type of each tensor that has a known one, by name."""
        types = ((name, value.type.tensor_type.elem_type) for name, value in self.inferred.items())
        return {name: int(kind) for name, kind in types if kind}

    def describe(self, index: int) -> str:
        """A node in words, for messages: its operator, and its name or what it makes."""
        return f"{self.nodes[index].op_type} '{label(self.nodes[index])}'"

    def plain(self, index: int) -> dict[str, Any]:
        """A node as plain values: name, operator, outputs, and the module that it comes from, if the file says so."""
        node, module = self.nodes[index], module_of(self.nodes[index])
        known = {"name": node.name, "op": node.op_type, "outputs": list(self.made(index))}
        return known if module is None else {**known, "module": module.to_json()}

    def written(self, index: int, *, short: bool = False) -> str | None:
        """Where a node was written, in words; see :func:`~bisect_trt.onnxlib.exported.describe_module`."""
        module = module_of(self.nodes[index])
        return None if module is None else describe_module(module.to_json(), short=short)
