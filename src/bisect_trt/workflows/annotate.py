"""``--annotate``: the original model with what was found of each node, for Netron."""

from __future__ import annotations

from pathlib import Path

from bisect_trt.graph.annotate import write_annotated
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.region import all_comparisons, known_infos, node_precision, node_verdict
from bisect_trt.workflows.subject import Subject

VERDICTS = {
    "culprit": "needed to fail: part of the minimal failing case",
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
    notes: dict[int, dict[str, str]] = {}
    for node in range(len(network.nodes)):
        entries = {"bisect-trt.verdict": VERDICTS[node_verdict(network, node, result, comparisons)]}
        seen = [comparisons[name] for name in network.made(node) if name in comparisons]
        if seen:
            errors = [TensorComparison.from_json({k: v for k, v in c.items() if k != "op"}).describe() for c in seen]
            entries["bisect-trt.error"] = "; ".join(errors)
        precision, reason = node_precision(network, node, result, infos)
        if precision is not None:
            entries["bisect-trt.precision"] = PRECISIONS[precision] + (f": {reason}" if reason else "")
        notes[node] = entries
    write_annotated(subject.settings.path, notes, path, subject.settings.weights)
    result.artifacts["annotated"] = str(path)
