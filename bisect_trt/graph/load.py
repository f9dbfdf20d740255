"""Read an ONNX file, or say in one sentence why it cannot be read."""

from __future__ import annotations

from pathlib import Path

import onnx

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.externals import external_files
from bisect_trt.graph.validate import check_model

_IR_WITH_OPSETS = 3
"""Before IR version 3 models did not say which operator set they mean."""
_REASON_LENGTH = 200


def load_model(path: Path, weights: Path | None = None, *, structure: bool = False) -> onnx.ModelProto:
    """Read a model without pulling its external weights into memory.

    Args:
        path: The ``.onnx`` file.
        weights: The folder with its external weights, if that is not its own.
        structure: Whether the files of its weights may be missing.

    Returns:
        The model; initializers stored outside stay references to their files.

    Raises:
        UnavailableError: The file is missing, empty, not an ONNX model, cut short, not valid, or names weights that are
            not there.
        UsageError: Its weights lie outside its folder.
    """
    if not path.exists():
        raise UnavailableError(f"{path}: no such file; give the path of an ONNX model.")
    if path.is_dir():
        raise UnavailableError(f"{path} is a folder; give the path of an ONNX model file.")
    model = _read(path)
    # A text file can by chance parse as an empty message, and a cut file as one without a graph.
    if not model.HasField("graph") or not model.ir_version:
        raise UnavailableError(
            f"{path} holds no ONNX graph: it is another kind of file or was cut short; export or copy it again."
        )
    if model.ir_version >= _IR_WITH_OPSETS and not model.opset_import:
        raise UnavailableError(
            f"{path} names no operator set, which stands at the end of a model: it was cut short; copy it again."
        )
    if not model.graph.node:
        raise UnavailableError(f"{path} has no nodes, so there is nothing to search.")
    try:
        check_model(model)
    except UnavailableError as error:
        raise UnavailableError(f"{path}: {error}") from error
    if not structure:
        check_external_files(model, path, weights)
    return model


def _read(path: Path) -> onnx.ModelProto:
    try:
        if path.stat().st_size == 0:
            raise UnavailableError(f"{path} is empty; export the model again.")
        return onnx.load(str(path), load_external_data=False)
    except UnavailableError:
        raise
    except OSError as error:
        raise UnavailableError(
            f"{path} cannot be read: {error.strerror}; check the path and its permissions."
        ) from error
    except Exception as error:  # each of ONNX's formats (by the file's suffix: binary, JSON, text) raises its own
        reason = " ".join(str(error).split())[:_REASON_LENGTH].rstrip(".")
        raise UnavailableError(
            f"{path} cannot be read as an ONNX model ({reason}): it is another kind of file or was cut short; "
            "export or copy it again."
        ) from error


def check_external_files(model: onnx.ModelProto, path: Path, weights: Path | None = None) -> None:
    """Make sure that the files with the model's weights are there and long enough.

    Raises:
        UnavailableError: One is missing or too short, as is their folder, or a weight does not say which it is in.
        UsageError: One lies outside the model's folder, by its name or through a link, which ONNX forbids.
    """
    if weights is not None and not weights.is_dir():
        raise UnavailableError(
            f"--external-data-dir: there is no folder {weights}; name the one with the model's weights."
        )
    try:
        files = external_files(model)
    except UnavailableError as error:
        raise UnavailableError(f"{path}: {error}") from error
    for location, needed in files.items():
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise UsageError(
                f"{path} keeps weights in {location}, outside its own folder, which ONNX forbids; move them beside the model."
            )
        file = (weights or path.parent) / location
        try:
            real, is_file = file.resolve(), file.is_file()
        except (
            OSError,
            RuntimeError,
        ) as error:  # too long a name, or links in a circle (RuntimeError before Python 3.13)
            raise UnavailableError(f"{path} keeps weights in {location}, which cannot be read: {error}.") from error
        # A model that is a link itself may have its weights beside what it leads to.
        if not any(real.is_relative_to(folder.resolve()) for folder in (weights or path.parent, path.resolve().parent)):
            raise UsageError(
                f"{path} keeps weights in {location}, which leads to {real}, outside its own folder, which ONNX forbids; move "
                "them beside the model."
            )
        if not is_file:
            raise UnavailableError(
                f"{path} keeps weights in {file}, which does not exist; copy it there, or name the folder that has it with "
                "--external-data-dir."
            )
        if file.stat().st_size < needed:
            raise UnavailableError(
                f"{path} keeps weights in {file}, which has {file.stat().st_size} bytes where {needed} are needed; copy it again."
            )
