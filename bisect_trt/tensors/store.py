"""The reference's tensors on disk: one flat binary file, read as memory-mapped views, and an index.

Activations can be larger than memory, and each probe needs only some of them.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from sys import intern
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import RunFolderError
from bisect_trt.tensors.info import Infos, TensorInfo, dtype_from_name, is_extension, storage_dtype
from bisect_trt.tensors.kernel import free_bytes
from bisect_trt.tensors.npz import cannot_write, replacing

_SHARE = 8
"""The part of the free memory for the arrays of one slice: a runtime holds weights twice, a comparison errors too."""
_LEAST, _MOST = 64 << 20, 1 << 30


def swap_limit(megabytes: int | None = None) -> int:
    """Return the bytes of weights and tensors past which a model is run in slices.

    The user's limit is in MiB; ``None`` is an eighth of the free memory, from 64 MiB to 1 GiB.
    """
    if megabytes is not None:
        return megabytes << 20
    free = free_bytes()
    return _MOST if free is None else min(max(free // _SHARE, _LEAST), _MOST)


_DATA, _INDEX = "tensors.bin", "index.json"
_SCHEMA = 4
_ALIGNMENT = 64
"""Bytes: a cache line, and more than any element type needs."""
_COPIED = 1 << 20
"""Bytes up to which values are copied: pages of a mapped file stay in memory."""


class StoreWriter:
    """Writes an :class:`ActivationStore`, or adds to a finished one (``append``), as a context manager.

    The index is written last, after a block without an error: a folder without one is not a store. An older store in the
    folder is deleted at the start; a process that has it open keeps reading its data.

    Raises:
        UsageError: From any method, if the folder cannot be written or the disk is full.
    """

    def __init__(self, folder: Path, *, append: bool = False) -> None:
        self._folder = folder
        self._types: dict[tuple[str, tuple[int, ...]], int] = {}
        self._rows: dict[str, int] = {}
        self._kinds, self._places = array("L"), array("Q")
        self._skipped: dict[str, str] = {}
        if append:
            before = ActivationStore.open(folder)
            self._types = {known: kind for kind, known in enumerate(before.types)}
            self._rows, self._kinds, self._places, self._skipped = (
                before.rows,
                before.kinds,
                before.places,
                before.skipped,
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _INDEX).unlink(missing_ok=True)
            if not append:
                (folder / _DATA).unlink(missing_ok=True)
            self._file: BinaryIO = (folder / _DATA).open("ab")
            self._offset = self._file.tell()
        except OSError as err:
            raise cannot_write(folder, err) from err

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
            index = {"schema": _SCHEMA, "bytes": self._offset, "types": list(self._types), "names": list(self._rows)}
            index |= {"kinds": list(self._kinds), "places": list(self._places), "skipped": self._skipped}
            with replacing(self._folder / _INDEX) as file:
                file.write(json.dumps(index).encode())

    def add(self, name: str, array: object) -> None:
        """Store one tensor, of any shape; anything but numbers and bools is recorded as skipped.

        Raises:
            ValueError: There is a tensor of this name already.
        """
        if name in self._rows or name in self._skipped:
            raise ValueError(f"tensor '{name}' is in the store already")
        if not isinstance(array, np.ndarray):
            self._skipped[name] = f"it is a {type(array).__name__}, not a tensor"
        elif array.dtype.kind in "biufc" or is_extension(array.dtype):
            self._write(name, array)
        else:
            self._skipped[name] = f"it is of type {array.dtype.name}, not of numbers"

    def _write(self, name: str, given: NDArray[Any]) -> None:
        stored = storage_dtype(given.dtype)
        values = given.view(stored) if is_extension(given.dtype) else given.astype(stored, copy=False)
        padding = -self._offset % _ALIGNMENT
        try:
            self._file.write(bytes(padding))
            if values.size:
                self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        except OSError as err:
            raise cannot_write(self._folder / _DATA, err) from err
        self._rows[name] = len(self._rows)
        self._kinds.append(self._types.setdefault((given.dtype.name, given.shape), len(self._types)))
        self._places.append(self._offset + padding)
        self._offset += padding + values.nbytes


class ActivationStore(Mapping[str, NDArray[Any]]):
    """Tensors by name in the order they were added, each read from the disk on access.

    Values are read-only: views of the file, up to 1 MiB copies. Open a store with :meth:`open`.

    Attributes:
        types: Every type and shape that tensors have.
        rows: The number of each tensor, by name.
        kinds: The place in ``types`` of each tensor, by number.
        places: The first byte of each tensor in the file, by number.
        skipped: Tensors that could not be stored, with the reason.
    """

    def __init__(self, folder: Path, index: Mapping[str, Any]) -> None:
        """Map the file by its index."""
        self.folder = folder
        self.types: list[tuple[str, tuple[int, ...]]] = [(dtype, tuple(dims)) for dtype, dims in index["types"]]
        self.rows: dict[str, int] = {intern(name): row for row, name in enumerate(index["names"])}
        self.kinds, self.places = array("L", index["kinds"]), array("Q", index["places"])
        self.skipped: dict[str, str] = index["skipped"]
        known = [TensorInfo("", dtype_from_name(dtype), shape) for dtype, shape in self.types]
        kinds = self.kinds  # with self in it, the function would keep the file open
        self.infos = Infos(self.rows, lambda row: known[kinds[row]])
        # An empty file cannot be mapped.
        data = np.memmap(folder / _DATA, np.uint8, "r") if index["bytes"] else np.empty(0, np.uint8)
        self._data = data.view(np.ndarray)
        self._file = os.open(folder / _DATA, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    @classmethod
    def open(cls, folder: Path) -> ActivationStore:
        """Open a store of :class:`StoreWriter`.

        Raises:
            UnavailableError: The folder holds no finished store, one of another version, or a damaged one.
        """
        try:
            index = json.loads((folder / _INDEX).read_bytes())
            if index["schema"] != _SCHEMA:
                raise RunFolderError(
                    f"The activations in {folder} were written by another version of bisect-trt; delete the folder"
                )
            size = (folder / _DATA).stat().st_size
            if size != index["bytes"]:
                raise ValueError(f"{_DATA} has {size} bytes instead of {index['bytes']}")
            return cls(folder, index)
        except OSError as err:
            raise RunFolderError(
                f"There are no finished activations in {folder} ({err.strerror}); compute the reference again"
            ) from err
        except (ValueError, KeyError, TypeError) as err:
            raise RunFolderError(f"The activations in {folder} are damaged ({err}); delete the folder") from err

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        info = self.info(name)
        row = self.rows[name]
        place, (_, shape) = self.places[row], self.types[self.kinds[row]]
        size = info.dtype.itemsize * math.prod(shape)
        content = self._data[place : place + size]
        if 0 < size <= _COPIED:
            content = np.frombuffer(os.pread(self._file, size, place), np.uint8)
            if content.size < size:
                raise RunFolderError(
                    f"The activations in {self.folder} were truncated while they were in use; start again"
                )
        return content.view(info.dtype).reshape(shape)

    def info(self, name: str) -> TensorInfo:
        """Return name, type and shape, without touching the values."""
        if name not in self.rows:
            raise KeyError(f"no tensor '{name}' in {self.folder}: {self.skipped.get(name, 'never stored')}")
        return self.infos[name]
