"""Which layer of the target's engine runs a node, with what else it is fused, and in what precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bisect_trt.errors import first_few
from bisect_trt.graph.network import Network
from bisect_trt.targets.base import EngineLayer

_SMALL = 1 / 4
"""A region of up to this share of all units is small."""
_MYELIN = "Myelin"
"""A region that is compiled as a whole: the inspector says what it makes, and not in what each node inside runs."""


def engine_layers(network: Network, layers: Iterable[Mapping[str, Any]]) -> dict[int, EngineLayer]:
    """For each node the engine layer that runs it, by the node's number; of several the last, which makes its outputs."""
    found: dict[int, EngineLayer] = {}
    for plain in layers:
        # A lowered model has tensors and Casts that this one has not.
        nodes = {network.producer[name] for name in plain["tensors"] if name in network.producer}
        ordered = tuple(sorted(nodes, key=network.rank.__getitem__))
        layer = EngineLayer(plain["name"], plain["kind"], ordered, tuple(plain["precisions"]))
        found |= dict.fromkeys(ordered, layer)
    return found


def fused_regions(
    network: Network, units: frozenset[int], layers: Iterable[Mapping[str, Any]]
) -> tuple[list[frozenset[int]], int]:
    """Units that one engine layer runs together, where that is a small part of the model.

    Args:
        network: The model.
        units: Those that are searched; others do not count.
        layers: As a session of the target describes them.

    Returns:
        The regions of two units and more, in topological order, no unit in two; and how many units are in regions of more
        than a quarter of all, which tell nothing of where something is.
    """
    together: dict[str, set[int]] = {}
    for node, layer in engine_layers(network, layers).items():
        together.setdefault(layer.name, set()).add(network.rank[node])
    wholes = [frozenset(region & units) for region in together.values()]
    most = max(_SMALL * len(units), 2)
    small = sorted((region for region in wholes if 1 < len(region) <= most), key=min)
    return small, sum(len(region) for region in wholes if len(region) > most)


def describe_engine_layer(layer: EngineLayer) -> str:
    """In words: what ran a node, with how many others, and in what precision."""
    others = len(layer.nodes) - 1
    alone = "runs as" if not others else f"is fused with {others} other node{'s' * (others > 1)} into"
    types = f", which makes {' and '.join(layer.precisions)}" if layer.precisions else ""
    return f"{alone} the engine layer '{_short(layer.name)}'{types}"


_LONGEST = 160


def _short(name: str) -> str:
    """A layer's name holds those of all its nodes, which may be hundreds."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}...{name[-_LONGEST // 2 :]}"


def engine_json(network: Network, layer: EngineLayer) -> dict[str, Any]:
    """Plain values; nodes by name, or by what they make where they have none."""
    names = [network.nodes[index].name or network.made(index)[0] for index in layer.nodes]
    return {
        "name": layer.name,
        "kind": layer.kind,
        "precisions": list(layer.precisions),
        "nodes": names,
        "fused_with": len(names) - 1,
    }


def fp32_layers(network: Network, layers: Iterable[Mapping[str, Any]], kept: frozenset[int]) -> dict[str, Any] | None:
    """What the inspector tells of the precision that an answer's engine runs in.

    Args:
        network: The model.
        layers: As a session of the target describes them.
        kept: Numbers of the nodes that were to stay in fp32.

    Returns:
        ``layers`` that make fp32, ``dragged``: nodes that run in one of them without having to, ``inside``: how many
        nodes are in regions whose inside is not told. ``None`` where the target does not say anything.
    """
    found = {layer.name: layer for layer in engine_layers(network, layers).values()}
    if not found:
        return None
    regions = [layer for layer in found.values() if _MYELIN in layer.kind and len(layer.nodes) > 1]
    wide = [layer for layer in found.values() if "float32" in layer.precisions and layer not in regions]
    # A layer of its own that makes fp32 chose so, or ends the network; only fusion drags.
    dragged = {node for layer in wide if not kept.isdisjoint(layer.nodes) for node in layer.nodes} - kept
    return {
        "layers": [engine_json(network, layer) for layer in wide],
        "dragged": [network.describe(node) for node in sorted(dragged, key=network.rank.__getitem__)],
        "inside": sum(len(layer.nodes) for layer in regions),
    }


def describe_fp32(ran: Mapping[str, Any]) -> list[str]:
    """The same in words."""
    lines = []
    if ran["dragged"]:
        lines.append(f"fused with kept nodes, and so in fp32 too: {first_few(ran['dragged'], 3)}")
    if ran["inside"]:
        lines.append(
            f"{ran['inside']} nodes run inside compiled regions, of which the engine does not tell the precision"
        )
    return lines or [f"{len(ran['layers'])} engine layers make fp32, none of them fused with nodes that need not"]
