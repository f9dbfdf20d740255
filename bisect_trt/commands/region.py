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
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.stats import tensor_stats

MOST_NODES = 150
_SEARCHES = ("diagnose", "reduce")
_MOST_ELEMENTS = 1 << 26
"""How many elements of tensors are read for their ranges: a few tenths of a second."""
_SHOWN_INPUTS = 64
"""Of a node; a Concat of thousands is not listed in full."""
_ATTRIBUTE_LENGTH = 120
_SHOWN = 32
"""Shown values of a list."""
_ERROR_FIELDS = ("passed", "kind", "max_abs", "max_rel", "atol", "rtol", "worst", "mismatching", "total", "reason")


class Findings:
    """What a result says of the nodes and tensors of a model.

    Attributes:
        network: The model's graph.
        comparisons: Each tensor's error, by name: of several input samples, the first that fails.
    """

    def __init__(self, subject: Subject, result: Result) -> None:
        """Look at a result; the model is not run."""
        self.network, self._result, extra = subject.network, result, result.extra
        self._reference = vars(subject).get("reference")  # asking the subject for it would run the model
        self._infos = self.network.infos if self._reference is None else subject.infos
        entries = [*extra.get("comparisons", ()), *extra.get("tensors", ())]
        passed = {entry["name"]: entry for entry in entries if entry["passed"]}
        self.comparisons = passed | {entry["name"]: entry for entry in reversed(entries) if not entry["passed"]}
        self._culprits = _outputs(result.culprits)
        self._origins, self._mild = (
            _outputs(each["node"] for each in extra.get(key, ())) for key in ("origins", "mild_origins")
        )

    def centre(self) -> list[int]:
        """The nodes that the answer is about: culprits, else origins, wrong outputs, outputs."""
        network = self.network
        wrong = [entry["name"] for entry in self._result.extra.get("comparisons", ()) if not entry["passed"]]
        for tensors in (self._culprits, self._origins, wrong, network.outputs):
            nodes = list(dict.fromkeys(network.producer[name] for name in tensors if name in network.producer))
            if nodes:
                return nodes
        return [network.order[-1]]

    def verdict(self, node: int) -> str:
        """What is known of a node.

        Returns:
            ``culprit`` (of the minimal case), ``left`` (of the smallest that is known to fail, after an early end),
            ``origin`` (wrong although all it reads is right), ``mild`` (the same, but by far less than the outputs),
            ``mismatch``, ``match``, ``spare`` (not compared, but not of the minimal case) or ``unseen``.
        """
        made, searched = self.network.made(node), self._result.command in _SEARCHES
        # Only a search says that they are needed: `layerwise` names the first origin there, `precision` what to keep.
        if searched and not set(self._culprits).isdisjoint(made):
            return "culprit" if self._result.status == "found" else "left"
        for verdict, names in (("origin", self._origins), ("mild", self._mild)):
            if not set(names).isdisjoint(made):
                return verdict
        seen = [self.comparisons[name]["passed"] for name in made if name in self.comparisons]
        if seen:
            return "match" if all(seen) else "mismatch"
        return "spare" if searched and self._culprits else "unseen"

    def precision(self, node: int) -> tuple[str | None, str | None]:
        """``fp32`` (kept) or ``low`` where a search for precisions decided, and the reason where it is known.

        Nodes that make nothing in fp32 (integers, shapes, masks) are neither.
        """
        made = self.network.made(node)
        if self._result.artifacts.get("mixed") is None:
            return None, None
        for entry in self._result.extra["keep_fp32"] or ():
            known = entry if isinstance(entry, Mapping) else {"name": str(entry)}
            names = {str(known.get("name") or ""), *known.get("outputs", ())}
            if (self.network.nodes[node].name or "\0") in names or not names.isdisjoint(made):
                return "fp32", known.get("reason")
        types = [self._infos[name].dtype.name for name in made if name in self._infos]
        return "low" if "float32" in types else None, None

    def region(self, most: int = MOST_NODES) -> dict[str, Any]:
        """What is around the culprit, of at most so many nodes.

        Returns:
            ``nodes`` in topological order, ``edges`` as ``[maker, reader, tensor]``, ``tensors`` by name, ``centre`` (ids
            of nodes) and ``total`` (the nodes of the model that depend on an input).
        """
        network, centre = self.network, self.centre()
        nearest = neighbourhood(network, centre, most)
        chosen = sorted(nearest, key=lambda node: network.rank[node])
        names = dict.fromkeys(name for node in nearest for name in (*network.made(node), *network.reads[node]))
        ranges = self._ranges([name for name in names if name not in network.initializers])
        return {
            "nodes": [self._node(node, set(chosen)) for node in chosen],
            "edges": [list(edge) for edge in edges_between(network, chosen)],
            "tensors": {name: self._tensor(name) | ranges.get(name, {}) for name in names},
            "centre": [node for node in centre if node in set(chosen)],
            "total": network.constant.count(False),
        }

    def _node(self, node: int, shown: set[int]) -> dict[str, Any]:
        network, proto = self.network, self.network.nodes[node]
        precision, reason = self.precision(node)
        makers = {parent for parent in network.parents(node) if not network.constant[parent]}
        readers = {reader for name in network.made(node) for reader in network.consumers.get(name, ())}
        return {
            "id": node,
            "name": proto.name,
            "op": proto.op_type,
            "domain": proto.domain,
            "attributes": attribute_texts(proto),
            "inputs": [[name, self._source(name)] for name in network.reads[node][:_SHOWN_INPUTS]],
            "more_inputs": max(len(network.reads[node]) - _SHOWN_INPUTS, 0),
            "outputs": network.made(node),
            "written": network.written(node),
            "verdict": self.verdict(node),
            "precision": precision,
            "reason": reason,
            "hidden_makers": len(makers - shown),
            "hidden_readers": len(readers - shown),
        }

    def _source(self, name: str) -> str:
        """Where a tensor comes from: ``input`` (of the graph), ``weight`` or ``node``."""
        if name in self.network.inputs:
            return "input"
        maker = self.network.producer.get(name)
        return "weight" if maker is None or self.network.constant[maker] else "node"

    def _tensor(self, name: str) -> dict[str, Any]:
        extra = self._result.extra
        known: dict[str, Any] = {
            key: extra[key][name] for key in ("unseen", "own_unseen") if name in extra.get(key, {})
        }
        if (info := self._infos.get(name)) is not None:
            shape = None if info.shape is None else ["?" if dim is None else dim for dim in info.shape]
            known |= {"dtype": info.dtype.name, "shape": shape}
        if (comparison := self.comparisons.get(name)) is not None:
            known["error"] = _error(comparison)
            if comparison.get("own") is not None:
                known["own"] = _error(comparison["own"])
            if comparison.get("target_range") is not None:
                known["target"] = comparison["target_range"]
        return known

    def _ranges(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The ranges of the reference's values, of the nearest tensors first, for as long as that is quick."""
        ranges: dict[str, dict[str, Any]] = {}
        if (reference := self._reference) is None:
            return ranges
        left, infos = _MOST_ELEMENTS, reference.infos
        for name in names:
            if name not in infos or is_string(infos[name].dtype) or infos[name].dtype.kind == "c":
                continue
            size = math.prod(int(dim) for dim in infos[name].shape or () if dim is not None)
            left -= size
            if left < 0 or not size:
                continue
            for values in reference.select([name]).values():
                stats = tensor_stats(values)
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
