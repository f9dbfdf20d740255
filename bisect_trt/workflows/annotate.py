"""``--annotate``: the original model with what was found of each node, for Netron."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_trt.graph.annotate import write_annotated
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.region import all_comparisons, hiding_marks, known_infos, node_precision, node_verdict
from bisect_trt.workflows.subject import Subject

VERDICTS = {
    "culprit": "needed to fail: part of the minimal failing case",
    "left": "not ruled out: part of the smallest case that is known to fail",
    "origin": "wrong, although all that it reads is right",
    "mild": "off, but by far less than the outputs are",
    "mismatch": "wrong, and so is something that it reads",
    "match": "right",
    "spare": "not needed to fail",
    "unseen": "not compared",
}
PRECISIONS = {"fp32": "kept in fp32", "low": "lowered"}


def annotate(subject: Subject, result: Result, path: Path) -> None:
    """Write the original model with each node's verdict, error and precision, where known, in its metadata.

    Raises:
        UsageError: It cannot be written.
    """
    network, comparisons, infos = subject.network, all_comparisons(result), known_infos(subject)
    marks = set(hiding_marks(result))
    notes: dict[int, dict[str, str]] = {}
    for node in range(len(network.nodes)):
        entries = {"bisect-trt.verdict": VERDICTS[node_verdict(network, node, result, comparisons)]}
        seen = [comparisons[name] for name in network.made(node) if name in comparisons]
        if seen:
            entries["bisect-trt.error"] = "; ".join(map(_describe, seen))
        own = [each["own"] for each in seen if each.get("own") is not None]
        if own:
            entries["bisect-trt.own-error"] = "; ".join(map(_describe, own))
        if not marks.isdisjoint(network.made(node)):
            entries["bisect-trt.hides"] = "with what it makes as an output of the model too, the failure is gone"
        precision, reason = node_precision(network, node, result, infos)
        if precision is not None:
            entries["bisect-trt.precision"] = PRECISIONS[precision] + (f": {reason}" if reason else "")
        notes[node] = entries
    write_annotated(subject.settings.path, notes, path, subject.settings.weights)
    result.artifacts["annotated"] = str(path)


def _describe(comparison: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in comparison.items() if key not in ("op", "own")}
    return TensorComparison.from_json(plain).describe()
