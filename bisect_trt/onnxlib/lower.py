"""Models lowered to fp16 or bf16: nodes with Casts at the boundaries, and stored weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from bisect_trt.errors import UnsuitableModelError
from bisect_trt.onnxlib.load import read_weight
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    IR_WITHOUT_INITIALIZER_INPUTS,
    attribute,
    bodies,
    captured_names,
    clone,
    first_output,
    free_name,
    held,
    keep_only,
    mentioned_names,
    opset_of,
)

LOW_TYPES: dict[str, int] = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""The low precisions, with ONNX's element types."""
_LOW_NAMES = {element: name for name, element in LOW_TYPES.items()}
_FIRST_OPSET: dict[int, int] = {TensorProto.FLOAT16: 6, TensorProto.BFLOAT16: 13}
"""The first opset with a Cast to it; since opset 6 Cast names its type by number."""
_CONSTANT_OPS = ("Constant", "ConstantOfShape")
_OLDEST_CUSTOM_OPSET = 9
_READS_ANY_TYPE = ("Shape", "Size", "Cast")
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
    if opset is not None and opset < _FIRST_OPSET[low]:
        raise UnsuitableModelError(
            f"The model has opset {opset}; {_LOW_NAMES[low]} lowering needs {_FIRST_OPSET[low]} or later: convert it with "
            "onnx.version_converter first."
        )
    return opset


@dataclass(frozen=True)
class Slots:
    """Positions in a node's ``input`` and ``output`` of the low precision; none if it stays in fp32."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def plan_slots(
    model: ModelProto,
    keep: Collection[str],
    dtypes: Mapping[str, int],
    low: int = TensorProto.FLOAT16,
) -> list[Slots]:
    """Return the low-precision positions of each node of the main graph.

    In fp32 stay: the nodes in ``keep``; constants (their consumers decide); control flow, other
    domains, model-local functions and sequences; types that the operator's schema does not allow;
    and float arithmetic on shapes, which TensorRT computes on the host in fp32 too.

    Args:
        model: The model.
        keep: First output tensors of the nodes to keep in fp32.
        dtypes: ``TensorProto.DataType`` by tensor.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    graph = model.graph
    opset = opset_of(model) or 1
    functions = {(function.domain, function.name) for function in model.functions}
    kept = frozenset(keep)
    slots = []
    for node in graph.node:
        stays = first_output(node) in kept or (
            node.op_type in _CONSTANT_OPS and node.domain in DEFAULT_DOMAINS
        )
        schema = None if stays else _schema(node, opset, functions, dtypes)
        slots.append(Slots() if schema is None else _by_schema(node, schema, dtypes, low))
    readers = _readers(graph)
    for index in _shape_arithmetic(graph, slots, dtypes, readers):
        slots[index] = Slots()
    for index, node in enumerate(graph.node):
        if node.op_type == "Cast" and not any(
            place in slots[i].inputs for i, place in readers[node.output[0]]
        ):
            slots[index] = Slots()  # no lowered node reads what it makes
    return slots


def _schema(
    node: NodeProto, opset: int, functions: Collection[tuple[str, str]], dtypes: Mapping[str, int]
) -> onnx.defs.OpSchema | None:
    """Return a node's schema; ``None`` for a node that cannot be lowered."""
    whole = (
        node.domain not in DEFAULT_DOMAINS
        or (node.domain, node.op_type) in functions
        or any(bodies(node))
    )
    if whole or any(name and name not in dtypes for name in (*node.input, *node.output)):
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _floats(names: Collection[str], dtypes: Mapping[str, int]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if dtypes.get(name) == TensorProto.FLOAT)


def _by_schema(
    node: NodeProto, schema: onnx.defs.OpSchema, dtypes: Mapping[str, int], low: int
) -> Slots:
    """Return the positions with a type variable that may be ``low``; see ONNX's IR.md, "Operator signatures"."""
    wanted = "tensor(float16)" if low == TensorProto.FLOAT16 else "tensor(bfloat16)"
    floats = Slots(_floats(node.input, dtypes), _floats(node.output, dtypes))
    if node.op_type == "Cast":
        return Slots(outputs=floats.outputs)
    if node.op_type in _READS_ANY_TYPE:
        return Slots()
    allowed = {
        constraint.type_param_str: constraint.allowed_type_strs
        for constraint in schema.type_constraints
    }
    # A variadic last parameter covers all further ones.
    inputs = {i: schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in floats.inputs}
    outputs = {i: schema.outputs[min(i, len(schema.outputs) - 1)].type_str for i in floats.outputs}
    half = {
        variable
        for variable in inputs.values()
        if wanted in allowed.get(variable, ()) and (node.op_type, variable) not in _FP32_INPUTS
    }
    # Inputs do not determine the output type of RandomNormalLike and EyeLike: leave them.
    if any(variable in allowed and variable not in half for variable in outputs.values()):
        return Slots()
    return Slots(
        frozenset(i for i, variable in inputs.items() if variable in half),
        frozenset(i for i, variable in outputs.items() if variable in half),
    )


def _readers(graph: GraphProto) -> dict[str, list[tuple[int, int]]]:
    """Return the readers of each tensor: node and input position, or -1 for a body that captures it."""
    readers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        for position, name in enumerate(node.input):
            readers[name].append((index, position))
        for name in captured_names(node):
            readers[name].append((index, -1))
    return readers


def _shape_arithmetic(  # noqa: C901 - two short passes that share what they learn
    graph: GraphProto,
    slots: list[Slots],
    dtypes: Mapping[str, int],
    readers: Mapping[str, list[tuple[int, int]]],
) -> set[int]:
    """Return the nodes that compute only sizes, in floats: from shapes, for integers or scales.

    A mask that is made from a shape is none of them: data depends on it. Graph outputs make no
    difference, so that marking outputs changes no value.
    """
    constants = {tensor.name for tensor in graph.initializer} | {""}
    derived: set[str] = set()
    candidates = []
    for index, node in enumerate(graph.node):
        sources = set(node.input)
        if any(bodies(node)):
            continue
        if node.op_type in ("Shape", "Size") or (
            sources & derived and sources <= derived | constants
        ):
            derived.update(node.output)
            candidates.append(index)
        elif sources <= constants:
            constants.update(node.output)
    found: set[int] = set()

    def ends_in_sizes(name: str) -> bool:
        for index, position in readers[name]:
            node = graph.node[index]
            if node.op_type == "Cast" and index not in found:
                if dtypes.get(node.output[0]) in (
                    TensorProto.FLOAT,
                    TensorProto.FLOAT16,
                    TensorProto.DOUBLE,
                ):
                    return False
            elif position < 0 or (position in slots[index].inputs and index not in found):
                return False
        return True

    for index in reversed(candidates):
        floats = [
            name for name in graph.node[index].output if dtypes.get(name) == TensorProto.FLOAT
        ]
        if (floats and all(map(ends_in_sizes, floats))) or (not floats and slots[index].inputs):
            found.add(index)
    return found


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to bfloat16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity.

    The result has the upper 16 bits of each float32, as uint16: NumPy itself has no bfloat16.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Half of the lost bits, less one if the last kept bit is 0; uint32 wraps for NaN only.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def low_tensor(values: np.ndarray, name: str, low: int) -> TensorProto:
    """Return float32 values as a tensor, rounded to fp16 or bf16 as ONNX's Cast does."""
    if low == TensorProto.FLOAT16:
        with np.errstate(over="ignore"):
            return numpy_helper.from_array(values.astype(np.float16), name)
    raw = round_to_bfloat16(values).astype("<u2").tobytes()
    return TensorProto(name=name, data_type=low, dims=values.shape, raw_data=raw)


class Rewriter:
    """A model that is rewritten node by node, from the original's ``source`` nodes; ``low`` is an ONNX element type."""

    def __init__(self, model: ModelProto, low: int) -> None:
        self.low = low
        self.source: list[NodeProto] = list(model.graph.node)
        self.model = clone(model)
        del self.model.graph.node[:]
        self._names = mentioned_names(model.graph)

    def fresh(self, stem: str) -> str:
        """Return an unused tensor name."""
        name = free_name(stem, self._names)
        self._names.add(name)
        return name

    def fresh_low(self, name: str) -> str:
        """Return an unused name for a tensor's value in the low precision."""
        return self.fresh(f"{name}_{_LOW_NAMES[self.low]}")

    def append(self, node: NodeProto) -> None:
        """Write a node."""
        self.model.graph.node.append(node)

    def cast(self, source: str, target: str, to: int) -> None:
        """Write a Cast; it has no name, since a node of the model may have a tensor's name."""
        self.append(helper.make_node("Cast", [source], [target], to=to))


def lower_fp16(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Mapping[str, int] | None = None,
    low: int = TensorProto.FLOAT16,
    weights: Path | None = None,
) -> ModelProto:
    """Return the model with each possible node in fp16 (or bf16), and Casts only at the boundaries.

    Graph inputs and outputs keep their names and types. The output of a lowered node gets a new
    name and a declaration; the old name is its fp32 value, which exists if fp32 nodes, bodies or
    graph outputs read it. :func:`plan_slots` selects the nodes.

    Args:
        model: The model, opset 6 or later (13 for bf16), nodes in topological order. External data
            may be unloaded.
        keep: First output tensors of the nodes to keep in fp32.
        dtypes: ``TensorProto.DataType`` of tensors with a type that ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
        weights: The folder with the external weights, to store them in the low precision; without
            it, they get a Cast.

    Raises:
        UsageError: The opset is too old.
    """
    work = _Lowering(model, low, weights)
    types = {**(dtypes or {}), **Network(model).element_types}
    for node, slots in zip(work.source, plan_slots(model, keep, types, low), strict=True):
        new = clone(node)
        for position, name in enumerate(node.input):
            if position in slots.inputs:
                new.input[position] = work.half(name)
            elif node.op_type in _READS_ANY_TYPE:
                new.input[position] = work.either(name)
            else:
                work.ensure_full(name)
        for name in sorted(captured_names(node)):
            work.ensure_full(name)
        for position in slots.outputs:
            new.output[position] = work.produce(node.output[position])
        if node.op_type == "Cast" and slots.outputs:
            next(each for each in new.attribute if each.name == "to").i = low
        work.append(new)
    for value in model.graph.output:
        work.ensure_full(value.name)
    return work.finish()


class _Lowering(Rewriter):
    """A rewriter that tracks the available precisions of each tensor."""

    def __init__(self, model: ModelProto, low: int, weights: Path | None) -> None:
        super().__init__(model, low)
        if check_opset(model, low) is None:  # custom operators only; a Cast needs ONNX's own domain
            version = max(_OLDEST_CUSTOM_OPSET, _FIRST_OPSET[low])
            self.model.opset_import.append(helper.make_opsetid("", version))
        listed = {value.name for value in model.graph.input}  # an input overrides the weight
        self._folder = weights or Path()
        self._weights = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if tensor.name not in listed
            and (weights is not None or tensor.data_location != TensorProto.EXTERNAL)
            and model.ir_version >= IR_WITHOUT_INITIALIZER_INPUTS
        }
        constants = (node for node in self.source if node.op_type in _CONSTANT_OPS)
        values = ((node, _constant_value(node)) for node in constants)
        self._constants = {
            node.output[0]: (node, value) for node, value in values if value is not None
        }
        self._declared = {
            value.name: value for value in (*model.graph.value_info, *model.graph.output)
        }
        self._half: dict[str, str] = {}
        self._half_only: set[str] = set()
        self._replaced: set[str] = set()

    def produce(self, name: str) -> str:
        """Return the new name of a lowered node's output."""
        new = self._half[name] = self.fresh_low(name)
        self._half_only.add(name)
        declaration = self.model.graph.value_info.add()
        declaration.CopyFrom(self._declared.get(name) or ValueInfoProto())
        declaration.name = new
        declaration.type.tensor_type.elem_type = self.low
        return new

    def half(self, name: str) -> str:
        """Return a tensor's name in the low precision, after storing a constant or writing a Cast if needed."""
        if name in self._half:
            return self._half[name]
        target = self._half[name] = self.fresh_low(name)
        if name in self._weights:
            values = read_weight(self._weights[name], self._folder)
            self.model.graph.initializer.append(low_tensor(values, target, self.low))
        elif name in self._constants:
            node, value = self._constants[name]
            stored = low_tensor(numpy_helper.to_array(value), value.name, self.low)
            self.append(helper.make_node(node.op_type, node.input, [target], value=stored))
        else:
            self.cast(name, target, self.low)
            return target
        self._replaced.add(name)
        return target

    def either(self, name: str) -> str:
        """Return a tensor's name in any available precision."""
        return self._half[name] if name in self._half_only else name

    def ensure_full(self, name: str) -> None:
        """Write a tensor's fp32 value, under its own name, if it is missing."""
        if name in self._half_only:
            self.cast(self._half[name], name, TensorProto.FLOAT)
            self._half_only.remove(name)

    def finish(self) -> ModelProto:
        """Return the model without unread weights and constants."""
        graph = self.model.graph
        read = {value.name for value in graph.output}
        read = read.union(*({*node.input, *captured_names(node)} for node in graph.node))
        unused = self._replaced - read
        keep_only(
            graph.initializer, [item for item in graph.initializer if item.name not in unused]
        )
        keep_only(graph.node, [node for node in graph.node if not unused.intersection(node.output)])
        names = mentioned_names(graph)
        keep_only(graph.value_info, [value for value in graph.value_info if value.name in names])
        return self.model


def _constant_value(node: NodeProto) -> TensorProto | None:
    """Return the float32 value of a Constant, or the fill of a ConstantOfShape; ``None`` for any other type."""
    value: TensorProto | None = held(node)
    if node.op_type == "ConstantOfShape" and node.domain in DEFAULT_DOMAINS:
        value = attribute(node, "value", numpy_helper.from_array(np.zeros(1, np.float32)))
    return value if value is not None and value.data_type == TensorProto.FLOAT else None
