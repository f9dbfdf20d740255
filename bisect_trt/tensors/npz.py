"""Tensors in one ``.npz`` file, under any name and of any ONNX element type; and files that are replaced atomically.

``numpy.savez`` takes names as keyword arguments (so none may be ``file``), and loses ``ml_dtypes`` types. The files written here
are still ordinary: ``numpy.load`` opens them. bfloat16 and similar types become unsigned integers of the same size; the comment
of the zip entry has their true type.

Files may be a stranger's: how far a compressed file grows is checked before anything is read.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from bisect_trt.errors import BisectError, InputValuesError, OutputFileError, UsageError
from bisect_trt.tensors.info import ByName, dtype_from_name, is_extension

_KINDS = "biufcV"
"""Numbers, and raw bytes (``ml_dtypes`` types, as plain NumPy saves them)."""


def read_npy(stream: IO[bytes]) -> NDArray[Any]:
    """Return an array of numbers or raw bytes.

    Raises:
        ValueError: It holds something else.
    """
    values = np.asarray(npy_format.read_array(stream, allow_pickle=False))
    if values.dtype.kind not in _KINDS or values.dtype.names is not None or not values.dtype.itemsize:
        raise ValueError(f"it holds an array of {values.dtype!s:.60}, not of numbers")
    return values


def viewed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return stored elements in their true type.

    Raises:
        ValueError: The sizes differ, or the type cannot be stored so.
    """
    if dtype.kind == "O" or values.dtype.kind == "O" or dtype.itemsize != values.dtype.itemsize:
        raise ValueError(f"elements of {values.dtype} are no stored {dtype}")
    return values.view(dtype)


_SUFFIX = ".npy"
_EXPANSION, _EXPANDED_BYTES = 100, 1 << 30
"""The most a compressed file may grow, as a factor and in bytes; zeros could grow a thousand times."""


def save_npz(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors of numbers, bools or ``ml_dtypes`` types to an uncompressed ``.npz``, which is replaced when it is complete.

    Equal arrays give equal bytes: no time stamps are stored.

    Raises:
        UsageError: If the file cannot be written, or a tensor's name or values cannot be stored.
    """
    with replacing(Path(path)) as file:
        write_npz(file, arrays)


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors to an open file; see :func:`save_npz`.

    Raises:
        UsageError: If a tensor's name or values cannot be stored.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = _entry(name)
            values = np.asarray(array)
            if values.dtype.kind not in _KINDS:
                raise OutputFileError(
                    f"Cannot write '{name}' to an .npz file: it holds {values.dtype}, not numbers; leave it out"
                )
            if is_extension(values.dtype):
                entry.comment = values.dtype.name.encode()
                values = values.view(f"u{values.dtype.itemsize}")
            with archive.open(entry, "w", force_zip64=True) as stream:
                npy_format.write_array(stream, values, allow_pickle=False)


def load_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Return every tensor of an ``.npz`` file, written by :func:`save_npz` or ``numpy.savez``, in the file's order.

    Raises:
        UsageError: If the file is missing, unreadable, no ``.npz``, damaged, or holds pickled objects.
        UnavailableError: If a tensor's type needs ``ml_dtypes``, which is not installed.
    """
    # Not numpy.load: with tensors named 'x' and 'x.npy' in one file it returns the first for both.
    with _reading(path):
        return read_npz(Path(path))


def read_npz(file: IO[bytes] | Path) -> dict[str, NDArray[Any]]:
    """Return every tensor of an ``.npz`` file; see :func:`load_npz`, which reports errors."""
    with _opened(file) as archive:
        return dict(_read_entry(archive, entry) for entry in archive.infolist())


@contextmanager
def _opened(file: IO[bytes] | Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive in a file, after reading in its directory that it does not become much larger than the file.

    Raises:
        ValueError: It would.
    """
    with zipfile.ZipFile(file) as archive:
        assert archive.fp is not None
        size, promised = archive.fp.seek(0, os.SEEK_END), sum(entry.file_size for entry in archive.infolist())
        if promised > max(_EXPANDED_BYTES, _EXPANSION * size):
            raise ValueError(f"{size:,} bytes of compressed arrays become {promised:,}")
        yield archive


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Report any error of reading a file in a sentence."""
    try:
        yield
    except BisectError:
        raise
    except Exception as err:  # each compression has errors of its own, and a damaged archive can cause any
        reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
        raise InputValuesError(
            f"Cannot read {path}: {reason}; give an .npz file as numpy.savez writes it, of numbers only"
        ) from err


class NpzFile(ByName[NDArray[Any]]):
    """The tensors of an ``.npz`` file, each read on access.

    Raises:
        UsageError: As :func:`load_npz`, on construction or when a tensor is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _reading(path), _opened(path) as archive:
            self._index = {entry.filename.removesuffix(_SUFFIX): entry for entry in archive.infolist()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self._index[name]
        with _reading(self._path), _opened(self._path) as archive:
            return _read_entry(archive, entry)[1]


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing.

    A regular file is replaced after the block, if there was no error; it keeps its mode, and a symbolic link stays a link.
    Everything else (a device, a FIFO, standard output) is opened and written.

    Raises:
        OSError: If the folder is missing or not writable, or the disk is full.
    """
    stream = _standard_stream(path)
    if stream is not None or (path.exists() and not path.is_file()):
        whole = io.BytesIO()  # it has positions, which a stream has not
        yield whole
        with open(path if stream is None else os.dup(stream), "wb") as file:  # noqa: PTH123 - it may be a descriptor
            file.write(whole.getbuffer())
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
        temporary.replace(path)
    finally:
        # Gone already if all went well; never made if its folder is missing.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor of standard output or error, if the path is that stream: opened anew, it would be truncated."""
    with suppress(OSError):
        known = path.stat()
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if os.path.samestat(os.fstat(number), known):
                stream.flush()
                return number
    return None


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as :func:`written_whole` does, and report errors in a sentence.

    Raises:
        UsageError: If the folder is missing or not writable, or the disk is full.
    """
    try:
        with written_whole(path) as file:
            yield file
    except OSError as err:
        raise cannot_write(path, err) from err


def cannot_write(path: Path, err: OSError) -> UsageError:
    """Return the error for a path that cannot be written."""
    return OutputFileError(
        f"Cannot write {path}: {err.strerror or err}; choose a folder that exists, is writable and has space"
    )


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name + _SUFFIX)
    # A zip entry's name ends at a NUL, is UTF-8, and its length a 16-bit number.
    stored = name.encode(errors="replace")
    if entry.filename != name + _SUFFIX or len(stored) + len(_SUFFIX) > 0xFFFF or stored.decode() != name:
        raise OutputFileError(
            f"Cannot write the tensor {name[:80]!r} to an .npz file, which cannot hold this name; "
            "rename the tensor in the model"
        )
    return entry


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[str, NDArray[Any]]:
    if not entry.filename.endswith(_SUFFIX):
        raise ValueError(f"its entry '{entry.filename}' is not an array")
    with archive.open(entry) as stream:
        values = read_npy(stream)
    if entry.comment:
        values = viewed(values, dtype_from_name(entry.comment.decode()))
    return entry.filename[: -len(_SUFFIX)], values
