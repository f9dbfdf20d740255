"""Names of files that are too long, or no text: a sentence, or the same as for any other name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import (
    COMMANDS,
    TARGET,
    bisect_trt,
    chain,
    command_lines,
    has,
    node_names,
    overflowing,
    read_json,
    rest_slow,
    script,
)

from bisect_trt.commands.commands import COMMANDS as GROUPS
from bisect_trt.options.spec import entries

LONG = f"{'n' * 300}.onnx"
PATHS = {
    entry.flag: name
    for name in command_lines("")
    for group in GROUPS[name].groups
    for entry in entries(group)
    if entry.kind is Path and not entry.option.positional
}


@pytest.mark.parametrize("flag", PATHS)
def test_a_path_that_is_too_long(cli: CommandLine, flag: str) -> None:
    ran = cli(*command_lines(overflowing(Path("model.onnx")))[PATHS[flag]], flag, LONG)
    assert (ran.status, f"{flag} nnn" in ran.error, "too long" in ran.error) == (2, True, True)


def test_a_model_whose_path_is_too_long(cli: CommandLine) -> None:
    ran = cli("diagnose", LONG, *TARGET, "--json", "r.json")
    assert (ran.status, "too long" in ran.error) == (2, True)
    assert read_json(Path("r.json"))["status"] == "error"


def test_a_check_with_a_word_that_is_longer_than_any_file_name(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx")
    check = f"{has('<2>', model='{model}')} && exit 1; exit 0 # {'n' * 300}"
    cli("reduce", "model.onnx", "-o", "out.onnx", "--check", "sh", "-c", check).ended(0)
    assert node_names(here / "out.onnx") == ["<2>"]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such names")
@pytest.mark.parametrize("command", rest_slow(COMMANDS))
def test_a_path_that_is_no_text(here: Path, command: str) -> None:
    """As Linux has them: any bytes. In a process of its own, whose terminal is strict."""
    model = here / os.fsdecode(b"m\xff.onnx")
    overflowing(here / "model.onnx").rename(model)
    line = command_lines(model.name)[command]
    ran = bisect_trt(*line, "--json", "r.json", cwd=here)
    assert ran.status == (1 if command == "run" else 0), ran.err
    assert "internal error" not in ran.err
    result = read_json(here / "r.json")
    assert result["model"]["path"] == model.name
    report = here / result["artifacts"]["report"]
    assert report.read_text(encoding="utf-8").startswith("<!")


def test_a_check_is_given_paths_that_are_no_text(here: Path) -> None:
    chain(here / "model.onnx")
    folder = here / os.fsdecode(b"d\xff")
    folder.mkdir()
    check = script(folder / "check", f"{has('<1>')} && exit 1; exit 0")
    ran = bisect_trt("reduce", "model.onnx", "-o", "out.onnx", "--check", check, "{model}", cwd=here)
    assert (ran.status, node_names(here / "out.onnx")) == (0, ["<1>"]), ran.err


def test_commands_to_copy_do_what_they_say_and_no_more(cli: CommandLine, here: Path) -> None:
    """A name that is a command, a quote and an option, as a stranger may give a file."""
    name = "-a 'b$(touch owned);`touch owned`.onnx"
    overflowing(here / "model.onnx").rename(name)
    ran = cli("diagnose", f"./{name}", "--onnxrt", "--fp16").ended(0)
    shown = next(line for line in ran.out.splitlines() if line.startswith("To reproduce it: "))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # whose python is this one
    command = ["sh", "-c", shown.partition(": ")[2]]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 1, done.stderr
    assert not (here / "owned").exists()
    (run,) = (here / ".bisect-trt").iterdir()
    assert re.fullmatch(r"[\w.-]+", run.name)
    further = next(line for line in ran.out.splitlines() if "to search further: " in line)
    words = shlex.split(further.partition(": ")[2])
    assert words == ["bisect-trt", "workaround", str(here / name), "--onnxrt", "--fp16"]
