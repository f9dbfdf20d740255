"""Output files that are no regular files, and standard streams that nobody reads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import CommandLine
from support import TARGET, chain, overflowing, read_json

from bisect_trt.tensors.files import replacing

pytestmark = pytest.mark.any_version

PROGRAM = f"{sys.executable} -m bisect_trt"


def shell(line: str, here: Path) -> subprocess.CompletedProcess[str]:
    """A line for bash with ``bisect-trt`` in it; its exit status is that of the first command of a pipe."""
    line = f"{line.replace('bisect-trt', PROGRAM)}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", line], cwd=here, capture_output=True, text=True, check=False
    )


# Output files


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    real = tmp_path / "real"
    link = tmp_path / "link"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to("real")
    with replacing(link) as file:
        file.write(b"new")
        assert real.read_text() == "old"  # whole, or not at all
    assert (link.is_symlink(), real.read_text(), stat.S_IMODE(real.stat().st_mode)) == (
        True,
        "new",
        0o600,
    )
    (tmp_path / "dangling").symlink_to("made")
    with replacing(tmp_path / "dangling") as file:
        file.write(b"new")
    assert (tmp_path / "made").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link", "dangling", "made"}


OPTIONS = ["--json", "--report", "--junit", "--save-inputs", "--save-outputs", "--save-onnx"]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_fifo_is_written_to_and_stays(cli: CommandLine, here: Path, option: str) -> None:
    overflowing(here / "model.onnx")
    os.mkfifo("fifo")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("fifo").read_bytes()), daemon=True)
    reader.start()
    ran = cli("run", "model.onnx", *TARGET, option, "fifo")
    reader.join(60)
    assert ran.status == 1, ran.err
    assert read[0]
    assert Path("fifo").is_fifo()


def test_a_device_is_written_to(cli: CommandLine, here: Path) -> None:
    overflowing(here / "model.onnx")
    words = ["run", "model.onnx", *TARGET]
    line = " ".join([*words, *(f"{option} /dev/null" for option in OPTIONS)])
    ran = shell(f"bisect-trt {line} > /dev/null", here)  # the device is standard output too
    assert (ran.returncode, ran.stderr) == (1, "")
    for option in OPTIONS:
        ended = cli(*words, option, "/dev/full").ended(2)
        assert "No space left on device" in ended.err, option


@pytest.mark.parametrize("command", ["reduce", "precision", "extract"])
def test_a_model_that_is_read_back_goes_into_a_file(
    cli: CommandLine, here: Path, command: str
) -> None:
    overflowing(here / "model.onnx")
    os.mkfifo("fifo")
    words = ["--outputs", "big_out"] if command == "extract" else TARGET
    ran = cli(command, "model.onnx", *words, "-o", "fifo", "--overwrite")
    assert (ran.status, "no regular file" in ran.err, Path("fifo").is_fifo()) == (2, True, True)


@pytest.mark.parametrize("redirected", ["| cat > out", ">> out"])
def test_standard_output_as_a_file(here: Path, redirected: str) -> None:
    chain(here / "model.onnx", 2)
    (here / "out").write_text("before\n" if ">>" in redirected else "")
    done = shell(
        f"bisect-trt run model.onnx {' '.join(TARGET)} --junit /dev/stdout {redirected}", here
    )
    assert done.returncode == 0, done.stderr
    text = (here / "out").read_text()
    assert text.startswith("before") == (">>" in redirected)
    assert text.index("<?xml") < text.index("Match ") < text.index("Report ")


# Standard streams


@pytest.mark.parametrize(
    ("redirected", "said"),
    [
        ("| true", "warning: the output cannot be written: Broken pipe."),
        (">&-", "warning: standard output is closed, so nothing is printed."),
        ("<&- >&- 2>&-", ""),
        ("> /dev/full", "error: the output cannot be written: No space left on device."),
    ],
)
def test_a_closed_stream_does_not_change_the_answer(here: Path, redirected: str, said: str) -> None:
    chain(here / "model.onnx", 2)
    done = shell(f"bisect-trt run model.onnx {' '.join(TARGET)} --json r.json {redirected}", here)
    assert read_json(here / "r.json")["status"] == "found"
    assert done.returncode == (3 if "full" in redirected else 0)
    assert done.stderr.strip() == said


@pytest.mark.parametrize(
    ("line", "status"),
    [("inspect model.onnx | true", 0), ("inspect model.onnx >&-", 0), ("--help > /dev/full", 3)],
)
def test_nor_does_it_where_there_is_only_text(here: Path, line: str, status: int) -> None:
    chain(here / "model.onnx", 2)
    done = shell(f"bisect-trt {line}", here)
    assert done.returncode == status
    assert done.stderr.count("\n") <= 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("more", ["", "--json r.json", "--json ../r.json"])
def test_a_working_directory_that_was_deleted(here: Path, more: str) -> None:
    overflowing(here / "model.onnx")
    more = more.replace("../", f"{here}/")
    ran = shell(
        f"mkdir gone; cd gone; rmdir ../gone; bisect-trt diagnose {here}/model.onnx --onnxrt --fp16 {more}",
        here,
    )
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "error[BT2007]: the working directory cannot be used" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not more.startswith("--json /") or read_json(here / "r.json")["status"] == "error"
