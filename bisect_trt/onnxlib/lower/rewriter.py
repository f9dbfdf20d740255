"""A model that is written anew node by node: fresh names, Casts, and constants rounded to fp16 or bf16 and back."""

from __future__ import annotations

import math
from collections.abc import Collection, MutableSequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.lower.plan import (
    CONSTANT_OPS,
    FIRST_IR_WITH_FREE_INITIALIZERS,
    FIRST_OPSET,
    LOW_NAMES,
    check_opset,
)
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, attribute, captured_names, held, mentioned_names


def round_to_half(values: np.ndarray) -> np.ndarray:
    """Rounds to fp16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity without a word."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounds float32 to bfloat16 as ONNX's Cast does: to nearest, ties to even, overflow to infinity.

    Returns:
        The upper 16 bits of each float32, as uint16: NumPy itself has no bfloat16.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Half of what is cut off, less one where the last bit that stays is 0; uint32 wraps for no number but NaN.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def lower_tensor(tensor: TensorProto, name: str, low: int, *, back: bool) -> TensorProto:
    """Rounds a float32 tensor that is inside the model.

    Args:
        tensor: Its values.
        name: The result's name.
        low: The precision to round to, an ONNX element type.
        back: Whether the result is float32 again.
    """
    values = numpy_helper.to_array(tensor)
    if low == TensorProto.FLOAT16:
        half = round_to_half(values)
        return numpy_helper.from_array(half.astype(np.float32) if back else half, name)
    bits = round_to_bfloat16(values)
    if back:
        return numpy_helper.from_array((bits.astype(np.uint32) << np.uint32(16)).view(np.float32), name)
    raw = bits.astype("<u2").tobytes()
    return TensorProto(name=name, data_type=low, dims=values.shape, raw_data=raw)


def widen_tensor(tensor: TensorProto, name: str) -> TensorProto:
    """Returns the float32 tensor of the same values as an fp16 or bf16 one that is inside the model."""
    if tensor.data_type == TensorProto.FLOAT16:
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), name)
    bits = TensorProto(data_type=TensorProto.UINT16, dims=tensor.dims, raw_data=tensor.raw_data)
    if not tensor.raw_data:
        bits.int32_data.extend(tensor.int32_data)
    values = numpy_helper.to_array(bits).astype(np.uint32) << np.uint32(16)
    return numpy_helper.from_array(values.view(np.float32), name)


_OLDEST_CUSTOM_OPSET = 9
FIRST_OPSET_WITH_ROUND = 11
HALF_OVERFLOWS = 65520.0
"""What is as large as this is Inf in fp16: half a step past its largest number."""
PAST_FP32 = 3.0e38
"""Makes Inf of any such number, and keeps its sign."""
LOG2_E = 1 / math.log(2)


class Rewriter:
    """A model while its nodes are written anew, one after the other, in topological order.

    Attributes:
        model: The copy that is being written. Its graph's nodes are those appended so far.
        source_nodes: The original's nodes.
        low: The element type that it is lowered to.
        arithmetic: Whether round trips to it are computed in fp32.
    """

    def __init__(
        self,
        model: ModelProto,
        low: int = TensorProto.FLOAT16,
        *,
        store_weights: bool = True,
        arithmetic: bool = False,
    ) -> None:
        """Begin with no nodes.

        Args:
            model: The original, which is not changed.
            low: ``TensorProto.FLOAT16`` or ``BFLOAT16``.
            store_weights: Whether rounded weights and constants are stored; if not, they pass a Cast.
            arithmetic: Whether round trips to fp16 are computed in fp32, for a runtime that drops Casts to it and back.

        Raises:
            UsageError: The opset has no Cast to ``low``, or no Round where that is needed.
        """
        self.low = low
        opset = check_opset(model, low)
        self.arithmetic = arithmetic and low == TensorProto.FLOAT16
        if self.arithmetic and opset is not None and opset < FIRST_OPSET_WITH_ROUND:
            raise UsageError(
                f"The model has opset {opset}; rounding to fp16 by arithmetic needs {FIRST_OPSET_WITH_ROUND} or later: "
                "convert it with onnx.version_converter first."
            )
        self._shared: dict[str, str] = {}
        self.source_nodes: list[NodeProto] = list(model.graph.node)
        self.model = ModelProto()
        self.model.CopyFrom(model)
        if opset is None:  # custom operators only; ours need a version of their own
            least = FIRST_OPSET_WITH_ROUND if arithmetic else _OLDEST_CUSTOM_OPSET
            self.model.opset_import.append(helper.make_opsetid("", max(least, FIRST_OPSET[low])))
        del self.model.graph.node[:]
        self._names = mentioned_names(model.graph)
        listed = {value.name for value in model.graph.input}
        self._weights = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            # A weight that is an input too can be overridden; one in another file is better not read.
            if store_weights
            and tensor.name not in listed
            and tensor.data_location != TensorProto.EXTERNAL
            and model.ir_version >= FIRST_IR_WITH_FREE_INITIALIZERS
        }
        self._constants = {
            node.output[0]: node
            for node in self.source_nodes
            if store_weights
            and node.op_type in CONSTANT_OPS
            and node.domain in DEFAULT_DOMAINS
            and _constant_value(node) is not None
        }
        self._replaced: set[str] = set()

    def fresh(self, stem: str) -> str:
        """Returns a tensor name that nothing has yet."""
        name, number = stem, 1
        while name in self._names:
            number += 1
            name = f"{stem}_{number}"
        self._names.add(name)
        return name

    def fresh_low(self, name: str) -> str:
        """Returns a name for a tensor's value in the low precision."""
        return self.fresh(f"{name}_{LOW_NAMES[self.low]}")

    def append(self, node: NodeProto) -> None:
        """Writes a node."""
        self.model.graph.node.append(node)

    def cast(self, source: str, target: str, to: int) -> None:
        """Writes a Cast of one tensor into another; without a name, since a node of the model may be named like a tensor."""
        self.append(helper.make_node("Cast", [source], [target], to=to))

    def round_trip(self, source: str, target: str) -> None:
        """Writes a Cast to the low precision and one back, or what computes the same."""
        if self.arithmetic:
            self._round_to_half(source, target)
            return
        low = self.fresh_low(target)
        self.cast(source, low, self.low)
        self.cast(low, target, TensorProto.FLOAT)

    def _round_to_half(self, source: str, target: str) -> None:
        """Writes what rounds to fp16 in fp32: the step that fp16 has at a number's size, a Round to whole steps, and Inf.

        A logarithm that is a little off at a power of two chooses the step of the neighbour, to whose grid that power and
        what rounds to it belong as well. Below 2**-14 all steps are 2**-24. NaN is not below the limit and stays NaN.
        """

        def write(kind: str, *inputs: str, to: str = "") -> str:
            made = to or self.fresh(f"{target}_{kind.lower()}")
            self.append(helper.make_node(kind, inputs, [made]))
            return made

        size = write("Abs", source)
        exponent = write(
            "Floor", write("Mul", write("Log", write("Max", size, self._scalar(2.0**-14))), self._scalar(LOG2_E))
        )
        steps = write("Pow", self._scalar(2), write("Sub", self._scalar(10), exponent))
        rounded = write("Div", write("Round", write("Mul", source, steps)), steps)
        beyond = write("Mul", source, self._scalar(PAST_FP32))
        write("Where", write("Less", size, self._scalar(HALF_OVERFLOWS)), rounded, beyond, to=target)

    def _scalar(self, value: float) -> str:
        """A constant of one fp32 number, which all that need it share."""
        key = repr(value)
        if key not in self._shared:
            self._shared[key] = self.fresh(f"round_{key}")
            tensor = numpy_helper.from_array(np.array(value, np.float32), "")
            self.append(helper.make_node("Constant", [], [self._shared[key]], value=tensor))
        return self._shared[key]

    def copy(self, name: str, *, back: bool) -> str:
        """Writes the low-precision value of an fp32 tensor that no lowered node produces.

        Weights and constants are rounded here and now where they can be; other tensors pass Casts.

        Args:
            name: The fp32 tensor. It keeps its value.
            back: Whether the result is to be fp32 again (with rounded values) or of the low precision.

        Returns:
            The new tensor's name.
        """
        target = self.fresh(f"{name}_rounded") if back else self.fresh_low(name)
        if name in self._weights:
            self.model.graph.initializer.append(lower_tensor(self._weights[name], target, self.low, back=back))
        elif name in self._constants:
            node = self._constants[name]
            value = _constant_value(node)
            assert value is not None  # __init__ left those out
            low = lower_tensor(value, value.name, self.low, back=back)
            self.append(helper.make_node(node.op_type, node.input, [target], value=low))
        elif back:
            self.round_trip(name, target)
            return target
        else:
            self.cast(name, target, self.low)
            return target
        self._replaced.add(name)
        return target

    def finish(self) -> ModelProto:
        """Drops the weights and constants that only their copies' readers read, and returns the model."""
        graph = self.model.graph
        used = {value.name for value in graph.output}
        for node in graph.node:
            used.update(node.input)
            used |= captured_names(node)
        unused = self._replaced - used
        _retain(graph.initializer, [item for item in graph.initializer if item.name not in unused])
        _retain(graph.node, [node for node in graph.node if not unused.intersection(node.output)])
        names = mentioned_names(graph)
        _retain(graph.value_info, [value for value in graph.value_info if value.name in names])
        return self.model


def _constant_value(node: NodeProto) -> TensorProto | None:
    """Returns the float32 value of a Constant, or the fill of a ConstantOfShape; None for any other type."""
    value: TensorProto | None = held(node)
    if node.op_type == "ConstantOfShape":
        value = attribute(node, "value", numpy_helper.from_array(np.zeros(1, np.float32)))
    return value if value is not None and value.data_type == TensorProto.FLOAT else None


def _retain(field: MutableSequence[Any], items: Collection[object]) -> None:
    """Keeps only ``items`` in a repeated protobuf field."""
    if len(items) != len(field):
        kept = list(items)
        del field[:]
        field.extend(kept)
