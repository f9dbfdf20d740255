"""Options of TensorFlow, Caffe and UFF: a sentence that names tf2onnx."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from support import COMMANDS, chain, has, node_names, script

from bisect_trt.cli.arguments import _FRAMEWORKS, INSTEAD, SPELLINGS, TOOLS
from bisect_trt.options.spec import entries
from bisect_trt.workflows.commands import COMMANDS as GROUPS


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


def test_what_polygraphy_has_and_nobody_here_says_what_is_there_instead(cli: CommandLine) -> None:
    flags = {part for groups in GROUPS.values() for group in groups for each in entries(group) for part in each.flags}
    assert not INSTEAD.keys() & {*flags, *SPELLINGS}
    for option in ("--verbosity", "--onnx-outputs-by-type", "--load-debug-replay=a.json"):
        ran = cli("run", "model.onnx", "--onnxrt", option)
        assert ran.status == 2
        said = " ".join(ran.err.replace("\u2502", " ").split())
        assert f"There is no {option.partition('=')[0]} here: {INSTEAD[option.partition('=')[0]]}." in said
    ran = cli("precision", "model.onnx", "-o", "out.onnx", "--mode", "linear")
    assert f"There is no --mode here: {INSTEAD['precision --mode']}." in " ".join(
        ran.err.replace("\u2502", " ").split()
    )
    ran = cli("inspect", "capability", "model.onnx")
    assert ran.status == 2
    assert ran.error == f"error: there is nothing to inspect as 'capability'; {TOOLS['capability']}."
    for tool, said in TOOLS.items():
        ran = cli(tool, "model.onnx")
        assert ran.status == 2
        assert f"No such command '{tool}'; {said}." in " ".join(ran.err.replace("\u2502", " ").split())


def test_a_check_that_was_written_for_polygraphy_finds_the_candidate(cli: CommandLine, here: Path) -> None:
    model = chain(here / "model.onnx", 4)
    check = script(here / "check", f"{has('<2>', model='polygraphy_debug.onnx')} && exit 1; exit 0")
    words = ("--json", "r.json", "--check-inference", check, "polygraphy_debug.onnx")
    assert cli("reduce", model, "-o", "out.onnx", "--no-shrink", *words).status == 0
    assert node_names(here / "out.onnx") == ["<2>"]
    assert not (here / "polygraphy_debug.onnx").exists()
