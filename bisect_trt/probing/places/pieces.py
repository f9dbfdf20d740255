"""A model's bytes in pieces, so that what large tensors hold goes to a place once, whatever else changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PIECE = 1 << 16
"""Bytes of a tensor in a model from which it goes over by its hash, once."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TENSORS = {7: {5: {9: None}, 1: {5: {5: {9: None}}}}}
"""Where a model has bytes of tensors, by the numbers of the fields (onnx.proto): graph.initializer.raw_data, and
graph.node.attribute.t.raw_data."""


def cut_pieces(content: bytes) -> Iterator[tuple[int, int, bool]]:
    """A model's bytes in pieces: where each begins and ends, and whether it is the data of a large tensor."""
    at = 0
    for start, end in tensor_data(content, 0, len(content), _TENSORS):
        if end - start >= _PIECE:
            if start > at:
                yield at, start, False
            yield start, end, True
            at = end
    if at < len(content) or not content:
        yield at, len(content), False


def tensor_data(content: bytes, at: int, end: int, fields: Mapping[int, Any]) -> Iterator[tuple[int, int]]:
    """Where fields of bytes lie in a message of protobuf.

    Args:
        content: The whole.
        at: Where the message begins.
        end: Where it ends.
        fields: The numbers of the fields to look into, each with those below it, or ``None`` for one that is looked for.

    Source: protobuf's encoding (https://protobuf.dev/programming-guides/encoding). What cannot be read ends it.
    """
    while at < end:
        key, at = _varint(content, at, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _varint(content, at, end)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind == _BYTES:
            size, at = _varint(content, at, end)
            if at + size > end:
                return
            if number in fields:
                below = fields[number]
                if below is None:
                    yield at, at + size
                elif size >= _PIECE:
                    yield from tensor_data(content, at, at + size, below)
            at += size
        else:
            return


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return value, end + 1
