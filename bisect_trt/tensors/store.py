"""The reference's tensors on disk: one flat binary file and an index.

Activations can be larger than memory, and each probe needs only some of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

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


def write_store(folder: Path, values: Mapping[str, object], *, append: bool = False) -> None:
    """Write an :class:`ActivationStore`, or add to the one in the folder; anything but numbers, bools and strings is left out.

    The index is written last, when all went well: without its index the data is damaged.

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
        with data.open("ab" if append else "wb") as file:
            for name, array in values.items():
                if isinstance(array, np.ndarray) and (
                    array.dtype.kind in "biufU" or is_extension(array.dtype)
                ):
                    native = array.astype(array.dtype.newbyteorder("="), copy=False)
                    # The name of a type of strings, str160, is none that NumPy reads.
                    dtype = native.dtype.str if native.dtype.kind == "U" else native.dtype.name
                    tensors[name] = file.tell(), dtype, native.shape
                    file.write(native.tobytes())
            size = file.tell()
    except OSError as err:
        raise cannot_write(data, err) from err
    with replacing(folder / _INDEX) as file:
        file.write(json.dumps({"bytes": size, "tensors": tensors}).encode())


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

    Attributes:
        infos: The type and shape of each tensor.

    Raises:
        UnavailableError: The folder holds no finished store, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        """Read the index."""
        index = _read(folder)
        self._folder = folder
        self._index: dict[str, int] = {
            name: place for name, (place, _, _) in index["tensors"].items()
        }
        self.infos = {
            name: TensorInfo(name, dtype_from_name(dtype), tuple(shape))
            for name, (_, dtype, shape) in index["tensors"].items()
        }

    def __getitem__(self, name: str) -> Array:
        info = self.infos[name]
        size = info.nbytes or 0
        content = np.fromfile(self._folder / _DATA, np.uint8, size, offset=self._index[name])
        if content.size < size:
            raise RunFolderError(
                f"The activations in {self._folder} were truncated while they were in use; start again"
            )
        return content.view(info.dtype).reshape(cast("Any", info.shape))
