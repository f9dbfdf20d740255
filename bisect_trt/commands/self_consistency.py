"""``--self-check``: compare a target with itself, where no reference runs the model.

An engine that is wrong now and then, by its batch size, at some place of a batch, or after another request contradicts
itself. Whether the model itself does (one that draws random numbers, or mixes the rows of a batch) is found by
doing the same on the reference, where that runs the model.
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
from bisect_trt.errors import UnavailableError
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.nodes import Draws
from bisect_trt.onnxlib.shapes import free_dimensions
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import value_bytes
from bisect_trt.tensors.inputs import resized as to_shape
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Failed, Series

Values = Mapping[str, NDArray[Any]]
Pairs = list[tuple[Values, Values]]
"""Outputs, each beside what they should be."""
Declared = Mapping[str, tuple[int | str | None, ...]]
"""The shapes of the inputs as the model's file has them."""

UNPROVEN = "no reference says what is right, so nothing was cut: these are the first layers that differ from themselves"
AGAIN = 8
"""How often one input is run in a session, and how many sessions show whether sessions differ by themselves."""
ROWS = 4
"""In a batch, where the model takes any number; more, where another dimension of an input has that size."""
_WORDS = {"PASS": "same     ", "FAIL": "DIFFERENT", "UNRESOLVED": "not known"}
_RANK = {"FAIL": 0, "PASS": 1, "UNRESOLVED": 2}


@dataclass(frozen=True)
class SelfTrial:
    """Runs whose outputs have to be the same.

    Attributes:
        name: The name in JSON.
        what: The same in words.
        feeds: What a session is fed, in this order.
        pairs: Returns which outputs are compared with which, from the outputs of each feed.
        one: Whether one session runs all; else each feed gets its own, unless an engine would have to be built for each.
        batch: The inputs whose dimension has to be free in the model, each with that; it is the batch.
        skipped: Why it is not tried, if so.
    """

    name: str
    what: str
    feeds: tuple[Values, ...] = ()
    pairs: Callable[[Sequence[Values]], Pairs] = lambda _: []
    one: bool = False
    batch: Mapping[str, int] = field(default_factory=dict)
    skipped: str | None = None


def trials(samples: Sequence[Values], declared: Declared, seed: int, *, resized: bool = False) -> list[SelfTrial]:
    """The trials on the first input sample.

    Other inputs consist of the sample's own elements, so that the model still takes them.

    Args:
        samples: The second one, if there is one, is the other input.
        declared: The shapes of the inputs in the model's file.
        seed: Of random choices.
        resized: Whether one session takes several sizes: then a larger batch is run again and again too, and before the sample.
    """
    rng = np.random.default_rng(seed)
    sample = samples[0]
    other = samples[1] if len(samples) > 1 else {name: _other(value, rng) for name, value in sample.items()}

    def again(fed: Values, what: str, batch: Mapping[str, int]) -> SelfTrial:
        return SelfTrial("again", what, (fed,) * AGAIN, _all_as_first, one=True, batch=batch)

    def after(before: Values, what: str, batch: Mapping[str, int]) -> SelfTrial:
        """Each of the two after the other one: the first of a session has no other before it."""
        feeds = (before, sample, before, sample, sample)
        return SelfTrial("after", what, feeds, lambda m: [(m[2], m[0]), (m[3], m[4])], one=True, batch=batch)

    of_batch = _batch_trials(sample, declared, rng)
    grown: list[list[SelfTrial]] = [[], []]
    order = of_batch[1]
    if resized and order.batch and any(order.feeds[0][name].shape != value.shape for name, value in sample.items()):
        name, axis = next(iter(order.batch.items()))
        batch, rows = order.feeds[0], order.feeds[0][name].shape[axis]
        grown[0] = [again(batch, f"the same batch of {rows} {AGAIN} times in one session", order.batch)]
        grown[1] = [after(batch, f"an input again after a batch of {rows}", order.batch)]
    first = again(sample, f"the same input {AGAIN} times in one session", {})
    return [first, *grown[0], after(other, "an input again after another one", {}), *grown[1], *of_batch]


def _all_as_first(made: Sequence[Values]) -> Pairs:
    return [(each, made[0]) for each in made[1:]]


def _batch_trials(sample: Values, declared: Declared, rng: np.random.Generator) -> list[SelfTrial]:
    """What has to hold for the rows of a batch."""
    axes = batch_axes(sample, declared)
    free = bool(axes) and not all(isinstance(declared[name][axis], int) for name, axis in axes.items())
    rows = max([sample[name].shape[axis] for name, axis in axes.items()], default=0)
    kinds = {
        "rows": "the same row at every place of a batch",
        "order": "the rows of a batch in another order",
        "batch": "a batch beside its rows one by one",
    }
    if not axes or (rows < 2 and not free):
        why = "no input has a batch dimension that is free or above 1"
        return [SelfTrial(kind, what, skipped=why) for kind, what in kinds.items()]
    others = {size for value in sample.values() for size in value.shape}
    number = rows if rows > 1 else next(size for size in count(ROWS) if size not in others)
    batch = {name: _rows(value, number, axes[name], rng) if name in axes else value for name, value in sample.items()}
    turned = np.roll(np.arange(number), 1)

    def pick(places: Sequence[int] | NDArray[np.intp]) -> Values:
        return {name: value.take(places, axes[name]) if name in axes else value for name, value in batch.items()}

    def across(values: Values) -> dict[str, int]:
        """The dimension along which each output has so many rows: that of an input, else the only one of that size."""
        found: dict[str, int] = {}
        for name, value in values.items():
            long = [axis for axis, size in enumerate(value.shape) if size == number]
            there = [axis for axis in (*axes.values(), 0) if axis in long]
            if there or len(long) == 1:
                found[name] = (there or long)[0]
        return found

    def same(made: Sequence[Values]) -> Pairs:
        kept = {name: np.moveaxis(made[0][name], axis, 0) for name, axis in across(made[0]).items()}
        return [(kept, {name: np.broadcast_to(value[:1], value.shape) for name, value in kept.items()})]

    def reordered(made: Sequence[Values]) -> Pairs:
        kept = across(made[0])
        right = {name: made[0][name].take(turned, axis) for name, axis in kept.items()}
        return [({name: made[1][name] for name in kept}, right)]

    def one_by_one(made: Sequence[Values]) -> Pairs:
        whole, rest = made[0], made[1:]
        kept = {n: a for n, a in across(whole).items() if all(each[n].shape[a : a + 1] == (1,) for each in rest)}
        joined = {name: np.concatenate([each[name] for each in rest], axis) for name, axis in kept.items()}
        return [({name: whole[name] for name in kept}, joined)]

    dynamic = axes if free else {}
    apart = (batch, *(pick([row]) for row in range(number)))
    return [
        SelfTrial("rows", kinds["rows"], (pick([0] * number),), same, batch=dynamic),
        SelfTrial("order", kinds["order"], (batch, pick(turned)), reordered, batch=dynamic),
        SelfTrial("batch", kinds["batch"], apart, one_by_one, batch=axes)
        if free
        else SelfTrial("batch", kinds["batch"], skipped=f"the model takes batches of {number} only"),
    ]


def batch_axes(sample: Values, declared: Declared) -> dict[str, int]:
    """The inputs that have a batch dimension, each with that.

    It is the free dimension whose name contains "batch"; else the first dimensions, if they are free and of one name, with the
    only free one of other inputs where it has none; else the first free dimension; else the first ones if all are of one size.
    """
    shapes = {name: declared[name] for name in sample if declared.get(name)}
    named = [dim for shape in shapes.values() for dim in shape if isinstance(dim, str) and "batch" in dim.lower()]
    if named:
        return {name: shape.index(named[0]) for name, shape in shapes.items() if named[0] in shape}
    first = {name: shape[0] for name, shape in shapes.items()}
    free = [dim for dim in first.values() if not isinstance(dim, int)]
    if free:
        bare = {name: [axis for axis, dim in enumerate(shape) if dim is None] for name, shape in shapes.items()}
        here = {name: axes[0] for name, axes in bare.items() if free[0] is None and len(axes) == 1}
        return here | {name: 0 for name, dim in first.items() if dim == free[0]}
    others: dict[str | int, dict[str, int]] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):  # a dimension without a name is that of another input at the same place
                others.setdefault(axis if dim is None else dim, {}).setdefault(name, axis)
    if others:
        return next(iter(others.values()))
    return dict.fromkeys(first, 0) if len(set(first.values())) == 1 else {}


def _other(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """The smaller half of the elements at random; all of them in another order where these are alike, or no numbers."""
    flat = value.reshape(-1)
    if flat.dtype.kind in "iuf" and flat.size:
        sizes = np.abs(flat.astype(np.float64))
        small = flat[sizes <= np.median(sizes)]
        if small.size and sizes.max() > np.median(sizes):
            return np.asarray(rng.choice(small, value.shape))
    return np.asarray(rng.permutation(flat).reshape(value.shape))


def _rows(value: NDArray[Any], number: int, axis: int, rng: np.random.Generator) -> NDArray[Any]:
    """So many rows: the sample's, then others of the same elements, every second one of the smaller ones."""
    first = to_shape(value, [*value.shape[:axis], 1, *value.shape[axis + 1 :]])
    more = [
        _other(first, rng) if place % 2 else rng.permutation(first.reshape(-1)).reshape(first.shape)
        for place in range(number - value.shape[axis])
    ]
    return np.concatenate([value, *more], axis)


@dataclass
class _Finding:
    """The outcome of one trial on one target."""

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


class _SelfCheck:
    """Runs trials on one target."""

    def __init__(
        self, session: Session, target: TargetSettings, tolerance: ToleranceOptions, timeout: float | None
    ) -> None:
        self._subject, self._target, self._timeout = session.subject, target, timeout
        self._tolerance = replace(tolerance, nonfinite_equal=True)  # the same NaN twice is no contradiction

    def trials(self) -> list[SelfTrial]:
        subject, able = self._subject, self._target.target.capabilities
        seed, resized = subject.settings.data.seed, not able.compiles_shapes
        return trials(subject.samples, subject.declared, seed, resized=resized)

    def judge_all(self) -> list[tuple[SelfTrial, dict[str, Any]]]:
        """All trials, one after the other; a target that fails whenever it is run does not contradict itself."""
        refused: str | None = None
        judged: dict[str, tuple[SelfTrial, dict[str, Any]]] = {}
        for trial in self.trials():
            entry = self._judge(trial if refused is None else replace(trial, skipped=refused))
            if trial.name == "again" and entry["verdict"] == "FAIL" and entry["comparison"] is None:
                refused = self.run(replace(trial, feeds=trial.feeds[:1], pairs=lambda _: [])).failed
                entry |= {} if refused is None else {"verdict": "UNRESOLVED", "why": refused}
            # Of two trials of one name, the one that says more is reported.
            known = judged.get(trial.name)
            if known is None or _RANK[entry["verdict"]] < _RANK[known[1]["verdict"]]:
                judged[trial.name] = trial, entry
        return list(judged.values())

    def _judge(self, trial: SelfTrial) -> dict[str, Any]:  # noqa: PLR0911 - one for each outcome
        """Run a trial; where the target contradicts itself, on the reference too."""
        entry: dict[str, Any] = {"verdict": "UNRESOLVED", "why": trial.skipped, "same_bits": None, "comparison": None}
        if trial.skipped is not None:
            return entry
        seen = self.run(trial)
        if seen.failed is None and not seen.comparisons:
            return entry | {"why": "no output has a row for each row of the batch"}
        worst = seen.worst
        entry |= {"same_bits": seen.same_bits, "comparison": None if worst is None else worst.to_json()}
        told = "" if worst is None else f"'{worst.name}': {worst.describe()}"
        if seen.passed:
            return entry | {"verdict": "PASS", "why": "to the bit" if seen.same_bits else told}
        if seen.failed is None:
            if self._sessions_differ(trial):
                told += (
                    f"; but {AGAIN} sessions with the same input, one after the other, differ too, so that is the reason "
                    "(`bisect-trt repeat` says how often)"
                )
            if (drawn := self._drawn()) is not None:
                return entry | {"why": f"it is the model's own doing: {drawn}"}
        control = self.run(trial, reference_settings(self._target))
        if control.failed is not None:
            more = f"the reference cannot be asked whether that is the model's own doing: {control.failed}"
            verdict = "FAIL" if seen.failed is None else "UNRESOLVED"
            return entry | {"verdict": verdict, "why": f"{told or seen.failed} ({more})"}
        if not control.passed:
            return entry | {"why": "it is the model's own doing: on the reference too"}
        return entry | {"verdict": "FAIL", "why": seen.failed or told}

    def _drawn(self) -> str | None:
        """The node that draws random numbers, if any: reference sessions all begin with one seed, so they cannot tell."""
        network = self._subject.network
        draws = Draws(network.proto, self._subject.samples[0], unsure=False)
        node = next((node for node in network.nodes if draws.by(node)), None)
        return None if node is None else f"{node.op_type} '{node.name or node.output[0]}' draws random numbers"

    def _sessions_differ(self, trial: SelfTrial) -> bool:
        """Whether sessions differ by themselves: where a builder chooses by chance, each is another model."""
        if trial.one or len(trial.feeds) < 2 or self._target.target.capabilities.costly:
            return False
        found = self.run(replace(trial, feeds=trial.feeds[:1] * AGAIN, pairs=_all_as_first))
        return found.failed is None and not found.passed

    def run(
        self, trial: SelfTrial, target: TargetSettings | None = None, names: Sequence[str] | None = None
    ) -> _Finding:
        """Run a trial, with other tensors as the model's outputs if ``names`` are given."""
        subject, target = self._subject, target or self._target
        model = subject.network.proto if names is None else mark_outputs(subject.network, names, {})
        if trial.batch:
            model = free_dimensions(model, trial.batch)
        file = subject.models.write("self-check", model)
        inputs = tuple(subject.models.feed(f"self-check-{number}", feed) for number, feed in enumerate(trial.feeds))
        to = tuple(path.with_suffix(".made.npz") for path in inputs)
        able = target.target.capabilities
        shared: Literal["one", "shapes"] = "shapes" if able.compiles_shapes else "one"
        request = Series(target, file, inputs, to, shared if trial.one or able.costly else "each")
        reply = subject.models.ask(request, self._timeout)
        if isinstance(reply, Failed):
            return _Finding(reply.message)
        pairs = trial.pairs([load_npz(path) for path in to])
        comparisons = [each for made, right in pairs for each in compare_all(right, made, self._tolerance)]
        outputs = [(made[name], right[name]) for made, right in pairs for name in right]
        same = all(ours.shape == theirs.shape and value_bytes(ours) == value_bytes(theirs) for ours, theirs in outputs)
        for path in (*inputs, *to):
            path.unlink(missing_ok=True)
        return _Finding(None, comparisons, same)


def self_check(
    session: Session, targets: Sequence[TargetSettings], tolerance: ToleranceOptions, timeout: float | None
) -> Result:
    """Compare each target with itself.

    Returns:
        The result; ``self_check`` in it has an entry for each trial: ``target``, ``check``, ``what``, ``verdict`` (``PASS``,
        ``FAIL``, or ``UNRESOLVED`` where it was not tried or is inconclusive), ``why``, ``same_bits`` and ``comparison``.

    Raises:
        UnavailableError: Nothing could be tried.
    """
    console, result = session.console, session.result
    found = result.extra["self_check"] = []
    for target in targets:
        console.step(f"{target.describe()} against itself")
        for trial, entry in _SelfCheck(session, target, tolerance, timeout).judge_all():
            found.append({"target": target.describe(), "check": trial.name, "what": trial.what, **entry})
            console.say(f"  {_WORDS[entry['verdict']]} {trial.what}: {entry['why']}")
    failed = sum(entry["verdict"] == "FAIL" for entry in found)
    tried = sum(entry["verdict"] != "UNRESOLVED" for entry in found)
    if not tried:
        raise UnavailableError(f"nothing could be compared with itself: {found[0]['why']}.")
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
    self_check(session, [target], check.tolerance, check.timeout)
    failed = [entry for entry in result.extra["self_check"] if entry["verdict"] == "FAIL"]
    if not failed:
        raise DoesNotReproduce("the target agrees with itself in all that was tried.")
    result.status, result.minimality = "inconclusive", "unproven"
    names = [name for name in subject.network.computed if name in subject.infos or name in subject.network.producer]
    checker = _SelfCheck(session, target, check.tolerance, check.timeout)
    for entry in failed:
        console.step(f"Mark every tensor as an output: where does {entry['what']} begin to differ?")
        trial = next(each for each in checker.trials() if each.what == entry["what"])
        seen = checker.run(trial, names=names)
        result.extra["contradiction"] = {"check": entry["check"], "what": entry["what"], "shown": False}
        tensors = of_samples(seen.comparisons)
        origins = find_origins(subject.network, tensors)
        if seen.failed is not None or not origins:
            why = f"the target does not run the model with every tensor marked: {seen.failed}"
            result.why = why if seen.failed else "with every tensor marked as an output the target agrees with itself"
            console.say(f"  {result.why}")
            continue
        unseen = {name: "it says nothing of this check" for name in names if name not in tensors}
        layers = LayerComparison(tensors, unseen, origins, outputs_fail=True)
        result.extra |= to_json(subject, layers)
        result.extra["contradiction"]["shown"] = True
        tell(subject, layers, console)
        result.culprits = subject.describe_nodes(origins)
        result.status, result.why = "found", UNPROVEN
        named = ", ".join(subject.network.describe(index) for index in origins[:6])
        console.answer(f"It contradicts itself ({entry['what']}), first in {named}.")
        console.answer(f"  unproven: {UNPROVEN}")
        break
    return result
