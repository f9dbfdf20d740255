"""``convert``: a model in half precision; an engine needs TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine, missing_gpu
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import SHAPE, chain, overflowing, read_json, save

X = {"x": np.full(SHAPE, 0.3, np.float32)}


def evaluate(model: onnx.ModelProto | str) -> np.ndarray:
    """The first output on ``X``."""
    outputs: list[np.ndarray] = ReferenceEvaluator(model).run(None, X)  # type: ignore[assignment]  # onnx says less than it gives
    return outputs[0]


def test_fp16(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    ran = cli("convert", model, "-o", "half.onnx", "--fp16", "--json", "r.json")
    assert ran.status == 0, ran.err
    assert read_json(Path("r.json"))["artifacts"]["converted"] == "half.onnx"
    half = onnx.load("half.onnx")
    onnx.checker.check_model(half, full_check=True)
    assert {tensor.data_type for tensor in half.graph.initializer} == {TensorProto.FLOAT16}
    assert [node.op_type for node in half.graph.node].count("Cast") == 2
    with np.errstate(over="ignore"):
        assert np.isinf(evaluate(half)).all()  # as fp16 makes of this model
    # The same by the name that Polygraphy has for it.
    assert cli("convert", model, "--fp16", "-o", "same.onnx").status == 0
    assert onnx.load("same.onnx") == half


def test_what_stays_in_fp32(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    words = ["convert", model, "-o", "half.onnx", "--fp16", "--keep-fp32", "big_out", "small_out"]
    assert cli(*words).status == 0
    seen = evaluate("half.onnx")
    assert np.allclose(seen, evaluate(str(model)), rtol=1e-2)
    ran = cli("convert", model, "-o", "other.onnx", "--fp16", "--keep-fp32", "nope")
    assert (ran.status, "no node makes 'nope' first" in ran.error) == (2, True)


def test_free_dimensions_stay_free_and_nodes_out_of_order_are_sorted(cli: CommandLine, here: Path) -> None:
    path = chain(here / "model.onnx", 2)
    model = onnx.load(str(path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, str(path))
    assert cli("convert", path, "-o", "half.onnx", "--fp16").status == 0
    half = onnx.load("half.onnx")
    assert half.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert evaluate(half).shape == SHAPE


def test_weights_in_a_file_of_their_own_are_lowered_too(cli: CommandLine, here: Path) -> None:
    values = np.linspace(0, 1, 3000, dtype=np.float32).reshape(1, 3000)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"])]
    model = onnx.load(str(save(here / "m.onnx", nodes, [numpy_helper.from_array(np.repeat(values, 3, 0), "w")])))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    assert cli("convert", "m.onnx", "-o", "half.onnx", "--fp16").status == 0
    (weight,) = onnx.load("half.onnx").graph.initializer
    assert np.array_equal(numpy_helper.to_array(weight), np.repeat(values, 3, 0).astype(np.float16))


def test_an_engine_needs_tensorrt(cli: CommandLine, here: Path) -> None:
    if missing_gpu() is None:
        pytest.skip("TensorRT is here")
    ran = cli("convert", chain(here / "model.onnx"), "-o", "m.engine", "--fp16")
    assert ran.status == 4
    assert "does not start" in ran.error or "TensorRT" in ran.error
    assert not Path("m.engine").exists()
