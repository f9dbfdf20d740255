"""The result of a run in the formats of other programs: JUnit XML, and node data of Model Explorer."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.load import load_model
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.report.result import Result
from bisect_trt.report.text import clean, named
from bisect_trt.tensors.files import replacing

_SEARCHES = frozenset({"diagnose", "reduce", "cause", "workaround", "layerwise", "releases"})
"""Commands with the status ``found`` where the target is wrong."""


def cases_of(result: Result) -> list[tuple[str, str, str]]:
    """Return the name, the verdict and the message of each test case of a result.

    Each output that ``run`` compared is a test case; any other command is one.

    Returns:
        The verdict is ``pass``, ``failure`` (the target is wrong) or ``error`` (the command did not
        end with an answer).
    """
    command = result.command
    status = result.status
    reason = result.why or ""
    if status in ("error", "interrupted", "inconclusive"):
        return [(command, "error", reason or f"the command ended with status '{status}'")]
    comparisons = result.comparisons or ()
    if (
        command == "run"
        and comparisons
        and (status == "found") == all(comparison.passed for comparison in comparisons)
    ):
        names = [
            comparison.name
            if comparison.sample is None
            else f"{comparison.name} (sample {comparison.sample})"
            for comparison in comparisons
        ]
        return [
            (name, "pass", "")
            if comparison.passed
            else (name, "failure", describe_comparison(comparison))
            for name, comparison in zip(names, comparisons, strict=True)
        ]
    if (status == "found") != (command in _SEARCHES):
        return [(command, "pass", "")]
    nodes = ", ".join(map(named, result.culprits))
    return [(command, "failure", nodes or reason or "the target differs from the reference")]


def write_junit(result: Result, path: Path) -> None:
    """Write the test cases of a result as JUnit XML, as Jenkins, GitLab and GitHub read it (github.com/testmoapp/junitxml).

    Raises:
        UsageError: The file cannot be written.
    """
    from bisect_trt.report import page  # noqa: PLC0415 - Jinja2 is not needed before the answer

    junit = page.environment().get_template("junit.xml")
    with replacing(path) as file:
        cases = [tuple(map(clean, case)) for case in cases_of(result)]
        file.write(junit.render(result=result, cases=cases).encode() + b"\n")


_LARGEST_ERROR = 1e9
"""In place of infinite errors, which JSON has no numbers for."""
_RIGHT = "#b7e1cd"
_WRONG = "#f4b6b0"


def write_node_data(result: Result, path: Path) -> None:
    """Write the result as node data of Model Explorer (github.com/google-ai-edge/model-explorer), by the names of nodes.

    The data are the errors of the compared tensors, in tolerances, or else what the answer says of
    its nodes.

    Raises:
        UsageError: The file cannot be written.
    """
    names: dict[str, str] = {}
    # The model may be what is wrong.
    with contextlib.suppress(BisectError):
        nodes = load_model(Path(result.model.path or ""), structure=True).graph.node
        names = {output: node.name for node in nodes for output in node.output}
    errors: dict[str, float] = {}
    for tensor in result.tensors or result.comparisons or ():
        # min() returns its first argument where the other one is NaN.
        ratio = min(_LARGEST_ERROR, tensor.tolerance_ratio)
        name = names.get(tensor.name) or tensor.name
        errors[name] = max(ratio, errors.get(name, 0.0))
    words = (("fp32", result.keep_fp32 or ()), ("answer", result.culprits))
    marks = {
        node.name: {"value": word, "bgColor": _WRONG} for word, nodes in words for node in nodes
    }
    thresholds = [{"value": 1, "bgColor": _RIGHT}, {"value": _LARGEST_ERROR, "bgColor": _WRONG}]
    data = {
        "name": "error, in tolerances" if errors else "bisect-trt",
        "results": {name: {"value": error} for name, error in errors.items()} or marks,
        "thresholds": thresholds if errors else [],
    }
    with replacing(path) as file:
        file.write(json.dumps(data, indent=2).encode())
