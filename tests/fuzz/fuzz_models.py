"""Broken ONNX models: a sound one, changed in a few places as no exporter would write it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import ModelProto, TensorProto

Field = Any
"""A field's descriptor of protobuf, which ships no type information."""

_EXPORTS = sorted(
    (Path(onnx.__file__).parent / "backend" / "test" / "data").glob("[ps][iy][tm]*/*/model.onnx")
)
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
    "\u202e",
    "\x1b[31m",
)
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e300)
_HEAD = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2, 3] x) => (float[2, 3] y)'
_FUNCTION = '<domain: "own", opset_import: ["" : 17, "own" : 1]>'
BASES = (
    "<float[3] w = {3e4, 3e4, 3e4}> { a = Add(x, w) b = Add(a, w) c = Add(b, w) y = Add(c, w) }",
    (
        "<float zero = {0}> { s = ReduceSum <keepdims = 0> (x) p = Greater(s, zero) y = If (p) <"
        "then_branch = then () => (float[2, 3] t) { t = Relu(x) }, else_branch = other () => (float[2, 3] e) { e = Neg(x) }> }"
    ),
    (
        "<int64 times = {3}> { y = Loop (times, , x) <body = body (int64 i, bool go, float[2, 3] v) => (bool on, float[2, 3] u)"
        " { on = Identity(go) u = Add(v, v) }> }"
    ),
    (
        f"{{ h = own.Four(x) y = Relu(h) }} {_FUNCTION} Twice (a) => (b) {{ b = Add(a, a) }}"
        f" {_FUNCTION} Four (a) => (b) {{ t = own.Twice(a) b = own.Twice(t) }}"
    ),
    (
        "{ s = Shape(x) o = ConstantOfShape <value = float[1] {1}> (s) r = Reshape(x, s)"
        " k = Constant <value_floats = [1.0, 2.0, 3.0]> () y = Sum(o, r, k) }"
    ),
    (
        "<float scale = {0.1}, int8 zero = {3}>"
        " { q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero) y = Softmax(d) }"
    ),
    "<int64 one = {1}> { s = SequenceConstruct(x, x) y = SequenceAt(s, one) }",
)
"""A chain, branches, a loop, functions, shapes, Q/DQ and a sequence; the weight of the chain may
lie in a file."""


@cache
def _bytes_of(place: int) -> bytes:
    if place > len(BASES):
        return _EXPORTS[place - len(BASES) - 1].read_bytes()
    model = onnx.parser.parse_model(f"{_HEAD} {BASES[place % len(BASES)]}")
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    if place == len(BASES):
        weight = model.graph.initializer[0]
        weight.data_location = TensorProto.EXTERNAL
        weight.ClearField("float_data")
        for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "12")):
            weight.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


def broken_model(rng: random.Random) -> bytes:
    """The bytes of a model; sound in about one of ten cases."""
    place = rng.randrange(len(BASES) + 1 + (len(_EXPORTS) if rng.random() < 0.2 else 0))
    model = ModelProto.FromString(_bytes_of(place))
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 5))):
        _change(model, rng)
    content = model.SerializeToString()
    return _spoil(content, rng) if rng.random() < 0.15 else content


def _spoil(content: bytes, rng: random.Random) -> bytes:
    """Change bytes without regard to what they mean."""
    kind = rng.randrange(4)
    where = rng.randrange(len(content) or 1)
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
    return bool(
        field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    )


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
