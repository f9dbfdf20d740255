"""A network in which dozens of ONNX Runtime's passes find something to do, for a bug to hide among them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from truth.networks import Network
from truth.patterns import Pattern, Shape, Sketch

_IMAGE: Shape = (1, 8, 8, 8)
_TOKENS: Shape = (2, 16, 32)
_WIDTH = 32
_HEADS = 4
_AXES_ARE_INPUTS = 18


class Opset(Sketch):
    """A sketch that knows the opset it is in."""

    def __init__(self, prefix: str, opset: int) -> None:
        """Begin."""
        super().__init__(prefix)
        self.opset = opset


def busy(pattern: Pattern) -> Network:
    """About 150 nodes and a bug."""
    values = np.random.default_rng(0)
    sketch = Opset("", pattern.opset)
    image = _image(sketch, values, "input")
    tokens = _tokens(sketch, values, "tokens")
    image = sketch.add("Tanh", pattern.alike(sketch, image, _IMAGE))
    planted, guilty = pattern.plant(sketch, image, _IMAGE)
    image = _quantized(sketch, sketch.add("Tanh", planted))
    outputs = [
        (sketch.add("Tanh", image), _IMAGE),
        (sketch.add("Tanh", tokens), _TOKENS),
        (planted, _IMAGE),
    ]
    graph = helper.make_graph(
        sketch.nodes,
        "busy",
        [_value("input", _IMAGE), _value("tokens", _TOKENS)]
        + [_value(name, shape) for name, shape in sketch.inputs.items()],
        [_value(name, shape) for name, shape in outputs],
        sketch.weights,
    )
    opset = pattern.opset
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset > 20 else 8
    )
    onnx.checker.check_model(model, full_check=True)
    return Network(model, (guilty,))


def _image(sketch: Sketch, values: np.random.Generator, tensor: str) -> str:
    """What rules about convolutions and single nodes look for."""

    def weight(*shape: int) -> str:
        return sketch.weight(values.normal(0, 0.3, shape))

    tensor = sketch.add("Identity", sketch.add("Tanh", tensor))
    for other in ("Relu", "Sigmoid", "LeakyRelu"):
        tensor = sketch.add(other, sketch.add("Conv", tensor, weight(8, 8, 1, 1)))
    tensor = sketch.add("Add", sketch.add("Conv", tensor, weight(8, 8, 1, 1)), weight(8, 1, 1))
    tensor = sketch.add("Mul", sketch.add("Conv", tensor, weight(8, 8, 1, 1)), weight(8, 1, 1))
    norm = [sketch.weight(part) for part in (np.ones(8), np.zeros(8), np.zeros(8), np.ones(8))]
    tensor = sketch.add("BatchNormalization", sketch.add("Conv", tensor, weight(8, 8, 1, 1)), *norm)
    low = sketch.weight(0)
    high = sketch.weight(6)
    tensor = sketch.add("Clip", sketch.add("Relu", tensor), low, high)
    tensor = sketch.add(
        "Conv",
        sketch.add("Pad", tensor, sketch.weight([0, 0, 1, 1] * 2, np.int64)),
        weight(8, 8, 3, 3),
    )
    tensor = sketch.add(
        "Relu", sketch.add("Add", sketch.add("Conv", tensor, weight(8, 8, 1, 1)), tensor)
    )
    tensor = sketch.add("Dropout", sketch.add("Tanh", tensor))
    tensor = sketch.add("Cast", sketch.add("Tanh", tensor), to=TensorProto.FLOAT)
    tensor = sketch.add("Expand", tensor, sketch.weight([1, 1, 1, 1], np.int64))
    tensor = sketch.add("Add", sketch.add("Tanh", tensor), sketch.weight(np.zeros((8, 1, 1))))
    ends = sketch.weight([np.iinfo(np.int64).max], np.int64)
    tensor = sketch.add(
        "Slice",
        sketch.add("Tanh", tensor),
        sketch.weight([0], np.int64),
        ends,
        sketch.weight([1], np.int64),
    )
    scale = sketch.add("Unsqueeze", weight(8), sketch.weight([1, 2], np.int64))
    tensor = sketch.add("Mul", tensor, scale)
    chosen = sketch.add("Not", sketch.add("Greater", tensor, sketch.weight(0.1)))
    tensor = sketch.add("Where", chosen, tensor, sketch.add("Neg", tensor))
    turned = sketch.add("Transpose", sketch.add("Tanh", tensor), perm=[0, 2, 3, 1])
    tensor = sketch.add("Transpose", sketch.add("Tanh", turned), perm=[0, 3, 1, 2])
    twice = sketch.add("Add", sketch.add("Sigmoid", tensor), sketch.add("Sigmoid", tensor))
    # Values on both sides of zero, so that no sign that is lost stays unseen.
    uneven = sketch.weight(values.normal(0, 0.7, (8, 8)))
    return sketch.add("Sub", twice, uneven)


def _tokens(sketch: Opset, values: np.random.Generator, tensor: str) -> str:
    """What passes about transformers look for."""

    def weight(*shape: int) -> str:
        return sketch.weight(values.normal(0, 0.2, shape))

    start = tensor
    for kind in ("erf", "tanh", "quick"):
        tensor = _norm(sketch, tensor)
        tensor = sketch.add(
            "Add", sketch.add("MatMul", tensor, weight(_WIDTH, _WIDTH)), weight(_WIDTH)
        )
        tensor = sketch.add("Add", _gelu(sketch, tensor, kind), start)
    tensor = _root_norm(sketch, tensor)
    keys = sketch.add(
        "Transpose", sketch.add("MatMul", tensor, weight(_WIDTH, _WIDTH)), perm=[0, 2, 1]
    )
    scores = sketch.add("Div", sketch.add("MatMul", tensor, keys), sketch.weight(np.sqrt(_WIDTH)))
    tensor = sketch.add("MatMul", sketch.add("Softmax", scores, axis=-1), tensor)
    shape = sketch.add("Shape", tensor)
    parts = [
        sketch.add("Gather", shape, sketch.weight([place], np.int64), axis=0) for place in (0, 1)
    ]
    split = sketch.add(
        "Concat", *parts, sketch.weight([_HEADS, _WIDTH // _HEADS], np.int64), axis=0
    )
    tensor = sketch.reshape(sketch.add("Reshape", tensor, split), _TOKENS)
    flat = sketch.reshape(tensor, (-1, _WIDTH))
    turned = sketch.add("Transpose", flat, perm=[1, 0])
    flat = sketch.add("Gemm", turned, weight(_WIDTH, _WIDTH), transA=1)
    flat = sketch.add("Relu", sketch.add("Gemm", flat, weight(_WIDTH, _WIDTH), weight(_WIDTH)))
    flat = sketch.add("Sum", sketch.add("Gemm", flat, weight(_WIDTH, _WIDTH)), weight(_WIDTH))
    norm = [
        sketch.weight(part)
        for part in (np.ones(_WIDTH), np.zeros(_WIDTH), np.zeros(_WIDTH), np.ones(_WIDTH))
    ]
    flat = sketch.add(
        "BatchNormalization", sketch.add("MatMul", flat, weight(_WIDTH, _WIDTH)), *norm
    )
    return sketch.reshape(sketch.add("Tanh", flat), _TOKENS)


def _norm(sketch: Opset, tensor: str) -> str:
    centred = sketch.add("Sub", tensor, _mean(sketch, tensor))
    spread = _mean(sketch, sketch.add("Pow", centred, sketch.weight(2)))
    root = sketch.add("Sqrt", sketch.add("Add", spread, sketch.weight(1e-5)))
    scaled = sketch.add("Mul", sketch.add("Div", centred, root), sketch.weight(np.ones(_WIDTH)))
    return sketch.add("Add", scaled, sketch.weight(np.zeros(_WIDTH)))


def _root_norm(sketch: Opset, tensor: str) -> str:
    spread = _mean(sketch, sketch.add("Pow", tensor, sketch.weight(2)))
    root = sketch.add("Sqrt", sketch.add("Add", spread, sketch.weight(1e-5)))
    return sketch.add("Mul", sketch.add("Div", tensor, root), sketch.weight(np.ones(_WIDTH)))


def _mean(sketch: Opset, tensor: str) -> str:
    """Over the last axis; since opset 18 that is an input."""
    if sketch.opset < _AXES_ARE_INPUTS:
        return sketch.add("ReduceMean", tensor, axes=[-1])
    return sketch.add("ReduceMean", tensor, sketch.weight([-1], np.int64))


def _gelu(sketch: Sketch, tensor: str, kind: str) -> str:
    if kind == "quick":
        return sketch.add(
            "Mul", tensor, sketch.add("Sigmoid", sketch.add("Mul", tensor, sketch.weight(1.702)))
        )
    if kind == "erf":
        inner = sketch.add("Erf", sketch.add("Div", tensor, sketch.weight(np.sqrt(2))))
    else:
        cube = sketch.add(
            "Mul", sketch.add("Pow", tensor, sketch.weight(3)), sketch.weight(0.044715)
        )
        inner = sketch.add(
            "Tanh",
            sketch.add("Mul", sketch.add("Add", tensor, cube), sketch.weight(np.sqrt(2 / np.pi))),
        )
    return sketch.add(
        "Mul",
        sketch.add("Mul", tensor, sketch.add("Add", inner, sketch.weight(1))),
        sketch.weight(0.5),
    )


def _quantized(sketch: Sketch, tensor: str) -> str:
    scale = sketch.weight(0.02)
    zero = sketch.weight(128, np.uint8)
    for _ in range(2):
        quantized = sketch.add("QuantizeLinear", sketch.add("Relu", tensor), scale, zero)
        tensor = sketch.add(
            "MaxPool", sketch.add("DequantizeLinear", quantized, scale, zero), kernel_shape=[1, 1]
        )
        tensor = sketch.add(
            "DequantizeLinear", sketch.add("QuantizeLinear", tensor, scale, zero), scale, zero
        )
    return tensor


def _value(name: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
