"""In what an answer really ran, where the target does not tell: as far as its accuracy and its latency suggest."""

from __future__ import annotations

import math

from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.prober import Prober
from bisect_trt.search.oracle import Subset
from bisect_trt.workflows.precision.task import Task


def latencies(task: Task, keep: Subset, minimal: Subset | None = None) -> dict[str, float | None] | None:
    """Milliseconds of one run with everything in fp32, with the answer, and with everything lowered.

    Args:
        task: The search.
        keep: The answer.
        minimal: The minimal set, if that is to be told too.

    Returns:
        The median of several runs each; ``None`` where nothing was measured.
    """
    found = {name: latency_of(task.prober, key) for name, key in _keys(task, keep).items()}
    if minimal is not None:
        found["minimal"] = latency_of(task.prober, task.lowering.candidate(minimal).key)
    return found if any(value is not None for value in found.values()) else None


def latency_of(prober: Prober, key: str) -> float | None:
    """Milliseconds of one run of a candidate, if that was measured."""
    outcome = prober.ledger.outcome(key)
    return None if outcome is None else outcome.latency_ms


def ran_like(task: Task, keep: Subset) -> str | None:
    """What the measures suggest, in a sentence; ``None`` where one of both ends was not measured."""
    outcomes = {name: task.prober.ledger.outcome(key) for name, key in _keys(task, keep).items()}
    errors = {name: None if outcome is None else _error(outcome) for name, outcome in outcomes.items()}
    return suggest(errors, latencies(task, keep) or {}, task.settings.precision)


def _keys(task: Task, keep: Subset) -> dict[str, str]:
    ends = {"fp32": frozenset(task.lowering.units), "mixed": keep, "lowered": frozenset[int]()}
    return {name: task.lowering.candidate(units).key for name, units in ends.items()}


def _error(outcome: Outcome) -> float | None:
    """The largest error of any output, in units of its tolerance."""
    errors = [
        comparison.max_abs / comparison.atol
        for comparison in outcome.comparisons
        if comparison.max_abs is not None and comparison.atol
    ]
    return max(errors, default=None)


def suggest(errors: dict[str, float | None], times: dict[str, float | None], precision: str) -> str | None:
    """Which of both ends the answer is nearer to: by the order of magnitude of its error, and by its time.

    Args:
        errors: In any unit, of ``fp32``, ``mixed`` and ``lowered``.
        times: The same in milliseconds.
        precision: What was lowered to.
    """
    by_error, by_time = _place(errors, logarithmic=True), _place(times, logarithmic=False)
    said = []
    if by_error is not None:
        said.append(f"its error is nearer to that of all {'fp32' if by_error < _MIDDLE else precision}")
    if by_time is not None:
        ends = f"{times['fp32']:.3f} ms in fp32 and {times['lowered']:.3f} ms"
        near = "fp32" if by_time < _MIDDLE else precision
        said.append(f"its {times['mixed']:.3f} ms, between {ends} in {precision}, are nearer to {near}")
    places = [place < _MIDDLE for place in (by_error, by_time) if place is not None]
    if not places:
        return None
    mostly = "fp32" if all(places) else f"{precision}, but for the nodes that are kept" if not any(places) else "both"
    return (
        f"the target does not tell all of what ran in {precision}: {', and '.join(said)}; it probably ran in {mostly}"
    )


_MIDDLE = 0.5
_SMALLEST = 1e-12


def _place(values: dict[str, float | None], *, logarithmic: bool) -> float | None:
    """Where the answer lies from 0, all fp32, to 1, all lowered; ``None`` where the ends are not known or not apart."""
    known = [values.get(name) for name in ("fp32", "mixed", "lowered")]
    numbers = [max(value, _SMALLEST) for value in known if value is not None and math.isfinite(value)]
    if len(numbers) < len(known):
        return None
    full, mixed, low = map(math.log, numbers) if logarithmic else numbers
    apart = math.log(_APART) if logarithmic else (_APART - 1) * full / 10
    return None if abs(low - full) < apart else (mixed - full) / (low - full)


_APART = 2.0
"""Errors of both ends have to be twice as large as each other for this to say anything, and times 10% apart."""
