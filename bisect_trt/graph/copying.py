"""Copies of large files and of parts of them: blocks are shared where the file system can, holes stay holes."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, sharing its blocks where the file system can, and leaving its holes holes.

    It is there under its name when all of it is. A hard link would do for runtimes, but ONNX's loader refuses a file that has
    two names, so after it the user's own model could not be loaded any more.

    Raises:
        OSError: It cannot be read or written; where there is no room, nothing is begun.
    """
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    temporary = target.with_name(f".{target.name}.new")
    try:
        with source.open("rb") as reader, temporary.open("wb") as writer:
            if not shares_blocks(reader, writer):
                check_room(target.parent, os.fstat(reader.fileno()).st_blocks * 512, source.name)
                copy_range(reader, 0, os.fstat(reader.fileno()).st_size, writer)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


_CLONE = 0x40049409
"""``FICLONE``, ioctl_ficlone(2): the file gets the other's blocks, on Btrfs, XFS and others."""


def check_room(folder: Path, needed: int, what: str) -> None:
    """Make sure that there is room for so many bytes in a folder.

    Raises:
        OSError: There is not.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        takes = f"{what} takes {needed >> 20} MiB of disk where {free >> 20} MiB are free"
        raise OSError(errno.ENOSPC, takes, str(folder))


def shares_blocks(reader: BinaryIO, writer: BinaryIO) -> bool:
    """Give a file that is still empty all blocks of another; whether the file system can."""
    if sys.platform != "linux":
        return False
    import fcntl  # noqa: PLC0415 - Windows has none

    try:
        fcntl.ioctl(writer.fileno(), _CLONE, reader.fileno())
    except OSError:
        return False
    return True


_CHUNK = 16 << 20
_BLOCK = 4096
"""File systems share whole blocks of so many bytes."""


def copy_range(reader: BinaryIO, start: int, length: int, writer: BinaryIO) -> None:
    """Copy bytes of a file to the place where another one stands, a piece at a time; its holes become holes.

    Blocks that begin in both at a multiple of 4096 bytes are shared where the file system can; see copy_file_range(2).

    Args:
        reader: The file.
        start: The first byte.
        length: How many there are.
        writer: The other one; it stands behind them afterwards, and is at least so long.

    Raises:
        OSError: One cannot be read or written, or the first is shorter.
    """
    if os.fstat(reader.fileno()).st_size < start + length:
        raise OSError(errno.EIO, f"{reader.name} ends early")
    began, place = writer.tell(), start
    writer.flush()
    while place < start + length:
        data, hole = _next_data(reader, place, start + length)
        writer.seek(began + data - start)
        reader.seek(data)
        while data < hole:
            data += _copy_some(reader, data, hole - data, writer)
        place = hole
    writer.seek(began + length)
    writer.flush()
    if os.fstat(writer.fileno()).st_size < began + length:
        writer.truncate(began + length)


def _copy_some(reader: BinaryIO, start: int, length: int, writer: BinaryIO) -> int:
    """Copy at least one of some bytes, where both files stand; how many. Whole blocks by themselves, which may be shared."""
    ahead = -start % _BLOCK
    most = min(ahead or length - length % _BLOCK or length, length, _CHUNK)
    if hasattr(os, "copy_file_range"):
        writer.flush()
        to = writer.tell()
        try:
            copied = os.copy_file_range(reader.fileno(), writer.fileno(), most, start, to)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                raise
            copied = 0  # not between these two
        if copied:
            reader.seek(start + copied)
            writer.seek(to + copied)
            return copied
    chunk = reader.read(most)
    if not chunk:
        raise OSError(errno.EIO, f"{reader.name} ends early")
    writer.write(chunk)
    return len(chunk)


def data_bytes(reader: BinaryIO, start: int, length: int) -> int:
    """How many of some bytes of a file are no holes."""
    place, count = start, 0
    while place < start + length:
        data, place = _next_data(reader, place, start + length)
        count += place - data
    return count


def _next_data(reader: BinaryIO, place: int, end: int) -> tuple[int, int]:
    """Where the next bytes of a file that are no hole begin and end, between two places; lseek(2)."""
    if not hasattr(os, "SEEK_DATA"):
        return place, end
    try:
        data = os.lseek(reader.fileno(), place, os.SEEK_DATA)
        return min(data, end), min(os.lseek(reader.fileno(), data, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno == errno.ENXIO:  # there are none
            return end, end
        return place, end  # a file system that does not say
