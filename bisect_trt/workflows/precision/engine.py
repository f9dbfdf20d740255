"""What an engine really runs in fp32: a constraint on one layer can drag all that it is fused with along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bisect_trt.graph.network import Network
from bisect_trt.workflows.layerwise.engine import engine_json, engine_layers

_MYELIN = "Myelin"
"""A region that is compiled as a whole: the inspector says what it makes, and not in what each node inside runs."""


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
        names = ", ".join(ran["dragged"][:3])
        more = f" and {len(ran['dragged']) - 3} more" if len(ran["dragged"]) > 3 else ""
        lines.append(f"fused with kept nodes, and so in fp32 too: {names}{more}")
    if ran["inside"]:
        lines.append(
            f"{ran['inside']} nodes run inside compiled regions, of which the engine does not tell the precision"
        )
    return lines or [f"{len(ran['layers'])} engine layers make fp32, none of them fused with nodes that need not"]
