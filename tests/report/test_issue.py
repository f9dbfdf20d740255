"""``ISSUE.md`` for TensorRT."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from markupsafe import escape
from msgspec import structs
from onnx import TensorProto, helper
from support import model_of

from bisect_trt.options.compare import ErrorStat
from bisect_trt.report.page import write_report
from bisect_trt.report.parts import CauseDetail, Switches
from bisect_trt.report.reproducer import ISSUE, NOTES, Reproducer, Since
from bisect_trt.report.result import Result
from bisect_trt.report.summary import summary
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.through import ThroughSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement

WORST = WorstElement((0, 1), float("inf"), 70000.0, float("inf"))
SEEN = TensorComparison(
    "a:b",
    False,
    ComparisonKind.INF,
    ErrorStat.QUANTILE,
    1e-3,
    1e-2,
    worst=WORST,
    quantile=0.9,
    quantile_abs=2.0,
)
TRT = TrtSettings(
    pool_limits=(("workspace", 1 << 30),), builder_optimization_level=3, plugins=("p.so",)
)
TARGET = TargetSettings("trt", fp16=True, int8=True, held=True, own=TRT)


def chained(nodes: int) -> onnx.ModelProto:
    names = ["x", *(f"t{number}" for number in range(1, nodes)), "a:b"]
    adds = [
        helper.make_node("Add", [names[n], "x"], [names[n + 1]], name=f"add{n}")
        for n in range(nodes)
    ]
    return model_of(adds, types=dict.fromkeys(("x", "a:b"), TensorProto.FLOAT16))


def issue(
    target: TargetSettings = TARGET, *, lowered: bool = False, refusal: str | None = None
) -> Reproducer:
    seen, failure = ([], "build: no kernel for Foo") if refusal else ([SEEN], "inf")
    model = chained(14)
    here = {"place": "ssh=box", "GPU": "H100"}
    ran = model if lowered else None
    return Reproducer(
        model,
        ran,
        lowered,
        {},
        {},
        seen,
        "It fails.",
        target,
        "Found.",
        failure,
        refusal,
        places=[here],
    )


def test_what_a_newer_release_mends_is_said_first_unless_it_is_no_bug() -> None:
    since = Since("foo 1.0 passes, 1.1 fails; 1.2 passes again.", "upgrade to foo 1.2 or later")
    found = structs.replace(issue(), since=since)
    page = found.render(found.issue)
    assert found.issue == NOTES
    assert page.startswith(
        "> **Fixed in a newer release**: upgrade to foo 1.2 or later rather than"
    )
    assert f"## Releases\n\n{since.sentence}\n" in page
    no_bug = structs.replace(found, is_bug=False, fault="Too large.")
    assert no_bug.issue == NOTES
    page = no_bug.render(no_bug.issue)
    assert page.startswith("> **Not a bug report.** Too large.")
    assert "Fixed in" not in page
    unfixed = structs.replace(found, since=structs.replace(since, fixed=None))
    assert unfixed.issue == ISSUE
    assert "Fixed in" not in unfixed.render(unfixed.issue)


def test_options_of_a_cause_can_be_pasted(tmp_path: Path) -> None:
    words = ("--onnxrt", "--on", "env=onnxruntime==1.16.3 numpy<2")
    line = shlex.join(words)
    result = Result("cause", "found")
    result.artifacts["run"] = "run"
    entry = Switches(("s",), "s<1", whole=True, case=None, seen="seen", options=words)
    result.cause_detail = CauseDetail("T", "", 1, 1, (entry,), complete=True, doubted=())
    said = f"s: the model passes with it s\\<1 (seen). As options: `{line}`\n"
    assert said in structs.replace(issue(), cause=result.cause_detail).render(ISSUE)
    none = structs.replace(result.cause_detail, alternatives=())
    said = "## Cause in TensorRT\n\nThe failure stays with each of the 1 switches changed.\n"
    assert said in structs.replace(issue(), cause=none).render(ISSUE)
    assert ("Cause", f"s: the model passes with {line}") in summary(result)
    write_report(result, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text().replace("<wbr>", "")
    assert page.count(str(escape(line))) >= 2


def test_the_folder_has_the_text_to_file_or_the_notes(tmp_path: Path) -> None:
    for is_bug, name, other in ((True, ISSUE, NOTES), (False, NOTES, ISSUE), (True, ISSUE, NOTES)):
        structs.replace(issue(), is_bug=is_bug).write_texts(tmp_path)
        assert (tmp_path / name).is_file()
        assert not (tmp_path / other).exists()
        assert name in (tmp_path / "README.md").read_text()
    (tmp_path / NOTES).write_text("The user's own notes.")
    issue().write_texts(tmp_path)
    assert (tmp_path / NOTES).read_text() == "The user's own notes."


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("{bin}/pytest {{model}} {{out}}", "pytest"),
        ("{bin}/python -m pytest {{model}} {{out}}", "pytest"),
        ("{bin}/python tool.py {{model}} {{out}}", None),
        ("/bin/cp {{model}} {{out}}", None),
    ],
)
def test_the_version_of_a_tool_is_named_if_its_package_is_installed(
    command: str, package: str | None
) -> None:
    tool = command.format(bin=Path(sys.executable).parent)
    target = TargetSettings("through", own=ThroughSettings(tool))
    expected = {package: metadata.version(package)} if package else {}
    assert target.target.versions(target) == expected
    page = structs.replace(issue(target), places=[]).render(ISSUE)
    assert (f"| pytest | {metadata.version('pytest')} |" in page) is (package is not None)


def test_the_lines_of_the_runtimes_own_tools_are_what_these_read(tmp_path: Path) -> None:
    own = replace(
        TRT,
        min_shapes=(("a:b", (1, 3)),),
        max_shapes=(("a:b", (4, 3)),),
        strongly_typed=True,
        tactic_sources=("cublas",),
    )
    target = TargetSettings("trt", fp16=True, own=own)
    trtexec, line = issue(target).tool_commands
    for word in ("--fp16", "--maxShapes='a:b':4x3", "--memPoolSize=workspace:1024", "--noTF32"):
        assert word in " ".join(shlex.split(trtexec))
    found = structs.replace(issue(target), inputs={"a:b": np.ones((2, 3), np.float32)})
    assert tmp_path / "inputs.json" in found.write(tmp_path)
    page = (tmp_path / ISSUE).read_text()
    assert trtexec in page
    assert line in page
    # Polygraphy itself reads the line, and writes the script that it would run.
    polygraphy = Path(sys.executable).with_name("polygraphy")
    words = [str(polygraphy), *shlex.split(line)[1:], "--gen-script", "run.py"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    script = (tmp_path / "run.py").read_text()
    for word in ("fp16=True", "min=[1, 3], opt=[4, 3], max=[4, 3]", "1073741824", "p.so", "0.001"):
        assert word in script
    assert "fp16" not in " ".join(issue(target, lowered=True).tool_commands).replace(
        "model_fp16", ""
    )
    assert issue(TargetSettings("onnxrt", fp16=True)).tool_commands == []
    assert issue(TargetSettings("trt-rtx", fp16=True)).tool_commands == []


@pytest.mark.parametrize("runtime", ["trt", "onnxrt", "openvino"])
def test_the_issue_alone_has_the_form_of_its_tracker_and_no_blank_field(runtime: str) -> None:
    page = structs.replace(issue(TargetSettings(runtime)), places=[]).render(ISSUE)
    fields = re.findall(r"^- \*\*(.+?)\*\*: *(.*)$", page, re.MULTILINE)
    assert len(fields) >= 2, page
    assert all(value for _, value in fields)
    # Those who maintain the runtime read it.
    assert "no newer release was seen to pass or to fail" in page
    assert "bisect-trt releases" not in page
    notes = structs.replace(issue(TargetSettings(runtime)), is_bug=False).render(NOTES)
    form = re.findall(r"^## .+$|^- \*\*.+?\*\*|^\*\*.+\*\*", page, re.MULTILINE)
    shared = {"## The model", "## How it was found"}
    assert not [field for field in form if field not in shared and field in notes]
    assert len(set(re.findall(r"^## .+$", page, re.MULTILINE))) == len(
        re.findall(r"^## .+$", page, re.MULTILINE)
    )


def test_a_title_names_runtime_symptom_and_operators() -> None:
    assert issue().title() == "TensorRT: Inf from Add"  # 14 of one kind
    mixed = issue(TargetSettings("onnxrt"))
    mixed.model.graph.node[3].op_type = "Mul"
    assert mixed.title() == "ONNX Runtime: Inf from Add, Mul"
    refused = issue(TargetSettings("openvino"), refusal="no kernel for Foo")
    assert refused.title() == "OpenVINO: refusal of Add"
