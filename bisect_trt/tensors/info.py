"""What is known of a tensor before it has a value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """Name, type and shape of a graph input or output.

    Attributes:
        name: The tensor's name, as in the ONNX graph.
        dtype: NumPy type of its elements (``ml_dtypes`` ones for bfloat16 and float8; ``object`` for strings).
        shape: One entry a dimension: an int where it is known, the dimension's name or ``None`` where it is free.
            ``None`` in place of the tuple means that not even the rank is known.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int | str | None, ...] | None

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a known number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)
