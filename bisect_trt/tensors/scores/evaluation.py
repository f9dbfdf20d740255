"""The set of samples that a metric is of: on the disk, in one random order for all candidates, the reference's part known.

A worker reads the same files, so a request names the folder alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.tensors.npz import NpzFile, load_npz, save_npz
from bisect_trt.tensors.scores.terms import Array, Labels, Metric, Terms

_ONE = "labels"
"""How labels are called in their file that are one array."""
_SET, _TERMS = "set.json", "terms.npz"


@dataclass(frozen=True)
class Evaluation:
    """A set of samples, numbered in the order in which candidates see them.

    Attributes:
        folder: Where it lies.
        count: How many there are.
        labelled: Whether they have labels.
    """

    folder: Path
    count: int
    labelled: bool

    @classmethod
    def write(cls, folder: Path, samples: Iterable[tuple[Mapping[str, Array], Labels]], seed: int) -> Evaluation:
        """Write samples as they come, one at a time, and draw their order.

        Args:
            folder: Where to; it is made.
            samples: Inputs and labels of each.
            seed: Of the order.

        Raises:
            UsageError: Some have labels and some have none.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _TERMS).unlink(missing_ok=True)
        count, labelled = 0, False
        for inputs, labels in samples:
            if count and labelled is (labels is None):
                has = (
                    "no labels, and those before it have some" if labelled else "labels, and those before it have none"
                )
                raise UsageError(f"sample {count} of the set has {has}; give all of them labels, or none.")
            save_npz(folder / f"given-{count}.npz", inputs)
            if labels is not None:
                labelled = True
                named = labels if isinstance(labels, Mapping) else {_ONE: np.asarray(labels)}
                save_npz(folder / f"labels-{count}.npz", {str(name): np.asarray(each) for name, each in named.items()})
                (folder / f"labels-{count}.kind").write_text("dict" if isinstance(labels, Mapping) else "array")
            count += 1
        order = [int(place) for place in np.random.default_rng(seed).permutation(count)]
        (folder / _SET).write_text(json.dumps({"count": count, "labelled": labelled, "order": order}))
        return cls(folder, count, labelled)

    @classmethod
    def open(cls, folder: Path) -> Evaluation:
        """One that was written."""
        plain = _read_set(*_stamped(folder / _SET))
        return cls(folder, plain["count"], plain["labelled"])

    @property
    def order(self) -> list[int]:
        """The places, as they were given, of the samples in the order in which they are seen."""
        order: list[int] = _read_set(*_stamped(self.folder / _SET))["order"]
        return order

    def inputs(self, place: int) -> Path:
        """The inputs of a sample, by its place as it was given."""
        return self.folder / f"given-{place}.npz"

    @property
    def first(self) -> Path:
        """The inputs of a sample, to build for."""
        return self.inputs(0)

    def golden(self, place: int) -> Path:
        """What the reference makes of it."""
        return self.folder / f"golden-{place}.npz"

    def write_golden(self, samples: Iterable[Mapping[str, Array]]) -> None:
        """Take outputs that are known for the reference's, one sample after the other."""
        for place, outputs in enumerate(samples):
            save_npz(self.golden(place), outputs)

    def labels(self, place: int) -> Labels:
        """Its labels; ``None`` without any."""
        path = self.folder / f"labels-{place}.npz"
        if not self.labelled or not path.exists():
            return None
        named = load_npz(path)
        return named if path.with_suffix(".kind").read_text() == "dict" else named[_ONE]

    def reference(self, place: int) -> NpzFile:
        """What the reference makes of a sample, read as it is asked for."""
        return NpzFile(self.golden(place))

    def known(self, metric: Metric) -> Known:
        """What the reference scores, sample by sample; computed once, then read."""
        path = self.folder / _TERMS
        if not path.exists():
            assert metric.of_sample is not None
            terms = []
            for place in self.order:
                reference = dict(self.reference(place))
                terms.append(metric.of_sample(reference, reference, self.labels(place)))
            save_npz(path, {name: np.array([getattr(each, name) for each in terms]) for name in _FIELDS})
        return _read_terms(*_stamped(path))


_FIELDS = ("total", "weight", "low", "high")


@dataclass(frozen=True, eq=False)
class Known:
    """The reference's terms (see :class:`~bisect_trt.tensors.scores.terms.Terms`) in the order of the samples; shape (n,)."""

    total: NDArray[np.float64]
    weight: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def value(self, metric: Metric) -> float:
        """The reference's own number."""
        return metric.value(float(self.total.sum()), float(self.weight.sum()))

    def gain(self, metric: Metric, place: int, seen: Terms) -> float:
        """How much better a candidate does on a sample than the reference; NaN is the worst there is."""
        total = seen.total
        if math.isnan(total):
            total = self.high[place] if metric.lower_is_better else self.low[place]
        return self._better(metric) * float(total - self.total[place])

    def gains(self, metric: Metric) -> tuple[float, float]:
        """What no gain is less, and none is more than."""
        ends = [self._better(metric) * (end - self.total) for end in (self.low, self.high)]
        return float(np.minimum(*ends).min()), float(np.maximum(*ends).max())

    def needed(self, metric: Metric, bound: float) -> float:
        """The sum of gains with which the metric is exactly at its bound."""
        wanted = metric.gather(bound) * float(self.weight.sum())
        return self._better(metric) * (wanted - float(self.total.sum()))

    def estimate(self, metric: Metric, mean_gain: float) -> float:
        """The candidate's number, where its mean gain is that of the samples that were seen."""
        total = float(self.total.sum()) + self._better(metric) * mean_gain * len(self.total)
        return metric.value(total, float(self.weight.sum()))

    @staticmethod
    def _better(metric: Metric) -> float:
        return -1.0 if metric.lower_is_better else 1.0


def _stamped(path: Path) -> tuple[Path, int]:
    """A file as it is now: a process may work in several folders, and one run write what another has written."""
    return path.absolute(), path.stat().st_mtime_ns


@lru_cache(maxsize=2)
def _read_set(path: Path, stamp: int) -> dict[str, Any]:  # noqa: ARG001 - it tells one state of the file from another
    plain: dict[str, Any] = json.loads(path.read_text())
    return plain


@lru_cache(maxsize=2)
def _read_terms(path: Path, stamp: int) -> Known:  # noqa: ARG001 - as above
    return Known(**load_npz(path))
