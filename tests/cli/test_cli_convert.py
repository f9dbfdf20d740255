"""``convert``: a model in half precision; an engine needs TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine, missing_gpu
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from support import SHAPE, chain, overflowing, read_json

X = {"x": np.full(SHAPE, 0.3, np.float32)}


def evaluate(model: str) -> np.ndarray:
    """The first output on ``X``."""
    outputs: list[np.ndarray] = ReferenceEvaluator(model).run(None, X)  # type: ignore[assignment]  # onnx says less than it gives
    return outputs[0]


def test_fp16(cli: CommandLine, here: Path) -> None:
    """Free dimensions stay free, weights in a file of their own are lowered too, and nodes out of order are sorted."""
    model = onnx.load(overflowing(here / "model.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, "model.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    cli("convert", "model.onnx", "-o", "half.onnx", "--fp16", "--json", "r.json").ended(0)
    assert read_json(Path("r.json"))["artifacts"]["converted"] == "half.onnx"
    half = onnx.load("half.onnx")
    onnx.checker.check_model(half, full_check=True)
    assert half.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert {tensor.data_type for tensor in half.graph.initializer} == {TensorProto.FLOAT16}
    assert [node.op_type for node in half.graph.node].count("Cast") == 2
    with np.errstate(over="ignore"):
        assert np.isinf(evaluate("half.onnx")).all()  # as fp16 makes of this model


def test_what_stays_in_fp32(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    assert cli("convert", model, "-o", "half.onnx", "--fp16", "--keep-fp32", "big_out", "small_out").status == 0
    assert np.allclose(evaluate("half.onnx"), evaluate(str(model)), rtol=1e-2)
    ran = cli("convert", model, "-o", "other.onnx", "--fp16", "--keep-fp32", "nope")
    assert (ran.status, "'nope'" in ran.error) == (2, True)


@pytest.mark.skipif(missing_gpu() is None, reason="TensorRT is here")
def test_an_engine_needs_tensorrt(cli: CommandLine, here: Path) -> None:
    ran = cli("convert", chain(here / "model.onnx"), "-o", "m.engine", "--fp16")
    assert (ran.status, "TensorRT" in ran.error, Path("m.engine").exists()) == (4, True, False)
    (here / "m.engine").write_bytes(b"no engine")
    for words in (["engine", "m.engine"], ["m.engine"]):
        ran = cli("inspect", *words)
        assert (ran.status, "TensorRT" in ran.error) == (4, True)
