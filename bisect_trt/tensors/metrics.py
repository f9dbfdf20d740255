"""Metrics over a set of samples: top-K, cosine similarity, PSNR, SNR, and a function of a Python script.

A metric is a mean over samples (:class:`Terms`), so that a few samples can decide a verdict, or one number for the whole set.
The set lies on the disk in one random order for all candidates, with the reference's outputs and terms (:class:`Evaluation`).
A worker reads the same files, so a request names the folder alone.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError, quoted
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.npz import NpzFile, load_npz, save_npz
from bisect_trt.tensors.scripts import Outputs as NamedOutputs
from bisect_trt.tensors.scripts import import_script, is_script, split_script, user_code
from bisect_trt.tensors.stats import cosine_similarity, is_floating, peak_signal_to_noise, signal_to_noise, to_float

Array = NDArray[Any]
Vector = NDArray[np.float64]
Outputs = Mapping[str, Array]
Labels = Any
"""Labels of one sample: an array, or a mapping of name to array; ``None`` without labels."""

FUNCTION, RANGE = "metric", "RANGE"
PARAMETERS = ("outputs", "reference", "labels")
"""What a user's function is given: three lists with an entry a sample."""
NAMES = "top-1 (top-K), cosine, psnr, snr"
MOST_DB = 100.0
"""Decibels of a sample without any error, since Inf has no mean."""
_IGNORED = -100
"""The label of a position that is not counted, as in PyTorch's ``cross_entropy``."""
_KIND = "metric"
_TOP = re.compile(r"top-?([1-9]\d*)")


@dataclass(frozen=True)
class Terms:
    """What one sample adds to a metric, which is ``sum(total) / sum(weight)`` over the samples.

    Attributes:
        total: The sample's part.
        weight: Its weight, which follows from the reference's outputs and the labels alone.
        low: The least ``total`` that any candidate can have on this sample.
        high: The largest.
    """

    total: float
    weight: float
    low: float
    high: float


@dataclass(frozen=True)
class Metric:
    """A number for a set of samples.

    Attributes:
        name: As the user gave it.
        lower_is_better: Whether a smaller number is better.
        of_sample: The terms of a sample, given the candidate's outputs, the reference's, and the labels; ``None`` for a metric
            of the whole set.
        of_set: The number of the whole set, for such a metric.
        unit: The number's unit, with a leading blank.
    """

    name: str
    lower_is_better: bool
    of_sample: Callable[[Outputs, Outputs, Labels], Terms] | None = None
    of_set: Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Labels]], float] | None = None
    unit: str = ""

    def say(self, value: float) -> str:
        """A value with its unit."""
        return f"{value:.6g}{self.unit}"

    def value(self, total: float, weight: float) -> float:
        """The metric, of the sums over samples; NaN without weight."""
        return total / weight if weight else math.nan


def find_metric(asked: str, *, lower_is_better: bool = False) -> Metric:
    """The metric of a name.

    Args:
        asked: ``SCRIPT.py[:FUNC]``, or ``NAME[:OUTPUT]`` of a built-in metric.
        lower_is_better: Whether a smaller number is better; for a user's function only.

    Raises:
        UsageError: There is no such metric, file or function; or ``lower_is_better`` is given for a built-in metric.
    """
    if is_script(asked):
        return ScriptMetric(asked).whole(lower_is_better=lower_is_better)
    name, _, output = asked.partition(":")
    name = name.lower()
    if match := _TOP.fullmatch(name):
        metric = Metric(name, lower_is_better=False, of_sample=partial(_top, name, output or None, int(match[1])))
    elif name in _SIGNALS:
        of, low, high, unit = _SIGNALS[name]
        metric = Metric(name, False, partial(_worst_signal, name, output or None, of, (low, high)), unit=unit)
    else:
        raise UsageError(f"--metric {asked}: there is no metric of this name; choose {NAMES}, or SCRIPT.py[:FUNC].")
    if lower_is_better:
        raise UsageError(f"--lower-is-better applies to a metric of your own; of {name} more is better. Drop it.")
    return metric


def script_file(asked: str) -> list[Path]:
    """The script that a metric depends on, if it is one.

    Raises:
        UsageError: There is no such file.
    """
    return [split_script(asked, FUNCTION, _KIND)[0]] if is_script(asked) else []


def _top(what: str, output: str | None, k: int, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:
    """The share of rows (along the last axis) whose label is among their K largest values; of equal ones the first comes first.

    Without labels, the label is the place of the reference's largest value. An output of integers holds classes already. A
    row with a NaN is wrong.
    """
    name = _chosen_output(output, reference, what, floating=False)
    ours, there = reference[name], seen.get(name)
    there = there if there is not None and there.shape == ours.shape else None
    if not is_floating(ours):
        truth = _classes(_labels_of(labels, name), ours.size, ours)
        return _share(None if there is None else there.reshape(-1) == truth, truth)
    wide = _rows(ours)
    if k >= wide.shape[1]:
        raise UsageError(
            f"--metric {what}: '{name}' has {wide.shape[1]} classes a row, so every label is among its {k} largest; name "
            "another output, or a smaller K."
        )
    truth = _classes(_labels_of(labels, name), len(wide), wide)
    if there is None:
        return _share(None, truth)
    rows, counted = _rows(there), truth != _IGNORED
    if ((truth[counted] < 0) | (truth[counted] >= rows.shape[1])).any():
        raise UsageError(
            f"--metric {what}: a label is no class of '{name}', which has {rows.shape[1]}; correct the loader."
        )
    place = np.where(counted, truth, 0)[:, None]
    own = np.take_along_axis(rows, place, axis=1)
    earlier = np.arange(rows.shape[1])[None, :] < place
    ahead = np.count_nonzero((rows > own) | ((rows == own) & earlier), axis=1)
    return _share((ahead < k) & ~np.isnan(rows).any(axis=1), truth)


def _share(right: NDArray[np.bool_] | None, truth: NDArray[np.int64]) -> Terms:
    counted = truth != _IGNORED
    weight = float(np.count_nonzero(counted))
    return Terms(0.0 if right is None else float(np.count_nonzero(right & counted)), weight, 0.0, weight)


def _rows(values: Array) -> NDArray[np.float64]:
    return to_float(values).reshape(-1, values.shape[-1] if values.ndim else 1)


def _classes(labels: Array | None, count: int, reference: Array) -> NDArray[np.int64]:
    """A class for each row: from labels that hold classes or a number for each class, else the reference's.

    Raises:
        UsageError: The labels do not fit the rows.
    """
    rows = is_floating(reference) and reference.ndim > 1
    if labels is None:
        return np.asarray(reference.argmax(axis=1) if rows else reference).reshape(-1).astype(np.int64)
    if labels.dtype.kind in "biuf" and labels.size == count:
        return labels.reshape(-1).astype(np.int64)
    if labels.dtype.kind in "biuf" and rows and labels.size == reference.size:
        return np.asarray(labels.reshape(reference.shape).argmax(axis=1))
    raise UsageError(
        f"a sample has labels of shape {list(labels.shape)} and type {labels.dtype.name}, and {count} rows to be labelled; "
        "give a class for each row."
    )


_SIGNALS: dict[str, tuple[Callable[[Vector, Vector], float], float, float, str]] = {
    "cosine": (cosine_similarity, -1.0, 1.0, ""),
    "psnr": (peak_signal_to_noise, -MOST_DB, MOST_DB, " dB"),
    "snr": (signal_to_noise, -MOST_DB, MOST_DB, " dB"),
}
"""Similarity of a signal to the reference's: the number of two flat vectors, its least and largest value, its unit."""


def _worst_signal(
    what: str,
    output: str | None,
    measure: Callable[[Vector, Vector], float],
    ends: tuple[float, float],
    seen: Outputs,
    reference: Outputs,
    labels: Labels,  # noqa: ARG001 - the signature of all metrics
) -> Terms:
    """The number of one output, or of the worst of all floating-point outputs; the metric is the mean over samples."""
    names = [_chosen_output(output, reference, what)]
    if output is None:
        names = [name for name, values in reference.items() if is_floating(values)]
    low, high = ends
    found = high
    for name in names:
        ours, theirs = reference[name], seen.get(name)
        if theirs is None or theirs.shape != ours.shape:
            return Terms(low, 1.0, low, high)
        if ours.size:
            with np.errstate(all="ignore"):
                value = measure(to_float(ours).reshape(-1), to_float(theirs).reshape(-1))
            found = min(found, low if math.isnan(value) else max(value, low))
    return Terms(found, 1.0, low, high)


def _chosen_output(name: str | None, reference: Outputs, what: str, *, floating: bool = True) -> str:
    """The output that was named, else the first of a suitable type.

    Raises:
        UsageError: There is none.
    """
    if name is not None:
        if name not in reference:
            raise UsageError(f"--metric {what}:{name}: there is no such output; the outputs are {quoted(reference)}.")
        return name
    for each, values in reference.items():
        if not floating or (is_floating(values) and values.ndim and not is_string(values.dtype)):
            return each
    raise UsageError(
        f"--metric {what} needs an output of floating-point numbers, and there is none among {quoted(reference)}; name "
        "another metric, or give a function of your own (--metric SCRIPT.py)."
    )


def _labels_of(labels: Labels, name: str) -> Array | None:
    """The labels of an output: the ones of its name where there are several, else the first."""
    if not isinstance(labels, Mapping):
        return None if labels is None else np.asarray(labels)
    return np.asarray(labels.get(name, next(iter(labels.values())))) if labels else None


class ScriptMetric:
    """A function of a user's script: ``FUNC(outputs, reference, labels)``, three lists with an entry a sample.

    It may take fewer of them, by these names. It returns one number for the whole set, or a number for each sample, of which
    the metric is the mean. ``RANGE = (lowest, highest)`` in the script bounds the numbers of samples, so that a few samples
    can decide.
    """

    def __init__(self, asked: str) -> None:
        """Run the script.

        Raises:
            UsageError: There is no such file or function, it raises, or its range is invalid.
        """
        self._path, self._name = split_script(asked, FUNCTION, _KIND)
        with user_code(self._path, _KIND):
            module = import_script(self._path, _KIND)
        function = getattr(module, self._name, None)
        if not callable(function):
            raise UsageError(
                f"{self._path} has no function '{self._name}'; add it, or name another as {self._path}:FUNCTION"
            )
        self._function: Callable[..., object] = function
        self._by_name = self._named_parameters(function)
        self._low, self._high = self._limits(getattr(module, RANGE, None))

    def _named_parameters(self, function: Callable[..., object]) -> tuple[str, ...]:
        """The parameters that are passed by name; none where all three are passed in their order.

        Raises:
            UsageError: The function takes something else.
        """
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # a C function without a signature
            return ()
        taken = list(signature.parameters)
        named = tuple(name for name in PARAMETERS if name in taken)
        with suppress(TypeError):
            signature.bind(**dict.fromkeys(named))
            if named:
                return named
        if all(taken.index(name) == PARAMETERS.index(name) for name in named):
            with suppress(TypeError):
                signature.bind(*PARAMETERS)
                return ()
        raise UsageError(
            f"'{self._name}' of {self._path} takes {signature}; write def {self._name}({', '.join(PARAMETERS)}), three lists "
            "with an entry a sample, or leave out those that it does not need."
        )

    def _limits(self, given: Any) -> tuple[float, float]:  # noqa: ANN401 - whatever the script has
        if given is None:
            return -math.inf, math.inf
        with suppress(TypeError, ValueError):
            low, high = map(float, given)
            if low < high:
                return low, high
        raise UsageError(
            f"{RANGE} of {self._path} is {given!r:.60}; it must be the lowest and the highest number of a sample."
        )

    def call(self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]) -> float | Vector:
        """The function's number, or one for each sample; NaN where it raises on NaN or Inf that the reference lacks.

        Raises:
            UsageError: It raises, or returns something else.
        """
        sides = [NamedOutputs(each, "target") for each in seen], [NamedOutputs(each, "reference") for each in reference]
        given = dict(zip(PARAMETERS, (*sides, list(labels)), strict=True))
        try:
            with user_code(self._path, _KIND):
                if self._by_name:
                    made = self._function(**{name: given[name] for name in self._by_name})
                else:
                    made = self._function(*given.values())
        except UsageError:
            if _all_finite(seen) or not _all_finite(reference):
                raise
            return math.nan
        with suppress(TypeError, ValueError):
            numbers = np.asarray(made)
            if numbers.dtype.kind in "biuf" and numbers.ndim == 0:
                return float(numbers)
            if numbers.dtype.kind in "biuf" and numbers.shape == (len(seen),):
                return numbers.astype(np.float64)
        raise UsageError(
            f"'{self._name}' of {self._path} gives {made!r:.60}; it must return a number, or one for each of the {len(seen)} "
            "samples."
        )

    def whole(self, *, lower_is_better: bool) -> Metric:
        """The metric of the whole set."""
        return Metric(f"{self._path.name}:{self._name}", lower_is_better, of_set=self._of_set)

    def by_sample(self, metric: Metric) -> Metric:
        """The same as a mean over samples."""
        return replace(metric, of_sample=self._of_sample)

    def is_mean(self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]) -> bool:
        """Whether the function gives a sample the same number alone as among the others.

        The reference's own outputs have no error, so they are also paired with each other's, unless the function raises on
        these, as on texts of other lengths.
        """
        if not self._is_mean(seen, reference, labels):
            return False
        with suppress(UsageError):
            return self._is_mean([*seen[1:], *seen[:1]], reference, labels)
        return True

    def _is_mean(self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]) -> bool:
        together = self.call(seen, reference, labels)
        if isinstance(together, float) or len(seen) < 2:
            return False
        alone = [self.call([one], [ours], [label]) for one, ours, label in zip(seen, reference, labels, strict=False)]
        return all(isinstance(each, np.ndarray) for each in alone) and np.array_equal(
            np.concatenate(alone), together, equal_nan=True
        )

    def _of_set(self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]) -> float:
        with np.errstate(all="ignore"):
            return float(np.mean(self.call(seen, reference, labels)))

    def _of_sample(self, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:
        value = self._of_set([seen], [reference], [labels])
        if value < self._low or value > self._high:
            raise UsageError(
                f"'{self._name}' of {self._path} gives {value:g} for a sample, beyond its {RANGE}; correct one of them."
            )
        return Terms(value, 1.0, self._low, self._high)


def _all_finite(samples: Sequence[Outputs]) -> bool:
    arrays = (values for outputs in samples for values in outputs.values())
    return all(np.isfinite(to_float(values)).all() for values in arrays if is_floating(values))


def script_of(metric: Metric) -> ScriptMetric | None:
    """The user's script behind a metric, if there is one."""
    owner = getattr(metric.of_set, "__self__", None)
    return owner if isinstance(owner, ScriptMetric) else None


_ONE = "labels"
"""The name in a file of labels that are one array."""
_SET, _TERMS = "set.json", "terms.npz"
_FIELDS = ("total", "weight", "low", "high")


@dataclass(frozen=True)
class Evaluation:
    """A set of samples on the disk, numbered in the order in which they were given.

    Attributes:
        folder: Where it lies.
        count: How many samples there are.
        labelled: Whether they have labels.
    """

    folder: Path
    count: int
    labelled: bool

    @classmethod
    def write(cls, folder: Path, samples: Iterable[tuple[Mapping[str, Array], Labels]], seed: int) -> Evaluation:
        """Write samples one at a time, and draw the order in which candidates see them.

        Args:
            folder: Where to; it is made.
            samples: Inputs and labels of each.
            seed: Of the order.

        Raises:
            UsageError: Only some have labels.
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
        """A set that was written before."""
        plain = _read_set(*_stamped(folder / _SET))
        return cls(folder, plain["count"], plain["labelled"])

    @property
    def order(self) -> list[int]:
        """The numbers of the samples in the order in which candidates see them."""
        order: list[int] = _read_set(*_stamped(self.folder / _SET))["order"]
        return order

    def inputs(self, place: int) -> Path:
        """The file with the inputs of a sample."""
        return self.folder / f"given-{place}.npz"

    @property
    def first(self) -> Path:
        """The inputs of a sample, to build for."""
        return self.inputs(0)

    def golden(self, place: int) -> Path:
        """The file with the reference's outputs of a sample."""
        return self.folder / f"golden-{place}.npz"

    def write_golden(self, samples: Iterable[Mapping[str, Array]]) -> None:
        """Store the reference's outputs of all samples."""
        for place, outputs in enumerate(samples):
            save_npz(self.golden(place), outputs)

    def labels(self, place: int) -> Labels:
        """The labels of a sample; ``None`` without any."""
        path = self.folder / f"labels-{place}.npz"
        if not self.labelled or not path.exists():
            return None
        named = load_npz(path)
        return named if path.with_suffix(".kind").read_text() == "dict" else named[_ONE]

    def reference(self, place: int) -> NpzFile:
        """The reference's outputs of a sample, each read when it is used."""
        return NpzFile(self.golden(place))

    def known(self, metric: Metric) -> Known:
        """The reference's terms; computed once, then read."""
        path = self.folder / _TERMS
        if not path.exists():
            assert metric.of_sample is not None
            terms = []
            for place in self.order:
                reference = dict(self.reference(place))
                terms.append(metric.of_sample(reference, reference, self.labels(place)))
            save_npz(path, {name: np.array([getattr(each, name) for each in terms]) for name in _FIELDS})
        return _read_terms(*_stamped(path))


@dataclass(frozen=True, eq=False)
class Known:
    """The reference's :class:`Terms` in the order of the samples; arrays of shape (n,)."""

    total: NDArray[np.float64]
    weight: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def value(self, metric: Metric) -> float:
        """The reference's own number."""
        return metric.value(float(self.total.sum()), float(self.weight.sum()))

    def gain(self, metric: Metric, place: int, seen: Terms) -> float:
        """How much better a candidate does on a sample than the reference; NaN counts as the worst there is."""
        total = seen.total
        if math.isnan(total):
            total = self.high[place] if metric.lower_is_better else self.low[place]
        return _sign(metric) * float(total - self.total[place])

    def gains(self, metric: Metric) -> tuple[float, float]:
        """The least and the largest gain that a sample can have."""
        ends = [_sign(metric) * (end - self.total) for end in (self.low, self.high)]
        return float(np.minimum(*ends).min()), float(np.maximum(*ends).max())

    def needed(self, metric: Metric, bound: float) -> float:
        """The sum of gains with which the metric is exactly at a bound."""
        return _sign(metric) * (bound * float(self.weight.sum()) - float(self.total.sum()))

    def estimate(self, metric: Metric, mean_gain: float) -> float:
        """A candidate's number, if its mean gain is that of the samples seen so far."""
        total = float(self.total.sum()) + _sign(metric) * mean_gain * len(self.total)
        return metric.value(total, float(self.weight.sum()))


def _sign(metric: Metric) -> float:
    return -1.0 if metric.lower_is_better else 1.0


def _stamped(path: Path) -> tuple[Path, int]:
    """A file and its time: a process may read several folders, and one run rewrite the files of another."""
    return path.absolute(), path.stat().st_mtime_ns


@lru_cache(maxsize=2)
def _read_set(path: Path, stamp: int) -> dict[str, Any]:  # noqa: ARG001 - part of the cache's key
    plain: dict[str, Any] = json.loads(path.read_text())
    return plain


@lru_cache(maxsize=2)
def _read_terms(path: Path, stamp: int) -> Known:  # noqa: ARG001 - part of the cache's key
    return Known(**load_npz(path))
