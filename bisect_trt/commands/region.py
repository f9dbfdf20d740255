"""The graph around the culprit as the report shows it: structure, types, ranges, errors, precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.units import neighbourhood
from bisect_trt.report.charts import plain_number
from bisect_trt.report.result import Result
from bisect_trt.tensors.comparison import tolerance_ratio
from bisect_trt.tensors.info import is_string, tensor_stats

MOST_NODES = 150
_SEARCHES = ("diagnose", "reduce")
_MOST_ELEMENTS = 1 << 26
"""Elements of tensors that are read for their ranges: a few tenths of a second."""
_SHOWN_INPUTS = 64
"""Inputs of a node that are listed."""
_ATTRIBUTE_LENGTH = 120
_SHOWN = 32
"""Shown values of a list."""
_ERROR_FIELDS = ("passed", "kind", "max_abs", "max_rel", "atol", "rtol", "worst", "mismatching", "total", "reason")


def region(subject: Subject, result: Result, most: int = MOST_NODES) -> dict[str, Any]:
    """Return the graph around the culprit; the model is not run.

    Returns:
        ``nodes`` in topological order, ``edges`` as ``[maker, reader, tensor]``, ``tensors`` by name, ``centre`` (ids
        of nodes) and ``total`` (the nodes of the model that depend on an input).
    """
    network, extra = subject.network, result.extra
    entries = [*extra.get("comparisons", ()), *extra.get("tensors", ())]
    passed = {entry["name"]: entry for entry in entries if entry["passed"]}
    # Of several input samples the first that fails counts.
    comparisons = passed | {entry["name"]: entry for entry in reversed(entries) if not entry["passed"]}
    named = {
        "culprits": _outputs(result.culprits),
        "origins": _outputs(each["node"] for each in extra.get("origins", ())),
        "mild": _outputs(each["node"] for each in extra.get("mild_origins", ())),
    }
    wrong = [entry["name"] for entry in extra.get("comparisons", ()) if not entry["passed"]]
    centre = [network.order[-1]]
    for group in (named["culprits"], named["origins"], wrong, network.outputs):
        if nodes := list(dict.fromkeys(network.producer[name] for name in group if name in network.producer)):
            centre = nodes
            break
    nearest = neighbourhood(network, centre, most)
    chosen = sorted(nearest, key=lambda node: network.rank[node])
    names = dict.fromkeys(name for node in nearest for name in (*network.made(node), *network.reads[node]))
    ranges = _ranges(subject, [name for name in names if name not in network.initializers])
    infos = subject.infos if "reference" in vars(subject) else network.infos  # asking for it would run the model
    floats = {name for name in names if name in infos and infos[name].dtype.name == "float32"}
    kept = _kept(result)

    def describe(node: int) -> dict[str, Any]:
        proto, made = network.nodes[node], network.made(node)
        precision, reason = None, None
        if kept is not None:
            found = next((name for name in (proto.name, *made) if name and name in kept), None)
            precision = "fp32" if found is not None else "low" if floats.intersection(made) else None
            reason = kept[found] if found is not None else None
        makers = {parent for parent in network.parents(node) if not network.constant[parent]}
        readers = {reader for name in made for reader in network.consumers.get(name, ())}
        return {
            "id": node,
            "name": proto.name,
            "op": proto.op_type,
            "domain": proto.domain,
            "attributes": attribute_texts(proto),
            "inputs": [[name, _source(network, name)] for name in network.reads[node][:_SHOWN_INPUTS]],
            "more_inputs": max(len(network.reads[node]) - _SHOWN_INPUTS, 0),
            "outputs": made,
            "written": network.written(node),
            "verdict": _verdict(result, named, comparisons, made),
            "precision": precision,
            "reason": reason,
            "hidden_makers": len(makers.difference(chosen)),
            "hidden_readers": len(readers.difference(chosen)),
        }

    def tensor(name: str) -> dict[str, Any]:
        known = {key: extra[key][name] for key in ("unseen", "own_unseen") if name in extra.get(key, {})}
        if (info := infos.get(name)) is not None:
            shape = None if info.shape is None else ["?" if dim is None else dim for dim in info.shape]
            known |= {"dtype": info.dtype.name, "shape": shape}
        if (comparison := comparisons.get(name)) is not None:
            known["error"] = _error(comparison)
            if comparison.get("own") is not None:
                known["own"] = _error(comparison["own"])
            if comparison.get("target_range") is not None:
                known["target"] = comparison["target_range"]
        return known | ranges.get(name, {})

    return {
        "nodes": [describe(node) for node in chosen],
        "edges": [list(edge) for edge in edges_between(network, chosen)],
        "tensors": {name: tensor(name) for name in names},
        "centre": [node for node in centre if node in chosen],
        "total": network.constant.count(False),
    }


def _verdict(
    result: Result, named: Mapping[str, list[str]], comparisons: Mapping[str, Any], made: Iterable[str]
) -> str:
    """Return what is known of a node that makes some tensors.

    Returns:
        ``culprit`` (of the minimal case), ``left`` (of the smallest that is known to fail, after an early end),
        ``origin`` (wrong although all it reads is right), ``mild`` (the same, but by far less than the outputs),
        ``mismatch``, ``match``, ``spare`` (not compared, but not of the minimal case) or ``unseen``.
    """
    made = set(made)
    # Only a search proves that they are needed: `layerwise` names the first origin there, `precision` what to keep.
    searched = result.command in _SEARCHES
    if searched and made.intersection(named["culprits"]):
        return "culprit" if result.status == "found" else "left"
    for verdict, group in (("origin", "origins"), ("mild", "mild")):
        if made.intersection(named[group]):
            return verdict
    if seen := [comparisons[name]["passed"] for name in made if name in comparisons]:
        return "match" if all(seen) else "mismatch"
    return "spare" if searched and named["culprits"] else "unseen"


def _kept(result: Result) -> dict[str, str | None] | None:
    """Return the reasons of what stays in fp32 by name and outputs; ``None`` where no search decided on precisions."""
    if result.artifacts.get("mixed") is None:
        return None
    kept: dict[str, str | None] = {}
    for entry in result.extra["keep_fp32"] or ():
        known = entry if isinstance(entry, Mapping) else {"name": str(entry)}
        kept |= dict.fromkeys((str(known.get("name") or ""), *known.get("outputs", ())), known.get("reason"))
    return kept


def _source(network: Network, name: str) -> str:
    """Return where a tensor comes from: ``input`` (of the graph), ``weight`` or ``node``."""
    if name in network.inputs:
        return "input"
    maker = network.producer.get(name)
    return "weight" if maker is None or network.constant[maker] else "node"


def _ranges(subject: Subject, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the ranges of the reference's values, of the nearest tensors first, for as long as that is quick."""
    left, ranges = _MOST_ELEMENTS, dict[str, dict[str, Any]]()
    for name in names if "reference" in vars(subject) else ():
        info = subject.reference.infos.get(name)
        if info is None or is_string(info.dtype) or info.dtype.kind == "c":
            continue
        size = math.prod(int(dim) for dim in info.shape or () if dim is not None)
        left -= size
        if left < 0 or not size:
            continue
        for value in subject.reference.select([name]).values():
            stats = tensor_stats(value)
            plain = {key: plain_number(getattr(stats, key)) for key in ("min", "max", "absmax")}
            ranges[name] = {"reference": {**plain, "nan": stats.nan, "inf": stats.inf}}
    return ranges


def _outputs(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [entry["outputs"][0] for entry in entries if entry.get("outputs")]


def _error(comparison: Mapping[str, Any]) -> dict[str, Any]:
    return {key: comparison.get(key) for key in _ERROR_FIELDS} | {"ratio": plain_number(tolerance_ratio(comparison))}


def edges_between(network: Network, nodes: Iterable[int]) -> list[tuple[int, int, str]]:
    """Return the edges among some nodes: maker, reader, tensor; sorted by reader in topological order."""
    chosen = set(nodes)
    return [
        (network.producer[name], reader, name)
        for reader in sorted(chosen, key=lambda node: network.rank[node])
        for name in network.reads[reader]
        if network.producer.get(name) in chosen
    ]


def attribute_texts(node: onnx.NodeProto) -> dict[str, str]:
    """Return a node's attributes in short, by name: of tensors and graphs only their kind."""
    return {attribute.name: _attribute_text(attribute) for attribute in node.attribute}


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type).lower().replace("_", " ")
    if kind.rstrip("s") in ("tensor", "graph", "sparse tensor", "type proto"):
        return f"<{kind}>"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return _cut(_value_text(value[: _ATTRIBUTE_LENGTH + 1]))  # plugins keep megabytes of state in one
    if isinstance(value, (int, float)):
        return _value_text(value)
    texts = [*map(_value_text, value[:_SHOWN]), *["..."] * (len(value) > _SHOWN)]
    return f"[{_cut(', '.join(texts))}]"


def _value_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _ATTRIBUTE_LENGTH else f"{text[:_ATTRIBUTE_LENGTH]}..."
