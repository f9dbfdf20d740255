"""Which nodes come near fp16's largest number on some samples: other samples may take them past it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bisect_trt.probing.activations import Reference
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.stats import tensor_stats
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.suspicion.facts import FP16_MAX, Facts, Values, number

HEADROOM = 16.0
"""Tensors that come so near to overflow stay in fp32: an input four times as large has squares sixteen times as large."""
_WARM = 16.0
"""A sibling that is so many times further from overflow still is left where it is: nothing speaks against it."""
_SUMS = 2.0
"""The same for sums inside an operator, of which no runtime shows how it adds up."""
_ADDERS = ("ReduceMean", "GlobalAveragePool", "AveragePool")
_MASK = 1e-2
"""What is hidden may be added to the mask first; that is small beside it."""


class Headroom:
    """The largest magnitude that each tensor was seen to have, over several samples."""

    def __init__(self, task: Task) -> None:
        """Look at the samples that were given."""
        self._task = task
        subject = task.subject
        self._facts = Facts(subject, task.settings.precision)
        self._slots = {
            unit: list(dict.fromkeys([*self._facts.reads(index), *self._facts.makes(index)]))
            for unit in task.lowering.units
            for index in [subject.network.order[unit]]
        }
        names = dict.fromkeys(name for names in self._slots.values() for name in names)
        self._weights = {name for name in names if self._facts.is_weight(name)}
        self._names = [name for name in names if name not in self._weights]
        self._peaks: dict[str, float] = {}
        self._inside: dict[str, float] = {}
        for name in self._weights:
            seen = self._facts.magnitudes(name)
            self._peaks[name] = 0.0 if seen is None else seen.absmax
        for reference in (subject.reference, *subject.reference.more):
            self._look(reference)

    def add(self, sample: Sample, number_of: int) -> Reference:
        """Look at another sample."""
        subject = self._task.subject
        reference = Reference(subject.network, sample, subject.workspace, subject.models, number_of, subject.swap_limit)
        self._look(reference)
        return reference

    def near(self) -> dict[int, str]:
        """The units that come near overflow so far, and how."""
        found: dict[int, str] = {}
        for unit, names in self._slots.items():
            reason = next(self._reasons(unit, names), None)
            if reason is not None:
                found[unit] = reason
        return found

    def is_warm(self, unit: int) -> bool:
        """Whether a unit comes anywhere near overflow, so that what is said of its siblings may be true of it."""
        names = [name for name in self._slots[unit] if name not in self._weights]
        peak = max((max(self._peaks.get(name, 0.0), self._inside.get(name, 0.0)) for name in names), default=0.0)
        return peak > FP16_MAX / (HEADROOM * _WARM)

    def _reasons(self, unit: int, names: Sequence[str]) -> Iterator[str]:
        who = self._facts.who(self._task.subject.network.order[unit])
        for name in names:
            peak = self._peaks.get(name, 0.0)
            limit = FP16_MAX if name in self._weights else FP16_MAX / HEADROOM
            if peak > limit:
                beyond = "past" if peak > FP16_MAX else f"within {HEADROOM:g} times of"
                yield f"{who} has values of {number(peak)}, {beyond} {number(FP16_MAX)}"
            total = self._inside.get(name, 0.0)
            if total > FP16_MAX / _SUMS and name in self._task.subject.network.made(self._index(unit)):
                yield f"{who} adds up to {number(total)} inside, near or past {number(FP16_MAX)}"

    def _index(self, unit: int) -> int:
        return self._task.subject.network.order[unit]

    def _look(self, reference: Reference) -> None:
        network = self._task.subject.network
        for name in self._names:
            value = reference.select([name]).get(name)
            if value is None or value.dtype.kind != "f" or not value.size:
                continue
            peak = tensor_stats(value).absmax
            if not np.isfinite(peak) or (peak > FP16_MAX / HEADROOM and _hides(value, peak)):
                continue
            self._peaks[name] = max(peak, self._peaks.get(name, 0.0))
            maker = network.producer.get(name)
            if maker is not None and network.nodes[maker].op_type in _ADDERS:
                read = reference.infos.get(network.nodes[maker].input[0])
                shape = [] if read is None or read.shape is None else [int(dim or 1) for dim in read.shape]
                terms = float(np.prod(shape, dtype=np.float64)) / value.size
                self._inside[name] = max(peak * terms, self._inside.get(name, 0.0))


def _hides(value: Values, peak: float) -> bool:
    """Whether all that is large is one negative number, a mask, which stays what it is whatever the input."""
    low, high = float(value.min()), float(value.max())
    if -low < peak or high > -low / 1000:
        return False
    return bool(value[value < low / 2].max() <= low * (1 - _MASK))
