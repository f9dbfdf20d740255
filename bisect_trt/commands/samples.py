"""``samples``: which of many inputs fail, and the smallest input that still fails.

The space is first the samples, then the positions along each free dimension, then parts of the
inputs, from slices to elements. A removed part is zero; the answer is 1-minimal if no remaining
position and no remaining element can be removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from bisect_trt.errors import ModelRefusedError
from bisect_trt.options.searches import Samples
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.parts import InputElement, MinimalInput, SamplesVerdict, SampleVerdict
from bisect_trt.report.proofs import describe
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import Changed, tell_input, tell_samples, why_input
from bisect_trt.search.oracle import Enough, Limited, Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.session.call import Call, refuse_repeat
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.free_dims import Axis
from bisect_trt.session.session import Session, saving_best
from bisect_trt.session.space import Fed, Series, contradicted
from bisect_trt.steps.dynamic_dims import free_symbols, target_of
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.options import Target
from bisect_trt.tensors.files import Values, load_runs, save_samples, shapes_of

MOST_QUESTIONS = 400
_MOST_ELEMENTS = 1000
"""The largest number of elements of the smallest input in the JSON."""
_CONFIRMATIONS = 3
Symbols = Mapping[str, Sequence[Axis]]
"""The free dimensions of the inputs, by name: the inputs and axes that have each."""


class _Reduction(Struct):
    """The reduction of an input to its smallest failing ``values``, with the number of questions that are ``left``."""

    session: Session
    fed: Fed
    target: TargetSettings | None
    values: Values
    left: int = MOST_QUESTIONS

    def candidate(self, values: Values, title: str) -> Candidate:
        candidate = self.fed.candidate(values, title, fixed=True)
        shapes = "-".join("x".join(map(str, value.shape)) for value in values.values())
        return replace(
            candidate, engine=self.fed.engine(shapes, candidate.proto, values, self.target)
        )

    def run(self, symbols: Symbols) -> None:
        """Remove positions along the free dimensions, then elements, and both again if more positions can be removed.

        Raises:
            BudgetSpent: No more probes may be made.
            Enough: No questions are left.
        """
        self._shorten(symbols)
        self._zero()
        if self._shorten(symbols):
            self._zero()

    def _shorten(self, symbols: Symbols) -> bool:
        """Remove positions along each free dimension; return whether any was removed."""
        before = shapes_of(self.values)
        for symbol, places in symbols.items():
            values = self.values
            size = values[places[0][0]].shape[places[0][1]]

            def build(
                units: Subset, values: Values = values, places: Sequence[Axis] = places
            ) -> Values:
                shortened = dict(values)
                for name, axis in places:
                    shortened[name] = shortened[name].take(sorted(units), axis=axis)
                return shortened

            # Inputs that share a dimension are shortened together, or no longer fit.
            if size > 1 and all(values[name].shape[axis] == size for name, axis in places):
                self._keep_fewest(size, build, f"positions along {symbol}", least=1)
        return before != shapes_of(self.values)

    def _zero(self) -> None:
        """Set parts to zero: whole inputs, then their slices, down to elements."""
        depth = max((value.ndim for value in self.values.values()), default=0)
        for level in range(depth + 1):
            values = self.values
            parts: list[tuple[str, tuple[int, ...]]] = []
            for name, value in values.items():
                used = (
                    is_nonzero(value)
                    .reshape(*value.shape[:level], math.prod(value.shape[level:]))
                    .any(axis=-1)
                )
                parts += [(name, tuple(map(int, index))) for index in np.argwhere(used)]

            def build(
                units: Subset, values: Values = values, parts: Sequence[tuple[str, Any]] = parts
            ) -> Values:
                shortened = {name: np.zeros_like(array) for name, array in values.items()}
                for name, index in (parts[unit] for unit in units):
                    shortened[name][index] = values[name][index]
                return shortened

            # A model's only input is not set to zero as a whole.
            if len(parts) > (level == 0):
                noun = "elements" if level == depth else "slices" if level else "inputs"
                self._keep_fewest(len(parts), build, f"{noun} that are not zero")

    def _keep_fewest(
        self, count: int, build: Callable[[Subset], Values], noun: str, *, least: int = 0
    ) -> None:
        """Keep the fewest units that fail; the smallest failing values are kept, however this ends.

        Probes run one at a time, because speculation would repeat the search from its start for
        each of many units.
        """
        everything = frozenset(range(count))
        before = self.left

        def probe(chosen: Subset) -> Verdict:
            built = build(chosen)
            if self.fed.refused(built) is not None:
                return Verdict.UNRESOLVED
            return self.session.prober.probe(
                self.candidate(built, f"{len(chosen)} of {count} {noun}")
            ).verdict

        limited = Limited(probe, everything, self.left, Verdict.FAIL)
        memory = cache(limited)

        def ask(chosen: Subset) -> Verdict:
            return Verdict.FAIL if chosen == everything else memory(chosen)

        units = everything
        try:
            units = minimise(range(count), ask).units
            if len(units) == 1 > least:
                # The last unit may be unnecessary.
                ask(frozenset())
        finally:
            best = min(units, limited.best, key=len)
            self.values = build(best)
            self.left = limited.left or 0
            if len(best) < count:
                self.session.console.say(
                    f"  {len(best)} of {count} {noun} left, after {before - self.left} questions"
                )


def look_at_samples(session: Session, check: CheckSettings, output: Path) -> Result:
    """Probe each sample, and reduce the smallest that fails; what is known so far is in the result however this ends.

    Args:
        session: The model with its samples.
        check: The check of a sample.
        output: Where the minimal input is written, an ``.npz``.

    Returns:
        The result; its ``samples`` has the numbers of ``failing``, ``passing`` and ``unresolved``
        samples, the verdict of ``each``, and the ``minimal_input``.
    """
    subject = session.subject
    console = session.console
    ledger = session.prober.ledger
    samples, total, target = subject.samples, len(subject.samples), target_of(session)
    console.step(f"Which of {total} samples fail?")
    console.progress.expect(None, total)
    story = _Reduction(session, Fed(session, subject.declared, lambda: samples), target, samples[0])
    series: Series[int] = Series(
        lambda number: story.candidate(samples[number - 1], f"sample {number}"),
        lambda number: story.fed.refused(samples[number - 1]),
        apart=True,
    )

    def seen() -> SamplesVerdict:
        """Put the probed samples into the result; return that field."""
        entries = [
            SampleVerdict(sample=number, **verdict, shapes=shapes_of(samples[number - 1]))
            for number, verdict in sorted(series.verdicts(session.prober).items())
        ]
        numbers = {
            verdict: tuple(one.sample for one in entries if one.verdict == verdict.value)
            for verdict in Verdict
        }
        session.result.samples = SamplesVerdict(
            total=total,
            each=tuple(entries),
            failing=numbers[Verdict.FAIL],
            passing=numbers[Verdict.PASS],
            unresolved=numbers[Verdict.UNRESOLVED],
        )
        return session.result.samples

    def so_far() -> None:
        tell_samples(seen(), console, ended=False)

    with saving_best(so_far):
        series.search(session.prober, lambda ask: [ask(number) for number in range(1, total + 1)])
    verdicts = seen()
    failing = verdicts.failing
    if not failing and not verdicts.passing:
        raise ModelRefusedError(f"no sample has a verdict: {verdicts.each[0].reason}.")
    if not failing:
        raise DoesNotReproduce(f"none of the {total} samples fails.")
    tell_samples(verdicts, console, ended=True)
    # The fewest elements, and of those the fewest that are not zero.
    number = min(failing, key=lambda number: (*_sizes(samples[number - 1]), number))
    story.values = samples[number - 1]
    console.step(f"Sample {number} is the smallest that fails: which parts are needed?")
    outcome = ledger.outcome(story.candidate(story.values, "").key)
    assert outcome is not None, "it was probed"
    # The reduced input must fail in this way.
    ledger.original = outcome.signature
    ledger.severity = outcome.severity
    changed = None
    questions = None
    with saving_best(lambda: _deliver(story, check, output, number, ended=False)):
        try:
            story.run(
                {} if target is not None and target.target.compiles else free_symbols(subject, None)
            )
        except Enough:
            questions = MOST_QUESTIONS
        save_samples(output, [story.values])
        again = story.candidate(
            {**load_runs(output)[0].samples[0]}, "the smallest input, read back"
        )
        changed = contradicted(session.prober, [(again, Verdict.FAIL)] * _CONFIRMATIONS)
    return _deliver(story, check, output, number, questions, changed)


def _deliver(
    story: _Reduction,
    check: CheckSettings,
    output: Path,
    number: int,
    questions: int | None = None,
    changed: Changed | None = None,
    *,
    ended: bool = True,
) -> Result:
    """Write the reduced sample, and print it, its minimality, and the command that shows the failure."""
    session, values = story.session, story.values
    save_samples(output, [values])
    reason = why_input(changed, questions, ended=ended) or describe(session.never_passes())
    result = session.result.end(why=reason)
    result.artifacts["minimal_input"] = str(output)
    elements = [
        InputElement(
            input=name, index=tuple(map(int, index)), value=_plain(value.item(tuple(index)))
        )
        for name, value in values.items()
        for index in np.argwhere(is_nonzero(value))
    ]
    # A failure that comes and goes is to be measured first.
    name = "repeat" if changed else "reduce" if check.target is None else "run"
    command = session.command(name, check, inputs=output)
    before = _sizes(session.subject.samples[number - 1])[1]
    assert result.samples, "they were probed"
    minimal = MinimalInput(
        file=str(output),
        sample=number,
        shapes=shapes_of(values),
        elements=_sizes(values)[0],
        kept=len(elements),
        of=before,
        elements_kept=tuple(elements[:_MOST_ELEMENTS]),
        minimality=result.minimality,
        why=reason,
        command=command,
        questions=MOST_QUESTIONS - story.left,
    )
    result.samples = structs.replace(result.samples, minimal_input=minimal)
    tell_input(minimal, session.console, steady=changed is None)
    return result


def is_nonzero(value: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of elements that are not zero; -0.0 is not zero, as kernels distinguish it."""
    used = value.astype(bool)
    return used | np.signbit(value) if value.dtype.kind == "f" else used


def _sizes(values: Values) -> tuple[int, int]:
    """Return the number of elements, and of nonzero elements."""
    return sum(value.size for value in values.values()), sum(
        int(is_nonzero(value).sum()) for value in values.values()
    )


def _plain(value: Any) -> Any:  # noqa: ANN401 - an element of an array of any type
    """Return a value for JSON, which has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def run(call: Call) -> Result:
    """Find which of many inputs fail, and reduce the smallest of them."""
    options = call[Samples]
    check = call.check(call[Target].settings())
    call.may_write(options.output, overwrite=options.overwrite)
    opened = call.open(check)
    refuse_repeat(call)
    check = check.without_target(call.console)
    with opened.searching(check, fed=False) as session:
        return look_at_samples(session, check, options.output)
