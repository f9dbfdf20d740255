"""What kind of file is to be inspected, where that is not said."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from bisect_trt.errors import UnavailableError, UsageError


class Kind(str, Enum):
    """What a file is."""

    MODEL = "model"
    ENGINE = "engine"
    DATA = "data"


_BEGINNINGS = {b"ftrt": Kind.ENGINE, b"PK\x03\x04": Kind.DATA}
"""The first bytes of TensorRT's plans and of zip files, which ``.npz`` files are."""
_SUFFIXES = {
    Kind.MODEL: (".onnx", ".pb", ".onnxtxt", ".onnxjson", ".textproto", ".prototxt", ".pbtxt"),
    Kind.ENGINE: (".engine", ".plan", ".trt"),
    Kind.DATA: (".npz", ".json"),
}
_IR_VERSION = b"\x08"
"""How the first field of an ONNX model begins in protobuf."""


def guess_kind(path: Path) -> Kind:
    """What a file is, by its first bytes where they say it for sure, else by its name.

    Args:
        path: The file; folders and numbered files hold saved values.

    Raises:
        UnavailableError: There is no such file.
        UsageError: Neither tells.
    """
    if path.is_dir():
        return Kind.DATA
    beginning = _beginning(path)
    named = next((kind for kind, suffixes in _SUFFIXES.items() if path.suffix.lower() in suffixes), None)
    known = _BEGINNINGS.get(beginning, named) or (Kind.MODEL if beginning.startswith(_IR_VERSION) else None)
    if known is not None:
        return known
    if not path.exists():
        raise UnavailableError(f"{path}: no such file; give the path of a model, an engine or saved values.")
    raise UsageError(
        f"{path} does not show whether it is a model, an engine or saved values; say which: "
        f"`bisect-trt inspect model {path}`, `inspect engine` or `inspect data`."
    )


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError:  # whoever reads it next says what is wrong with it
        return b""
