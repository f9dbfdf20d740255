"""The part of the terminal that changes while a search runs; what is said scrolls by above it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import IO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from bisect_trt.probing.journal import Record
from bisect_trt.probing.watcher import Ahead, Watcher
from bisect_trt.reporting.console import STYLES
from bisect_trt.reporting.html.markup import plural, seconds
from bisect_trt.reporting.markdown import plain

_LAST = 3
"""How many verdicts are shown."""
_PACE = 16
"""Over how many of the last probes the time for one is averaged."""
_NARROW = 60
"""Columns under which a line's parts may take two lines."""
_LONG = 60
"""From so many seconds on the time of the end is shown too."""
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

    wants_estimates = True

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
        self._ahead: Ahead | None = None
        self._best: str | None = None
        self._probes = 0
        self._decided: float | None = None
        self._pace: deque[float] = deque(maxlen=_PACE)
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
            best = [] if self._best is None else [f"best so far: {self._best}"]
            self._console.print(Text(plain(", ".join([*self.status(), *best])), "dim"))
            yield

    def started(self, key: str, title: str) -> None:
        """A probe runs from now on."""
        now = time.monotonic()
        self._fresh.add(key)
        self._running[key] = (title, now)
        if self._decided is None:
            self._decided = now

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

    def estimated(self, ahead: Ahead | None) -> None:
        """What lies ahead of the search; the best stays on the screen when it has ended."""
        self._ahead = ahead
        if ahead is not None:
            self._best = ahead.best

    def probed(self, record: Record) -> None:
        """A verdict was taken in; what an earlier session of the run learned says nothing of how fast it goes."""
        self._probes = record.number
        self._last.append(record)
        if self._ahead is not None:  # until the search has looked ahead again
            self._ahead = replace(self._ahead, left=max(self._ahead.left - 1, 0))
        if record.key in self._fresh and self._decided is not None:
            now = time.monotonic()
            self._pace.append(now - self._decided)
            self._spent.append(record.seconds + record.own_seconds)
            self._decided = now

    def status(self) -> list[str]:
        """How far the search is, in a few parts."""
        parts, ahead = [f"{plural(self._probes, 'probe')} done"], self._ahead  # read once: the search goes on meanwhile
        if ahead is not None and ahead.left > 0:
            parts.append(f"{'more than' if ahead.capped else 'about'} {ahead.left} to go")
        if self._spent:
            parts.append(f"{seconds(sum(self._spent) / len(self._spent))} each")
            left = self.seconds_left()
            parts += [] if left is None else [_in_words(left)]
        return parts

    def seconds_left(self) -> float | None:
        """About how long the search still takes, from the pace of its last verdicts; never negative."""
        ahead = self._ahead
        if ahead is None or ahead.left == 0 or not self._pace or self._decided is None:
            return None
        expected = ahead.left * sum(self._pace) / len(self._pace)
        return max(expected - (time.monotonic() - self._decided), 0.0)

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """The lines, none of them wider than the terminal."""
        # The last column stays free: some terminals wrap as soon as it is written to.
        width = max(options.max_width - 1, 1)
        yield from (_crop(line, width) for line in self._head(width))
        ahead = self._ahead
        if ahead is not None:
            whole = self._probes + ahead.left
            yield ProgressBar(total=max(whole, 1), completed=self._probes, width=min(width, 60))
            yield Text()
        yield from (_crop(line, width) for line in self._tail(width))

    def _head(self, width: int) -> Iterator[Text]:
        took = seconds(time.monotonic() - self._began, whole=True)
        yield Text(f"{took}  {self._title}", "bold")
        if self.stopping:
            yield Text("stopping: the best so far is being saved (Ctrl-C again: at once)", "yellow")
        yield from _pack(self.status() if self._probes or self._running else [], width)

    def _tail(self, width: int) -> Iterator[Text]:
        if self._best is not None:
            among = 0 if (ahead := self._ahead) is None else ahead.among
            yield from _pack([f"best so far: {self._best}", *([f"next one among {among}"] if among > 1 else [])], width)
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


def _in_words(left: float) -> str:
    """How long it still takes, and when that is."""
    if left < 1:
        return "under 1 s left"
    end = datetime.now() + timedelta(seconds=left)
    clock = f" ({end:%H:%M})" if left >= _LONG else ""
    return f"about {seconds(left, whole=True)} left{clock}"


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
