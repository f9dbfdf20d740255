"""``layerwise --latency``: the time of each layer of the target beside the baseline's, by the nodes of the model.

Each side fuses nodes in its own way. A layer is known by the names of its nodes and of the tensors
that it makes; a node that no layer names is a part of the one that reads it. Nodes that share a
layer on either side are one row. The differences rank suspects; a search with ``--slower-than``
proves.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

from bisect_trt.errors import InputValuesError, UnsuitableModelError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone, first_output
from bisect_trt.options.compare import Limits
from bisect_trt.report.parts import Latency, LatencyRow
from bisect_trt.report.result import Result
from bisect_trt.report.summary import grouped
from bisect_trt.report.text import Json, shorten
from bisect_trt.session.checks import CheckSettings, baseline_of
from bisect_trt.session.session import Session
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.files import replacing
from bisect_trt.worker.place import Place
from bisect_trt.worker.protocol import Trace

_PIECES = re.compile(r" \+ |\.\.\.|\|\||,")
"""Separators of nodes in the name of a fused layer."""
_WORD = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")
_SHOWN = 10
_LENGTH = 30
_RATIO = 1.3
Layers = Sequence[Json]
"""As runners report them; see :mod:`bisect_trt.targets.runtime`."""


def named_in(name: str, known_names: Collection[str]) -> list[str]:
    """Return the names of the model in the name of a layer, which may derive from one (``conv1_nchwc``)."""
    names = []
    for piece in _PIECES.split(name):
        words = _WORD.findall(piece)
        spans = (
            (a, b)
            for a in range(len(words))
            for b in range(len(words), a, -1)
            # A single word in the middle (`relu`) is a name of many layers.
            if a == 0 or b - a > 1
        )
        names += [part for a, b in spans if (part := "".join(words[a:b])) in known_names][:1]
    return names


def _timed(network: Network) -> list[int]:
    """Return the nodes that may take time; also nodes that compute weights, which a side may do in each run."""
    return [index for index in network.order if network.nodes[index].op_type != "Constant"]


def nodes_of(network: Network, layers: Layers) -> list[set[int]]:
    """Return the nodes of each layer; a layer without a known name has the nodes of the next named layer."""
    nodes = _timed(network)
    layer_nodes = _named_nodes(network, nodes, layers)
    owner = {
        index: place for place in reversed(range(len(layer_nodes))) for index in layer_nodes[place]
    }
    for index in reversed(nodes):
        readers = network.readers_of(network.made(index))
        reader = next((reader for reader in readers if reader in owner), None)
        if index not in owner and reader is not None:
            owner[index] = owner[reader]
            layer_nodes[owner[index]].add(index)
    for place in reversed(range(len(layer_nodes) - 1)):
        layer_nodes[place] = layer_nodes[place] or layer_nodes[place + 1]
    return layer_nodes


def _named_nodes(network: Network, nodes: Sequence[int], layers: Layers) -> list[set[int]]:
    """Return for each layer those nodes that its tensors or its name tell."""
    numbers = {network.nodes[index].name: index for index in nodes if network.nodes[index].name}
    numbers |= {name: index for index in nodes for name in network.made(index)}
    return [
        {
            numbers[n]
            for n in [*filter(numbers.__contains__, layer["tensors"])]
            or named_in(layer["name"], numbers)
        }
        for layer in layers
    ]


def beside(network: Network, target: Layers, baseline: Layers) -> list[LatencyRow]:
    """Return rows of nodes, each with its layers on both sides; the largest difference first.

    Args:
        network: The model that both sides ran.
        target: The target's layers, each with its nodes and milliseconds.
        baseline: The baseline's.
    """
    # Nodes that are fused on either side cannot be timed apart on both.
    groups = {index: [index] for index in _timed(network)}
    placed = nodes_of(network, target), nodes_of(network, baseline)
    for nodes in chain(*placed):
        merged = [*chain(*{id(groups[index]): groups[index] for index in nodes}.values())]
        groups |= dict.fromkeys(merged, merged)
    rows: dict[int, list[int]] = {}
    times = defaultdict[int, float](float), defaultdict[int, float](float)
    names = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for side, layers in enumerate((target, baseline)):
        for layer, nodes in zip(layers, placed[side], strict=True):
            group = groups[min(nodes)] if nodes else []
            row = min(group, default=-1)
            rows[row] = group
            times[side][row] += layer["ms"]
            names[side][row].append(layer["name"])
    ordered = sorted(rows, key=lambda row: times[1][row] - times[0][row])
    return [
        LatencyRow(
            nodes=tuple(map(network.plain, network.in_order(rows[row]))),
            ms=times[0][row],
            baseline_ms=times[1][row],
            layers=tuple(names[0][row]),
            baseline_layers=tuple(names[1][row]),
        )
        for row in ordered
    ]


def read_profile(path: Path) -> Layers:
    """Read the profile of ``trtexec --exportProfile``, or one of ours.

    Raises:
        UsageError: It is none.
    """
    try:
        return [
            {"tensors": (), **entry, "ms": float(entry.get("medianMs", entry["averageMs"]))}
            for entry in json.loads(path.read_bytes())
            if "name" in entry
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputValuesError(
            f"--baseline {path} is no profile ({type(error).__name__}: {error}); give what trtexec --exportProfile writes."
        ) from error


def write_profile(path: Path, layers: Layers) -> None:
    """Write a profile as trtexec does, with the ``tensors`` of each layer."""
    part = 100 / (sum(layer["ms"] for layer in layers) or 1.0)
    times = "timeMs", "averageMs", "medianMs"
    entries = [
        {
            "name": layer["name"],
            **dict.fromkeys(times, layer["ms"]),
            "percentage": part * layer["ms"],
            "tensors": layer["tensors"],
        }
        for layer in layers
    ]
    with replacing(path) as file:
        file.write(json.dumps([{"count": 1}, *entries], indent=1).encode())


def profile(session: Session, target: TargetSettings, place: Place | None = None) -> Layers:
    """Return the layers of a target with their times.

    Args:
        session: The model.
        target: The target.
        place: The place that runs it; by default one of the run's.

    Raises:
        UnavailableError: It does not run the model.
        UsageError: It reports no times.
    """
    models = session.subject.models
    original = session.subject.original
    feed = models.feed("profile.in", session.subject.values(original, original.inputs))
    proto = clone(original.proto)
    for node in proto.graph.node:
        # A profile names layers by their nodes, so each gets a name.
        node.name = node.name or first_output(node)
    trace = Trace(target, models.write("profile", proto), feed, "profile", place)
    layers: Layers = (
        session.answered(models.workers.ask(trace), target.describe()).get("layers") or ()
    )
    if not layers:
        raise UnsuitableModelError(
            f"{target.describe()} reports no time of its layers; use `diagnose --slower-than`."
        )
    return layers


def latency(session: Session, target: TargetSettings, baseline: str | None) -> Result:
    """Compare the time of each layer with a baseline's, and print the largest differences.

    Args:
        session: The model.
        target: The target that is compared.
        baseline: A target, a release, or a ``.json`` of trtexec; ``None`` for the reference.

    Raises:
        UnavailableError: A side does not run the model.
        UsageError: The baseline is none.
    """
    subject = session.subject
    console = session.console
    result = session.result
    console.step(f"{target.describe()} beside {baseline or 'the reference'}, layer by layer")
    read = Path(baseline) if baseline is not None and baseline.endswith(".json") else None
    sides = [profile(session, target)]
    sides.append(
        read_profile(read)
        if read
        else profile(session, *baseline_of(subject.workers, baseline, target))
    )
    for name, layers in zip(("profile", "baseline_profile"), sides, strict=True):
        path = subject.workspace.folder / f"{name}.json"
        write_profile(path, layers)
        result.artifacts[name] = str(path)
    rows = beside(subject.network, *sides)
    mine, its = (sum(layer["ms"] for layer in layers) for layers in sides)
    result.latency = Latency(
        ms=mine, baseline_ms=its, baseline=baseline or "reference", rows=tuple(rows)
    )
    console.answer(
        f"{mine:.4g} ms in layers, {its:.4g} ms on the baseline. The largest differences:"
    )
    shown = [
        (
            f"{row.ms - row.baseline_ms:+.3f} ms",
            f"{row.ms:.3f}",
            f"{row.baseline_ms:.3f}",
            shorten(grouped(row.nodes) or "(no node)", _LENGTH),
        )
        for row in rows
    ]
    console.table(("difference", "target", "baseline", "nodes"), shown, _SHOWN)
    # A profile from a file cannot be measured again by `diagnose`.
    if mine > _RATIO * its and read is None:
        limits = Limits(slower_than=_RATIO, baseline=baseline)
        result.suggest(session.command("diagnose", CheckSettings(target=target, limits=limits)))
    return result.end()
