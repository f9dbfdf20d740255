"""Roundings of a model: its own ones, low precision emulated by round trips, and all of them removed (float64).

ONNX Runtime's CPU provider computes an fp16 node without a kernel in fp32, and drops the Casts
between two such nodes, so a model of fp16 nodes rounds and overflows less there than on a GPU. It
has no bf16 kernels. It keeps a Cast to fp16 or bf16 and back to fp32 behind an fp32 node, at every
optimization level.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)
from onnx.external_data_helper import uses_external_data

from bisect_trt.onnxlib.load import model_tensors, read_weight
from bisect_trt.onnxlib.low_plan import LOW_TYPES, Planner
from bisect_trt.onnxlib.lower import Rewriter, lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import (
    DEFAULT_DOMAINS,
    Types,
    all_nodes,
    attribute,
    bodies,
    clone,
    defined_names,
    drop,
    held,
    mentioned_names,
    reads,
)
from bisect_trt.tensors.tolerance import Precision, Step, coarser, precision_of

Values = Callable[[str], "NDArray[Any] | None"]
_ONE = np.ones(1, np.float64)
_ROUND = re.compile("(Dynamic)?QuantizeLinear|QGemm|QAttention|QEmbedLayerNormalization|QLinear.*")
"""Operators that round to integers."""
_QUANTIZED = (b"QuantizeLinear", b"QLinear", b"QGemm", b"QAttention", b"QEmbedLayerNormalization")
_MOVE = re.compile(
    "Identity|Reshape|Transpose|Flatten|Squeeze|Unsqueeze|Slice|Split|Gather|GatherElements|GatherND|Expand|Tile|Pad|Concat|"
    "MaxPool|GlobalMaxPool|ReduceMax|ReduceMin|Relu|Clip|Max|Min|DepthToSpace|SpaceToDepth|Dropout|Where|Compress|"
    "ReverseSequence"
)
"""Operators that make no new values, constants aside, so that steps stay the same."""
_DISCRETE = re.compile("Shape|Size|NonZero|ArgMax|ArgMin|TopK|Equal|Greater|Less|And|Or|Not|Xor")
"""Operators with outputs that do not show the errors of their inputs: an index off by one is no
tie."""
_LOW = {element: Precision(name) for name, element in LOW_TYPES.items()}
_CASTS = tuple(b"\n\x02to\x18" + bytes([kind]) for kind in _LOW)
"""The bytes of a Cast to one of them in a file: the attribute's name and integer."""


def find_roundings(
    model: Path, fed: Mapping[str, np.ndarray[Any, Any]], values: Values
) -> tuple[dict[str, Step], dict[str, Precision]]:
    """Return the steps of a model's quantized tensors, and the coarsest precision below fp32 of each tensor.

    16-bit types come from a Cast or an input; a model without either is not parsed. A file that
    cannot be read has no known roundings.

    Args:
        model: The path of the ONNX model.
        fed: The values of its inputs, by name; only their types count.
        values: Returns the value of a tensor that is no constant, such as a computed scale;
            ``None`` where it is unknown.
    """
    half = any(precision_of(value.dtype) is not Precision.FP32 for value in fed.values())
    try:
        state = model.stat()
        graph, lows = _read(model, (state.st_mtime_ns, state.st_size, state.st_ino), half=half)
    except Exception:
        # An engine need not have its model beside it; each of ONNX's formats raises its own error.
        return {}, {}
    return {} if graph is None else steps_of(graph, values), lows


# Each sample of a candidate asks for the same model.
@lru_cache(maxsize=1)
def _read(
    model: Path,
    written: tuple[int, int, int],  # noqa: ARG001 - so that a file that changed is read again
    *,
    half: bool,
) -> tuple[onnx.GraphProto | None, dict[str, Precision]]:
    """Return the graph of a quantized model, and :func:`lows_of` one with types of 16 bits."""
    # A search for the operators' names in the bytes costs less than parsing the file.
    content = model.read_bytes()
    half = half or any(word in content for word in _CASTS)
    quantized = any(word in content for word in _QUANTIZED)
    if not half and not quantized:
        return None, {}
    graph = onnx.load_model_from_string(content).graph
    return graph if quantized else None, lows_of(graph) if half else {}


def steps_of(graph: onnx.GraphProto, values: Values) -> dict[str, Step]:
    """Return the steps of all tensors of a main graph that are rounded to a grid, and of those computed from them.

    Inputs count as exact: a piece of a model that begins after a rounding has no ties. ``values``
    is for computed scales.
    """
    stored: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
    stored |= {node.output[0]: tensor for node in graph.node if (tensor := held(node)) is not None}

    def value(name: str) -> NDArray[Any] | None:
        tensor = stored.get(name)
        # A scale is small, and so not external.
        if tensor is None or tensor.external_data:
            return values(name)
        return np.asarray(numpy_helper.to_array(tensor))

    steps: dict[str, Step] = {}
    for node in graph.node:
        steps |= _steps_made(node, steps, value)
    return steps


def _steps_made(node: NodeProto, steps: Mapping[str, Step], value: Values) -> dict[str, Step]:
    """Return the steps of one node's outputs."""
    read = [steps[name] for name in node.input if name in steps]
    outputs = [name for name in node.output if name]
    if _ROUND.fullmatch(node.op_type):
        # Scale and zero point of dynamic quantization come from the same values, rounded as usual.
        return {outputs[0]: Step(_ONE, after=bool(read))}
    if not read or _DISCRETE.fullmatch(node.op_type):
        return {}
    first = steps.get(node.input[0])
    size = read[0].size
    after = any(step.after for step in read)
    result = Step(None, after=True)
    if node.op_type == "DequantizeLinear" and first is not None and first.size is not None:
        if (scale := value(node.input[1])) is not None:
            # A step of the integers is a step of the size of the scale in floats.
            sizes = np.abs(scale.astype(np.float64)).reshape(-1) * first.size
            result = Step(sizes, after=after, axis=attribute(node, "axis", 1))
    elif size is not None and size.size == 1 and _MOVE.fullmatch(node.op_type):
        alike = all(step.size is not None and np.array_equal(step.size, size) for step in read)
        result = Step(size, after=after) if alike else result
    return dict.fromkeys(outputs, result)


def lows_of(graph: onnx.GraphProto) -> dict[str, Precision]:
    """Return the coarsest precision below fp32 in the computation of each tensor of a main graph.

    Inputs and weights of 16 bits are exact, and so are Casts of them; computed results are not.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    typed = {name: _LOW[kind] for name, kind in types.items() if kind in _LOW}
    lows: dict[str, Precision] = {}
    for node in graph.node:
        outputs = [name for name in node.output if name]
        precision = _type_made(node, typed)
        typed |= {name: precision for name in outputs if precision is not None}
        before = (
            None
            if _DISCRETE.fullmatch(node.op_type)
            else coarser(*(lows.get(name) for name in reads(node)))
        )
        keeps = held(node) is not None or _MOVE.fullmatch(node.op_type) is not None
        # A Cast rounds only where its result has fewer digits than what it reads.
        if node.op_type == "Cast":
            keeps = precision is None or node.input[0] in typed
        low = before if keeps else coarser(before, precision)
        lows |= {name: low for name in outputs if low is not None}
    return lows


def _type_made(node: NodeProto, typed: Mapping[str, Precision]) -> Precision | None:
    """Return the precision below fp32 of the type that a node makes; ``None`` for another type."""
    if (stored := held(node)) is not None:
        return _LOW.get(stored.data_type)
    if node.op_type == "Cast":
        return _LOW.get(attribute(node, "to", 0))
    return coarser(*(typed.get(name) for name in reads(node)))


EXACT_OPS = frozenset({
    "Abs", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Neg", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
"""Operators that are exact in the low precision: they move or select values, or change signs."""


def lower_roundtrip(
    model: ModelProto,
    keep: Collection[str] = (),
    dtypes: Types | None = None,
    low: int = TensorProto.FLOAT16,
) -> ModelProto:
    """Return the model lowered and emulated; see :func:`lower_fp16` and :func:`emulate`.

    Args:
        model: The fp32 model, nodes in topological order.
        keep: The nodes to keep in fp32, by address.
        dtypes: ``TensorProto.DataType`` of tensors with a type that ONNX cannot infer.
        low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    lowered = lower_fp16(model, keep, dtypes, low)
    if any(tensor.data_type == low for tensor in model_tensors(model)) or low in map(
        _element, model.graph.input
    ):
        # The file's own low-precision nodes are rounded as well, and few files declare inner
        # tensors.
        types = {**(dtypes or {}), **Network(lowered).element_types}
        _declare(lowered.graph, types, Planner(lowered, (), low))
    return emulate(lowered, low)


def _declare(graph: GraphProto, dtypes: Types, planner: Planner) -> None:
    """Declare the low-precision tensors that a graph's nodes make, and those in bodies.

    Args:
        graph: The main graph, or a body.
        dtypes: ``TensorProto.DataType`` by tensor, of those around too.
        planner: Infers the types of tensors in bodies.
    """
    declared = {value.name for value in (*graph.value_info, *graph.output, *graph.input)}
    for node in graph.node:
        graph.value_info.extend(
            helper.make_tensor_value_info(name, planner.low, None)
            for name in node.output
            if dtypes.get(name) == planner.low and name not in declared
        )
        for body, inside in planner.bodies_of(node, dtypes, ""):
            _declare(body, inside, planner)


def emulate(model: ModelProto, low: int = TensorProto.FLOAT16) -> ModelProto:
    """Return the model with each low-precision node in fp32, and its results rounded by round trips, in bodies too.

    Graph inputs and outputs keep their names and types; inner names stay, for fp32 tensors of the
    same values.

    Args:
        model: A model that declares its low-precision tensors, as :func:`lower_fp16` does, nodes in
            topological order.
        low: The low precision, ``TensorProto.FLOAT16`` or ``BFLOAT16``.
    """
    emulated = clone(model)
    _Emulation(model.graph, emulated.graph, mentioned_names(model.graph), low).run()
    return emulated


def _element(value: ValueInfoProto) -> int:
    """Return the declared element type; 0 for none."""
    return int(value.type.tensor_type.elem_type)


class _Emulation(Rewriter):
    """A rewriter that writes round trips, behind what nodes compute and for the model's own Casts."""

    def run(self, outer: Mapping[str, str] | None = None) -> None:
        """Write all nodes.

        Args:
            outer: The new names of tensors of the graphs around a body, which then has fp32 inputs
                and outputs; ``None`` for the main graph, which keeps their types.
        """
        graph = self.graph
        low = self.low
        border = {value.name for value in (*graph.input, *graph.output) if _element(value) == low}
        inner = {value.name for value in graph.value_info if _element(value) == low}
        lowered = self.rounded(inner)
        # The fp32 copy of an inner tensor becomes the same tensor.
        nodes = self.source.node
        merged = {
            node.input[0]: node.output[0]
            for node in nodes
            if node.op_type == "Cast"
            and node.input[0] in inner
            and attribute(node, "to", 0) == TensorProto.FLOAT
        }
        drop(graph.value_info, merged)
        narrowed: list[str] = []
        if outer is None:
            renamed = merged | self.widen_weights(border)
            narrowed = self._widen_ends(border, renamed)
            widened = list(graph.value_info)
        else:
            local = defined_names(self.source)
            captured = {name: new for name, new in outer.items() if name not in local}
            for value in graph.output:
                value.name = captured.get(value.name, value.name)
            renamed = captured | merged | self.widen_weights()
            widened = [*graph.input, *graph.output, *graph.value_info]
        for value in widened:
            if _element(value) == low:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for node in nodes:
            if node.op_type != "Cast" or merged.get(node.input[0]) != node.output[0]:
                self.node(node, lowered, renamed)
        for name in narrowed:
            self.cast(renamed[name], name, low)

    def rounded(self, inner: set[str]) -> Collection[str]:
        """Return which of the low tensors are rounded: the ``inner`` ones, and outputs."""
        return inner.union(value.name for value in self.graph.output if _element(value) == self.low)

    def _widen_ends(self, border: Container[str], renamed: dict[str, str]) -> list[str]:
        """Add fp32 names of the low inputs and outputs, and Casts of the inputs; return the outputs to cast back."""
        for value in self.graph.input:
            if value.name in border and value.name not in renamed:
                renamed[value.name] = self.fresh(f"{value.name}_fp32")
                self.cast(value.name, renamed[value.name], TensorProto.FLOAT)
        narrowed = [
            value.name
            for value in self.graph.output
            if value.name in border and value.name not in renamed
        ]
        renamed |= {name: self.fresh(f"{name}_fp32") for name in narrowed}
        return narrowed

    def widen_weights(self, declared: Collection[str] = ()) -> dict[str, str]:
        """Make low-precision weights fp32: stored, or by Casts if external or declared; return the new names of the latter."""
        renamed: dict[str, str] = {}
        for tensor in self.graph.initializer:
            if tensor.data_type != self.low:
                continue
            # Copies in fp32 of large weights would fill the memory.
            if uses_external_data(tensor) or tensor.name in declared:
                renamed[tensor.name] = self.fresh(f"{tensor.name}_fp32")
                self.cast(tensor.name, renamed[tensor.name], TensorProto.FLOAT)
            else:
                tensor.CopyFrom(widen_tensor(tensor, tensor.name))
        return renamed

    def node(self, node: NodeProto, lowered: Collection[str], renamed: dict[str, str]) -> None:
        """Write a node in fp32, and round its outputs that are ``lowered`` tensors.

        Args:
            node: The node of the original.
            lowered: The tensors of the low precision.
            renamed: The new names of tensors, by the old ones.
        """
        new = clone(node)
        new.input[:] = [renamed.get(name, name) for name in node.input]
        for body, written in zip(bodies(node), bodies(new), strict=True):
            type(self)(body, written, self.names, self.low).run(renamed)
        for parameter in new.attribute:
            if parameter.HasField("t") and parameter.t.data_type == self.low:
                parameter.t.CopyFrom(widen_tensor(parameter.t, parameter.t.name))
        if node.op_type == "Cast" and attribute(node, "to", 0) == self.low:
            self.round_trip(new.input[0], renamed.get(node.output[0], node.output[0]), new)
            return
        _retype(new, self.low, TensorProto.FLOAT)
        raw: dict[str, str] = {}
        new.output[:] = [renamed.get(name, name) for name in node.output]
        # A node that only moves values of the low precision has nothing to round.
        if not (node.op_type in EXACT_OPS and node.domain in DEFAULT_DOMAINS):
            rounded = [renamed.get(name, name) for name in node.output if name in lowered]
            raw = {name: self.fresh(f"{name}_raw") for name in rounded}
            new.output[:] = [raw.get(name, name) for name in new.output]
        self.append(new)
        for name, source in raw.items():
            self.round_trip(source, name)

    def round_trip(self, source: str, target: str, cast: NodeProto | None = None) -> None:
        """Write a Cast to the low precision (``cast`` if given) and one back.

        Args:
            source: The fp32 tensor to round.
            target: The fp32 tensor to write.
            cast: The Cast of the model that rounds; a new one by default.
        """
        low = self.fresh_low(target)
        if cast is None:
            self.cast(source, low, self.low)
        else:
            cast.output[0] = low
            self.append(cast)
        self.cast(low, target, TensorProto.FLOAT)


class _Widening(_Emulation):
    """A rewriter that writes round trips for the model's own Casts only."""

    def rounded(self, inner: set[str]) -> Collection[str]:  # noqa: ARG002 - as low tensors are
        """Return nothing: what nodes compute stays as it is."""
        return ()


def widen_tensor(tensor: TensorProto, name: str) -> TensorProto:
    """Return an fp16 or bf16 tensor, not an external one, as float32."""
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), name)


def widened(model: ModelProto, weights: Path) -> ModelProto:
    """Return the model in float64: every fp32 tensor, weight, constant and Cast to fp32 becomes wide.

    Other types stay: a Cast to fp16 is the model's own rounding. ``weights`` is the folder of its
    external weights.
    """
    changed = clone(model)
    for tensor in model_tensors(changed):
        if tensor.data_type == TensorProto.FLOAT:
            values = read_weight(tensor, weights).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    nodes = list(all_nodes(changed))
    for graph in (changed.graph, *(body for node in nodes for body in bodies(node))):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if _element(value) == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in nodes:
        _retype(node, TensorProto.FLOAT, TensorProto.DOUBLE)
        _widen_constants(node)
    return changed


def computed_wide(model: ModelProto) -> ModelProto:
    """Return a bf16 model without functions that computes in fp32, with the same inputs, outputs and Casts to bf16."""
    low = TensorProto.BFLOAT16
    declared = clone(model)
    types = Network(model).element_types
    for value in declared.graph.output:
        if types.get(value.name) == low:
            value.type.tensor_type.elem_type = low
    wide = clone(declared)
    _Widening(declared.graph, wide.graph, mentioned_names(model.graph), low).run()
    return wide


def _retype(node: NodeProto, narrow: int, wide: int) -> None:
    """Let a node make the wide type where an attribute tells it to make the narrow one."""
    for parameter in node.attribute:
        if (
            parameter.name in ("to", "dtype", "stash_type", "output_dtype")
            and parameter.i == narrow
        ):
            parameter.i = wide


def _widen_constants(node: NodeProto) -> None:
    """Store as float64 what a node writes in no type, which is fp32."""
    for parameter in node.attribute:
        if node.op_type == "Constant" and parameter.name in ("value_float", "value_floats"):
            value = parameter.f if parameter.name == "value_float" else list(parameter.floats)
            tensor = numpy_helper.from_array(np.array(value, np.float32).astype(np.float64))
            parameter.CopyFrom(helper.make_attribute("value", tensor))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1, np.float64))
        node.attribute.append(helper.make_attribute("value", zero))
