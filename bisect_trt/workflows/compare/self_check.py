"""A target beside itself, without a reference: what has to come out the same, does it?

An engine that is wrong now and then, by its batch size, at some place of a batch, after another request or beside others,
contradicts itself. Whether the model itself does (one that draws random numbers, or mixes the rows of a batch) is seen by
doing the same on the reference, where that runs the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.cut import mark_outputs
from bisect_trt.graph.shapes import free_first_dimension
from bisect_trt.probing.protocol import Failed, Series
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.investigation import Examination

Values = Mapping[str, NDArray[Any]]
Pairs = list[tuple[Values, Values]]
"""What came out, beside what should have."""

ROWS = 4
"""In a batch, where the model takes any number."""
_SESSIONS = 8
"""So many, one after the other, show whether sessions differ by themselves."""
BESIDE = 3
"""How many other sessions run at the same time."""


@dataclass(frozen=True)
class Trial:
    """Something that has to come out the same.

    Attributes:
        name: For JSON.
        what: In words.
        feeds: What a session is fed, in this order.
        pairs: Which of what comes out is compared with what, from the outputs of each feed.
        beside: How many more sessions run meanwhile; what comes out without them is the first to compare with, then.
        one: Whether it is about one session; else each feed gets its own, where that is no engine to be built.
        batch: Whether it takes the model with its batch dimension free.
        skipped: Why it is not tried, if so.
    """

    name: str
    what: str
    feeds: tuple[Values, ...] = ()
    pairs: Callable[[Sequence[Values]], Pairs] = lambda _: []
    beside: int = 0
    one: bool = False
    batch: bool = False
    skipped: str | None = None


@dataclass
class _Finding:
    """What one target did in a trial."""

    failed: str | None = None
    comparisons: list[TensorComparison] = field(default_factory=list)
    same_bits: bool = False

    @property
    def passed(self) -> bool:
        return self.failed is None and all(each.passed for each in self.comparisons)

    @property
    def worst(self) -> TensorComparison | None:
        wrong = [each for each in self.comparisons if not each.passed] or self.comparisons
        return max(wrong, key=lambda each: each.severity, default=None)


def self_check(
    examination: Examination, targets: Sequence[TargetSettings], tolerance: ToleranceOptions, timeout: float | None
) -> Result:
    """Compare each target with itself.

    Returns:
        The result; ``self_check`` in it has an entry for each trial: ``target``, ``check``, ``what``, ``verdict`` (``PASS``,
        ``FAIL``, or ``UNRESOLVED`` where it was not tried or says nothing), ``why``, ``same_bits`` and ``comparison``.

    Raises:
        UnavailableError: Nothing could be tried.
    """
    console, result = examination.console, examination.result
    tolerance = replace(tolerance, nonfinite_equal=True)  # the same NaN twice is no contradiction
    found = result.extra["self_check"] = []
    for target in targets:
        console.step(f"{target.describe()} against itself")
        for trial in _trials(examination, target):
            entry = _judge(examination, target, trial, tolerance, timeout)
            found.append({"target": target.describe(), "check": trial.name, "what": trial.what, **entry})
            console.say(f"  {_WORDS[entry['verdict']]} {trial.what}: {entry['why']}")
    failed = sum(entry["verdict"] == "FAIL" for entry in found)
    tried = sum(entry["verdict"] != "UNRESOLVED" for entry in found)
    if not tried and all(entry["comparison"] is None for entry in found):
        raise UnavailableError(f"nothing could be compared with itself: {found[0]['why']}.")
    result.extra["comparisons"] = [entry["comparison"] for entry in found if entry["comparison"] is not None]
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    console.answer(
        f"It contradicts itself in {failed} of {tried} checks."
        if failed
        else f"It agrees with itself in all {tried} checks."
    )
    return result


_WORDS = {"PASS": "same     ", "FAIL": "DIFFERENT", "UNRESOLVED": "not known"}


def _trials(examination: Examination, target: TargetSettings) -> list[Trial]:
    """What to try on the first input sample."""
    subject = examination.subject
    rng = np.random.default_rng(subject.settings.data.seed)
    sample = subject.samples[0]
    other = subject.samples[1] if len(subject.samples) > 1 else {name: _shuffled(v, rng) for name, v in sample.items()}
    able = target.target.capabilities
    alone = "each session would take an engine of its own" if able.costly else None
    alone = "a place runs one session at a time" if subject.workers.places else alone
    together = f"beside {BESIDE} other sessions that run at the same time"
    trials = [
        Trial(
            "again",
            "the same input twice in one session",
            (sample, sample),
            lambda made: [(made[1], made[0])],
            one=True,
        ),
        Trial(
            "after",
            "an input again after another one",
            (sample, other, sample),
            lambda made: [(made[2], made[0])],
            one=True,
        ),
        Trial("beside", together, skipped=alone)
        if alone is not None
        else Trial(
            "beside", together, (sample,) * 4, lambda made: [(each, made[0]) for each in made[1:]], beside=BESIDE
        ),
    ]
    return trials + _batch_trials(sample, subject.declared, rng)


def _batch_trials(
    sample: Values, declared: Mapping[str, tuple[int | str | None, ...]], rng: np.random.Generator
) -> list[Trial]:
    """What has to hold of the rows of a batch."""
    names = batched(sample, declared)
    free = bool(names) and not isinstance(declared[names[0]][0], int)
    rows = max([sample[name].shape[0] for name in names], default=0)
    what = (
        "the same row at every place of a batch",
        "the rows of a batch in another order",
        "a batch beside its rows one by one",
    )
    kinds = ("rows", "order", "batch")
    if not names or (rows < 2 and not free):
        why = "no input has a batch dimension that is free or above 1"
        return [Trial(kind, words, skipped=why) for kind, words in zip(kinds, what, strict=True)]
    batch = {
        name: _rows(value, ROWS if rows < 2 else rows, rng) if name in names else value
        for name, value in sample.items()
    }
    number = batch[names[0]].shape[0]
    turned = np.roll(np.arange(number), 1)

    def pick(places: Sequence[int] | NDArray[np.intp]) -> Values:
        return {name: value[np.asarray(places)] if name in names else value for name, value in batch.items()}

    def same(made: Sequence[Values]) -> Pairs:
        kept = _of_rows(made[0], number)
        return [(kept, {name: np.broadcast_to(value[:1], value.shape) for name, value in kept.items()})]

    def one_by_one(made: Sequence[Values]) -> Pairs:
        whole, rest = made[0], made[1:]
        kept = [name for name in _of_rows(whole, number) if all(each[name].shape[:1] == (1,) for each in rest)]
        return [
            (
                {name: whole[name] for name in kept},
                {name: np.concatenate([each[name] for each in rest]) for name in kept},
            )
        ]

    trials = [
        Trial(kinds[0], what[0], (pick([0] * number),), same, batch=free),
        Trial(
            kinds[1],
            what[1],
            (batch, pick(turned)),
            lambda made: [(_of_rows(made[1], number), {k: v[turned] for k, v in _of_rows(made[0], number).items()})],
            batch=free,
        ),
    ]
    if not free:
        return [*trials, Trial(kinds[2], what[2], skipped=f"the model takes batches of {number} only")]
    return [*trials, Trial(kinds[2], what[2], (batch, *(pick([row]) for row in range(number))), one_by_one, batch=True)]


def batched(sample: Values, declared: Mapping[str, tuple[int | str | None, ...]]) -> list[str]:
    """The inputs whose first dimension is the batch: free and of one name, else of one size."""
    first = {name: declared[name][0] for name in sample if declared.get(name)}
    free = [dim for dim in first.values() if not isinstance(dim, int)]
    if free:
        return [name for name, dim in first.items() if dim == free[0]]
    return list(first) if len(set(first.values())) == 1 else []


def _of_rows(values: Values, number: int) -> Values:
    """Those that have so many rows."""
    return {name: value for name, value in values.items() if value.shape[:1] == (number,)}


def _shuffled(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """The same elements in another order, so that they stay what the model may be fed."""
    return np.asarray(rng.permutation(value.reshape(-1)).reshape(value.shape))


def _rows(value: NDArray[Any], number: int, rng: np.random.Generator) -> NDArray[Any]:
    """As many rows as asked for: those there are, then others of the same elements."""
    more = [_shuffled(value[:1], rng) for _ in range(number - value.shape[0])]
    return np.concatenate([value, *more])


def _judge(
    examination: Examination, target: TargetSettings, trial: Trial, tolerance: ToleranceOptions, timeout: float | None
) -> dict[str, Any]:
    """Try it; where the target fails, on the reference too."""
    if trial.skipped is not None:
        return {"verdict": "UNRESOLVED", "why": trial.skipped, "same_bits": None, "comparison": None}
    seen = _try(examination, target, trial, tolerance, timeout)
    if seen.failed is None and not seen.comparisons:
        why = "no output has a row for each row of the batch"
        return {"verdict": "UNRESOLVED", "why": why, "same_bits": None, "comparison": None}
    worst = seen.worst
    comparison = None if worst is None else worst.to_json()
    entry = {"same_bits": seen.same_bits, "comparison": comparison}
    told = "" if worst is None else f"'{worst.name}': {worst.describe()}"
    if seen.passed:
        return {"verdict": "PASS", "why": "to the bit" if seen.same_bits else told, **entry}
    if seen.failed is None and _differ_anyway(examination, target, trial, tolerance, timeout):
        told += (
            f"; but {_SESSIONS} sessions with the same input, one after the other, differ too, so that is the reason "
            "(`bisect-trt repeat` says how often)"
        )
    control = _try(examination, reference_settings(target), trial, tolerance, timeout)
    if control.failed is not None:
        more = f"the reference cannot be asked whether that is the model's own doing: {control.failed}"
        return {
            "verdict": "FAIL" if seen.failed is None else "UNRESOLVED",
            "why": f"{told or seen.failed} ({more})",
            **entry,
        }
    if not control.passed:
        return {"verdict": "UNRESOLVED", "why": "it is the model's own doing: on the reference too", **entry}
    return {"verdict": "FAIL", "why": seen.failed or told, **entry}


def _differ_anyway(
    examination: Examination, target: TargetSettings, trial: Trial, tolerance: ToleranceOptions, timeout: float | None
) -> bool:
    """Whether of a trial in several sessions these differ by themselves: of a builder by chance, each is another model."""
    if trial.one or len(trial.feeds) < 2 or target.target.capabilities.costly:
        return False
    again = replace(
        trial, feeds=trial.feeds[:1] * _SESSIONS, pairs=lambda made: [(each, made[0]) for each in made[1:]], beside=0
    )
    found = _try(examination, target, again, tolerance, timeout)
    return found.failed is None and not found.passed


def try_again(
    examination: Examination,
    target: TargetSettings,
    check: str,
    names: Sequence[str],
    tolerance: ToleranceOptions,
    timeout: float | None,
) -> list[TensorComparison] | str:
    """Try one thing again with other tensors as the model's outputs; how these compare, or why the target fails then.

    Args:
        examination: The model.
        target: The target.
        check: The trial's name.
        names: The tensors.
        tolerance: How to compare.
        timeout: Seconds it may take.
    """
    trial = next(each for each in _trials(examination, target) if each.name == check)
    tolerance = replace(tolerance, nonfinite_equal=True)
    found = _try(examination, target, trial, tolerance, timeout, names)
    return found.comparisons if found.failed is None else found.failed


def _try(
    examination: Examination,
    target: TargetSettings,
    trial: Trial,
    tolerance: ToleranceOptions,
    timeout: float | None,
    names: Sequence[str] | None = None,
) -> _Finding:
    subject = examination.subject
    model = subject.network.proto if names is None else mark_outputs(subject.network, names, {})
    if trial.batch:
        model = free_first_dimension(model, batched(subject.samples[0], subject.declared))
    file = subject.models.write("self-check", model)
    feeds = (trial.feeds[0], *trial.feeds) if trial.beside else trial.feeds
    inputs = tuple(subject.models.feed(f"self-check-{number}", feed) for number, feed in enumerate(feeds))
    to = tuple(path.with_suffix(".made.npz") for path in inputs)
    able = target.target.capabilities
    shared: Literal["one", "shapes"] = "shapes" if able.compiles_shapes else "one"
    asked = [Series(target, file, inputs, to, shared if trial.one or able.costly else "each")]
    if trial.beside:
        alone = Series(target, file, inputs[:1], to[:1])
        asked = [alone, replace(asked[0], inputs=inputs[1:], to=to[1:], beside=trial.beside)]
    for request in asked:
        reply = subject.models.ask(request, timeout)
        if isinstance(reply, Failed):
            return _Finding(reply.message)
    pairs = trial.pairs([load_npz(path) for path in to])
    comparisons = [each for made, right in pairs for each in compare_all(right, made, tolerance)]
    outputs = [(made[name], right[name]) for made, right in pairs for name in right]
    same = all(ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes() for ours, theirs in outputs)
    for path in (*inputs, *to):
        path.unlink(missing_ok=True)
    return _Finding(None, comparisons, same)
