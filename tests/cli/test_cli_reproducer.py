"""The reproducer's folder as a bug report's attachment: its commands show the failure, other tools read it, nothing leaks."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import overflowing, read_json

from bisect_trt.commands.reproducer import without_paths
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console

SECRET = "Xyzzy"


def spoken(path: Path) -> Path:
    """A model that says everywhere where it comes from, and fails in fp16."""
    model = onnx.load(str(overflowing(path)))
    model.producer_version = model.domain = model.doc_string = model.graph.name = SECRET
    model.graph.doc_string = SECRET
    model.metadata_props.add(key=SECRET, value=SECRET)
    for node in model.graph.node:
        node.doc_string = f"File /home/{SECRET}/net.py, line 7"
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.doc_string = SECRET
    body = [helper.make_node("Neg", ["a"], ["b"])]
    unused = helper.make_function("local", SECRET, ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    model.functions.append(unused)
    model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(model, str(path))
    return path


def attachments(folder: Path) -> list[Path]:
    whole = ("mixed.onnx",)  # of the whole network, and the folder's README says to leave them out
    assert all(f"`{name}`" in (folder / "README.md").read_text() for name in whole)
    return [path for path in folder.rglob("*") if path.is_file() and path.name not in whole]


def commands_of(page: Path) -> list[list[str]]:
    fences = re.findall(r"^```\n(.+?)\n```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(text) for text in fences]


def reproduced() -> int:
    """The exit status of the script."""
    return subprocess.run([sys.executable, "reproduce.py"], cwd="out", capture_output=True, check=False).returncode


def test_the_command_shows_the_failure_and_nothing_of_the_original_leaves(cli: CommandLine) -> None:
    model = spoken(Path(f"{SECRET}.onnx"))
    ran = cli("diagnose", model, "--onnxrt", "--fp16", "--zip", "-o", "out", "--json", "r.json").ended(0)
    assert re.search(r"^Wrote +out\.zip \(", ran.out, re.MULTILINE)
    probes = read_json(Path("r.json"))["probes"]["run"]
    assert re.findall(r"probe (\d+) ", ran.out)[-1] == str(probes)
    issue, readme = (Path("out", page).read_text() for page in ("ISSUE.md", "README.md"))
    assert all(f"in {probes} probes" in page for page in (issue, readme))
    assert all(word in issue for word in ("big_out", onnx.__version__, "inf", "ONNX Runtime (CPU", "1-minimal"))
    command = commands_of(Path("out/ISSUE.md"))[0]
    assert command == ["python", "reproduce.py"]
    assert reproduced() == 1
    for path in attachments(Path("out")):
        assert SECRET.encode() not in path.read_bytes(), path
        assert str(Path.cwd()).encode() not in path.read_bytes(), path
    with zipfile.ZipFile("out.zip") as packed:
        names = {name.removeprefix("reproducer/") for name in packed.namelist()}
    assert SECRET not in "".join(names)
    assert names == {path.relative_to("out").as_posix() for path in attachments(Path("out"))}


@pytest.mark.parametrize("absolute", [False, True])
def test_a_refusal_is_told_without_the_paths_of_this_machine(absolute: bool, here: Path) -> None:
    path, folder = Path(f"{SECRET}.onnx"), Path(f".bisect-trt/1-diagnose-{SECRET}")
    overflowing(path)
    with Subject(ModelSettings(path), Workspace(folder), Console(-1)) as subject:
        named = [folder / "candidates" / "1f0c" / "model.onnx", path]
        one, other = [here / each if absolute else each for each in named]
        said = without_paths(
            f"the target refuses the model: Load model from {one} failed: no Foo in '{other}'", subject
        )
    wanted = "the target refuses the model: Load model from model.onnx failed: no Foo in 'model.onnx'"
    assert said == wanted


def test_an_anonymous_reproducer_fails_with_other_names_and_weights(cli: CommandLine) -> None:
    source = overflowing(Path("model.onnx"))
    cli("diagnose", source, "--onnxrt", "--fp16", "--anonymise", "--zip", "-o", "out").ended(0)
    model = onnx.load(str(Path("out/model.onnx")))
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    assert all(re.fullmatch(r"t\d+", name) for name in names)
    with zipfile.ZipFile("out.zip") as packed:
        assert {name.partition("/")[0] for name in packed.namelist()} == {"reproducer"}
    assert [node.name for node in model.graph.node] == ["n0"]
    for path in attachments(Path("out")):
        assert b"big" not in path.read_bytes(), path
    assert reproduced() == 1


def test_what_does_not_fail_with_other_weights_is_left_as_it_is(cli: CommandLine) -> None:
    # The overflow hangs on one weight that meets one large value.
    values, fed = np.linspace(0, 100, 64, dtype=np.float32), np.ones(64, np.float32)
    values[5], fed[5] = 100, 660
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64]) for name in ("x", "product")]
    node = helper.make_node("Mul", ["x", "weight"], ["product"], name="mul")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [numpy_helper.from_array(values, "weight")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "model.onnx")
    np.savez("x.npz", x=fed)
    options = ["--onnxrt", "--fp16", "--load-inputs", "x.npz", "--no-shrink", "--anonymise", "-o", "out"]
    ran = cli("diagnose", "model.onnx", *options).ended(0)
    assert "Not anonymised: it does not fail with other weights." in ran.out
    model = onnx.load(str(Path("out/model.onnx")))
    assert [entry.name for entry in model.graph.node] == ["mul"]
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), values)
    assert reproduced() == 1
