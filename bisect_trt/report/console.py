"""Output while a command works: on the terminal, into the log file, as log records of the library, or in a notebook.

Names in a model are not trusted. Everything is printed line by line with unprintable characters escaped, so that no name
colours a terminal, changes the direction of text, or adds a line.
"""

from __future__ import annotations

import contextlib
import html
import logging
import os
import sys
import time
import uuid
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from bisect_trt.probe.ledger import Record, Watcher
from bisect_trt.report.text import VERDICT_STYLES, clean, plain, plural
from bisect_trt.search.oracle import Verdict

if TYPE_CHECKING:
    from bisect_trt.report.live import LiveView

Item = TypeVar("Item")
Part = str | tuple[str, str]
"""A text, or a text with its style as rich names it."""
IN_JSON = " (--json lists them)"
_OTHERWISE = "if that is not your failure, say what is with --fail-regex or --fail-code"
_LOGGER = logging.getLogger("bisect_trt")
_LOGGER.addHandler(logging.NullHandler())  # otherwise logging prints warnings where no handler is configured
_MOST_LINES = 400
"""Lines of the story that the report shows."""


@dataclass
class Story:
    """Steps and answers of a command, for the report.

    Attributes:
        steps: ``title``, number of ``probes`` before it, and ``lines``, in order; the title is empty before the first step.
        answers: The lines of the answer.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    probes: int = 0

    def step(self, title: str) -> None:
        """Begin a step."""
        self.steps.append({"title": title, "probes": self.probes, "lines": []})

    def say(self, text: str) -> None:
        """Add a line to the current step."""
        if sum(len(step["lines"]) for step in self.steps) < _MOST_LINES:
            if not self.steps:
                self.step("")
            self.steps[-1]["lines"].append(text.removeprefix("  ").rstrip())

    def answer(self, text: str) -> None:
        """Add a line to the answer; an indented line belongs to the line before."""
        self.answers.append(text.rstrip() if self.answers else text.strip())

    def why(self, number: int) -> str:
        """Return the title of the step that a probe was made in."""
        return next((step["title"] for step in reversed(self.steps) if step["probes"] < number), "")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"steps": self.steps, "answers": self.answers}


class Console(Watcher):
    """Prints plain lines off a terminal, coloured ones on it above a live view; ``NO_COLOR`` is honoured.

    Attributes:
        verbosity: -1 prints the answer only, 0 decisions and probes, 1 reasons too.
        story: What was said, printed or not.
        view: The live view; ``None`` off a terminal, on a dumb one, and where only the answer is printed.
    """

    def __init__(self, verbosity: int = 0, *, live: bool = False) -> None:
        """Open nothing yet.

        Args:
            verbosity: The number of ``-v`` minus that of ``-q``.
            live: Whether to show a live view on a terminal that supports it; call :meth:`close` then.
        """
        self.verbosity = verbosity
        self.story = Story()
        self._kinds: set[str] = set()
        self._failed = False
        self.view: LiveView | None = None
        if live and verbosity >= 0 and not _is_plain(sys.stdout):
            from bisect_trt.report.live import LiveView, is_live, open_screen  # noqa: PLC0415 - rich is slow to import

            screen = open_screen()
            self.view = LiveView(screen) if is_live(screen) else None

    def close(self) -> None:
        """Remove the live view."""
        if self.view is not None:
            self.view.close()

    def stopping(self) -> None:
        """Show that the user has asked to stop; safe in a signal handler."""
        if self.view is not None:
            self.view.stopping = True

    def abandon(self) -> None:
        """Restore the terminal at the end of the process; safe in a signal handler."""
        if self.view is not None:
            self.view.abandon()

    def note(self, text: str) -> None:
        """Take all that is said, printed or not; a console of Python logs it."""

    def step(self, text: str) -> None:
        """Begin a step."""
        self.story.step(text)
        text = plain(text)
        self.note(text)
        if self.view is not None:
            self.view.step(text)
        if self.verbosity >= 0:
            self._print((text, "bold"))

    def say(self, text: str) -> None:
        """Print a decision with its reason."""
        self.story.say(text)
        text = plain(text)
        self.note(text)
        if self.verbosity >= 0:
            self._print(text)

    def answer(self, text: str) -> None:
        """Print a line of the answer, at any verbosity."""
        self.story.answer(text)
        text = plain(text)
        self.note(text)
        self._print(text)

    def say_first(self, items: Sequence[Item], most: int, line: Callable[[Item], str], rest: str = "") -> None:
        """Say the first of many; see :func:`listed`."""
        for text in listed(items, most, line, rest):
            self.say(text)

    def answer_first(self, items: Sequence[Item], most: int, line: Callable[[Item], str], rest: str = "") -> None:
        """Print the first of many as part of the answer; see :func:`listed`."""
        for text in listed(items, most, line, rest):
            self.answer(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], most: int) -> None:
        """The result as a table: the first rows, their columns below each other, and how many more there are."""
        cells = [[plain(str(cell)) for cell in row] for row in (columns, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells[: most + 1], strict=True)]
        for row in cells[: most + 1]:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.answer(f"  {'  '.join(padded)}".rstrip())
        if len(rows) > most:
            self.answer(f"  ... and {len(rows) - most} more{IN_JSON}")

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        self._complain("warning:", "yellow", plain(text))

    def error(self, text: str, code: str = "") -> None:
        """Print on stderr why the run ends."""
        self._complain(f"error[{code}]:" if code else "error:", "bold red", plain(text))

    def _complain(self, kind: str, style: str, text: str) -> None:
        self.note(f"{kind} {text}")
        with contextlib.nullcontext() if self.view is None else self.view.paused():
            self._print((kind, style), f" {text}", stderr=True)

    def probed(self, record: Record) -> None:
        """Print a probe; its reason only where it is the first of its kind, or with ``-v``."""
        self.story.probes = record.number
        first, failed = record.signature not in self._kinds, record.verdict is Verdict.FAIL
        fresh = record.verdict is Verdict.UNRESOLVED and first
        explained = record.number == 1 or fresh or (failed and not self._failed) or self.verbosity > 0
        self._failed |= failed
        self._kinds.add(record.signature)
        tail = [f"    | {plain(line.expandtabs())}" for line in record.tail.splitlines()] if fresh else []
        if failed and first and record.said:
            tail = [f'  the check said: "{plain(record.said)}"; {_OTHERWISE}']
        before, verdict = f"  probe {record.number:<3} ", f"{record.verdict.value:10}"
        after, reason = f" {record.seconds:6.2f} s  {plain(record.title)}", f"  {plain(record.reason)}"
        self.note("\n".join([f"{before}{verdict}{after}{reason}", *tail]))
        if self.verbosity >= 0:
            self._print(before, (verdict, VERDICT_STYLES[record.verdict]), after + (reason if explained else ""))
            for line in tail:
                self._print(line)

    def _print(self, *parts: Part, stderr: bool = False) -> None:
        """Print one line: with rich on a terminal, else as it is."""
        stream: TextIO | None = sys.stderr if stderr else sys.stdout
        if not _is_plain(stream):
            from rich.text import Text  # noqa: PLC0415 - as above

            from bisect_trt.report.live import open_screen  # noqa: PLC0415 - as above

            text = Text.assemble(*parts)
            if self.view is not None and not stderr:
                self.view.print(text)
            else:
                open_screen(stderr=stderr).print(text)
        else:
            texts = (part if isinstance(part, str) else part[0] for part in parts)
            print(*texts, sep="", file=stream, flush=True)


def _is_plain(stream: TextIO | None) -> bool:
    """Return whether a stream, ``None`` if it is closed, is neither a terminal nor treated as one by rich."""
    terminal = stream is not None and stream.isatty()
    return not (terminal or os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1")


def listed(items: Sequence[Item], most: int, line: Callable[[Item], str], rest: str = "") -> Iterator[str]:
    """Yield a line for each of the first items, then one with the number of the others and ``rest``."""
    text = ""
    for item in items[:most]:
        text = line(item)
        yield text
    if len(items) > most:
        yield f"{' ' * (len(text) - len(text.lstrip(' ')))}... and {len(items) - most} more{rest}"


def is_interactive() -> bool:
    """Return whether a user can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_page(address: str) -> bool:
    """Open an address in the user's browser; return whether there is a display to show it on."""
    # On Linux without a display it would be a browser in this terminal.
    if sys.platform != "darwin" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        return False
    return webbrowser.open(address)


class QuietConsole(Console):
    """Logs to the logger ``bisect_trt``: warnings and errors as such, everything else as information."""

    def __init__(self) -> None:
        super().__init__(-1)

    def note(self, text: str) -> None:
        """Log a line."""
        _LOGGER.info(text)

    def answer(self, text: str) -> None:
        """Log a line of the answer."""
        self.story.answer(text)
        self.note(plain(text))

    def warn(self, text: str) -> None:
        """Log a warning."""
        _LOGGER.warning(plain(text))

    def error(self, text: str, code: str = "") -> None:  # noqa: ARG002 - a log has no use for it
        """Log why the run ends."""
        _LOGGER.error(plain(text))


Show = Callable[[dict[str, str], bool], None]
"""Shows one thing in several forms, by MIME type; the second time and later it replaces the first."""
_EVERY_S = 0.2
"""A search can make hundreds of probes a second, and each message goes through the kernel to a browser."""


def notebook() -> Show | None:
    """Return a function that shows something in the notebook that this runs in; ``None`` outside of notebooks."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):  # a terminal's shell has none
        return None
    from IPython.display import display, update_display  # noqa: PLC0415 - only where it is there

    name = f"bisect-trt-{uuid.uuid4().hex}"

    def show(bundle: dict[str, str], again: bool) -> None:
        (update_display if again else display)(bundle, raw=True, display_id=name)

    return show


class NotebookConsole(QuietConsole):
    """Logs, and shows the step and the last probe in one cell's output."""

    def __init__(self, command: str, show: Show) -> None:
        """Show nothing yet.

        Args:
            command: The command that runs.
            show: See :func:`notebook`.
        """
        super().__init__()
        self._command, self._show = command, show
        self._began, self._last, self._shown = time.monotonic(), 0.0, False
        self._step = ""

    def step(self, text: str) -> None:
        """Show a step."""
        super().step(text)
        self._step = text
        self._update("runs", text)

    def probed(self, record: Record) -> None:
        """Show a probe, not more often than a browser can take."""
        super().probed(record)
        if time.monotonic() - self._last >= _EVERY_S:
            self._update("runs", self._step, f"{record.verdict.value} {record.title}")

    def close(self) -> None:
        """Show the number of probes and the time."""
        super().close()
        self._update("ended")

    def _update(self, state: str, *lines: str) -> None:
        self._last = time.monotonic()
        probes = f"{plural(self.story.probes, 'probe')}, " if self.story.probes else ""
        head = f"bisect-trt {self._command} {state}: {probes}{self._last - self._began:.1f} s"
        shown = [clean(line) for line in (head, *lines) if line]
        rows = "".join(f"<div>{html.escape(line)}</div>" for line in shown)
        page = f'<div style="font-family:monospace;white-space:pre-wrap">{rows}</div>'
        self._show({"text/plain": "\n".join(shown), "text/html": page}, self._shown)
        self._shown = True
