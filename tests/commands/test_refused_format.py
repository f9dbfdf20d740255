"""A file that a runtime refuses for its format is told apart from a failure of its nodes, and a way to lower it is shown."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
from building import text_model
from conftest import CommandLine
from support import Ran

CHECK = r"""
import pathlib
import re
import sys

model = pathlib.Path(sys.argv[1]).read_bytes()
ir_version = model[1]
opset = re.search(rb"B(?:\x04\n\0|\x02)\x10(.)", model, re.DOTALL)[1][0]
if ir_version > 10:
    raise RuntimeError(f"Unsupported model IR version: {ir_version}, max supported IR version: 10")
if opset > 19:
    raise RuntimeError(f"Opset {opset} is under development and support for this is limited.")
wrong = b'"\x03Abs' in model
print("wrong values" if wrong else "right")
sys.exit(wrong)
"""
"""A check in an old runtime, which computes Abs wrongly; to import onnx in each would take longer than all else."""


def write(path: Path, opset: int, ir_version: int, node: str = "Abs") -> None:
    """A model of four nodes."""
    body = f"a = Tanh(x) b = Exp(a) c = {node}(b) y = Neg(c)"
    model = text_model("(float[2,3] x) => (float[2,3] y)", body, {}, opset=opset)
    model.ir_version = ir_version
    onnx.save(model, str(path))


def reduce(cli: CommandLine, model: str) -> Ran:
    """The smallest failing model, by the check."""
    Path("check.py").write_text(CHECK)
    words = ("-o", "small.onnx", "--overwrite", "--json", "r.json", "-q")
    return cli("reduce", model, *words, "--check", sys.executable, "check.py", "{model}")


def follow(cli: CommandLine, ran: Ran) -> None:
    """Run the command that the answer names."""
    (command,) = ran.result["next"]
    assert f"Next     {command}" in ran.out
    assert "workaround" not in command
    cli(*shlex.split(command)[1:]).ended(0)


@pytest.mark.skipif(onnx.IR_VERSION < 11, reason="this ONNX has no IR version that is refused")
def test_a_refused_ir_version_is_not_mixed_with_wrong_values(cli: CommandLine, here: Path) -> None:
    write(here / "m.onnx", 17, 11)
    ran = reduce(cli, "m.onnx").ended(3)
    assert "refused only for its IR version" in ran.result["why"]
    assert ran.result["why"].endswith("and then: wrong values")
    assert (ran.result["culprits"], ran.result["error"]["code"]) == ([], "BT3006")
    follow(cli, ran)
    result = reduce(cli, "m-ir.onnx").ended(0).result
    assert ([node["op"] for node in result["culprits"]], result["minimality"]) == (
        ["Abs"],
        "1-minimal",
    )


@pytest.mark.skipif(onnx.IR_VERSION < 11, reason="this ONNX has no IR version that is refused")
def test_a_file_of_a_refused_ir_version_and_opset(cli: CommandLine, here: Path) -> None:
    write(here / "m.onnx", 20, 11, "Ceil")
    ran = reduce(cli, "m.onnx").ended(3)
    assert "opset 19 passes" in ran.result["why"]
    follow(cli, ran)
    reduce(cli, "m-opset19.onnx").ended(1)


@pytest.mark.skipif(onnx.IR_VERSION < 11, reason="this ONNX has no IR version that is refused")
def test_an_operator_that_is_not_known_is_found_in_a_file_of_a_new_ir_version(
    cli: CommandLine, here: Path
) -> None:
    write(here / "m.onnx", 17, 11)
    Path("check.py").write_text(
        "import sys\n"
        "if b'\"\\x03Abs' in open(sys.argv[1], 'rb').read():\n"
        "    sys.exit('No Op registered for Abs')\n"
    )
    check = ("--check", sys.executable, "check.py", "{model}")
    ran = cli("reduce", "m.onnx", "-o", "small.onnx", "--json", "r.json", *check).ended(0)
    assert [node["op"] for node in ran.result["culprits"]] == ["Abs"]


def test_an_opset_that_cannot_be_lowered(cli: CommandLine, here: Path) -> None:
    """Gelu is of opset 20, and ONNX's converter writes it in no older one."""
    write(here / "m.onnx", 21, 8, "Gelu")
    ran = reduce(cli, "m.onnx").ended(3)
    assert "Identity nodes alone too: IR version 8, opset 21" in ran.result["why"]
    assert "No Previous Version of Gelu" in ran.result["why"]
    assert (ran.result["culprits"], ran.result["error"]["code"]) == ([], "BT3006")
    assert not ran.result.get("next")
    words = ("sanitize", "m.onnx", "-o", "s.onnx", "--opset", "19")
    assert cli(*words).ended(2).code == "BT1009"


def test_another_exception_than_the_originals_is_no_failure(cli: CommandLine, here: Path) -> None:
    """The check cannot judge pieces without the first node, and the answer keeps it."""
    write(here / "m.onnx", 17, 8)
    Path("check.py").write_text(
        "import sys\n"
        "model = open(sys.argv[1], 'rb').read()\n"
        "model.index(b'\"\\x04Tanh')\n"
        "print('wrong')\n"
        "sys.exit(b'\"\\x03Abs' in model)\n"
    )
    words = ("-o", "small.onnx", "--json", "r.json")
    check = ("--check", sys.executable, "check.py", "{model}")
    result = cli("reduce", "m.onnx", *words, *check).ended(3).result
    assert [node["op"] for node in result["culprits"]] == ["Tanh", "Abs"]
    assert "ValueError" in result["why"]


def newest(path: Path, opset: int, ir_version: int) -> None:
    """Write a model that the installed ONNX Runtime refuses for its format alone."""
    write(path, opset, ir_version)
    try:
        onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        return
    pytest.skip("this ONNX Runtime reads all formats of this ONNX")


@pytest.mark.parametrize("command", ["diagnose", "workaround", "cause", "reduce"])
def test_the_newest_opset_in_an_older_runtime(cli: CommandLine, here: Path, command: str) -> None:
    newest(here / "m.onnx", onnx.defs.onnx_opset_version(), 8)
    output = ("-o", "small.onnx") if command == "reduce" else ()
    words = ("--onnxrt", "--no-other-release", *output, "--json", "r.json", "-q")
    ran = cli(command, "m.onnx", *words).ended(3)
    assert "No node is to blame" in ran.result["fault"]["sentence"]
    assert (ran.result["culprits"], ran.result["error"]["code"]) == ([], "BT3006")
    assert not (here / "small.onnx").exists()
    # The reference is the same runtime, and refuses the file too.
    assert "runs, and its values are compared with none" in ran.result["why"]
    (command,) = ran.result["next"]
    cli(*shlex.split(command)[1:])
    cli("run", shlex.split(command)[4], "--onnxrt").ended(0)


def test_the_newest_ir_version_in_an_older_runtime(cli: CommandLine, here: Path) -> None:
    newest(here / "m.onnx", 17, onnx.IR_VERSION)
    words = ("--onnxrt", "--no-other-release", "--json", "r.json", "-q")
    ran = cli("diagnose", "m.onnx", *words).ended(3)
    follow(cli, ran)
    assert "m-ir.onnx" in cli("run", "m.onnx", "--onnxrt").ended(4).error
    cli("run", "m-ir.onnx", "--onnxrt").ended(0)


def test_an_older_opset_that_fails_otherwise_is_named_with_its_failure(
    cli: CommandLine, here: Path
) -> None:
    """An older opset is read, and ONNX Runtime has no kernel for a node."""
    opset = onnx.defs.onnx_opset_version()
    newest(here / "m.onnx", opset, 8)
    ends = "(double[2,3] x) => (double[2,3] y)"
    model = text_model(ends, "a = Identity(x) y = Cosh(a)", {}, opset=opset)
    model.ir_version = 8
    onnx.save(model, "m.onnx")
    words = ("--onnxrt", "--no-other-release", "-q", "--json", "r.json")
    result = cli("diagnose", "m.onnx", *words).ended(3).result
    (command,) = result["next"]
    lower, again = command.split("; ")
    opset = int(shlex.split(lower)[-1])
    (ending,) = (each for each in result["why"].split("; ") if f"opset {opset} ends with: " in each)
    assert "Could not find an implementation for Cosh" in ending
    assert f"opset {opset - 1} ends with the same; " in result["why"]
    cli(*shlex.split(lower)[1:])
    # The reference, of the same release, has no kernel either: the node is named.
    assert "cannot run Cosh 'y'" in cli(*shlex.split(again)[1:], *words[1:]).ended(4).error
