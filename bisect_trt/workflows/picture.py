"""A picture of a whole network, coloured by what is known of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.graph.network import Network
from bisect_trt.graph.overview import Piece, pieces_of
from bisect_trt.graph.region import attribute_texts
from bisect_trt.reporting.html.embedded import write_picture
from bisect_trt.reporting.html.markup import VERDICTS
from bisect_trt.reporting.result import Result, read_result
from bisect_trt.workflows.record import VERDICTS as NOTES
from bisect_trt.workflows.region import all_comparisons, node_verdict

_MOST = 150
_NOTE = "bisect-trt.verdict"
"""What ``--annotate`` leaves with a node."""
_WORDS = {words: kind for kind, words in NOTES.items()}


def check_picture(path: Path) -> None:
    """Make sure that it is a picture of the kind that is drawn.

    Raises:
        UsageError: It is another.
    """
    if path.suffix.lower() != ".svg":
        raise UsageError(f"--visual {path}: pictures of networks are drawn as SVG; name a .svg file.")


def draw(network: Network, path: Path, run: Path | None = None) -> int:
    """Draw a network; past 150 nodes modules, and blocks that are alike, stand for their nodes.

    Args:
        network: The model.
        path: Where the picture goes.
        run: The folder of the run, or its result, by which nodes are coloured; by the model's own notes if not given.

    Returns:
        How many pieces were drawn.

    Raises:
        UnavailableError: The result cannot be read.
        UsageError: The picture cannot be written, or the run was about another model.
    """
    verdicts = _noted(network) if run is None else _found(network, run)
    guilty = [node for node, verdict in verdicts.items() if verdict in ("culprit", "left")]
    guilty = guilty or [node for node, verdict in verdicts.items() if verdict == "origin"]
    pieces = pieces_of(network, guilty[:_MOST], _MOST)
    write_picture(_graph(network, pieces, verdicts, guilty), path)
    return len(pieces)


def _noted(network: Network) -> dict[int, str]:
    """What an annotated model says of its nodes."""
    found: dict[int, str] = {}
    for index, node in enumerate(network.nodes):
        said = next((entry.value for entry in node.metadata_props if entry.key == _NOTE), None)
        if said in _WORDS:
            found[index] = _WORDS[said]
    return found


def _found(network: Network, run: Path) -> dict[int, str]:
    plain = read_result(run)
    known = {name: plain[name] for name in ("command", "status", "culprits")}
    kept = ("comparisons", "tensors", "origins", "mild_origins")
    result = Result(**known, extra={key: plain[key] for key in kept if key in plain})
    comparisons = all_comparisons(result)
    named = {name for culprit in result.culprits for name in culprit["outputs"]}
    if not named <= network.producer.keys():
        raise UsageError(f"{run} is about another model: this one makes no '{min(named - network.producer.keys())}'.")
    return {node: node_verdict(network, node, result, comparisons) for node in range(len(network.nodes))}


def _graph(network: Network, pieces: list[Piece], verdicts: Mapping[int, str], centre: list[int]) -> dict[str, Any]:
    """The pieces as the report has nodes; a piece has the number of its first node."""
    home = {node: piece.nodes[0] for piece in pieces for node in piece.nodes}
    edges: dict[tuple[int, int], str] = {}
    for node, place in home.items():
        for name in network.reads[node]:
            maker = home.get(network.producer.get(name, -1), place)
            if maker != place:
                edges.setdefault((maker, place), name)
    return {
        "nodes": [_piece(network, piece, verdicts) for piece in pieces],
        "edges": [[maker, reader, name] for (maker, reader), name in edges.items()],
        "tensors": {},
        "centre": [node for node in centre if home.get(node) == node],
        "total": network.constant.count(False),
    }


def _piece(network: Network, piece: Piece, verdicts: Mapping[int, str]) -> dict[str, Any]:
    first = network.nodes[piece.nodes[0]]
    severest = list(VERDICTS)
    said = min((verdicts.get(node, "unseen") for node in piece.nodes), key=severest.index)
    alone = len(piece.nodes) == 1
    ends = f"{first.op_type} to {network.nodes[piece.nodes[-1]].op_type}"
    return {
        "id": piece.nodes[0],
        "name": first.name
        if alone
        else f"{piece.path or ends}{f' and {piece.alike - 1} more' if piece.alike > 1 else ''}",
        "op": first.op_type if alone else f"{len(piece.nodes)} nodes{' alike' if piece.alike > 1 else ''}",
        "domain": first.domain,
        "attributes": attribute_texts(first) if alone else {},
        "inputs": [],
        "more_inputs": 0,
        "outputs": network.made(piece.nodes[-1]),
        "verdict": said,
        "precision": None,
        "reason": None,
        "hidden_makers": 0,
        "hidden_readers": 0,
    }
