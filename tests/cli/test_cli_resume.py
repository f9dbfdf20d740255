"""``resume`` and ``log`` from the outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from support import assert_gone, chain, has, node_names, pids, read_json, script, wait_for

from bisect_trt.probe.ledger import sealed

pytestmark = pytest.mark.any_version
REQUIRED = ("<3>", "<8>")
LOADER = "import numpy as np\ndef load_data():\n    yield {'x': np.ones((2, 3), np.float32)}\n"


@pytest.fixture
def begun(cli: CommandLine, here: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a run over a chain of 12 whose journal ends in the middle of its seventh line."""
    model = onnx.load(chain(here / "model.onnx", 12))
    onnx.save(
        model, "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    np.savez(here / "values.npz", x=np.ones((2, 3), np.float32))
    Path("loader.py").write_text(LOADER)
    Path("tensors.txt").write_text("anything")
    body = f'echo "looked at $(basename $1)"; echo $1 >> seen; {has(*REQUIRED)} && exit 1; exit 0'
    check = "./" + script(Path("check"), body)
    fed = getattr(request, "param", ("--load-inputs", "values.npz"))
    options = [*fed, "--json", "r.json", "--workers", "1"]
    cli(
        "reduce",
        "model.onnx",
        "-o",
        "out.onnx",
        *options,
        "--check",
        check,
        "{model}",
        "tensors.txt",
    ).ended(0)
    (run,) = Path(".bisect-trt").iterdir()
    journal = run / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:6]) + lines[6][:30])
    Path("seen").unlink()
    return run


def entries(run: Path, event: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def test_it_goes_on(cli: CommandLine, begun: Path) -> None:
    before = read_json(Path("r.json"))
    cli("resume", begun).ended(0)
    assert node_names(Path("out.onnx")) == list(REQUIRED)
    after = read_json(Path("r.json"))
    timeless = ("probes", "culprits", "minimality", "status", "model")
    assert [after[key] for key in timeless] == [before[key] for key in timeless]
    assert after["wall_s"] > before["wall_s"]
    # Six lines are two probes of one run each; all others were run, one that is asked again maybe
    # more than once.
    runs = [entry["outcome"].get("runs", 1) for entry in entries(begun, "outcome")]
    assert len(runs) == after["probes"]["run"]
    assert len(Path("seen").read_text().splitlines()) == sum(runs) - 2
    # A finished run gives its answer again, in the detail that is asked for now.
    Path("seen").unlink()
    Path("out.onnx").unlink()
    assert "probe 1 " not in cli("resume", begun, "-q").ended(0).out
    assert "probe 1 " in cli("resume", begun, "-v").ended(0).out
    assert node_names(Path("out.onnx")) == list(REQUIRED)
    assert not Path("seen").exists()


def test_time_that_ends_before_a_new_probe_is_said_to_be_too_short(
    cli: CommandLine, here: Path
) -> None:
    chain(here / "m.onnx", 6)
    words = ("reduce", "m.onnx", "-o", "out.onnx", "--max-time", "0.001", "--json", "r.json")
    check = "./" + script(Path("check"), f"{has('<3>')} && exit 1; exit 0")
    ran = cli(*words, "--check", check, "{model}").ended(3)
    assert "needs more" in read_json(Path("r.json"))["why"]
    again = re.search(r"bisect-trt (resume \S+ --max-time 0.002)\n", ran.out)
    assert again, ran.out
    _, run, *_ = again[1].split()
    ran = cli(*again[1].split()).ended(3)
    assert f"resume {Path(run).absolute()} --max-time 0.004" in ran.out
    cli("resume", run, "--max-time", "600", "--max-probes", "1").ended(3)
    assert "--max-probes 1" in read_json(Path("r.json"))["why"]
    cli("resume", run, "--max-time", "600").ended(0)


def test_the_time_of_a_killed_session_counts(cli: CommandLine, begun: Path) -> None:
    (begun / "result.json").unlink()
    end = (begun / "journal.jsonl").stat().st_mtime
    os.utime(begun / "run.json", (end - 1000, end - 1000))
    assert re.search(r"probes in 1[67] min", cli("resume", begun).ended(0).out)
    assert read_json(Path("r.json"))["wall_s"] > 1000


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        (name, ("--load-inputs", "values.npz"))
        for name in ("model.onnx", "weights.bin", "check", "values.npz", "tensors.txt")
    ]
    + [("loader.py", ("--data-loader-script", "loader.py"))],
    indirect=["begun"],
)
def test_it_is_refused_when_a_file_changed(cli: CommandLine, begun: Path, name: str) -> None:
    journal = (begun / "journal.jsonl").read_bytes()
    if name == "model.onnx":
        model = onnx.load(name, load_external_data=False)
        model.doc_string = "another"
        Path(name).write_bytes(model.SerializeToString())
    elif name == "values.npz":
        np.savez(name, x=np.zeros((2, 3), np.float32))
    else:
        Path(name).write_bytes(Path(name).read_bytes()[:-1] + b" ")
    cli("resume", begun).refused("BT1010", f"{name} changed", begun.name)
    assert (begun / "journal.jsonl").read_bytes() == journal
    assert not Path("seen").exists()


def test_it_is_refused_by_another_version(cli: CommandLine, begun: Path) -> None:
    (begun / "run.json").write_text(
        json.dumps({**read_json(begun / "run.json"), "version": "0.0.1"})
    )
    cli("resume", begun).refused("BT1010", "0.0.1")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b'{"argv": ["reduce"]', b'{"argv": 1}', b"\x00\xff"]
)
def test_what_is_no_run(cli: CommandLine, content: bytes) -> None:
    Path("run").mkdir()
    Path("run", "run.json").write_bytes(content)
    for command in ("resume", "log"):
        cli(command, "run").refused("BT2006")


def test_a_run_whose_place_is_gone(
    cli: CommandLine, begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    shutil.move(begun, kept)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "here")
    cli("resume", kept).refused("BT2006", "which does not exist")


def test_the_log_of_a_run_that_was_cut_off(cli: CommandLine, begun: Path) -> None:
    journal = begun / "journal.jsonl"
    with journal.open("ab") as file:
        file.write(b"\n" + sealed({"event": "started", "key": "abc", "title": "the one that hung"}))
    content = journal.read_bytes().replace(journal.read_bytes().splitlines(keepends=True)[6], b"")
    journal.write_bytes(content + b'{"event": "verd')
    ran = cli("log", begun).ended(0)
    assert len(ran.out.splitlines()) == 2 + 2 + 1
    assert "the one that hung: was running when the run ended" in ran.out.splitlines()[-1]


def test_a_probe_can_be_run_by_hand(cli: CommandLine, begun: Path) -> None:
    assert cli("resume", begun).status == 0
    for entry in entries(begun, "verdict"):
        ran = cli("log", begun, str(entry["number"])).ended(0)
        shown = dict(line.split(": ", 1) for line in ran.out.splitlines() if ": " in line)
        assert shown[f"probe {entry['number']}"].startswith(entry["verdict"])
        candidate = Path(shown["candidate"].rsplit(" (", 1)[0])
        by_hand = subprocess.run(
            shown["again by hand"], shell=True, check=False, capture_output=True, text=True
        )
        assert by_hand.returncode == (1 if entry["verdict"] == "FAIL" else 0)
        assert by_hand.stdout.strip() == f"looked at {candidate.name}" == ran.out.splitlines()[-1]
        assert candidate.exists()
        assert Path(shown["inputs"]).exists()
        assert Path(shown["golden"]).exists()


def test_a_probe_that_the_run_has_not(cli: CommandLine, begun: Path) -> None:
    for number in ("0", "99"):
        cli("log", begun, number).refused("BT1005", f"no probe {number}; it has 2")


def test_without_a_run_the_newest_is_taken(cli: CommandLine, begun: Path) -> None:
    stale = begun.with_name("20200101-000000-reduce-model")
    shutil.copytree(begun, stale)
    for file in ("run.json", "result.json"):
        os.utime(stale / file, (0, 0))
    said = f"the newest run: {begun}\n"
    assert cli("log").out == said + cli("log", begun).out
    assert cli("log", "1").out == said + cli("log", begun, "1").out
    assert cli("report").out == f"{said}{begun / 'report.html'}\n"
    ran = cli("resume")
    assert (ran.status, ran.out.startswith(said)) == (0, True), ran.err
    assert node_names(Path("out.onnx")) == list(REQUIRED)


# Ctrl-C, SIGTERM and SIGHUP: the best so far is saved, nothing is left running.


SECONDS = 120


def start(folder: Path, *argv: str) -> subprocess.Popen[str]:
    """A reduction in a process group of its own, as a shell starts it."""
    signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # under nohup it is ignored, which children inherit
    return subprocess.Popen(
        [sys.executable, "-m", "bisect_trt", "reduce", "model.onnx", "-o", "out.onnx", *argv],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupt(
    process: subprocess.Popen[str], folder: Path, running: int, number: int = signal.SIGINT
) -> str:
    """Once so many checks hang, do what a terminal does: a signal to the whole foreground group."""
    wait_for(lambda: len(pids(folder)) >= running)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert_gone(pids(folder))
    return out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_best_so_far_is_saved(here: Path, number: signal.Signals) -> None:
    chain(here / "model.onnx", 64)
    # Answers twice, then hangs in a child of its own.
    count = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n"
    body = f"{count}; test $n -ge 2 && {{ sleep 300 & echo $! >> pids; wait; }}"
    check = script(here / "check", f"{body}; {has('<9>')} && exit 1; exit 0")
    process = start(here, "--json", "r.json", "--workers", "1", "--check", check, "{model}")
    out = interrupt(process, here, 1, number)
    said = "stopped by the user" if number == signal.SIGINT else f"stopped by {number.name}"
    assert f"Result   {said}" in out
    assert "Next     bisect-trt resume" in out
    nodes = node_names(here / "out.onnx")
    assert "<9>" in nodes
    assert len(nodes) < 64
    result = read_json(here / "r.json")
    assert result["status"] == "interrupted"
    assert result["artifacts"]["reduced"] == "out.onnx"


def test_every_parallel_probe_ends(here: Path) -> None:
    chain(here / "model.onnx", 64)
    whole = has(*(f"<{place}>" for place in range(64)))
    check = script(
        here / "check", f"{whole} && exit 1; echo $$ >> pids; sleep 300 & echo $! >> pids; wait"
    )
    process = start(here, "--workers", "3", "--check", check, "{model}")
    interrupt(process, here, running=6)
    assert not (here / "out.onnx").exists()


def test_before_anything_is_known_no_model_is_written(here: Path) -> None:
    chain(here / "model.onnx", 4)
    check = script(here / "check", "echo $$ >> pids; exec sleep 300")
    interrupt(start(here, "--check", check), here, running=1)
    assert not (here / "out.onnx").exists()
    assert not (here / "bisect_trt_debug.onnx").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_it_still_starts(here: Path, number: signal.Signals) -> None:
    chain(here / "model.onnx", 4)
    process = start(here, "--json", "r.json", "--check", "sleep 300")
    spare = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(spare.read_text)  # the guard and the spare worker come first
    children = [int(pid) for pid in spare.read_text().split()]
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err.count("error: stopped")) == (130, 1), err
    assert read_json(here / "r.json")["status"] == "interrupted"
    assert_gone(children)
