"""Weights: their size, where they lie outside the model file, and copies of the files that hold them.

A search derives a hundred models from one. Large weights are stored once, in a file that every candidate refers to.
ONNX and ONNX Runtime require that this file lies in the folder of the model and is no link, so such candidates share a folder.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import ModelFileError, OutputFileError
from bisect_trt.onnxlib.nodes import all_nodes, bodies, clone
from bisect_trt.tensors.npz import written_whole

EMBED_LIMIT_BYTES = 64 << 20
"""Up to this total size weights stay inside each candidate; larger ones are shared."""
SHARED_TENSOR_BYTES = 1024
"""A smaller tensor is never moved out of the model: it may be a shape that parsers need to see."""
WEIGHTS_FILE = "bisect_trt_weights.bin"
ALIGNMENT = 4096
"""Weights begin at a multiple of it: runtimes map whole pages, and file systems share whole blocks."""
_CHUNK = 16 << 20
_FIELDS = {"float_data": "f4", "double_data": "f8", "int64_data": "i8", "uint64_data": "u8", "int32_data": "i4"}
"""The fields of a tensor that hold numbers one by one, with the type of these."""
_BITS = {"FLOAT": 32, "DOUBLE": 64}


def element_bits(element_type: int) -> int:
    """How many bits an element of a type takes, as its name says; 8 for a string."""
    name = TensorProto.DataType.Name(element_type)
    digits = re.search(r"\d+", name)
    return _BITS.get(name, 8) if digits is None else int(digits[0])


def tensor_bytes(tensor: TensorProto) -> int:
    """How many bytes the elements of a tensor take in a file; a string counts as one."""
    return -(-math.prod(int(dim) for dim in tensor.dims) * element_bits(tensor.data_type) // 8)


def inner_bytes(tensor: TensorProto) -> int:
    """How many bytes of numbers a tensor holds inside the model; 0 for strings, which cannot lie outside it."""
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    width = max(1, element_bits(tensor.data_type) // 8)
    counts = {kind: len(getattr(tensor, field)) for field, kind in _FIELDS.items()}
    return sum(count * min(width, np.dtype(kind).itemsize) for kind, count in counts.items())


def held_bytes(model: onnx.ModelProto) -> int:
    """About how much memory a runtime takes for a model's weights: the weight, and a copy laid out for its kernels."""
    return 2 * sum(map(tensor_bytes, model.graph.initializer))


def make_raw(tensor: TensorProto) -> None:
    """Store numbers that are listed one by one as bytes, which alone can lie outside the model; the values stay equal.

    A 32-bit field holds a narrower element, or a byte of two 4-bit ones, in its low bits (``onnx.proto``, TensorProto).
    """
    width = max(1, element_bits(tensor.data_type) // 8)
    for field, kind in _FIELDS.items():
        if not tensor.HasField("raw_data") and (numbers := getattr(tensor, field)):
            values = np.array(numbers, dtype=kind)
            if kind[0] in "iu" and width < values.itemsize:
                values = values.astype(f"u{width}")
            tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
            tensor.ClearField(field)


def model_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every weight of a model: initializers and the tensors in attributes, those in bodies and functions too."""
    yield from model.graph.initializer
    for node in all_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for body in bodies(node):
            yield from body.initializer


@dataclass(frozen=True)
class WeightPlace:
    """Where in a file a weight lies.

    Attributes:
        location: The file, as the model names it.
        offset: The first byte.
        length: The number of bytes.
    """

    location: str
    offset: int
    length: int


def place_of(tensor: TensorProto) -> WeightPlace:
    """Where an external weight lies; without a stated length, the length follows from its shape."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length = int(entries.get("length", 0)) or tensor_bytes(tensor)
    return WeightPlace(entries["location"], int(entries.get("offset", 0)), length)


def refer_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Make a tensor refer to ``length`` bytes at ``offset`` of the file ``location``, instead of bytes of its own."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def load_inside(tensor: TensorProto, folder: Path) -> None:
    """Read an external weight into the model; ``folder`` has its file.

    ONNX's own loader refuses files with several hard links, and reads to the end of the file where no length is stated.
    """
    place = place_of(tensor)
    with (folder / place.location).open("rb") as file:
        file.seek(place.offset)
        tensor.raw_data = file.read(place.length)
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def read_weight(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """The values of a weight; ``folder`` has its file, if it lies in one."""
    if uses_external_data(tensor):
        tensor = clone(tensor)
        load_inside(tensor, folder)
    return np.asarray(numpy_helper.to_array(tensor))


def load_all_inside(model: onnx.ModelProto, folder: Path) -> None:
    """Read all external weights into a model; ``folder`` has their files."""
    for tensor in filter(uses_external_data, model_tensors(model)):
        load_inside(tensor, folder)


def external_files(model: onnx.ModelProto) -> dict[str, int]:
    """The files a model keeps weights in, each with the length in bytes that it needs to have.

    Raises:
        UnavailableError: A weight does not say which file, or where in it.
    """
    files: dict[str, int] = {}
    for tensor in filter(uses_external_data, model_tensors(model)):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        try:
            location = Path(entries["location"]).as_posix()
            place = place_of(tensor)
        except (KeyError, TypeError, ValueError):
            location = ""
        if not location or min(place.offset, place.length) < 0 or location == "." or "\0" in location:
            raise ModelFileError(
                f"the weight '{tensor.name}' lies outside the model, which does not say where; export the model again."
            )
        files[location] = max(files.get(location, 0), place.offset + place.length)
    return files


def has_external_data(model: onnx.ModelProto) -> bool:
    """Whether any weight lies outside the model file."""
    return any(map(uses_external_data, model_tensors(model)))


def folder_with(model: onnx.ModelProto, folders: Iterable[Path]) -> Path | None:
    """The first folder in which all files of a model's weights are."""
    files = external_files(model)
    return next((folder for folder in folders if all((folder / location).exists() for location in files)), None)


def share_weights(model: onnx.ModelProto, source: Path, folder: Path, weights: Path | None = None) -> None:
    """Put a large model's weights into ``folder`` once, and make ``model`` refer to them there.

    Small weights that are inside the model stay there.

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
            with (folder / name).open("wb") as file:
                for tensor in embedded:
                    move_out(tensor, file, name)
    except OSError as error:
        raise OutputFileError(
            f"the weights of {source} cannot be copied to {folder}: {error.strerror}; make room, or run elsewhere."
        ) from error


def move_out(tensor: TensorProto, file: BinaryIO, location: str) -> None:
    """Append a tensor's values to a file, and make the tensor refer to them; ``location`` is the name of the file."""
    make_raw(tensor)
    at = align(file)
    file.write(tensor.raw_data)
    refer_to(tensor, location, at, len(tensor.raw_data))


def align(file: BinaryIO, past: int = 0) -> int:
    """Go to where the next weight begins in a file, ``past`` bytes behind a multiple of 4096; returns that place."""
    return file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT + past)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, unless the target has its size already; the target appears when it is complete.

    A hard link would do for runtimes, but ONNX's loader refuses a file with two names, and the user's own model with it.

    Raises:
        OSError: The file cannot be read or written.
    """
    size = source.stat().st_size
    if not target.exists() or target.stat().st_size != size:
        with source.open("rb") as reader, written_whole(target) as writer:
            copy_range(reader, 0, size, writer)


def copy_range(reader: BinaryIO, start: int, length: int, writer: BinaryIO) -> None:
    """Copy ``length`` bytes of a file from ``start`` to the position of another one.

    The kernel copies where it can, and file systems such as Btrfs and XFS share the blocks then.

    Raises:
        OSError: One file cannot be read or written, or the first ends early.
    """
    writer.flush()
    reader.seek(start)
    while length > 0:
        copied = 0
        if hasattr(os, "copy_file_range"):
            try:
                copied = os.copy_file_range(reader.fileno(), writer.fileno(), length, start)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
        if not copied:  # not between these two files
            reader.seek(start)
            copied = writer.write(reader.read(min(length, _CHUNK)))
            writer.flush()
        if not copied:
            raise OSError(errno.EIO, f"{reader.name} ends early")
        start, length = start + copied, length - copied
    writer.seek(os.lseek(writer.fileno(), 0, os.SEEK_CUR))
