"""A copy of a model with notes on its nodes, for viewers: Netron shows a node's metadata beside its attributes."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from pathlib import Path

import onnx

from bisect_trt.errors import UsageError
from bisect_trt.graph.externals import copy_file, external_files

_MARK = "bisect-trt.annotated"
"""Metadata key of a model that was written here, so that nobody else's file is ever written over."""

Notes = Mapping[int, Mapping[str, str]]
"""By the number of the node in the file: keys and values."""


def check_annotated(path: Path, model: Path) -> None:
    """Make sure that an annotated model may be written, before hours are spent on what is noted in it.

    Raises:
        UsageError: There is another file, or no folder.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--annotate: {path} is a folder or lies in none; name a file to write.")
    if path.exists() and ((model.exists() and path.samefile(model)) or not _is_ours(path)):
        raise UsageError(f"--annotate: {path} exists and was not written by --annotate; name another file.")


def _is_ours(path: Path) -> bool:
    try:
        return any(entry.key == _MARK for entry in onnx.load(str(path), load_external_data=False).metadata_props)
    except Exception:  # whatever it is, it is somebody else's
        return False


def write_annotated(model: Path, notes: Notes, path: Path, weights: Path | None = None) -> None:
    """Write a model again with notes in its nodes' ``metadata_props``; nothing else changes.

    Weights that lie in files of their own stay there; with the model in another folder they are copied beside it.

    Args:
        model: The original.
        notes: Keys and values for nodes of the main graph.
        path: Where the copy goes.
        weights: The folder with the original's weights, if that is not its own.

    Raises:
        UsageError: It cannot be written, or other weights lie where its weights would have to.
    """
    proto = onnx.load(str(model), load_external_data=False)
    for index, entries in notes.items():
        for key, value in entries.items():
            proto.graph.node[index].metadata_props.add(key=key, value=value)
    proto.metadata_props.add(key=_MARK, value="verdicts of nodes are in their metadata")
    temporary = path.with_name(f".{path.name}.new")
    try:
        for location in external_files(proto):
            _put_beside((weights or model.parent) / location, path.parent / location)
        # By the suffix that the file will have, as it is read again.
        form = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
        onnx.save(proto, str(temporary), format=form)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"--annotate: {path} cannot be written: {error.strerror}; name another file.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _put_beside(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(source, target)
    elif not target.samefile(source) and not filecmp.cmp(source, target, shallow=False):
        raise UsageError(
            f"--annotate: {target} exists and holds other weights than the model's, which have to lie there; "
            "name a file in another folder."
        )
