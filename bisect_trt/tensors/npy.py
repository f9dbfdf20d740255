"""Arrays in NumPy's ``.npy`` format, from files of strangers: what a header promises is held against what is there."""

from __future__ import annotations

import math
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

_KINDS = "biufcSUV"
"""Numbers, strings, and the raw bytes that plain NumPy makes of ``ml_dtypes`` types."""


def read_npy(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array of numbers, strings, or raw bytes.

    NumPy allocates what the header says before it reads on, and some headers (elements of no size, a shape past 64 bits)
    make it raise anything.

    Args:
        stream: Can be rewound; it holds the array alone.
        size: How many bytes it holds.

    Raises:
        ValueError: It holds something else, or less or more than its header says.
    """
    try:
        version = npy_format.read_magic(stream)
        header = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
        shape, _, dtype = header[version](stream)
    except Exception as error:  # the header is a Python literal, and its parser and NumPy's raise all kinds
        raise ValueError("the header of an array cannot be read") from error
    if dtype.kind not in _KINDS or dtype.names is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        raise ValueError(f"it holds an array of {dtype!s:.60}, not of numbers or strings")
    if any(isinstance(dim, bool) or dim < 0 for dim in shape):
        raise ValueError(f"it holds an array of shape {shape!s:.60}")
    promised, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if promised != held:
        raise ValueError(f"the header of an array says {promised} bytes, and there are {held}")
    stream.seek(0)
    return np.asarray(npy_format.read_array(stream, allow_pickle=False))


def viewed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Stored elements as what they are.

    Raises:
        ValueError: They are of another size, or are no stored ``ml_dtypes`` elements.
    """
    if dtype.kind == "O" or values.dtype.kind == "O" or dtype.itemsize != values.dtype.itemsize:
        raise ValueError(f"elements of {values.dtype} are no stored {dtype}")
    return values.view(dtype)
