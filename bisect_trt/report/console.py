"""Output while a command works: a live line, lines with ``-v``, or log records of the library.

Names in a model are not trusted. Everything is printed line by line with unprintable characters
escaped, so that no name colours a terminal, changes the direction of text, or adds a line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, TextIO

from bisect_trt.probe.candidate import Identity
from bisect_trt.probe.ledger import Record, Watcher
from bisect_trt.report.parts import StepLines, Story
from bisect_trt.report.result import Result
from bisect_trt.report.summary import summary_lines
from bisect_trt.report.text import VERDICT_STYLES, plain, plural, seconds
from bisect_trt.search.oracle import Verdict
from bisect_trt.worker.process import Turn, gate

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.live import Live

Part = str | tuple[str, str]
"""A text, or a text with its style as rich names it."""
IN_JSON = " (--json lists them)"
NOTHING_TO_UNDO = "There is nothing to take back."
_OTHERWISE = "if that is not your failure, describe your failure with --fail-regex or --fail-code"
_LOGGER = logging.getLogger("bisect_trt")
# Otherwise logging prints warnings where no handler is configured.
_LOGGER.addHandler(logging.NullHandler())
_SHOWN_ANSWERS = 8
_MOST_LINES = 400
"""The number of lines that the report shows."""
HEARTBEAT_S = 10.0
"""Time between two lines of progress where there is no terminal."""
_FIRST = 2
"""Probes of a step after which the time left is shown; they start processes."""
_RECENT = 8
"""The time left follows from the mean time of so many probes."""
_BAR = 12
"""Columns of the bar of the live line; a terminal of less than five times as many has none."""
LONG_S = 5.0
"""The work of a process is shown once it takes so long."""
_REFRESHES = 4
"""Updates of the live line per second."""


def open_screen(*, stderr: bool = False) -> RichConsole:
    """Return a terminal on which lines are not broken, and names are no markup: ``:word:`` is never an emoji."""
    from rich.console import Console as Screen  # noqa: PLC0415 - rich is slow to import

    return Screen(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)


def expected_probes(units: int) -> int:
    """Return about how many probes a search takes down to one failing unit, with the proof."""
    return 2 * units.bit_length() + 1


def in_notebook() -> bool:
    """Return whether this is the process of a notebook: a script may import its packages too."""
    package = sys.modules.get("IPython")
    shell = None if package is None else package.get_ipython()
    return hasattr(shell, "kernel")


class ProgressLine:
    """Some lines on stderr while a command works; in a notebook a display, elsewhere a line every ten seconds."""

    def __init__(self, *, enabled: bool = True) -> None:
        """Show nothing until a step begins."""
        self.enabled = enabled
        self.stopping = False
        self.place = ""
        self.title = ""
        self.piece = ""
        self.probes = 0
        self.run = 0
        self.runs = 1
        self.best = ""
        self.expected = 0
        self.before = 0
        self._ends = deque[float](maxlen=_RECENT)
        self._about = ""
        self._units = 0
        self._smallest = 0
        self._passing = ""
        self._began = time.monotonic()
        self._live: Live | None = None
        self._ended = threading.Event()
        self._beats: threading.Thread | None = None
        self._shown = False

    def step(self, title: str, units: int | None = None) -> None:
        """Begin a step; one that searches ``units`` has an expected number of probes."""
        self.title = f"{title}{self.place}"
        self.piece = ""
        self.expect(units)
        self._smallest = units or 0
        if not self._shown:
            self.show()

    def expect(self, units: int | None, limit: int | None = None, passing: str = "") -> None:
        """Expect the probes of a search from here on.

        Args:
            units: The number of units that are searched.
            limit: The number of probes, if they are fewer or alone known.
            passing: The units of a search for the fewest that pass, in words. Without, the probes are only counted: a
                search over switches or releases has no best so far.
        """
        searched = None if units is None else expected_probes(units)
        self.expected = min(filter(None, (searched, limit)), default=0)
        self._about = "about " if units else ""
        self._units = units or 0
        self._smallest = self._units if passing else 0
        self._passing = passing
        self.before = self.probes
        self._ends.clear()

    def probed(self, record: Record) -> None:
        """Count a probe."""
        self.probes = record.number
        self._ends.append(time.monotonic())
        # An answer may be taken back.
        self.before = min(self.before, record.number - 1)
        self.run = 0
        if self.probes - self.before > self.expected:
            # How many more nodes there are is not known.
            self.expected = 0
        wanted = record.passes if self._passing else record.fails
        if wanted and record.size < self._smallest:
            self._smallest = record.size
            words = f"{self._passing} pass" if self._passing else "nodes fail"
            self.best = f"{record.size} of {self._units} {words}"

    def text(self) -> str:
        """Return the lines as one."""
        return ", ".join(self.lines())

    def lines(self) -> list[str]:
        """Return the time with the probes, the step with the nodes that are probed, and the best so far."""
        if self.stopping:
            return ["stopping: the best so far is being saved (Ctrl-C again: at once)"]
        elapsed = seconds(time.monotonic() - self._began, whole=True)
        head = f"{elapsed}  {', '.join(filter(None, self.parts()))}".rstrip()
        best = f"best so far: {self.best}" if self.best else ""
        return [plain(line) for line in (head, self.title + self.piece, best) if line]

    def parts(self) -> Iterator[str]:
        """Yield the number of probes, about how many the search takes and how long, and the longest work."""
        probes = self.probes - self.before
        # Runs of a repeated probe count as parts of it, or the time left would jump.
        done = probes + max(self.run - 1, 0) / self.runs
        if self.expected:
            yield f"{probes} of {self._about}{plural(self.expected, 'probe')}"
            ends = [*self._ends]
            if len(ends) > _FIRST and done < self.expected:
                remaining = (ends[-1] - ends[0]) / (len(ends) - 1) * (self.expected - done)
                # Other steps follow.
                yield f"about {seconds(remaining, whole=True)} left in this step"
        elif self.probes:
            yield plural(self.probes, "probe")
        yield f"run {self.run} of {self.runs}" if self.run and self.runs > 1 else ""
        turn = min([*gate.turns], key=attrgetter("since"), default=Turn())
        worked = time.monotonic() - turn.since
        if worked < LONG_S:
            return
        runs = f" {turn.run} of {turn.runs}" if turn.runs else ""
        yield f"{turn.work}{runs} for {seconds(worked, whole=True)}"
        if turn.run > 1:
            remaining = worked / (turn.run - 1) * (turn.runs - turn.run + 1)
            yield f"the rest in about {seconds(remaining, whole=True)}"

    def show(self) -> None:
        """Show the lines until :meth:`hide`."""
        if not self.enabled:
            return
        self._shown = True
        screen = open_screen(stderr=True) if is_terminal(sys.stderr) else None
        if screen is not None and screen.is_interactive:
            from rich.live import Live  # noqa: PLC0415 - as above

            rows = partial(self._rows, screen)
            # A terminal gets lines that change; a log gets one now and then.
            self._live = Live(
                console=screen, get_renderable=rows, refresh_per_second=_REFRESHES, transient=True
            )
            self._live.start()
        else:
            self._ended = threading.Event()
            self._beats = threading.Thread(
                target=self._beat, args=(self._ended,), name="progress", daemon=True
            )
            self._beats.start()

    def _rows(self, screen: RichConsole) -> RenderableType:
        """Return the bar and the lines; the bar moves to and fro where the number of probes is unknown.

        They are narrower than the terminal: some wrap at the last column, and ``^C`` is echoed behind
        a line.
        """
        from rich.console import Group  # noqa: PLC0415 - as above
        from rich.constrain import Constrain  # noqa: PLC0415 - as above
        from rich.progress_bar import ProgressBar  # noqa: PLC0415 - as above
        from rich.table import Table  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        code = screen.encoding
        # The terminal may not have the characters of the model's names.
        lines = [line.encode(code, "backslashreplace").decode(code) for line in self.lines()]
        rows: list[RenderableType] = [
            Text(line, "yellow" if self.stopping else "", no_wrap=False, overflow="fold")
            for line in lines
        ]
        if not self.stopping and screen.width >= 5 * _BAR:
            row = Table.grid(padding=(0, 1, 0, 0))
            row.add_row(
                ProgressBar(self.expected or None, self.probes - self.before, _BAR), rows[0]
            )
            rows[0] = row
        return Constrain(Group(*rows), max(screen.width - 3, 1))

    def _beat(self, ended: threading.Event) -> None:
        """Show the lines until the end: in a notebook in one display, which is empty in the end."""
        if not in_notebook():
            while not ended.wait(HEARTBEAT_S):
                print(self.text(), file=sys.stderr, flush=True)
            return
        display = import_module("IPython.display").display({}, raw=True, display_id=True)
        while not ended.wait(1 / _REFRESHES):
            display.update({"text/plain": "\n".join(self.lines())}, raw=True)
        display.update({"text/plain": ""}, raw=True)

    def hide(self) -> None:
        """Remove the lines."""
        self._shown = False
        self._ended.set()
        if self._beats is not None:
            # The heartbeat may be writing a line.
            self._beats.join(timeout=1)
            self._beats = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to other output."""
        shown = self._shown
        self.hide()
        try:
            yield
        finally:
            if shown:
                self.show()

    def abandon(self) -> None:
        """Show the cursor again at the end of the process, without any lock: safe in a signal handler."""
        if self._live is not None:
            os.write(self._live.console.file.fileno(), b"\n\x1b[?25h")


class Console(Watcher):
    """Prints plain lines off a terminal, coloured ones on it; ``NO_COLOR`` is honoured.

    Attributes:
        verbosity: 0 prints the summary of the result, 1 each step, decision and probe as well, -1
            no progress.
        steps: The steps for the report.
        answers: The lines of the answer.
        progress: The live line.
    """

    def __init__(self, verbosity: int = 0, *, live: bool = False) -> None:
        """Open nothing yet.

        Args:
            verbosity: The number of ``-v`` minus the number of ``-q``.
            live: Whether to show progress, and to keep the answer for :meth:`conclude`; call
                :meth:`close` then.
        """
        self.verbosity = verbosity
        self.steps: list[StepLines] = []
        self.answers: list[str] = []
        self._probes = 0
        self._kinds: set[str] = set()
        self._live = live
        self.progress = ProgressLine(enabled=live and verbosity == 0 and sys.stderr is not None)

    def close(self) -> None:
        """Remove the live line."""
        self.progress.hide()

    def stopping(self) -> None:
        """Show that the user has asked to stop; safe in a signal handler."""
        self.progress.stopping = True

    @contextlib.contextmanager
    def asking(self, candidate: Identity, answered: Sequence[Record]) -> Iterator[None]:
        """Leave the terminal to a prompt, below the question and the earlier answers."""
        with self.progress.paused():
            lines = _question(candidate, answered, self.progress.best)
            for line in lines if self.progress.enabled else ():
                self._print((plain(line), "dim"))
            yield

    def note(self, text: str) -> None:
        """Take every line, printed or not; a console of Python logs it."""

    def step(self, text: str, units: int | None = None) -> None:
        """Begin a step; one that searches ``units`` shows about how many probes that takes."""
        self.steps.append(StepLines(text, self._probes, []))
        self.progress.step(text, units)
        self.tell(text, self.verbosity > 0, "bold")

    def keep(self, text: str) -> None:
        """Keep a line of the current step for the report."""
        if sum(len(step.lines) for step in self.steps) < _MOST_LINES:
            if not self.steps:
                # Nothing has begun yet.
                self.steps.append(StepLines("", 0, []))
            self.steps[-1].lines.append(text.removeprefix("  ").rstrip())

    def say(self, text: str) -> None:
        """Report a decision with its reason."""
        self.keep(text)
        self.tell(text, self.verbosity > 0)

    def answer(self, text: str) -> None:
        """Report a line of the answer; an indented line belongs to the line before."""
        self.keep(text)
        self.answers.append(text.rstrip() if self.answers else text.strip())
        self.tell(text, self.verbosity > 0 or not self._live)

    def tell(self, text: str, shown: bool, style: str = "") -> None:
        """Log a line, and print it if it is ``shown``."""
        self.note(plain(text))
        if shown:
            self._print((plain(text), style))

    def story(self) -> Story:
        """Return the steps and the answer for the report."""
        return Story(self.steps, self.answers)

    def step_of(self, number: int) -> str:
        """Return the title of the step that a probe was made in."""
        return next((step.title for step in reversed(self.steps) if step.probes < number), "")

    def conclude(self, result: Result) -> None:
        """Print the summary of a result."""
        self.close()
        if self.verbosity > 0:
            self._print("")
        if not result.report:
            # The run has no folder.
            result.reported().story = self.story()
        for label, text in summary_lines(result):
            self._print((label, "bold"), plain(text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], limit: int) -> None:
        """Report a table as part of the answer: the first rows, and how many more there are.

        Args:
            columns: The headings.
            rows: The cells of each row, one a column.
            limit: How many rows are shown.
        """
        cells = [[plain(str(cell)) for cell in row] for row in (columns, *rows)]
        widths = [max(map(len, column)) for column in zip(*cells[: limit + 1], strict=True)]
        for row in cells[: limit + 1]:
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.answer(f"  {'  '.join(padded)}".rstrip())
        if len(rows) > limit:
            self.answer(f"  ... and {len(rows) - limit} more{IN_JSON}")

    def warn(self, text: str) -> None:
        """Print a warning on stderr."""
        self._complain("warning:", "yellow", plain(text))

    def error(self, text: str, code: str = "") -> None:
        """Print the reason for the end of the run on stderr."""
        self._complain(f"error[{code}]:" if code else "error:", "bold red", plain(text))

    def _complain(self, kind: str, style: str, text: str) -> None:
        self.note(f"{kind} {text}")
        with self.progress.paused():
            self._print((kind, style), f" {text}", stderr=True)

    def running(self, run: int, runs: int) -> None:
        """Show the run of a check that runs more than once."""
        self.progress.run = run
        self.progress.runs = runs

    def probed(self, record: Record) -> None:
        """Count a probe; print it with ``-v``."""
        self._probes = record.number
        self.progress.probed(record)
        # The output of a kind of failure is printed once; `log` has the rest.
        first = record.signature not in self._kinds
        failed = record.fails
        self._kinds.add(record.signature)
        tail = []
        if record.verdict is Verdict.UNRESOLVED and first:
            tail = [f"    | {plain(line.expandtabs())}" for line in record.tail.splitlines()]
        elif failed and first and record.said:
            tail = [f'  the check printed: "{plain(record.said)}"; {_OTHERWISE}']
        before = f"  probe {record.number:<3} "
        verdict = f"{record.verdict.value:10}"
        after = f" {record.seconds:6.2f} s  {plain(record.title)}  {plain(record.reason)}"
        self.note("\n".join([f"{before}{verdict}{after}", *tail]))
        if self.verbosity > 0:
            self._print(before, (verdict, VERDICT_STYLES[record.verdict]), after)
            for line in tail:
                self._print(line)

    def _print(self, *parts: Part, stderr: bool = False) -> None:
        """Print one line: with rich on a terminal, else without styles."""
        stream: TextIO | None = sys.stderr if stderr else sys.stdout
        if _is_plain(stream):
            texts = (part if isinstance(part, str) else part[0] for part in parts)
            print(*texts, sep="", file=stream, flush=True)
        else:
            from rich.text import Text  # noqa: PLC0415 - as above

            open_screen(stderr=stderr).print(Text.assemble(*parts))


def _question(candidate: Identity, answered: Sequence[Record], best: str) -> Iterator[str]:
    """Yield the lines above a prompt: the candidate, about how many questions are left, and the answers so far."""
    number = len(answered) + 1
    if not answered:
        yield f"Question 1: the original model ({plural(candidate.size, 'node')}), which has to be bad."
        return
    # A person answers each question, so the number left matters more than the time.
    remaining = max(expected_probes(answered[0].size) + 1 - number, 1)
    yield f"Question {number}, about {remaining} left if one node fails alone: {candidate.title}"
    verdicts = (f"{record.number} {record.signature}" for record in answered[-_SHOWN_ANSWERS:])
    yield f"Answered so far: {', '.join(verdicts)}"
    if best:
        yield f"Best so far: {best}"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream, ``None`` if it is closed, is a terminal."""
    return stream is not None and stream.isatty()


def _is_plain(stream: TextIO | None) -> bool:
    """Return whether a stream is neither a terminal nor treated as one by rich."""
    return not (
        is_terminal(stream)
        or os.environ.get("FORCE_COLOR")
        or os.environ.get("TTY_COMPATIBLE") == "1"
    )


def listed(texts: Sequence[str], limit: int, rest: str = "") -> list[str]:
    """Return the first texts, indented, then a line with the number of the others and ``rest``.

    Args:
        texts: The texts, a line each.
        limit: How many are shown.
        rest: What follows the number of the others.
    """
    hidden = len(texts) - limit
    lines = [f"  {text}" for text in texts[:limit]]
    return [*lines, f"  ... and {hidden} more{rest}"] if hidden > 0 else lines


def is_interactive() -> bool:
    """Return whether there is a terminal for a prompt."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class QuietConsole(Console):
    """Logs to the logger ``bisect_trt``; shows progress on a terminal and in a notebook.

    Warnings and errors are logged as such, everything else as information.
    """

    def __init__(self) -> None:
        shown = is_terminal(sys.stderr) or in_notebook()
        super().__init__(0 if shown else -1, live=True)

    def note(self, text: str) -> None:
        """Log a line."""
        _LOGGER.info(text)

    def warn(self, text: str) -> None:
        """Log a warning."""
        _LOGGER.warning(plain(text))

    def error(self, text: str, code: str = "") -> None:  # noqa: ARG002 - a log has no use for it
        """Log the reason for the end of the run."""
        _LOGGER.error(plain(text))
