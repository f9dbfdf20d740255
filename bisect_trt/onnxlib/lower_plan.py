"""What a run in fp16 (or bf16) computes in that: which element types, and which inputs and outputs of which nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from bisect_trt.errors import UnsuitableModelError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    bodies,
    captured_names,
    first_output,
)

LOW_TYPES: dict[str, int] = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
"""The precisions that a model can be lowered to, and ONNX's element types for them."""
LOW_NAMES = {element: name for name, element in LOW_TYPES.items()}
FIRST_OPSET: dict[int, int] = {TensorProto.FLOAT16: 6, TensorProto.BFLOAT16: 13}
"""The first opset with a Cast to it; Cast names its type by number, as lowering does, since opset 6."""
CONSTANT_OPS = ("Constant", "ConstantOfShape")


def tensor_dtypes(model: ModelProto, known: Mapping[str, int] | None = None) -> dict[str, int]:
    """The element types of the main graph's tensors, by name.

    Args:
        model: The model; external data is not read.
        known: Types that ONNX cannot infer, such as those behind a custom operator.

    Returns:
        ``TensorProto.DataType`` by tensor name. Sequences, optionals and what nobody knows are not in it.
    """
    types = Network(model).element_types
    return {**(known or {}), **types}


def check_opset(model: ModelProto, low: int) -> int | None:
    """Make sure that the model's operators can be lowered.

    Returns:
        The version of ONNX's own operators; ``None`` if the model has only others.

    Raises:
        UsageError: Its opset has no Cast to ``low``.
    """
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx"))
    if opset is not None and opset < FIRST_OPSET[low]:
        raise UnsuitableModelError(
            f"The model has opset {opset}; {LOW_NAMES[low]} lowering needs {FIRST_OPSET[low]} or later: convert it with "
            "onnx.version_converter first."
        )
    return opset


READS_ANY_TYPE = ("Shape", "Size", "Cast")
"""Operators for which a tensor need be neither rounded nor widened first."""

_FP32_INPUTS = {
    ("Range", "T"),  # indices: 2049 is no fp16 number
    ("OneHot", "T1"),  # indices
    ("OneHot", "T2"),  # depth
    ("Resize", "T2"),  # the region of interest, in coordinates
    ("BitCast", "T1"),  # a type of another size cannot be cast bit by bit
}
"""Operators' type variables that hold positions rather than values, by name in the schema."""


@dataclass(frozen=True)
class Slots:
    """Positions in a node's ``input`` and ``output`` that hold the low precision; none where it stays in fp32."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def plan_slots(
    model: ModelProto,
    keep: Collection[str],
    dtypes: Mapping[str, int],
    low: int = TensorProto.FLOAT16,
) -> list[Slots]:
    """What each node computes in the low precision.

    In fp32 stay: the nodes in ``keep``; constants (their consumers decide); control flow, other domains, model-local
    functions and sequences; what the operator's schema does not allow in that precision at the model's opset; and float
    arithmetic on shapes, which TensorRT does on the host, in fp32 too.

    Args:
        model: The model. Only nodes of the main graph are planned.
        keep: First output tensors of the nodes to keep in fp32.
        dtypes: ``TensorProto.DataType`` by tensor, from :func:`tensor_dtypes`.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.

    Returns:
        One entry for each node.
    """
    graph = model.graph
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 1))
    functions = {(function.domain, function.name) for function in model.functions}
    kept = frozenset(keep)
    slots = []
    for node in graph.node:
        if first_output(node) in kept or (node.op_type in CONSTANT_OPS and node.domain in DEFAULT_DOMAINS):
            slots.append(Slots())
        elif (schema := _schema(node, opset, functions, dtypes)) is not None:
            slots.append(_by_schema(node, schema, dtypes, low))
        else:
            slots.append(Slots())
    for index in _shape_arithmetic(graph, slots, dtypes):
        slots[index] = Slots()
    return _only_useful_casts(graph, slots)


def _schema(
    node: NodeProto, opset: int, functions: Collection[tuple[str, str]], dtypes: Mapping[str, int]
) -> onnx.defs.OpSchema | None:
    """A node's schema; ``None`` where the node must be taken as a whole."""
    whole = node.domain not in DEFAULT_DOMAINS or (node.domain, node.op_type) in functions or any(bodies(node))
    if whole or any(name and name not in dtypes for name in (*node.input, *node.output)):
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _floats(names: Collection[str], dtypes: Mapping[str, int]) -> frozenset[int]:
    return frozenset(i for i, name in enumerate(names) if dtypes.get(name) == TensorProto.FLOAT)


def _by_schema(node: NodeProto, schema: onnx.defs.OpSchema, dtypes: Mapping[str, int], low: int) -> Slots:
    """The positions whose type variable may be ``low``; see ONNX's IR.md, "Operator signatures"."""
    wanted = "tensor(float16)" if low == TensorProto.FLOAT16 else "tensor(bfloat16)"
    floats = Slots(_floats(node.input, dtypes), _floats(node.output, dtypes))
    if node.op_type == "Cast":
        return Slots(outputs=floats.outputs)
    if node.op_type in READS_ANY_TYPE:
        return Slots()
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    # The last formal parameter stands for all that follow when it is variadic.
    inputs = {i: schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i in floats.inputs}
    outputs = {i: schema.outputs[min(i, len(schema.outputs) - 1)].type_str for i in floats.outputs}
    half = {
        variable
        for variable in inputs.values()
        if wanted in allowed.get(variable, ()) and (node.op_type, variable) not in _FP32_INPUTS
    }
    # An output of a type that inputs do not settle (RandomNormalLike, EyeLike) may or may not follow them: leave it.
    if any(variable in allowed and variable not in half for variable in outputs.values()):
        return Slots()
    return Slots(
        frozenset(i for i, variable in inputs.items() if variable in half),
        frozenset(i for i, variable in outputs.items() if variable in half),
    )


def _readers(graph: GraphProto) -> dict[str, list[tuple[int, int]]]:
    """By tensor its readers: node and input position; position -1 stands for a body that captures it."""
    readers: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        for position, name in enumerate(node.input):
            readers[name].append((index, position))
        for name in captured_names(node):
            readers[name].append((index, -1))
    return readers


def _shape_arithmetic(  # noqa: C901 - two short passes that share what they learn
    graph: GraphProto, slots: list[Slots], dtypes: Mapping[str, int]
) -> set[int]:
    """The nodes that compute, in floats, nothing but sizes: from shapes alone, for integers or scales alone.

    A mask made from a shape is not among them: it ends in the data. Whether a tensor is a graph output does not count, so
    that marking tensors as outputs changes no value.
    """
    constants = {tensor.name for tensor in graph.initializer} | {""}
    derived: set[str] = set()
    candidates = []
    for index, node in enumerate(graph.node):
        sources = set(node.input)
        if any(bodies(node)):
            continue
        if node.op_type in ("Shape", "Size") or (sources & derived and sources <= derived | constants):
            derived.update(node.output)
            candidates.append(index)
        elif sources <= constants:
            constants.update(node.output)
    readers = _readers(graph)
    found: set[int] = set()

    def ends_in_sizes(name: str) -> bool:
        for index, position in readers[name]:
            node = graph.node[index]
            if node.op_type == "Cast" and index not in found:
                if dtypes.get(node.output[0]) in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
                    return False
            elif position < 0 or (position in slots[index].inputs and index not in found):
                return False
        return True

    for index in reversed(candidates):
        floats = [name for name in graph.node[index].output if dtypes.get(name) == TensorProto.FLOAT]
        if (floats and all(map(ends_in_sizes, floats))) or (not floats and slots[index].inputs):
            found.add(index)
    return found


def _only_useful_casts(graph: GraphProto, slots: list[Slots]) -> list[Slots]:
    """The same, but for Casts to float32 whose result no lowered node reads; these stay."""
    readers = _readers(graph)
    return [
        Slots()
        if node.op_type == "Cast"
        and not any(position in slots[index].inputs for index, position in readers[node.output[0]])
        else slot
        for node, slot in zip(graph.node, slots, strict=True)
    ]
