"""A command line on a terminal whose screen can be looked at."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest
from support import (
    TARGET,
    assert_gone,
    bisect_trt,
    chain,
    has,
    node_names,
    overflowing,
    pids,
    read_json,
    rest_slow,
    script,
)

SECONDS = 240


# A session of its own whose terminal this is, so that Ctrl-C arrives; preexec_fn is not for
# programs with threads.
FOREGROUND = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_DECIDES = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class Program:
    """A command line on a pseudo-terminal of some size.

    Attributes:
        process: The command line.
    """

    def __init__(
        self, folder: Path, *argv: str, columns: int = 80, rows: int = 40, **variables: str
    ) -> None:
        self._master, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-c", FOREGROUND, sys.executable, "-m", "bisect_trt", *argv]
        kept = {name: value for name, value in os.environ.items() if name not in _DECIDES}
        environment = {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **variables}
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=child, stdout=child, stderr=child, env=environment
        )
        os.close(child)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def pieces(self) -> Iterator[bytes]:
        """What it writes, as it comes, until it ends; maybe nothing yet."""
        deadline = time.monotonic() + SECONDS
        while True:
            assert time.monotonic() < deadline
            try:
                yield (
                    os.read(self._master, 1 << 16)
                    if select.select([self._master], [], [], 0.1)[0]
                    else b""
                )
            except OSError:  # what Linux makes of a terminal whose last user has gone
                return

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())


class Terminal(Program):
    """With an emulator that keeps what scrolled by.

    Attributes:
        raw: All bytes that it wrote.
        screens: What could be seen after each piece of them, empty lines at the end left out.
    """

    def __init__(
        self, folder: Path, *argv: str, columns: int = 80, rows: int = 40, **variables: str
    ) -> None:
        super().__init__(folder, *argv, columns=columns, rows=rows, **variables)
        self.raw = b""
        self.screens: list[list[str]] = []
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._stream = pyte.ByteStream(self._screen)

    def watch(self) -> Iterator[list[str]]:
        """Each screen as it comes, until the command ends."""
        for data in filter(None, self.pieces()):
            self.raw += data
            for piece in re.split(
                rb"(?=\r\x1b\[2K)", data
            ):  # what is shown until it is drawn anew, however much came
                self._stream.feed(piece)
                self.screens.append(self.visible())
                yield self.screens[-1]

    def wait(self) -> int:
        """Watch to the end; the exit status."""
        for _ in self.watch():
            pass
        return self.process.wait(SECONDS)

    @property
    def cursor_hidden(self) -> bool:
        return bool(self._screen.cursor.hidden)

    def visible(self) -> list[str]:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().split("\n")

    def text(self) -> str:
        """All lines, those too that have scrolled out of sight; a line that was wrapped is several."""
        columns = range(self._screen.columns)
        above = [
            "".join(line[place].data for place in columns).rstrip()
            for line in self._screen.history.top
        ]
        return "\n".join([*above, *self.visible()])


# The live view at a real terminal, plain lines off it, and the log file.


STEP = re.compile(r"^(\S+ )?\d+ s  ")
"""How the view begins: with the bar, and the time since the command began."""


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    """Ends the programs that a test starts."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def terminal(here: Path, closing: contextlib.ExitStack) -> Callable[..., Terminal]:
    """Starts a command line on a terminal."""
    return lambda *argv, **how: closing.enter_context(
        contextlib.closing(Terminal(here, *argv, **how))
    )


def search(here: Path, *options: str, wait: float = 0.1, first: str = ":") -> list[str]:
    """A search of 40 units for two, whose check does something first, and takes its time."""
    chain(here / "model.onnx", 40)
    check = script(here / "check", f"{first}; sleep {wait}; {has('<9>', '<29>')} && exit 1; exit 0")
    words = ["reduce", "model.onnx", "-o", "out.onnx", "--overwrite", "--no-shrink", *options]
    return [*words, "--check", check, "{model}"]


def view(screen: list[str]) -> list[str]:
    """The part of a screen that changes."""
    place = next((place for place, line in enumerate(screen) if STEP.match(line)), len(screen))
    return screen[place:]


def masked(text: str) -> str:
    """Without times, nor folders named by them: two of the same second are told apart by a number."""
    dated = re.sub(r"\d{8}-\d{6}", "date-time", re.sub(r"\d+(\.\d+)? s\b", "# s", text))
    return re.sub(r"(date-time-reduce-model)-\d+", r"\1", dated)


@pytest.mark.parametrize("columns", rest_slow([80, 40, 200]))
def test_what_is_seen_while_it_works_and_what_stays(
    terminal: Callable[..., Terminal], here: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    plain = bisect_trt(*search(here, wait=0), cwd=here, detailed=False)
    term = terminal(*search(here), columns=columns)
    assert term.wait() == 0, term.text()
    views = ["\n".join(view(screen)) for screen in term.screens]
    assert all(sum(map(bool, map(STEP.match, screen))) <= 1 for screen in term.screens), (
        "the view is there twice"
    )
    assert any(re.match("[\u2501\u2578\u257a]+ \\d+ s  ", seen) is not None for seen in views) is (
        columns >= 60
    )
    assert columns < 80 or any(
        re.search(r"\d of about 13 probes, about \d+ s left in this step\n", seen) for seen in views
    )
    if columns == 80:  # the page shows what is seen
        page = (
            Path(__file__)
            .parents[2]
            .joinpath("docs/live-view.md")
            .read_text()
            .partition("```text\n")[2]
            .partition("```")[0]
        )
        shapes = {re.sub(r"[\u2501\u2578\u257a]+|\d+", "#", seen).strip() for seen in views}
        assert re.sub(r"[\u2501\u2578\u257a]+|\d+", "#", page).strip() in shapes
    assert not term.cursor_hidden
    assert len(plain.out.splitlines()) <= 25
    assert not re.search(r"[^\n\x20-\x7e]|probe 1 ", plain.out + plain.err)
    # What stays is what is printed off a terminal.
    text = "\n".join(
        line[start : start + columns].rstrip()
        for line in plain.out.splitlines()
        for start in range(0, max(len(line), 1), columns)
    )
    assert masked(term.text()).splitlines() == masked(text).splitlines()


@pytest.mark.parametrize("level", rest_slow(["-vv", "-v", "-q"]))
def test_no_control_codes_off_a_terminal(
    here: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    ran = bisect_trt(*search(here, level, wait=0), cwd=here, detailed=False).ended(0)
    written = ran.out + ran.err
    assert not re.search(r"[^\n\x20-\x7e]", written)
    assert ("probe 1 " in written) == ("of 40 nodes  exit status 0" in written) == (level != "-q")


def test_forced_colours_off_a_terminal_move_no_cursor(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ran = bisect_trt(*search(here, wait=0), cwd=here)
    assert "\x1b[31mFAIL" in ran.out
    assert set(re.findall(r"\x1b\[[\d;?]*([A-Za-z])", ran.out)) == {"m"}


def test_prompts_have_the_terminal_for_themselves(
    terminal: Callable[..., Terminal], here: Path
) -> None:
    chain(here / "model.onnx", 6)
    term = terminal("reduce", "model.onnx", "-o", "out.onnx", "--no-shrink", columns=100)
    answered = 0
    for screen in term.watch():
        asked = term.text().count("[good/bad/skip/undo/quit]")
        if asked > answered and screen[-1].endswith("[good/bad/skip/undo/quit]"):
            answered += 1
            assert not view(screen)
            assert not term.cursor_hidden
            term.type("bad\n" if "<3>" in node_names(here / "bisect_trt_debug.onnx") else "good\n")
    assert term.process.wait() == 0
    assert node_names(here / "out.onnx") == ["<3>"]
    text = term.text().replace("\n", "")
    assert "Question 1: the original model (6 nodes), which has to be bad." in text
    assert re.search(r"Question 3, about 5 left if one node fails alone: \d of 6 nodes", text)
    assert re.search(r"Answered so far: 1 bad, 2 \w+, 3 \w+.*Best so far: \d of 6 nodes", text)
    assert f"Is {here}/bisect_trt_debug.onnx good or bad?" in text


STUBBORN = "echo $$ >> pids; trap '' TERM; sleep 300 & echo $! >> pids; while :; do wait; done"
"""Does not end when asked to."""


def stubborn(here: Path) -> list[str]:
    chain(here / "model.onnx", 40)
    whole = has(*(f"<{place}>" for place in range(40)))
    check = script(here / "check", f"{whole} && exit 1; {STUBBORN}")
    return ["reduce", "model.onnx", "-o", "out.onnx", "--workers", "1", "--check", check, "{model}"]


def test_ctrl_c_once_ends_cleanly(terminal: Callable[..., Terminal], here: Path) -> None:
    term = terminal(*stubborn(here))
    typed = False
    for _ in term.watch():
        if not typed and len(pids(here)) == 2:
            term.type("\x03")
            typed = True
    assert term.process.wait() == 130
    assert any(
        "stopping: the best so far is being saved (Ctrl-C again: at once)" in screen
        for screen in term.screens
    )
    assert re.search(
        r"Result +stopped by the user.*Next +bisect-trt resume \.bisect-trt/",
        term.text().replace("\n", ""),
    )
    assert not view(term.visible())
    assert not term.cursor_hidden
    assert_gone(pids(here))


PATIENT = "from bisect_trt.worker import process; process.GRACE_SECONDS = 600.0"
"""Gives a check longer to end by itself than this test waits."""


def test_ctrl_c_twice_ends_at_once(terminal: Callable[..., Terminal], here: Path) -> None:
    (here / "sitecustomize.py").write_text(PATIENT)
    term = terminal(*stubborn(here), PYTHONPATH=str(here))
    typed = 0
    for screen in term.watch():
        if not typed and len(pids(here)) == 2:
            term.type("\x03")
            typed = 1
        elif typed == 1 and any("stopping" in line for line in screen):
            term.type("\x03")
            typed = 2
    assert term.process.wait() == 130
    assert typed == 2
    assert "stopped at once; to continue: bisect-trt resume" in term.text().replace("\n", "")
    assert "Traceback" not in term.text()
    assert not term.cursor_hidden
    assert_gone(pids(here))


PLAIN = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale that has no more than ASCII."""
COMMANDS = {
    "reduce": (["-o", "out.onnx"], 60, {}),
    "sweep": (["--shapes", "x:[{2,3},3]"], 60, {"TERM": "dumb", **PLAIN}),
    "diagnose": (["-o", "out"], 40, PLAIN),
    "precision": (["-o", "out.onnx", "--fresh-samples", "0"], 80, {"NO_COLOR": "1"}),
    "repeat": (["-n", "2"], 200, {"TERM": "dumb"}),
    "run": ([], 40, {"TERM": "dumb"}),
}


@pytest.mark.parametrize(
    "command", rest_slow(["sweep", *(name for name in COMMANDS if name != "sweep")])
)
def test_every_command_keeps_to_its_terminal(
    terminal: Callable[..., Terminal], here: Path, command: str
) -> None:
    """Each on another one: narrow, wide, dumb, without colours, without UTF-8."""
    options, columns, variables = COMMANDS[command]
    overflowing(here / "model.onnx")
    term = terminal(command, "model.onnx", *TARGET, *options, columns=columns, **variables)
    assert term.wait() == (1 if command == "run" else 0), term.text()
    assert "Traceback" not in term.text()
    if "TERM" in variables:
        assert not re.search(rb"[^\r\n\x20-\x7e]", term.raw)
    if "LC_ALL" in variables:
        assert term.raw.isascii()
    if "NO_COLOR" in variables:
        assert not re.search(rb"\x1b\[(\d+;)*[349]\d(;\d+)*m", term.raw)
    # A line of the view that was wrapped would push the view's first line up, and leave it there.
    assert all(sum(map(bool, map(STEP.match, screen))) <= 1 for screen in term.screens)
    assert not term.cursor_hidden


# The user as the check, at a real terminal.


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
def start(here: Path, closing: contextlib.ExitStack) -> Callable[..., Dialogue]:
    """Starts a command line on a terminal, on a chain of six."""
    chain(here / "model.onnx", 6)
    return lambda: closing.enter_context(contextlib.closing(Dialogue(here, *REDUCE)))


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
        form = next(forms)
        word = says("<3>")
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

    assert start().converse(reply) == 3  # what was skipped shows nothing
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
    assert "Took back probe 3 (" in dialogue.seen
    # Three answers, three times undo: the questions come again, back to the original.
    assert (asked[5], asked[6], asked[7]) == (asked[3], asked[2], asked[0])
    assert node_names(Path("out.onnx")) == ["<4>"]


@pytest.mark.parametrize("way", ["quit", "end of input", "interrupt"])
def test_leaving_saves_the_best_so_far(start: Callable[..., Dialogue], way: str) -> None:
    asked = 0
    dialogue = start()
    while dialogue.prompted():
        asked += 1
        # Python's input() shows its prompt a moment before Ctrl-C can end it: what comes that early
        # waits for the line.
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
