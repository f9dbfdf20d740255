"""Write a model where a user wants it."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import OutputFileError, quoted
from bisect_trt.onnxlib.external_data import (
    ALIGNMENT,
    SHARED_TENSOR_BYTES,
    WeightPlace,
    align,
    copy_range,
    external_files,
    has_external_data,
    inner_bytes,
    load_all_inside,
    load_inside,
    model_tensors,
    move_out,
    place_of,
    refer_to,
)
from bisect_trt.tensors.npz import written_whole

SINGLE_FILE_LIMIT_BYTES = 1 << 30
"""Past this the weights go into a file beside the model; protobuf itself ends at 2 GiB."""


def check_output(path: Path, *, overwrite: bool, read_back: bool = False) -> None:
    """Make sure that a file can be written, before hours are spent on what goes into it.

    Args:
        path: The file.
        overwrite: Whether it may exist.
        read_back: Whether the command reads it again, so that a device or FIFO will not do.

    Raises:
        UsageError: It, or the file for weights beside it, exists, or its folder does not or is not writable.
    """
    if read_back and path.exists() and not path.is_file():
        raise OutputFileError(f"{path} is no regular file, and what is written is read back; name another file.")
    if path.is_dir():
        raise OutputFileError(f"{path} is a folder; name a file to write.")
    for file in (path, data_file(path)):
        if file.is_file() and not overwrite:  # a device or FIFO is written to
            raise OutputFileError(f"{file} exists; name another file, or write over it with --overwrite.")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise OutputFileError(f"{path} cannot be written: there is no folder {folder}; make it first.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputFileError(f"{path} cannot be written: permission denied; name a file in a folder of yours.")


def data_file(path: Path) -> Path:
    """Where the weights of a model at ``path`` go that are too large to lie in it."""
    return path.with_name(path.name + ".data")


def save_model(proto: onnx.ModelProto, weights: Path, path: Path, *, beside: bool = False) -> None:
    """Write a model with all its weights.

    Args:
        proto: The model; it is not changed.
        weights: The folder with the files that its external weights lie in.
        path: Where to; weights past 1 GiB go to ``<path>.data`` beside it. The suffix says in which of ONNX's formats
            (``.json``, ``.textproto``, ``.onnxtxt``), binary for all others.
        beside: Whether weights past 1 GiB stay in their files where these lie in the same folder; see :func:`said_beside`.

    Raises:
        UsageError: It cannot be written.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    inside = sum(map(inner_bytes, model_tensors(model)))
    stay = beside and inside <= SINGLE_FILE_LIMIT_BYTES and path.parent.resolve() == weights.resolve()
    try:
        if sum(map(_bytes, model_tensors(model))) > SINGLE_FILE_LIMIT_BYTES:
            if not stay:
                _write_weights(model, weights, data_file(path))
        elif has_external_data(model):
            load_all_inside(model, weights)
        _write(model, path)
    except OSError as error:
        instead = "make room or name another file"
        if beside and error.errno == errno.ENOSPC:
            instead = f"make room, or name a file in {weights}, where the weights need no copy"
        raise OutputFileError(f"{path} cannot be written: {error.strerror}; {instead}.") from error


def said_beside(path: Path) -> str | None:
    """That a model which was written needs weights' files that were there before, if it does, in words."""
    own = data_file(path).name
    files = [name for name in external_files(onnx.load(str(path), load_external_data=False)) if name != own]
    return f"its weights stay in {quoted(files, 3)} beside it, which it needs as they are" if files else None


def _bytes(tensor: onnx.TensorProto) -> int:
    return place_of(tensor).length if uses_external_data(tensor) else inner_bytes(tensor)


def _write_weights(model: onnx.ModelProto, weights: Path, data: Path) -> None:
    """Write a model's weights into one file, and make the model refer to them there.

    No weight is read into memory as a whole; a range of a file that two weights share is copied once. Small weights go into
    the model, where parsers need to see shapes.

    Raises:
        OSError: They cannot be read or written.
    """
    written: dict[WeightPlace, int] = {}
    with ExitStack() as stack, written_whole(data) as writer:
        readers = {name: stack.enter_context((weights / name).open("rb")) for name in external_files(model)}
        for tensor in model_tensors(model):
            outside = uses_external_data(tensor)
            if _bytes(tensor) < SHARED_TENSOR_BYTES:
                if outside:
                    load_inside(tensor, weights)
            elif outside:
                place = place_of(tensor)
                if place not in written:
                    written[place] = align(writer, place.offset % ALIGNMENT)  # blocks can be shared then
                    copy_range(readers[Path(place.location).as_posix()], place.offset, place.length, writer)
                refer_to(tensor, data.name, written[place], place.length)
            else:
                move_out(tensor, writer, data.name)


def _write(model: onnx.ModelProto, path: Path) -> None:
    """Write a model in the format of its file's suffix, as it is read again; whoever reads meanwhile sees the file before.

    Raises:
        OSError: It cannot be written.
    """
    form = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    with written_whole(path) as file:
        onnx.save(model, file, format=form)
