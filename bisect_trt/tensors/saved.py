"""Samples and results in files: ``.npz``, one file a sample, or Polygraphy's JSON, all samples in one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.tensors.npz import NpzFile, save_npz
from bisect_trt.tensors.polygraphy_json import read_json, write_inputs, write_outputs

_SUFFIXES = (".json", ".npz")

Values = Mapping[str, NDArray[Any]]


class Selected(Mapping[str, NDArray[Any]]):
    """Some tensors of a larger mapping, each read when it is asked for."""

    def __init__(self, values: _Readable, names: Sequence[str]) -> None:
        """``names`` are among the values."""
        self._values = values
        self._names = names

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Readable(Protocol):
    def __getitem__(self, name: str) -> NDArray[Any]: ...


@dataclass(frozen=True)
class SavedRun:
    """What one run left.

    Attributes:
        name: Its file, and the runner's name where the file holds several.
        samples: The tensors by name, a mapping for each input sample.
    """

    name: str
    samples: Sequence[Values]


def load_runs(path: Path) -> list[SavedRun]:
    """The runs in a file, in several numbered files, or in a folder with a file for each iteration.

    Args:
        path: ``x.npz``, or if there is none ``x-1.npz``, ``x-2.npz`` and so on, a sample each; ``x.json``; a folder.

    Raises:
        UsageError: There is nothing, or it cannot be read.
    """
    if path.is_dir():
        parts = [load_runs(file) for file in files_of(path)]
        if not parts:
            raise UsageError(f"{path} is a folder without .json or .npz files; name a file of saved values")
        sides = zip(*parts, strict=False)
        return [SavedRun(str(path), [sample for run in side for sample in run.samples]) for side in sides]
    if path.suffix == ".json":
        runs = read_json(path)
        several = len(runs) > 1
        return [SavedRun(f"{path} ({name})" if several else str(path), samples) for name, samples in runs]
    return [SavedRun(str(path), [NpzFile(file) for file in numbered(path)])]


def files_of(path: Path) -> list[Path]:
    """The files that :func:`load_runs` reads."""
    return [file for file in sorted(path.iterdir()) if file.suffix in _SUFFIXES] if path.is_dir() else numbered(path)


def numbered(path: Path) -> list[Path]:
    """A file, or if there is none those that :func:`save_samples` made of it for several samples."""
    if not path.exists():
        names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
        if files := list(takewhile(Path.exists, names)):
            return files
    return [path]


def save_samples(path: Path, samples: Sequence[Values], runner: str | None = None) -> None:
    """Write samples, in the format that the file's name says.

    Args:
        path: ``x.json`` holds them all; else ``x.npz`` holds one, and several go to ``x-1.npz``, ``x-2.npz`` and so on.
        samples: Tensors by name.
        runner: Who made them, if they are outputs; ``None`` for inputs.

    Raises:
        UsageError: A file cannot be written.
    """
    if path.suffix == ".json" and runner is None:
        write_inputs(path, samples)
    elif path.suffix == ".json":
        write_outputs(path, str(runner), samples)
    else:
        for number, sample in enumerate(samples, 1):
            several = len(samples) > 1
            save_npz(path.with_name(f"{path.stem}-{number}{path.suffix}") if several else path, sample)
