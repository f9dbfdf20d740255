"""The user as the check, at a real terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from screens import SECONDS, Program
from support import chain, node_names, read_json

PROMPT = "[good/bad/skip/undo/quit] "
REDUCE = ("reduce", "model.onnx", "-o", "out.onnx", "--json", "r.json", "--no-shrink")


class Dialogue(Program):
    """A command line that asks, and all that it printed."""

    def __init__(self, folder: Path, *argv: str) -> None:
        super().__init__(folder, *argv, columns=200, TERM="dumb")
        self.seen = ""
        self._bytes = b""
        self._pieces = self.pieces()

    def prompted(self) -> bool:
        """Read until the next prompt; false if the command ended instead."""
        known = self.seen.count(PROMPT)
        for piece in self._pieces:
            self._bytes += piece
            self.seen = self._bytes.decode(errors="replace").replace("\r\n", "\n")
            if self.seen.endswith(PROMPT) and self.seen.count(PROMPT) > known:
                return True
        return False

    def converse(self, reply: Callable[[], str]) -> int:
        """Answer every prompt; the exit status."""
        while self.prompted():
            self.type(reply() + "\n")
        return self.process.wait(SECONDS)


@pytest.fixture
def start(here: Path) -> Iterator[Callable[..., Dialogue]]:
    """Starts a command line on a terminal, on a chain of six."""
    chain(here / "model.onnx", 6)
    started: list[Dialogue] = []

    def begin(*argv: str) -> Dialogue:
        started.append(Dialogue(here, *(argv or REDUCE)))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def says(tag: str) -> str:
    """What an honest user answers who looks for a node."""
    return "bad" if tag in node_names(Path("bisect_trt_debug.onnx")) else "good"


def test_an_honest_user_whose_fingers_slip(start: Callable[..., Dialogue]) -> None:
    """Junk is asked again; first letters, capitals and spaces do."""
    junk = iter(["", "yes", "1", "gooood", "b a d", "\x01", "ÿ", "-", "help"])
    forms = iter(["{}", " {} ", "{}\t"] * 9)

    def reply() -> str:
        if (slip := next(junk, None)) is not None:
            return slip
        form, word = next(forms), says("<3>")
        return form.format(word[0] if form == "{}" else word.upper())

    dialogue = start()
    assert dialogue.converse(reply) == 0
    assert node_names(Path("out.onnx")) == ["<3>"]
    assert "'gooood' is none of good, bad, skip, undo, quit" in dialogue.seen
    assert "bisect_trt_debug.onnx" in dialogue.seen
    assert not Path("bisect_trt_debug.onnx").exists()
    assert read_json(Path("r.json"))["minimality"] == "1-minimal"


def test_skip_is_unresolved(start: Callable[..., Dialogue]) -> None:
    def reply() -> str:
        return "bad" if {"<2>", "<3>"} <= {*node_names(Path("bisect_trt_debug.onnx"))} else "skip"

    assert start().converse(reply) == 0
    assert node_names(Path("out.onnx")) == ["<2>", "<3>"]
    probes = read_json(Path("r.json"))["probes"]
    assert probes["pass"] == 0
    assert probes["unresolved"] > 0


def test_undo_takes_answers_back_as_often_as_one_likes(start: Callable[..., Dialogue]) -> None:
    asked: list[list[str]] = []

    def reply() -> str:
        asked.append(node_names(Path("bisect_trt_debug.onnx")))
        truth = says("<4>")
        if len(asked) == 4:
            return "good" if truth == "bad" else "bad"  # a slip
        return "u" if len(asked) in (1, 5, 6, 7) else truth

    dialogue = start()
    assert dialogue.converse(reply) == 0
    assert "There is nothing to take back." in dialogue.seen
    assert "Took back probe 3." in dialogue.seen
    # Three answers, three times undo: the questions come again, back to the original.
    assert (asked[5], asked[6], asked[7]) == (asked[3], asked[2], asked[0])
    assert node_names(Path("out.onnx")) == ["<4>"]


@pytest.mark.parametrize("way", ["quit", "end of input", "interrupt"])
def test_leaving_saves_the_best_so_far(start: Callable[..., Dialogue], way: str) -> None:
    asked, dialogue = 0, start()
    while dialogue.prompted():
        asked += 1
        # Python's input() shows its prompt a moment before Ctrl-C can end it: what comes that early waits for the line.
        ends = {"quit": "quit\n", "end of input": "\x04", "interrupt": "\x03\n"}[way]
        dialogue.type(says("<1>") + "\n" if asked < 4 else ends)
    assert dialogue.process.wait(SECONDS) == 130
    assert "Traceback" not in dialogue.seen
    assert read_json(Path("r.json"))["status"] == "interrupted"
    assert asked == 4
    nodes = node_names(Path("out.onnx"))
    assert "<1>" in nodes
    assert len(nodes) < 6
    assert not Path("bisect_trt_debug.onnx").exists()


def test_precision_asks_too(start: Callable[..., Dialogue]) -> None:
    def says_lowered() -> str:
        model = onnx.load("bisect_trt_debug.onnx")
        (output,) = next(node.output for node in model.graph.node if node.name == "<3>")
        return "good" if output == "t3" else "bad"

    dialogue = start("precision", "model.onnx", "--fp16", "-o", "mixed.onnx", "--json", "r.json")
    assert dialogue.converse(says_lowered) == 0
    assert [node["name"] for node in read_json(Path("r.json"))["keep_fp32"]] == ["<3>"]


def test_one_answer_is_about_all_input_samples(cli: CommandLine, start: Callable[..., Dialogue]) -> None:
    dialogue = start(*REDUCE, "--iterations", "3")
    assert dialogue.converse(lambda: says("<1>")) == 0
    assert "bad on any of the 3 input samples in " in dialogue.seen
    look = re.search(r"To look at one: bisect-trt (inspect data \S+ --show values)", dialogue.seen)
    assert look is not None
    words = look[1].split()
    assert Path(words[2]).name == "inputs-2.npz"
    shown = cli(*words)
    assert (shown.status, "x: float32 [2, 3]" in shown.out) == (0, True)
