"""Which layer of the target's engine runs a node, and with what else it is fused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bisect_trt.graph.network import Network
from bisect_trt.targets.trt.inspect import EngineLayer


def engine_layers(network: Network, layers: Iterable[Mapping[str, Any]]) -> dict[int, EngineLayer]:
    """For each node the engine layer that runs it, by the node's number; of several the last, which makes its outputs.

    Args:
        network: The model.
        layers: As a session of the target describes them; see ``Session.layers``.
    """
    found: dict[int, EngineLayer] = {}
    for plain in layers:
        # A lowered model has tensors and Casts that this one has not.
        nodes = {network.producer[name] for name in plain["tensors"] if name in network.producer}
        ordered = tuple(sorted(nodes, key=network.rank.__getitem__))
        layer = EngineLayer(plain["name"], plain["kind"], ordered, tuple(plain["precisions"]))
        found |= dict.fromkeys(ordered, layer)
    return found


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
