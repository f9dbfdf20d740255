"""Nodes that can be computed in fp16 or bf16: the low-precision positions of each, and the reason where there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import Enum, auto

import onnx
from msgspec import Struct
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from bisect_trt.errors import UnsuitableModelError
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    IR_WITHOUT_INITIALIZER_INPUTS,
    Types,
    bodies,
    captured_names,
    defined_names,
    first_output,
    function_key,
    opset_of,
    reads,
)

LOW_TYPES: dict[str, int] = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""The low precisions, with ONNX's element types."""
LOW_NAMES = {element: name for name, element in LOW_TYPES.items()}
FIRST_OPSET: dict[int, int] = {TensorProto.FLOAT16: 6, TensorProto.BFLOAT16: 13}
"""The first opset with a Cast to it; since opset 6 Cast names its type by number."""
CONSTANT_OPS = ("Constant", "ConstantOfShape")
READS_ANY_TYPE = ("Shape", "Size", "Cast")
"""Operators that read a tensor of any type, without a Cast before."""
_FP32_INPUTS = {
    ("Range", "T"),  # indices: 2049 is no fp16 number
    ("OneHot", "T1"),  # indices
    ("OneHot", "T2"),  # depth
    ("Resize", "T2"),  # the region of interest, in coordinates
    ("BitCast", "T1"),  # a type of another size cannot be cast bit by bit
}
"""Type variables of operators' schemas for positions rather than values."""


def check_opset(model: ModelProto, low: int) -> int | None:
    """Return the opset of ONNX's own domain; ``None`` if the model has only others.

    Raises:
        UsageError: Its opset has no Cast to ``low``.
    """
    opset = opset_of(model)
    if opset is not None and opset < FIRST_OPSET[low]:
        raise UnsuitableModelError(
            f"The model has opset {opset}; {LOW_NAMES[low]} lowering needs {FIRST_OPSET[low]} or later: convert it with "
            "onnx.version_converter first."
        )
    return opset


class Stays(Enum):
    """Why a node that computes in fp32 cannot be lowered."""

    DOMAIN = auto()
    """Its operator is of another domain than ONNX's."""
    FUNCTION = auto()
    """It calls a function that cannot be inlined."""
    UNTYPED = auto()
    """It reads or makes a tensor of unknown type."""
    OPERATOR = auto()
    """ONNX's schema does not allow the low precision at the model's opset."""


class Slots(Struct, frozen=True):
    """Positions in a node's ``input`` and ``output`` of the low precision; none if it stays in fp32, with the reason."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    stays: Stays | None = None


class ShapeValues(Struct):
    """The tensors of a graph, and of those around it, that are constants or computed from shapes alone."""

    constants: set[str] = set()
    derived: set[str] = set()

    def inside(self, body: GraphProto) -> ShapeValues:
        """Return what a body knows of them."""
        local = defined_names(body)
        return ShapeValues(self.constants - local, self.derived - local)


class Planner:
    """Selects the low-precision positions of a model's nodes, in its main graph and in bodies.

    In fp32 stay: kept nodes, with all in their bodies; constants (their consumers decide); other
    domains, calls of functions, and sequences; types that the operator's schema does not allow; and
    float arithmetic on shapes, which TensorRT computes on the host in fp32 too.
    """

    def __init__(self, model: ModelProto, keep: Collection[str], low: int) -> None:
        """Read what nodes are selected by.

        Args:
            model: The model.
            keep: The nodes to keep in fp32, by address; see
                :func:`~bisect_trt.onnxlib.nodes.addressed`.
            low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        """
        self.model = model
        self._keep = frozenset(keep)
        self.low = low
        self._opset = opset_of(model) or 1
        self._functions = frozenset(map(function_key, model.functions))

    def plan(
        self, graph: GraphProto, dtypes: Types, sizes: ShapeValues, path: str = ""
    ) -> list[Slots]:
        """Return the positions of each node of one graph.

        Args:
            graph: The main graph, or a body.
            dtypes: ``TensorProto.DataType`` by tensor.
            sizes: Of the graphs around it; this graph's are added.
            path: The beginning of the addresses of its nodes.
        """
        slots = []
        for node in graph.node:
            stays = self.keeps(node, path) or (
                node.op_type in CONSTANT_OPS and node.domain in DEFAULT_DOMAINS
            )
            slots.append(Slots() if stays or any(bodies(node)) else self._slots(node, dtypes))
        readers = _readers(graph)
        for index in _shape_arithmetic(graph, slots, dtypes, readers, sizes):
            slots[index] = Slots()
        for index, node in enumerate(graph.node):
            if node.op_type == "Cast" and not any(
                place in slots[i].inputs for i, place in readers[node.output[0]]
            ):
                # No lowered node reads its output.
                slots[index] = Slots()
        return slots

    def keeps(self, node: NodeProto, path: str) -> bool:
        """Return whether a node, and what is in its bodies, is kept in fp32."""
        return path + first_output(node) in self._keep

    def bodies_of(
        self, node: NodeProto, dtypes: Types, path: str
    ) -> list[tuple[GraphProto, dict[str, int]]]:
        """Return the bodies of a node to be lowered, each with the types of its tensors and of those around.

        Args:
            node: The node.
            dtypes: ``TensorProto.DataType`` by tensor, of those around.
            path: The beginning of the node's address.
        """
        if self.keeps(node, path) or not any(bodies(node)):
            return []
        single = self.alone(node, dtypes)
        # ONNX raises several exceptions for unknown operators; declared types are used then.
        with suppress(Exception):
            single = onnx.shape_inference.infer_shapes(single)
        inferred = bodies(single.graph.node[0])
        return [
            (body, {**dtypes, **_declared_types(typed)})
            for body, typed in zip(bodies(node), inferred, strict=True)
        ]

    def alone(self, node: NodeProto, dtypes: Types) -> ModelProto:
        """Return a model of one node, with the tensors that it reads as inputs of types in ``dtypes``."""
        single = ModelProto(ir_version=max(self.model.ir_version, IR_WITHOUT_INITIALIZER_INPUTS))
        single.opset_import.extend(self.model.opset_import)
        single.functions.extend(self.model.functions)
        single.graph.node.append(node)
        for name in sorted(set(reads(node))):
            typed = name in dtypes
            value = (
                helper.make_tensor_value_info(name, dtypes[name], None)
                if typed
                else ValueInfoProto(name=name)
            )
            single.graph.input.append(value)
        return single

    def _slots(self, node: NodeProto, dtypes: Types) -> Slots:
        if function_key(node) in self._functions:
            return Slots(stays=Stays.FUNCTION)
        if node.domain not in DEFAULT_DOMAINS:
            return Slots(stays=Stays.DOMAIN)
        if any(name and name not in dtypes for name in (*node.input, *node.output)):
            return Slots(stays=Stays.UNTYPED)
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, "")
        except (onnx.defs.SchemaError, TypeError):
            # The operator is unknown, or the version of the opset is past 32 bits.
            return Slots(stays=Stays.OPERATOR)
        return (
            Slots(stays=Stays.OPERATOR)
            if schema.deprecated
            else _by_schema(node, schema, dtypes, self.low)
        )


def plan_slots(
    model: ModelProto,
    keep: Collection[str],
    dtypes: Types,
    low: int = TensorProto.FLOAT16,
) -> list[Slots]:
    """Return the low-precision positions of each node of the main graph; see :class:`Planner`.

    Args:
        model: The model, nodes in topological order.
        keep: The nodes to keep in fp32, by address.
        dtypes: ``TensorProto.DataType`` by tensor.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    return Planner(model, keep, low).plan(model.graph, dtypes, ShapeValues())


def _declared_types(graph: GraphProto) -> dict[str, int]:
    """Return the element types that a graph declares."""
    types = {tensor.name: int(tensor.data_type) for tensor in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    return types | {
        value.name: int(kind) for value in values if (kind := value.type.tensor_type.elem_type)
    }


def _floats(names: Collection[str], dtypes: Types) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if dtypes.get(name) == TensorProto.FLOAT)


def _by_schema(node: NodeProto, schema: onnx.defs.OpSchema, dtypes: Types, low: int) -> Slots:
    """Return the positions with a type variable that may be ``low``; see ONNX's IR.md, "Operator signatures"."""
    wanted = f"tensor({TensorProto.DataType.Name(low).lower()})"
    floats = Slots(_floats(node.input, dtypes), _floats(node.output, dtypes))
    if node.op_type == "Cast":
        return Slots(outputs=floats.outputs)
    if node.op_type in READS_ANY_TYPE:
        return Slots()
    allowed = {
        constraint.type_param_str: constraint.allowed_type_strs
        for constraint in schema.type_constraints
    }
    # A variadic last parameter covers all further ones.
    inputs, outputs = (
        {place: parameters[min(place, len(parameters) - 1)].type_str for place in places}
        for parameters, places in ((schema.inputs, floats.inputs), (schema.outputs, floats.outputs))
    )
    positional = {
        variable for variable in inputs.values() if (node.op_type, variable) in _FP32_INPUTS
    }
    half = {variable for variable in inputs.values() if wanted in allowed.get(variable, ())}
    half -= positional
    # Inputs do not determine the output type of RandomNormalLike and EyeLike: leave them.
    if any(variable in allowed and variable not in half for variable in outputs.values()):
        return Slots(stays=Stays.OPERATOR)
    low_inputs = frozenset(i for i, variable in inputs.items() if variable in half)
    low_outputs = frozenset(i for i, variable in outputs.items() if variable in half)
    unable = bool(floats.inputs) and not low_inputs and not positional
    return Slots(low_inputs, low_outputs, Stays.OPERATOR if unable else None)


def _readers(graph: GraphProto) -> dict[str, list[tuple[int, int]]]:
    """Return the readers of each tensor: node and input position, or -1 for a body that captures it."""
    readers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        for position, name in enumerate(node.input):
            readers[name].append((index, position))
        for name in captured_names(node):
            readers[name].append((index, -1))
    return readers


def _derive(graph: GraphProto, sizes: ShapeValues) -> list[int]:
    """Return the nodes with values that follow from shapes alone, which are sizes or indices; ``sizes`` gets them."""
    constants = sizes.constants
    constants.update(tensor.name for tensor in graph.initializer)
    constants.add("")
    derived = sizes.derived
    nodes = []
    for index, node in enumerate(graph.node):
        sources = set(node.input)
        # A body may read anything, so nothing follows about its results.
        if any(bodies(node)):
            continue
        if node.op_type in ("Shape", "Size") or (
            sources & derived and sources <= derived | constants
        ):
            derived.update(node.output)
            nodes.append(index)
        elif sources <= constants:
            constants.update(node.output)
    return nodes


def _shape_arithmetic(
    graph: GraphProto,
    slots: list[Slots],
    dtypes: Types,
    readers: Mapping[str, list[tuple[int, int]]],
    sizes: ShapeValues,
) -> set[int]:
    """Return the nodes that compute only sizes, in floats: from shapes, for integers or scales.

    A mask that is made from a shape is none of them: data depends on it. Graph outputs make no
    difference, so that marking outputs changes no value.

    Args:
        graph: The main graph, or a body.
        slots: The low-precision positions of its nodes.
        dtypes: ``TensorProto.DataType`` by tensor.
        readers: The readers of each tensor.
        sizes: Of the graphs around it; this graph's are added.
    """
    size_nodes: set[int] = set()

    def ends_in_sizes(name: str) -> bool:
        for index, position in readers[name]:
            node = graph.node[index]
            if node.op_type == "Cast" and index not in size_nodes:
                if dtypes.get(node.output[0]) in (
                    TensorProto.FLOAT,
                    TensorProto.FLOAT16,
                    TensorProto.DOUBLE,
                ):
                    return False
            # An output of the graph is read by what is not known.
            elif position < 0 or (position in slots[index].inputs and index not in size_nodes):
                return False
        return True

    # Readers come later in the order, so they are decided first.
    for index in reversed(_derive(graph, sizes)):
        floats = [
            name for name in graph.node[index].output if dtypes.get(name) == TensorProto.FLOAT
        ]
        if (floats and all(map(ends_in_sizes, floats))) or (not floats and slots[index].inputs):
            size_nodes.add(index)
    return size_nodes
