"""Polygraphy's JSON files: what ``polygraphy run --save-inputs`` and ``--save-outputs`` write, and read again.

Inputs are a list of samples, each a mapping of name to array. Outputs are a ``RunResults``: runs by the runner's name,
each a list of iterations. An array is a ``.npy`` file in Base64. Types that NumPy lacks are written as the raw bytes that
``numpy.save`` makes of them, with their name beside (``polygraphy/json/serde.py``, ``comparator/struct.py`` of 0.53.6,
Apache-2.0).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.tensors.info import dtype_from_name, is_extension, is_string
from bisect_trt.tensors.npz import fixed_width, read_npy, replacing, viewed

Sample = dict[str, NDArray[Any]]
Runs = list[tuple[str, list[Sample]]]
_CLASS = "polygraphy_class"


def read_json(path: Path) -> Runs:
    """The runs in a file, each a name and its samples; a file of inputs holds one, without a name.

    Raises:
        UsageError: The file cannot be read, or holds something else.
        UnavailableError: A tensor's type needs ``ml_dtypes``, which is not installed.
    """
    try:
        runs = _runs(path, json.loads(path.read_bytes(), object_hook=_decode))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; give a file as polygraphy run saves") from error
    except BisectError:
        raise
    except Exception as error:  # what is nested too deep, and what has other types than it should
        raise UsageError(
            f"Cannot read {path}: it is not JSON as polygraphy run saves it, or it is damaged ({error!r:.80}); save it again"
        ) from error
    if not runs or not all(samples for _, samples in runs):
        raise UsageError(f"{path} holds no values; save it again")
    return runs


def _runs(path: Path, content: object) -> Runs:
    if isinstance(content, _Runs):
        return [(name, [_sample(path, sample) for sample in samples]) for name, samples in content.runs]
    return [("", [_sample(path, sample) for sample in (content if isinstance(content, list) else [content])])]


def write_inputs(path: Path, samples: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """Write samples as ``polygraphy run --load-inputs`` reads them.

    Raises:
        UsageError: The file cannot be written.
    """
    _write(path, [_encode_all(sample) for sample in samples])


def write_outputs(path: Path, runner: str, samples: Sequence[Mapping[str, NDArray[Any]]]) -> None:
    """Write one run as ``polygraphy run --load-outputs`` reads it.

    Raises:
        UsageError: The file cannot be written.
    """
    iterations = []
    for sample in samples:
        lazy = {name: {"values": value, _CLASS: "LazyArray"} for name, value in _encode_all(sample).items()}
        iterations.append({"outputs": lazy, "runtime": 0.0, "runner_name": runner, _CLASS: "IterationResult"})
    _write(path, {"lst": [[runner, iterations]], _CLASS: "RunResults"})


def _write(path: Path, content: object) -> None:
    with replacing(path) as file:
        file.write(json.dumps(content, indent=4).encode())


def _encode_all(sample: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, str]]:
    return {name: _encode(name, values) for name, values in sample.items()}


def _encode(name: str, values: NDArray[Any]) -> dict[str, str]:
    values = np.asarray(values)
    if is_string(values.dtype):
        values = fixed_width(name, values)
    extension = {"dtype": values.dtype.name} if is_extension(values.dtype) else {}
    stream = io.BytesIO()
    npy_format.write_array(stream, values.view(f"V{values.itemsize}") if extension else values, allow_pickle=False)
    return {"array": base64.b64encode(stream.getvalue()).decode(), **extension, _CLASS: "ndarray"}


class _Runs:
    def __init__(self, runs: list[tuple[str, list[Any]]]) -> None:
        self.runs = runs


def _decode(entry: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the file holds
    """An object of JSON as what it stands for."""
    kind = entry.get(_CLASS)
    if kind == "ndarray":
        stored = base64.b64decode(entry["array"])
        values = read_npy(io.BytesIO(stored), len(stored))
        if "dtype" in entry:
            return viewed(values, dtype_from_name(str(entry["dtype"])))
        return values.astype(np.str_).astype(object) if is_string(values.dtype) else values
    if kind in ("LazyArray", "LazyNumpyArray"):
        return entry["values"]
    if kind == "IterationResult":
        return entry["outputs"]
    if kind == "RunResults":
        return _Runs([(str(name), samples) for name, samples in entry["lst"]])
    if kind == "Tensor":
        raise ValueError("it holds tensors of PyTorch, not arrays of NumPy")
    return entry


def _sample(path: Path, sample: object) -> Sample:
    if not isinstance(sample, dict) or not sample or not all(isinstance(v, np.ndarray) for v in sample.values()):
        raise UsageError(f"{path} holds something else than arrays by tensor name; save it with polygraphy run")
    for name in sample:
        name.encode()  # JSON can hold halves of surrogate pairs, which are no text
    return sample
