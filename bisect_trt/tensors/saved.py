"""Samples and outputs in files: ``.npz``, one file a sample, or Polygraphy's JSON, all samples in one file.

``polygraphy run --save-inputs`` writes a list of samples, each a mapping of name to array; ``--save-outputs`` a ``RunResults``:
runs by the runner's name, each a list of iterations. An array is a ``.npy`` file in Base64. Types that NumPy lacks are written
as the raw bytes that ``numpy.save`` makes of them, with their name beside (``polygraphy/json/serde.py``,
``comparator/struct.py`` of 0.53.6, Apache-2.0).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from bisect_trt.errors import BisectError, InputValuesError
from bisect_trt.tensors.info import dtype_from_name, is_extension
from bisect_trt.tensors.npz import NpzFile, read_npy, replacing, save_npz, viewed

Sample = dict[str, NDArray[Any]]
_SUFFIXES = (".json", ".npz")

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SavedRun:
    """The saved values of one run, by sample; its name is the file's, and the runner's where the file holds several."""

    name: str
    samples: Sequence[Values]


def load_runs(path: Path) -> list[SavedRun]:
    """Return the runs in a file, in several numbered files, or in a folder with a file for each iteration.

    Args:
        path: ``x.npz``, or if there is none ``x-1.npz``, ``x-2.npz`` and so on, a sample each; ``x.json``; a folder.

    Raises:
        UsageError: There is no such file, or it cannot be read.
    """
    if path.is_dir():
        parts = [load_runs(file) for file in files_of(path)]
        if not parts:
            raise InputValuesError(f"{path} is a folder without .json or .npz files; name a file of saved values")
        sides = zip(*parts, strict=False)
        return [SavedRun(str(path), [sample for run in side for sample in run.samples]) for side in sides]
    if path.suffix == ".json":
        return read_json(path)
    return [SavedRun(str(path), [NpzFile(file) for file in numbered(path)])]


def files_of(path: Path) -> list[Path]:
    """Return the files that :func:`load_runs` reads."""
    return [file for file in sorted(path.iterdir()) if file.suffix in _SUFFIXES] if path.is_dir() else numbered(path)


def numbered(path: Path) -> list[Path]:
    """Return the file, or if there is none the numbered ones of :func:`save_samples`."""
    if not path.exists():
        names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
        if files := list(takewhile(Path.exists, names)):
            return files
    return [path]


def same_samples(run: SavedRun, number: int, other: str) -> None:
    """Refuse a saved run that has not as many samples as another.

    Raises:
        UsageError: It has not.
    """
    if len(run.samples) != number:
        raise InputValuesError(
            f"{run.name} holds {len(run.samples)} sample(s) where {other} {number}; save both from the same inputs."
        )


def save_samples(path: Path, samples: Sequence[Values], runner: str | None = None) -> None:
    """Write samples as ``polygraphy run`` reads them, the outputs of a ``runner`` if it is named.

    ``x.json`` holds them all; else ``x.npz`` holds one, and several go to ``x-1.npz``, ``x-2.npz`` and so on.

    Raises:
        UsageError: A file cannot be written.
    """
    if path.suffix != ".json":
        for number, sample in enumerate(samples, 1):
            several = len(samples) > 1
            save_npz(path.with_name(f"{path.stem}-{number}{path.suffix}") if several else path, sample)
        return
    content: Any = [{name: _encode(value) for name, value in sample.items()} for sample in samples]
    if runner is not None:
        runs = [
            {
                "outputs": {name: {"values": value, _CLASS: "LazyArray"} for name, value in sample.items()},
                "runtime": 0.0,
                "runner_name": runner,
                _CLASS: "IterationResult",
            }
            for sample in content
        ]
        content = {"lst": [[runner, runs]], _CLASS: "RunResults"}
    with replacing(path) as file:
        file.write(json.dumps(content, indent=4).encode())


_CLASS = "polygraphy_class"


def read_json(path: Path) -> list[SavedRun]:
    """Return the runs in a file; a file of inputs holds one, and one sample may stand alone."""
    try:
        content = json.loads(path.read_bytes(), object_hook=_decode)
        runs = content if isinstance(content, tuple) else (("", content if isinstance(content, list) else [content]),)
        names = [f"{path} ({name})" if len(runs) > 1 else str(path) for name, _ in runs]
        found = [[_sample(path, sample) for sample in samples] for _, samples in runs]
    except OSError as error:
        raise InputValuesError(f"Cannot read {path}: {error.strerror}; give a file as polygraphy run saves") from error
    except BisectError:
        raise
    except Exception as error:  # too deep nesting, and wrong types
        raise InputValuesError(
            f"Cannot read {path}: it is not JSON as polygraphy run saves it, or it is damaged ({error!r:.80}); save it again"
        ) from error
    if not all(found) or not found:
        raise InputValuesError(f"{path} holds no values; save it again")
    return [SavedRun(name, samples) for name, samples in zip(names, found, strict=True)]


def _encode(values: NDArray[Any]) -> dict[str, str]:
    values = np.asarray(values)
    extension = {"dtype": values.dtype.name} if is_extension(values.dtype) else {}
    stream = io.BytesIO()
    npy_format.write_array(stream, values.view(f"V{values.itemsize}") if extension else values, allow_pickle=False)
    return {"array": base64.b64encode(stream.getvalue()).decode(), **extension, _CLASS: "ndarray"}


def _decode(entry: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the value that an object of JSON encodes; a tuple for runs."""
    kind = entry.get(_CLASS)
    if kind == "ndarray":
        values = read_npy(io.BytesIO(base64.b64decode(entry["array"])))
        if "dtype" in entry:
            return viewed(values, dtype_from_name(str(entry["dtype"])))
        return values
    if kind in ("LazyArray", "LazyNumpyArray"):
        return entry["values"]
    if kind == "IterationResult":
        return entry["outputs"]
    if kind == "RunResults":
        return tuple((str(name), samples) for name, samples in entry["lst"])
    if kind == "Tensor":
        raise ValueError("it holds PyTorch tensors, not NumPy arrays")
    return entry


def _sample(path: Path, sample: object) -> Sample:
    if not isinstance(sample, dict) or not sample or not all(isinstance(v, np.ndarray) for v in sample.values()):
        raise InputValuesError(f"{path} holds something else than arrays by tensor name; save it with polygraphy run")
    for name in sample:
        name.encode()  # JSON can hold lone surrogates, which are no text
    return sample
