"""The corpus of truth from here: the newest release is the reference, and another one, in a place, is wrong. By ``make truth``.

One command names exactly the pattern, and in which release the bug appeared and went.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import save_text

from truth.answers import Record, bisect_trt, judge, script_status
from truth.cases import Case, cases_elsewhere
from truth.networks import generated
from truth.patterns import TRANSPOSED_GEMM
from truth.releases import interpreter, onnxruntime

NEWEST = "1.31.1"
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("case", [*cases_elsewhere()], ids=str)
def test_a_bug_of_another_release_is_named_and_dated(
    case: Case, tmp_path: Path, record_property: Record
) -> None:
    network = case.make()
    pattern = case.pattern
    onnx.save(network.model, str(tmp_path / "model.onnx"))
    here = interpreter(onnxruntime(NEWEST), tool=True)
    words = (
        "diagnose",
        "model.onnx",
        "--onnxrt",
        "--on",
        f"env={onnxruntime(case.release)}",
        "--all",
        "--releases",
    )
    status, result = bisect_trt(here, tmp_path, *words, "-o", "reproducer", "--json", "result.json")
    judge(case, status, result, network.guilty, record_property)
    boundaries = (result["first_failing"], result["first_passing"])
    record_property("boundaries", f"{boundaries[0]} to {boundaries[1]}")
    assert boundaries == (pattern.appeared, pattern.went)
    script = tmp_path / "reproducer" / "reproduce.py"
    assert script_status(script, interpreter(onnxruntime(case.release))) == 1
    if pattern.mended is not None:
        assert script_status(script, interpreter(onnxruntime(pattern.mended))) == 0
    again, found = bisect_trt(
        here,
        tmp_path,
        "releases",
        "reproducer",
        "--onnxrt",
        "--from",
        "1.16",
        "--to",
        "1.31",
        "--json",
        "result.json",
    )
    assert (again, found["first_failing"], found["first_passing"]) == (0, *boundaries)


def test_a_release_that_refuses_the_files_ir_version_runs_what_needs_none_so_new(
    tmp_path: Path,
) -> None:
    """ONNX Runtime 1.17 takes 9 at most; the model, of opset 17, says 10, and its nodes have notes, which came with that."""
    network = generated(TRANSPOSED_GEMM, 60, 1, 3)
    release = onnxruntime("1.17.3")
    network.model.ir_version = 10
    for node in network.model.graph.node:
        node.metadata_props.add(key="namespace", value="net.layer")
    onnx.save(network.model, str(tmp_path / "model.onnx"))
    here = interpreter(onnxruntime(NEWEST), tool=True)
    place = ("--on", f"env={release}", "-o", "reproducer", "--json", "result.json")
    status, result = bisect_trt(here, tmp_path, "diagnose", "model.onnx", "--onnxrt", *place)
    assert (status, result["status"], result["minimality"]) == (0, "found", "1-minimal")
    assert {node["name"] for node in result["culprits"]} == set(network.guilty[0])
    assert result["ir_version"] == {"file": 10, "written": 8}
    assert script_status(tmp_path / "reproducer" / "reproduce.py", interpreter(release)) == 1
    words = (
        "releases",
        "model.onnx",
        "--onnxrt",
        "--from",
        "1.16",
        "--to",
        "1.31",
        "--json",
        "result.json",
    )
    status, result = bisect_trt(here, tmp_path, *words)
    assert (status, result["first_passing"]) == (0, TRANSPOSED_GEMM.went)
    assert result["releases"]["1.16.0"] == "FAIL"


CUBES = """p = Pow(s, three) m = ReduceMean<axes = [-1]>(p) e = Add(m, little) r = Sqrt(e) d = Div(s, r) t = Mul(d, k)"""
ONE_IN_THE_WHOLE = f"""a = Abs(x)
    l = Loop(one, go, a) <body = b (int64 i, bool c, float[A, B, C] s) => (bool on, float[A, B, C] t) {{
        on = Identity(c) {CUBES} }}>
    h = Tanh(l) z = Add(l, h) y = LayerNormalization<axis = 1>(z, g)"""


def test_a_failure_of_pieces_alone_is_no_proven_failure_of_the_model(tmp_path: Path) -> None:
    """ONNX Runtime 1.22.0 takes cubes for squares; it fuses the sum too, and refuses that, where its shape is known."""
    weights = {"three": 3.0, "little": 1e-5, "k": np.ones(8), "one": np.int64(1)}
    weights |= {"go": np.array(True), "g": np.ones((4, 8))}
    ends = "(float[1, 4, 8] x) => (float[1, 4, 8] y)"
    save_text(tmp_path / "model.onnx", ends, ONE_IN_THE_WHOLE, weights, opset=17)
    here = interpreter(onnxruntime(NEWEST), tool=True)
    words = ("--all", "--on", f"env={onnxruntime('1.22.0')}", "-o", "out", "--json", "result.json")
    status, result = bisect_trt(here, tmp_path, "diagnose", "model.onnx", "--onnxrt", *words)
    assert (status, result["minimality"]) == (0, "1-minimal"), result["why"]
    assert result["cause"] == [["optimizer:SimplifiedLayerNormFusion"]]
    assert [each["minimality"] for each in result["failures"]] == ["1-minimal", "unproven"]


STEP = "q{0} = QuantizeLinear(x{0}, s, z) d{0} = DequantizeLinear(q{0}, s, z) x{1} = Tanh(d{0})"
RESIZED = """q2 = QuantizeLinear(x2, s, z) d2 = DequantizeLinear(q2, s, z) r = Resize<mode = "linear",
    coordinate_transformation_mode = "pytorch_half_pixel">(d2, , , sizes)
    q = QuantizeLinear(r, s, z) x3 = DequantizeLinear(q, s, z)"""


def test_a_quantized_step_is_three_nodes(tmp_path: Path) -> None:
    """ONNX Runtime 1.26.0 computes a linear Resize between Q and DQ in int8, off by a step."""
    steps = [STEP.format(0, 1), STEP.format(1, 2), RESIZED, STEP.format(3, 4), STEP.format(4, 5)]
    weights = {"s": 0.05, "z": np.int8(0), "sizes": np.array([1, 4, 16, 16])}
    ends = "(float[1, 4, 8, 8] x0) => (float[1, 4, 16, 16] y)"
    save_text(tmp_path / "model.onnx", ends, f"{' '.join(steps)} y = Neg(x5)", weights, opset=19)
    here = interpreter(onnxruntime(NEWEST), tool=True)
    words = ("--on", f"env={onnxruntime('1.26.0')}", "-o", "out", "--json", "result.json")
    status, result = bisect_trt(here, tmp_path, "diagnose", "model.onnx", "--onnxrt", *words)
    assert (status, result["minimality"]) == (0, "1-minimal"), result["why"]
    operators = {node["op"] for node in result["culprits"]}
    assert len(result["culprits"]) == 3
    assert operators == {"QuantizeLinear", "DequantizeLinear", "Resize"}
