"""A conversation with a place, from the worker process here that stands for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bisect_trt.errors import UnavailableError
from bisect_trt.probing.places.bundle import FIRST_LINE, OLDEST, READY, start
from bisect_trt.probing.places.place import Place
from bisect_trt.probing.places.sent import wire

ALIVE_SECONDS, SILENCE_SECONDS = 3.0, 30.0
"""How often both sides say that they are there, and how long one may be silent before it is taken for gone."""
START_SECONDS = 120.0
"""How long a command may take to start an interpreter."""
TIDY_SECONDS = 1.0
"""How long a place may take to end by itself, and take its files away, once nothing more is asked there."""
_FILE_PART = 8 << 20
_LINES = 3


class PlaceLost(Exception):  # noqa: N818 - an ending, not an error of ours
    """The connection is gone, or nothing is heard: that says nothing of what was asked."""


class ProcessDied(Exception):  # noqa: N818 - as above
    """The process that runs models has ended in the place.

    Attributes:
        code: Its exit status, or minus the signal's number.
        over_memory: Whether it was ended because it held more than it may.
        log: The last of what it printed.
    """

    def __init__(self, code: int, log: str, *, over_memory: bool) -> None:
        super().__init__(code)
        self.code = code
        self.log = log
        self.over_memory = over_memory


@dataclass(frozen=True)
class Answered:
    """What came back.

    Attributes:
        header: The plain part.
        payload: What followed it.
    """

    header: Mapping[str, Any]
    payload: bytearray


class Connection:
    """Starts a place's command, sends what has to run there, and asks.

    Attributes:
        place: The place.
        memory: What the process there last said of memory, in bytes: ``host``, ``peak``, ``gpu``.
        printed: What was printed there since this was last taken.
    """

    def __init__(
        self, place: Place, *, session: str, memory_limit: int | None = None, program: bytes | None = None
    ) -> None:
        """It is started when it is first asked.

        Args:
            place: The place.
            session: Names the driver, so that its workers on one host share files there.
            memory_limit: Bytes that the process there may hold.
            program: What is sent to start there, where the modules that it is made of are not at hand; see :attr:`program`.
        """
        self.place = place
        self.memory: Mapping[str, int] = {}
        self.printed = ""
        self._options = {
            "session": session,
            "memory_limit": memory_limit,
            "alive": ALIVE_SECONDS,
            "silence": SILENCE_SECONDS,
        }
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._errors: IO[bytes] | None = None
        self._in = self._out = -1
        self._heard = 0.0
        self._data = bytearray()
        self._number = 0
        self._begins = self._ends = False
        self._wake = self._waker = -1
        self._files: set[str] = set()

    @property
    def program(self) -> bytes:
        """What is sent to an interpreter there, to start what passes questions on."""
        return self._program or start(self._options)

    def ask(self, what: str, header: Mapping[str, Any] | None = None, payload: Sequence[Any] = ()) -> Answered:
        """Ask the process there.

        Raises:
            PlaceLost: The place does not answer.
            ProcessDied: The process has ended; the next question goes to a new one.
            UnavailableError: The place's Python is too old.
        """
        if self._process is None:
            self._connect()
        try:
            self._number += 1
            self._begins = True
            wire.send(self._send, {"ask": what, **(header or {}), "number": self._number}, payload)
            known: Mapping[str, Any] = {}
            while known.get("number") != self._number:  # one that was asked when the process before died answers late
                known, content = wire.receive(self._take)
        except wire.Closed as error:
            raise PlaceLost(self._lost(str(error))) from error
        self.memory = known.get("memory", self.memory)
        self.printed += known.get("log", "")
        return Answered(known, content)

    def give_up(self) -> None:
        """Nobody waits for the answer any more: end the process there, and keep the connection. Called by a signal."""
        if self._waker >= 0:
            os.write(self._waker, b"x")

    def wanted(self) -> None:
        """Something new is asked."""
        while self._wake >= 0 and select.select([self._wake], [], [], 0)[0]:
            os.read(self._wake, 1 << 10)

    def has(self, files: Mapping[str, Any]) -> None:
        """Make sure that files are there: their content, or the path of it, by SHA-256; each goes over once.

        Raises:
            PlaceLost: As :meth:`ask`; and ProcessDied.
        """
        wanted = [name for name in files if name not in self._files]
        if not wanted:
            return
        for name in self.ask("lacks", {"hashes": wanted}).header["lacks"]:
            content = files[name]
            if isinstance(content, (bytes, memoryview)):
                self._put(name, memoryview(content), 0, last=True)
                continue
            with Path(content).open("rb") as file:
                offset, size = 0, os.fstat(file.fileno()).st_size
                while offset < size or not size:
                    part = file.read(_FILE_PART)
                    self._put(name, memoryview(part), offset, last=offset + len(part) >= size)
                    offset += len(part)
                    if not size:
                        break
        self._files.update(wanted)

    def _put(self, name: str, part: memoryview, offset: int, *, last: bool) -> None:
        self.ask("put", {"hash": name, "offset": offset, "last": last}, [part])

    def _connect(self) -> None:
        """Start the place's command, and what is sent in it."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the connection
        self._wake, self._waker = os.pipe()
        try:
            self._process = subprocess.Popen(
                self.place.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        except OSError as error:
            self.close()
            raise UnavailableError(
                f"the place {self.place.said} cannot be started: {self.place.argv[0]}: {error.strerror}."
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        try:
            if self.place.typed:
                with contextlib.suppress(wire.Closed):  # why is seen at the end of what it says
                    wire.write_all(self._in, FIRST_LINE.encode() + b"\n")
            version = self._first_words()
            if version < OLDEST:
                self.close()
                raise UnavailableError(
                    f"the place {self.place.said} has Python {'.'.join(map(str, version))}, and a worker needs "
                    f"{'.'.join(map(str, OLDEST))} or later there; name another interpreter."
                )
            wire.write_all(self._in, self.program)
        except wire.Closed as error:
            raise PlaceLost(self._lost(str(error))) from error
        self._heard = time.monotonic()
        self._over, self._ends = threading.Event(), False
        threading.Thread(target=self._say_alive, args=(self._over,), daemon=True).start()

    def _first_words(self) -> tuple[int, ...]:
        """The version of the Python there; whatever a host prints before that is left out."""
        seen, deadline = b"", time.monotonic() + START_SECONDS
        while True:
            ready, _, _ = select.select([self._out], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise wire.Closed(
                    f"no Python has begun after {START_SECONDS:.0f} s; the command has to end in an interpreter that reads "
                    "its standard input, as in: python3 -"
                )
            byte = os.read(self._out, 1)  # no more, what follows is the supervisor's
            if not byte:
                raise wire.Closed("it ended before a Python began")
            seen += byte
            if byte == b"\n" and READY in seen:
                words = seen.rpartition(READY)[2].split(b".")
                return tuple(int(word) for word in words)

    def _send(self, content: Any) -> None:  # noqa: ANN401 - any buffer
        view = memoryview(content).cast("B") if not isinstance(content, bytes) else memoryview(content)
        for start_at in range(0, len(view), wire.MOST):
            piece = view[start_at : start_at + wire.MOST]
            with self._writing:
                wire.write_all(self._in, wire.CHUNK.pack(wire.BEGIN if self._begins else wire.DATA, len(piece)))
                wire.write_all(self._in, piece)
            self._begins = False

    def _say_alive(self, over: threading.Event) -> None:
        """Give signs of life until the connection ends: between questions too, and while an answer is worked on here."""
        while not over.wait(ALIVE_SECONDS):
            with self._writing:
                if over.is_set():
                    return
                # A place that does not read is not waited for: it is given up by whoever asks.
                if select.select([], [self._in], [], 0)[1]:
                    with contextlib.suppress(wire.Closed):  # the next question finds out
                        wire.write_all(self._in, wire.CHUNK.pack(wire.ALIVE, 0))

    def _take(self, size: int) -> bytearray:
        """The next bytes of data; signs of life are taken in meanwhile.

        Once the process there is to end they are not: its death would else be taken for that of who is asked next.
        """
        while self._ends or len(self._data) < size:
            ready, _, _ = select.select([self._out, self._wake], [], [], ALIVE_SECONDS / 2)
            if self._wake in ready:
                os.read(self._wake, 1 << 10)
                self._ends = True
                with self._writing:
                    wire.write_all(self._in, wire.CHUNK.pack(wire.END, 0))
            if self._out not in ready:
                if time.monotonic() - self._heard > SILENCE_SECONDS:
                    raise wire.Closed(f"nothing was heard for {SILENCE_SECONDS:.0f} s")
                continue
            kind, length = wire.CHUNK.unpack(bytes(wire.read_exactly(self._out, wire.CHUNK.size)))
            content = wire.read_exactly(self._out, length)
            self._heard = time.monotonic()
            if kind == wire.DATA:
                self._data += content
            elif kind == wire.DIED:
                self._data.clear()
                report = json.loads(bytes(content))
                self.printed += report["log"]
                if self._ends and not report["ended"]:  # of the one before, which had died by itself
                    continue
                self._ends = False
                raise ProcessDied(report["code"], report["log"], over_memory=report["over_memory"])
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _lost(self, why: str) -> str:
        """What is known of a place that does not answer."""
        self._end()
        lines: list[str] = []
        if self._errors is not None:
            self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - 4096, 0))
            lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        self.close()
        said = " / ".join([line for line in lines if line and not line.startswith(">>>")][-_LINES:])
        return f"the place {self.place.said} is lost: {why}" + (f" (it says: {said})" if said else "")

    def close(self) -> None:
        """End the command, and what runs there ends with it."""
        self._end()
        for fd in (self._wake, self._waker):
            if fd >= 0:
                os.close(fd)
        self._wake = self._waker = -1
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with self._writing:  # nothing is written to a descriptor that may be another file's by then
            self._over.set()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(TIDY_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
