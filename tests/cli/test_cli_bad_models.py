"""Models that cannot be read or run: one clear line on stderr, status 4, no traceback, nothing left behind."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import COMMANDS, command_lines, has, node_names, overflowing, read_json, save, script

UNAVAILABLE = 4


def _missing(_: Path) -> None:
    """There is no such file."""


def _folder(path: Path) -> None:
    path.mkdir()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> None:
    path.write_text("This is no model, but a text of several words.\n" * 20)


def _truncated(path: Path) -> None:
    whole = overflowing(path).read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])


def _cut_within_weights(path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((1000,), np.float32), "w")
    whole = save(path, [helper.make_node("Add", ["x", "w"], ["y"])], [weight]).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _other_message(path: Path) -> None:
    path.write_bytes(numpy_helper.from_array(np.ones(3), "a tensor, not a model").SerializeToString())


def _external_file_missing(path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = onnx.load(str(save(path, nodes, [numpy_helper.from_array(np.ones((2, 3), np.float32), "w")])))
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()


def _external_file_short(path: Path) -> None:
    _external_file_missing(path)
    (path.parent / "weights.bin").write_bytes(b"\0\0\0")


def _cycle(path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Relu", ["a"], ["b"], name="two")]
    save(path, nodes)


def _dangling(path: Path) -> None:
    save(path, [helper.make_node("Add", ["x", "nobody"], ["y"], name="one")])


def _made_twice(path: Path) -> None:
    save(path, [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])])


def _no_nodes(path: Path) -> None:
    graph = helper.make_graph([], "empty", [], [])
    onnx.save(helper.make_model(graph), str(path))


BAD_MODELS: dict[Callable[[Path], None], list[str]] = {
    _missing: ["no such file"],
    _folder: ["folder"],
    _empty: ["empty"],
    _text: ["cannot be read as an ONNX model"],
    _truncated: ["cut short"],
    _cut_within_weights: ["cut short"],
    _other_message: ["ONNX"],
    _external_file_missing: ["weights.bin", "does not exist"],
    _external_file_short: ["weights.bin", "3 bytes"],
    _cycle: ["cycle"],
    _dangling: ["nobody"],
    _made_twice: ["'y'", "two nodes"],
    _no_nodes: ["no nodes"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("spoil", BAD_MODELS, ids=lambda spoil: spoil.__name__.strip("_"))
def test_unreadable_model(cli: CommandLine, spoil: Callable[[Path], None], command: str) -> None:
    path = Path("bad.onnx")
    spoil(path)
    ran = cli(*command_lines(path)[command], "--json", "r.json")
    assert ran.status == UNAVAILABLE
    for word in ["bad.onnx", *BAD_MODELS[spoil]]:
        assert word in ran.error
    result = read_json(Path("r.json"))
    assert (result["command"], result["status"]) == (command, "error")
    assert result["why"] in ran.error
    assert result["probes"]["run"] == 0
    assert not list(Path().glob("out*"))


def _unknown(path: Path) -> Path:
    nodes = [
        helper.make_node("Relu", ["x"], ["t0"], name="<0>"),
        helper.make_node("NoSuchOperator", ["t0"], ["t1"], name="<1>"),
        helper.make_node("Relu", ["t1"], ["t2"], name="<2>"),
    ]
    return save(path, nodes)


@pytest.mark.parametrize("command", ["diagnose", "run", "layerwise", "reduce"])
def test_unknown_operator(cli: CommandLine, command: str) -> None:
    ran = cli(*command_lines(_unknown(Path("model.onnx")))[command])
    assert ran.status == UNAVAILABLE
    assert "NoSuchOperator" in ran.error
    assert "<1>" in ran.error
    assert ".onnx failed" not in ran.err  # which would be a file of ours
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize("command", ["diagnose", "run"])
def test_nodes_that_share_a_name_are_told_apart_as_advised(cli: CommandLine, command: str) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["t0"], name="twin"), helper.make_node("Neg", ["t0"], ["t1"], name="twin")]
    refused = cli(*command_lines(save(Path("model.onnx"), nodes))[command])
    assert refused.status == UNAVAILABLE
    advised = "bisect-trt sanitize model.onnx -o model-named.onnx"
    assert f"`{advised}` gives each node a name of its own." in refused.error
    sanitized = cli(*shlex.split(advised)[1:], "--json", "s.json")
    assert (sanitized.status, node_names(Path("model-named.onnx"))) == (0, ["twin", "twin_1"])
    assert read_json(Path("s.json"))["changes"]["renamed_nodes"] == 1
    assert cli("run", "model-named.onnx", "--onnxrt").status == 0


def test_unknown_operator_is_no_matter_to_a_check_of_ones_own(cli: CommandLine) -> None:
    model = _unknown(Path("model.onnx"))
    check = script(Path("check"), f"{has('<1>')} && exit 1; exit 0")
    ran = cli("reduce", model, "-o", "out.onnx", "--check", f"./{check}", "{model}")
    assert ran.status == 0
    assert node_names(Path("out.onnx")) == ["<1>"]
    assert "NoSuchOperator '<1>'" in ran.err
