"""Checks that print without end, take all memory, multiply, hide, or write where they should not: each stays contained."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine
from support import (
    assert_gone,
    chain,
    has,
    marked,
    node_names,
    pids,
    read_json,
    run_check,
    script,
    wait_for,
)

from bisect_trt.probe.outcome import Ending
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.tensors import kernel as memory
from bisect_trt.worker import process as module
from bisect_trt.worker.process import Cancel, MemoryGate, ProcessEnd, run_to_end

MB = 1 << 20
PYTHON = sys.executable


def run(body: str, folder: Path, **limits: Any) -> ProcessEnd:
    return run_to_end(
        ["/bin/sh", "-c", f"cd '{folder}'; {body}"], log=folder / "log", environment={}, **limits
    )


@pytest.mark.parametrize(
    ("size", "kept"), [(0, 0), (999, 999), (2000, 2000), (2001, 2000), (5_000_000, 2000)]
)
def test_of_much_output_both_ends_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, kept: int
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 1000)
    monkeypatch.setattr(module, "_TAIL_BYTES", 1000)
    (tmp_path / "made").write_bytes(bytes(number * 7 % 251 for number in range(size)))
    end = run("cat made", tmp_path)
    log = (tmp_path / "log").read_bytes()
    made = (tmp_path / "made").read_bytes()
    if not end.left_out:
        assert size <= 2000
        assert (log, end.left_out) == (made, 0)
        return
    head = log[:1000]
    tail = log[1000:]
    assert head == made[:1000]
    left_out = f"\n[{end.left_out} bytes of output left out here]\n".encode()
    assert tail.startswith(left_out)
    tail = tail.removeprefix(left_out)
    assert made.endswith(tail)
    assert len(head) + end.left_out + len(tail) == size
    assert kept / 2 <= len(tail) <= 1000 + len(left_out)


def test_a_regex_may_match_in_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 1000)
    monkeypatch.setattr(module, "_TAIL_BYTES", 1000)
    much = "yes | head -c 500000"
    regexes = {"fail_regexes": (re.compile("BAD"),)}
    for body in (f"{much}; echo BAD; {much}", f"{much}; {much}"):
        for status in (0, 1):
            outcome = run_check(tmp_path, f"{body}; exit {status}", **regexes)
            assert outcome.ending is Ending.OTHER
            assert "bytes of output that are not kept" in describe_outcome(outcome)
    assert run_check(tmp_path, f"echo BAD; {much}", **regexes).ending is Ending.FAILED
    assert run_check(tmp_path, f"{much}; echo BAD", **regexes).ending is Ending.FAILED


HOLD = f"{PYTHON} -c 'import time; held = bytearray(b\"x\") * ({{}} << 20); time.sleep({{}})'"


@pytest.mark.parametrize(
    "body",
    [
        HOLD.format(400, 100),
        f"{HOLD.format(400, 100)} & wait",
        " & ".join([HOLD.format(80, 100)] * 5) + " & wait",
        f"setsid {HOLD.format(400, 100)}",
    ],
    ids=["itself", "a child", "together", "in a session of its own"],
)
def test_a_check_that_takes_more_memory_than_it_may_is_ended(tmp_path: Path, body: str) -> None:
    outcome = run_check(tmp_path, body, memory_limit=200 * MB)
    assert (outcome.ending, outcome.signature) == (Ending.BROKEN, "memory limit")
    assert describe_outcome(outcome) == "it took more memory than --memory-limit"
    assert outcome.seconds < 60


def test_the_limit_reaches_checks_and_workers(cli: CommandLine, here: Path) -> None:
    check = script(here / "check", f"{has('<2>')} && {HOLD.format(300, 100)}; exit 0")
    model = chain(here / "model.onnx", 4)
    cli(
        "reduce", model, "-o", "out.onnx", "--memory-limit", "220M", "--check", check, "{model}"
    ).ended(0)
    assert node_names(Path("out.onnx")) == ["<2>"]
    refused = cli("run", model, "--onnxrt", "--memory-limit", "1M")
    refused.refused("BT2003", "it took more memory than --memory-limit")


@pytest.mark.parametrize(
    "damage",
    [
        'rm "$1"',
        'rm -r "$(dirname "$1")"',
        'echo x > "$1"',
        'touch -r "$1" t; for f in "$(dirname "$(dirname "$1")")"/*/*.onnx; do echo x > "$f"; touch -r t "$f"; done',
        'for f in "$(dirname "$1")"/*.npz; do : > "$f"; done',
    ],
    ids=[
        "its model",
        "its folder",
        "over its model",
        "over all models, times kept",
        "over its values",
    ],
)
def test_what_a_check_does_to_files_changes_no_later_answer(
    cli: CommandLine, here: Path, damage: str
) -> None:
    model = chain(here / "model.onnx", 8)
    body = f'test -s "$1" && test -s "$2" || exit 125; {has("<2>", "<5>")}; bad=$?; {damage}; test $bad -ne 0'
    words = ["--repeat", "3", "--workers", "1", "--json", "r.json"]
    ran = cli(
        "reduce",
        model,
        "-o",
        "out.onnx",
        *words,
        "--check",
        script(here / "check", body),
        "{model}",
        "{inputs}",
    )
    assert ran.status in (0, 3), ran.err
    result = read_json(Path("r.json"))
    assert [node["name"] for node in result["culprits"]] == ["<2>", "<5>"]
    assert result["probes"]["unresolved"] == 0
    assert node_names(Path("out.onnx")) == ["<2>", "<5>"]


def test_a_check_that_changes_the_models_of_others_is_named(cli: CommandLine, here: Path) -> None:
    """What passes then is not the original, so it is not said that the failure does not reproduce."""
    model = chain(here / "model.onnx", 8)
    others = 'for f in "$(dirname "$(dirname "$1")")"/*/*.onnx; do test "$f" = "$1" || echo x > "$f"; done'
    body = f"{others}; sleep 2; {has('<2>')} && exit 1; exit 0"
    ran = cli(
        "reduce",
        model,
        "-o",
        "out.onnx",
        "--workers",
        "2",
        "--check",
        script(here / "check", body),
        "{model}",
    )
    ran.refused("BT1011", "--workers 1")


@pytest.mark.parametrize("damage", ["x", ""], ids=["over them", "to nothing"])
def test_activations_that_a_check_writes_over_end_the_run_with_a_sentence(
    cli: CommandLine, here: Path, damage: str
) -> None:
    model = chain(here / "model.onnx", 8)
    over = f'for f in "$(dirname "$1")"/../*/tensors.bin; do printf "{damage}" > "$f"; done'
    check = script(here / "check", f"{over}; {has('<2>')}; test $? -ne 0")
    ran = cli("reduce", model, "-o", "out.onnx", "--check", check, "{model}")
    ran.refused("BT2006", "truncated while they were in use")


def fake_system(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(memory, "_PROC", root / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", root / "cgroup")


HOST = {
    "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n",
    "proc/vmstat": "oom_kill 2\n",
}
V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "cgroup/job/memory.max": "512000\n",
    "cgroup/job/memory.current": "500000\n",
    "cgroup/job/memory.stat": "anon 1\ninactive_file 100000\n",
    "cgroup/job/step/memory.max": "max\n",
    "cgroup/job/step/memory.current": "5\n",
    "cgroup/job/step/memory.events": "low 0\noom 9\noom_kill 7\n",
}


@pytest.mark.parametrize(
    ("files", "total", "free", "kills"),
    [({}, None, None, 0), (HOST, 1_024_000, 614_400, 2), (HOST | V2, 512_000, 112_000, 7)],
    ids=["not said", "the machine", "a control group"],
)
def test_the_limit_of_memory_is_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    total: int | None,
    free: int,
    kills: int,
) -> None:
    fake_system(tmp_path, monkeypatch, files)
    assert (memory.total_bytes(), memory.free_bytes(), memory.oom_kills()) == (total, free, kills)


def several_at_a_time(gate: MemoryGate, *, alone: bool = False, patience: float = 0.05) -> bool:
    """Whether of eight who go through two meet, where each waits so many seconds for another."""
    running = 0
    met = False
    changed = threading.Condition()

    def go() -> None:
        nonlocal running, met
        with gate.turn(alone=alone), changed:
            running += 1
            met = met or running > 1
            changed.notify_all()
            changed.wait_for(lambda: met, patience)
            running -= 1

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return met


def test_fewer_run_at_a_time_when_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_system(tmp_path, monkeypatch, HOST)
    gate = MemoryGate()
    assert several_at_a_time(gate, patience=20)
    gate.saw(570_000)  # beside the reserve, more than there is
    assert not several_at_a_time(gate)
    fake_system(tmp_path, monkeypatch, HOST | V2)
    assert several_at_a_time(MemoryGate(), patience=20)
    monkeypatch.setattr(module, "_RESERVE", 0.5)
    assert not several_at_a_time(MemoryGate())


def test_what_was_ended_for_the_want_of_memory_runs_alone() -> None:
    assert not several_at_a_time(MemoryGate(), alone=True)


# Child processes always end, with everything they started.


FAMILY = """
sleep 300 & echo $! > child
(trap '' TERM; sleep 300 & echo $! > grandchild; wait) &
while ! test -s grandchild; do sleep 0.01; done
"""


def run_past_its_time(body: str, folder: Path) -> tuple[ProcessEnd, float]:
    """Run what never ends and makes ``ready`` once it has begun; with more time where it had not, on a machine that is busy."""
    for timeout in (0.5, 5.0, 50.0):
        end = run(body, folder, timeout=timeout)
        if (folder / "ready").exists():
            break
    assert end.limit == "time"
    return end, timeout


def test_environment_input_and_both_streams_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLERS", "kept")
    monkeypatch.setenv("BOTH", "caller's")
    argv = ["/bin/sh", "-c", 'echo "$CALLERS,$BOTH,$NEW,$(cat)"; echo two >&2; printf "\\377\\n"']
    run_to_end(argv, log=tmp_path / "log", environment={"BOTH": "given", "NEW": "a b;c"})
    assert (tmp_path / "log").read_bytes() == b"kept,given,a b;c,\ntwo\n\xff\n"


@pytest.mark.parametrize("ends", ["by itself", "by time-out", "by cancel"])
def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    cancel = Cancel()
    try:
        if ends == "by itself":
            end = run(f"{FAMILY} exit 3", tmp_path, timeout=60, cancel=cancel)
            assert (end.code, end.limit) == (3, None)
        elif ends == "by time-out":
            end, timeout = run_past_its_time(f"{FAMILY} touch ready; wait", tmp_path)
            assert timeout <= end.seconds < 200
        else:

            def cancel_once_it_runs() -> None:
                wait_for((tmp_path / "grandchild").exists)
                cancel.set()

            helper = threading.Thread(target=cancel_once_it_runs)
            helper.start()
            end = run(f"{FAMILY} wait", tmp_path, timeout=60, cancel=cancel)
            helper.join()
            assert end.limit == "cancelled"
            assert end.seconds < 60
    finally:
        cancel.close()
    wait_for((tmp_path / "grandchild").exists)
    assert_gone(int((tmp_path / name).read_text()) for name in ("child", "grandchild"))


def test_a_process_may_tidy_up_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 60.0)
    # It is timed out whatever it exits with.
    run_past_its_time(
        "trap 'echo tidy > tidied; exit 0' TERM; touch ready; sleep 300 & wait", tmp_path
    )
    assert (tmp_path / "tidied").exists()


def test_one_that_does_not_listen_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.2)
    end, _ = run_past_its_time("trap '' TERM; touch ready; while :; do sleep 0.05; done", tmp_path)
    assert end.code == -signal.SIGKILL


def test_cancelled_before_it_starts(tmp_path: Path) -> None:
    cancel = Cancel()
    cancel.set()
    cancel.set()  # once more does no harm
    end = run("sleep 300", tmp_path, timeout=60, cancel=cancel)
    cancel.close()
    assert end.limit == "cancelled"


KILLED = """
import os, signal, sys
from bisect_trt.worker.guard import guard
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
guard.start(["sh", "-c", "echo $$ > pids; sleep 1000 & echo $! >> pids; sleep 1000"], os.environ)
while not os.path.exists("pids") or len(open("pids").readlines()) < 2:
    pass
kill()
"""


def test_what_a_killed_driver_has_started_ends(tmp_path: Path) -> None:
    driver = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert driver.returncode == -signal.SIGKILL
    assert_gone(pids(tmp_path))


def test_the_guard_ends_with_a_program_that_ends_by_itself(tmp_path: Path) -> None:
    """Nothing is left to complain of for a program that turns warnings into errors, as a test run may."""
    code = """
import os
from bisect_trt.worker.guard import guard
process = guard.start(["sh", "-c", "exit 3"], os.environ)
assert process.wait() == 3
guard.release(process.pid)
"""
    strict = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", code]
    ended = subprocess.run(strict, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


INTERRUPTED_START = """
import os, signal, subprocess, sys
from bisect_trt.worker.guard import guard

popen = subprocess.Popen

def interrupted(argv, **options):
    process = popen(argv, **options)
    if argv[0] == "sleep":
        print(process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGINT)
    return process

subprocess.Popen = interrupted
guard.start(["sleep", "300"], dict(os.environ))
"""


def test_ctrl_c_while_a_process_is_started_leaves_nothing_running() -> None:
    """Between the start and the message to the guard, which would not know of the process."""
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_START], capture_output=True, text=True, check=False
    )
    assert "KeyboardInterrupt" in ran.stderr
    assert_gone([int(ran.stdout)])


KILLED_AFTER_THE_START = """
import os, signal, sys, time
from bisect_trt.worker import guard as module
from bisect_trt.report.outcomes import describe_outcome
module.prefer_to_end = lambda _: time.sleep(1000)
tell = module.guard._tell
def tell_or_die(word, *rest):
    if word == "started":
        os.kill(os.getpid(), signal.SIGKILL)
    tell(word, *rest)
module.guard._tell = tell_or_die
if sys.argv[1] == "start":
    module.guard.start(["/bin/sh", "-c", "sleep 1000 & sleep 1000"], os.environ)
else:
    if not os.fork():
        time.sleep(1)
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)
    module.guard.fork(lambda: time.sleep(1000))
"""
"""A driver that is killed before it can name what it has started."""


@pytest.mark.parametrize("way", ["start", "fork"])
def test_what_a_driver_started_before_it_was_killed_ends(tmp_path: Path, way: str) -> None:
    mark = f"BISECT_TRT_TEST_{way}={tmp_path}"
    name, _, value = mark.partition("=")
    driver = [PYTHON, "-c", KILLED_AFTER_THE_START, way]
    done = subprocess.run(driver, env={**os.environ, name: value}, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: not marked(mark), 20)
