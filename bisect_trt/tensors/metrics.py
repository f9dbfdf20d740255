"""Metrics over a set of samples, built in or a function of a Python script.

Most built-in ones are a mean over samples; a script's function scores the whole set. The set lies on
the disk, with the reference's outputs (:class:`Evaluation`); workers read the same files.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bisect_trt.errors import (
    ConflictError,
    InputValuesError,
    ScriptError,
    UnknownNameError,
    UnsuitableModelError,
    UsageError,
    ValueRefusedError,
    quoted,
)
from bisect_trt.tensors.files import Arrays, NpzFile, Values, load_npz, save_npz
from bisect_trt.tensors.info import Array, Vector, is_floating, to_float
from bisect_trt.tensors.inputs import (
    NamedOutputs,
    is_script,
    script_attribute,
    split_script,
    user_code,
)
from bisect_trt.tensors.signals import cosine_similarity, peak_signal_to_noise, scale_similarity
from bisect_trt.tensors.state import state_after

Outputs = Mapping[str, Array]
Labels = Any
"""Labels of one sample: an array, or a mapping of name to array; ``None`` without labels."""

OfSet = Callable[[Iterable[Outputs], Iterable[Outputs], Iterable[Labels]], float]
"""The number of a whole set, from the candidate's outputs, the reference's, and the labels."""

FUNCTION = "metric"
PARAMETERS = ("outputs", "reference", "labels")
"""Parameters of a user's function: three lists with an entry a sample."""
NAMES = "top-1 (top-K), kl, perplexity, common-prefix, cosine, scale, psnr"
MOST_DB = 100.0
"""Decibels of a sample without any error, since Inf has no mean."""
IGNORED = -100
"""The label of a position that is not counted, as in PyTorch's ``cross_entropy``."""
_KIND = "metric"
_TOP = re.compile(r"top-?([1-9]\d*)")


_SIGNALS: dict[str, tuple[Callable[[Vector, Vector], float], float, str]] = {
    "cosine": (cosine_similarity, 1.0, ""),
    "scale": (scale_similarity, 1.0, ""),
    "psnr": (peak_signal_to_noise, MOST_DB, " dB"),
}
"""Similarity to the reference: the function of two flat vectors, the largest absolute value of its
result, and its unit."""


class Metric(Struct, frozen=True):
    """A number for a set of samples.

    Attributes:
        name: The name, without an output.
        lower_is_better: Whether a smaller number is better.
        of_sample: Returns the terms of a sample from the candidate's outputs, the reference's, and
            the labels: its number times its weight, and its weight, which follows from the
            reference and the labels alone. The metric is the sum of the first over the sum of the
            second. ``None`` for a metric of the whole set.
        of_set: Returns the number of the whole set; ``None`` for the other metrics.
        unit: The number's unit, with a leading blank.
        of_mean: Returns the number from the mean of the samples.
    """

    name: str
    lower_is_better: bool = False
    of_sample: Callable[[Outputs, Outputs, Labels], tuple[float, float]] | None = None
    of_set: OfSet | None = None
    unit: str = ""
    of_mean: Callable[[float], float] = float

    def say(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{value:.6g}{self.unit}"


def find_metric(spec: str, *, lower_is_better: bool = False) -> Metric:
    """Return the metric that an option names.

    Args:
        spec: ``SCRIPT.py[:FUNC]``, or ``NAME[:OUTPUT]`` of a built-in metric.
        lower_is_better: Whether a smaller number is better; for a user's function only.

    Raises:
        UsageError: There is no such metric, file or function; or ``lower_is_better`` is given for a
            built-in metric.
    """
    if is_script(spec):
        path, function = split_script(spec, FUNCTION, _KIND)
        return Metric(f"{path.name}:{function}", lower_is_better, of_set=_of_script(path, function))
    name, _, output = spec.partition(":")
    name = name.lower()
    if match := _TOP.fullmatch(name):
        metric = Metric(name, of_sample=partial(_top, name, output or None, int(match[1])))
    elif name == "kl":
        metric = Metric(name, lower_is_better=True, of_sample=partial(_divergence, output or None))
    elif name == "perplexity":
        metric = Metric(
            name,
            lower_is_better=True,
            of_sample=partial(_surprise, output or None),
            of_mean=np.exp,
        )
    elif name == "common-prefix":
        metric = Metric(name, of_set=partial(_common_prefix, output or None))
    elif name in _SIGNALS:
        metric = Metric(
            name, of_sample=partial(_worst_signal, name, output or None), unit=_SIGNALS[name][2]
        )
    else:
        raise UnknownNameError(
            f"--metric {spec}: there is no metric of this name; choose {NAMES}, or SCRIPT.py[:FUNC]."
        )
    if lower_is_better and not metric.lower_is_better:
        raise ConflictError(
            f"--lower-is-better applies to a script's metric; for {name} more is better. Drop it."
        )
    return metric


def script_file(spec: str) -> list[Path]:
    """Return the script that a metric depends on, if it is one.

    Raises:
        UsageError: There is no such file.
    """
    return [split_script(spec, FUNCTION, _KIND)[0]] if is_script(spec) else []


def _top(
    metric: str, output: str | None, k: int, outputs: Outputs, reference: Outputs, labels: Labels
) -> tuple[float, float]:
    """Return the share of rows (along the last axis) with their label among their K largest values, of equal ones the first.

    Without labels, the label is the place of the reference's largest value. An output of integers
    holds classes already. A row with a NaN is wrong.
    """
    name = _chosen_output(output, reference, metric, floating=False)
    ours = reference[name]
    theirs = outputs.get(name)
    rows = _rows(metric, name, ours, k) if is_floating(ours) else None
    count = ours.size if rows is None else len(rows)
    if labels is None:
        labels = ours if rows is None else rows.argmax(axis=1)
    truth = _classes(metric, name, labels, count, None if rows is None else rows.shape[1])
    counted = truth != IGNORED
    weight = float(np.count_nonzero(counted))
    if theirs is None or theirs.shape != ours.shape:
        return 0.0, weight
    flat = theirs.reshape(-1)
    right = (
        flat == truth
        if rows is None
        else _among_largest(to_float(flat).reshape(rows.shape), truth, k)
    )
    return float(np.count_nonzero(right & counted)), weight


def _rows(metric: str, output: str, values: Array, k: int = 1) -> Vector:
    """Return the scores of the classes, a row for each choice among them.

    Raises:
        UsageError: K classes or fewer are no choice.
    """
    width = values.shape[-1] if values.ndim else 1
    # Every score would be the best one, whatever the target computes.
    if k >= width:
        raise ValueRefusedError(
            f"--metric {metric}: '{output}' has {width} classes a row, so every label is among its {k} largest; name "
            "another output, or a smaller K."
        )
    return to_float(values).reshape(-1, width)


def _classes(
    metric: str, output: str, labels: Labels, rows: int, width: int | None
) -> NDArray[np.int64]:
    """Return the label of each row of an output, or ``IGNORED``; there are ``width`` classes, or any number.

    Raises:
        UsageError: There is another number of labels, or one is no class.
    """
    if isinstance(labels, Mapping):
        labels = labels.get(output, next(iter(labels.values())))
    classes = np.asarray(labels)
    if classes.dtype.kind not in "biuf" or classes.size != rows:
        raise InputValuesError(
            f"a sample has {classes.size} labels of type {classes.dtype.name}, and {rows} rows to be labelled; give a class "
            "for each row."
        )
    truth = classes.reshape(-1).astype(np.int64)
    counted = truth[truth != IGNORED]
    if width is not None and ((counted < 0) | (counted >= width)).any():
        raise ValueRefusedError(
            f"--metric {metric}: a label is no class of '{output}', which has {width}; correct the loader."
        )
    return truth


def _among_largest(rows: Vector, truth: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Return for each row whether its label is among its K largest values."""
    place = np.where(truth != IGNORED, truth, 0)[:, None]
    label_values = np.take_along_axis(rows, place, axis=1)
    # Of equal values the one of the lower index ranks first, as in numpy.argmax.
    earlier = np.arange(rows.shape[1])[None, :] < place
    ahead = np.count_nonzero((rows > label_values) | ((rows == label_values) & earlier), axis=1)
    return np.asarray((ahead < k) & ~np.isnan(rows).any(axis=1))


def _divergence(
    output: str | None, outputs: Outputs, reference: Outputs, _: Labels
) -> tuple[float, float]:
    """Return the Kullback-Leibler divergence of the softmax of each row from the reference's, in nats, summed, and the rows."""
    name = _chosen_output(output, reference, "kl")
    ours = _rows("kl", name, reference[name])
    theirs = outputs.get(name)
    if theirs is None or theirs.shape != reference[name].shape:
        return math.inf, len(ours)
    right, target = map(_log_softmax, (ours, to_float(theirs).reshape(ours.shape)))
    return float((np.exp(right) * (right - target)).sum()), len(ours)


def _log_softmax(values: Vector) -> Vector:
    """Return the logarithms of the softmax along the last axis."""
    values = values - values.max(-1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(-1, keepdims=True)))


def _surprise(
    output: str | None, outputs: Outputs, reference: Outputs, labels: Labels
) -> tuple[float, float]:
    """Return the negative logarithms of the probabilities of the labels, in nats, summed, and the rows with a label.

    Raises:
        UsageError: There are no labels.
    """
    name = _chosen_output(output, reference, "perplexity")
    if labels is None:
        raise InputValuesError(
            "--metric perplexity needs the right token of each row: give tokens with --load-inputs and --steps, or labels."
        )
    ours = _rows("perplexity", name, reference[name])
    theirs = outputs.get(name)
    truth = _classes("perplexity", name, labels, *ours.shape)
    counted = truth != IGNORED
    if theirs is None or theirs.shape != reference[name].shape:
        return math.inf, float(counted.sum())
    rows = _log_softmax(to_float(theirs).reshape(ours.shape))[counted]
    chosen = np.take_along_axis(rows, truth[counted, None], axis=1)
    return -float(chosen.sum()), float(counted.sum())


def _common_prefix(
    output: str | None,
    outputs: Iterable[Outputs],
    reference: Iterable[Outputs],
    _: Iterable[Labels],
) -> float:
    """Return the number of samples before the first in which a row's largest value is at another place."""
    length = 0
    for theirs, ours in zip(outputs, reference, strict=True):
        right, rows = _top("common-prefix", output, 1, theirs, ours, None)
        if right < rows:
            break
        length += 1
    return float(length)


def _worst_signal(
    metric: str, output: str | None, outputs: Outputs, reference: Outputs, _: Labels
) -> tuple[float, float]:
    """Return the similarity of one output, or the worst of all floating-point outputs; NaN counts as the worst value."""
    measure, best, _unit = _SIGNALS[metric]
    names = [_chosen_output(output, reference, metric)]
    if output is None:
        names = [name for name, values in reference.items() if is_floating(values)]
    worst = best
    for name in names:
        ours = reference[name]
        theirs = outputs.get(name)
        # What is missing is as unlike as can be.
        if theirs is None or theirs.shape != ours.shape:
            return -best, 1.0
        if ours.size:
            with np.errstate(all="ignore"):
                value = measure(to_float(ours).reshape(-1), to_float(theirs).reshape(-1))
            worst = min(worst, -best if math.isnan(value) else max(value, -best))
    return worst, 1.0


def _chosen_output(
    name: str | None, reference: Outputs, metric: str, *, floating: bool = True
) -> str:
    """Return the output that was named, else the first of a suitable type.

    Raises:
        UsageError: There is none.
    """
    if name is not None:
        if name not in reference:
            raise UnknownNameError(
                f"--metric {metric}:{name}: there is no such output; the outputs are {quoted(reference)}."
            )
        return name
    for output, values in reference.items():
        if not floating or (is_floating(values) and values.ndim):
            return output
    raise UnsuitableModelError(
        f"--metric {metric} needs an output of floating-point numbers, and there is none among {quoted(reference)}; name "
        "another metric, or give a Python function (--metric SCRIPT.py)."
    )


def _of_script(path: Path, name: str) -> OfSet:
    """Return a user's function as a metric: its number, or the mean of one a sample; NaN where it raises on NaN or Inf.

    Raises:
        UsageError: There is no such function, or it takes other parameters, or none. The metric
            raises it where the function raises on finite outputs, or returns something else.
    """
    with user_code(path, _KIND):
        function = script_attribute(path, name, _KIND)
    try:
        signature = inspect.signature(function)
        parameters = [parameter for parameter in PARAMETERS if parameter in signature.parameters]
        # The function may have further parameters only if they have defaults.
        signature.bind(**dict.fromkeys(parameters))
    except (TypeError, ValueError):
        parameters = []
    if not parameters:
        raise ScriptError(
            f"'{name}' of {path} must take lists with an entry a sample, by these names or some of them: "
            f"def {name}({', '.join(PARAMETERS)})."
        )

    def score(
        outputs: Iterable[Outputs], reference: Iterable[Outputs], labels: Iterable[Labels]
    ) -> float:
        sides = (
            [NamedOutputs(sample, "target") for sample in outputs],
            [NamedOutputs(sample, "reference") for sample in reference],
        )
        arguments = dict(zip(PARAMETERS, (*sides, list(labels)), strict=True))
        try:
            with user_code(path, _KIND):
                result = np.asarray(
                    function(**{parameter: arguments[parameter] for parameter in parameters})
                )
        except UsageError:
            # A script that cannot take NaN says that the target is as wrong as can be.
            if _all_finite(sides[0]) or not _all_finite(sides[1]):
                raise
            return math.nan
        if result.dtype.kind not in "biuf" or result.shape not in ((), (len(sides[0]),)):
            raise ScriptError(
                f"{path} returns {result!s:.60}; a metric must return a number, or one for each of the {len(sides[0])} samples."
            )
        return float(result.mean())

    return score


def _all_finite(samples: Iterable[Outputs]) -> bool:
    arrays = (values for outputs in samples for values in outputs.values())
    return all(np.isfinite(to_float(values)).all() for values in arrays if is_floating(values))


_ONE = ""
"""The name in a file of labels that are one array."""


class Evaluation(Struct, frozen=True):
    """A set of samples in a folder, numbered in the order in which they were given.

    Attributes:
        folder: The folder.
        count: The number of samples.
        labelled: Whether they have labels.
        state: The outputs of the sample before that are fed too, by input, where samples are steps.
    """

    folder: Path
    count: int
    labelled: bool
    state: Mapping[str, str] = {}

    @classmethod
    def write(
        cls, folder: Path, samples: Iterable[tuple[Mapping[str, Array], Labels]]
    ) -> Evaluation:
        """Write samples, inputs and labels, one at a time.

        Raises:
            UsageError: Only some have labels.
        """
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        labelled = False
        for inputs, labels in samples:
            # A mean over some labels and some guesses would be neither.
            if count and labelled is (labels is None):
                raise InputValuesError(
                    f"sample {count} and those before it differ in having labels; give all of them labels, or none."
                )
            save_npz(folder / f"given-{count}.npz", inputs)
            labelled = labels is not None
            if labelled:
                named = labels if isinstance(labels, Mapping) else {_ONE: labels}
                save_npz(
                    folder / f"labels-{count}.npz",
                    {str(name): np.asarray(label_values) for name, label_values in named.items()},
                )
            count += 1
        return cls(folder, count, labelled)

    def inputs(self, place: int) -> Path:
        """Return the file with the inputs of a sample."""
        return self.folder / f"given-{place}.npz"

    def golden(self, place: int) -> Path:
        """Return the file with the reference's outputs of a sample."""
        return self.folder / f"golden-{place}.npz"

    def labels(self, place: int) -> Labels:
        """Return the labels of a sample; ``None`` without any."""
        if not self.labelled:
            return None
        named = load_npz(self.folder / f"labels-{place}.npz")
        return named.get(_ONE, named)

    def _expected(self, place: int) -> Outputs:
        """Return the reference's outputs of a sample, the state after what users read."""
        golden = NpzFile(self.golden(place))
        names = sorted(golden, key=lambda name: name in self.state.values())
        return {name: golden[name] for name in names} if self.state else golden

    def run(self, model: Callable[[Arrays], Values]) -> Iterator[Outputs]:
        """Yield the outputs of a model for each sample; what it returns is its state in the next."""
        outputs: Outputs | None = None
        for place in range(self.count):
            outputs = model({**load_npz(self.inputs(place)), **state_after(self.state, outputs)})
            yield outputs

    def score(
        self, metric: Metric, outputs: Iterable[Outputs], alone: dict[int, float] | None = None
    ) -> float:
        """Return the metric of the outputs for each sample; NaN if the weights sum to 0.

        Args:
            metric: The metric.
            outputs: The outputs for each sample.
            alone: Gets the metric of each sample by its number from 1, of a metric that is a mean
                over samples.
        """
        places = range(self.count)
        total = 0.0
        weight = 0.0
        if metric.of_sample is None:
            assert metric.of_set is not None, "it is one or the other"
            return metric.of_set(outputs, map(self._expected, places), map(self.labels, places))
        # One at a time: outputs may be large.
        for place, ours in enumerate(outputs):
            term, share = metric.of_sample(ours, self._expected(place), self.labels(place))
            total = total + term
            weight = weight + share
            if alone is not None:
                alone[place + 1] = float(metric.of_mean(term / share))
        return float(metric.of_mean(total / weight)) if weight else math.nan
