"""The metric that the user names: one of those built in, or a function of a Python script."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.tensors.scores.detections import mean_average_precision
from bisect_trt.tensors.scores.rows import divergence, perplexity, top
from bisect_trt.tensors.scores.signals import cosine, psnr, snr
from bisect_trt.tensors.scores.terms import Labels, Metric, Outputs, Terms, is_floating, to_float
from bisect_trt.tensors.scores.words import word_errors
from bisect_trt.tensors.user_script import Outputs as Named
from bisect_trt.tensors.user_script import import_script, is_script, split_script, user_code

FUNCTION = "metric"
RANGE = "RANGE"
GIVEN = ("outputs", "reference", "labels")
"""What a function of the user's is given, by name and in order."""
_KIND = "metric"
_BUILT_IN: dict[str, Callable[[str, str | None], Metric]] = {
    "cosine": cosine,
    "psnr": psnr,
    "snr": snr,
    "perplexity": perplexity,
    "kl": divergence,
    "wer": word_errors,
}
_TOP, _MAP = re.compile(r"top-?([1-9]\d*)"), re.compile(r"map(?:@(0?\.\d+))?")
NAMES = "top-1 (top-K), map (map@0.75), cosine, psnr, snr, perplexity, kl, wer"


def find_metric(asked: str, *, lower_is_better: bool = False) -> Metric:
    """The metric that is asked for.

    Args:
        asked: ``SCRIPT.py[:FUNC]``, or a built-in name, with an output's name behind a colon if it is to look at that.
        lower_is_better: Whether less is better, of the user's own.

    Raises:
        UsageError: There is no such metric, file or function; or less is better of a built-in one where more is.
    """
    if is_script(asked):
        return ScriptMetric(asked).whole(lower_is_better=lower_is_better)
    name, _, output = asked.partition(":")
    metric = _built_in(name.lower(), output or None)
    if metric is None:
        raise UsageError(f"--metric {asked}: there is none of this name; there are {NAMES}, and SCRIPT.py[:FUNC].")
    if lower_is_better and not metric.lower_is_better:
        raise UsageError(f"--lower-is-better is for a metric of your own; of {name} more is better. Drop it.")
    return metric


def _built_in(name: str, output: str | None) -> Metric | None:
    if match := _TOP.fullmatch(name):
        return top(name, output, int(match[1]))
    if match := _MAP.fullmatch(name):
        return mean_average_precision(name, output, float(match[1] or 0.5))
    return _BUILT_IN[name](name, output) if name in _BUILT_IN else None


def script_file(asked: str) -> list[Path]:
    """The file that a metric depends on, if it is a script.

    Raises:
        UsageError: There is no such file.
    """
    return [split_script(asked, FUNCTION, _KIND)[0]] if is_script(asked) else []


class ScriptMetric:
    """A function of the user's: ``FUNC(outputs, reference, labels)``, three lists with an entry a sample, or of these some.

    It gives one number for the whole set; or a number for each sample, of which the metric is the mean. Where the script
    says ``RANGE = (lowest, highest)``, which none of these is beyond, a few samples can decide.
    """

    def __init__(self, asked: str) -> None:
        """Run the script.

        Raises:
            UsageError: There is no such file or function, it raises, or its range is none.
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
        self._by_name = self._asked_by_name(function)
        self._low, self._high = self._limits(getattr(module, RANGE, None))

    def _asked_by_name(self, function: Callable[..., object]) -> tuple[str, ...]:
        """What it is given by name, where it takes less than all three, or in another order; nothing if all in theirs.

        Raises:
            UsageError: It takes something else.
        """
        try:
            taken = inspect.signature(function)
        except (TypeError, ValueError):  # of C, without a signature
            return ()
        names = [each.name for each in taken.parameters.values() if each.kind is not each.VAR_POSITIONAL]
        moved = any(name in GIVEN and GIVEN.index(name) != place for place, name in enumerate(names))
        for given in [*([] if moved else [()]), tuple(name for name in names if name in GIVEN), GIVEN]:
            with suppress(TypeError):
                taken.bind(*(() if given else GIVEN), **dict.fromkeys(given))
                return given
        raise UsageError(
            f"'{self._name}' of {self._path} takes {taken}; it is given {', '.join(GIVEN)}, a list each with an entry a "
            f"sample: write def {self._name}({', '.join(GIVEN)}), or of these what it needs, by these names."
        )

    def _limits(self, given: Any) -> tuple[float, float]:  # noqa: ANN401 - whatever the script has
        if given is None:
            return -math.inf, math.inf
        try:
            low, high = map(float, given)
        except (TypeError, ValueError):
            low, high = 1.0, 0.0
        if not low < high:
            raise UsageError(
                f"{RANGE} of {self._path} is {given!r:.60}; it must be the lowest and the highest number of a sample."
            )
        return low, high

    def call(
        self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]
    ) -> float | NDArray[np.float64]:
        """What it gives: a number, or one for each sample; NaN where it raises on NaN or Inf that the reference has not.

        Raises:
            UsageError: It raises, or gives something else.
        """
        sides = [Named(each, "target") for each in seen], [Named(each, "reference") for each in reference]
        given = dict(zip(GIVEN, (*sides, list(labels)), strict=True))
        try:
            with user_code(self._path, _KIND):
                if self._by_name:
                    made = self._function(**{name: given[name] for name in self._by_name})
                else:
                    made = self._function(*given.values())
        except UsageError:
            if _is_finite(seen) or not _is_finite(reference):
                raise
            return math.nan
        try:
            numbers = np.asarray(made)
            numbers = numbers.astype(np.float64) if numbers.dtype.kind in "biuf" else np.empty((0, 0))
        except (TypeError, ValueError):
            numbers = np.empty((0, 0))
        if numbers.ndim == 0:
            return float(numbers)
        if numbers.shape == (len(seen),):
            return numbers
        raise UsageError(
            f"'{self._name}' of {self._path} gives {made!r:.60}; it must return a number, or one for each of the {len(seen)} "
            "samples."
        )

    def whole(self, *, lower_is_better: bool) -> Metric:
        """The metric that takes the whole set."""
        return Metric(f"{self._path.name}:{self._name}", lower_is_better, of_set=self._of_set)

    def by_sample(self, metric: Metric) -> Metric:
        """The same as a mean over samples."""
        return replace(metric, of_sample=self._of_sample)

    def is_mean(self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]) -> bool:
        """Whether it gives a number for each of some samples, the same for one alone as among the others.

        Of what has no error, as the reference's own outputs, nearly every number is the same for all; so it is seen of each
        other's outputs too, unless it does not take them, as where a text has another length.
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
        alone = [self.call([one], [ours], [label]) for one, ours, label in zip(seen, reference, labels)]  # noqa: B905 - as many
        return all(isinstance(each, np.ndarray) for each in alone) and np.array_equal(
            np.concatenate(alone), together, equal_nan=True
        )

    def _of_set(self, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]) -> float:
        with np.errstate(all="ignore"):
            return float(np.mean(self.call(seen, reference, labels)))

    def _of_sample(self, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:
        value = float(np.mean(self.call([seen], [reference], [labels])))
        if value < self._low or value > self._high:
            raise UsageError(
                f"'{self._name}' of {self._path} gives {value:g} for a sample, beyond its {RANGE}; mend one of them."
            )
        return Terms(value, 1.0, self._low, self._high)


def _is_finite(samples: Sequence[Outputs]) -> bool:
    """Whether there is neither NaN nor Inf in any output."""
    arrays = (values for outputs in samples for values in outputs.values())
    return all(np.isfinite(to_float(values)).all() for values in arrays if is_floating(values))


def script_of(metric: Metric) -> ScriptMetric | None:
    """The user's script, of a metric that is one."""
    owner = getattr(metric.of_set, "__self__", None)
    return owner if isinstance(owner, ScriptMetric) else None
