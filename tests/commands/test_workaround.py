"""The way around a failure: the patched model passes as a whole, and on inputs that nobody has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from answers.models import cancelling
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import compared, node_names, overflowing, read_json, rest_slow, save
from truth.networks import generated
from truth.patterns import PLANTED

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.rewrites import with_barriers
from bisect_trt.probe.oracles import error_of
from bisect_trt.tensors.tolerance import Tolerance

KEYS = {"kind", "what", "file", "passes", "fresh", "worst_error"}


def ways_of(cli: CommandLine, *argv: str | Path) -> tuple[dict[str, Any], str]:
    ran = cli(*argv, "--json", "r.json")
    assert ran.status == 0, ran.out + ran.err
    result = read_json(Path("r.json"))
    assert all(set(way) >= KEYS for way in result["workarounds"])
    return result, ran.out


@pytest.mark.parametrize("name", rest_slow(["Cast, Div, Mul", "Identity, Div, Mul", "Dropout, Div, Mul"]))
def test_a_refused_network_runs_when_it_is_patched(cli: CommandLine, name: str) -> None:
    """ONNX Runtime drops a node that another one still reads, in all its releases."""
    pattern = next(each for each in PLANTED if each.name == name)
    network = generated(pattern, 60, 1, 3)
    onnx.save(network.model, "model.onnx")
    result, said = ways_of(cli, "workaround", "model.onnx", "--onnxrt")
    assert {node["name"] for node in result["culprits"]} == network.guilty[0]
    assert result["fault"]["whose"] == "target"
    *switches, barrier, rewrite = result["workarounds"]
    assert switches
    for switch in switches:
        assert (switch["kind"], switch["passes"], switch["file"]) == ("switch", True, None)
    assert (barrier["kind"], barrier["passes"]) == ("barrier", True)
    assert (rewrite["kind"], rewrite["passes"]) == ("rewrite", True)
    assert result["artifacts"]["patched"] == barrier["file"] == "patched.onnx"
    assert "Workaround: " in said
    for way in (barrier, rewrite):
        assert way["fresh"] == {"samples": 20, "passed": 20}
        assert 0 <= way["worst_error"] <= 1
        onnx.checker.check_model(way["file"], full_check=True)
        assert cli("run", way["file"], "--onnxrt", "--seed", "5").status == 0


def test_a_patched_norm_passes(cli: CommandLine) -> None:
    cancelling(Path("model.onnx"))
    result, _ = ways_of(cli, "workaround", "model.onnx", "--onnxrt", "-o", "mended.onnx")
    barrier = next(way for way in result["workarounds"] if way["kind"] == "barrier")
    assert (barrier["passes"], barrier["file"]) == (True, "mended.onnx")
    assert cli("run", "mended.onnx", "--onnxrt").status == 0
    assert cli("workaround", "model.onnx", "--onnxrt", "-o", "mended.onnx").error.endswith("--overwrite.")


def squares(path: Path) -> Path:
    """Two root mean squares of values that fp16 holds, and whose squares it does not."""
    nodes = [
        helper.make_node("Mul", ["x", "big"], ["h"], name="scale"),
        helper.make_node("Mul", ["h", "h"], ["p"], name="square"),
        helper.make_node("ReduceMean", ["p"], ["v"], name="mean", axes=[-1], keepdims=1),
        helper.make_node("Sqrt", ["v"], ["s"], name="root"),
        helper.make_node("Div", ["h", "s"], ["n"], name="norm"),
        helper.make_node("Mul", ["n", "big"], ["k"], name="again"),
        helper.make_node("Pow", ["k", "two"], ["q"], name="power"),
        helper.make_node("ReduceMean", ["q"], ["w"], name="mean2", axes=[-1], keepdims=1),
        helper.make_node("Sqrt", ["w"], ["r"], name="root2"),
        helper.make_node("Div", ["k", "r"], ["y"], name="norm2"),
    ]
    weights = {"big": np.array(900, np.float32), "two": np.array(2, np.float32)}
    return save(path, nodes, [numpy_helper.from_array(value, name) for name, value in weights.items()])


def test_squares_past_fp16_are_scaled_everywhere(cli: CommandLine) -> None:
    """The first is the culprit; the second would fail next. No node stays in fp32."""
    result, said = ways_of(cli, "diagnose", squares(Path("model.onnx")), "--onnxrt", "--fp16", "-o", "out")
    by_kind = {way["kind"]: way for way in result["workarounds"]}
    assert by_kind["barrier"]["passes"] is None
    assert by_kind["rewrite"]["passes"] is True
    assert "'root2'" in by_kind["rewrite"]["what"]
    assert by_kind["precision"]["file"] == str(Path("out/mixed.onnx"))
    assert result["artifacts"]["patched"] == str(Path("out/patched.onnx"))
    assert cli("run", "out/patched.onnx", "--onnxrt", "--fp16").status == 0
    assert {"scale", "norm", "again", "norm2"} <= set(node_names(Path("out/patched.onnx")))
    assert "Search barriers and rewrites" in said


def test_what_has_no_other_form_is_said(cli: CommandLine) -> None:
    result, said = ways_of(cli, "diagnose", overflowing(Path("model.onnx")), "--onnxrt", "--fp16", "-o", "out")
    assert [way["kind"] for way in result["workarounds"]] == ["barrier", "rewrite", "precision"]
    assert "none is known for these operators" in said
    assert result["artifacts"]["patched"] is None
    assert not Path("out/patched.onnx").exists()


def test_a_barrier_changes_no_value() -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    nodes = [helper.make_node("Exp", ["x"], ["e"], name="e"), helper.make_node("Add", ["e", "x"], ["y"], name="a")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    barred = with_barriers(Network(model), ["x", "e"])
    onnx.checker.check_model(barred, full_check=True)
    assert [node.op_type for node in barred.graph.node] == ["Max", "Exp", "Max", "Add"]
    x = np.array([0.5, np.nan, -np.inf, 3], np.float32)
    (one,), (two,) = (ReferenceEvaluator(each).run(None, {"x": x}) for each in (model, barred))
    np.testing.assert_array_equal(one, two)


def test_errors_are_in_units_of_the_tolerance() -> None:
    target = np.array([1.05, 0.0], np.float32)
    comparison = compared("y", np.array([1, 0], np.float32), target, Tolerance(0.1, 0.05))
    assert error_of(comparison) == pytest.approx(0.5)
