"""The report's part on whose fault a failure is, and the ways around it."""

from __future__ import annotations

from typing import Any

from bisect_trt.commands.workarounds import Way, tell
from bisect_trt.report.console import QuietConsole
from bisect_trt.report.page import macro
from bisect_trt.report.result import Result


def findings(result: dict[str, Any]) -> str:
    return str(macro("report.html", "findings", result, None))


def result(**more: Any) -> dict[str, Any]:
    ways = [
        Way("switch", "optimizer:A<b> turned", True, line="x = '<tag>'", worst_error=0.25, latency_ms=1.5, why="held"),
        Way("barrier", "behind 'a'", False, why="it fails"),
        Way("rewrite", "as Mul", None),
    ]
    return {"workarounds": [way.to_json() for way in ways], **more}


def test_each_way_has_its_row() -> None:
    page = findings(result(fault={"sentence": "It is <b>nobody's</b>."}, workaround_baseline={"failing_ms": 2.5}))
    for words in ("passes", "does not pass", "not tried", "0.25", "1.5", "unchanged", "2.5", "rewrite: as Mul"):
        assert words in page
    for raw in ("<tag>", "A<b>", "<b>nobody"):  # texts of a model are no markup
        assert raw not in page


def test_what_does_not_hold_on_fresh_inputs_is_said_so_below_what_does() -> None:
    weak = Way("precision", "3 nodes in fp32", True, fresh=(60, 52), why="held on 52 of 60 fresh inputs").to_json()
    sound = Way("rewrite", "as Mul", True, fresh=(60, 60), why="held on 60 of 60 fresh inputs").to_json()
    said = "passes on the inputs given, does not hold on fresh ones"
    found, console = Result("diagnose", "found"), QuietConsole()
    found.extra["workarounds"] = [weak, sound]
    tell(found, console)
    found.extra["workarounds"] = [weak]
    tell(found, console)
    assert [line.strip() for line in console.story.answers][:4] == [
        "A way around it: as Mul.",
        "rewrite: as Mul: passes; held on 60 of 60 fresh inputs",
        f"precision: 3 nodes in fp32: {said}; held on 52 of 60 fresh inputs",
        "A way around it: 3 nodes in fp32, which does not hold on all fresh inputs.",
    ]
    assert findings({"workarounds": [weak, sound]}).count("fails on fresh ones") == 1


def test_without_any_there_is_no_part() -> None:
    assert findings({}) == ""
