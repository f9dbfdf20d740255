"""The user as the check, at a real terminal."""

from __future__ import annotations

import codecs
import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from support import chain, node_names, read_json

PROMPT = "[good/bad/skip/undo/quit] "
SECONDS = 120
# A session of its own whose terminal this is, so that Ctrl-C arrives; preexec_fn is not for programs with threads.
FOREGROUND = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command line on a pseudo-terminal."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self._master, child = pty.openpty()
        command = [sys.executable, "-c", FOREGROUND, sys.executable, "-m", "bisect_trt", *argv]
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
        self.process = subprocess.Popen(command, cwd=folder, stdin=child, stdout=child, stderr=child, env=environment)
        os.close(child)
        self.seen = ""
        # What is read at once may end within a character, or between the two that end a line.
        self._decode = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True).decode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def prompted(self) -> bool:
        """Read until the next prompt; false if the command ended instead."""
        deadline = time.monotonic() + SECONDS
        while not self.seen.endswith(PROMPT):
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    data = os.read(self._master, 4096)
                except OSError:  # what Linux makes of a terminal whose last user has gone
                    return False
                self.seen += self._decode(data)
        return True

    def answer(self, text: str) -> None:
        self.seen += "\n"
        os.write(self._master, text.encode())

    def converse(self, reply: Callable[[], str]) -> int:
        """Answer every prompt; the exit status."""
        while self.prompted():
            self.answer(reply() + "\n")
        return self.process.wait(SECONDS)


@pytest.fixture
def terminal(here: Path) -> Iterator[Terminal]:
    chain(here / "model.onnx", 6)
    terminal = Terminal(here, "reduce", "model.onnx", "-o", "out.onnx", "--json", "r.json", "--no-shrink")
    yield terminal
    terminal.close()


def says(tag: str, folder: Path) -> str:
    """What an honest user answers who looks for a node."""
    return "bad" if tag in node_names(folder / "bisect_trt_debug.onnx") else "good"


def test_an_honest_user(terminal: Terminal, here: Path) -> None:
    assert terminal.converse(lambda: says("<3>", here)) == 0
    assert node_names(here / "out.onnx") == ["<3>"]
    assert "bisect_trt_debug.onnx" in terminal.seen
    assert not (here / "bisect_trt_debug.onnx").exists()
    assert read_json(here / "r.json")["minimality"] == "1-minimal"


def test_first_letters_capitals_and_spaces_do(terminal: Terminal, here: Path) -> None:
    words = iter(range(100))
    forms = ["{}", " {} ", "{}\t"]

    def reply() -> str:
        word = says("<1>", here)
        number = next(words)
        return forms[number % 3].format(word[0] if number % 2 else word.upper())

    assert terminal.converse(reply) == 0
    assert node_names(here / "out.onnx") == ["<1>"]


def test_junk_asks_again(terminal: Terminal, here: Path) -> None:
    junk = iter(["", "yes", "1", "gooood", "b a d", "\x01", "ÿ", "-", "help"])
    assert terminal.converse(lambda: next(junk, None) or says("<3>", here)) == 0
    assert node_names(here / "out.onnx") == ["<3>"]
    assert "'gooood' is none of good, bad, skip, undo, quit" in terminal.seen


def test_skip_is_unresolved(terminal: Terminal, here: Path) -> None:
    def reply() -> str:
        nodes = node_names(here / "bisect_trt_debug.onnx")
        return "bad" if {"<2>", "<3>"} <= set(nodes) else "skip"

    assert terminal.converse(reply) == 0
    assert node_names(here / "out.onnx") == ["<2>", "<3>"]
    probes = read_json(here / "r.json")["probes"]
    assert probes["pass"] == 0
    assert probes["unresolved"] > 0


def test_undo_takes_the_last_answer_back(terminal: Terminal, here: Path) -> None:
    asked: list[list[str]] = []

    def reply() -> str:
        nodes = node_names(here / "bisect_trt_debug.onnx")
        asked.append(nodes)
        truth = says("<4>", here)
        if len(asked) == 2:
            return "good" if truth == "bad" else "bad"  # a slip
        return "undo" if len(asked) == 3 else truth

    assert terminal.converse(reply) == 0
    assert node_names(here / "out.onnx") == ["<4>"]
    # The question of the slip comes again, and none before it.
    assert asked[3] == asked[1]
    assert "Took back probe 2." in terminal.seen


def test_undo_as_often_as_one_likes(terminal: Terminal, here: Path) -> None:
    asked: list[list[str]] = []

    def reply() -> str:
        asked.append(node_names(here / "bisect_trt_debug.onnx"))
        return "u" if len(asked) in (1, 5, 6, 7) else says("<4>", here)

    assert terminal.converse(reply) == 0
    assert "There is nothing to take back." in terminal.seen
    assert asked[7] == asked[0]  # three answers, three times undo: back at the original
    assert node_names(here / "out.onnx") == ["<4>"]


@pytest.mark.parametrize("way", ["quit", "end of input", "interrupt"])
def test_leaving_saves_the_best_so_far(terminal: Terminal, here: Path, way: str) -> None:
    asked = 0
    while terminal.prompted():
        asked += 1
        if asked < 4:
            terminal.answer(says("<1>", here) + "\n")
        else:
            # Python's input() shows its prompt a moment before Ctrl-C can end it: what comes that early waits for the line.
            terminal.answer({"quit": "quit\n", "end of input": "\x04", "interrupt": "\x03\n"}[way])
    assert terminal.process.wait(SECONDS) == 130
    assert "Traceback" not in terminal.seen
    assert read_json(here / "r.json")["status"] == "interrupted"
    assert asked == 4
    nodes = node_names(here / "out.onnx")
    assert "<1>" in nodes
    assert len(nodes) < 6
    assert not (here / "bisect_trt_debug.onnx").exists()


def test_a_good_original_does_not_reproduce(terminal: Terminal, here: Path) -> None:
    assert terminal.converse(lambda: "good") == 1
    assert re.search("does not reproduce", terminal.seen)
    assert not (here / "out.onnx").exists()


def test_precision_asks_too(here: Path) -> None:
    chain(here / "model.onnx", 6)
    terminal = Terminal(here, "precision", "model.onnx", "--fp16", "-o", "mixed.onnx", "--json", "r.json")

    def says_lowered() -> str:
        model = onnx.load(str(here / "bisect_trt_debug.onnx"))
        (output,) = next(node.output for node in model.graph.node if node.name == "<3>")
        return "good" if output == "t3" else "bad"

    try:
        assert terminal.converse(says_lowered) == 0
    finally:
        terminal.close()
    assert [node["name"] for node in read_json(here / "r.json")["keep_fp32"]] == ["<3>"]


def test_one_answer_is_about_all_input_samples(cli: CommandLine, here: Path) -> None:
    chain(here / "model.onnx", 2)
    terminal = Terminal(here, "reduce", "model.onnx", "-o", "out.onnx", "--no-shrink", "--iterations", "3")
    try:
        assert terminal.converse(lambda: says("<1>", here)) == 0
    finally:
        terminal.close()
    assert "bad on any of the 3 input samples in " in terminal.seen
    look = re.search(r"To look at one: bisect-trt (inspect data \S+ --show values)", terminal.seen)
    assert look is not None
    words = look[1].split()
    assert Path(words[2]).name == "inputs-2.npz"
    shown = cli(*words)
    assert (shown.status, "x: float32 [2, 3]" in shown.out) == (0, True)
