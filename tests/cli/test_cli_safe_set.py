"""The set that ``precision`` recommends holds on samples that the search has not seen; the minimal one is told beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support import TARGET, chain, script

from bisect_trt.mixed_precision.curve import Point

LINE = ("precision", "model.onnx", "-o", "mixed.onnx", "--json", "r.json", *TARGET)
WIDTH, BLOCKS = 16, 3


def blocks(path: Path, gains: list[float]) -> None:
    """Blocks that square what they read: past 65504 where the gain is large, or the input is; and one beside them."""
    rng = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    weights = [numpy_helper.from_array(np.array(1, np.float32), "one")]

    def block(x: str, scope: str, gain: float) -> str:
        weight = (gain * rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{scope}/w"))
        made = {kind: f"{scope}/{kind}_out" for kind in ("MatMul", "Mul", "ReduceMean", "Add", "Sqrt", "Div")}
        wide, square, mean, total, root, _ = made.values()
        read = [[x, f"{scope}/w"], [wide, wide], [square], [mean, "one"], [total], [wide, root]]
        for (kind, output), inputs in zip(made.items(), read, strict=True):
            axes: dict[str, Any] = {"axes": [-1]} if kind == "ReduceMean" else {}
            nodes.append(helper.make_node(kind, inputs, [output], name=f"{scope}/{kind}", **axes))
        return made["Div"]

    x = "x"
    for number, gain in enumerate(gains):
        x = block(x, f"/blocks.{number}", gain)
    ends = [x, block("x", "/aside", 2.0)]
    nodes += [helper.make_node("Identity", [x], [y], name=y) for x, y in zip(ends, "yz", strict=True)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, WIDTH]) for name in "xyz"]
    graph = helper.make_graph(nodes, "blocks", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def names(nodes: list[dict[str, Any]]) -> set[str]:
    return {node["name"] for node in nodes}


@pytest.fixture
def given_sample(here: Path) -> list[str]:
    """A sample on which the first block alone overflows."""
    blocks(here / "model.onnx", [400.0, 60.0, 2.0])
    np.savez("inputs.npz", x=np.random.default_rng(2).standard_normal((1, 4, WIDTH)).astype(np.float32))
    return ["--load-inputs", "inputs.npz"]


def test_the_safe_set_holds_on_fresh_samples(cli: CommandLine, given_sample: list[str]) -> None:
    ran = cli(*LINE, *given_sample).ended(0)
    result = ran.result
    minimal, safe = names(result["minimal"]), names(result["keep_fp32"])
    assert minimal == {"/blocks.0/Mul", "/blocks.0/ReduceMean"} | (minimal & {"/blocks.0/Add", "/blocks.0/Sqrt"})
    assert minimal < safe  # the second block overflows on some
    assert "/blocks.2/Mul" not in safe  # 1000 times further from overflow: it is no suspect
    assert names(result["culprits"]) == minimal
    held = result["validation"]
    assert (held["samples"], held["passed"], held["severe"]) == (200, 200, 0)
    assert 0 < held["worst_error"] <= 1
    assert held["fails_under"] == pytest.approx(1 - 0.05 ** (1 / 200))
    assert held["sentence"][1:] in " ".join(ran.out.split())
    assert not any(name.startswith("/aside") for name in safe)
    # Another set of the curve is written without a search.
    small = result["curve"][0]["nodes"]
    assert small < len(safe)
    line = ("precision", "model.onnx", "-o", "small.onnx", "--json", "s.json", *TARGET, *given_sample, "--keep-set")
    again = cli(*line, str(small)).ended(0).result
    assert (len(again["keep_fp32"]), Path("small.onnx").exists()) == (small, True)
    assert again["curve"] == [{**point, "recommended": point["nodes"] == small} for point in result["curve"]]
    assert again["probes"]["run"] <= 4
    refused = cli(*line, "9999", "--overwrite")
    assert (refused.status, f"{small}" in refused.err) == (2, True)


def test_own_samples_are_what_it_is_held_against_and_what_they_blame_is_added(
    cli: CommandLine, given_sample: list[str]
) -> None:
    """Beside the blocks nothing comes near overflow, but on these. One on which fp32 fails too says nothing of the nodes kept."""
    rng = np.random.default_rng(4)
    Path("own").mkdir()
    for number in range(3):
        np.savez(f"own/{number}.npz", x=(500 * rng.standard_normal((1, 4, WIDTH))).astype(np.float32))
    Path("more.py").write_text("import numpy\ndef some():\n    yield {'x': numpy.full((1, 4, 16), 1e36, 'float32')}\n")
    result = cli(*LINE, *given_sample, "--validation-data", "own", "more.py:some").ended(0).result
    assert not any(name.startswith("/aside") for name in names(result["minimal"]))
    assert {"/aside/Mul", "/aside/ReduceMean"} <= names(result["keep_fp32"])
    held = result["validation"]
    assert (held["passed"], held["samples"], held["learned"], held["fails_under"]) == (3, 3, 3, 1.0)
    assert held["drawn"] == "from own, more.py:some"


def test_much_is_kept_where_nothing_suspected_is_enough(cli: CommandLine, here: Path) -> None:
    """Past 1.2 the last digits of a long sum decide, which reads noise that is too small to matter: nothing blames the sum."""
    model = """<ir_version: 8, opset_import: ["" : 13]> g (float[1, 64] x) => (float[1, 64] y, float[1, 64] z)
    <float large = {100000}, float small = {0.00001}, float steep = {3000}, float tiny = {0.00000001}, float edge = {1.2}> {
        over = Mul (x, large) z = Mul (over, small) wave = Mul (x, steep) noise = Sin (wave) dust = Mul (noise, tiny)
        s1 = Add (x, dust) s2 = Add (s1, dust) s3 = Add (s2, dust) s4 = Add (s3, dust) s5 = Add (s4, dust) s6 = Add (s5, dust)
        past = Sub (x, edge) gate = Relu (past) far = Mul (s6, steep) turn = Sin (far) much = Mul (turn, gate) y = Add (s6, much)
    }"""
    onnx.save(onnx.parser.parse_model(model), str(here / "model.onnx"))
    np.savez("inputs.npz", x=np.random.default_rng(1).uniform(0.1, 1, (1, 64)).astype(np.float32))
    result = cli(*LINE, "--load-inputs", "inputs.npz", "--fresh-samples", "60").ended(0).result
    kept = {name for node in result["keep_fp32"] for name in node["outputs"]}
    assert {f"s{number}" for number in range(1, 7)} <= kept
    held = result["validation"]
    assert held["severe"] == 0
    assert held["samples"] - held["passed"] <= 2
    assert len(result["minimal"]) <= 2


def test_a_check_command_speaks_for_itself(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx", 6)
    script(here / "check", """[ "$(grep -oaE 't2_fp16' "$1" | wc -l)" -lt 3 ] || exit 1""")
    line = ("precision", "model.onnx", "-o", "mixed.onnx", "--json", "r.json", "--fp16")
    ran = cli(*line, "--check", "./check", "{model}").ended(0)
    assert "Not run on fresh samples" in ran.out


@given(st.integers(2, 300), st.data())
def test_the_bound_is_where_so_few_failures_are_unlikely(samples: int, data: st.DataObject) -> None:
    """And it is rounded up: "under 2.3%" of 2.35 would be untrue."""
    failures = data.draw(st.integers(0, samples))
    point = Point(frozenset(), (2.0,) * failures + (0.5,) * (samples - failures))
    rate = point.fails_under
    few = sum(math.comb(samples, k) * rate**k * (1 - rate) ** (samples - k) for k in range(failures + 1))
    assert few == pytest.approx(0.05, abs=1e-6) or rate == failures / samples == 1
    said = float(point.describe().split("under ")[1].split("%")[0])
    assert 100 * rate - 1e-9 <= said < 100 * rate + 0.1 + 1e-9


def sum_of_roundings(path: Path) -> None:
    """An overflow that two nodes mend, and roundings that are just within an absolute tolerance on some samples."""
    weights = {"big": 900.0, "small": 1 / 810000}
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["p"], name="up"),
        helper.make_node("Mul", ["p", "big"], ["q"], name="over"),
        helper.make_node("Mul", ["q", "small"], ["r"], name="down"),
        helper.make_node("Sin", ["r"], ["s"], name="sin"),
        helper.make_node("Tanh", ["s"], ["y"], name="tanh"),
    ]
    stored = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in weights.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


def test_a_fix_that_does_not_hold_is_no_proven_answer(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round shows it, and there is no second: the curve has what was seen."""
    monkeypatch.setattr("bisect_trt.mixed_precision.curve._ROUNDS", 1)
    sum_of_roundings(here / "model.onnx")
    result = cli(*LINE, "--atol", "5e-4", "--rtol", "0").ended(3).result
    assert result["why"].startswith("the fix does not hold: ")
    assert not any(point["holds"] for point in result["curve"] if point["recommended"])


def test_the_set_grows_until_it_holds_and_the_curve_has_each(cli: CommandLine, here: Path) -> None:
    sum_of_roundings(here / "model.onnx")
    ran = cli(*LINE, "--atol", "5e-4", "--rtol", "0").ended(0)
    result = ran.result
    nodes = [point["nodes"] for point in result["curve"]]
    assert nodes == sorted(nodes)
    (best,) = (point for point in result["curve"] if point["recommended"])
    assert best["holds"]
    assert best["nodes"] == len(result["keep_fp32"])
    said = " ".join(ran.out.split())
    others = [point for point in result["curve"] if not point["recommended"]]
    assert all(f" {each['nodes']} ({each['passed']} of {each['samples']} samples pass" in said for each in others)
