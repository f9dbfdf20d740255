"""What the live view shows of whatever it is told."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from unittest import mock

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from support import examples

from bisect_trt.probe.ledger import Record
from bisect_trt.report import console
from bisect_trt.report.live import LiveView
from bisect_trt.report.text import plain
from bisect_trt.search.oracle import Verdict

TEXTS = st.text(st.characters(codec="utf-8"), max_size=80)
"""Anything a model, a check or a path may be called, wide and control characters too."""


def record(number: int, key: str, verdict: Verdict, title: str, reason: str, seconds: float) -> Record:
    return Record(number, key, title, 3, verdict, "exit 1", reason, "", seconds, 0.0, 1)


@st.composite
def views(draw: st.DrawFn) -> LiveView:
    """After a search that got this far."""
    view = LiveView(Console(file=io.StringIO(), force_terminal=True))
    view._title = draw(TEXTS)  # a step would start the threads of a real terminal
    view.stopping = draw(st.booleans())
    if draw(st.booleans()):
        view.measured(draw(st.integers(1, 9)), 10, draw(st.integers(1, 1000)))
    for number in range(1, draw(st.integers(0, 6)) + 1):
        key = str(number)
        if draw(st.booleans()):
            view.started(key, draw(TEXTS))
        if draw(st.booleans()):
            view.ended(key)
            view.probed(
                record(number, key, draw(st.sampled_from(Verdict)), draw(TEXTS), draw(TEXTS), draw(st.floats(0, 1e6)))
            )
    view.wasted(draw(st.integers(0, 50)))
    return view


@settings(max_examples=examples(60))
@given(views(), st.integers(1, 240))
def test_it_is_twelve_lines_at_most_and_no_wider_than_the_terminal(view: LiveView, columns: int) -> None:
    file = io.StringIO()
    Console(file=file, width=columns, force_terminal=True, color_system=None, soft_wrap=True).print(view)
    lines = file.getvalue().removesuffix("\n").split("\n")
    assert len(lines) <= 12
    assert all(cell_len(line) <= max(columns - 1, 1) for line in lines), lines
    assert "\x1b" not in file.getvalue()


class Emulator(io.StringIO):
    """A terminal that keeps what scrolled by."""

    def __init__(self) -> None:
        super().__init__()
        self._screen = pyte.HistoryScreen(80, 25, history=10_000, ratio=1)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))
        return len(text)

    def lines(self) -> list[str]:
        above = ["".join(line[place].data for place in range(80)) for line in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display]).rstrip().split("\n")


def test_no_line_is_lost_to_a_thread_that_draws_the_view() -> None:
    """Of views that grow and shrink while lines are printed above them; the threads take turns as often as they can."""
    terminal, often = Emulator(), sys.getswitchinterval()
    view, done = LiveView(Console(file=terminal, force_terminal=True)), threading.Event()

    def draw() -> None:
        while not done.is_set():
            view.refresh()  # as the view's own thread does, but without a pause

    texts = [f"line {number}" for number in range(300)]
    drawing = threading.Thread(target=draw)
    sys.setswitchinterval(1e-6)
    try:
        view.step("step")
        drawing.start()
        for number, text in enumerate(texts):
            view.measured(number % 2, 1, 1)
            view.wasted(1 if number == 30 else 0)
            view._last.clear()
            for key in range(number % 4):
                view.probed(record(key, str(key), Verdict.PASS, "", "", 0))
            view.print(Text(text))
    finally:
        done.set()
        drawing.join()
        view.close()
        sys.setswitchinterval(often)
    assert terminal.lines() == texts


@given(st.lists(TEXTS | st.sampled_from([":bug:", "[bold]x[/bold]", "\\[x]", "a " * 100]), max_size=4))
def test_a_terminal_and_a_file_are_told_the_same(texts: list[str]) -> None:
    """A name is what it is, whatever rich would make of it."""
    written = []
    for forced in ("", "1"):
        out = io.StringIO()
        variables = {"FORCE_COLOR": forced, "TTY_COMPATIBLE": ""}
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), mock.patch.dict(os.environ, variables):
            told = console.Console()
            for text in texts:
                for say in (told.say, told.step, told.answer, told.warn, told.error):
                    say(text)
        written.append(re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()))
    plainly, by_rich = ([line.rstrip() for line in each.split("\n")] for each in written)
    assert plainly == by_rich  # but for blanks at a line's end, which older releases of rich leave out
    assert written[0].split("\n")[:-1:5] == [plain(text) for text in texts]
