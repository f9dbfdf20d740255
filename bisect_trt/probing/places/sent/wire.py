"""Messages between a driver and a place: a header of JSON, and behind it the bytes of arrays and files.

Two layers. Between the driver and the supervisor go chunks, each of a kind, so that a sign of life fits between two pieces of a
message. What the chunks of data hold, one after the other, are the messages that the process below the supervisor reads and
writes. To the supervisor the first chunk of a message is of a kind of its own: what follows one whose process has died is
none of the next process's.
"""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any, Callable, Mapping

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 2
"""Raised whenever one side would misread the other; what is sent is always of the driver's release, so it is for the log."""
CHUNK = struct.Struct(">cI")
BEGIN, DATA, ALIVE, DIED, END = b"B", b"D", b"A", b"X", b"K"
"""The first data of a message, to the supervisor; other data; a sign of life, either way; the process has ended (JSON says how);
end the process, nobody waits for it."""
MOST = 1 << 20
"""Bytes of a chunk, at most."""
_HEAD = struct.Struct(">IQ")
_ALIGNMENT = 64


class Closed(Exception):  # noqa: N818 - it is how a conversation ends
    """The other side is gone."""


def write_all(fd: int, content: Any) -> None:
    """Write bytes to a file descriptor, all of them.

    Raises:
        Closed: Nobody reads.
    """
    left = memoryview(content).cast("B") if not isinstance(content, bytes) else memoryview(content)
    while len(left):
        try:
            left = left[os.write(fd, left[: 1 << 20]) :]
        except OSError as error:
            raise Closed(str(error)) from error


def read_exactly(fd: int, size: int) -> bytearray:
    """Read so many bytes.

    Raises:
        Closed: There are fewer.
    """
    content = bytearray(size)
    view, done = memoryview(content), 0
    while done < size:
        try:
            count = os.readv(fd, [view[done : done + MOST]])
        except OSError as error:
            raise Closed(str(error)) from error
        if not count:
            raise Closed("the end of the pipe")
        done += count
    return content


def send(write: Callable[[Any], None], header: Mapping[str, Any], payload: Any = ()) -> None:
    """Write a message; ``payload`` is what follows the header, in pieces."""
    text = json.dumps(header).encode()
    write(_HEAD.pack(len(text), sum(len(piece) for piece in payload)) + text)
    for piece in payload:
        write(piece)


def receive(read: Callable[[int], bytearray]) -> tuple[dict[str, Any], bytearray]:
    """Read a message."""
    length, size = _HEAD.unpack(bytes(read(_HEAD.size)))
    header: dict[str, Any] = json.loads(bytes(read(length)))
    return header, read(size)


def pack(arrays: Mapping[str, NDArray[Any]]) -> tuple[list[Any], list[Any]]:
    """Arrays as what a header says of them and the bytes that follow it.

    Args:
        arrays: By name; of numbers, bools, ``ml_dtypes`` types or strings.

    Returns:
        For each array its name, type, shape and the place of its bytes, or its strings; and the bytes, in pieces.
    """
    import numpy as np

    from bisect_trt.tensors.info import is_extension, is_string, storage_dtype

    entries: list[Any] = []
    pieces: list[Any] = []
    offset = 0
    for name, value in arrays.items():
        array = np.asarray(value)
        shape = list(array.shape)
        if is_string(array.dtype):
            texts = [
                text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else str(text)
                for text in array.ravel()
            ]
            entries.append([name, "object", shape, texts])
            continue
        stored = storage_dtype(array.dtype)
        values = array.view(stored) if is_extension(array.dtype) else array.astype(stored, copy=False)
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        padding = -offset % _ALIGNMENT
        entries.append([name, array.dtype.name, shape, offset + padding])
        pieces += [bytes(padding), content]
        offset += padding + len(content)
    return entries, pieces


def unpack(entries: list[Any], payload: bytearray) -> dict[str, NDArray[Any]]:
    """What :func:`pack` packed; the arrays share the payload's memory and may be written to.

    Raises:
        UnavailableError: A type needs ``ml_dtypes``, which is not installed here.
    """
    import numpy as np

    from bisect_trt.tensors.info import dtype_from_name, is_extension, storage_dtype

    arrays: dict[str, NDArray[Any]] = {}
    for name, kind, shape, where in entries:
        if kind == "object":
            strings = np.empty(len(where), dtype=object)
            strings[:] = where
            arrays[name] = strings.reshape(shape)
            continue
        dtype = dtype_from_name(kind)
        count = 1
        for dim in shape:
            count *= dim
        stored = (
            np.frombuffer(payload, storage_dtype(dtype), count, where) if count else np.empty(0, storage_dtype(dtype))
        )
        arrays[name] = (stored.view(dtype) if is_extension(dtype) else stored).reshape(shape)
    return arrays
