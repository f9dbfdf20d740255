"""What a model computes in fp16 of itself is not held to fp32's digits, and what it computes in fp32 is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bisect_trt.onnxlib.roundings import find_roundings, lows_of
from bisect_trt.tensors.tolerance import Precision

FP16, BF16 = Precision.FP16, Precision.BF16


def graph(nodes: list[onnx.NodeProto], kind: int, *weights: TensorProto) -> onnx.GraphProto:
    value = helper.make_tensor_value_info("x", kind, [4])
    return helper.make_graph(nodes, "g", [value], [onnx.ValueInfoProto(name=nodes[-1].output[0])], weights)


def node(op: str, *names: str, **attributes: Any) -> onnx.NodeProto:
    *read, made = names
    return helper.make_node(op, read, [made], **attributes)


@pytest.mark.parametrize(("kind", "low"), [(TensorProto.FLOAT16, FP16), (TensorProto.BFLOAT16, BF16)])
def test_what_is_computed_in_16_bits_and_of_that(kind: int, low: Precision) -> None:
    nodes = [
        node("Tanh", "x", "single"),
        node("Cast", "single", "half", to=kind),
        node("Transpose", "half", "moved"),
        node("Cast", "moved", "back", to=TensorProto.FLOAT),
        node("Add", "back", "x", "sum"),
        node("Shape", "sum", "size"),
        node("Exp", "x", "beside"),
    ]
    assert lows_of(graph(nodes, TensorProto.FLOAT)) == dict.fromkeys(("half", "moved", "back", "sum"), low)


def test_what_is_fed_or_stored_in_16_bits_is_exact() -> None:
    weight = numpy_helper.from_array(np.ones(4, np.float16), "w")
    nodes = [
        node("Reshape", "x", "to", "moved"),
        node("Cast", "moved", "wide", to=TensorProto.FLOAT),
        node("Cast", "w", "weight", to=TensorProto.FLOAT),
        node("Mul", "wide", "weight", "exact"),
        node("Mul", "moved", "w", "rounded"),
    ]
    assert lows_of(graph(nodes, TensorProto.FLOAT16, weight)) == {"rounded": FP16}


def test_only_a_model_that_has_such_a_type_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    half = [node("Cast", "x", "h", to=TensorProto.FLOAT16), node("Cast", "h", "y", to=TensorProto.FLOAT)]
    onnx.save(helper.make_model(graph(half, TensorProto.FLOAT)), str(path))
    assert find_roundings(path, {"x": np.ones(4, np.float32)}, lambda _: None)[1] == {"h": FP16, "y": FP16}
    path.write_bytes(b"no model")
    assert find_roundings(path, {"x": np.ones(4, np.float32)}, lambda _: None)[1] == {}
    assert find_roundings(path, {"x": np.ones(4, np.float16)}, lambda _: None)[1] == {}


def test_who_rounds_elsewhere_in_fp16_matches(cli: CommandLine) -> None:
    rng = np.random.default_rng(3)
    nodes, weights, last = [node("Cast", "x", "t0", to=TensorProto.FLOAT16)], [], "t0"
    for place in range(6):
        weights.append(numpy_helper.from_array((rng.standard_normal((16, 16)) / 4).astype(np.float16), f"w{place}"))
        nodes += [node("MatMul", last, f"w{place}", f"m{place}"), node("Softplus", f"m{place}", f"s{place}")]
        last = f"s{place}"
    nodes.append(node("Cast", last, "y", to=TensorProto.FLOAT))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in "xy"]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
    # NumPy rounds inside of an operator too, and ONNX Runtime computes it in fp32.
    x = rng.random((8, 16), np.float32)
    np.savez("x.npz", x=x)
    outputs: Any = ReferenceEvaluator("model.onnx").run(None, {"x": x})
    np.savez("y.npz", y=outputs[0])
    line = ["run", "model.onnx", "--onnxrt", "--load-inputs", "x.npz", "--load-outputs", "y.npz"]
    assert cli(*line, "--atol", "1e-5", "--rtol", "1e-5").status == 1
    assert cli(*line).status == 0
