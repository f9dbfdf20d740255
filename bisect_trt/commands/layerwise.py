"""``layerwise``: compares every tensor on the target with the reference's, and names the first wrong one; or the time a layer."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from msgspec import structs

from bisect_trt.errors import (
    ConflictError,
    InputValuesError,
    MissingOptionError,
    ModelRefusedError,
    UnsuitableModelError,
)
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone, first_output
from bisect_trt.options.compare import CompareOptions, Limits
from bisect_trt.options.searches import Layerwise
from bisect_trt.options.shared import CheckOptions
from bisect_trt.options.spec import written
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Latency, LatencyRow, OwnOutputs
from bisect_trt.report.result import Result
from bisect_trt.report.summary import (
    INNER_ONLY,
    MARKING_HIDES,
    SLOWER_LAYERS,
    TRY_UNMARKED,
    grouped,
)
from bisect_trt.report.text import Json, shorten
from bisect_trt.session.call import Call
from bisect_trt.session.checks import CheckSettings, baseline_of, tolerance_options
from bisect_trt.session.session import Session
from bisect_trt.steps.arbiter import Arbiter
from bisect_trt.steps.layers import (
    LayerComparison,
    Marking,
    compare_layers,
    compare_own,
    fill_in,
    tell,
)
from bisect_trt.steps.placement import record_placement
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.options import Target
from bisect_trt.tensors.files import replacing
from bisect_trt.worker.place import Place
from bisect_trt.worker.protocol import Trace


def run(call: Call) -> Result:
    """Compare every tensor on the target with the reference's, and name the first node that is wrong.

    Raises:
        UnavailableError: The target does not run the model with tensors marked.
    """
    options = call[Layerwise]
    target = call[Target].required()
    if options.baseline is not None and not options.latency:
        raise MissingOptionError("--baseline needs --latency; add it.")
    conflicting = written(call[CompareOptions])[:1] or ["--isolate"] * options.isolate
    conflicting += ["--debug-tensors"] * options.debug_tensors
    if options.latency and conflicting:
        raise ConflictError(
            f"--latency compares no values, so {conflicting[0]} has no effect; drop one."
        )
    target = _with_debug_tensors(target) if options.debug_tensors else target
    tolerance = tolerance_options(call[CompareOptions], target)
    opened = call.open()
    with opened.examined(options.timeout, target) as session:
        if options.latency:
            return latency(session, target, options.baseline)
        subject = session.subject
        console = session.console
        result = session.result
        look = Marking(subject, target, tolerance, options.timeout)
        console.step(f"{target.describe()} against the reference, every tensor an output")
        # Marks may change what the compiler fuses, so the unmarked model has the last word.
        original = look.unmarked()
        record_placement(session, target)
        layers = compare_layers(look, original)
        if layers.refused:
            raise ModelRefusedError(
                f"the target does not run the model with every tensor marked: {layers.refused}. Use `diagnose` or `reduce`, "
                "which work without marks."
            )
        if not layers.tensors:
            raise ModelRefusedError(
                "no tensor of the model has a value of the reference to compare."
            )
        if options.isolate:
            layers = _isolated(look, layers)
        passes = original.ending is Ending.PASSED
        reason = describe_outcome(original)
        result.own_outputs = OwnOutputs(match=passes, reason=reason)
        console.say(f"  the model's own outputs, without marks: {reason}")
        fill_in(result, subject, layers)
        tell(layers, console)
        # Every tensor matches, and the outputs of the unmarked model do not.
        if layers.hidden:
            console.answer(TRY_UNMARKED)
            return result.end("inconclusive", MARKING_HIDES)
        settings = CheckSettings(CheckOptions(timeout=options.timeout), (), target, tolerance)
        arbiter = Arbiter(session, settings, not options.no_other_release)
        if not layers.origins:
            console.answer("Every tensor matches.")
            step = arbiter.doubt()
            return result.end("not_reproduced", step and f"every tensor matches\n  - {step}")
        first = layers.origins[0]
        result.culprits = subject.describe_searched([subject.network.rank[first]])
        _judge(arbiter, layers, first)
        if passes:
            console.answer(INNER_ONLY)
        return result.end()


def _with_debug_tensors(target: TargetSettings) -> TargetSettings:
    """Return a target that hands out the tensors that its compiler keeps.

    Raises:
        ConflictError: It cannot.
    """
    if not hasattr(target.target.own, "debug_tensors"):
        raise ConflictError(f"--debug-tensors: {target.target.title} has none; leave it out.")
    return target.with_own(debug_tensors=True)


def _isolated(look: Marking, layers: LayerComparison) -> LayerComparison:
    """Return the comparison with the error of each layer that is fed the reference's values."""
    isolated = compare_own(look)
    if isolated.refused:
        look.subject.console.warn(
            f"the target does not run the isolated layers: {isolated.refused}."
        )
    return structs.replace(layers, own=isolated.tensors, own_unseen=isolated.unseen)


def _judge(arbiter: Arbiter, layers: LayerComparison, first: int) -> None:
    """Run the first wrong node alone, on the sample on which it is wrong, and decide which side is."""
    subject = arbiter.session.subject
    network = subject.network
    comparisons = (layers.tensors[name] for name in network.made(first) if name in layers.tensors)
    sample = next((comparison.sample for comparison in comparisons if not comparison.passed), None)
    piece = subject.cut(frozenset({network.rank[first]}))
    arbiter.judge(replace(piece, sample=sample or 1))


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

    Each side fuses nodes in its own way. A layer is known by the names of its nodes and of the
    tensors that it makes; a node that no layer names is a part of the one that reads it. Nodes that
    share a layer on either side are one row. The differences rank suspects; a search with
    ``--slower-than`` proves.

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
    console.answer(SLOWER_LAYERS.format(mine, its))
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
