"""The lines at the bottom of a terminal that change while a search runs; what is printed scrolls by above them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderResult
from rich.control import Control
from rich.live import Live
from rich.text import Text

from bisect_trt.probe.ledger import Record, Watcher
from bisect_trt.report.text import VERDICT_STYLES, plain, plural, seconds
from bisect_trt.search.oracle import Verdict

_LAST = 3
"""Number of verdicts that are shown."""
_REFRESHES = 4
"""Per second."""


def open_screen(*, stderr: bool = False) -> RichConsole:
    """Return a terminal on which lines are not broken, and names are no markup: ``:word:`` is never an emoji."""
    return RichConsole(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)


def is_live(screen: RichConsole) -> bool:
    """Return whether lines can be overwritten: a real terminal, whatever ``FORCE_COLOR`` says, and not a dumb one."""
    return screen.is_interactive and screen.file.isatty()


class LiveView(Watcher):
    """Shows the step, the progress, the running probes and the last verdicts.

    Attributes:
        stopping: Whether the user has asked to stop.
    """

    def __init__(self, screen: RichConsole) -> None:
        """Show nothing until a step begins."""
        self.stopping = False
        self._screen = screen
        # One thread at a time lays out and writes. Rich locks the two apart: a print between the layout of another thread's
        # view and its writing removes as many lines as that view will have, not as it has, and what stood above is lost.
        self._turn = threading.RLock()
        self._live: Live | None = None
        self._hidden = threading.Event()
        self._title = ""
        self._began = time.monotonic()
        self._running: dict[str, tuple[str, float]] = {}
        self._wasted = 0
        self._flaky = ""
        self._best: Record | None = None
        self._last: deque[Record] = deque(maxlen=_LAST)

    def step(self, title: str) -> None:
        """Begin a step."""
        self._title, self._began = title, time.monotonic()
        if self._live is None:
            self._show()

    def _show(self) -> None:
        live = Live(console=self._screen, get_renderable=lambda: self, auto_refresh=False, transient=True)
        self._hidden = threading.Event()
        with self._turn:
            live.start()
            self._live = live
        threading.Thread(target=self._redraw, args=(self._hidden,), name="view", daemon=True).start()

    def _redraw(self, hidden: threading.Event) -> None:
        """Redraw until hidden; rich's own thread would take locks in another order."""
        while not hidden.wait(1 / _REFRESHES):
            self.refresh()

    def refresh(self) -> None:
        """Draw the lines as they are now."""
        with self._turn:
            if self._live is not None:
                self._live.refresh()

    def print(self, text: Text) -> None:
        """Print a line above the view."""
        with self._turn:
            self._screen.print(text)

    def close(self) -> None:
        """Remove the view from the terminal."""
        self._hidden.set()
        with self._turn:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def abandon(self) -> None:
        """Show the cursor again at the end of the process, without any lock."""
        if self._live is not None:
            os.write(self._screen.file.fileno(), f"\n{Control.show_cursor(True)}".encode())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to others for a while."""
        shown = self._live is not None
        self.close()
        try:
            yield
        finally:
            if shown:
                self._show()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Leave the terminal to a prompt; the progress stays in sight."""
        with self.paused():
            self._screen.print(Text(plain(self._progress()), "dim"))
            yield

    def started(self, key: str, title: str) -> None:
        """Show a probe as running."""
        self._running[key] = (title, time.monotonic())

    def ended(self, key: str) -> None:
        """Show a probe as running no longer."""
        self._running.pop(key, None)

    def wasted(self, number: int) -> None:
        """Count parallel probes that were ended because their answers are not needed."""
        self._wasted += number

    def measured(self, failures: int, runs: int, passes_needed: int) -> None:
        """Show how often the original fails."""
        if failures < runs:
            self._flaky = f"fails in {failures / runs:.0%} of {runs} runs, so a pass is {passes_needed} in a row"

    def probed(self, record: Record) -> None:
        """Show a verdict."""
        self._last.append(record)
        if record.verdict is Verdict.FAIL and (self._best is None or record.size <= self._best.size):
            self._best = record

    def _progress(self) -> str:
        done = f"{plural(self._last[-1].number if self._last else 0, 'probe')} done"
        return done if self._best is None else f"{done}, best so far: {self._best.title}"

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """Render the lines, cropped to the terminal; its last column stays free, because some terminals wrap there."""
        width = max(options.max_width - 1, 1)
        lines = [Text(plain(text), style, no_wrap=True, overflow="ellipsis") for text, style in self._lines()]
        yield from console.render(Group(*lines), options.update(width=width, no_wrap=True, overflow="ellipsis"))

    def _lines(self) -> Iterator[tuple[str, str]]:
        now = time.monotonic()
        yield f"{seconds(now - self._began, whole=True)}  {self._title}", "bold"
        if self.stopping:
            yield "stopping: the best so far is being saved (Ctrl-C again: at once)", "yellow"
        if self._last or self._running:
            yield self._progress(), ""
        if self._flaky:
            yield self._flaky, ""
        running = [f"{title} ({seconds(now - since, whole=True)})" for title, since in tuple(self._running.values())]
        if running or self._wasted:
            wasted = f", {self._wasted} wasted" if self._wasted else ""
            yield f"{len(running)} running{wasted}: {', '.join(running)}".removesuffix(": "), ""
        for record in tuple(self._last):
            yield (
                f"#{record.number} {record.verdict.value} {record.title}: {record.reason}",
                VERDICT_STYLES[record.verdict],
            )
