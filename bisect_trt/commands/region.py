"""The graph around the culprit as the report shows it: structure, types, ranges, errors, precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import inferred_infos
from bisect_trt.onnxlib.units import attribute_texts, edges_between, neighbourhood
from bisect_trt.probe.activations import Reference
from bisect_trt.report.charts import plain_number, tolerance_ratio
from bisect_trt.report.result import Result
from bisect_trt.tensors.info import TensorInfo, is_string
from bisect_trt.tensors.stats import count_nonfinite, tensor_stats

MOST_NODES = 150
SEARCHES = ("diagnose", "reduce")
_MOST_ELEMENTS = 1 << 26
"""How many elements of tensors are read for their ranges: a few tenths of a second."""
_SHOWN_INPUTS = 64
"""Of a node; a Concat of thousands is not listed in full."""


def describe_region(subject: Subject, result: Result, most: int = MOST_NODES) -> dict[str, Any]:
    """What is around the culprit.

    Args:
        subject: The model; its reference is looked at only if it was computed.
        result: What was found of it.
        most: How many nodes at most.

    Returns:
        ``nodes`` in topological order, ``edges`` as ``[maker, reader, tensor]``, ``tensors`` by name, ``centre`` (ids
        of nodes) and ``total`` (the nodes of the model that depend on an input).
    """
    network = subject.network
    centre = find_centre(network, result)
    nearest = neighbourhood(network, centre, most)
    chosen = sorted(nearest, key=lambda node: network.rank[node])
    comparisons = all_comparisons(result)
    reference, infos = _known_reference(subject), known_infos(subject)
    names = dict.fromkeys(name for node in nearest for name in (*network.made(node), *network.reads[node]))
    ranges = _ranges(reference, [name for name in names if name not in network.initializers])
    return {
        "nodes": [
            {**_node(network, node, result, comparisons, infos), **_hidden(network, node, set(chosen))}
            for node in chosen
        ],
        "edges": [list(edge) for edge in edges_between(network, chosen)],
        "tensors": {name: _tensor(name, infos, ranges, comparisons) | _notes(name, result) for name in names},
        "centre": [node for node in centre if node in set(chosen)],
        "total": network.constant.count(False),
    }


def _known_reference(subject: Subject) -> Reference | None:
    """The reference if it was computed: asking the subject for it would run the model."""
    return vars(subject).get("reference")


def known_infos(subject: Subject) -> dict[str, TensorInfo]:
    """Types and shapes as they ran, if the model was run, else as shape inference says."""
    return inferred_infos(subject.network) if _known_reference(subject) is None else subject.infos


def find_centre(network: Network, result: Result) -> list[int]:
    """The nodes that the answer is about: culprits, else origins, marks that hide the failure, wrong outputs, outputs."""
    wrong = [entry["name"] for entry in result.extra.get("comparisons", ()) if not entry["passed"]]
    for tensors in (_outputs(result.culprits), _origins(result), hiding_marks(result), wrong, network.outputs):
        nodes = list(dict.fromkeys(network.producer[name] for name in tensors if name in network.producer))
        if nodes:
            return nodes
    return [network.order[-1]]


def _outputs(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [entry["outputs"][0] for entry in entries if entry.get("outputs")]


def _origins(result: Result, key: str = "origins") -> list[str]:
    return _outputs(origin["node"] for origin in result.extra.get(key, ()))


def hiding_marks(result: Result) -> list[str]:
    """The tensors whose marks hide the failure, if they were looked for."""
    return list(result.extra.get("hiding", {}).get("marks", ()))


def all_comparisons(result: Result) -> dict[str, dict[str, Any]]:
    """What is known of each tensor's error, by name: of several input samples, the first that fails."""
    entries = [*result.extra.get("comparisons", ()), *result.extra.get("tensors", ())]
    passed = {entry["name"]: entry for entry in entries if entry["passed"]}
    return passed | {entry["name"]: entry for entry in reversed(entries) if not entry["passed"]}


def node_verdict(network: Network, node: int, result: Result, comparisons: Mapping[str, Mapping[str, Any]]) -> str:
    """What is known of a node.

    Returns:
        ``culprit`` (of the minimal case), ``left`` (of the smallest that is known to fail, after an early end), ``origin``
        (wrong although all it reads is right), ``mild`` (the same, but by far less than the outputs), ``mismatch``,
        ``match``, ``spare`` (not compared, but not of the minimal case) or ``unseen``.
    """
    made = network.made(node)
    # Only a search says that they are needed: `layerwise` names the first origin there, `precision` what to keep.
    if result.command in SEARCHES and not set(_outputs(result.culprits)).isdisjoint(made):
        return "culprit" if result.status == "found" else "left"
    if not set(_origins(result)).isdisjoint(made):
        return "origin"
    if not set(_origins(result, "mild_origins")).isdisjoint(made):
        return "mild"
    seen = [comparisons[name]["passed"] for name in made if name in comparisons]
    if seen:
        return "match" if all(seen) else "mismatch"
    return "spare" if result.command in SEARCHES and result.culprits else "unseen"


def node_precision(
    network: Network, node: int, result: Result, infos: Mapping[str, TensorInfo]
) -> tuple[str | None, str | None]:
    """``fp32`` (kept) or ``low`` where a search for precisions decided, and the reason where it is known.

    Nodes that make nothing in fp32 (integers, shapes, masks) are neither.
    """
    if result.artifacts.get("mixed") is None:
        return None, None
    for entry in result.extra["keep_fp32"] or ():
        known = entry if isinstance(entry, Mapping) else {"name": str(entry)}
        names = {str(known.get("name") or ""), *known.get("outputs", ())}
        if (network.nodes[node].name or "\0") in names or not names.isdisjoint(network.made(node)):
            return "fp32", known.get("reason")
    made = [infos[name].dtype.name for name in network.made(node) if name in infos]
    return "low" if "float32" in made else None, None


def _node(
    network: Network,
    node: int,
    result: Result,
    comparisons: Mapping[str, Mapping[str, Any]],
    infos: Mapping[str, TensorInfo],
) -> dict[str, Any]:
    proto = network.nodes[node]
    precision, reason = node_precision(network, node, result, infos)
    return {
        "id": node,
        "name": proto.name,
        "op": proto.op_type,
        "domain": proto.domain,
        "attributes": attribute_texts(proto),
        "inputs": [[name, _source(network, name)] for name in network.reads[node][:_SHOWN_INPUTS]],
        "more_inputs": max(len(network.reads[node]) - _SHOWN_INPUTS, 0),
        "outputs": network.made(node),
        "written": network.written(node),
        "verdict": node_verdict(network, node, result, comparisons),
        "hides": not set(hiding_marks(result)).isdisjoint(network.made(node)),
        "precision": precision,
        "reason": reason,
    }


def _hidden(network: Network, node: int, shown: set[int]) -> dict[str, int]:
    """How many makers and readers a node has that are not shown, without those that only make weights."""
    makers = {parent for parent in network.parents(node) if not network.constant[parent]}
    readers = {reader for name in network.made(node) for reader in network.consumers.get(name, ())}
    return {"hidden_makers": len(makers - shown), "hidden_readers": len(readers - shown)}


def _source(network: Network, name: str) -> str:
    """Where a tensor comes from: ``input`` (of the graph), ``weight`` or ``node``."""
    if name in network.inputs:
        return "input"
    maker = network.producer.get(name)
    return "weight" if maker is None or network.constant[maker] else "node"


def _tensor(
    name: str,
    infos: Mapping[str, TensorInfo],
    ranges: Mapping[str, dict[str, Any]],
    comparisons: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if name in infos:
        info = infos[name]
        shape = None if info.shape is None else ["?" if dim is None else dim for dim in info.shape]
        known |= {"dtype": info.dtype.name, "shape": shape}
    if name in ranges:
        known["reference"] = ranges[name]
    if name in comparisons:
        comparison = comparisons[name]
        known["error"] = _error(comparison)
        if comparison.get("own") is not None:
            known["own"] = _error(comparison["own"])
        if comparison.get("target_range") is not None:
            known["target"] = comparison["target_range"]
    return known


def _error(comparison: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("passed", "kind", "max_abs", "max_rel", "atol", "rtol", "worst", "mismatching", "total", "reason")
    return {key: comparison.get(key) for key in kept} | {"ratio": plain_number(tolerance_ratio(comparison))}


def _notes(name: str, result: Result) -> dict[str, str]:
    """Why a tensor's error, or the error of its node alone, is not known."""
    return {key: result.extra[key][name] for key in ("unseen", "own_unseen") if name in result.extra.get(key, {})}


def _ranges(reference: Reference | None, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The ranges of the reference's values, of the nearest tensors first, for as long as that is quick."""
    ranges: dict[str, dict[str, Any]] = {}
    for name, values in _readable(reference, names):
        stats = tensor_stats(values)
        nan, inf = count_nonfinite(values) if stats.has_nan or stats.has_inf else (0, 0)
        ranges[name] = {
            "min": plain_number(stats.min),
            "max": plain_number(stats.max),
            "absmax": plain_number(stats.absmax),
            "nan": nan,
            "inf": inf,
        }
    return ranges


def _readable(reference: Reference | None, names: Iterable[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    left = _MOST_ELEMENTS
    for name in names if reference is not None else ():
        assert reference is not None
        info = reference.infos.get(name)
        if info is None or is_string(info.dtype) or info.dtype.kind == "c":
            continue
        size = math.prod(int(dim) for dim in info.shape or () if dim is not None)
        left -= size
        if left >= 0 and size:
            yield from reference.select([name]).items()
