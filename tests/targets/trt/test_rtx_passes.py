"""Passes of TensorRT-RTX's compiler, the real one, without a GPU: which acts, which is the cause, and which fusion."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import reproduced

from bisect_trt.report.result import environment

if sys.platform != "linux" or platform.machine() != "x86_64":
    pytest.skip("TensorRT-RTX has wheels for Linux on x86-64", allow_module_level=True)
RTX = ("--trt-rtx", "--build-only", "--json", "r.json")
HALF = TensorProto.FLOAT16
FIND = """import pathlib, re, sys
layers = re.findall(rb"(?:\\[ONNX Layer: [^\\]]*\\]\\x1f?)+", pathlib.Path(sys.argv[1]).read_bytes())
sys.exit(any(all(b": %s]" % name.encode() in layer for name in sys.argv[2:]) for layer in layers))
"""
"""A check that fails where some nodes run in one layer of an engine."""


def projections(name: str = "", read: str = "x") -> tuple[list[onnx.NodeProto], list[str]]:
    """Three products of one tensor, which the compiler makes one of, and what is computed of them; and their weights' names."""
    nodes = [
        helper.make_node("MatMul", [read, f"{name}w{i}"], [f"{name}{i}"], name=f"{name}mm_{i}")
        for i in "qkv"
    ]
    for op, reads, made in (
        ("Tanh", "q", "a"),
        ("Sigmoid", "k", "b"),
        ("Mul", "ab", "c"),
        ("Add", "cv", "y"),
    ):
        nodes.append(
            helper.make_node(
                op, [f"{name}{i}" for i in reads], [f"{name}{made}"], name=f"{name}{made}"
            )
        )
    return nodes, [f"{name}w{i}" for i in "qkv"]


def write(path: Path, nodes: list[onnx.NodeProto], weights: list[str], made: str) -> Path:
    values = np.random.default_rng(0).standard_normal((len(weights), 64, 64)) / 8
    stored = [
        numpy_helper.from_array(value.astype(np.float16), name)
        for name, value in zip(weights, values, strict=True)
    ]
    stored.append(numpy_helper.from_array(np.array(0, np.float16), "zero"))
    ends = [helper.make_tensor_value_info(name, HALF, [16, 64]) for name in ("x", made)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


@pytest.fixture
def model(here: Path) -> Path:
    return write(here / "m.onnx", *projections(), "y")


def test_a_fusion_within_a_branch_is_named_by_pass_and_nodes(cli: CommandLine, here: Path) -> None:
    nodes, weights = projections("then_", "r")
    out = helper.make_tensor_value_info("then_y", HALF, [16, 64])
    then = helper.make_graph(nodes, "then", [], [out])
    neg = [helper.make_node("Neg", ["r"], ["else_y"])]
    other = helper.make_graph(
        neg, "other", [], [helper.make_tensor_value_info("else_y", HALF, [16, 64])]
    )
    outer = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["yes"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other),
    ]
    path = write(here / "m.onnx", outer, weights, "y")
    words = ("--engine-size-limit", "0.35", "--compiler-switch", "peep:fc_h*=*")
    result = cli("cause", path, *RTX, *words).ended(0).result
    [found] = result["cause_detail"]["alternatives"]
    assert found["switches"] == ["pass:peep:fc_h_fusion=off"]
    assert found["elsewhere"] == {
        "name": "__LUNOWUD",
        "value": "-peep:fc_h_fusion=off",
        "documented": False,
    }
    products = ["then_mm_k", "then_mm_q", "then_mm_v"]
    assert {"kind": "gemm", "nodes": products} in found["layers"]["failing"]
    assert all(not {*products} <= {*layer["nodes"]} for layer in found["layers"]["passing"])
    again = ("run", path, *RTX, *found["options"][2:], "--engine-size-limit", "0.35")
    assert cli(*again).ended(0)


def test_a_counter_names_the_fusion(model: Path, cli: CommandLine, here: Path) -> None:
    (here / "find.py").write_text(FIND)
    words = (
        "--compiler-switch",
        "kgen:fusion_fuel=0..9",
        "--check",
        sys.executable,
        here / "find.py",
    )
    result = cli("cause", model, *RTX, *words, "{engine}", "c", "y").ended(0).result
    [found] = result["cause_detail"]["alternatives"]
    assert "3 of 3 builds pass" in found["seen"]
    fused = next(layer["nodes"] for layer in found["layers"]["failing"] if "y" in layer["nodes"])
    assert "c" in fused
    assert found["switches"] == [f"pass:kgen:fusion_fuel={found['layers']['fusion'] - 1}"]
    assert result["probes"]["run"] <= 4 + 6


FLIP = """
count = pathlib.Path("count")
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
bad = any(all(b": %s]" % name.encode() in layer for name in sys.argv[3:]) for layer in layers)
sys.exit(bad and (number % 2 or sys.argv[2] == "always"))
"""
"""A check that fails in each build, or in every second one, where some nodes run in one layer of an engine."""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["always", "often"])
def test_a_bad_tactic_of_a_fusion_is_told_from_a_bad_fusion(
    when: str, model: Path, cli: CommandLine, here: Path
) -> None:
    *head, _ = FIND.splitlines(keepends=True)
    (here / "flip.py").write_text("".join(head) + FLIP)
    words = ("-n", "4", "--confidence", "0.9", "--compiler-switch", "kgen:fusion_fuel=0..4")
    check = ("--check", sys.executable, here / "flip.py", "{engine}", when, "c", "y")
    ran = cli("repeat", model, *RTX, *words, *check).ended(0)
    [found] = ran.result["cause_detail"]["alternatives"]
    assert found["switches"] == ["pass:kgen:fusion_fuel=2"]
    assert found["layers"]["fusion"] == 3
    assert found["layers"].get("steady", True) is (when == "always")
    assert ("so its tactic decides" in " ".join(ran.out.split())) is (when == "often")


@pytest.mark.parametrize(
    ("switch", "says"),
    [
        ("kgen:fusion_fuel=0..1", "passes with the largest value"),
        ("l2cm:enable=off", "none of the 1 switches acts"),
        ("no_such=off", 'the compiler ignores no_such=off: unknown option "-no_such"'),
    ],
)
def test_where_nothing_is_found_it_says_why(
    switch: str, says: str, model: Path, cli: CommandLine, here: Path
) -> None:
    (here / "find.py").write_text(FIND)
    check = ("--check", sys.executable, here / "find.py", "{engine}", "a", "y")
    result = cli("cause", model, *RTX, "--compiler-switch", switch, *check).ended(3).result
    assert says in result["why"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run --compiler-option kgen:fusion_fuel=abc", "must only contain digits"),
        ("run --compiler-option no_such=off", 'unknown option "-no_such"'),
        ("run --compiler-option kgen:dump_source=on", "neither writes, connects"),
        # An old release has no such attribute, a newer one drops the value.
        ("run --builder-set build_route=-copy_ppg=off", "--builder-set build_route: the "),
        ("cause --compiler-switch no_such*=off", "no known option fits"),
        ("repeat --compiler-switch copy_ppg=off", "`repeat` takes counters"),
        ("cause --compiler-switch no_such=*", "its values are not known"),
        ("cause --compiler-switch exit=1", "neither writes, connects"),
    ],
)
def test_what_the_compiler_does_not_take_is_refused(
    words: str, says: str, model: Path, cli: CommandLine
) -> None:
    command, *rest = words.split()
    ran = cli(command, model, *RTX[:2], "--engine-size-limit", "0.01", *rest)
    assert ran.status == 2
    assert "BT1" in ran.err
    assert says in " ".join(ran.err.split())


def test_a_pass_with_which_nothing_is_built_is_no_answer(cli: CommandLine, here: Path) -> None:
    """Without the generator of kernels a Slice has none."""
    nodes = [
        helper.make_node("Split", ["x"], ["l", "r"], axis=1),
        helper.make_node("Concat", ["r", "l"], ["s"], axis=1),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    path = write(here / "m.onnx", nodes, [], "y")
    words = ("--engine-size-limit", "0.01", "--compiler-switch", "kgen=off")
    result = cli("cause", path, *RTX, *words).ended(3).result
    assert result["cause"] == []


def test_options_in_the_environment_stay(
    model: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the products apart the engine keeps the limit, whatever other option is set."""
    monkeypatch.setenv("__LUNOWUD", "-peep:fc_h_fusion=off")
    words = ("--engine-size-limit", "0.1", "--compiler-option", "copy_ppg=off")
    ran = cli("run", model, *RTX, *words).ended(0)
    assert "peep:fc_h_fusion=off copy_ppg=off" in ran.out
    environment.cache_clear()  # this process has looked before
    assert "__LUNOWUD: -peep:fc_h_fusion=off" in cli("doctor").out
    monkeypatch.delenv("__LUNOWUD")
    environment.cache_clear()
    assert cli("run", model, *RTX, *words).status == 1


def test_outputs_keep_the_compiler_from_a_fusion(model: Path, cli: CommandLine) -> None:
    """Where Max nodes behind the products leave the fusion in place, outputs do not."""
    words = ("--engine-size-limit", "0.1", "-o", "patched.onnx")
    result = cli("workaround", model, *RTX, *words).ended(0).result
    [barrier] = [way for way in result["workarounds"] if way["kind"] == "barrier"]
    assert barrier["passes"]
    outputs = [value.name for value in onnx.load("patched.onnx").graph.output]
    assert outputs[0] == "y"
    assert len({"q", "k", "v"} & {*outputs[1:]}) == 2 == len(outputs) - 1
    assert cli("run", "patched.onnx", *RTX, *words[:2]).ended(0)
    switch, *_ = result["workarounds"]
    for way in (switch, barrier):
        assert way["cost"]["after"] <= 0.1 < way["cost"]["before"]
        assert way["cost"]["unit"] == "MB"


def test_the_fusions_are_listed_in_order(model: Path, cli: CommandLine) -> None:
    result = cli("run", model, *RTX, "--explain-fusions").ended(0).result
    [product, rest] = result["layers"]
    assert product["nodes"] == ["mm_k", "mm_q", "mm_v"]
    assert rest["nodes"] == ["a", "b", "c", "y"]
    assert "peep:fc_h_fusion=off" in product["off"]
    assert "slice_fusion=off" not in product["off"]
    refused = cli("run", model, "--onnxrt", "--explain-fusions")
    assert refused.status == 2
    assert "does not report its fusions" in refused.err
    refused = cli("releases", model, "--onnxrt", "--fusion", "q")
    assert refused.status == 2
    assert "only TensorRT reports its fusions" in refused.err
    refused = cli("releases", model, *RTX, "--fusion", "mm_p")
    assert (refused.status, "BT1005" in refused.err) == (2, True)
    assert "the model has no such node. Did you mean 'mm_" in refused.err


def test_a_diagnosis_names_the_pass_for_the_tracker(
    model: Path, cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment enables a generator of kernels that refuses the products."""
    monkeypatch.setenv("__LUNOWUD", "-kgen:codegen:cuda_tile=3")
    ran = cli("diagnose", model, "-o", "case", *RTX).ended(0)
    result = ran.result
    assert result["cause"] == [["pass:kgen:codegen:cuda_tile=0"]]
    issue = (here / "case" / "ISSUE.md").read_text()
    assert "pass:kgen:codegen:cuda_tile=0: the model passes" in issue
    assert "This is undocumented, and may go with a release." in issue
    assert "searches the whole model, for all alternatives" in " ".join(ran.out.split())
    monkeypatch.delenv("__LUNOWUD")
    assert "REFUSED" in reproduced("case").out
