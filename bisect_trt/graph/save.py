"""Write a model where a user wants it."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from onnx.external_data_helper import convert_model_to_external_data, load_external_data_for_model

from bisect_trt.errors import UsageError
from bisect_trt.graph.externals import has_external_data, model_tensors

SINGLE_FILE_LIMIT_BYTES = 1 << 30
"""Past this the weights go into a file beside the model; protobuf itself ends at 2 GiB."""


def check_output(path: Path, *, overwrite: bool) -> None:
    """Make sure that a file can be written, before hours are spent on what goes into it.

    Raises:
        UsageError: It, or the file for weights beside it, exists, or its folder does not or is not writable.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    for file in (path, data_file(path)):
        if file.exists() and not overwrite:
            raise UsageError(f"{file} exists; name another file, or write over it with --overwrite.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}; make it first.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: permission denied; name a file in a folder of yours.")


def data_file(path: Path) -> Path:
    """Where the weights of a model at ``path`` go that are too large to lie in it."""
    return path.with_name(path.name + ".data")


def save_model(proto: onnx.ModelProto, weights: Path, path: Path) -> None:
    """Write a model with all its weights.

    Args:
        proto: The model; it is not changed.
        weights: The folder with the files that its external weights lie in.
        path: Where to; weights past 1 GiB go to ``<path>.data`` beside it. The suffix says in which of ONNX's formats
            (``.json``, ``.textproto``, ``.onnxtxt``), binary for all others.

    Raises:
        UsageError: It cannot be written.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    temporary = path.with_name(f".{path.name}.new")
    data = data_file(path)
    try:
        if has_external_data(model):
            load_external_data_for_model(model, str(weights))
        if sum(len(tensor.raw_data) for tensor in model_tensors(model)) > SINGLE_FILE_LIMIT_BYTES:
            data.unlink(missing_ok=True)
            convert_model_to_external_data(model, location=data.name)
        # By the suffix that the file will have, as it is read again.
        form = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
        onnx.save(model, str(temporary), format=form)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; make room or name another file.") from error
    finally:
        temporary.unlink(missing_ok=True)
