"""``precision`` on what it cannot search: one sentence that says what and what next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import SHAPE, TARGET, chain, overflowing, read_json, save, script

from bisect_trt.onnxlib.lower import lower_fp16

LINE = ("precision", "model.onnx", "-o", "mixed.onnx", "--json", "r.json")
NOT_REPRODUCED, USAGE = 1, 2


def half(path: Path) -> None:
    onnx.save(lower_fp16(onnx.load(str(overflowing(path)))), str(path))


def quantized(path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], name="quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"]),
    ]
    save(path, nodes, [numpy_helper.from_array(np.array(0.5, np.float32), "scale")])


def integers(path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, SHAPE) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "test", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


BAD_MODELS: dict[Callable[[Path], None], str] = {
    half: "model.onnx is in low precision already ('",
    quantized: "model.onnx is quantized (QuantizeLinear 'quantize'; 2 such nodes in all)",
    integers: "model.onnx has no node that computes in fp32 and can be lowered to fp16",
}


@pytest.mark.parametrize("make", BAD_MODELS, ids=lambda make: make.__name__)
def test_models_that_are_not_fp32(cli: CommandLine, make: Callable[[Path], None]) -> None:
    make(Path("model.onnx"))
    ran = cli(*LINE, *TARGET)
    assert ran.status == USAGE
    assert BAD_MODELS[make] in ran.error
    assert not Path("mixed.onnx").exists()


BAD_OPTIONS = {
    "matches no node of the model": ["--fp16", "--include", "nothing*"],
    "'op:Conv' matches no node": ["--fp16", "--exclude", "op:Conv"],
    "leave none of the 8 nodes": ["--fp16", "--exclude", "*"],
    "one of --fp16 and --bf16": [],
    "exactly one": ["--fp16", "--bf16"],
    "or use --ladder": ["--fp16", "--int8"],
}


@pytest.mark.parametrize("said", BAD_OPTIONS)
def test_options_that_do_not_fit(cli: CommandLine, said: str) -> None:
    overflowing(Path("model.onnx"))
    ran = cli(*LINE, "--onnxrt", *BAD_OPTIONS[said])
    assert ran.status == USAGE
    assert said in ran.error


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 1", "fails with all 4 nodes in fp32 too: exit status 1"),
        ("exit 0", "passes with all 4 nodes lowered: exit status 0"),
        ("exit 125", "cannot judge the model with all 4 nodes"),
        ("grep -qa _fp16 \"$1\" && exit 125; exit 0", "cannot judge the model with all 4 nodes lowered"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [[], ["--repeat", "2"]])
def test_precision_is_not_the_reason(cli: CommandLine, body: str, said: str, options: list[str]) -> None:
    chain(Path("model.onnx"))
    ran = cli(*LINE, "--fp16", *options, "--check", "./" + script(Path("check"), body), "{model}")
    assert ran.status == NOT_REPRODUCED
    assert ran.err == ""
    assert said in ran.out
    result = read_json(Path("r.json"))
    assert (result["status"], result["keep_fp32"]) == ("not_reproduced", [])
    assert said in result["why"]
    assert not Path("mixed.onnx").exists()


def test_a_check_that_is_broken_itself(cli: CommandLine) -> None:
    chain(Path("model.onnx"))
    ran = cli(*LINE, "--onnxrt", "--fp16", "--check", "python3", "nocheck.py", "{model}")
    assert ran.status == NOT_REPRODUCED
    assert "--check says good or bad, so --onnxrt is not used" in ran.out.splitlines()
    why = read_json(Path("r.json"))["why"]
    assert 'fails with all 4 nodes in fp32 too: exit status 2. It said: "' in why
    assert "nocheck.py': [Errno 2] No such file or directory\"" in why
    command = why.split("`")[1]
    assert why.endswith(f"or the check itself is broken: `{command}` shows what it printed.")
    name, *words = command.split()
    assert name == "bisect-trt"
    assert "can't open file" in cli(*words).out
