"""The pass that does it: named exactly among dozens, each answer run as it is said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import evaluate, text_model
from conftest import CommandLine
from support import (
    compared,
    node_names,
    onnx_tool,
    overflowing,
    reproduced,
    rest_slow,
    save,
    script,
)
from truth.busy import busy
from truth.networks import generated
from truth.patterns import PLANTED, Pattern, Sketch

import bisect_trt
from bisect_trt import UsageError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.rewrites import with_barriers
from bisect_trt.report.parts import CauseDetail
from bisect_trt.report.summary import tried_of
from bisect_trt.search.oracle import Minimum
from bisect_trt.session.session import Case, Session
from bisect_trt.steps import diagnosis
from bisect_trt.steps.reproducer import carry
from bisect_trt.steps.workarounds import alike
from bisect_trt.targets.base import Switch, Target, TargetSettings
from bisect_trt.targets.onnxrt import OnnxRuntimeTarget
from bisect_trt.targets.switches import setting
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.tolerance import Tolerance

_BY_NAME = {pattern.name: pattern for pattern in PLANTED}
BOTH = {"Identity, Div, Mul": "EliminateIdentity", "Dropout, Div, Mul": "EliminateDropout"}
"""Patterns that every release of ONNX Runtime here is wrong about, with the one of two passes that
is theirs alone."""


def planted(pattern: Pattern, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(busy(pattern).model, str(path))
    return path


@pytest.mark.parametrize("name", rest_slow(BOTH))
def test_either_of_two_passes_is_named_among_dozens_in_twelve_probes(
    name: str, tmp_path: Path
) -> None:
    model = planted(_BY_NAME[name], tmp_path)
    result = bisect_trt.cause(model, run=tmp_path / "run", workers=1)
    assert sorted(result.cause) == sorted(
        [(f"optimizer:{BOTH[name]}",), ("optimizer:DivMulFusion",)]
    )
    assert (result.status, result.minimality) == ("found", "1-minimal")
    assert result.probes["run"] <= 12
    detail = result.cause_detail
    assert detail is not None
    assert detail.complete
    words = [
        sys.executable,
        "-m",
        "bisect_trt",
        "run",
        str(model),
        *detail.alternatives[0].options,
    ]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_diagnosis_names_it_in_its_report_and_in_the_bug_report(tmp_path: Path) -> None:
    model = planted(_BY_NAME["Dropout, Div, Mul"], tmp_path)
    place = f"python={sys.executable}"
    result = bisect_trt.diagnose(
        model, output=tmp_path / "out", run=tmp_path / "run", shrink=False, on=[place]
    )
    assert sorted(result.cause) == [("optimizer:DivMulFusion",), ("optimizer:EliminateDropout",)]
    assert result.cause_detail is not None
    assert all(place in entry.options for entry in result.cause_detail.alternatives)
    assert all(entry.whole for entry in result.cause_detail.alternatives)
    issue = (tmp_path / "out" / "ISSUE.md").read_text(encoding="utf-8")
    assert "Cause in ONNX Runtime" in issue
    assert "--disable-optimizer DivMulFusion" in issue
    # It is sent to others: a place is a path of this machine.
    assert sys.executable not in issue
    assert "DivMulFusion" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def two_bugs(path: Path) -> Path:
    """A pattern behind another one; a pass that each has alone, and one that they share, make what is wrong."""
    sketch = Sketch("")
    tensor = "x"
    shape = (2, 8)
    for name in ("Identity, Div, Mul", "Dropout, Div, Mul"):
        tensor, _ = _BY_NAME[name].plant(sketch, sketch.add("Tanh", tensor), shape)
    tensor = sketch.add("Tanh", tensor)
    return save(
        path, sketch.nodes, sketch.weights, inputs={"x": shape}, outputs={tensor: shape}, opset=17
    )


@pytest.mark.slow
def test_what_one_failure_needs_and_the_whole_model_needs_more_of_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minimal case is one of two failures, so that the pass that mends it leaves the other one."""
    switches = OnnxRuntimeTarget.switches

    def without_the_shared_one(*args: Any) -> Any:
        return [
            each
            for each in switches(*args)
            if each.name != "optimizer:DivMulFusion" and each.kind == "optimizer"
        ]

    monkeypatch.setattr(OnnxRuntimeTarget, "switches", without_the_shared_one)
    model = two_bugs(tmp_path / "model.onnx")
    alone = bisect_trt.cause(model, run=tmp_path / "cause").cause
    assert [set(each) for each in alone] == [
        {"optimizer:EliminateDropout", "optimizer:EliminateIdentity"}
    ]
    result = bisect_trt.diagnose(model, output=tmp_path / "out", run=tmp_path / "run")
    assert len(result.culprits) < len(onnx.load(model).graph.node)
    assert result.cause == alone
    assert result.cause_detail is not None
    assert [entry.whole for entry in result.cause_detail.alternatives] == [True]


MASKED = """k = Mul(x, two) g = com.microsoft.Gelu(k) z = Mul(g, zero) t = Tanh(x) q = QuantizeLinear(t, scale, zp)
    d = DequantizeLinear(q, scale, zp) u = Tanh(d) y = Add(u, z)"""
"""Two options of ONNX Runtime change values: an approximated Gelu (multiplied by zero), and removed Q/DQ pairs."""


# With a switch that fixes both the others are told as without it.
@pytest.mark.parametrize(
    ("case", "shared"),
    [pytest.param("g", False, marks=pytest.mark.slow), ("g", True), ("q d", False)],
)
def test_a_case_that_other_switches_fix_than_the_whole_model_is_doubted(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, case: str, *, shared: bool
) -> None:
    """The search is led to one of the two; only the Q/DQ pairs fail in the whole model. One switch may fix both."""
    switches = OnnxRuntimeTarget.switches
    both = [Switch("option:both", setting(session_options=()))] if shared else []
    monkeypatch.setattr(OnnxRuntimeTarget, "switches", lambda *args: [*switches(*args), *both])
    weights = {"two": np.float32(2), "zero": np.float32(0), "scale": np.float32(0.1)}
    model = text_model(
        "(float[4, 8] x) => (float[4, 8] y)", MASKED, weights | {"zp": np.int8(0)}, opset=17
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, "model.onnx")

    def astray(session: Session, *_: object) -> Case:
        network = session.subject.network
        units = frozenset(network.rank[network.producer[name]] for name in case.split())
        return Case(Minimum(units, proven=True))

    monkeypatch.setattr(diagnosis, "extract_suspect", astray)
    options = ["session.enable_quant_qdq_cleanup:1", "optimization.enable_gelu_approximation:1"]
    limits = ["--atol", "1e-4", "--rtol", "1e-4", "-o", "out", "--json", "r.json"]
    ran = cli("diagnose", "model.onnx", "--onnxrt", "--session-option", *options, *limits)
    alternatives = ran.result["cause_detail"]["alternatives"]
    whole = {each["switches"][0]: each["case"] for each in alternatives if each["whole"]}
    same = case != "g"
    assert whole.pop("option:both", None) is (True if shared else None)
    assert whole.pop("option:session.enable_quant_qdq_cleanup") is same
    assert set(whole.values()) <= {same}
    doubted = "The minimal case still fails with it"
    assert (doubted in Path("out/ISSUE.md").read_text()) is not same


LONG = f"{MASKED.replace('y = Add', 'v = Add')} a = Tanh(v) b = Tanh(a) e = Tanh(b) f = Tanh(e) y = Tanh(f)"
"""Nodes follow here that no larger case needs."""


def test_a_larger_case_is_kept_where_the_minimal_one_shows_another_mechanism(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is led to the Gelu, which is multiplied by zero; the removed Q/DQ pair is what the model fails by."""
    weights = {"two": np.float32(2), "zero": np.float32(0), "scale": np.float32(0.1)}
    model = text_model(
        "(float[4, 8] x) => (float[4, 8] y)", LONG, weights | {"zp": np.int8(0)}, opset=17
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(model, "model.onnx")

    def astray(session: Session, *_: object) -> Case:
        network = session.subject.network
        return Case(Minimum(frozenset({network.rank[network.producer["g"]]}), proven=True))

    monkeypatch.setattr(diagnosis, "extract_suspect", astray)
    options = ["session.enable_quant_qdq_cleanup:1", "optimization.enable_gelu_approximation:1"]
    limits = ["--atol", "1e-4", "--rtol", "1e-4", "-o", "out", "--json", "r.json"]
    ran = cli("diagnose", "model.onnx", "--onnxrt", "--session-option", *options, *limits)
    first = ran.result["cause_detail"]["alternatives"][0]
    assert (first["whole"], first["case"]) == (True, False)
    larger = Path(first["larger"])
    assert f"The larger case in {larger} passes." in " ".join(ran.out.split())
    names = {*node_names(larger / "model.onnx")}
    assert {"g", "q", "d"} <= names < {*node_names(Path("model.onnx"))}
    reproduced(larger)
    words = ["--load-inputs", str(larger / "inputs.npz"), *limits[:4]]
    assert cli("run", larger / "model.onnx", *first["options"], *words).status == 0


def test_a_target_without_switches_is_said_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        OnnxRuntimeTarget, "switches", Target.switches
    )  # as of a target that says nothing of its own
    model = planted(_BY_NAME["Identity, Div, Mul"], tmp_path)
    with pytest.raises(UsageError, match="ONNX Runtime has no switches with these settings"):
        bisect_trt.cause(model, run=tmp_path / "run")


def test_a_check_that_is_not_told_of_switches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot use changed switches of ONNX Runtime"):
        bisect_trt.cause(overflowing(tmp_path / "m.onnx"), check="true", run=tmp_path / "run")


# The way around a failure: the patched model passes as a whole, and on inputs that nobody has seen.


KEYS = {"kind", "what", "file", "passes", "fresh", "worst_error"}


def ways_of(cli: CommandLine, *argv: str | Path) -> tuple[dict[str, Any], str]:
    ran = cli(*argv, "--json", "r.json").ended(0)
    result = ran.result
    assert all(set(way) >= KEYS for way in result["workarounds"])
    return result, ran.out


@pytest.mark.parametrize(
    "name", rest_slow(["Cast, Div, Mul", "Identity, Div, Mul", "Dropout, Div, Mul"])
)
def test_a_refused_network_runs_when_it_is_patched(cli: CommandLine, name: str) -> None:
    """ONNX Runtime drops a node that another one still reads, in all its releases."""
    pattern = next(each for each in PLANTED if each.name == name)
    network = generated(pattern, 60, 1, 3)
    onnx.save(network.model, "model.onnx")
    result, said = ways_of(cli, "workaround", "model.onnx", "--onnxrt")
    assert {node["name"] for node in result["culprits"]} == network.guilty[0]
    assert result["fault"]["whose"] == "target"
    *switches, barrier, _ = result["workarounds"]
    assert switches
    for switch in switches:
        assert (switch["kind"], switch["passes"], switch["file"]) == ("switch", True, None)
    assert (barrier["kind"], barrier["passes"]) == ("barrier", True)
    assert result["artifacts"]["patched"] == barrier["file"] == "patched.onnx"
    assert f"passes with {switches[0]['line']}" in " ".join(said.split())  # the first that passes
    assert barrier["fresh"] == {"samples": 20, "passed": 20}
    assert 0 <= barrier["worst_error"] <= 1
    onnx.checker.check_model(barrier["file"], full_check=True)
    assert cli("run", barrier["file"], "--onnxrt", "--seed", "5").status == 0


@pytest.mark.slow
def test_of_three_places_that_an_optimizer_rewrites_the_wrong_one_is_named(
    cli: CommandLine,
) -> None:
    """Three norms are fused, and one is of values far from zero; the barrier leaves the other two fused."""
    body = """h = Add(x, {off}) m = ReduceMean<axes = [-1]>(h) d = Sub(h, m) p = Pow(d, two)
        v = ReduceMean<axes = [-1]>(p) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) g = Mul(n, gain) b = Add(g, bias)
        z = Tanh(b)"""
    places = []
    for place, (read, off) in enumerate((("x", "near"), ("z0", "far"), ("z1", "near"))):
        block = re.sub(r"\b([hmdpvesngbz])\b", rf"\g<1>{place}", body.format(off=off))
        places.append(re.sub(r"\bx\b", read, block))
    weights: dict[str, Any] = {"near": 0.0, "far": 4000.0, "two": 2.0, "eps": 1e-5}
    weights |= {"gain": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
    head = "(float[4, 64] x) => (float[4, 64] z2)"
    onnx.save(text_model(head, " ".join(places), weights), "model.onnx")
    words = ("--no-other-release", "-o", "patched.onnx")
    result, _ = ways_of(cli, "workaround", "model.onnx", "--onnxrt", *words)
    assert {node["name"][-1] for node in result["culprits"]} == {"1"}
    [barrier] = [way for way in result["workarounds"] if way["kind"] == "barrier"]
    assert barrier["passes"]
    assert barrier["cost"]["unit"] == "ms"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = "optimized.onnx"
    onnxruntime.InferenceSession("patched.onnx", options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load("optimized.onnx").graph.node]
    assert kinds.count("LayerNormalization") == 2


SQUARES = """h = Mul(x, big) square = Mul(h, h) v = ReduceMean<axes = [-1], keepdims = 1>(square) root = Sqrt(v)
    n = Div(h, root) k = Mul(n, big) q = Pow(k, two) w = ReduceMean<axes = [-1], keepdims = 1>(q) root2 = Sqrt(w)
    y = Div(k, root2)"""
"""Two root mean squares of values that fp16 holds, and whose squares it does not."""


@pytest.mark.slow
def test_squares_past_fp16_are_scaled_everywhere(cli: CommandLine) -> None:
    """The first is the culprit; the second would fail next. No node stays in fp32."""
    onnx.save(
        text_model("(float[2, 3] x) => (float[2, 3] y)", SQUARES, {"big": 900.0, "two": 2.0}),
        "model.onnx",
    )
    result, said = ways_of(cli, "diagnose", "model.onnx", "--onnxrt", "--fp16", "-o", "out")
    by_kind = {way["kind"]: way for way in result["workarounds"]}
    assert by_kind["barrier"]["passes"] is None
    assert by_kind["rewrite"]["passes"] is True
    assert "'root2'" in by_kind["rewrite"]["what"]
    assert by_kind["precision"]["file"] == str(Path("out/mixed.onnx"))
    assert result["artifacts"]["patched"] == str(Path("out/patched.onnx"))
    assert cli("run", "out/patched.onnx", "--onnxrt", "--fp16").status == 0
    assert {"h", "n", "k", "y"} <= set(node_names(Path("out/patched.onnx")))
    assert "Search barriers and rewrites" in said
    page = Path(result["artifacts"]["report"]).read_text()
    assert all(words in page for words in ("passes", "not tried", "rewrite: "))


PICKY = """
import os, shutil, sys
if os.path.basename(sys.argv[1]) in {files}:
    os.abort()
model = open(sys.argv[1], "rb").read()
if b"Exp" in model and b"/barrier" not in model:
    sys.exit("Exp and Add cannot be fused")
shutil.copyfile(*sys.argv[1:])
"""
"""Refuses an Exp without a barrier, and crashes on files with some names."""


# `test_a_refused_network_runs_when_it_is_patched` has a file that passes.
@pytest.mark.parametrize(
    ("files", "passes"),
    [pytest.param("()", True, marks=pytest.mark.slow), ("('patched.onnx',)", False)],
)
def test_a_workaround_is_run_as_the_file_that_is_written(
    cli: CommandLine, here: Path, files: str, *, passes: bool
) -> None:
    """A probe that passes does not show that the file does: it lies elsewhere, and is loaded by a new process."""
    (here / "tool.py").write_text(PICKY.format(files=files))
    body = "e = Exp(x) y = Add(e, x)"
    onnx.save(text_model("(float[4] x) => (float[4] y)", body), "model.onnx")
    through = f"{sys.executable} tool.py {{model}} {{out}}"
    ran = cli("workaround", "model.onnx", "--through", through, "--json", "r.json")
    (barrier,) = (way for way in ran.result["workarounds"] if way["kind"] == "barrier")
    assert (barrier["passes"], Path("patched.onnx").exists()) == (passes, passes)
    assert (
        barrier["file"]
        == ran.result["artifacts"]["patched"]
        == ("patched.onnx" if passes else None)
    )
    assert ("new process" in barrier["why"]) is not passes


FUSES = """
made = {name: node.op_type for node in model.graph.node for name in node.output}
for node in model.graph.node:
    if node.op_type == "Neg" and made.get(node.input[0]) == "Exp":
        node.op_type = "Identity"
"""
"""Fuses each Neg with an Exp before it, and loses the sign."""
BLOCKS = " ".join(
    f"e{n} = Exp(x{n}) n{n} = Neg(e{n}) t{n} = Tanh(n{n}) x{n + 1} = Mul(t{n}, half)"
    for n in range(5)
)
HEAD = "(float[4] x0) => (float[4] x5)"


def test_places_alike_are_between_the_same_operators() -> None:
    network = Network(text_model(HEAD, BLOCKS, {"half": 0.5}))
    assert alike(network, {4, 5}) == [f"e{n}" for n in range(5)]
    assert alike(network, {4}) == alike(network, {4, 7}) == []
    once = Network(text_model(HEAD.replace("x5", "x1"), BLOCKS.split("e1")[0], {"half": 0.5}))
    assert alike(once, {0, 1}) == []


@pytest.mark.slow
def test_a_fusion_that_is_wrong_everywhere_is_barred_everywhere(cli: CommandLine) -> None:
    onnx.save(text_model(HEAD, BLOCKS, {"half": 0.5}), "model.onnx")
    words = ("--through", onnx_tool(FUSES), "-o", "out")
    result, _ = ways_of(cli, "diagnose", "model.onnx", *words)
    (barrier,) = (way for way in result["workarounds"] if way["kind"] == "barrier")
    assert barrier["passes"]
    nodes = onnx.load(barrier["file"]).graph.node
    assert sum(node.op_type == "Max" for node in nodes) == 5


def test_a_barrier_changes_no_value() -> None:
    model = text_model("(float[4] x) => (float[4] y)", "e = Exp(x) y = Add(e, x)")
    barred = with_barriers(Network(model), ["x", "e"])
    onnx.checker.check_model(barred, full_check=True)
    assert [node.op_type for node in barred.graph.node] == ["Max", "Exp", "Max", "Add"]
    x = np.array([0.5, np.nan, -np.inf, 3], np.float32)
    one, two = (evaluate(each, {"x": x})["y"] for each in (model, barred))
    np.testing.assert_array_equal(one, two)


def test_errors_are_in_units_of_the_tolerance() -> None:
    target = np.array([1.05, 0.0], np.float32)
    comparison = compared("y", np.array([1, 0], np.float32), target, Tolerance(0.1, 0.05))
    assert comparison.tolerance_ratio == pytest.approx(0.5)


# ``reproduce.py`` is run before it is delivered; the files that its target reads lie beside it.


def test_files_that_a_target_reads_are_carried(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.so").write_text(folder)
    (tmp_path / "timings").write_text("t")
    libraries = tuple(str(tmp_path / folder / "a.so") for folder in ("one", "two"))
    target = TargetSettings("trt").with_own(
        plugins=libraries, load_timing_cache=str(tmp_path / "timings"), strongly_typed=True
    )
    carried, files = carry(target, tmp_path / "files")
    own = carried.of(TrtSettings)
    assert [*own.plugins, own.load_timing_cache] == files
    assert [(tmp_path / name).read_text() for name in files] == ["one", "two", "t"]
    assert own.strongly_typed


def test_a_script_that_does_not_show_the_failure_proves_nothing(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter finds another NumPy: it is not the one of the workers."""
    shadow = Path("shadow")
    shadow.mkdir()
    python = shadow / "python"
    script(
        python,
        f'case "$1" in *reproduce.py) echo other; exit 0;; *) exec {sys.executable} "$@";; esac',
    )
    monkeypatch.setattr(sys, "executable", str(python.absolute()))
    ran = cli("diagnose", overflowing(Path("model.onnx")), "--onnxrt", "--fp16", "-o", "out").ended(
        3
    )
    assert "reproduce.py ends with status 0: other" in ran.out
    assert "Run here, it does not show the failure" in Path("out/NOTES.md").read_text()


@pytest.mark.parametrize(
    ("tried", "words"), [(82, "82 switches"), (18, "18 switches that were tried (of 82)")]
)
def test_only_what_was_tried_is_said_to_fail(tried: int, words: str) -> None:
    detail = CauseDetail(
        target="T", on="", switches=82, tried=tried, alternatives=(), complete=True, doubted=()
    )
    assert tried_of(detail) == words
