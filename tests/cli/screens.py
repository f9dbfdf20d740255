"""A command line on a terminal whose screen can be looked at."""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path

import pyte

SECONDS = 240
# A session of its own whose terminal this is, so that Ctrl-C arrives; preexec_fn is not for programs with threads.
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

    def __init__(self, folder: Path, *argv: str, columns: int = 80, rows: int = 40, **variables: str) -> None:
        self._master, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-c", FOREGROUND, sys.executable, "-m", "bisect_trt", *argv]
        kept = {name: value for name, value in os.environ.items() if name not in _DECIDES}
        environment = {**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **variables}
        self.process = subprocess.Popen(command, cwd=folder, stdin=child, stdout=child, stderr=child, env=environment)
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
                yield os.read(self._master, 1 << 16) if select.select([self._master], [], [], 0.1)[0] else b""
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

    def __init__(self, folder: Path, *argv: str, columns: int = 80, rows: int = 40, **variables: str) -> None:
        super().__init__(folder, *argv, columns=columns, rows=rows, **variables)
        self.raw = b""
        self.screens: list[list[str]] = []
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._stream = pyte.ByteStream(self._screen)

    def watch(self) -> Iterator[list[str]]:
        """Each screen as it comes, until the command ends."""
        for data in filter(None, self.pieces()):
            self.raw += data
            for piece in re.split(rb"(?=\r\x1b\[2K)", data):  # what is shown until it is drawn anew, however much came
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
        above = ["".join(line[place].data for place in columns).rstrip() for line in self._screen.history.top]
        return "\n".join([*above, *self.visible()])
