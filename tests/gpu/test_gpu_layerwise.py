"""``layerwise`` on a real GPU: marks, own errors, and which layer of the engine ran what."""

from __future__ import annotations

from pathlib import Path

import onnx
from answers.models import cancelling
from building import text_model
from conftest import CommandLine
from onnx import TensorProto, helper
from support import overflowing_products, read_json

TRT = ["--trt", "--fp16", "--hold-precision"]


def test_own_errors_stand_beside_the_accumulated_ones(cli: CommandLine, here: Path) -> None:
    result = (
        cli(
            "layerwise",
            overflowing_products(here / "model.onnx"),
            *TRT,
            "--isolate",
            "--json",
            "r.json",
        )
        .ended(0)
        .result
    )
    own = {entry["name"]: entry["own"]["passed"] for entry in result["tensors"] if entry["own"]}
    assert result["own_unseen"] == {}
    # Fed the 90000 that the reference has there, fp16 reads Inf.
    assert [name for name, passed in own.items() if not passed] in (
        ["big_out"],
        ["big_out", "small_out"],
    )


def test_shapes_bools_and_integers_between_layers(cli: CommandLine, here: Path) -> None:
    """Whatever TensorRT does not hand out is named, with the reason; nothing ends in an error."""
    path = cancelling(here / "model.onnx", mean=3.0)
    model = onnx.load(str(path))
    more = """shape = Shape(z) same = Reshape(z, shape) larger = Greater(same, x) place = ArgMax<axis = -1>(same)
        out = Cast<to = 1>(place)"""
    model.graph.node.extend(text_model("() => ()", more).graph.node)
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    onnx.save(model, str(path))
    ran = cli("layerwise", path, *TRT, "--isolate", "--json", "r.json")
    assert ran.status in (0, 1, 3), ran.out + ran.err
    result = read_json(Path("r.json"))
    seen = {entry["name"] for entry in result["tensors"]}
    made = {name for node in model.graph.node for name in node.output}
    assert seen | result["unseen"].keys() == made
    assert {"h", "m", "d", "z", "same"} <= seen
