"""The report's part on whose fault a failure is, and the ways around it."""

from __future__ import annotations

from typing import Any

from bisect_trt.commands.workaround import Way, print_ways
from bisect_trt.report.console import QuietConsole
from bisect_trt.report.page import macro
from bisect_trt.report.result import Result


def findings(result: dict[str, Any]) -> str:
    return str(macro("report.html", "findings", result))


def result(**more: Any) -> dict[str, Any]:
    ways = [
        Way("switch", "optimizer:A<b> turned", True, line="x = '<tag>'", worst_error=0.25, why="held"),
        Way("barrier", "behind 'a'", False, why="it fails"),
        Way("rewrite", "as Mul", None),
    ]
    return {"workarounds": [way.to_json() for way in ways], **more}


def test_each_way_has_its_row() -> None:
    page = findings(result(fault={"sentence": "It is <b>nobody's</b>."}))
    for words in ("passes", "does not pass", "not tried", "0.25", "rewrite: as Mul"):
        assert words in page
    for raw in ("<tag>", "A<b>", "<b>nobody"):  # texts of a model are no markup
        assert raw not in page


def test_the_first_that_passes_is_recommended() -> None:
    found, console = Result("workaround", "found"), QuietConsole()
    found.extra |= result()
    print_ways(found, console)
    assert console.transcript.answers[0] == "Workaround: optimizer:A<b> turned."
    assert len(console.transcript.answers) == 2 + len(found.extra["workarounds"])


def test_without_any_there_is_no_part() -> None:
    assert findings({}) == ""
