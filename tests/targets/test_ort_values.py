"""Tensors of types that NumPy lacks, fed to and taken from ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from building import save_proto, text_model
from conftest import CommandLine
from onnx import TensorProto
from support import arrays

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime

CAN_FEED = hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type")
KINDS = {"bfloat16": TensorProto.BFLOAT16, "float8_e4m3fn": TensorProto.FLOAT8E4M3FN}


def doubling(path: Path, kind: int, shape: tuple[int, ...] = (2, 3)) -> Path:
    """x of some type -> as fp32, doubled -> y of the type; and a plain input beside."""
    body = f"wide = Cast<to = 1>(x) doubled = Mul(wide, two) y = Cast<to = {kind}>(doubled)"
    nodes = [*text_model("() => ()", body).graph.node]
    inputs = [("x", kind, shape), ("two", 1, [])]
    outputs = [("y", kind, shape), ("doubled", 1, shape)]
    return save_proto(path, nodes, inputs, outputs, opset=19, ir_version=9)


def values(name: str, shape: tuple[int, ...] = (2, 3)) -> np.ndarray[Any, Any]:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.skipif(not CAN_FEED, reason="this ONNX Runtime takes no such tensors")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", [(2, 3), (1,), (), (0, 3)])
def test_bits_go_through(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    session = Runtime(TargetSettings()).load(doubling(tmp_path / "m.onnx", KINDS[name], shape))
    x = values(name, shape)
    outputs = session.run({"x": x, "two": np.array(2, np.float32)})
    assert outputs["y"].dtype == x.dtype
    assert outputs["y"].shape == outputs["doubled"].shape == shape
    np.testing.assert_array_equal(outputs["y"].astype(np.float32), x.astype(np.float32) * 2)


@pytest.mark.skipif(CAN_FEED, reason="this ONNX Runtime takes such tensors")
def test_an_older_version_says_so(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    with pytest.raises(
        BuildError, match=r"input 'x' is a tensor\(bfloat16\), which ONNX Runtime .* later version"
    ):
        Runtime(TargetSettings()).load(doubling(tmp_path / "m.onnx", TensorProto.BFLOAT16))


@pytest.mark.skipif(not CAN_FEED, reason="this ONNX Runtime takes no such tensors")
def test_from_the_command_line(cli: CommandLine, here: Path) -> None:
    model = doubling(here / "m.onnx", TensorProto.BFLOAT16)
    common = ["--val-range", "x:[1,2]"]
    assert (
        cli(
            "run", model, "--onnxrt", *common, "--save-inputs", "x.json", "--save-outputs", "y.npz"
        ).status
        == 0
    )
    assert arrays("y.npz")["y"].dtype == np.uint16  # as NumPy alone reads it
    cli(
        "run",
        model,
        "--onnxrt",
        "--load-inputs",
        "x.json",
        "--load-outputs",
        "y.npz",
        "--atol",
        "0",
    ).ended(0)
    assert cli("layerwise", model, "--onnxrt", *common).status == 1
