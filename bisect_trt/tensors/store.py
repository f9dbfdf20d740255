"""The reference's tensors on disk: one flat binary file, read as memory-mapped views, and an index.

Activations can be larger than memory, and each probe needs only some of them.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from bisect_trt.aliases import Fields
from bisect_trt.errors import RunFolderError
from bisect_trt.tensors.files import cannot_write, replacing
from bisect_trt.tensors.info import (
    Array,
    ByName,
    TensorInfo,
    dtype_from_name,
    is_extension,
    storage_dtype,
)
from bisect_trt.tensors.kernel import free_bytes

_SHARE = 8
"""The part of the free memory for the arrays of one slice: a runtime holds weights twice, a
comparison errors too."""
_LEAST = 64 << 20
_MOST = 1 << 30


def swap_limit(megabytes: int | None = None) -> int:
    """Return the bytes of weights and tensors past which a model is run in slices.

    The user's limit is in MiB; ``None`` is an eighth of the free memory, from 64 MiB to 1 GiB.
    """
    if megabytes is not None:
        return megabytes << 20
    free = free_bytes()
    return _MOST if free is None else min(max(free // _SHARE, _LEAST), _MOST)


_DATA = "tensors.bin"
_INDEX = "index.json"
_ALIGNMENT = 64
"""Bytes: a cache line, and more than any element type needs."""
_COPIED = 1 << 20
"""Bytes up to which values are copied: pages of a mapped file stay in memory."""


def write_store(folder: Path, values: Mapping[str, object], *, append: bool = False) -> None:
    """Write an :class:`ActivationStore`, or add to the one in the folder; anything but numbers, bools and strings is left out.

    The index is written last, when all went well: a folder without one is not a store. An older
    store in the folder is deleted at the start; a process that has it open keeps reading its data.

    Args:
        folder: The folder of the store.
        values: Values by tensor name.
        append: Whether the store in the folder is extended.

    Raises:
        UsageError: The folder cannot be written or the disk is full.
    """
    data = folder / _DATA
    tensors = _read(folder)["tensors"] if append else Fields()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The index goes first: from here on the folder is no store until all is written.
        (folder / _INDEX).unlink(missing_ok=True)
        if not append:
            # Unlinked, not truncated: a process with a mapping of the old file would get SIGBUS.
            data.unlink(missing_ok=True)
        with data.open("ab") as file:
            for name, array in values.items():
                if isinstance(array, np.ndarray) and (
                    array.dtype.kind in "biufcU" or is_extension(array.dtype)
                ):
                    # The name of a type of strings, str160, is none that NumPy reads.
                    dtype = array.dtype.str if array.dtype.kind == "U" else array.dtype.name
                    tensors[name] = _append(file, array), dtype, array.shape
            size = file.tell()
    except OSError as err:
        raise cannot_write(data, err) from err
    with replacing(folder / _INDEX) as file:
        file.write(json.dumps({"bytes": size, "tensors": tensors}).encode())


def _append(file: IO[bytes], tensor: Array) -> int:
    """Write the values of an array, and return the place of the first byte."""
    stored = storage_dtype(tensor.dtype)
    values = (
        tensor.view(stored) if is_extension(tensor.dtype) else tensor.astype(stored, copy=False)
    )
    # Views of a mapped file must start where their element type may.
    file.write(bytes(-file.tell() % _ALIGNMENT))
    place = file.tell()
    if values.size:
        file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return place


def _read(folder: Path) -> Fields:
    """Return the index of a store.

    Raises:
        UnavailableError: The folder holds no finished store, or a damaged one.
    """
    try:
        index: Fields = json.loads((folder / _INDEX).read_bytes())
        if (size := (folder / _DATA).stat().st_size) != index["bytes"]:
            raise ValueError(f"{_DATA} has {size} bytes instead of {index['bytes']}")
    except (OSError, ValueError, TypeError) as err:
        raise RunFolderError(
            f"The activations in {folder} are damaged ({err}); start again"
        ) from err
    return index


class ActivationStore(ByName[Array]):
    """Tensors of :func:`write_store` by name in the order they were added, each read from the disk on access.

    Values are read-only: views of the file, up to 1 MiB copies.

    Attributes:
        infos: The type and shape of each tensor.

    Raises:
        UnavailableError: The folder holds no finished store, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        """Map the file by its index."""
        index = _read(folder)
        self._folder = folder
        self._index: dict[str, int] = {
            name: place for name, (place, _, _) in index["tensors"].items()
        }
        self.infos = {
            name: TensorInfo(name, dtype_from_name(dtype), tuple(shape))
            for name, (_, dtype, shape) in index["tensors"].items()
        }
        # An empty file cannot be mapped.
        data = np.memmap(folder / _DATA, np.uint8, "r") if index["bytes"] else np.empty(0, np.uint8)
        self._data = data.view(np.ndarray)
        self._file = os.open(folder / _DATA, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __getitem__(self, name: str) -> Array:
        info = self.infos[name]
        place = self._index[name]
        size = info.nbytes or 0
        content = self._data[place : place + size]
        if 0 < size <= _COPIED:
            # pread copies: pages of a mapping would stay in the memory of this process.
            content = np.frombuffer(os.pread(self._file, size, place), np.uint8)
            if content.size < size:
                raise RunFolderError(
                    f"The activations in {self._folder} were truncated while they were in use; start again"
                )
        return content.view(info.dtype).reshape(cast("Any", info.shape))
