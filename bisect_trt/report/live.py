"""The part of the terminal that changes while a search runs; what is said scrolls by above it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.text import Text

from bisect_trt.probe.journal import Record
from bisect_trt.probe.ledger import Watcher
from bisect_trt.report.console import STYLES
from bisect_trt.report.text import plain, plural, seconds
from bisect_trt.search.oracle import Verdict

_LAST = 3
"""How many verdicts are shown."""
_PACE = 16
"""Over how many of the last probes the time for one is averaged."""
_NARROW = 60
"""Columns under which a line's parts may take two lines."""
_MORE = "..."
_REFRESHES = 4
"""How often a second."""


def is_live(console: RichConsole) -> bool:
    """Whether lines can be written over: a real terminal, whatever ``FORCE_COLOR`` says, and none that is dumb."""
    return console.is_interactive and console.file.isatty()


class Screen(RichConsole):
    """A terminal that one thread at a time writes to, from where it begins to lay out what it prints until that is there.

    Rich locks the two apart: a print between the layout of another thread's view and its writing takes off as many lines as
    that view will have, not as it has, and what stood above is gone.
    """

    def __init__(
        self, *, file: IO[str] | None = None, stderr: bool = False, force_terminal: bool | None = None
    ) -> None:
        """Of ``file``, else of stdout or ``stderr``; names are a stranger's text, so no ``:word:`` of theirs is an emoji."""
        super().__init__(
            file=file, stderr=stderr, force_terminal=force_terminal, highlight=False, soft_wrap=True, emoji=False
        )
        self._turn = threading.RLock()

    def __enter__(self) -> Screen:
        """Wait for the other threads."""
        self._turn.acquire()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write, and let them."""
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._turn.release()


class LiveView(Watcher):
    """At most twelve lines: the step, how far it is, what runs, the best so far, the last verdicts.

    Attributes:
        stopping: Whether the user has asked to stop.
    """

    def __init__(self, console: Screen) -> None:
        """``console`` is that of a terminal; nothing is shown until a step begins."""
        self.stopping = False
        self._console = console
        self._live: Live | None = None
        self._hidden = threading.Event()
        self._title = ""
        self._began = time.monotonic()
        self._running: dict[str, tuple[str, float]] = {}
        self._fresh: set[str] = set()
        self._wasted = 0
        self._flaky = ""
        self._best: Record | None = None
        self._probes = 0
        self._spent: deque[float] = deque(maxlen=_PACE)
        self._last: deque[Record] = deque(maxlen=_LAST)

    def step(self, title: str) -> None:
        """A step begins."""
        self._title, self._began = title, time.monotonic()
        if self._live is None:
            self._show()

    def _show(self) -> None:
        live, self._hidden = (
            Live(console=self._console, get_renderable=lambda: self, auto_refresh=False, transient=True),
            threading.Event(),
        )
        with self._console:
            live.start()
        self._live = live
        threading.Thread(target=self._redraw, args=(live, self._hidden), name="view", daemon=True).start()

    def _redraw(self, live: Live, hidden: threading.Event) -> None:
        """Draw it anew until it is taken off; rich's own thread would take locks in another order."""
        while not hidden.wait(1 / _REFRESHES):
            with self._console:
                if not hidden.is_set():
                    live.refresh()

    def close(self) -> None:
        """Take it off the terminal."""
        if self._live is not None:
            with self._console:
                self._hidden.set()
                self._live.stop()
            self._live = None

    def abandon(self) -> None:
        """The process ends in this moment: give the terminal its cursor back, whoever holds which lock."""
        if self._live is not None:
            os.write(self._console.file.fileno(), f"\n{Control.show_cursor(True)}".encode())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Off the terminal for as long as somebody else uses it."""
        shown = self._live is not None
        self.close()
        try:
            yield
        finally:
            if shown:
                self._show()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Off the terminal for a prompt; how far the search is stays in sight."""
        with self.paused():
            best = [] if self._best is None else [f"best so far: {self._best.title}"]
            self._console.print(Text(plain(", ".join([*self.status(), *best])), "dim"))
            yield

    def started(self, key: str, title: str) -> None:
        """A probe runs from now on."""
        self._fresh.add(key)
        self._running[key] = (title, time.monotonic())

    def ended(self, key: str) -> None:
        """It does not any more."""
        self._running.pop(key, None)

    def wasted(self, number: int) -> None:
        """So many parallel probes were ended because nobody needed their answers."""
        self._wasted += number

    def measured(self, failures: int, runs: int, passes_needed: int) -> None:
        """How often the original fails."""
        if failures < runs:
            self._flaky = f"fails in {failures / runs:.0%} of {runs} runs, so a pass is {passes_needed} in a row"

    def probed(self, record: Record) -> None:
        """A verdict was taken in; what an earlier session of the run learned says nothing of how fast it goes."""
        self._probes = record.number
        self._last.append(record)
        if record.verdict is Verdict.FAIL and (self._best is None or record.size <= self._best.size):
            self._best = record
        if record.key in self._fresh:
            self._spent.append(record.seconds + record.own_seconds)

    def status(self) -> list[str]:
        """How far the search is, in a few parts."""
        parts = [f"{plural(self._probes, 'probe')} done"]
        if self._spent:
            parts.append(f"{seconds(sum(self._spent) / len(self._spent))} each")
        return parts

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """The lines, none of them wider than the terminal."""
        # The last column stays free: some terminals wrap as soon as it is written to.
        width = max(options.max_width - 1, 1)
        yield from (_crop(line, width) for line in self._head(width))
        yield from (_crop(line, width) for line in self._tail(width))

    def _head(self, width: int) -> Iterator[Text]:
        took = seconds(time.monotonic() - self._began, whole=True)
        yield Text(f"{took}  {self._title}", "bold")
        if self.stopping:
            yield Text("stopping: the best so far is being saved (Ctrl-C again: at once)", "yellow")
        yield from _pack(self.status() if self._probes or self._running else [], width)

    def _tail(self, width: int) -> Iterator[Text]:
        if self._best is not None:
            yield from _pack([f"best so far: {self._best.title}"], width)
        if self._flaky:
            yield Text(self._flaky)
        now = time.monotonic()
        probes = tuple(self._running.values())
        running = [f"{title} ({seconds(now - since, whole=True)})" for title, since in probes]
        if running or self._wasted:
            wasted = f", {self._wasted} wasted" if self._wasted else ""
            yield Text(f"{len(running)} running{wasted}: {', '.join(running)}".removesuffix(": "))
        for record in tuple(self._last):
            line = Text(f"#{record.number} ")
            line.append(record.verdict.value, STYLES[record.verdict])
            line.append(f" {record.title}: {record.reason}" if width >= _NARROW else f" {record.reason}")
            yield line


def _pack(parts: Iterable[str], width: int) -> Iterator[Text]:
    """Parts on one line, or on two where they do not fit on one."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}, {part}" if lines[-1] else part
        if len(longer) <= width or not lines[-1] or len(lines) == 2:
            lines[-1] = longer
        else:
            lines.append(part)
    yield from (Text(line) for line in lines if line)


def _crop(line: Text, width: int) -> Text:
    """A line of at most so many columns; names and reasons may hold anything."""
    line.plain = "".join(sign if sign.isprintable() else " " for sign in line.plain)
    if line.cell_len > width:
        line.truncate(max(width - len(_MORE), 0))
        line.append(_MORE[:width])
    line.no_wrap, line.overflow = True, "crop"
    return line
