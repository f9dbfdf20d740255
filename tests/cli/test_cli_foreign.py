"""Options of TensorFlow, Caffe and UFF: a sentence that names tf2onnx."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from support import COMMANDS, chain

from bisect_trt.cli.arguments import _FRAMEWORKS


@pytest.mark.parametrize(
    "option", ["--tf", "--tftrt", "--ckpt=here", "--freeze-graph", "--xla", "--caffe-model", "--uff"]
)
def test_run_says_where_to_start_instead(cli: CommandLine, option: str) -> None:
    ran = cli("run", "model.pb", option)
    assert ran.status == 2
    assert "starts from ONNX" in ran.error
    assert "tf2onnx" in ran.error
    assert option.partition("=")[0] in ran.error


@pytest.mark.parametrize("command", COMMANDS)
def test_so_does_every_command(cli: CommandLine, command: str) -> None:
    assert "tf2onnx" in cli(command, "model.onnx", "--tf").error


def test_a_check_command_may_have_them(cli: CommandLine, here: Path) -> None:
    model = chain(here / "model.onnx")
    # The first Add is the failure: it says so with its status, whatever follows.
    ran = cli("reduce", model, "-o", "out.onnx", "--check", "sh", "-c", "exit 1", "--tf", "{model}")
    assert "tf2onnx" not in ran.out + ran.err
    assert ran.status == 0


def test_none_of_them_is_an_option_of_ours(cli: CommandLine) -> None:
    for command in COMMANDS:
        words = set(cli(command, "--help").out.replace(",", " ").split())
        assert not words & _FRAMEWORKS.keys()


@pytest.mark.parametrize("command", ["diagnose", "layerwise", "run"])
def test_a_check_is_for_reduce(cli: CommandLine, command: str) -> None:
    ran = cli(command, "model.onnx", "--onnxrt", "--check", "true", "{model}")
    assert ran.status == 2
    assert ran.error.startswith(f"error: {command} compares numbers itself")
    assert "bisect-trt reduce --check" in ran.error
