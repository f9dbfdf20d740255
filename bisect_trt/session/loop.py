"""A model with a state, run step after step: the step that is wrong becomes the model's sample.

The target runs the steps twice: with the state that it returned itself, and with the reference's.
A step that is wrong with the reference's state is the target's fault; where only its own state
makes it wrong, feedback has magnified what no step shows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, count, groupby, takewhile
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, TypeAlias

import numpy as np
import onnx
from msgspec import Struct, msgpack, structs

from bisect_trt.errors import MissingOptionError, ModelRefusedError, first_few
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.state import join_steps
from bisect_trt.options.shared import Loop
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.parts import Comparison, Kind, Steps, StepsWay
from bisect_trt.report.result import Result
from bisect_trt.report.summary import MOST_ROWS, WITH_RIGHT_STATE, describe_steps, steps_table
from bisect_trt.report.text import seconds
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.ordered import History, find_edges
from bisect_trt.search.strategy import minimise
from bisect_trt.session.eager import Eager
from bisect_trt.session.other_model import OtherModel
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, required_severity
from bisect_trt.tensors.files import (
    Arrays,
    NpzFile,
    replacing,
    save_npz,
    save_samples,
    shapes_of,
)
from bisect_trt.tensors.info import Array, rounded
from bisect_trt.tensors.state import state_after
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Collect, Compare, Failed, Sample

Errors = dict[int, list[TensorComparison]]
"""The comparisons of the outputs of some steps, by the number of the step."""
_Entry: TypeAlias = tuple[str, int, Array]
"""An input of a state, and the mask of a place in it with the place's number."""
_CHUNK = 64
"""Steps in one request; a target that compiles gets all of them, since it builds the model in each."""
_MOST_QUESTIONS = 200
"""Runs of a step to find the inputs, and as many to find the places, that carry a drift."""
_MOST_STEPS = 16
_MOST_BYTES = 1 << 30
"""Other wrong steps on which a fix is run, and the size of what they are fed."""
_LEAST_POINTS = 8
"""Steps that a rate of growth needs."""
_OUTLIER = 5
"""A wrong step is off by so many times what half of the matching steps are off by, else it is the worst of their rounding."""


class _TooManyQuestions(Exception):  # noqa: N818 - an ending, not an error
    """The fewest entries of a state are not found soon."""


class LoopRun(Struct, frozen=True):
    """The runs of a loop, on the reference and on the target; values are in files of the run's folder.

    Attributes:
        subject: The model.
        target: The runtime under test.
        tolerance: How far an output may be off.
        eager: The module or the other model that is the reference, if one is.
        fixed: A mixed-precision form of the model, which runs in its place.
    """

    subject: Subject
    target: TargetSettings
    tolerance: ToleranceOptions
    eager: Eager | OtherModel | None = None
    fixed: onnx.ModelProto | None = None

    @property
    def folder(self) -> Path:
        """The folder of the files; a run that goes on finds them."""
        return self.subject.workspace.folder / "steps"

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.subject.stream)

    @property
    def reference(self) -> Network:
        """The graph that the reference runs."""
        return self.eager.network if isinstance(self.eager, OtherModel) else self.subject.truth

    def file(self, kind: str, step: int) -> Path:
        """Return the file of some values of a step: ``inputs``, ``golden``, or the target's ``own`` outputs."""
        return self.folder / f"{kind}-{step}.npz"

    def before(self, step: int, kind: str = "golden") -> Path | None:
        """Return the file of the outputs of the step before; ``None`` for the first."""
        return self.file(kind, step - 1) if step > 1 else None

    def fed(self, step: int) -> Arrays:
        """Return the inputs of a step, with the state of the reference."""
        state = state_after(self.subject.state.taken, self.before(step))
        return {**self.subject.stream[step - 1], **state}

    @property
    def types(self) -> dict[str, np.dtype[Any]]:
        """The types of the model's inputs."""
        return {info.name: info.dtype for info in input_infos(self.subject.network)}

    def in_types(self, steps: Iterable[int]) -> list[Arrays]:
        """Return what steps are fed, in the types of the model's inputs."""
        types = self.types
        return [
            {name: rounded(value, types[name]) for name, value in self.fed(step).items()}
            for step in steps
        ]

    def other_samples(self, wrong: Sequence[Sequence[int]], sample: Arrays) -> list[Arrays]:
        """Return what some wrong steps after the first are fed.

        Args:
            wrong: Stretches of wrong steps, each the first and the last.
            sample: What the first is fed.
        """
        steps = [step for first, last in wrong for step in range(first, last + 1)][1:]
        size = sum(value.nbytes for value in sample.values())
        most = min(_MOST_STEPS, max(_MOST_BYTES // max(size, 1), 1))
        spread = steps[:: -(-len(steps) // most) or 1]
        others = self.in_types(sorted({*spread, *self._extremes(steps)[:most]}))
        # An engine is built for the shapes of its inputs.
        fixed = self.target.target.compiles
        return [other for other in others if not fixed or shapes_of(other) == shapes_of(sample)]

    def run_reference(self) -> None:
        """Run the reference; steps that a run before this one has made stay.

        Raises:
            ModelRefusedError: It does not run a step.
        """
        self.folder.mkdir(exist_ok=True)
        models = self.subject.models
        eager = self.eager
        for steps in self._chunks(_CHUNK, "the reference"):
            for step in steps:
                save_npz(self.file("inputs", step), self.subject.stream[step - 1])
            # A resumed run has the values of the steps before it was killed.
            missing = [step for step in steps if not self.file("golden", step).exists()]
            if isinstance(eager, Eager):
                for step in missing:
                    outputs = eager.run(self.fed(step), self.subject.network.outputs)
                    save_npz(self.file("golden", step), outputs)
                continue
            inputs, golden = (
                tuple(self.file(kind, step) for step in missing) for kind in ("inputs", "golden")
            )
            request = Collect(
                models.reference,
                models.write("loop", self.reference.proto),
                inputs,
                golden,
                state=self.subject.state.taken,
                before=self.before(missing[0]) if missing else None,
            )
            reply = models.ask(request)
            if isinstance(reply, Failed):
                step = sum(file.exists() for file in golden) + missing[0]
                raise ModelRefusedError(f"the reference cannot run step {step}: {reply.message}.")

    def compare(self, *, own_state: bool) -> Errors:
        """Run the target with its own state or the reference's; return the errors of each step, up to one it does not run."""
        errors: Errors = {}
        name = "the target" if own_state else WITH_RIGHT_STATE
        # A model that is not compiled stays loaded between requests, so these can be small.
        size = self.steps if self.target.target.compiles else _CHUNK // 4
        for steps in self._chunks(size, name):
            # A run that goes on has the errors of the steps before it was killed.
            file = self.folder / f"{'own' if own_state else 'right'}-errors-{steps.start}.msgpack"
            if not file.exists():
                content = msgpack.encode(self.compare_steps(steps, own_state=own_state))
                with replacing(file) as stream:
                    stream.write(content)
            errors |= msgpack.decode(file.read_bytes(), type=Errors)
            if not errors[max(errors)][0].name:
                # The target did not run it.
                break
        return errors

    def compare_right(self, free_run: Errors, *, strict: bool) -> Errors:
        """Run the target with the reference's state: all steps, or by halving where a failure lasts to the last one.

        Args:
            free_run: The errors with its own state; the first step that is wrong so is likely wrong.
            strict: As for :func:`judge`.
        """
        first = _way(scaled(free_run), {}).first
        errors: Errors = {}

        def ask(place: int) -> Verdict:
            step = place + 1
            if step not in errors:
                self.subject.console.progress.step(
                    f"step {step} of {self.steps} on the target, with the state of the reference"
                )
                errors.update(self.compare_steps(range(step, step + 1), own_state=False))
            is_wrong = step in wrong_steps(_way(scaled(errors, free_run), {}), strict=strict)
            return Verdict.FAIL if is_wrong else Verdict.PASS

        # A target that compiles builds the model in each request.
        if first is not None and not self.target.target.compiles:
            last = self.steps - 1
            if all(ask(place) is Verdict.FAIL for place in (first - 1, last, (first + last) // 2)):
                find_edges(self.steps, ask, first - 1)
                return dict(sorted(errors.items()))
        return self.compare(own_state=False)

    def samples(self, step: int) -> list[Arrays]:
        """Return the inputs of a wrong step with its state; steps before come first where it fails only after other runs."""
        alone = self.compare_steps(range(step, step + 1), own_state=False, same=False)
        needed = {step}
        if all(each.passed for each in alone[step]):
            # The target may keep something of its first run, or of the last.
            needed |= {1, step - 1 or step}
            self.subject.console.warn(
                f"step {step} alone is right, so the search runs step 1 and the step before it first, in the same session"
            )
        return self.in_types(sorted(needed))

    def _extremes(self, steps: Iterable[int]) -> list[int]:
        """Return of each input the step that has its largest magnitude, which may be past a range there alone."""
        peaks: dict[str, tuple[float, int]] = {}
        for step in steps:
            for name, value in self.fed(step).items():
                if value.dtype.kind == "f" and value.size:
                    peak = float(np.abs(value).max()), step
                    peaks[name] = max(peaks.get(name, peak), peak)
        return [step for _, step in peaks.values()]

    def _chunks(self, size: int, runtime: str) -> Iterator[range]:
        """Yield the numbers of the steps of each request, and show where the run is."""
        began = time.monotonic()
        for done in range(0, self.steps, size):
            steps = range(1, self.steps + 1)[done : done + size]
            remaining = (time.monotonic() - began) * (self.steps / (done or 1) - 1)
            estimate = f", {seconds(remaining, whole=True)} left" if done else ""
            self.subject.console.progress.step(
                f"steps {steps[0]} to {steps[-1]} of {self.steps} on {runtime}{estimate}"
            )
            yield steps

    def compare_steps(self, steps: range, *, own_state: bool, same: bool = True) -> Errors:
        """Run the target on some steps, with its own state or the reference's; return their errors, up to one it does not run."""
        samples = [
            Sample(self.file("inputs", step), self.file("golden", step), self.before(step))
            for step in steps
        ]
        if own_state:
            samples[0] = structs.replace(samples[0], before=self.before(steps[0], "own"))
        saved = (self.file("own", steps[-1]),) * len(steps)
        request = structs.replace(self._request(*samples), same=same)
        if own_state:
            request = structs.replace(request, feeds_back=True, save_outputs=saved)
        reply = self.subject.workers.ask(request)
        if not isinstance(reply, Failed):
            grouped = groupby(reply.comparisons, lambda comparison: comparison.sample)
            return {
                step: list(comparisons)
                for step, (_, comparisons) in zip(steps, grouped, strict=True)
            }
        if len(steps) == 1:
            kind = ComparisonKind.MISSING
            failed = TensorComparison("", passed=False, kind=kind, reason=reply.message)
            return {steps[0]: [failed]}
        # Halves find the step that is not run.
        half = len(steps) // 2
        errors = self.compare_steps(steps[:half], own_state=own_state)
        if errors[max(errors)][0].name:
            errors |= self.compare_steps(steps[half:], own_state=own_state)
        return errors

    def _request(self, *samples: Sample) -> Compare:
        return Compare(
            self.target,
            self.subject.models.write("loop", self.fixed or self.subject.network.proto),
            samples,
            self.tolerance,
            every=True,
            details=True,
            same=True,
            state=self.subject.state.taken,
        )

    def run_fixed(self, model: onnx.ModelProto, target: TargetSettings) -> StepsWay | None:
        """Return the errors of a mixed-precision form of the model with its own state; ``None`` if a step does not run."""
        run = structs.replace(self, fixed=model, target=target)
        errors = run.compare_steps(range(1, self.steps + 1), own_state=True)
        return _way(scaled(errors), {}) if errors[max(errors)][0].name else None

    def carriers(self, step: int, steps: Errors) -> dict[str, tuple[int, ...]]:
        """Return the fewest inputs of the target's own state that make a step wrong, the others being the reference's.

        Args:
            step: A step that is right with the reference's state and wrong with the target's.
            steps: The errors of all steps with the target's own state.

        Returns:
            Of each the fewest places that are needed; see :func:`_differing`. Where rounding in
            many adds up, all inputs, or none of their places. Nothing where the state is equal, or
            the step is not as wrong when it is run again with the target's state.
        """
        self.compare_steps(range(1, step), own_state=True)
        taken = self.subject.state.taken
        own, right = (state_after(taken, self.before(step, kind)) for kind in ("own", "golden"))
        mixed = Sample(self.file("mixed", step), self.file("golden", step))

        def error(entries: Iterable[_Entry]) -> float:
            state = dict(right)
            for name, _, mask in entries:
                state[name] = np.where(mask, own[name], state[name])
            # The step's own inputs are right on both sides; the state alone is mixed.
            save_npz(mixed.inputs, self.subject.stream[step - 1] | state)
            reply = self.subject.workers.ask(self._request(mixed))
            if isinstance(reply, Failed):
                return math.inf
            return _way(scaled({step: list(reply.comparisons)}, steps), {}).worst

        def fewest(entries: Sequence[_Entry]) -> list[_Entry]:
            questions = count(1)

            def ask(units: Subset) -> Verdict:
                question = next(questions)
                if question > _MOST_QUESTIONS:
                    raise _TooManyQuestions
                self.subject.console.progress.step(
                    f"which of {len(entries)} parts of the state carry the drift to step {step}, run {question}"
                )
                return Verdict.FAIL if error(entries[unit] for unit in units) > 1 else Verdict.PASS

            try:
                units = minimise(range(len(entries)), ask).units if entries else ()
            except _TooManyQuestions:
                units = ()
            return [entries[unit] for unit in sorted(units)]

        # Whole tensors first, so that the search over places is about the few that matter.
        wholes = [
            (name, 0, np.array(True))
            for name in taken
            if not np.array_equal(own[name], right[name])
        ]
        # Another build rounds in another way, but an error by feedback stays.
        if (
            not wholes
            or 2 * error(wholes) < _way(scaled(steps), {}).errors[step - 1].tolerance_ratio
        ):
            return {}
        chosen = [name for name, _, _ in fewest(wholes) or wholes]
        growing = self.subject.state.growing
        places = [
            (name, place, mask)
            for name in chosen
            for place, mask in _differing(own[name], right[name], growing.get(name)).items()
        ]
        needed = fewest(places)
        return {
            name: tuple(place for owner, place, _ in needed if owner == name) for name in chosen
        }

    def compare_whole(self) -> Errors:
        """Run all steps at once on both sides; return the errors in the part of each step, none where that is not possible."""
        subject = self.subject
        inputs = join_steps(subject.network, subject.state, subject.stream)
        # A module has no free axes.
        if inputs is None or isinstance(self.eager, Eager):
            return {}
        golden = NpzFile(self.file("golden", 1))
        sides: list[dict[str, list[Array]]] = []
        for network, target in ((self.reference, None), (subject.network, self.target)):
            values = subject.models.run("whole", network.proto, inputs, target)
            if isinstance(values, Failed):
                return {}
            # Only an axis that is as many times longer as there are steps is the axis of steps.
            sides.append(
                {
                    name: np.split(values[name], self.steps, axis)
                    for name in golden.keys() - subject.state.taken.values()
                    for axis, size in enumerate(golden[name].shape)
                    if self.steps * size == values[name].shape[axis] != size
                }
            )
        errors: Errors = {}
        for step in range(self.steps if sides[0] else 0):
            right, ours = ({name: split[step] for name, split in side.items()} for side in sides)
            errors[step + 1] = compare_all(right, ours, self.tolerance, details=True)
        return errors


def _differing(state: Array, right: Array, axis: int | None) -> dict[int, Array]:
    """Return masks of the places in which two states differ, by their number along an axis.

    Args:
        state: The target's.
        right: The reference's.
        axis: The axis of positions; by default that along which the smallest share differs, of
            equal ones the longest.
    """
    differs = state != right
    along = {
        at: np.flatnonzero(differs.any(tuple({*range(differs.ndim)} - {at})))
        for at in range(differs.ndim)
    }
    if axis is None:
        sizes = right.shape
        # The axis along which the fewest places differ is the one of positions or channels.
        axis = min(along, key=lambda at: (along[at].size / sizes[at], -sizes[at]), default=0)
    shape = [-1 if at == axis else 1 for at in range(differs.ndim)]
    numbers = np.arange(right.shape[axis]).reshape(shape) if shape else np.zeros(())
    return {int(place): numbers == place for place in along.get(axis, ())}


def judge(
    feedback: Mapping[str, str], free_run: Errors, right: Errors, one_run: Errors, *, strict: bool
) -> Steps:
    """Return which step is wrong first, and of which kind the failure is.

    Args:
        feedback: The output that each input takes of the step before.
        free_run: The errors of the steps with the target's own state.
        right: The same with the state of the reference.
        one_run: The same in one run.
        strict: As for :func:`wrong_steps`.
    """
    # A state grows over steps, so its tolerance is that of its largest values.
    right = scaled(right, free_run)
    free_run, one_run = map(scaled, (free_run, one_run))
    pair = [_way(errors, feedback) for errors in (free_run, right)]
    wrong = wrong_steps(pair[1], strict=strict)
    verdicts = {step: Verdict.FAIL if step in wrong else Verdict.PASS for step in right}
    kind: Kind = "drift" if pair[0].first else "none"
    step = next(iter(wrong), None)
    if step:
        kind = "start" if step == 1 else "step"
    failed = (comparison for comparison in right.get(step or 0, ()) if not comparison.passed)
    return Steps(
        steps=len(free_run),
        taken=dict(feedback),
        kind=kind,
        step=step,
        tensors=tuple(
            comparison.name
            for comparison in sorted(failed, key=lambda comparison: -comparison.severity)
        ),
        failing=tuple(History(verdicts).stretches),
        rate=growth(pair[0].errors) if kind == "drift" else None,
        own=pair[0],
        right=pair[1],
        whole=_way(one_run, feedback) if one_run else None,
    )


def wrong_steps(series: StepsWay, *, strict: bool) -> list[int]:
    """Return the steps that are wrong in one way to run them.

    Args:
        series: The errors of one way.
        strict: Whether any error past the tolerance counts; else it may be no rounding as in the
            matching steps, and where none matches, it has to be as severe as the worst one is.
    """
    matching = [error.tolerance_ratio for error in series.errors if error.passed]
    severity = _OUTLIER * median(matching) if matching else required_severity(series.worst)
    return [
        error.sample or 1
        for error in series.errors
        if not error.passed and (strict or error.tolerance_ratio >= severity)
    ]


def scaled(steps: Errors, reference: Errors | None = None) -> Errors:
    """Return comparisons in which an output matches within the widest tolerance that it has in any step, of ``reference`` too.

    An automatic tolerance follows the size of the values, and a score is next to zero in some steps.
    """
    widest: dict[str, float] = {}
    for comparison in chain(*steps.values(), *(reference or {}).values()):
        widest[comparison.name] = max(widest.get(comparison.name, 0.0), comparison.atol or 0.0)

    def matched(comparison: TensorComparison) -> TensorComparison:
        # A step with small values has a small tolerance, though the state that it joins is large.
        ratio = (comparison.max_abs or 0.0) / (widest[comparison.name] or math.inf)
        if comparison.kind is not ComparisonKind.MISMATCH or not ratio <= 1:
            return comparison
        return structs.replace(
            comparison, passed=True, kind=ComparisonKind.MATCH, of_tolerance=ratio
        )

    return {step: list(map(matched, comparisons)) for step, comparisons in steps.items()}


def _way(steps: Errors, feedback: Mapping[str, str]) -> StepsWay:
    """Return the worst output of each step; an output that is no state may be one of tokens."""
    worst = [
        # Of two that fail, the one further past its tolerance; of two that match, likewise.
        structs.replace(
            max(comparisons, key=lambda each: (not each.passed, each.tolerance_ratio)), sample=step
        )
        for step, comparisons in steps.items()
    ]
    tokens = (
        step
        for step, comparisons in steps.items()
        for each in comparisons
        if each.details
        and each.name not in feedback.values()
        and each.details.argmax not in {None, 1}
    )
    return StepsWay(
        first=next((each.sample for each in worst if not each.passed), None),
        token=next(tokens, None),
        worst=max(each.tolerance_ratio for each in worst),
        errors=tuple(map(Comparison.of, worst)),
    )


def growth(errors: Sequence[Comparison]) -> float | None:
    """Return the factor by which errors grow a step, by a line through their logarithms up to the first past the tolerance.

    ``None`` where they do not grow, or there are few.
    """
    before = takewhile(lambda comparison: comparison.passed, errors)
    points = {
        comparison.sample or 1: math.log(comparison.tolerance_ratio)
        for comparison in before
        if comparison.tolerance_ratio
    }
    if len(points) < _LEAST_POINTS:
        return None
    slope = linear_regression([*points], [*points.values()]).slope
    return math.exp(slope) if slope > 0 else None


def enter_step(
    subject: Subject,
    target: TargetSettings | None,
    tolerance: ToleranceOptions,
    result: Result,
    eager: Eager | OtherModel | None = None,
) -> None:
    """Run the loop of a subject, and give it the inputs and the state of the step that is wrong.

    Args:
        subject: The model, opened with a number of steps.
        target: The runtime under test.
        tolerance: How far an output may be off.
        result: Its field ``steps`` is filled in.
        eager: The module or the other model that is the reference, if one is.

    Raises:
        DoesNotReproduce: No step is wrong with the reference's state.
        UnavailableError: The reference does not run a step.
        UsageError: There is no target.
    """
    if target is None or target.build_only:
        raise MissingOptionError(
            "--steps compares a target that runs with the reference; add one, such as --onnxrt."
        )
    run = LoopRun(subject, target, tolerance, eager)
    console = subject.console
    console.step(f"Which of {run.steps} steps is wrong?")
    for name, output in subject.state.taken.items():
        console.say(f"  '{name}' takes '{output}' of the step before")
    run.run_reference()
    types = run.types
    returned = state_after(subject.state.taken, run.file("golden", 1))
    if cast := [
        f"'{name}' from {value.dtype} to {types[name]}"
        for name, value in returned.items()
        if value.dtype != types[name]
    ]:
        console.warn(f"the state is cast between steps: {first_few(cast, 2)}")
    free_run = run.compare(own_state=True)
    # What the user gives is meant to the letter.
    strict = bool(tolerance.atol or tolerance.rtol)
    right = run.compare_right(free_run, strict=strict)
    steps = judge(subject.state.taken, free_run, right, run.compare_whole(), strict=strict)
    steps = structs.replace(steps, steps=run.steps)
    if steps.kind == "drift":
        positions = run.carriers(steps.own.first or 1, free_run)
        steps = (
            structs.replace(steps, carriers=tuple(positions), positions=positions)
            if positions
            else structs.replace(steps, kind="flaky", rate=None)
        )
    result.steps = steps
    console.answer(describe_steps(steps))
    console.table(*steps_table(steps), MOST_ROWS)
    if steps.step is None:
        raise DoesNotReproduce(describe_steps(steps))
    console.progress.place = f" (step {steps.step} of {run.steps})"
    file = run.file("step", steps.step)
    samples = run.samples(steps.step)
    save_samples(file, samples)
    result.steps = structs.replace(steps, inputs=str(file))
    data = replace(
        subject.settings.data, input_shapes={}, load_inputs=(file,), data_loader_script=None
    )
    subject.feed(structs.replace(subject.settings, data=data, loop=Loop()))
    # The states of all wrong steps are read, which only a fix needs.
    subject.wrong_steps = cache(partial(run.other_samples, steps.failing, samples[-1]))
    subject.run_fixed = run.run_fixed
