"""``samples``: which of many inputs fail, and the smallest input that still fails.

The space is first the samples, then the places along each free dimension, then parts of the inputs, from slices to elements. A
part that is left out is zero; a set is 1-minimal if no place and no element that is left can go.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.commands.dynamic_dims import free_symbols, target_of
from bisect_trt.commands.fed import Fed, Values
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.space import AskUnit, Space
from bisect_trt.errors import UnavailableError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Ask, Enough, Minimum, Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.npz import load_npz, save_npz

MOST_QUESTIONS = 400
_SHOWN = 12
_MOST_ELEMENTS = 1000
"""So many elements of the smallest input are in the JSON one by one."""
_MOST_AGAIN = 16
"""So many elements of the answer are left out once more."""
_TWICE = 2
"""The answer is probed so often once more, and again after it was read back."""

Part = tuple[str, tuple[int, ...]]
"""An input, and the first indices of a part of it; all of it for none."""
Symbols = Mapping[str, Sequence[tuple[str, int]]]
"""The free dimensions of the inputs, by name: the inputs and axes that have each."""


@dataclass(frozen=True)
class SamplesSettings:
    """Parameters of ``samples``.

    Attributes:
        check: What says good or bad.
        output: Where the smallest failing input goes.
    """

    check: CheckSettings
    output: Path

    def check_output(self, *, overwrite: bool) -> None:
        """Make sure that it can be written.

        Raises:
            UsageError: It cannot.
        """
        check_output(self.output, overwrite=overwrite)


@dataclass
class Smallest:
    """What is left of a sample.

    Attributes:
        values: The input; it was seen to fail.
        proven: Whether it is 1-minimal.
        why: What stands in the way.
        steady: Whether it failed again, and what was seen to pass did not.
        asked: How many questions that took.
        steps: What was done, in words.
    """

    values: Values
    proven: bool = True
    why: str | None = None
    steady: bool = True
    asked: int = 0
    steps: list[str] = field(default_factory=list)

    @property
    def kept(self) -> list[Part]:
        """Its elements that are not zero."""
        return [
            (name, tuple(int(place) for place in index))
            for name, value in self.values.items()
            for index in np.argwhere(not_nothing(value))
        ]


@dataclass
class _Samples:
    """The samples, as a space and as values that may be made smaller."""

    session: Session
    fed: Fed
    target: TargetSettings | None
    free: bool = False
    """Whether the model keeps the dimensions free that its file leaves so; else they are those of the values."""

    @classmethod
    def of(cls, session: Session) -> _Samples:
        subject = session.subject
        return cls(session, Fed(session, subject.declared, lambda: subject.samples), target_of(session))

    def candidate(self, values: Values, title: str) -> Candidate:
        candidate = self.fed.candidate(values, title, fixed=not self.free)
        return replace(candidate, engine=self.fed.engine(candidate, values, self.target))

    def probe(self, values: Values, title: str, *, again: bool = False) -> Verdict:
        if self.fed.refused(values) is not None:
            return Verdict.UNRESOLVED
        return self.session.prober.probe(self.candidate(values, title), again=again).verdict

    def space(self) -> Space:
        """The samples, numbered from 0."""
        samples = self.session.subject.samples

        def build(units: Subset) -> Candidate:
            number = next(iter(units))
            return self.candidate(samples[number], f"sample {number + 1}")

        return Space(build, refuse=lambda unit: self.fed.refused(samples[unit]), apart=True)

    def probe_each(self) -> None:
        """Probe every sample; what was seen is in the result, however this ends."""
        told, prober, space = self.session.result.extra["samples"], self.session.prober, self.space()
        verdicts: dict[int, Verdict] = {}

        def strategy(ask: AskUnit) -> None:
            verdicts.clear()
            verdicts.update({unit: ask(unit) for unit in range(told["total"])})

        try:
            space.search_units(prober, strategy)
        except (BudgetSpent, KeyboardInterrupt):
            verdicts = {unit: record.verdict for unit, record in space.seen(prober).items()}
            raise
        finally:
            for name, wanted in (("failing", "FAIL"), ("passing", "PASS"), ("unresolved", "UNRESOLVED")):
                told[name] = [unit + 1 for unit, verdict in verdicts.items() if verdict.value == wanted]
            seen = space.seen(prober)
            told["each"] = [self._entry(space, unit, verdict, seen) for unit, verdict in verdicts.items()]
            told["free_dimensions"] = self.free

    def _entry(self, space: Space, unit: int, verdict: Verdict, seen: Mapping[int, Any]) -> dict[str, Any]:
        refused = space.refuse(unit)
        return {
            "sample": unit + 1,
            "verdict": verdict.value,
            "reason": seen[unit].reason if refused is None else refused,
            "signature": seen[unit].signature if refused is None else None,
            "shapes": {name: list(value.shape) for name, value in self.session.subject.samples[unit].items()},
        }


def look_at_samples(session: Session, settings: SamplesSettings) -> Result:
    """Probe each sample, and make the smallest that fails smaller.

    Returns:
        The result; ``samples`` in it has the numbers of those that are ``failing``, ``passing`` and ``unresolved``, the
        verdict of ``each``, and the ``minimal_input``.

    Raises:
        BudgetSpent: What was seen until then is in the result, and the smallest input that failed is written.
        DoesNotReproduce: None fails.
        KeyboardInterrupt: As with the budget.
        UnavailableError: The reference runs none.
    """
    subject, console, result = session.subject, session.console, session.result
    story, total = _Samples.of(session), len(subject.samples)
    console.step(f"Which of {total} samples fail?" if total > 1 else "Does the sample fail?")
    told: dict[str, Any] = {"total": total}
    result.extra["samples"] = told
    symbols = free_symbols(subject, None)
    compiles = story.target is not None and story.target.target.capabilities.compiles_shapes
    try:
        story.probe_each()
        if not told["failing"] and symbols and not compiles:
            console.say("  none with shapes fixed; with the dimensions free that are free in the file?")
            story.free = True
            story.probe_each()
    except (BudgetSpent, KeyboardInterrupt):
        if told["each"]:
            failing = told["failing"]
            said = f": {_numbers(failing)}" * bool(failing)
            console.answer(f"So far {len(failing)} of {len(told['each'])} samples fail{said}; {total} were given.")
        raise
    failing = told["failing"]
    if not failing:
        if not told["passing"]:
            raise UnavailableError(f"no sample says anything: {told['each'][0]['reason']}.")
        raise DoesNotReproduce(f"none of the {total} samples fails." if total > 1 else "the only sample passes.")
    several = f"{len(failing)} of {total} samples fail: {_numbers(failing)}."
    console.answer(several if total > 1 else "The only sample fails.")
    _deliver(story, settings, _simplest(subject.samples, failing), symbols if story.free or not compiles else {})
    return result


def _numbers(numbers: Sequence[int]) -> str:
    more = f", ... ({len(numbers)})" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more


def _simplest(samples: Sequence[Values], failing: Sequence[int]) -> int:
    """The failing sample with the fewest elements, and of those the fewest that are not zero."""

    def weight(number: int) -> tuple[int, int, int]:
        values = samples[number - 1].values()
        return sum(value.size for value in values), sum(int(not_nothing(value).sum()) for value in values), number

    return min(failing, key=weight)


def _deliver(story: _Samples, settings: SamplesSettings, number: int, symbols: Symbols) -> None:
    """Reduce a sample, write it, read it back and probe it.

    Raises:
        BudgetSpent: The smallest that was seen to fail has been written.
        KeyboardInterrupt: The same.
    """
    session = story.session
    console, result, ledger = session.console, session.result, session.prober.ledger
    values = session.subject.samples[number - 1]
    outcome = ledger.outcome(story.candidate(values, f"sample {number}").key)
    assert outcome is not None, "it was probed"
    ledger.original, ledger.severity = outcome.signature, outcome.severity  # what is left has to fail in this way
    console.step(f"Sample {number} is the smallest that fails: what of it is needed?")
    found = Smallest(values)
    ended: BudgetSpent | KeyboardInterrupt | None = None
    try:
        _Reduction(story, found).run(symbols)
    except (BudgetSpent, KeyboardInterrupt) as error:
        found.proven, found.why, ended = False, str(error) or "it was interrupted", error
    for step in found.steps:
        console.say(f"  {step}")
    save_npz(settings.output, found.values)
    if ended is None:
        again = replace(story.candidate(load_npz(settings.output), "the smallest input, read back"), again=True)
        try:
            shown = session.prober.probe(again).verdict is Verdict.FAIL
        except (BudgetSpent, KeyboardInterrupt) as error:
            shown, ended = False, error
        if not shown:
            found.proven, found.why = False, found.why or "what was written and read back was not seen to fail"
    result.status, result.minimality, result.why = "found", "1-minimal" if found.proven else "unproven", found.why
    result.artifacts["minimal_input"] = str(settings.output)
    before = sum(int(not_nothing(value).sum()) for value in values.values())
    kept = found.kept
    command = _command(story, settings, steady=found.steady)
    result.extra["samples"]["minimal_input"] = {
        "file": str(settings.output),
        "sample": number,
        "shapes": {name: list(value.shape) for name, value in found.values.items()},
        "elements": sum(value.size for value in found.values.values()),
        "kept": len(kept),
        "of": before,
        "elements_kept": [
            {"input": name, "index": list(index), "value": _plain(found.values[name].item(index))}
            for name, index in kept[:_MOST_ELEMENTS]
        ],
        "minimality": result.minimality,
        "why": found.why,
        "command": command,
        "questions": found.asked,
    }
    shapes = ", ".join(f"'{name}' {list(value.shape)}" for name, value in found.values.items())
    left = f"of sample {number}, {len(kept)} of {before} elements that are not zero, {shapes}"
    console.answer(f"{settings.output}: {left} ({result.minimality}).")
    console.answer_first(
        kept, _SHOWN, lambda each: f"  '{each[0]}' at {list(each[1])}: {found.values[each[0]].item(each[1])}"
    )
    if found.why:
        console.answer(f"  {found.why}")
    console.answer(f"To see {'it fail' if found.steady else 'how often it fails'}: {command}")
    if ended is not None:
        raise ended


def _plain(value: Any) -> Any:  # noqa: ANN401 - an element of an array of any type
    """As JSON has it, which has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _command(story: _Samples, settings: SamplesSettings, *, steady: bool) -> str:
    """The command that shows the failure with the written input, or how often it fails."""
    check, places = settings.check, story.session.place_words
    path = story.session.subject.settings.path
    if check.target is None:
        return check.how_to("reduce" if steady else "repeat", path, settings.output, places)
    name = "diagnose" if story.free else "run"  # which fixes shapes
    words = ["bisect-trt", name if steady else "repeat", str(path), *check.target.flags(), *places]
    return shlex.join([*words, "--load-inputs", str(settings.output), *check.tolerance.words()])


@dataclass(frozen=True)
class _Reduction:
    """Makes an input smaller for as long as it fails in the same way; ``found`` has the smallest so far, however this ends."""

    story: _Samples
    found: Smallest

    def run(self, symbols: Symbols) -> None:
        """Leave out places along the free dimensions, then elements.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        try:
            self._shorten(symbols)
            self._zero()
            if self._shorten(symbols):
                self._zero()
            self._try_again()
        except Enough:
            self.found.proven = False
            self.found.why = f"after {self.found.asked} questions there may be more to leave out"

    def _shorten(self, symbols: Symbols) -> bool:
        """Leave out places along each free dimension; whether any went."""
        before = {name: value.shape for name, value in self.found.values.items()}
        for symbol, places in chain(symbols.items(), self._alike(symbols)):  # the latter once these are done
            values = self.found.values
            size = values[places[0][0]].shape[places[0][1]]

            def build(units: Subset, values: Values = values, places: Sequence[tuple[str, int]] = places) -> Values:
                kept, made = sorted(units), dict(values)
                for name, axis in places:
                    made[name] = made[name].take(kept, axis=axis)
                return made

            if size > 1 and all(values[name].shape[axis] == size for name, axis in places):
                self._search(range(size), build, f"places along {symbol}", least=1)
        return before != {name: value.shape for name, value in self.found.values.items()}

    def _alike(self, symbols: Symbols) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Dimensions of one size under several names, by all of these: inputs may have to fit each other."""
        by_size: dict[int, list[str]] = {}
        for symbol, ((name, axis), *_) in symbols.items():
            by_size.setdefault(self.found.values[name].shape[axis], []).append(symbol)
        for together in by_size.values():
            if len(together) > 1:
                yield " and ".join(together), [place for symbol in together for place in symbols[symbol]]

    def _zero(self) -> None:
        """Make parts zero: whole inputs, then their slices, then slices of those, down to elements."""
        depth = max((value.ndim for value in self.found.values.values()), default=0)
        for level in range(depth + 1):
            values = self.found.values
            parts = _parts(values, level)

            def build(units: Subset, values: Values = values, parts: Sequence[Part] = parts) -> Values:
                made = {name: _nothing_like(value) for name, value in values.items()}
                for unit in units:
                    name, index = parts[unit]
                    made[name][index] = values[name][index]
                return made

            what = "inputs" if level == 0 else "elements" if level == depth else "slices"
            if len(parts) > (level == 0):
                self._search(range(len(parts)), build, f"{what} that are not zero")

    def _search(self, units: Sequence[int], build: Callable[[Subset], Values], what: str, least: int = 0) -> None:
        """Keep the fewest units that fail; the smallest set that was seen to fail stays if there is no time for more.

        Questions are asked one at a time: a search that is run ahead is run again from its start for each, and this one has
        many units.
        """
        found, everything = self.found, frozenset(units)
        known: dict[Subset, Verdict] = {everything: Verdict.FAIL}
        best = everything

        def ask(chosen: Subset) -> Verdict:
            nonlocal best
            if chosen not in known:
                if found.asked >= MOST_QUESTIONS:
                    raise Enough
                found.asked += 1
                known[chosen] = self.story.probe(build(chosen), f"{len(chosen)} of {len(units)} {what}")
                if known[chosen] is Verdict.FAIL and len(chosen) < len(best):
                    best = chosen
            return known[chosen]

        try:
            minimum = minimise(units, ask)
            best = (minimum if least else _with_none(minimum, ask)).units
        finally:  # what was seen to fail before the budget was spent is kept
            found.values = build(best)
            if len(best) < len(units):
                asked = f"{len(known) - 1} question{'s' * (len(known) != 2)}"
                found.steps.append(f"{len(best)} of {len(units)} {what} left, after {asked}")

    def _try_again(self) -> None:
        """Probe again what the proof rests on: an intermittent failure does not depend on the input alone."""
        found, whole = self.found, self.found.values
        doubt = "the input that failed passed when it was probed again"
        again = (self.story.probe(whole, "the smallest input", again=True) for _ in range(_TWICE))
        if found.proven and all(verdict is Verdict.FAIL for verdict in again):
            doubt = "without one of these elements it passed, and failed when it was probed again"
            for name, index in found.kept[:_MOST_AGAIN]:
                less = {**whole, name: whole[name].copy()}
                less[name][index] = _nothing_like(whole[name])[index]
                if self.story.probe(less, f"without '{name}' at {list(index)}", again=True) is Verdict.FAIL:
                    break
            else:
                return
        if found.proven:
            found.proven, found.steady = False, False
            found.why = f"the failure comes and goes: {doubt}; `bisect-trt repeat` says how often"


def not_nothing(value: NDArray[Any]) -> NDArray[np.bool_]:
    """Which elements are neither zero nor an empty string; -0.0 is not zero, for kernels tell them apart."""
    if is_string(value.dtype):
        return np.asarray(value != "", bool)
    used = value.astype(bool)
    return used | np.signbit(value) if value.dtype.kind == "f" else used


def _nothing_like(value: NDArray[Any]) -> NDArray[Any]:
    """Zeros; empty strings."""
    return np.full_like(value, "") if is_string(value.dtype) else np.zeros_like(value)


def _with_none(minimum: Minimum, ask: Ask) -> Minimum:
    """Of one unit that is left, whether not even that is needed."""
    if len(minimum.units) == 1 and ask(frozenset()) is Verdict.FAIL:
        return Minimum(frozenset(), proven=True)
    return minimum


def _parts(values: Values, level: int) -> list[Part]:
    """The parts at so many indices that are not all zero."""
    found: list[Part] = []
    for name, value in values.items():
        used = not_nothing(value)
        depth = min(level, value.ndim)
        flat = used.reshape(*used.shape[:depth], -1).any(axis=-1) if used.size else np.zeros(used.shape[:depth], bool)
        found += [(name, tuple(int(place) for place in index)) for index in np.argwhere(flat)]
    return found
