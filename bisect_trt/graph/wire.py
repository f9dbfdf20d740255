"""Messages as the bytes that they are in a file, put together without parsing them: protobuf's wire format.

A search writes the same nodes and weights a hundred times; a large network has 200,000 of them. To copy each message into a
model and to have that written takes several times as long as to join their bytes, and much more memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from google.protobuf.message import Message

_LARGE = 4096
"""Bytes: what is larger holds a weight, which is not kept twice."""
_GRAPH_OF_MODEL, _NODE, _INITIALIZER, _VALUE_INFO = (number << 3 | 2 for number in (7, 1, 5, 13))
"""Tags of fields (onnx.proto): the number, and 2 for what says its length."""


def _field(tag: int, *parts: bytes) -> tuple[bytes, ...]:
    """A message, in pieces, as a field of another: the tag, the length in groups of seven bits, the message."""
    head, length = bytearray([tag]), sum(map(len, parts))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head), *parts


class Written:
    """Messages of a kind, each written once, as a field of the graph that has it."""

    def __init__(self, tag: int, messages: Sequence[Message]) -> None:
        """``messages`` do not change."""
        self._tag, self._messages = tag, messages
        self._kept = [b"" if message.ByteSize() > _LARGE else self.other(message) for message in messages]

    def __getitem__(self, place: int) -> bytes:
        return self._kept[place] or self.other(self._messages[place])

    def other(self, message: Message) -> bytes:
        """Another message, as such a field."""
        return b"".join(_field(self._tag, message.SerializeToString(deterministic=True)))


def written_nodes(nodes: Sequence[onnx.NodeProto]) -> Written:
    """Nodes of a graph."""
    return Written(_NODE, nodes)


def written_weights(weights: Sequence[onnx.TensorProto]) -> Written:
    """Initializers of a graph."""
    return Written(_INITIALIZER, weights)


def written_values(values: Sequence[onnx.ValueInfoProto]) -> Written:
    """What a graph declares of its inner tensors."""
    return Written(_VALUE_INFO, values)


def model_bytes(head: bytes, graph: Sequence[bytes], tail: bytes) -> bytes:
    """A model: its fields before the graph, the graph in pieces that are in the order of its own, and the fields behind it."""
    return b"".join((head, *_field(_GRAPH_OF_MODEL, *graph), tail))
