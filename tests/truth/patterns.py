"""Real bugs of runtimes as patterns of nodes, each with the look-alikes that the same releases run right.

A pattern is planted into a :class:`Sketch` on a tensor and gives a tensor of the same shape, so
that it fits anywhere. The numbers are those of ONNX Runtime's public issues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


class Sketch:
    """A graph that is being written.

    Attributes:
        nodes: What was added, in the order of the file.
        weights: Initializers.
        inputs: Inputs that patterns added, float32, with their shapes.
    """

    def __init__(self, prefix: str) -> None:
        """Begin; every name starts with ``prefix``."""
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: dict[str, Shape] = {}
        self._prefix = prefix

    def add(
        self,
        op: str,
        *inputs: str,
        **attributes: int | float | str | Sequence[int] | onnx.GraphProto,
    ) -> str:
        """A node, named after its operator and place; its output."""
        name = f"{self._prefix}{op}_{len(self.nodes)}"
        node = helper.make_node(op, inputs, [f"{name}_out"], name)
        node.attribute.extend(
            helper.make_attribute(key, value) for key, value in attributes.items()
        )
        self.nodes.append(node)
        return f"{name}_out"

    def last(self, count: int = 1) -> tuple[str, ...]:
        """Names of the nodes added last."""
        return tuple(node.name for node in self.nodes[-count:])

    def weight(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """An initializer; its name."""
        name = f"{self._prefix}weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def input(self, shape: Shape) -> str:
        """An input of the graph; its name."""
        name = f"{self._prefix}input_{len(self.inputs)}"
        self.inputs[name] = shape
        return name

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """The same values in another shape."""
        return self.add("Reshape", tensor, self.weight(shape, np.int64))


Planted = tuple[str, frozenset[str]]
"""The tensor that a pattern gives, and the names of its guilty nodes: the fewest that still show
the bug."""


@dataclass(frozen=True)
class Pattern:
    """A bug.

    Attributes:
        name: For reports.
        plant: Adds it on a tensor of a shape of four dimensions.
        alike: Adds what looks like it and is right.
        failing: Releases that have it, of ONNX Runtime where nothing else is said; those that are
            tried.
        mended: One that has it not, if there is one.
        opset: What it needs.
        shown: How it shows: by wrong ``values``, or the model is ``refused``.
        appeared: The first release that has it, if an older one, from 1.15.0 on, has it not; as
            `releases` finds it.
        went: The first release after those that have it.
    """

    name: str
    plant: Callable[[Sketch, str, Shape], Planted]
    alike: Callable[[Sketch, str, Shape], str]
    failing: tuple[str, ...]
    mended: str | None
    opset: int = 17
    shown: str = "values"
    appeared: str | None = None
    went: str | None = None


def _transposed_gemm(sketch: Sketch, tensor: str, shape: Shape) -> Planted:
    """GemmTransposeFusion takes any Transpose for a swap (32418): the weight is an input, and square."""
    side = shape[-1]
    flat = sketch.reshape(tensor, (-1, side))
    turned = sketch.add("Transpose", sketch.input((side, side)), perm=[0, 1])
    product = sketch.add("Gemm", flat, turned, alpha=1.0 / side)
    guilty = frozenset(sketch.last(2))
    return sketch.reshape(product, shape), guilty


def _turned_gemm(sketch: Sketch, tensor: str, shape: Shape) -> str:
    side = shape[-1]
    flat = sketch.reshape(tensor, (-1, side))
    weight = sketch.input((side, side))
    once = sketch.add("Gemm", flat, sketch.add("Transpose", weight, perm=[1, 0]), alpha=1.0 / side)
    again = sketch.add("Gemm", once, weight, alpha=1.0 / side, transB=1)
    return sketch.reshape(again, shape)


def _padded_pool(sketch: Sketch, tensor: str, shape: Shape) -> Planted:
    """Pad_Fusion adds up the pads of a Pad and of an AveragePool that does not count its own (22177)."""
    padded = sketch.add("Pad", tensor, sketch.weight([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    pooled = sketch.add("AveragePool", padded, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    guilty = frozenset(sketch.last(2))
    return _cropped(sketch, pooled, shape), guilty


def _counted_pads(sketch: Sketch, tensor: str, shape: Shape) -> str:
    own = sketch.add("AveragePool", tensor, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    padded = sketch.add("Pad", own, sketch.weight([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    # 1.20.1 is wrong about one that does not count the pads, even if it has none of its own.
    pooled = sketch.add("AveragePool", padded, kernel_shape=[3, 3], count_include_pad=1)
    return sketch.reshape(pooled, shape)


def _cropped(sketch: Sketch, tensor: str, shape: Shape) -> str:
    ends = sketch.weight(shape[2:], np.int64)
    return sketch.add(
        "Slice", tensor, sketch.weight([0, 0], np.int64), ends, sketch.weight([2, 3], np.int64)
    )


def _moved_scale(move: str, zero_point: int | None) -> Callable[[Sketch, str, Shape], Planted]:
    """QDQPropagationTransformer adds a QuantizeLinear behind what moves a dequantized tensor, of the wrong type.

    Without a zero point (27845) it is unsigned, so that negative values become 0; with one the
    model is refused.
    """

    def plant(sketch: Sketch, tensor: str, shape: Shape) -> Planted:
        scale = sketch.weight(0.05)
        zero = () if zero_point is None else (sketch.weight(zero_point, np.int8),)
        signed = {} if zero else {"output_dtype": TensorProto.INT8}
        if move == "Squeeze":
            tensor = sketch.add("Sub", sketch.reshape(tensor, (1, *shape)), sketch.weight(0.1))
        real = sketch.add(
            "DequantizeLinear",
            sketch.add("QuantizeLinear", tensor, scale, *zero, **signed),
            scale,
            *zero,
        )
        if move == "Reshape":
            moved = sketch.reshape(real, (shape[0], -1))
        elif move == "Transpose":
            moved = sketch.add("Transpose", real, perm=[0, 1, 3, 2])
        else:
            moved = sketch.add("Squeeze", real, sketch.weight([0], np.int64))
        guilty = frozenset(sketch.last(2))
        bounded = sketch.add("Tanh", moved)
        return (sketch.reshape(bounded, shape) if move == "Reshape" else bounded), guilty

    return plant


def _scale_that_stays(sketch: Sketch, tensor: str, shape: Shape) -> str:
    scale = sketch.weight(0.05)
    zero = sketch.weight(128, np.uint8)
    real = sketch.add(
        "DequantizeLinear", sketch.add("QuantizeLinear", tensor, scale, zero), scale, zero
    )
    return sketch.reshape(sketch.add("Tanh", sketch.reshape(real, (shape[0], -1))), shape)


def _dropped_edge(op: str) -> Callable[[Sketch, str, Shape], Planted]:
    """DivMulFusion forgets who makes what it divides, and eliminating that maker leaves a model that is invalid.

    32416 with a Cast, 32413 with an Identity, 32414 with a Dropout. It takes the maker to stand
    before the Div in the file.
    """

    def plant(sketch: Sketch, tensor: str, _: Shape) -> Planted:
        divisor = sketch.add("Sigmoid", sketch.add("Relu", tensor))
        same = sketch.add(op, tensor, **({"to": TensorProto.FLOAT} if op == "Cast" else {}))
        inverse = sketch.add("Div", sketch.weight(1), divisor)
        product = sketch.add("Mul", same, inverse)
        guilty = frozenset(sketch.last(3))
        return sketch.add("Tanh", product), guilty

    return plant


def _kept_edge(sketch: Sketch, tensor: str, _: Shape) -> str:
    divisor = sketch.add("Sigmoid", sketch.add("Relu", tensor))
    inverse = sketch.add("Div", sketch.weight(1), divisor)
    product = sketch.add("Mul", tensor, inverse)
    other = sketch.add("Div", sketch.weight(2), divisor)
    same = sketch.add("Cast", product, to=TensorProto.FLOAT)
    return sketch.add("Tanh", sketch.add("Mul", same, other))


def _joined_and_quantized(
    dtype: npt.DTypeLike, zero_point: int
) -> Callable[[Sketch, str, Shape], Planted]:
    """OpenVINO's CPU plugin forgets the scale of a Concat that is quantized to int8 for a quantized convolution."""

    def plant(sketch: Sketch, tensor: str, shape: Shape) -> Planted:
        scale = sketch.weight(0.03)
        zero = sketch.weight(zero_point, dtype)
        channels = shape[1]
        steps = np.arange(channels * channels * 2) * 37 % 255 - 127
        step = sketch.weight(2 / channels / 127)
        none = sketch.weight(0, np.int8)
        weights = sketch.weight(steps.reshape(channels, channels * 2, 1, 1), np.int8)
        kernel = sketch.add("DequantizeLinear", weights, step, none)
        joined = sketch.add("Concat", tensor, sketch.add("Sigmoid", tensor), axis=1)
        quantized = sketch.add("QuantizeLinear", joined, scale, zero)
        convolved = sketch.add(
            "Conv", sketch.add("DequantizeLinear", quantized, scale, zero), kernel
        )
        guilty = frozenset(sketch.last(4))
        return sketch.add("Tanh", convolved), guilty

    return plant


def _joined_unsigned(sketch: Sketch, tensor: str, shape: Shape) -> str:
    return _joined_and_quantized(np.uint8, 128)(sketch, tensor, shape)[0]


JOINED = Pattern(
    "Concat, QuantizeLinear, DequantizeLinear, Conv",
    _joined_and_quantized(np.int8, 0),
    _joined_unsigned,
    ("2024.2.0", "2024.6.0", "2025.2.0", "2026.4.1"),
    None,
)
"""In OpenVINO; its releases."""

TRANSPOSED_GEMM = Pattern(
    "Transpose, Gemm", _transposed_gemm, _turned_gemm, ("1.18.1", "1.29.0"), "1.31.1", went="1.30.0"
)
PADDED_POOL = Pattern(
    "Pad, AveragePool",
    _padded_pool,
    _counted_pads,
    ("1.19.2", "1.20.1"),
    "1.21.1",
    appeared="1.19.0",
    went="1.21.0",
)
UNSIGNED = Pattern(
    "DequantizeLinear, Reshape",
    _moved_scale("Reshape", None),
    _scale_that_stays,
    ("1.19.2", "1.26.0"),
    "1.28.0",
    opset=21,
    appeared="1.19.0",
    went="1.27.0",
)
PLANTED = (
    TRANSPOSED_GEMM,
    PADDED_POOL,
    UNSIGNED,
    *(
        Pattern(
            f"{op}, Div, Mul",
            _dropped_edge(op),
            _kept_edge,
            ("1.18.1", "1.31.1"),
            None,
            shown="refused",
        )
        for op in ("Cast", "Identity", "Dropout")
    ),
)
REFUSED = tuple(
    Pattern(
        f"DequantizeLinear, {move}",
        _moved_scale(move, 3),
        _scale_that_stays,
        ("1.28.0", "1.31.1"),
        "1.26.0",
        opset=21,
        shown="refused",
    )
    for move in ("Reshape", "Transpose", "Squeeze")
)
