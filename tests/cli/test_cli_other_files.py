"""Files that people take for ONNX models, and models that the reference cannot run: the answer has the next step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import text_model
from conftest import CommandLine
from onnx import numpy_helper

from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.session.advice import advice
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.worker.protocol import Failed


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.pt", b"PK\x03\x04 archive", "PyTorch"),
        ("m.pth", b"\x80\x02}q\x00.", "torch.onnx.export"),
        ("m.engine", b"ftrt\0\0\0\0", "--load-engine m.engine"),
        ("m.tflite", b"\x1c\0\0\0TFL3\0\0", "tf2onnx.convert --tflite m.tflite"),
        ("m.h5", b"\x89HDF\r\n", "Keras"),
        ("m.onnx", b"no model", "another kind of file"),
    ],
)
def test_another_kind_of_file_is_recognized(
    cli: CommandLine, here: Path, name: str, content: bytes, said: str
) -> None:
    Path(name).write_bytes(content)
    assert said in cli("run", name, "--onnxrt").ended(4).err
    assert not (here / ".bisect-trt").exists() or not [*(here / ".bisect-trt").iterdir()]


def test_a_folder_is_answered_with_a_model_in_it(cli: CommandLine, here: Path) -> None:
    folder = here / "exported"
    folder.mkdir()
    onnx.save(text_model("(float[2] x) => (float[2] y)", "y = Neg(x)", opset=17), folder / "a.onnx")
    assert "exported/a.onnx" in cli("run", "exported", "--onnxrt").ended(4).err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_sizes_that_run_are_suggested(cli: CommandLine, command: str) -> None:
    model = text_model(
        "(float[n, 4, h] x) => (float[m, 4, h] y)", "y = Concat <axis = 0> (x, w)", opset=17
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 4, 32), np.float32), "w"))
    onnx.save(model, "m.onnx")
    ran = cli(command, "m.onnx", "--onnxrt", "--fp16").ended(4)
    assert "It runs with --input-shapes x:[1,4,32]." in ran.err
    words = ["--input-shapes", "x:[1,4,32]"]
    cli("run", "m.onnx", "--onnxrt", *words).ended(0)


def test_sizes_that_the_target_was_not_run_with_are_not_suggested(here: Path) -> None:
    """The reference runs the assumed sizes, too: they are not why another runtime crashes."""
    ends = "(float[n, 4, h] x) => (float[n, 4, h] y)"
    onnx.save(text_model(ends, "y = Neg (x)", opset=17), "m.onnx")
    crash = Failed("crash", "it crashed (SIGABRT)", "signal SIGABRT")
    with Subject(ModelSettings(here / "m.onnx"), Workspace(here / "run"), Console(-1)) as subject:
        assert subject.assumed
        assert advice(subject, crash) == ""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_a_type_error_asks_for_no_data(cli: CommandLine, command: str) -> None:
    onnx.save(text_model("(float[2] x, int64[2] i) => (float[2] y)", "y = Add(x, i)"), "m.onnx")
    ran = cli(command, "m.onnx", "--onnxrt").ended(4)
    assert "tensor(float) and tensor(int64)" in ran.err
    assert "--load-inputs" not in ran.err


@pytest.mark.usefixtures("here")
def test_an_operator_of_a_library_is_named(cli: CommandLine) -> None:
    model = text_model("(float[2] x) => (float[2] y)", "y = Neg(x)", opset=17)
    model.graph.node[0].op_type = "Fused"
    model.graph.node[0].domain = "my.ops"
    model.opset_import.add(domain="my.ops", version=1)
    onnx.save(model, "m.onnx")
    ran = cli("run", "m.onnx", "--onnxrt").ended(4)
    assert "my.ops:Fused (--custom-op-library FILE)" in ran.err


@pytest.mark.usefixtures("here")
def test_two_low_precisions_of_one_lowering_are_refused(cli: CommandLine) -> None:
    onnx.save(text_model("(float[2] x) => (float[2] y)", "y = Neg(x)", opset=17), "m.onnx")
    cli("run", "m.onnx", "--onnxrt", "--fp16", "--bf16").refused("BT1003", "--fp16 and --bf16")
