"""The report's part on whose fault a failure is, and the ways around it."""

from __future__ import annotations

from typing import Any

from bisect_trt.reporting.html.findings import findings_section
from bisect_trt.workflows.workaround.proof import Way


def result(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - of many types
    ways = [
        Way("switch", "optimizer:A<b> turned", True, line="x = '<tag>'", worst_error=0.25, latency_ms=1.5, why="held"),
        Way("barrier", "behind 'a'", False, why="it fails"),
        Way("rewrite", "as Mul", None),
    ]
    return {"workarounds": [way.to_json() for way in ways], **more}


def test_each_way_has_its_row() -> None:
    page = str(
        findings_section(result(fault={"sentence": "It is <b>nobody's</b>."}, workaround_baseline={"failing_ms": 2.5}))
    )
    for words in ("passes", "does not pass", "not tried", "0.25", "1.5", "as it fails", "2.5", "rewrite: as Mul"):
        assert words in page
    for raw in ("<tag>", "A<b>", "<b>nobody"):  # texts of a model are no markup
        assert raw not in page


def test_without_any_there_is_no_part() -> None:
    assert findings_section({}) is None
