"""The reference's tensors on disk: one flat binary file, read as memory-mapped views, and an index.

A network's activations can be larger than memory, and each probe wants only a few of them: how many may be in memory at once
is decided here as well.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from sys import intern
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.tensors.info import TensorInfo, dtype_from_name, is_extension, is_string, storage_dtype
from bisect_trt.tensors.kernel_memory import free_bytes
from bisect_trt.tensors.npz import cannot_write, load_npz, replacing, save_npz
from bisect_trt.tensors.stats import TensorStats, tensor_stats

_SHARE = 8
"""Of the free memory, the arrays of one slice may take this part: a runtime holds weights twice, a comparison errors too."""
_LEAST, _MOST = 64 << 20, 1 << 30


def swap_limit(megabytes: int | None = None) -> int:
    """Bytes of weights and tensors past which a model is run in slices, its tensors on the disk in between.

    Args:
        megabytes: What the user asked for, in MiB; ``None`` for an eighth of the free memory, from 64 MiB to 1 GiB.
    """
    if megabytes is not None:
        return megabytes << 20
    free = free_bytes()
    return _MOST if free is None else min(max(free // _SHARE, _LEAST), _MOST)


_DATA, _STRINGS, _INDEX = "tensors.bin", "strings.npz", "index.json"
_SCHEMA = 1
_ALIGNMENT = 64
"""Bytes: a cache line, and more than any element type needs."""
_COPIED = 1 << 20
"""Bytes up to which :meth:`ActivationStore.take` copies values."""


class _Entry(NamedTuple):
    """Where a tensor is: in the file of numbers from a byte on, or in that of strings under a name."""

    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    string: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the index."""
        place = {"offset": self.offset} if self.string is None else {"string": self.string}
        return {"dtype": self.dtype, "shape": list(self.shape), **place}


class _Reader:
    """Reads an index; equal shapes and types of its 100,000 tensors are one object."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]] = {}

    def take(self, found: dict[str, Any]) -> dict[str, Any] | _Entry:
        """For ``json``: a tensor's entry, or whatever else an object is, which may have a tensor called "dtype" in it."""
        if not isinstance(found.get("dtype"), str) or not isinstance(found.get("shape"), list):
            return found
        kind = (found["dtype"], tuple(found["shape"]))
        return _Entry(*self._shared.setdefault(kind, kind), found.get("offset", 0), found.get("string"))


class StoreWriter:
    """Writes an :class:`ActivationStore`, as a context manager.

    The index is written last, when the block ends without an error: a folder without one is not a store. A store that
    was in the folder before is gone from the start, but whoever has it open keeps reading its data.

    Args:
        folder: Where the store goes; made if it does not exist.
        append: Whether to add to the finished store that is there.

    Raises:
        UsageError: From any method, if the folder cannot be written or the disk is full.
    """

    def __init__(self, folder: Path, *, append: bool = False) -> None:
        self._folder = folder
        self._tensors: dict[str, _Entry] = {}
        self._strings: dict[str, NDArray[Any]] = {}
        self._skipped: dict[str, str] = {}
        self._offset = 0
        try:
            if append:
                self._go_on()
                return
            folder.mkdir(parents=True, exist_ok=True)
            for name in (_INDEX, _STRINGS, _DATA):
                (folder / name).unlink(missing_ok=True)
            self._file: BinaryIO = (folder / _DATA).open("xb")
        except OSError as err:
            raise cannot_write(folder, err) from err

    def _go_on(self) -> None:
        """Take over what is in the store."""
        before = ActivationStore.open(self._folder)
        self._tensors, self._strings, self._skipped = before.raw()
        self._offset = (self._folder / _DATA).stat().st_size
        (self._folder / _INDEX).unlink()
        self._file = (self._folder / _DATA).open("ab")

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as err:
            if error is None:
                raise cannot_write(self._folder / _DATA, err) from err
        if error is None:
            self._finish()

    def add(self, name: str, array: object) -> None:
        """Store one tensor, of any shape; what is not numbers, bools or strings is noted as skipped.

        Raises:
            ValueError: If there is a tensor of this name already.
        """
        if name in self._tensors or name in self._skipped:
            raise ValueError(f"tensor '{name}' is in the store already")
        if not isinstance(array, np.ndarray):
            self.skip(name, f"it is a {type(array).__name__}, not a tensor")
        elif array.dtype.kind == "O" and not all(isinstance(text, (str, bytes)) for text in array.ravel().tolist()):
            self.skip(name, "it holds Python objects other than strings")
        elif is_string(array.dtype):
            # Under a number, for there are tensor names that an .npz cannot have.
            number = str(len(self._strings))
            self._strings[number] = array.copy()
            self._tensors[name] = _Entry("object", array.shape, string=number)
        elif array.dtype.kind in "biufc" or is_extension(array.dtype):
            self._write(name, array)
        else:
            self.skip(name, f"it is of type {array.dtype.name}, which ONNX does not have")

    def skip(self, name: str, reason: str) -> None:
        """Note that a tensor is not in the store, and why."""
        self._skipped[name] = reason

    def _write(self, name: str, array: NDArray[Any]) -> None:
        stored = storage_dtype(array.dtype)
        values = array.view(stored) if is_extension(array.dtype) else array.astype(stored, copy=False)
        padding = -self._offset % _ALIGNMENT
        try:
            self._file.write(bytes(padding))
            if values.size:
                self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        except OSError as err:
            raise cannot_write(self._folder / _DATA, err) from err
        self._offset += padding
        self._tensors[name] = _Entry(array.dtype.name, array.shape, self._offset)
        self._offset += values.nbytes

    def _finish(self) -> None:
        if self._strings:
            save_npz(self._folder / _STRINGS, self._strings)
        index = {
            "schema": _SCHEMA,
            "bytes": self._offset,
            "tensors": {name: entry.to_json() for name, entry in self._tensors.items()},
            "skipped": self._skipped,
        }
        with replacing(self._folder / _INDEX) as file:
            file.write(json.dumps(index).encode())


class ActivationStore:
    """Tensors by name, each read from the disk only when its values are used.

    Open one with :meth:`open`.

    Attributes:
        folder: Where it is.
        skipped: Tensors that could not be stored, with the reason.
    """

    def __init__(self, folder: Path, index: dict[str, Any], data: NDArray[np.uint8]) -> None:
        self.folder = folder
        self.skipped: dict[str, str] = index["skipped"]
        self._data = data
        # Who opens it mostly has a network with the same names.
        self._tensors: dict[str, _Entry] = {intern(name): entry for name, entry in index["tensors"].items()}
        self._strings: dict[str, NDArray[Any]] = {}
        self._stats: dict[str, TensorStats] = {}

    @classmethod
    def open(cls, folder: Path) -> ActivationStore:
        """Open what :class:`StoreWriter` wrote.

        Raises:
            UnavailableError: If the folder holds no finished store, one of another version, or a damaged one.
        """
        try:
            index = json.loads((folder / _INDEX).read_bytes(), object_hook=_Reader().take)
            if index["schema"] != _SCHEMA:
                raise UnavailableError(
                    f"The activations in {folder} were written by another version of bisect-trt; delete the folder"
                )
            size = (folder / _DATA).stat().st_size
            if size != index["bytes"]:
                raise ValueError(f"{_DATA} has {size} bytes instead of {index['bytes']}")
            with (folder / _DATA).open("rb") as file:
                # An empty file cannot be mapped.
                data = np.memmap(file, np.uint8, "r") if size else np.empty(0, np.uint8)
                store = cls(folder, index, data.view(np.ndarray))
                store._watch(os.dup(file.fileno()))
            if any(entry.string is not None for entry in index["tensors"].values()):
                store._strings = load_npz(folder / _STRINGS)
        except OSError as err:
            raise UnavailableError(
                f"There are no finished activations in {folder} ({err.strerror}); compute the reference again"
            ) from err
        except (ValueError, KeyError, TypeError) as err:
            raise UnavailableError(f"The activations in {folder} are damaged ({err}); delete the folder") from err
        return store

    def _watch(self, file: int) -> None:
        """Notice if the data are written over: to read what has been cut off is not an error but the end of the process."""
        self._file = file
        self._seen = self._look()
        weakref.finalize(self, os.close, file)

    def _look(self) -> tuple[int, int]:
        seen = os.fstat(self._file)
        return seen.st_size, seen.st_mtime_ns

    def _check_unchanged(self) -> None:
        if self._look() != self._seen:
            raise UnavailableError(
                f"The activations in {self.folder} were changed while they were in use; if that was a check, have it write "
                "elsewhere, and start again"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors, in the order they were added."""
        return tuple(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.get(name)

    def info(self, name: str) -> TensorInfo:
        """Name, type and shape, without touching the values.

        Raises:
            KeyError: If there is no such tensor.
        """
        entry = self._entry(name)
        return TensorInfo(name, dtype_from_name(entry.dtype), entry.shape)

    def get(self, name: str) -> NDArray[Any]:
        """The values; numbers are a read-only view of the file on disk, strings a copy.

        Raises:
            KeyError: If there is no such tensor.
            UnavailableError: If the file has been changed since it was opened.
        """
        entry = self._entry(name)
        self._check_unchanged()
        if entry.string is not None:
            return self._strings[entry.string].copy()
        dtype = dtype_from_name(entry.dtype)
        stop = entry.offset + dtype.itemsize * int(np.prod(entry.shape, dtype=np.int64))
        values: NDArray[Any] = self._data[entry.offset : stop].view(dtype).reshape(entry.shape)
        return values

    def take(self, name: str) -> NDArray[Any]:
        """The values while checks run, which may cut the file off: up to 1 MiB of them are a copy that this does not touch.

        Raises:
            KeyError: If there is no such tensor.
            UnavailableError: If the file has been changed since it was opened.
        """
        values, entry = self.get(name), self._entry(name)
        if entry.string is not None or not 0 < values.nbytes <= _COPIED:
            return values
        content = os.pread(self._file, values.nbytes, entry.offset)
        self._check_unchanged()
        return np.frombuffer(content, np.uint8).view(values.dtype).reshape(values.shape)

    def stats(self, name: str) -> TensorStats:
        """The range of a numeric tensor's values; computed when first asked for.

        Raises:
            KeyError: If there is no such numeric tensor.
        """
        if name not in self._stats:
            if self._entry(name).string is not None:
                raise KeyError(f"'{name}' holds strings, which have no range")
            self._stats[name] = tensor_stats(self.get(name))
        return self._stats[name]

    def raw(self) -> tuple[dict[str, _Entry], dict[str, NDArray[Any]], dict[str, str]]:
        """What the index and the file of strings hold, for a writer that goes on."""
        strings = {
            entry.string: self._strings[entry.string] for entry in self._tensors.values() if entry.string is not None
        }
        return dict(self._tensors), strings, dict(self.skipped)

    def _entry(self, name: str) -> _Entry:
        if name not in self._tensors:
            raise KeyError(f"no tensor '{name}' in {self.folder}: {self.skipped.get(name, 'never stored')}")
        return self._tensors[name]
