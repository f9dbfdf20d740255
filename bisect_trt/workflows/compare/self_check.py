"""A target beside itself, without a reference: what has to come out the same, does it?

An engine that is wrong now and then, by its batch size, at some place of a batch, after another request or beside others,
contradicts itself. Whether the model itself does (one that draws random numbers, or mixes the rows of a batch) is seen by
doing the same on the reference, where that runs the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.cut import mark_outputs
from bisect_trt.graph.randomness import Draws
from bisect_trt.graph.shapes import free_dimensions
from bisect_trt.probing.protocol import Failed, Series
from bisect_trt.reporting.result import Result
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import value_bytes
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.compare.unchanging import Trial, trials
from bisect_trt.workflows.investigation import Examination

_SESSIONS = 8
"""So many, one after the other, show whether sessions differ by themselves."""


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
        for trial, entry in _judge_each(examination, target, tolerance, timeout):
            found.append({"target": target.describe(), "check": trial.name, "what": trial.what, **entry})
            console.say(f"  {_WORDS[entry['verdict']]} {trial.what}: {entry['why']}")
    failed = sum(entry["verdict"] == "FAIL" for entry in found)
    tried = sum(entry["verdict"] != "UNRESOLVED" for entry in found)
    if not tried:
        raise UnavailableError(f"nothing could be compared with itself: {found[0]['why']}.")
    result.extra["comparisons"] = [entry["comparison"] for entry in found if entry["comparison"] is not None]
    result.status, result.minimality = "not_reproduced" if failed else "found", "1-minimal"
    console.answer(
        f"It contradicts itself in {failed} of {tried} checks."
        if failed
        else f"It agrees with itself in all {tried} checks."
    )
    return result


_TELLING = ("FAIL", "PASS", "UNRESOLVED")
"""What is said of one thing that was tried with several dimensions."""
_WORDS = {"PASS": "same     ", "FAIL": "DIFFERENT", "UNRESOLVED": "not known"}


def _trials(examination: Examination, target: TargetSettings) -> list[Trial]:
    """What to try on the first input sample."""
    subject = examination.subject
    alone = "each session would take an engine of its own" if target.target.capabilities.costly else None
    alone = "a place runs one session at a time" if subject.workers.places else alone
    resized = not target.target.capabilities.compiles_shapes
    return trials(subject.samples, subject.declared, alone, subject.settings.data.seed, resized=resized)


def _judge_each(
    examination: Examination, target: TargetSettings, tolerance: ToleranceOptions, timeout: float | None
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """All of it, one after the other; none where the target fails whenever it is run, which is no contradiction."""
    refused: str | None = None
    for _, alike in groupby(_trials(examination, target), lambda each: each.name):
        tried = [each if refused is None else replace(each, skipped=refused) for each in alike]
        judged = [(each, _judge(examination, target, each, tolerance, timeout)) for each in tried]
        trial, entry = min(judged, key=lambda each: _TELLING.index(each[1]["verdict"]))
        if trial.name == "again" and entry["verdict"] == "FAIL" and entry["comparison"] is None:
            once = replace(trial, feeds=trial.feeds[:1], pairs=lambda _: [])
            refused = _try(examination, target, once, tolerance, timeout).failed
            entry |= {} if refused is None else {"verdict": "UNRESOLVED", "why": refused}
        yield trial, entry


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
    own = _drawn(examination) if seen.failed is None else None
    if own is None:
        control = _try(examination, reference_settings(target), trial, tolerance, timeout)
        if control.failed is not None:
            more = f"the reference cannot be asked whether that is the model's own doing: {control.failed}"
            verdict = "FAIL" if seen.failed is None else "UNRESOLVED"
            return {"verdict": verdict, "why": f"{told or seen.failed} ({more})", **entry}
        own = None if control.passed else "on the reference too"
    if own is not None:
        return {"verdict": "UNRESOLVED", "why": f"it is the model's own doing: {own}", **entry}
    return {"verdict": "FAIL", "why": seen.failed or told, **entry}


def _drawn(examination: Examination) -> str | None:
    """What draws random numbers, if so: a reference whose sessions all begin with one seed says nothing of others."""
    network, sample = examination.subject.network, examination.subject.samples[0]
    draws = Draws(network.proto, sample, unsure=False)
    node = next((node for node in network.nodes if draws.by(node)), None)
    return None if node is None else f"{node.op_type} '{node.name or node.output[0]}' draws random numbers"


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
    what: str,
    names: Sequence[str],
    tolerance: ToleranceOptions,
    timeout: float | None,
) -> list[TensorComparison] | str:
    """Try one thing again with other tensors as the model's outputs; how these compare, or why the target fails then."""
    trial = next(each for each in _trials(examination, target) if each.what == what)
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
        model = free_dimensions(model, trial.batch)
    file = subject.models.write("self-check", model)
    inputs = tuple(subject.models.feed(f"self-check-{number}", feed) for number, feed in enumerate(trial.feeds))
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
    same = all(ours.shape == theirs.shape and value_bytes(ours) == value_bytes(theirs) for ours, theirs in outputs)
    for path in (*inputs, *to):
        path.unlink(missing_ok=True)
    return _Finding(None, comparisons, same)
