"""Whether rounding alone, wherever a model rounds, fails it too: then its failure need be nobody's, however it is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisect_trt.graph.lower.roundtrip import EXACT_OPS
from bisect_trt.graph.randomness import Draws
from bisect_trt.graph.slices import held_bytes
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.stats import finite_rms
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.fault.conditioning import jittered, terms
from bisect_trt.workflows.fault.fault import MUCH_WORSE
from bisect_trt.workflows.subject import Subject

TRIALS = 2
MOST_QUESTIONS = 100
"""So many are asked of such a model, whose pieces may amplify rounding wherever it is cut; a search of a real culprit seldom
takes as many."""
_SMALL = 0.1
"""Past so much of an output a tolerance would say nothing of it."""
_MOST_BYTES = 256 << 20
_UNITS = {"float32": 2.0**-23, "float16": 2.0**-10}


@dataclass(frozen=True)
class Amplified:
    """How far rounding moves an output.

    Attributes:
        name: The output that the target has furthest past the tolerance.
        moved: The largest absolute error that rounding made of it.
        off: The target's.
        size: The root mean square of what the output should be.
    """

    name: str
    moved: float
    off: float
    size: float

    @property
    def seen(self) -> str:
        """What was seen, with the figures."""
        return (
            "rounding alone fails it too: with each tensor moved at random in its last place the reference is off by "
            f"{self.moved:.3g} at '{self.name}', and the target by {self.off:.3g}"
        )

    @property
    def sentence(self) -> str:
        """What it means where no node turned out to be wrong, and what would tell."""
        ways = "real inputs (--load-inputs)"
        if self.moved < _SMALL * self.size:
            ways += f", or a tolerance that rounding keeps (--atol {2 * self.moved:.2g})"
        return f"Perhaps nobody is wrong, and the model amplifies rounding, for {self.seen}. What would tell: {ways}."

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        plain: dict[str, Any] = to_plain(
            {"output": self.name, "moved": self.moved, "off": self.off, "sentence": self.sentence}
        )
        return plain


def rounding_alone(
    subject: Subject, target: TargetSettings, tolerance: ToleranceOptions, seen: list[TensorComparison]
) -> Amplified | None:
    """Have the reference run the model with rounding added, twice.

    Args:
        subject: The model.
        target: Who fails on it.
        tolerance: How far it may be off.
        seen: What the target made of the outputs.

    Returns:
        What rounding does; ``None`` where it does less, by four times, or where that is not to be had: a target of low
        precision, whose own rounding is another question, a model that draws random numbers, whose runs differ without any
        rounding, one that does not run or is too large to be run once more.
    """
    failed = {each.name: each for each in seen if not each.passed}
    proto = subject.network.proto
    if not failed or target.low_precisions or not all(math.isfinite(each.severity) for each in failed.values()):
        return None
    draws = Draws(proto, subject.samples[0], unsure=True)
    if held_bytes(proto) > _MOST_BYTES or subject.reference.lost or any(map(draws.by, proto.graph.node)):
        return None
    infos, models = subject.infos, subject.models
    shapes = {name: [dim if isinstance(dim, int) else 1 for dim in info.shape or ()] for name, info in infos.items()}
    units = {
        name: _UNITS[infos[name].dtype.name]
        for name in (*subject.samples[0], *subject.network.computed)
        if name in infos and infos[name].dtype.name in _UNITS
    }
    halves = {name for name in units if infos[name].dtype == np.float16}
    for node in proto.graph.node:
        if node.op_type not in EXACT_OPS:
            many = math.sqrt(terms(node, shapes))  # each of so many is rounded as they are added up, in fp32
            units |= {name: max(units[name], _UNITS["float32"] * many) for name in node.output if name in units}
    original = subject.original
    inputs = models.feed("moved.in", subject.values(original, original.inputs))
    golden = models.feed("moved.golden", subject.values(original, list(failed)))
    worst: dict[str, TensorComparison] = {}
    for trial in range(TRIALS):
        path = models.write("moved", jittered(proto, units, trial, halves))
        reply = models.ask(
            Compare(reference_settings(target), path, (Sample(inputs, golden),), tolerance, tuple(failed), every=True)
        )
        if isinstance(reply, Failed):
            return None
        for each in reply.comparisons:
            if not each.passed and (each.name not in worst or worst[each.name].severity < each.severity):
                worst[each.name] = each
    if any(name not in worst or _much_worse(each, worst[name]) for name, each in failed.items()):
        return None
    furthest = max(failed.values(), key=lambda each: each.severity)
    size = finite_rms(subject.values(original, [furthest.name])[furthest.name])
    return Amplified(furthest.name, worst[furthest.name].max_abs or 0.0, furthest.max_abs or 0.0, size)


def _much_worse(target: TensorComparison, rounding: TensorComparison) -> bool:
    largest = (target.max_abs or 0.0) > MUCH_WORSE * (rounding.max_abs or 0.0)
    return largest or target.severity > MUCH_WORSE * rounding.severity
