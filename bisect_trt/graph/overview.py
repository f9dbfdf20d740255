"""A whole network in few enough pieces to look at: modules in place of their nodes, and what repeats only once in full."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from bisect_trt.graph.exported import module_of
from bisect_trt.graph.network import Network


@dataclass(frozen=True)
class Piece:
    """Nodes that stand one behind the other in the network's order, so that pieces never depend on each other in a circle.

    Attributes:
        nodes: Their numbers.
        path: The module that they are of, where that is known; of several alike the first's.
        alike: How many blocks with the same operators, as the one before it, it stands for.
    """

    nodes: tuple[int, ...]
    path: str = ""
    alike: int = 1


def pieces_of(network: Network, kept: Collection[int], most: int) -> list[Piece]:
    """The network in at most so many pieces, as fine as that allows.

    Nodes that only make weights are left out. Where the file says nothing of modules, nodes are put together as they come.

    Args:
        network: The model.
        kept: Nodes that are pieces of their own.
        most: How many pieces at most, the kept ones aside.
    """
    order = [node for node in network.order if not network.constant[node]]
    if len(order) <= most:
        return [Piece((node,)) for node in order]
    known = {node: module.path for node in order if (module := module_of(network.nodes[node])) is not None}
    kept = set(kept)
    deepest = max((path.count(".") + 1 for path in known.values() if path), default=0)
    for depth in range(deepest, 0, -1):
        pieces = _alike(network, _windows(order, known, kept, depth), kept)
        if len(pieces) <= most + len(kept):
            return pieces
    return _chunks(order, kept, most)


def _windows(order: Sequence[int], known: dict[int, str], kept: set[int], depth: int) -> list[Piece]:
    """Runs of nodes of one module, down to some depth; a node of no known module belongs to the one before it."""
    keys: list[tuple[int, str]] = []
    place, path = 0, ""
    for node in order:
        path = ".".join(known[node].split(".")[:depth]) if node in known else path
        place += node in kept or (bool(keys) and order[len(keys) - 1] in kept)
        keys.append((place, path))
    runs = groupby(zip(order, keys, strict=True), key=lambda pair: pair[1])
    return [Piece(tuple(node for node, _ in run), key[1]) for key, run in runs]


def _alike(network: Network, pieces: Sequence[Piece], kept: set[int]) -> list[Piece]:
    """What repeats, of one piece or of several in turn: the first time in full, and the others as one piece."""
    signs = [tuple(network.nodes[node].op_type for node in piece.nodes) for piece in pieces]
    free = [kept.isdisjoint(piece.nodes) for piece in pieces]
    found: list[Piece] = []
    at = 0
    while at < len(pieces):
        period, times = _repeated(signs, free, at)
        found += pieces[at : at + period]
        rest = pieces[at + period : at + period * times]
        if rest:
            found.append(Piece(tuple(node for piece in rest for node in piece.nodes), rest[0].path, times - 1))
        at += period * times
    return found


_LONGEST = 40
"""Pieces of a block; past that what repeats is rather the network."""


def _repeated(signs: Sequence[tuple[str, ...]], free: Sequence[bool], at: int) -> tuple[int, int]:
    """How many pieces repeat from here on, and how often; of what covers most, the shortest."""
    best = (1, 1)
    for period in range(1, _LONGEST + 1):
        unit, times = signs[at : at + period], 1
        if len(unit) < period or not all(free[at : at + period]):
            break
        while signs[at + period * times : at + period * (times + 1)] == unit and all(
            free[at + period * times : at + period * (times + 1)]
        ):
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best


def _chunks(order: Sequence[int], kept: set[int], most: int) -> list[Piece]:
    length = -(-len(order) // max(most - 2 * len(kept), 1))
    found: list[list[int]] = []
    for node in order:
        if not found or node in kept or found[-1][-1] in kept or len(found[-1]) >= length:
            found.append([])
        found[-1].append(node)
    return [Piece(tuple(nodes)) for nodes in found]
