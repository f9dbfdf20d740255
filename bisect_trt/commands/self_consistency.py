"""``--self-check``: compare a target with itself, where no reference runs the model.

An engine that is wrong now and then, after another input, at some place of a batch or by its size contradicts itself. Whether
the model itself does (one that draws random numbers, or mixes the rows of a batch) is found by doing the same on
the reference, where that runs the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bisect_trt.commands.layerwise import tell, to_json
from bisect_trt.commands.marking import LayerComparison, find_origins, of_samples
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.errors import ModelRefusedError
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.nodes import Draws
from bisect_trt.onnxlib.shapes import free_dimensions
from bisect_trt.options.shared import CheckOptions
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.inputs import resized
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Failed, RunEach

Values = Mapping[str, NDArray[Any]]
Pairs = list[tuple[Values, Values]]
"""Outputs, each beside what they should be."""
Declared = Mapping[str, tuple[int | str | None, ...]]
"""The shapes of the inputs as the model's file has them."""

UNPROVEN = "no reference says what is right, so nothing was cut: these are the first layers that differ from themselves"
AGAIN = 8
"""How often one input is run in a session, the last time after another one."""
ROWS = 4
"""Rows of a batch, where the model takes any number; more, where another dimension of an input has that size."""
_WORDS = {"PASS": "same     ", "FAIL": "DIFFERENT", "UNRESOLVED": "not known"}


@dataclass(frozen=True)
class SelfTrial:
    """Runs whose outputs have to be the same.

    Attributes:
        name: The name in JSON.
        what: The same in words.
        feeds: The inputs that a session runs, in this order.
        pairs: Returns which outputs are compared with which, from the outputs of each feed.
        one: Whether one session runs all; else each feed gets its own, unless an engine would have to be built for each.
        batch: The inputs whose dimension has to be free in the model, each with that; it is the batch.
        skipped: Why it is not tried, if so.
    """

    name: str
    what: str
    feeds: Sequence[Values] = ()
    pairs: Callable[[Sequence[Values]], Pairs] = lambda _: []
    one: bool = False
    batch: Mapping[str, int] = field(default_factory=dict)
    skipped: str | None = None


def trials(samples: Sequence[Values], declared: Declared, seed: int) -> list[SelfTrial]:
    """The trials on the first input sample; other inputs consist of its own elements, so that the model still takes them.

    Args:
        samples: The second one, if there is one, is the other input.
        declared: The shapes of the inputs in the model's file.
        seed: Of random choices.
    """
    rng, sample = np.random.default_rng(seed), samples[0]
    other = samples[1] if len(samples) > 1 else {name: _shuffled(value, rng) for name, value in sample.items()}
    what = f"the same input {AGAIN} times in one session, the last time after another one"
    feeds = [*[sample] * (AGAIN - 1), other, sample]
    again = SelfTrial(
        "again", what, feeds, lambda made: [(each, made[0]) for each in (*made[1:-2], made[-1])], one=True
    )
    return [again, _batch_trial(sample, declared, rng)]


def _batch_trial(sample: Values, declared: Declared, rng: np.random.Generator) -> SelfTrial:
    """The rows of a batch, which must not depend on their place, nor on the rows beside them."""
    axes = batch_axes(sample, declared)
    free = any(not isinstance(declared[name][axis], int) for name, axis in axes.items())
    rows = max([sample[name].shape[axis] for name, axis in axes.items()], default=0)
    what = f"the rows of a batch in another order{' and one by one' if free else ''}"
    if rows < 2 and not free:
        return SelfTrial("batch", what, skipped="no input has a batch dimension that is free or above 1")
    others = {size for value in sample.values() for size in value.shape}
    number = rows if rows > 1 else next(size for size in count(ROWS) if size not in others)
    turned = np.roll(np.arange(number), 1)
    whole = {name: _rows(value, number, axes[name], rng) if name in axes else value for name, value in sample.items()}

    def pick(places: Sequence[int] | NDArray[np.intp]) -> Values:
        return {name: value.take(places, axes[name]) if name in axes else value for name, value in whole.items()}

    def across(values: Values) -> dict[str, int]:
        """The dimension along which each output has so many rows: that of an input, else the only one of that size."""
        found: dict[str, int] = {}
        for name, value in values.items():
            long = [axis for axis, size in enumerate(value.shape) if size == number]
            there = [axis for axis in (*axes.values(), 0) if axis in long]
            if there or len(long) == 1:
                found[name] = (there or long)[0]
        return found

    def pairs(made: Sequence[Values]) -> Pairs:
        first, second, *rest = made
        along = across(first)
        found: Pairs = [
            ({name: second[name] for name in along}, {n: first[n].take(turned, axis) for n, axis in along.items()})
        ]
        if rest:
            alone = {n: a for n, a in along.items() if all(each[n].shape[a : a + 1] == (1,) for each in rest)}
            joined = {name: np.concatenate([each[name] for each in rest], axis) for name, axis in alone.items()}
            found.append(({name: first[name] for name in alone}, joined))
        return found

    apart = [pick([row]) for row in range(number)] if free else []
    return SelfTrial("batch", what, [whole, pick(turned), *apart], pairs, batch=axes if free else {})


def batch_axes(sample: Values, declared: Declared) -> dict[str, int]:
    """The inputs that have a batch dimension, each with that.

    It is the free dimension whose name contains "batch", else the first free one; an input without a name for it has it
    at the same place. Where none is free it is the first, if all inputs have that in one size.
    """
    shapes = {name: declared[name] for name in sample if declared.get(name)}
    places = [(axis, dim) for shape in shapes.values() for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    named = [(axis, dim) for axis, dim in places if dim is not None and "batch" in dim.lower()]
    first = [(0, shape[0]) for shape in shapes.values() if not isinstance(shape[0], int)]
    if not places:
        return dict.fromkeys(shapes, 0) if len({shape[0] for shape in shapes.values()}) == 1 else {}
    place, symbol = (named or first or places)[0]
    if symbol is not None:
        return {name: shape.index(symbol) for name, shape in shapes.items() if symbol in shape}
    return {name: place for name, shape in shapes.items() if shape[place : place + 1] == (None,)}


def _shuffled(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    return np.asarray(rng.permutation(value.reshape(-1)).reshape(value.shape))


def _rows(value: NDArray[Any], number: int, axis: int, rng: np.random.Generator) -> NDArray[Any]:
    """So many rows: the sample's, then others of the elements of the first."""
    first = resized(value, [*value.shape[:axis], 1, *value.shape[axis + 1 :]])
    return np.concatenate([value, *(_shuffled(first, rng) for _ in range(number - value.shape[axis]))], axis)


def _run(
    session: Session,
    check: CheckSettings,
    trial: SelfTrial,
    target: TargetSettings,
    names: Sequence[str] = (),
    *,
    here: bool = False,
) -> Sequence[TensorComparison] | str:
    """Run a trial, with other tensors as the model's outputs if ``names`` are given; ``here``, whatever places there are.

    Returns:
        The comparisons, or why the target does not run it.
    """
    subject, able = session.subject, target.target.capabilities
    model = mark_outputs(subject.network, names, {}) if names else subject.network.proto
    model = free_dimensions(model, trial.batch) if trial.batch else model
    inputs = tuple(subject.models.feed(f"self-check-{number}", feed) for number, feed in enumerate(trial.feeds))
    to = tuple(path.with_suffix(".made.npz") for path in inputs)
    shared: Literal["one", "shapes", "each"] = "shapes" if able.compiles_shapes else "one"
    shared = shared if trial.one or able.costly else "each"
    request = RunEach(target, subject.models.write("self-check", model), inputs, to, shared)
    if isinstance(reply := subject.workers.ask(request, check.timeout, here=here), Failed):
        return reply.message
    pairs = trial.pairs([load_npz(path) for path in to])
    for path in (*inputs, *to):
        path.unlink(missing_ok=True)
    tolerance = replace(check.tolerance, nonfinite_equal=True)  # the same NaN twice is no contradiction
    return [each for made, right in pairs for each in compare_all(right, made, tolerance)]


def _judge(session: Session, check: CheckSettings, trial: SelfTrial, target: TargetSettings) -> dict[str, Any]:
    """Run a trial; returns its ``verdict``, ``why`` and the worst ``comparison``."""
    entry: dict[str, Any] = {"verdict": "UNRESOLVED", "why": trial.skipped, "comparison": None}
    if trial.skipped is not None:
        return entry
    seen = _run(session, check, trial, target)
    if isinstance(seen, str):
        innocent = _innocent(session, check, trial, target, refused=True)
        return entry | {"verdict": "UNRESOLVED" if innocent else "FAIL", "why": innocent or seen}
    if not seen:
        return entry | {"why": "no output has a row for each row of the batch"}
    wrong = [each for each in seen if not each.passed]
    worst = max(wrong or seen, key=lambda each: each.severity)
    entry |= {"why": f"'{worst.name}': {worst.describe()}", "comparison": worst.to_json()}
    innocent = _innocent(session, check, trial, target, refused=False) if wrong else None
    if innocent is not None:
        return entry | {"why": innocent}
    return entry | {"verdict": "FAIL" if wrong else "PASS"}


def _innocent(
    session: Session, check: CheckSettings, trial: SelfTrial, target: TargetSettings, *, refused: bool
) -> str | None:
    """Why a trial that failed says nothing of the target: it never runs the model, or the model itself does it."""
    if refused:
        once = _run(session, check, replace(trial, feeds=trial.feeds[:1], pairs=lambda _: []), target)
        if isinstance(once, str):
            return once
    network = session.subject.network
    draws = Draws(network.proto, session.subject.samples[0], unsure=False)  # reference sessions all begin with one seed
    if (drawing := next(filter(draws.by, network.nodes), None)) is not None:
        return f"the model itself does it: {drawing.op_type} draws random numbers"
    control = _run(session, check, trial, reference_settings(target), here=True)
    if isinstance(control, str):
        return f"the reference does not run it either: {control}" if refused else None
    same = all(each.passed for each in control)
    return None if same else "the model itself does it: on the reference too"


def self_check(session: Session, target: TargetSettings, tolerance: ToleranceOptions, timeout: float | None) -> Result:
    """Compare the target with itself.

    Returns:
        The result; ``self_check`` in it has an entry for each trial: ``target``, ``check``, ``what``, ``verdict`` (``PASS``,
        ``FAIL``, or ``UNRESOLVED`` where it was not tried or is inconclusive), ``why`` and ``comparison``.

    Raises:
        UnavailableError: Nothing could be tried.
    """
    console, result, subject = session.console, session.result, session.subject
    check = CheckSettings(CheckOptions(timeout=timeout), tolerance=tolerance)
    found = result.extra["self_check"] = []
    console.step(f"{target.describe()} against itself")
    for trial in trials(subject.samples, subject.declared, subject.settings.data.seed):
        entry = _judge(session, check, trial, target)
        found.append({"target": target.describe(), "check": trial.name, "what": trial.what, **entry})
        console.say(f"  {_WORDS[entry['verdict']]} {trial.what}: {entry['why']}")
    failed = sum(entry["verdict"] == "FAIL" for entry in found)
    tried = sum(entry["verdict"] != "UNRESOLVED" for entry in found)
    if not tried:
        raise ModelRefusedError(f"nothing could be compared with itself: {found[0]['why']}.")
    result.extra["comparisons"] = [entry["comparison"] for entry in found if entry["comparison"] is not None]
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    differs, agrees = f"contradicts itself in {failed} of {tried} checks", f"agrees with itself in all {tried} checks"
    console.answer(f"It {differs if failed else agrees}.")
    return result


def diagnose_itself(session: Session, check: CheckSettings) -> Result:
    """Compare the target with itself, and find the layers in which it begins to differ, with every tensor marked.

    Returns:
        The result; ``contradiction`` in it names the check that was followed to its layers, and whether it shows there.

    Raises:
        DoesNotReproduce: The target agrees with itself.
    """
    subject, console, result, target = session.subject, session.console, session.result, check.target
    assert target is not None
    self_check(session, target, check.tolerance, check.timeout)
    failed = {entry["check"]: entry["what"] for entry in result.extra["self_check"] if entry["verdict"] == "FAIL"}
    if not failed:
        raise DoesNotReproduce("the target agrees with itself in all that was tried.")
    result.status, result.minimality = "inconclusive", "unproven"
    names = [name for name in subject.network.computed if name in subject.infos or name in subject.network.producer]
    for trial in trials(subject.samples, subject.declared, subject.settings.data.seed):
        if trial.name not in failed:
            continue
        console.step(f"Mark every tensor as an output: which differs first ({trial.what})?")
        seen = _run(session, check, trial, target, names)
        tensors = {} if isinstance(seen, str) else of_samples(seen)
        origins = find_origins(subject.network, tensors)
        result.extra["contradiction"] = {"check": trial.name, "what": trial.what, "shown": bool(origins)}
        if not origins:
            result.why = "with every tensor marked as an output the target agrees with itself"
            if isinstance(seen, str):
                result.why = f"the target does not run the model with every tensor marked: {seen}"
            console.say(f"  {result.why}")
            continue
        unseen = {name: "it says nothing of this check" for name in names if name not in tensors}
        layers = LayerComparison(tensors, unseen, origins, outputs_fail=True)
        result.extra |= to_json(subject, layers)
        tell(subject, layers, console)
        result.culprits = subject.describe_nodes(origins)
        result.status, result.why = "found", UNPROVEN
        named = ", ".join(subject.network.describe(index) for index in origins[:6])
        console.answer(f"It contradicts itself ({trial.what}), first in {named}.")
        console.answer(f"  unproven: {UNPROVEN}")
        break
    return result
