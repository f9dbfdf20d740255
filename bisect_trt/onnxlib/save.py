"""Write models and their external weights.

A search derives a hundred models from one. Large weights are stored once, in a file that every
candidate refers to. ONNX and ONNX Runtime require that this file is in the model's folder and no
link, so such candidates share a folder.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
import onnx
from onnx import TensorProto
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import OutputFileError, ResourceError, quoted
from bisect_trt.onnxlib.load import (
    WeightPlace,
    element_bits,
    external_files,
    has_external_data,
    load_all_inside,
    load_inside,
    model_tensors,
    place_of,
    tensor_bytes,
)
from bisect_trt.onnxlib.nodes import clone
from bisect_trt.tensors.files import written_whole

EMBED_LIMIT_BYTES = 64 << 20
"""The largest total size of weights that stay inside each candidate; larger ones are shared."""
SHARED_TENSOR_BYTES = 1024
"""A smaller tensor stays in the model: it may be a shape, which parsers need to read."""
SINGLE_FILE_LIMIT_BYTES = 1 << 30
"""The most bytes of weights inside a written model; larger ones go into a file beside it
(protobuf's limit is 2 GiB)."""
WEIGHTS_FILE = "bisect_trt_weights.bin"
_ALIGNMENT = 4096
"""Weights begin at a multiple: runtimes map whole pages."""
_CHUNK = 16 << 20
_FIELDS = {
    "float_data": "f4",
    "double_data": "f8",
    "int64_data": "i8",
    "uint64_data": "u8",
    "int32_data": "i4",
}
"""The fields of a tensor that list numbers, with their type."""


def inner_bytes(tensor: TensorProto) -> int:
    """Return the bytes of numbers that a tensor has inside the model; 0 for strings, which cannot be external."""
    inside = not uses_external_data(tensor) and tensor.data_type != TensorProto.STRING
    return tensor_bytes(tensor) if inside else 0


def make_raw(tensor: TensorProto) -> None:
    """Store listed numbers as bytes, since only bytes can be external; the values stay equal.

    A 32-bit field holds a narrower element, or a byte of two 4-bit ones, in its low bits
    (``onnx.proto``, TensorProto).
    """
    width = max(1, element_bits(tensor.data_type) // 8)
    for field, kind in _FIELDS.items():
        if not tensor.HasField("raw_data") and (numbers := getattr(tensor, field)):
            values = np.array(numbers, dtype=kind)
            # The field is wider than the type: int32_data holds 8 and 16 bits too.
            if kind[0] in "iu" and width < values.itemsize:
                values = values.astype(f"u{width}")
            tensor.raw_data = values.astype(values.dtype.newbyteorder("<")).tobytes()
            tensor.ClearField(field)


def refer_to(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Replace a tensor's bytes by a reference to ``length`` bytes at ``offset`` of the file ``location``.

    Args:
        tensor: The tensor; changed in place.
        location: The file, relative to the folder of the model.
        offset: The place of the first byte.
        length: The number of bytes.
    """
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def share_weights(model: onnx.ModelProto, weights: Path, folder: Path) -> None:
    """Write a large model's weights into a file in ``folder``, and make ``model`` refer to them there, in place.

    Small weights stay inside. ``weights`` is the folder with the external files.

    Raises:
        UsageError: The weights cannot be copied.
    """
    moved = list(filter(uses_external_data, model_tensors(model)))
    inside = [
        tensor for tensor in model.graph.initializer if inner_bytes(tensor) >= SHARED_TENSOR_BYTES
    ]
    moved += inside if sum(map(inner_bytes, inside)) > EMBED_LIMIT_BYTES else []
    try:
        if moved:
            _write_weights(moved, weights, folder / WEIGHTS_FILE)
    except OSError as error:
        raise OutputFileError(
            f"the model's weights cannot be copied to {folder}: {error.strerror}; make room, or run elsewhere."
        ) from error


def _align(file: IO[bytes]) -> int:
    """Go to the place of the next weight in a file, and return it."""
    return file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file atomically, unless the target has its size already.

    A hard link is no alternative: ONNX's loader refuses files with two names, and so would refuse
    the user's own model.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.stat().st_size != source.stat().st_size:
        with source.open("rb") as reader, written_whole(target) as writer:
            shutil.copyfileobj(reader, writer, _CHUNK)


def _copy_range(source: Path, place: WeightPlace, writer: IO[bytes]) -> None:
    """Append a range of a file to another one."""
    with source.open("rb") as reader:
        reader.seek(place.offset)
        remaining = place.length
        while remaining > 0:
            # In chunks: a weight may be larger than the memory.
            chunk = reader.read(min(remaining, _CHUNK))
            if not chunk:
                raise OSError(errno.EIO, f"{source} ends early")
            remaining -= writer.write(chunk)


def require_directory() -> None:
    """Check the working directory, because the operating system's errors about relative paths do not name it.

    Raises:
        ResourceError: It was deleted, or may not be read.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise ResourceError(
            f"the working directory cannot be used: {error.strerror}; change to one that exists (cd), and run the command there."
        ) from error


def check_output(path: Path, *, overwrite: bool, read_back: bool = False) -> None:
    """Check that a file can be written, before hours are spent on its content.

    Args:
        path: The file.
        overwrite: Whether it may exist.
        read_back: Whether the command reads it again, so that it cannot be a device or FIFO.

    Raises:
        UsageError: The file, or the one for its weights, exists, or its folder is missing or not
            writable.
        UnavailableError: The path is relative, and the working directory does not exist.
    """
    if not path.is_absolute():
        require_directory()
    if read_back and path.exists() and not path.is_file():
        raise OutputFileError(
            f"{path} is no regular file, and the command reads the file back; name another file."
        )
    if path.is_dir():
        raise OutputFileError(f"{path} is a folder; name a file to write.")
    for file in (path, data_file(path)):
        # A device or FIFO is written to.
        if file.is_file() and not overwrite:
            raise OutputFileError(
                f"{file} exists; name another file, or write over it with --overwrite."
            )
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputFileError(
            f"{path} cannot be written: there is no folder {folder}; make it first."
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputFileError(
            f"{path} cannot be written: permission denied; name a file in a folder of yours."
        )


def data_file(path: Path) -> Path:
    """Return the path of the file for weights that are too large for the model at ``path``."""
    return path.parent / f"{path.name}.data"


def save_model(proto: onnx.ModelProto, weights: Path, path: Path, *, beside: bool = False) -> None:
    """Write a model with all its weights, atomically.

    Args:
        proto: The model; it is not changed.
        weights: The folder with the files of its external weights.
        path: The file; weights past 1 GiB go to ``<path>.data`` beside it. Its suffix selects one
            of ONNX's formats (``.json``, ``.textproto``, ``.onnxtxt``), binary for all others.
        beside: Whether weights past 1 GiB stay in their files if those are in the same folder; see
            :func:`said_beside`.

    Raises:
        UsageError: It cannot be written.
    """
    model = clone(proto)
    inside = sum(map(inner_bytes, model_tensors(model)))
    stay = (
        beside and inside <= SINGLE_FILE_LIMIT_BYTES and path.parent.resolve() == weights.resolve()
    )
    try:
        if sum(map(_bytes, model_tensors(model))) > SINGLE_FILE_LIMIT_BYTES:
            if not stay:
                _write_weights(model_tensors(model), weights, data_file(path))
        elif has_external_data(model):
            load_all_inside(model, weights)
        # The target is a file object, so ONNX cannot derive the format from its name.
        form = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
        with written_whole(path) as file:
            onnx.save(model, file, format=form)
    except OSError as error:
        instead = "make room or name another file"
        if beside and error.errno == errno.ENOSPC:
            instead = f"make room, or name a file in {weights}, where the weights need no copy"
        raise OutputFileError(f"{path} cannot be written: {error.strerror}; {instead}.") from error


def said_beside(path: Path) -> str | None:
    """Return a sentence that names the weight files beside a written model that it refers to, if any."""
    embedded_file = data_file(path).name
    files = [
        name
        for name in external_files(onnx.load(str(path), load_external_data=False))
        if name != embedded_file
    ]
    return (
        f"its weights stay in {quoted(files, 3)} beside it, which it needs as they are"
        if files
        else None
    )


def _bytes(tensor: TensorProto) -> int:
    return place_of(tensor).length if uses_external_data(tensor) else inner_bytes(tensor)


def _write_weights(tensors: Iterable[TensorProto], weights: Path, data: Path) -> None:
    """Write a model's weights into one file, and make them refer to it.

    External weights are copied in chunks; a range that two of them share is copied once. Small
    weights go into the model, where parsers read shapes.
    """
    written: dict[WeightPlace, int] = {}
    with written_whole(data) as writer:
        for tensor in tensors:
            outside = uses_external_data(tensor)
            if _bytes(tensor) < SHARED_TENSOR_BYTES:
                if outside:
                    load_inside(tensor, weights)
            elif outside:
                place = place_of(tensor)
                # Tied weights refer to one range, and have to stay tied.
                if place not in written:
                    written[place] = _align(writer)
                    _copy_range(weights / place.location, place, writer)
                refer_to(tensor, data.name, written[place], place.length)
            else:
                make_raw(tensor)
                at = _align(writer)
                length = writer.write(tensor.raw_data)
                refer_to(tensor, data.name, at, length)
