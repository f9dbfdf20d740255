"""The part of a graph around some nodes: what a person can look at, however large the model is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import onnx

from bisect_trt.graph.network import Network

HUB_READERS = 12
"""Of a tensor that more nodes read than this (a mask, say) only the nearest readers are followed."""
_ATTRIBUTE_LENGTH = 120
_SHOWN = 32
"""Values of a list."""
_LARGE = (
    onnx.AttributeProto.TENSOR,
    onnx.AttributeProto.TENSORS,
    onnx.AttributeProto.GRAPH,
    onnx.AttributeProto.GRAPHS,
    onnx.AttributeProto.SPARSE_TENSOR,
    onnx.AttributeProto.SPARSE_TENSORS,
)
"""Attributes whose values are no matter of a line."""


def neighbourhood(network: Network, centre: Iterable[int], most: int) -> list[int]:
    """The nodes nearest to some, breadth first with and against the edges.

    Nodes that only make weights are left out, unless they are asked for.

    Args:
        network: The model.
        centre: Node numbers, the most important first.
        most: How many nodes at most.

    Returns:
        Node numbers, the nearest first; the centre is the beginning of them.
    """
    found = dict.fromkeys(centre)
    pending = deque(found)
    while pending and len(found) < most:
        node = pending.popleft()
        for other in _neighbours(network, node):
            if other not in found and not network.constant[other]:
                found[other] = None
                pending.append(other)
    return list(found)[:most]


def _neighbours(network: Network, node: int) -> Iterator[int]:
    """What makes a node's inputs, then what reads its outputs."""
    yield from network.parents(node)
    for name in network.made(node):
        yield from _nearest(network, node, network.consumers.get(name, []))


def _nearest(network: Network, node: int, readers: Sequence[int]) -> Sequence[int]:
    if len(readers) <= HUB_READERS:
        return readers
    return sorted(readers, key=lambda reader: abs(network.rank[reader] - network.rank[node]))[:HUB_READERS]


def edges_between(network: Network, nodes: Iterable[int]) -> list[tuple[int, int, str]]:
    """The edges among some nodes: maker, reader, tensor; sorted by reader in topological order."""
    chosen = set(nodes)
    return [
        (network.producer[name], reader, name)
        for reader in sorted(chosen, key=lambda node: network.rank[node])
        for name in network.reads[reader]
        if network.producer.get(name) in chosen
    ]


def attribute_texts(node: onnx.NodeProto) -> dict[str, str]:
    """A node's attributes in short, by name: of tensors and graphs only that they are there."""
    return {attribute.name: _attribute_text(attribute) for attribute in node.attribute}


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    if attribute.type in _LARGE:
        return f"<{onnx.AttributeProto.AttributeType.Name(attribute.type).lower().replace('_', ' ')}>"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return _cut(_decoded(value[: _ATTRIBUTE_LENGTH + 1]))  # plugins keep megabytes of state in one
    if isinstance(value, (int, float)):
        return _number(value)
    texts = [_decoded(each) if isinstance(each, bytes) else _number(each) for each in value[:_SHOWN]]
    return f"[{_cut(', '.join(texts + ['...'] * (len(value) > _SHOWN)))}]"


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _number(value: object) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _ATTRIBUTE_LENGTH else f"{text[:_ATTRIBUTE_LENGTH]}..."
