"""Where the target refuses what is lowered, that is what a search for precision says, and not that numbers are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bisect_trt
from bisect_trt.report.result import Result

pytestmark = pytest.mark.usefixtures("here")  # runs are kept where one works
WIDTH = 8
NO = "no kernel for the node"


def quantized(path: Path, bad: Mapping[int, float], count: int = 4) -> Path:
    """Layers between Q/DQ; a scale is ``bad`` times what fits. What layer N reads is quantized by ``aN``."""
    rng = np.random.default_rng(0)
    nodes, weights, read = [], [numpy_helper.from_array(np.array(0, np.int8), "z")], "x"
    for layer in range(count):
        scale = (4.0 if layer == 0 else 1.0) / 127 * bad.get(layer, 1.0)
        weight = rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 * 1.2
        values = {f"a{layer}": scale, f"b{layer}": np.abs(weight).max() / 127, f"w{layer}": weight}
        weights += [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in values.items()]
        for tensor, by in ((read, f"a{layer}"), (f"w{layer}", f"b{layer}")):
            nodes.append(helper.make_node("QuantizeLinear", [tensor, by, "z"], [f"{by}_q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{by}_q", by, "z"], [f"{by}_d"]))
        nodes.append(
            helper.make_node("MatMul", [f"a{layer}_d", f"b{layer}_d"], [f"matmul{layer}"], name=f"matmul{layer}")
        )
        read = "y" if layer == count - 1 else f"tanh{layer}"
        nodes.append(helper.make_node("Tanh", [f"matmul{layer}"], [read], name=f"tanh{layer}"))
    return saved(path, nodes, weights)


def saved(path: Path, nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, WIDTH)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def searched(path: Path, refuses: str, **how: Any) -> Result:
    """Search with a tool that hands models on, but for those of which a line of shell says that it ``refuses`` them."""
    tool = path.with_name("tool.sh")
    tool.write_text(
        f'has() {{ grep -qa "$1" "$model"; }}\nmodel=$1\nif {refuses}; then echo "{NO}" >&2; exit 1; fi\ncp "$1" "$2"\n'
    )
    sample = {"x": np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)}
    return bisect_trt.precision(
        path,
        target="through",
        through=f"sh {tool} {{model}} {{out}}",
        inputs=[sample],
        output=path.with_name("mixed.onnx"),
        **{"fresh_samples": 0, "sensitivity": False, **how},
    )


def test_groups_that_are_refused(tmp_path: Path) -> None:
    """The one that is refused goes back to floats for that, whatever its scale; and that is said first."""
    result = searched(quantized(tmp_path / "model.onnx", {2: 1.5}), "has a2_q", low="int8")
    (kept,) = result.keep_fp32
    assert (kept["name"], kept["rule"]) == ("matmul2", "not run")
    assert kept["reason"].startswith("without it: the tool refuses the model: ")
    assert kept["reason"].endswith(NO)
    assert result.minimality == "1-minimal"
    assert result.why is not None
    assert result.why.startswith("With all of it quantized no number is wrong: the tool refuses the model: ")
    assert result.extra["report"]["story"]["answers"][0] == result.why
    assert result.extra["kernels"]["to_blame"] is False


def test_what_is_refused_is_said_though_the_budget_is_spent(tmp_path: Path) -> None:
    result = searched(quantized(tmp_path / "model.onnx", {}), "has a2_q", low="int8", max_probes=2)
    assert result.why == "the budget is spent (--max-probes 2)."
    first, *_ = result.extra["report"]["story"]["answers"]
    assert first.startswith("With all of it quantized no number is wrong: the tool refuses the model: ")


def test_one_is_refused_among_others_that_are_wrong(tmp_path: Path) -> None:
    """What is refused only without another is no wrong number, and the other is kept for its scale."""
    path = quantized(tmp_path / "model.onnx", {2: 0.05})
    result = searched(path, "has a1_q && ! has a2_q", low="int8")
    assert {kept["name"]: kept["rule"] for kept in result.minimal} == {"matmul1": "not run", "matmul2": "clipping"}
    assert (
        result.why
        == "with one of 1 of its units lowered the check ends in another way, which does not count as passing"
    )


def test_nodes_that_crash_in_fp16(tmp_path: Path) -> None:
    """What a check says of candidates that it does not survive."""
    ops = (("Exp", "x", "e"), ("Sin", "e", "s"), ("Cos", "s", "y"))
    path = saved(tmp_path / "model.onnx", [helper.make_node(op, [read], [made], name=op) for op, read, made in ops], [])
    check = ["sh", "-c", "if grep -qa y_fp16 {model}; then kill -SEGV $$; fi"]
    result = bisect_trt.precision(path, check=check, low="fp16", output=tmp_path / "mixed.onnx")
    assert [(node["name"], node["rule"]) for node in result.minimal] == [("Cos", "not run")]
    assert result.minimal[0]["reason"] == "without it: killed by SIGSEGV"
    assert result.why is not None
    assert result.why.startswith(
        "With all of it in fp16 no number is wrong: killed by SIGSEGV. So this is what it takes "
    )


@pytest.mark.parametrize(("quantized_fails", "rung"), [("grep -qa a2_q {model}", "fp16"), ("false", "int8")])
def test_a_rung_that_crashes(tmp_path: Path, quantized_fails: str, rung: str) -> None:
    """On a ladder the nodes are found too that the target does not take in fp16, where quantized the model is wrong or passes."""
    path = quantized(tmp_path / "model.onnx", {})
    check = [
        "sh",
        "-c",
        f"if grep -qa y_fp16 {{model}}; then kill -SEGV $$; fi; if {quantized_fails}; then exit 1; fi",
    ]
    result = bisect_trt.precision(path, check=check, ladder=["int8", "fp16", "fp32"], output=tmp_path / "mixed.onnx")
    on = {node["name"]: node["rung"] for node in result.extra["ladder"]["nodes"]}
    assert on["matmul2"] == rung
    assert [(node["name"], node["rule"], node["reason"]) for node in result.keep_fp32] == [
        ("tanh3", "not run", "without it: killed by SIGSEGV")
    ]
