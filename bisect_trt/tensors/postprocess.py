"""What is done to outputs before they are compared: the largest elements taken, shapes brought together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.options.values import TopK
from bisect_trt.tensors.dtypes import is_extension, is_string
from bisect_trt.tensors.method import Method

Array = NDArray[Any]


def postprocess(name: str, values: Array, method: Method) -> Array:
    """An output as it is to be compared: its top K, where they are asked for.

    Where they are asked for all outputs, one that has no such axis stays as it is.

    Raises:
        UsageError: They are asked for this output, and it has no such axis or holds strings.
    """
    wanted = method.top_k_of(name)
    if wanted is None:
        return values
    if is_string(values.dtype) or not -values.ndim <= wanted.axis < values.ndim:
        if name in method.top_k:
            kind = "holds strings" if is_string(values.dtype) else f"of shape {list(values.shape)} has no such axis"
            raise UsageError(
                f"--postprocess top-{wanted.k},axis={wanted.axis}: the output '{name}' {kind}; leave it out"
            )
        return values
    return top_k(values, wanted)


def top_k(values: Array, wanted: TopK) -> Array:
    """The indices of the largest elements, largest first; of equal ones the first comes first, NaN comes last."""
    if is_extension(values.dtype):
        values = values.astype(np.float32)
    if values.dtype.kind == "f":
        order = np.argsort(-values, axis=wanted.axis, kind="stable")
    else:  # the negative of an unsigned number is none
        length = values.shape[wanted.axis]
        rising = np.argsort(np.flip(values, wanted.axis), axis=wanted.axis, kind="stable")
        order = length - 1 - np.flip(rising, wanted.axis)
    return np.take(order, np.arange(min(wanted.k, order.shape[wanted.axis])), axis=wanted.axis)


def match_shape(values: Array, shape: tuple[int, ...]) -> Array:
    """Values permuted or reshaped to a shape, as far as that can be done.

    As Polygraphy does without shape checks (``util.try_match_shape``, Apache-2.0): with the same sizes in another order
    the axes are permuted, the first axis of a size to the first place that wants it; else elements keep their order.
    """
    if values.shape == shape or values.size != int(np.prod(shape, dtype=np.int64)):
        return values
    if values.ndim == len(shape) and sorted(values.shape) == sorted(shape):
        left = list(range(values.ndim))
        axes = []
        for size in shape:
            axis = next(axis for axis in left if values.shape[axis] == size)
            left.remove(axis)
            axes.append(axis)
        return np.transpose(values, axes)
    return values.reshape(shape)
