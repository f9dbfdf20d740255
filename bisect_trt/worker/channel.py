"""Messages between two processes, and the channel to a worker in another interpreter, container or host.

A message is a JSON header and raw bytes: ``>IQ`` (their lengths), the header, the bytes. The same framing goes over the pipes of
a worker on this machine and over the standard input and output of a command such as ``ssh HOST python3 ...``.

The module imports the standard library alone: it is part of the zip application that is sent, and Ray pickles it by value.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

Buffer = Any
"""Bytes, a bytearray or a memoryview of bytes."""
Message = tuple[dict[str, Any], bytearray]
"""Its header and its payload."""
_HEAD = ">IQ"
"""The lengths of a header and a payload; a ``struct.Struct`` cannot be pickled by value."""
_CHUNK = 1 << 20
OLDEST = (3, 10)
"""The oldest Python that a worker runs on."""
GREETING = b"@bisect-trt-worker "
"""Printed first by the interpreter at the other end, followed by its version."""
FIRST_LINE = (
    'import os,sys;n=os.write(1,("\\n@bisect-trt-worker %d.%d.%d\\n"%sys.version_info[:3]).encode());'
    'f=os.fdopen(0,"rb",0);exec(eval(f.readline()))'
)
"""The program that an interpreter of any version is started with: one line, without single quotes, so that shells keep it."""
START_SECONDS = 120.0
"""How long a command may take to start an interpreter."""
TIDY_SECONDS = 1.0
"""How long the other end may take to remove its files after its input was closed."""
_LAST_WORDS_SECONDS = 5.0
_LINES = 3


class Closed(Exception):  # noqa: N818 - the end of a conversation
    """The other side is gone."""


class ChannelLost(Exception):  # noqa: N818 - says nothing of the model
    """The connection is gone, or was never there.

    Attributes:
        refused: Whether trying again would end the same way: there is no such command, or its Python is too old.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class ProcessDied(Exception):  # noqa: N818 - as above
    """The process that runs models in a place has ended.

    Attributes:
        code: Its exit status, or minus the signal's number.
        over_memory: Whether it was ended because it used more memory than allowed.
    """

    def __init__(self, code: int, over_memory: bool) -> None:
        super().__init__(code, over_memory)
        self.code, self.over_memory = code, over_memory


class RemoteError(Exception):
    """Something in the place fails in a way that no runtime does.

    Attributes:
        name: The type of the exception there.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def write_all(fd: int, content: Buffer) -> None:
    """Write all bytes to a file descriptor.

    Raises:
        Closed: Nobody reads.
    """
    left = memoryview(content).cast("B")
    while len(left):
        try:
            left = left[os.write(fd, left[:_CHUNK]) :]
        except OSError as error:
            raise Closed(str(error)) from error


def read_exactly(fd: int, size: int, wait: Callable[[], object] = bool) -> bytearray:
    """Read a number of bytes; ``wait`` is called before each piece, and returns when there is one.

    Raises:
        Closed: There are fewer.
    """
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        wait()
        try:
            count = os.readv(fd, [view[done : done + _CHUNK]])
        except OSError as error:
            raise Closed(str(error)) from error
        if not count:
            raise Closed("the end of the pipe")
        done += count
    return content


def send(fd: int, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> None:
    """Write a message; the payload is written piece by piece."""
    text = json.dumps(header).encode()
    write_all(fd, struct.pack(_HEAD, len(text), sum(map(len, payload))) + text)
    for piece in payload:
        write_all(fd, piece)


def receive(fd: int, wait: Callable[[], object] = bool) -> Message:
    """Read a message; for ``wait`` see :func:`read_exactly`."""
    length, size = struct.unpack(_HEAD, read_exactly(fd, struct.calcsize(_HEAD), wait))
    header: dict[str, Any] = json.loads(bytes(read_exactly(fd, length, wait)))
    return header, read_exactly(fd, size, wait)


class ProcessChannel:
    """Starts a command that ends in an interpreter, sends it a worker, and exchanges messages with that."""

    def __init__(self, title: str, argv: Sequence[str], program: bytes, *, typed: bool = False) -> None:
        """The command is started by the first message.

        Args:
            title: Names the place in messages.
            argv: The command; its standard input and output become those of the interpreter.
            program: What is written to the interpreter when it has run :data:`FIRST_LINE`.
            typed: Whether the interpreter reads :data:`FIRST_LINE` from its standard input (``python3 -i``).
        """
        self._title = title
        self._argv = list(argv)
        self._program = program
        self._typed = typed
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._in = self._out = -1

    def exchange(self, header: Mapping[str, Any], payload: Sequence[Buffer] = ()) -> Message:
        """Send a message and wait for the answer.

        Raises:
            ChannelLost: The other end does not answer; the next message starts the command again.
        """
        try:
            if self._process is None:
                self._start()
            send(self._in, header, payload)
            return receive(self._out)
        except Closed as error:
            raise self._ended(str(error)) from error

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
        try:
            # A session of its own: it outlives a worker that is killed for long enough to end what it has started.
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self.close()
            message = f"the place {self._title} cannot be started: {self._argv[0]}: {error.strerror}."
            raise ChannelLost(message, refused=True) from error
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin.fileno(), process.stdout.fileno()
        if self._typed:
            with contextlib.suppress(Closed):  # the reason is at the end of its output
                write_all(self._in, FIRST_LINE.encode() + b"\n")
        version = self._first_words()
        if version < OLDEST:
            self.close()
            raise ChannelLost(
                f"the place {self._title} has Python {'.'.join(map(str, version))}, and a worker needs "
                f"{'.'.join(map(str, OLDEST))} or later; name another interpreter.",
                refused=True,
            )
        write_all(self._in, self._program)

    def _first_words(self) -> tuple[int, ...]:
        """The version of the interpreter; what a host prints before it is skipped."""
        seen, deadline = b"", time.monotonic() + START_SECONDS
        while True:
            if not select.select([self._out], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise Closed(
                    f"no Python has begun after {START_SECONDS:.0f} s; the command has to end in an interpreter that reads "
                    "its standard input, as in: python3 -"
                )
            byte = os.read(self._out, 1)  # no more: the next bytes are a message
            if not byte:
                raise Closed("it ended before a Python began")
            seen += byte
            if byte == b"\n" and GREETING in seen:
                return tuple(int(word) for word in seen.rpartition(GREETING)[2].split(b"."))

    def _ended(self, why: str) -> ChannelLost:
        """Why there is no answer, with the last lines of what the other end wrote to stderr."""
        assert self._process is not None
        assert self._errors is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_SECONDS)
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read()[-4096:].decode(errors="replace").splitlines()]
        self.close()
        last = " / ".join([line for line in lines if line and not line.startswith(">>>")][-_LINES:])
        return ChannelLost(f"the place {self._title} is lost: {why}" + (f" (it says: {last})" if last else ""))

    def close(self) -> None:
        """End the command; the other end ends when its input is closed."""
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            try:
                process.wait(TIDY_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
