"""``ISSUE.md`` for TensorRT."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from support import model_of

from bisect_trt.options.compare import ErrorStat
from bisect_trt.options.searches import Tracker
from bisect_trt.report.reproducer import ISSUE, NOT_TRIED, Reproducer, Since, answer_issue
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement

WORST = WorstElement((0, 1), float("inf"), 70000.0, float("inf"))
SEEN = TensorComparison(
    "a:b", False, ComparisonKind.INF, ErrorStat.QUANTILE, 1e-3, 1e-2, worst=WORST, quantile=0.9, quantile_abs=2.0
)
TRT = TrtSettings(pool_limits=(("workspace", 1 << 30),), builder_optimization_level=3, plugins=("p.so",))
TARGET = TargetSettings("trt", fp16=True, int8=True, held=True, own=TRT)


def chained(nodes: int) -> onnx.ModelProto:
    names = ["x", *(f"t{number}" for number in range(1, nodes)), "a:b"]
    adds = [helper.make_node("Add", [names[n], "x"], [names[n + 1]], name=f"add{n}") for n in range(nodes)]
    return model_of(adds, types=dict.fromkeys(("x", "a:b"), TensorProto.FLOAT16))


def issue(target: TargetSettings = TARGET, *, lowered: bool = False, refusal: str | None = None) -> Reproducer:
    seen, failure = ([], "build: no kernel for Foo") if refusal else ([SEEN], "inf")
    model = chained(14)
    here = {"place": "ssh=box", "GPU": "H100"}
    ran = model if lowered else None
    return Reproducer(model, ran, lowered, {}, {}, seen, "It fails.", target, "Found.", failure, refusal, places=[here])


def test_what_a_newer_release_mends_is_said_first_unless_it_is_no_bug() -> None:
    since = Since("foo 1.0 passes, 1.1 fails; 1.2 passes again.", "upgrade to foo 1.2 or later")
    found = replace(issue(), since=since)
    page = found.render(ISSUE)
    assert page.startswith("> **Fixed in a newer release**: upgrade to foo 1.2 or later rather than")
    assert f"**Have you tried the latest release?** {since.sentence}\n" in page
    page = replace(found, is_bug=False, fault="Too large.").render(ISSUE)
    assert page.startswith("> **Not a bug report.** Too large.")
    assert "Fixed in" not in page
    assert "Fixed in" not in replace(found, since=replace(since, fixed=None)).render(ISSUE)


@pytest.mark.parametrize("tracker", list(Tracker))
def test_the_issue_has_the_form_of_its_tracker_and_no_blank_field(tracker: Tracker) -> None:
    page = replace(issue(), tracker=tracker.value, places=[]).render(ISSUE)
    fields = re.findall(r"^- \*\*(.+?)\*\*: *(.*)$", page, re.MULTILINE)
    assert len(fields) >= 3, page
    assert all(value for _, value in fields)
    assert "Not tried; 'bisect-trt releases'" in page
    assert len(set(re.findall(r"^## .+$", page, re.MULTILINE))) == len(re.findall(r"^## .+$", page, re.MULTILINE))


def test_a_title_has_the_form_of_the_tracker() -> None:
    known = {"tensorrt": "10.13", "GPU": "H100"}
    facts: defaultdict[str, str] = defaultdict(str, known)
    assert issue().title(facts) == "Inf failure of TensorRT 10.13 when running Add on GPU H100"  # 14 of one kind
    mixed = replace(issue(), tracker="onnxruntime")
    mixed.model.graph.node[3].op_type = "Mul"
    assert mixed.title(facts) == "TensorRT: Inf from Add, Mul"
    refused = replace(issue(refusal="no kernel for Foo"), tracker="openvino")
    assert refused.title(facts) == "TensorRT: refusal of Add"


def test_the_releases_answer_the_question_of_an_issue_once(tmp_path: Path) -> None:
    path, since = tmp_path / ISSUE, Since("foo 1.0 passes, 1.1* fails.", "upgrade to foo 1.2 or later")
    path.write_text(replace(issue(), tracker="onnxruntime").render(ISSUE), encoding="utf-8")
    assert answer_issue(path, since)
    page = path.read_text(encoding="utf-8")
    assert "newer release?** foo 1.0 passes, 1.1\\* fails. Fix: upgrade to foo 1.2 or later.\n" in page
    assert NOT_TRIED not in page
    assert not answer_issue(path, since)
    assert not answer_issue(tmp_path / "none.md", since)
