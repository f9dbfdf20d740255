"""A result as JUnit XML, in the form that Jenkins, GitLab and GitHub's reporters read (github.com/testmoapp/junitxml)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_trt.report.text import clean
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import replacing

_SEARCHES = frozenset({"diagnose", "reduce", "cause", "workaround", "layerwise", "releases"})
"""Commands whose status is ``found`` where the target is wrong."""


def cases_of(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, the verdict and the message of each test case of a result.

    Each output that ``run`` compared is a test case; any other command is one.

    Returns:
        The verdict is ``pass``, ``failure`` (the target is wrong) or ``error`` (the command did not end with an answer).
    """
    command, status, why = str(result["command"]), result["status"], str(result["why"] or "")
    if status in ("error", "interrupted", "inconclusive"):
        return [(command, "error", why or f"the command ended with status '{status}'")]
    seen = [TensorComparison.from_json(each) for each in result.get("comparisons") or ()]
    if command == "run" and seen and (status == "found") == all(each.passed for each in seen):
        names = [each.name if each.sample is None else f"{each.name} (sample {each.sample})" for each in seen]
        return [
            (name, "pass", "") if each.passed else (name, "failure", each.describe())
            for name, each in zip(names, seen, strict=True)
        ]
    if (status == "found") != (command in _SEARCHES):
        return [(command, "pass", "")]
    nodes = ", ".join(
        f"{each['op']} '{each['name'] or next(iter(each['outputs']), '?')}'" for each in result["culprits"]
    )
    return [(command, "failure", nodes or why or "the target differs from the reference")]


def write_junit(result: Mapping[str, Any], path: Path) -> None:
    """Write the test cases of a result as JUnit XML.

    Raises:
        UsageError: The file cannot be written.
    """
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - every command imports this module, and few write this

    cases = cases_of(result)
    counts = {f"{kind}s": str(sum(verdict == kind for _, verdict, _ in cases)) for kind in ("failure", "error")}
    suites = ET.Element("testsuites")
    name, seconds = f"bisect-trt {result['command']}", str(result["wall_s"])
    suite = ET.SubElement(suites, "testsuite", {"name": name, "tests": str(len(cases)), **counts, "time": seconds})
    model = clean(str(result["model"].get("path", ""))) or "bisect-trt"
    for name, verdict, message in cases:
        case = ET.SubElement(suite, "testcase", {"classname": model, "name": clean(name)})
        if verdict != "pass":
            ET.SubElement(case, verdict, {"message": clean(message)}).text = clean(message)
    with replacing(path) as file:
        file.write(ET.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n")
