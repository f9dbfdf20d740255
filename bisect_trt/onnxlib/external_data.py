"""Weights that lie outside the model file, and copies of the files that hold them.

A search derives a hundred models from one. Where the weights are large they are stored once, in a file that every
candidate names, instead of inside each candidate. ONNX and ONNX Runtime both insist that this file lies in the model's
own folder and is no link, so such candidates share one folder. Copies share blocks where the file system can, and keep holes.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.nodes import all_nodes, bodies


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


_CHUNK = 16 << 20
ALIGNMENT = 4096
"""Weights begin at a multiple of it: file systems share whole blocks of so many bytes."""
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


def copy_range(reader: BinaryIO, start: int, length: int, writer: BinaryIO) -> None:
    """Copy bytes of a file to the position of another one; its holes become holes.

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
    shift = writer.tell() - start
    writer.flush()
    for data, end in _data_of(reader, start, start + length):
        at = data
        while at < end:
            ahead = -at % ALIGNMENT
            most = min(
                ahead or (end - at) - (end - at) % ALIGNMENT or end - at, end - at, _CHUNK
            )  # whole blocks by themselves
            at += _copy_some(reader, at, most, writer, at + shift)
    writer.seek(start + length + shift)
    if os.fstat(writer.fileno()).st_size < start + length + shift:
        writer.truncate(start + length + shift)


def _copy_some(reader: BinaryIO, start: int, length: int, writer: BinaryIO, to: int) -> int:
    """Copy at least one of some bytes; how many."""
    if hasattr(os, "copy_file_range"):
        try:
            if copied := os.copy_file_range(reader.fileno(), writer.fileno(), length, start, to):
                return copied
        except OSError as error:  # not between these two
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                raise
    chunk = os.pread(reader.fileno(), length, start)
    if not chunk:
        raise OSError(errno.EIO, f"{reader.name} ends early")
    return os.pwrite(writer.fileno(), chunk, to)


def data_bytes(reader: BinaryIO, start: int, length: int) -> int:
    """How many of some bytes of a file are no holes."""
    return sum(end - data for data, end in _data_of(reader, start, start + length))


def _data_of(reader: BinaryIO, place: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the bytes of a file that are no holes begin and end, between two places; lseek(2)."""
    if not hasattr(os, "SEEK_DATA"):
        yield place, end
        return
    while place < end:
        try:
            data = os.lseek(reader.fileno(), place, os.SEEK_DATA)
            hole = min(os.lseek(reader.fileno(), data, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno != errno.ENXIO:  # there is no more data; else a file system without holes
                yield place, end
            return
        if data < end:
            yield data, hole
        place = max(hole, data)


EMBED_LIMIT_BYTES = 64 << 20
"""Weights up to this much in all stay inside each candidate; past it they are shared."""
SHARED_TENSOR_BYTES = 1024
"""A tensor smaller than this is never moved out: it may be a shape that parsers want to see."""
WEIGHTS_FILE = "bisect_trt_weights.bin"
_FIELDS = {"float_data": "f4", "double_data": "f8", "int64_data": "i8", "uint64_data": "u8", "int32_data": "i4"}
"""The fields of a tensor that hold numbers one by one, with the type of these."""
_ELEMENT_BYTES: dict[int, int] = {
    **dict.fromkeys((TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT16, TensorProto.UINT16), 2),
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT32), 4),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64, TensorProto.COMPLEX64), 8),
    TensorProto.COMPLEX128: 16,
}
"""All others of fixed size take a byte, or share one."""
_ELEMENTS_IN_A_BYTE = {
    getattr(TensorProto, name): share
    for name, share in {"INT4": 2, "UINT4": 2, "FLOAT4E2M1": 2, "INT2": 4, "UINT2": 4}.items()
    if hasattr(TensorProto, name)  # newer than the oldest ONNX that will do
}


def model_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every weight of a model, initializers and the tensors in attributes, those in bodies and functions too."""
    yield from model.graph.initializer
    for node in all_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in bodies(node):
            yield from body.initializer


def external_files(model: onnx.ModelProto) -> dict[str, int]:
    """The files a model keeps weights in, each with the length in bytes that it needs to have.

    Raises:
        UnavailableError: A weight does not say which file, or not as numbers where in it.
    """
    files: dict[str, int] = {}
    for tensor in model_tensors(model):
        if uses_external_data(tensor):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            try:
                location = Path(entries["location"]).as_posix()
                place = [int(entries.get(key, 0)) for key in ("offset", "length")]
            except (KeyError, TypeError, ValueError) as error:
                raise _misplaced(tensor) from error
            if min(place) < 0 or location == "." or "\0" in location:
                raise _misplaced(tensor)
            files[location] = max(files.get(location, 0), sum(place))
    return files


def _misplaced(tensor: TensorProto) -> UnavailableError:
    return UnavailableError(
        f"the weight '{tensor.name}' lies outside the model, which does not say where; export the model again."
    )


@dataclass(frozen=True)
class Place:
    """Where in a file a weight lies; both in bytes.

    Attributes:
        location: The file, as the model names it.
        offset: The first byte.
        length: How many there are.
    """

    location: str
    offset: int
    length: int


def place_of(tensor: TensorProto) -> Place:
    """Where an external weight lies; one that does not say how long it is, is as long as its elements take."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length = int(entries.get("length", 0)) or stored_bytes(tensor)
    return Place(entries["location"], int(entries.get("offset", 0)), length)


def stored_bytes(tensor: TensorProto) -> int:
    """How many bytes the elements of a tensor take in a file, where those of 4 and 2 bits share one."""
    count = math.prod(int(dim) for dim in tensor.dims)
    share = _ELEMENTS_IN_A_BYTE.get(tensor.data_type)
    return tensor_bytes(tensor) if share is None else -(-count // share)


def has_external_data(model: onnx.ModelProto) -> bool:
    """Whether any weight lies outside the model file."""
    return any(uses_external_data(tensor) for tensor in model_tensors(model))


def folder_with(model: onnx.ModelProto, folders: Iterable[Path]) -> Path | None:
    """The first folder in which all files of a model's weights are."""
    files = external_files(model)
    return next((folder for folder in folders if all((folder / location).exists() for location in files)), None)


def share_weights(model: onnx.ModelProto, source: Path, folder: Path, weights: Path | None = None) -> None:
    """Put a large model's weights into ``folder`` once, and make ``model`` refer to them there.

    Models whose weights are small and inside are left as they are.

    Args:
        model: Changed in place.
        source: Where it was read from.
        folder: Where candidates will lie.
        weights: The folder with its external files, if that is not its own.

    Raises:
        UsageError: The weights cannot be copied.
    """
    try:
        taken = external_files(model)
        for location in taken:
            place = folder / location
            place.parent.mkdir(parents=True, exist_ok=True)
            copy_file((weights or source.parent) / location, place)
        embedded = [tensor for tensor in model.graph.initializer if inner_bytes(tensor) >= SHARED_TENSOR_BYTES]
        if sum(map(inner_bytes, embedded)) > EMBED_LIMIT_BYTES:
            name = WEIGHTS_FILE
            while name in taken:
                name = f"_{name}"
            _move_out(embedded, folder / name)
    except OSError as error:
        raise UsageError(
            f"the weights of {source} cannot be copied to {folder}: {error.strerror}; make room, or run elsewhere."
        ) from error


def _move_out(tensors: Iterable[TensorProto], path: Path) -> None:
    with path.open("wb") as file:
        for tensor in tensors:
            make_raw(tensor)
            file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
            refer_to(tensor, path.name, file.tell(), len(tensor.raw_data))
            file.write(tensor.raw_data)
            tensor.ClearField("raw_data")


def tensor_bytes(tensor: TensorProto) -> int:
    """How many bytes the elements of a tensor take, wherever they lie; a string counts as one."""
    return math.prod(int(dim) for dim in tensor.dims) * _ELEMENT_BYTES.get(tensor.data_type, 1)


def inner_bytes(tensor: TensorProto) -> int:
    """How many bytes of numbers a tensor holds inside the model; 0 for strings, which can lie nowhere else."""
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    width = _ELEMENT_BYTES.get(tensor.data_type, 1)
    for field, kind in _FIELDS.items():
        if count := len(getattr(tensor, field)):
            return int(count * min(width, np.dtype(kind).itemsize))
    return 0


def make_raw(tensor: TensorProto) -> None:
    """Turn numbers that are stored one by one into bytes, which alone can lie outside; they mean the same.

    A 32-bit field holds a narrower element, or a byte of two 4-bit ones, in its low bits (``onnx.proto``, TensorProto).
    """
    if tensor.HasField("raw_data"):
        return
    width = _ELEMENT_BYTES.get(tensor.data_type, 1)
    for field, kind in _FIELDS.items():
        if numbers := getattr(tensor, field):
            values = np.array(numbers, dtype=kind)
            if kind[0] in "iu" and width < values.itemsize:
                values = values.astype(f"u{width}")
            tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
            tensor.ClearField(field)


def refer_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make a tensor's data live in ``location`` at ``offset``; ``length`` is in bytes."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def held_bytes(model: onnx.ModelProto) -> int:
    """About how much memory a runtime takes for a model's weights: the weight, and a copy laid out for its kernels."""
    return 2 * sum(map(tensor_bytes, model.graph.initializer))
