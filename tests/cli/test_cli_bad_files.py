"""Inputs that do not fit and outputs that cannot be written: one clear line on stderr, status 2, no traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from conftest import CommandLine
from support import COMMANDS, TARGET, command_lines, overflowing

USAGE = 2


@pytest.fixture
def model(here: Path) -> Path:
    return overflowing(here / "model.onnx")


# Inputs


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"y": np.ones((2, 3), np.float32)}, ["'x' missing", "'y' unknown"]),
        ({"x": np.ones((2, 3), np.float32), "y": np.ones(1)}, ["'y' unknown"]),
        ({"x": np.ones((2, 4), np.float32)}, ["'x' has shape [2, 4]", "[2, 3]"]),
        ({"x": np.ones((6,), np.float32)}, ["'x' has shape [6]", "[2, 3]"]),
        ({"x": np.ones((2, 3), np.float64)}, ["'x' is float64", "float32"]),
        ({"x": np.ones((2, 3), np.int32)}, ["'x' is int32", "float32"]),
        ({}, ["'x' missing"]),
    ],
)
def test_inputs_that_do_not_fit(
    cli: CommandLine, model: Path, command: str, inputs: dict[str, npt.NDArray[np.generic]], words: list[str]
) -> None:
    np.savez("inputs.npz", **inputs)  # type: ignore[arg-type]  # mypy takes one for allow_pickle
    ran = cli(*command_lines(model)[command], "--load-inputs", "inputs.npz")
    assert ran.status == USAGE
    for word in ["inputs.npz", *words]:
        assert word in ran.error
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut short"])
def test_unreadable_inputs(cli: CommandLine, model: Path, content: bytes | None) -> None:
    if content is not None:
        Path("inputs.npz").write_bytes(content)
    ran = cli("run", model, *TARGET, "--load-inputs", "inputs.npz")
    assert ran.status == USAGE
    assert "inputs.npz" in ran.error


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def load_data(): return 1 / 0", ["line 1", "ZeroDivisionError"]),
        ("def load_data(:", ["SyntaxError"]),
        ("", ["load_data"]),
        ("def load_data():\n    return []", ["no sample"]),
        ("import sys; sys.exit(0)", ["SystemExit"]),
        ("def load_data():\n    yield {'y': 1.0}", ["'y' unknown"]),
    ],
)
def test_a_bad_data_loader(cli: CommandLine, model: Path, source: str, words: list[str]) -> None:
    Path("data.py").write_text(source)
    ran = cli("run", model, *TARGET, "--data-loader-script", "data.py")
    assert ran.status == USAGE
    for word in ["data.py", *words]:
        assert word in ran.error


# Outputs: permission bits do not keep root out, a folder in the way does everybody.


def spoilt_outputs(suffix: str) -> dict[str, str]:
    """Paths that cannot be written, by why."""
    return {
        "no folder": f"nowhere/out{suffix}",
        "a folder in the way": "in_the_way",
        "under a file": f"model.onnx/out{suffix}",
    }


@pytest.mark.parametrize("why", list(spoilt_outputs("")))
@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((command, "--json") for command in COMMANDS),
        ("reduce", "-o"),
        ("reduce", "--min-good"),
        ("extract", "-o"),
        ("run", "--save-inputs"),
        ("run", "--save-outputs"),
    ],
)
def test_unwritable_output(cli: CommandLine, model: Path, command: str, option: str, why: str) -> None:
    Path("in_the_way").mkdir()
    path = spoilt_outputs(Path(option.strip("-")).suffix)[why]
    line = [*command_lines(model)[command], option, path]
    if option == "-o":  # once
        place = line.index("-o")
        del line[place : place + 2]
    ran = cli(*line)
    assert ran.status == USAGE
    assert path in ran.error
    # Noticed before hours are spent on what would go there.
    assert "probe" not in ran.out
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize("path", ["model.onnx/out", "model.onnx"])
def test_unwritable_reproducer(cli: CommandLine, model: Path, path: str) -> None:
    ran = cli("diagnose", model, *TARGET, "-o", path)
    assert ran.status == USAGE
    assert path in ran.error
    assert "probe" not in ran.out


def test_unwritable_runs_folder(cli: CommandLine, model: Path) -> None:
    Path(".bisect-trt").write_text("in the way")
    for line in command_lines(model).values():
        ran = cli(*line)
        assert ran.status == USAGE
        assert ".bisect-trt" in ran.error


@pytest.mark.parametrize(
    ("command", "option", "path"),
    [
        ("reduce", "-o", "there.onnx"),
        ("reduce", "--min-good", "there.onnx"),
        ("extract", "-o", "there.onnx"),
        ("diagnose", "-o", "there"),
    ],
)
def test_existing_output(cli: CommandLine, model: Path, command: str, option: str, path: str) -> None:
    file = Path(path)
    if command == "diagnose":
        file.mkdir()
        file /= "mine.txt"
    file.write_text("precious")
    line = command_lines(model)[command]
    if option == "-o":
        place = line.index("-o")
        del line[place : place + 2]
    ran = cli(*line, option, path)
    assert ran.status == USAGE
    assert path in ran.error
    assert "--overwrite" in ran.error
    assert file.read_text() == "precious"
    ran = cli(*line, option, path, "--overwrite")
    assert ran.status == 0
    if command == "diagnose":
        assert (Path(path) / "reproduce.py").exists()
    elif option == "-o":
        assert file.read_bytes() != b"precious"


def test_existing_values_beside_an_extracted_piece(cli: CommandLine, model: Path) -> None:
    np.savez("x.npz", x=np.ones((2, 3), np.float32))
    Path("out.inputs.npz").write_text("precious")
    line = ["extract", model, "-o", "out.onnx", "--load-inputs", "x.npz"]
    ran = cli(*line)
    assert ran.status == USAGE
    assert "out.inputs.npz" in ran.error
    assert not Path("out.onnx").exists()
    assert cli(*line, "--overwrite").status == 0
