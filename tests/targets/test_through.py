"""Tools from ONNX to ONNX as targets: what they write is run in the reference."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from support import QUICK_MODEL, save

import bisect_trt
from bisect_trt.errors import UsageError
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.through import ThroughSettings, command
from bisect_trt.targets.through.runner import fill

PYTHON = shlex.quote(sys.executable)
BESIDE = Path(sys.executable).parent
"""Where the tools are that are installed with what these tests need."""
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
PICKY = """
import re, shutil, sys
if found := re.search(rb"n_Tanh_[0-9]+", open(sys.argv[1], "rb").read()):
    sys.exit(f"I know no Tanh such as {found[0].decode()}")
shutil.copyfile(*sys.argv[1:])
"""


def model(path: Path, length: int = 12) -> Path:
    """A chain with a branch: each Tanh is behind an Add, but one."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Neg", ["x"], ["side"])]
    last = "x"
    for place in range(length):
        kinds = ("MatMul", "Tanh") if place == length // 2 else ("MatMul", "Add", "Tanh", "Add")
        for kind in kinds:
            inputs = (
                [last, "w"] if kind == "MatMul" else [last, "side"] if kind == "Add" else [last]
            )
            last = f"{kind}_{len(nodes)}"
            nodes.append(helper.make_node(kind, inputs, [last], name=f"n_{last}"))
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    return save(path, nodes, {"w": rng.normal(0, 0.7, (3, 3)).astype(np.float32)})


def script(path: Path, body: str) -> str:
    """A command that runs some Python."""
    path.write_text(body)
    return f"{PYTHON} {shlex.quote(str(path))} {{model}} {{out}}"


def edit(path: Path, change: str) -> str:
    return script(
        path,
        f"{QUICK_MODEL}m = model\n{change}\nopen(sys.argv[2], 'wb').write(m.SerializeToString())\n",
    )


def run(tool: str, path: Path) -> np.ndarray:
    session = Runtime(TargetSettings("through", own=ThroughSettings(tool))).load(path)
    return session.run({"x": X})["y"]


def test_a_tool_that_refuses_is_searched_by_its_last_line(cli: CommandLine) -> None:
    tool = script(Path("picky.py"), PICKY)
    cli("reduce", model(Path("model.onnx"), 3), "--through", tool, "-o", "small.onnx").ended(0)
    assert [node.op_type for node in onnx.load("small.onnx").graph.node] == ["Tanh"]


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param(
            "polygraphy surgeon sanitize {model} --fold-constants -o {out}", marks=pytest.mark.slow
        ),
        "onnxslim {model} {out}",
        "onnxsim {model} {out}",
    ],
)
def test_tools_that_are_right(tmp_path: Path, tool: str) -> None:
    name, _, words = tool.partition(" ")
    program = shutil.which(name, path=f"{BESIDE}:{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{name} is not installed")
    path = model(tmp_path / "model.onnx", 3)
    found = run(f"{shlex.quote(program)} {words}", path)
    np.testing.assert_allclose(found, run("cp {model} {out}", path), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            'm.graph.output[0].name = m.graph.node[-1].output[0] = "z"',
            "the tool writes has no output 'y' any more",
        ),
        (
            'm.graph.input[0].name = "z"\nfor n in m.graph.node: n.input[:] = ["z" if i == "x" else i for i in n.input]',
            "the tool writes has an input 'z', which the original has not",
        ),
        (
            'm.graph.node[0].op_type = "Mystery"',
            "the model that the tool writes does not load: .*Mystery",
        ),
        ("sys.exit(0)", "the tool succeeds and writes no model"),
        ("open(sys.argv[2], 'w').close(); sys.exit(0)", "the tool succeeds and writes no model"),
        (
            "open(sys.argv[2], 'w').write('junk'); sys.exit(0)",
            "the model that the tool writes does not load: ",
        ),
        ("sys.exit('out of ideas')", "the tool exits with status 1: out of ideas"),
        ("sys.exit(3)", "the tool exits with status 3"),
        ("raise ValueError('no 7')", "the tool exits with status 1: ValueError: no 7"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            r"the tool crashes \(SIGSEGV\)",
        ),
    ],
)
def test_what_a_tool_may_do_wrong(tmp_path: Path, change: str, complaint: str) -> None:
    with pytest.raises(BuildError, match=complaint):
        run(edit(tmp_path / "tool.py", change), model(tmp_path / "model.onnx", 1))


def test_an_output_more_does_no_harm(tmp_path: Path) -> None:
    path = model(tmp_path / "model.onnx", 1)
    more = edit(tmp_path / "tool.py", 'm.graph.output.add().name = "side"')
    session = Runtime(TargetSettings("through", own=ThroughSettings(more))).load(path)
    assert list(session.run({"x": X})) == ["y"]


def test_a_model_that_loads_and_does_not_run(tmp_path: Path) -> None:
    change = (
        'm.graph.node[-1].op_type = "Gather"; m.graph.node[-1].input.append("far")\n'
        'm.graph.initializer.add(name="far", data_type=7, dims=[1], int64_data=[99])\n'
        'm.graph.output[0].type.tensor_type.ClearField("shape")'
    )
    with pytest.raises(RunError, match="out of"):
        run(edit(tmp_path / "tool.py", change), model(tmp_path / "model.onnx", 1))


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tool = edit(tmp_path / "tool.py", 'm.graph.node[-1].op_type = "Neg"')
    result = bisect_trt.compare(model(tmp_path / "model.onnx", 1), target="through", through=tool)
    assert int(result.exit_status) == 1
    with pytest.raises(UsageError, match=r"through: .*give a text"):
        bisect_trt.compare(tmp_path / "model.onnx", target="through")


WORDS = st.lists(st.text(st.sampled_from("ab {}$'model/.")), max_size=4)


@given(WORDS)
def test_the_option_says_the_command_again(words: Sequence[str]) -> None:
    given = command(shlex.join(["cp", "{model}", *words, "--to={out}", __file__]))
    settings = TargetSettings("through", own=ThroughSettings(given))
    assert command(settings.flags()[1]) == given
    assert TargetSettings.from_json(settings.to_json()) == settings


@given(st.text(st.sampled_from("{}modelut ")), st.text(st.sampled_from("{}modelut ")))
def test_what_is_filled_in_is_not_read_again(before: str, value: str) -> None:
    named = {"model": value, "out": "{model}"}
    assert fill("{out}", named) == "{model}"
    assert fill("{model}", named) == value
    if "{model}" not in before and "{out}" not in before:
        assert fill(before, named) == before
