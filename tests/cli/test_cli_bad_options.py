"""A command line that is wrong: clear words on stderr, status 2, no traceback, and nothing done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CommandLine
from support import COMMANDS, TARGET, bisect_trt, chain, command_lines, has, overflowing, script

USAGE, UNAVAILABLE = 2, 4


@pytest.fixture
def model(here: Path) -> Path:
    return overflowing(here / "model.onnx")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--no-such-option", "-x"])
def test_unknown_option(cli: CommandLine, model: Path, command: str, option: str) -> None:
    ran = cli(*command_lines(model)[command], option)
    assert ran.status == USAGE
    assert option in ran.err
    assert "Traceback" not in ran.err


def test_an_option_of_another_command(cli: CommandLine, model: Path) -> None:
    ran = cli("diagnose", model, *TARGET, "--reference", "float.onnx")
    assert ran.status == USAGE
    assert "--reference" in ran.err


def test_unknown_command_and_missing_words(cli: CommandLine, model: Path) -> None:
    for line in (["no-such-command"], ["reduce"], ["reduce", model], ["run", model, "another.onnx", *TARGET]):
        ran = cli(*line)
        assert ran.status == USAGE
        assert ran.err
        assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", ["--atol", "x"]),
        ("run", ["--atol", "-1"]),
        ("run", ["--atol", "nan"]),
        ("run", ["--rtol", "big_out:"]),
        ("run", ["--atol", "nobody:1"]),
        ("run", ["--check-error-stat", "worst"]),
        ("run", ["--seed", "x"]),
        ("run", ["--seed", "-1"]),
        ("run", ["--val-range", "[1]"]),
        ("run", ["--val-range", "[2,1]"]),
        ("run", ["--val-range", "y:[0,1]"]),
        ("run", ["--input-shapes", "x"]),
        ("run", ["--input-shapes", "x:[a]"]),
        ("run", ["--input-shapes", "x:[2]"]),
        ("run", ["--input-shapes", "y:[2]"]),
        ("run", ["--timeout", "0"]),
        ("run", ["--timeout", "soon"]),
        ("reduce", ["--timeout", "nan"]),
        ("reduce", ["--timeout", "inf"]),
        ("reduce", ["--timeout", "-1"]),
        ("diagnose", ["--timeout", "nan"]),
        ("reduce", ["--max-time", "nan"]),
        ("reduce", ["--max-probes", "0"]),
        ("reduce", ["--workers", "0"]),
        ("reduce", ["--repeat", "-1"]),
        ("reduce", ["--confidence", "1"]),
        ("reduce", ["--confidence", "nan"]),
        ("reduce", ["--mode", "quick"]),
        ("reduce", ["--no-reduce-inputs", "--no-reduce-outputs"]),
        ("reduce", ["--fail-code", "x", "--check", "false"]),
        ("reduce", ["--fail-regex", "(", "--check", "false"]),
        ("reduce", ["--fail-regex", "x"]),
        ("reduce", ["--fail-code", "1"]),
        ("reduce", ["--ignore-fail-code", "1"]),
        ("reduce", ["--check"]),
        ("reduce", ["--check", ""]),
        ("reduce", ["--check", "'an open quote"]),
        ("extract", ["--inputs", "nobody"]),
        ("extract", ["--outputs", "nobody"]),
        ("extract", ["--inputs", "big_out", "--outputs", "a0_out"]),
        ("extract", ["--outputs", "x"]),
        ("run", ["--onnx-outputs", "nobody"]),
        ("run", ["--load-outputs", "nobody.npz"]),
    ],
)
def test_bad_value(cli: CommandLine, model: Path, command: str, options: list[str]) -> None:
    line = command_lines(model)[command]
    ran = cli(*(line if options[0] != "--check" else line[:4]), *options)
    assert ran.status == USAGE
    assert ran.err
    assert "Traceback" not in ran.out + ran.err
    assert "probe" not in ran.out
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize("command", ["run", "layerwise", "diagnose", "reduce"])
def test_a_provider_that_is_not_there(cli: CommandLine, model: Path, command: str) -> None:
    ran = cli(*command_lines(model)[command], "--providers", "NoSuchProvider")
    assert ran.status == UNAVAILABLE
    assert "NoSuchProvider" in ran.error


@pytest.mark.parametrize("command", ["run", "layerwise", "diagnose"])
def test_no_target(cli: CommandLine, model: Path, command: str) -> None:
    for options in ([], ["--fp16"], ["--providers", "cpu"]):
        ran = cli(command, model, *options)
        assert ran.status == USAGE
        assert "--onnxrt" in ran.error


def test_fp16_without_a_target(cli: CommandLine, model: Path) -> None:
    ran = cli("reduce", model, "-o", "out.onnx", "--fp16", "--check", script(Path("check"), "exit 1"), "{model}")
    assert ran.status == USAGE
    assert "--fp16" in ran.error


def test_nobody_to_ask(cli: CommandLine, model: Path) -> None:
    ran = cli("reduce", model, "-o", "out.onnx")
    assert ran.status == USAGE
    assert "--check" in ran.error
    assert "--onnxrt" in ran.error


def test_verbose_shows_the_traceback(here: Path) -> None:
    ran = bisect_trt("run", "nobody.onnx", *TARGET, "-vv", cwd=here)
    assert ran.status == UNAVAILABLE
    assert "Traceback" in ran.err
    assert "nobody.onnx: no such file" in ran.err


def test_a_reader_that_goes_away(here: Path) -> None:
    # As with `| head -1`: nobody wants the rest, which is no reason for a traceback.
    chain(here / "model.onnx", 200)
    check = script(here / "check", f"{has('<150>')} && exit 1; exit 0")
    line = f"{sys.executable} -m bisect_trt reduce model.onnx -o out.onnx --check {check} {{model}}"
    done = subprocess.run(f"{line} | head -1", shell=True, cwd=here, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
