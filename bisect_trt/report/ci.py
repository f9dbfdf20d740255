"""What a result is in CI: test cases in JUnit's XML, and annotations as GitHub Actions reads them.

JUnit's format is the one that Jenkins, GitLab and GitHub's reporters read (testmoapp/junitxml); annotations are workflow
commands ("Workflow commands for GitHub Actions", GitHub's documentation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bisect_trt.onnxlib.exported import in_module
from bisect_trt.report.text import clean
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import replacing

_SEARCHES = frozenset({"diagnose", "reduce", "cause", "workaround", "layerwise", "releases"})
"""Commands that have found something only where something is wrong."""
_MOST_ANNOTATIONS = 10
"""GitHub shows no more of one step."""
_TEXT_LENGTH = 2000


@dataclass(frozen=True)
class TestCase:
    """One thing that was tried.

    Attributes:
        name: What.
        verdict: ``pass``; ``failure``, where the target is wrong; ``error``, where that could not be said.
        message: Why not, in a sentence.
        details: More of it, a line each.
        file: The line of a program that it is about, as ``file:line``, if one is known.
    """

    name: str
    verdict: Literal["pass", "failure", "error"]
    message: str = ""
    details: Sequence[str] = ()
    file: str | None = None


def cases_of(result: Mapping[str, Any]) -> list[TestCase]:
    """The test cases of a result: one an output where outputs were compared, else one in all."""
    command, status = str(result["command"]), result["status"]
    why = str(result["why"] or "")
    if status in ("error", "interrupted", "inconclusive"):
        return [TestCase(command, "error", why or f"it ended as '{status}'", _details(result))]
    seen = [TensorComparison.from_json(each) for each in result.get("comparisons") or ()]
    if command == "run" and seen and (status == "found") == all(each.passed for each in seen):
        return [
            TestCase(_name(each), "pass" if each.passed else "failure", "" if each.passed else each.describe())
            for each in seen
        ]
    wrong = status == "found" if command in _SEARCHES else status != "found"
    if not wrong:
        return [TestCase(command, "pass")]
    answers = _answers(result)
    source = next((each for each in map(_source, result["culprits"]) if each), None)
    message = next(iter(answers), "") or why or "the target differs from the reference"
    return [TestCase(command, "failure", message, [*answers[1:], *_details(result)], source)]


def _name(comparison: TensorComparison) -> str:
    return comparison.name if comparison.sample is None else f"{comparison.name} (sample {comparison.sample})"


def _answers(result: Mapping[str, Any]) -> list[str]:
    return [str(line) for line in ((result.get("report") or {}).get("story") or {}).get("answers", ())]


def _source(culprit: Mapping[str, Any]) -> str | None:
    return (culprit.get("module") or {}).get("source")


def _details(result: Mapping[str, Any]) -> list[str]:
    nodes = [f"{c['op']} '{c['name'] or next(iter(c['outputs']), '?')}'{in_module(c)}" for c in result["culprits"]]
    files = {"Report": "report", "Reproducer": "reproducer", "Reduced model": "reduced", "Run": "run"}
    left = [f"{title}: {path}" for title, key in files.items() if (path := result["artifacts"].get(key))]
    return [*nodes, *left]


def write_junit(result: Mapping[str, Any], path: Path) -> None:
    """Write the test cases of a result as JUnit's XML.

    Raises:
        UsageError: It cannot be written.
    """
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - every command imports this module, and few write this

    cases = cases_of(result)
    model = clean(str(result["model"].get("path", "")))
    counts = {f"{kind}s": str(sum(case.verdict == kind for case in cases)) for kind in ("failure", "error")}
    suite = ET.Element(
        "testsuite",
        {"name": f"bisect-trt {result['command']}", "tests": str(len(cases)), **counts, "time": str(result["wall_s"])},
    )
    for case in cases:
        known = {"classname": model or "bisect-trt", "name": clean(case.name)}
        each = ET.SubElement(suite, "testcase", {**known, "time": str(result["wall_s"] if case is cases[0] else 0)})
        if case.verdict != "pass":
            said = ET.SubElement(each, case.verdict, {"message": clean(case.message)[:_TEXT_LENGTH]})
            said.text = "\n".join(map(clean, [case.message, *case.details]))
    suites = ET.Element("testsuites")
    suites.append(suite)
    with replacing(path) as file:
        file.write(ET.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n")


def workflow_commands(result: Mapping[str, Any]) -> Iterator[str]:
    """A line for each case that is not as it should be, which GitHub shows beside the change."""
    bad = [case for case in cases_of(result) if case.verdict != "pass"]
    for case in bad[:_MOST_ANNOTATIONS]:
        about = "" if case.name == result["command"] else f": {case.name}"
        known = {"title": f"bisect-trt {result['command']}{about}"}
        if case.file is not None:
            file, _, line = case.file.rpartition(":")
            known = {"file": _near(file), "line": line, **known}
        properties = ",".join(f"{key}={_property(value)}" for key, value in known.items())
        yield f"::error {properties}::{_data(chr(10).join([case.message, *case.details])[:_TEXT_LENGTH])}"
    if len(bad) > _MOST_ANNOTATIONS:
        yield f"::error title=bisect-trt::and {len(bad) - _MOST_ANNOTATIONS} more"


def _near(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _data(text: str) -> str:
    """As the toolkit of GitHub Actions escapes what is said (``escapeData``)."""
    return clean(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    """The same of a property (``escapeProperty``)."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
