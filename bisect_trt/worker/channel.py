"""Messages between two processes: over the pipes of a worker, and over the pipes of a command that runs one in a place.

A message is a JSON header and raw bytes: ``>IQ`` (their lengths), the header, the bytes. The module
is part of the zip application that is sent to places, and imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Sequence
from typing import Any

from bisect_trt.aliases import Fields, Plain

Buffer = Any
"""Bytes, a bytearray or a memoryview of bytes."""
Message = tuple[Fields, bytearray]
"""Its header and its payload."""
LAST = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP)
"""Exit statuses of a process in a place after which the place ends: the driver is gone, or a
message may be cut short."""
RESUME = b"\nbisect-trt resumes 9f2c51d0a7e84b36b1d4\n"
"""The mark that the driver sends after a crash, before its next message; no message ends with it."""
_HEAD = struct.Struct(">IQ")
_CHUNK = 1 << 20


class Closed(Exception):  # noqa: N818 - the end of a conversation
    """The other side is gone."""


class ConnectionLost(Exception):  # noqa: N818 - says nothing of the model
    """The connection to a place is gone, or was never there."""


class ProcessDied(Exception):  # noqa: N818 - as above
    """The process that runs models in a place has ended, by this exit status, or minus the signal's number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def send(fd: int, header: Plain, payload: Sequence[Buffer] = ()) -> None:
    """Write a message; the payload is written piece by piece.

    Raises:
        Closed: The other side does not read any more.
    """
    text = json.dumps(header).encode()
    for piece in (_HEAD.pack(len(text), sum(map(len, payload))) + text, *payload):
        write_all(fd, piece)


def write_all(fd: int, content: Buffer) -> None:
    """Write all bytes to a file descriptor.

    Raises:
        Closed: The other side does not read any more.
    """
    remaining = memoryview(content).cast("B")
    while len(remaining):
        try:
            remaining = remaining[os.write(fd, remaining[:_CHUNK]) :]
        except OSError as error:
            raise Closed(str(error)) from error


def discard(fd: int) -> None:
    """Read all bytes up to :data:`RESUME`; the writer sends nothing more until it is answered.

    A process that crashes may have read a whole message, the beginning of one, or nothing.

    Raises:
        Closed: The other side is gone.
    """
    tail = b""
    while tail != RESUME:
        try:
            content = os.read(fd, _CHUNK)
        except OSError as error:
            raise Closed(str(error)) from error
        if not content:
            raise Closed("the end of the pipe")
        tail = (tail + content)[-len(RESUME) :]


def receive(fd: int, wait: Callable[[], object] = bool) -> Message:
    """Read a message; ``wait`` is called before each piece, and returns when there is one.

    Raises:
        Closed: It is missing or incomplete.
    """
    length, size = _HEAD.unpack(_read_exactly(fd, _HEAD.size, wait))
    header: Fields = json.loads(bytes(_read_exactly(fd, length, wait)))
    return header, _read_exactly(fd, size, wait)


def _read_exactly(fd: int, size: int, wait: Callable[[], object]) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    done = 0
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
