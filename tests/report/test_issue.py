"""``ISSUE.md`` for TensorRT: the commands of other tools, in those tools' own words."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bisect_trt.options.choices import ErrorStat
from bisect_trt.report.reproducer import ISSUE, MODEL, Reproducer, Since
from bisect_trt.targets.onnxrt import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement

WORST = WorstElement((0, 1), float("inf"), 70000.0, float("inf"))
SEEN = TensorComparison(
    "a:b", False, ComparisonKind.INF, ErrorStat.QUANTILE, 1e-3, 1e-2, worst=WORST, quantile=0.9, quantile_abs=2.0
)
TRT = TrtSettings(pool_limits=(("workspace", 1 << 30),), builder_optimization_level=3, plugins=("p.so",))
TARGET = TargetSettings("trt", fp16=True, int8=True, held=True, own=TRT)


def model_of(nodes: int) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [2, 3]) for name in ("x", "a:b")]
    names = ["x", *(f"t{number}" for number in range(1, nodes)), "a:b"]
    chained = [helper.make_node("Add", [names[n], "x"], [names[n + 1]], name=f"add{n}") for n in range(nodes)]
    return helper.make_model(helper.make_graph(chained, "g", ends[:1], ends[1:]))


def issue(target: TargetSettings = TARGET, *, lowered: bool = False, refusal: str | None = None) -> Reproducer:
    seen, failure = ([], "build: no kernel for Foo") if refusal else ([SEEN], "inf")
    model = model_of(14)
    here = {"place": "ssh=box", "GPU": "H100"}
    ran = model if lowered else None
    return Reproducer(model, ran, lowered, {}, {}, seen, "It fails.", target, "Found.", failure, refusal, places=[here])


def test_what_a_newer_release_mends_is_said_first_unless_it_is_no_bug() -> None:
    since = Since(
        "It fails since foo 1.1, right in 1.0; gone in 1.2.", "foo 1.2 has it no more: update to that or a newer one"
    )
    found = replace(issue(), since=since)
    page = found.render(ISSUE)
    assert page.startswith(
        "> **Fixed in a newer release.** foo 1.2 has it no more: update to that or a newer one rather than"
    )
    assert f"## Releases\n\n{since.said}\n" in page
    page = replace(found, is_bug=False, fault="Too large.").render(ISSUE)
    assert page.startswith("> **Not a bug report.** Too large.")
    assert "Fixed in" not in page
    assert "Fixed in" not in replace(found, since=replace(since, mended=None)).render(ISSUE)


def words_for(tool: str, case: Reproducer) -> list[str]:
    (command,) = [c for c in case.recommended() if c.words and c.tool == tool]
    return list(command.words)


def test_trtexec_is_given_the_target_and_the_raw_inputs(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    case = replace(issue(), inputs={"x": x}, golden={"a:b": x})
    model, *_, raw = case.write(tmp_path)
    assert (model.name, raw.name) == (MODEL, "input_0.bin")
    assert {"inputs.json", "golden.json", "reproduce.py"} < {path.name for path in tmp_path.iterdir()}
    np.testing.assert_array_equal(np.fromfile(raw, np.float16), x.ravel())
    line = words_for("trtexec", case)
    assert line[:2] == ["trtexec", "--onnx=model.onnx"]
    for word in ("--fp16", "--int8", "--noTF32", "--memPoolSize=workspace:1073741824B", "--builderOptimizationLevel=3"):
        assert word in line
    assert line[-2:] == ["--loadInputs=x:trtexec/input_0.bin", "--dumpOutput"]
    page = case.render(ISSUE)
    for word in (
        "| place: GPU | H100 |",
        "`a:b` at [0, 1]: 70000",
        "`a:b` at [0, 1]: inf",
        " = Add (t13, x)",
        "trtexec --onnx=model.onnx",
    ):
        assert word in page


def test_a_model_that_is_lowered_already_is_built_as_it_is_typed() -> None:
    line = words_for("trtexec", issue(TargetSettings("trt", fp16=True), lowered=True))
    assert "--stronglyTyped" in line
    assert "--fp16" not in line
    assert "--strongly-typed" in words_for("polygraphy", issue(TargetSettings("trt", bf16=True), lowered=True))
    assert "--noTF32" not in words_for("trtexec", issue(TargetSettings("trt", tf32=True)))


def test_a_refusal_is_shown_by_building() -> None:
    refused = issue(refusal="no kernel for Foo")
    assert "--load-outputs" not in words_for("polygraphy", refused)
    page = refused.render(ISSUE)
    for word in ("refusal of Add", "no kernel for Foo"):
        assert word in page


@pytest.fixture(scope="module")
def options() -> str:
    command = [str(Path(sys.executable).with_name("polygraphy")), "run", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "target", [TARGET, TargetSettings("onnxrt", own=OnnxRuntimeSettings(("cpu",))), TargetSettings("trt", tf32=True)]
)
def test_polygraphy_has_the_options(target: TargetSettings, options: str) -> None:
    words = words_for("polygraphy", issue(target, lowered=True))
    flags = [word for word in words if word.startswith("--")]
    assert flags
    assert [flag for flag in flags if flag not in options] == []
    assert words[words.index("--error-quantile") + 1] == "a:b:0.9"


def test_a_title_names_one_operator_or_several() -> None:
    assert issue().title == "TensorRT: fp16 overflow in Add"  # 14 of one kind
    mixed = issue()
    mixed.model.graph.node[3].op_type = "Mul"
    assert mixed.title == "TensorRT: fp16 overflow in Add, Mul"
