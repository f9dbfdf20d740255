"""Broken ONNX models: a sound one, changed in a few places as no exporter would write it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import ModelProto, TensorProto, helper, numpy_helper

Field = Any
"""A field's descriptor of protobuf, which ships no type information."""

info = helper.make_tensor_value_info
_EXPORTS = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").glob("[ps][iy][tm]*/*/model.onnx"))
_INTS = (-1, 0, 1, 2, 7, 65, 99, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63))
_TEXTS = (
    "",
    "x",
    "y",
    "Relu",
    "If",
    "a/../../b",
    "/etc/passwd",
    "n" * 300,
    "\x00",
    "\n",
    "'\"",
    "{}",
    "\u202e",
    "\x1b[31m",
)
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e300)


def _model(nodes: list[Any], weights: list[TensorProto] | None = None, **more: Any) -> ModelProto:
    ends = [info("x", TensorProto.FLOAT, [2, 3]), info("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def _chain() -> ModelProto:
    names = ["x", "a", "b", "c", "y"]
    nodes = [helper.make_node("Add", [names[i], "w"], [names[i + 1]], name=f"n{i}") for i in range(4)]
    return _model(nodes, [numpy_helper.from_array(np.full(3, 3e4, np.float32), "w")])


def _branches() -> ModelProto:
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "then", [], [info("t", 1, [2, 3])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [info("e", 1, [2, 3])])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["p"], name="is"),
        helper.make_node("If", ["p"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    return _model(nodes, [numpy_helper.from_array(np.array(0, np.float32), "zero")])


def _loop() -> ModelProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["u"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", 1, [2, 3])],
        [info("on", TensorProto.BOOL, []), info("u", 1, [2, 3])],
    )
    node = helper.make_node("Loop", ["times", "", "x"], ["y"], name="loop", body=body)
    return _model([node], [numpy_helper.from_array(np.array(3), "times")])


def _functions() -> ModelProto:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    twice = helper.make_function("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opset)
    fourfold = [
        helper.make_node("Twice", ["a"], ["t"], domain="own"),
        helper.make_node("Twice", ["t"], ["b"], domain="own"),
    ]
    outer = helper.make_function("own", "Four", ["a"], ["b"], fourfold, opset)
    nodes = [
        helper.make_node("Four", ["x"], ["h"], domain="own", name="f"),
        helper.make_node("Relu", ["h"], ["y"], name="r"),
    ]
    return _model(nodes, functions=[twice, outer])


def _shapes() -> ModelProto:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node(
            "ConstantOfShape", ["s"], ["o"], name="ones", value=numpy_helper.from_array(np.ones(1, np.float32))
        ),
        helper.make_node("Reshape", ["x", "s"], ["r"], name="reshape"),
        helper.make_node("Constant", [], ["k"], name="constant", value_floats=[1.0, 2.0, 3.0]),
        helper.make_node("Sum", ["o", "r", "k"], ["y"], name="sum"),
    ]
    return _model(nodes)


def _quantized() -> ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="dequantize"),
        helper.make_node("Softmax", ["d"], ["y"], name="softmax"),
    ]
    weights = [
        numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
        numpy_helper.from_array(np.array(3, np.int8), "zero"),
    ]
    return _model(nodes, weights)


def _sequences() -> ModelProto:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="make"),
        helper.make_node("SequenceAt", ["s", "one"], ["y"], name="at"),
    ]
    return _model(nodes, [numpy_helper.from_array(np.array(1), "one")])


def _external() -> ModelProto:
    model = _chain()
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.ClearField("raw_data")
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "12")):
        weight.external_data.add(key=key, value=value)
    return model


BASES: tuple[Callable[[], ModelProto], ...] = (
    _chain,
    _branches,
    _loop,
    _functions,
    _shapes,
    _quantized,
    _sequences,
    _external,
)


@cache
def _bytes_of(place: int) -> bytes:
    if place < len(BASES):
        return bytes(BASES[place]().SerializeToString())
    return _EXPORTS[place - len(BASES)].read_bytes()


def broken_model(rng: random.Random) -> bytes:
    """The bytes of a model; sound in about one of ten cases."""
    place = rng.randrange(len(BASES)) if rng.random() < 0.8 else rng.randrange(len(BASES) + len(_EXPORTS))
    model = ModelProto.FromString(_bytes_of(place))
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 5))):
        _change(model, rng)
    content = model.SerializeToString()
    return _spoil(content, rng) if rng.random() < 0.15 else content


def _spoil(content: bytes, rng: random.Random) -> bytes:
    """Change bytes without regard to what they mean."""
    kind, where = rng.randrange(4), rng.randrange(len(content) or 1)
    if kind == 0:
        return content[:where]
    if kind == 1:
        return content[:where] + rng.randbytes(rng.randint(1, 4)) + content[where + 1 :]
    if kind == 2:
        return content[:where] + content[where // 2 : where] + content[where:]
    # A name that is not UTF-8, of the same length.
    name = rng.choice([b"y", b"n1", b"Add", b"g", b"w"])
    return content.replace(name, b"\xff\xfe\xfd"[: len(name)])


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in value if _repeated(field) else [value]:
            yield from _messages(each)


def _repeated(field: Field) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _change(model: ModelProto, rng: random.Random) -> None:
    """Change one field of one message anywhere in a model."""
    message = rng.choice(list(_messages(model)))
    fields = list(message.DESCRIPTOR.fields)
    given = [field for field, _ in message.ListFields()]
    field = rng.choice(given if given and rng.random() < 0.7 else fields)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif _repeated(field):
        _change_list(getattr(message, field.name), field, rng)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(field, rng))


def _change_list(items: Any, field: Field, rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0 and items:
        del items[rng.randrange(len(items))]
    elif kind == 1 and items:
        each = items[rng.randrange(len(items))]
        items.append(each) if field.message_type is None else items.add().CopyFrom(each)
    elif kind == 2 and len(items) > 1:
        whole = list(items)
        rng.shuffle(whole)
        del items[:]
        items.extend(whole)
    elif field.message_type is not None:
        items.add()
    elif kind == 3:
        items.extend(_scalar(field, rng) for _ in range(rng.choice((1, 2, 70))))
    elif items:
        items[rng.randrange(len(items))] = _scalar(field, rng)


def _scalar(field: Field, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])
    if kind == field.CPPTYPE_STRING:
        text = rng.choice(_TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(_FLOATS)
    value = rng.choice(_INTS)
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32):
        value = max(min(value, 2**31 - 1), -(2**31))
    return abs(value) if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else value
