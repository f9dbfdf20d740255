"""The kept layers in the words of other tools: what is installed is run, and what it writes is probed."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from conftest import CommandLine
from support import overflowing, read_json

from bisect_trt.workflows.precision.said import FILE


def test_every_tool_is_told_and_what_is_here_is_run(cli: CommandLine) -> None:
    ran = cli("diagnose", overflowing(Path("model.onnx")), "--onnxrt", "--fp16", "-o", "out", "--json", "r.json")
    assert ran.status == 0, ran.err
    result = read_json(Path("r.json"))
    names = {node["name"] for node in result["keep_fp32"]}
    said = {entry["tool"]: entry for entry in result["said"]}
    assert set(said) >= {"trtexec", "onnxconverter-common", "ModelOpt AutoCast", "TensorRT's Python API, to 10"}
    layers = next(word for word in shlex.split(said["trtexec"]["words"]) if word.startswith("--layerPrecisions="))
    assert {each.split(":")[0] for each in layers.partition("=")[2].split(",")} == names
    words = shlex.split(said["ModelOpt AutoCast"]["words"])
    patterns = words[words.index("--nodes_to_exclude") + 1 :]
    assert all(any(re.fullmatch(pattern, name) for pattern in patterns) for name in names)
    for line in ("set_flag(trt.BuilderFlag.FP16)", "layer.precision = trt.float32", "big_out"):
        assert line in said["TensorRT's Python API, to 10"]["words"]
    for entry in said.values():
        if entry["tool"] not in ("onnxconverter-common", "ModelOpt AutoCast"):
            assert entry["passes"] is None  # nobody has run it
    page = Path(result["artifacts"]["other_tools"])
    assert page == Path("out") / FILE
    assert all(entry["tool"] in page.read_text() for entry in said.values())
    assert "in the words of other tools" in ran.out


@pytest.mark.skipif(
    importlib.util.find_spec("onnxconverter_common") is None, reason="onnxconverter-common is not installed"
)
def test_the_converter_makes_a_model_that_passes(cli: CommandLine) -> None:
    ran = cli(
        "precision", overflowing(Path("model.onnx")), "--onnxrt", "--fp16", "-o", "mixed.onnx", "--json", "r.json"
    )
    assert ran.status == 0, ran.err
    entry = next(each for each in read_json(Path("r.json"))["said"] if each["tool"] == "onnxconverter-common")
    assert (entry["passes"], entry["why"]) == (True, "run here; what it writes passes")
    exec(compile(entry["words"], "said", "exec"), {})
    assert cli("run", "converted.onnx", "--onnxrt").status == 0
