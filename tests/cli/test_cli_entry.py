"""What every command has: help, a version, a JSON result with the same keys; and how the words are read."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from support import (
    COMMANDS,
    TARGET,
    Ran,
    bisect_trt,
    chain,
    command_lines,
    has,
    node_names,
    overflowing,
    read_json,
    rest_slow,
)

import bisect_trt as package
from bisect_trt import __version__
from bisect_trt.commands import doctor
from bisect_trt.commands.doctor import examine
from bisect_trt.commands.table import COMMANDS as GROUPS
from bisect_trt.commands.table import COMMANDS as TABLE
from bisect_trt.options.spec import entries
from bisect_trt.report.result import environment, result_of
from bisect_trt.report.summary import headline
from bisect_trt.targets.options import selectable
from bisect_trt.worker import pool
from bisect_trt.worker.pool import WorkerPool


@pytest.mark.parametrize("command", ["reduce", "run"])
def test_the_answer_as_json_and_alone(cli: CommandLine, command: str) -> None:
    """The corpus of answers holds each against its schema."""
    model = overflowing(Path("model.onnx"))
    line = command_lines(model)[command]
    result = (ran := cli(*line, "--json", "r.json").ended(1 if command == "run" else 0)).result
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert result["model"] == {"path": "model.onnx", "sha256": digest, "nodes": 8, "units": 8}
    run = Path(result["artifacts"]["run"])
    assert read_json(run / "result.json") == result
    assert result["artifacts"]["report"] == str(run / "report.html")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert f"<h1>{headline(result_of(result))}</h1>".replace("'", "&#39;") in page
    assert re.search(rf"^Report +{re.escape(str(run))}", ran.out, re.MULTILINE)
    quiet = cli(*line, "-q", *([] if command == "run" else ["--overwrite"])).ended(ran.status)
    assert 0 < len(quiet.out.splitlines()) <= min(25, len(ran.out.splitlines()))
    if command == "run":
        alone = cli(*line, "--json", "-")
        assert json.loads(alone.out)["comparisons"] == result["comparisons"]
        before = sorted(Path(".bisect-trt").iterdir())
        assert cli("run", "none.onnx", *TARGET).status == 4
        assert sorted(Path(".bisect-trt").iterdir()) == before  # no folder of a run


def test_help_lists_the_commands_by_what_they_are_for(cli: CommandLine) -> None:
    ran = cli("-h")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == cli().out
    headings = re.findall(r"─ (\w[\w ]*) ─", ran.out)
    assert headings == ["Options", "Find", "Explain", "Fix", "Files", "Runs", "This machine"]
    assert re.findall(r"^│ (\w+)  ", ran.out, re.MULTILINE) == list(TABLE)


@pytest.mark.parametrize("command", TABLE)
def test_help_of_each_command_fits_two_screens(cli: CommandLine, command: str) -> None:
    ran = cli(command, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert len(ran.out.splitlines()) <= 80
    assert all(f"bisect-trt {line}" in ran.out for line in TABLE[command].examples)
    assert "(T)" not in ran.out
    everything = cli(command, "--help-all")
    assert (everything.status, everything.err) == (0, "")
    assert set(re.findall(r"--[\w-]+", ran.out)) <= set(re.findall(r"--[\w-]+", everything.out))
    assert "…" not in ran.out + everything.out
    options = [entry for group in TABLE[command].groups for entry in entries(group)]
    flags = {flag.lstrip(" /") for entry in options for flag in entry.flags if not entry.positional}
    assert flags <= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", everything.out))


def test_help_has_the_options_that_the_readme_teaches(
    cli: CommandLine,
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for line in re.findall(r"`bisect-trt ([^`]+)`", readme):
        command, *words = line.split()
        if command in TABLE:
            flags = [word for word in words if re.fullmatch(r"--[a-z-]+", word)]
            shown = re.findall(r"--[\w-]+", cli(command, "--help").out)
            assert {*flags} <= {*shown}, line


def test_the_installed_program_is_the_module(cli: CommandLine, here: Path) -> None:
    assert cli("--version").out == f"bisect-trt {package.__version__}\n"
    for program in (
        [Path(sys.executable).with_name("bisect-trt")],
        [sys.executable, "-m", "bisect_trt"],
    ):
        done = subprocess.run(
            [*program, "--version"], cwd=here, capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == (f"bisect-trt {package.__version__}\n", "")


def test_shells_complete_options(here: Path) -> None:
    words = "extract model.onnx --inp"
    # What bash's function of --show-completion asks, and as: all words, and the number of the one
    # that is completed.
    given = {"COMP_WORDS": f"bisect-trt {words}", "COMP_CWORD": str(len(shlex.split(words)))}
    for asks, answers in (
        ("complete_bash", ["--inputs", "--input-shapes"]),
        ("source_zsh", ["bisect-trt"]),
    ):
        environment = {**os.environ, "_BISECT_TRT_COMPLETE": asks, **given}
        command = [sys.executable, "-m", "bisect_trt"]
        done = subprocess.run(
            command, cwd=here, env=environment, capture_output=True, text=True, check=True
        )
        assert {*answers} <= {*done.stdout.split()}


# Names of files that are too long, or no text: a sentence, or the same as for any other name.


LONG = f"{'n' * 300}.onnx"
PATHS = {
    entry.flag: name
    for name in command_lines("")
    for group in GROUPS[name].groups
    for entry in entries(group)
    if entry.kind is Path and not entry.positional
}


@pytest.mark.parametrize("flag", [*PATHS, ""])
def test_a_path_that_is_too_long(cli: CommandLine, flag: str) -> None:
    model = overflowing(Path("model.onnx"))
    line = (
        [*command_lines(model)[PATHS[flag]], flag, LONG]
        if flag
        else ["diagnose", LONG, *TARGET, "--json", "r.json"]
    )
    ran = cli(*line).refused("BT1002", "too long")
    assert f"{flag} nnn" in ran.error or not flag
    assert flag or ran.result["status"] == "error"


def test_a_check_with_a_word_that_is_longer_than_any_file_name(
    cli: CommandLine, here: Path
) -> None:
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


def test_commands_to_copy_do_what_they_say_and_no_more(cli: CommandLine, here: Path) -> None:
    """A name that is a command, a quote and an option, as a stranger may give a file."""
    name = "-a 'b$(touch owned);`touch owned`.onnx"
    overflowing(here / "model.onnx").rename(name)
    ran = cli("diagnose", f"./{name}", "--onnxrt", "--fp16").ended(0)
    shown = next(line for line in ran.out.splitlines() if line.startswith("Proof "))
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ["PATH"]]
    )  # whose python is this one
    command = ["sh", "-c", shown.removeprefix("Proof").strip()]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 1, done.stderr
    assert not (here / "owned").exists()
    (run,) = (here / ".bisect-trt").iterdir()
    assert re.fullmatch(r"[\w.-]+", run.name)
    further = next(line for line in ran.out.splitlines() if "to search further: " in line)
    words = shlex.split(further.partition(": ")[2])
    assert words == ["bisect-trt", "workaround", str(here / name), "--onnxrt", "--fp16"]


# What ``bisect-trt doctor`` finds: what is there, and, of what crashes or hangs, that it does.


@pytest.fixture
def shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules come before all that is installed."""
    folder = tmp_path / "shadow"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def see(folder: Path) -> Ran:
    done = bisect_trt("doctor", "--json", "found.json", cwd=folder).ended(0)
    assert done.err == ""
    return done


def test_everything_that_is_here_is_listed(tmp_path: Path) -> None:
    done = see(tmp_path)
    result = read_json(tmp_path / "found.json")
    machine = result["environment"]
    assert (result["command"], result["status"]) == ("doctor", "found")
    assert all(machine[name] == value for name, value in environment().items())
    assert machine["bisect-trt"] == __version__
    assert machine["Python"] == platform.python_version()
    assert machine["onnx"] == onnx.__version__
    assert machine["numpy"] == np.__version__
    for name, value in machine.items():
        assert f"{name}: {value}\n" in done.out
    assert set(result["targets"]) == {f"--{plugin.name}" for plugin in selectable()} | {
        "--onnxrt --providers cuda"
    }
    usable = {"--onnxrt"} | (
        {"--openvino"} if importlib.util.find_spec("openvino") is not None else set()
    )
    assert {target for target in usable if result["targets"][target] is not None} == set()
    if importlib.util.find_spec("tensorrt") is None:
        assert "pip install tensorrt" in result["targets"]["--trt"]
    for target, missing in result["targets"].items():
        assert f"{target}: {'yes' if missing is None else f'no: {missing}'}\n" in done.out
    assert not (tmp_path / ".bisect-trt").exists()


@pytest.mark.slow
def test_two_builds_of_onnx_runtime_in_one_folder_are_a_warning(
    shadow: Path, tmp_path: Path
) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    add_distribution(shadow, "onnxruntime_gpu")
    assert bisect_trt(*RUN, cwd=tmp_path).err == ""  # the other is in another folder
    add_distribution(shadow, "onnxruntime")
    for words in (["doctor"], RUN):
        done = bisect_trt(*words, cwd=tmp_path)
        assert (done.status, "pip uninstall -y onnxruntime onnxruntime-gpu" in done.err) == (
            0,
            True,
        )


def test_without_onnx_runtime_it_says_which_build_to_install(shadow: Path, tmp_path: Path) -> None:
    (shadow / "onnxruntime.py").write_text(
        "raise ModuleNotFoundError('No module named onnxruntime')"
    )
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    done = bisect_trt(*RUN, cwd=tmp_path)
    assert (done.status, "pip install onnxruntime, or onnxruntime-gpu" in done.err) == (4, True)


def add_distribution(folder: Path, name: str) -> None:
    metadata = folder / f"{name}-{onnxruntime.__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {onnxruntime.__version__}\n"
    )


RUN = ("run", "model.onnx", "--onnxrt")
MODEL = (
    '<ir_version: 8, opset_import: ["" : 17]> chain (float[4] x) => (float[4] y) { y = Relu(x) }'
)
CRASH = (
    "import os, signal, sys\nprint('loading', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n"
)


def missing_of_trt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setattr(doctor, "names", lambda: ["trt"])
    with WorkerPool(folder, fresh_process=True) as workers:
        return examine(workers, folder, None)["--trt"].missing


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (CRASH, ["SIGSEGV", "loading"]),
        ("raise RuntimeError('of another driver')", ["RuntimeError: of another driver"]),
        ("__version__ = '8.5.0'", ["8.5.0", "8.6"]),
        ("import sys\nsys.exit('cannot go on')", ["(1)", "cannot go on"]),
        ("import libnothing", ["'libnothing'", "pip install tensorrt", "LD_LIBRARY_PATH"]),
    ],
)
def test_a_library_that_breaks_is_a_finding(
    shadow: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    says: list[str],
) -> None:
    (shadow / "tensorrt.py").write_text(source)
    missing = missing_of_trt(tmp_path, monkeypatch)
    assert missing is not None
    assert all(word in missing for word in says), missing


def test_a_library_that_hangs_is_a_finding(
    shadow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_SECONDS", 2.0)
    monkeypatch.setattr(pool, "LEAST_SECONDS", 2.0)  # a worker that starts has 30 s
    (shadow / "tensorrt.py").write_text("import time\ntime.sleep(1000)\n")
    missing = missing_of_trt(tmp_path, monkeypatch)
    assert missing is not None
    waited = re.match(r"no answer after (\d+\.\d+)", missing)
    assert waited is not None
    assert 2 <= float(waited[1]) < 1000
