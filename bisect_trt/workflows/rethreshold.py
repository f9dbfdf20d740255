"""What other tolerances would have said of a finished run: from the figures that were kept; nothing is run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import ErrorStat, Measure
from bisect_trt.probing.journal import JOURNAL, read_journal
from bisect_trt.probing.outcome import Ending, Outcome
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import RESULT_FILE, read_result
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement

_SHOWN = 12


@dataclass(frozen=True)
class Tolerances:
    """Those that are tried.

    Attributes:
        atol: Absolute ones by output, ``""`` for all others; what is not given stays.
        rtol: Relative ones, alike.
    """

    atol: Mapping[str, float]
    rtol: Mapping[str, float]

    def of(self, comparison: TensorComparison) -> bool | None:
        """Whether a comparison would pass; ``None`` where that is not known."""
        atol, rtol = (of.get(comparison.name, of.get("")) for of in (self.atol, self.rtol))
        return would_pass(comparison, atol, rtol)

    def of_all(self, comparisons: Sequence[TensorComparison]) -> bool | None:
        """Whether all would pass."""
        said = [self.of(each) for each in comparisons]
        return False if False in said else None if None in said else True

    def describe(self) -> str:
        """As options of a command line."""
        pairs = [("--atol", self.atol), ("--rtol", self.rtol)]
        values = {
            flag: [f"{name}:{value:g}" if name else f"{value:g}" for name, value in of.items()] for flag, of in pairs
        }
        return " ".join(f"{flag} {' '.join(words)}" for flag, words in values.items() if words)


def show_with(run: Path, tolerances: Tolerances, console: Console) -> None:
    """What would be said of each output, tensor and probe of a run, and what is not known.

    Raises:
        UnavailableError: It is no run's folder, or it did not end.
        UsageError: Nothing of it was compared with a tolerance.
    """
    result = read_result(run / RESULT_FILE)
    outputs = [TensorComparison.from_json(_bare(each)) for each in result.get("comparisons") or ()]
    tensors = [TensorComparison.from_json(_bare(each)) for each in result.get("tensors") or ()]
    probes = list(_probes(run))
    if not (outputs or tensors or probes):
        raise UsageError(f"{run}: nothing was compared with a tolerance in it, so none can be tried; name another run.")
    console.answer(f"With {tolerances.describe()}, of what was kept (nothing is run):")
    _tell("output", outputs, tolerances, console)
    _tell("tensor", tensors, tolerances, console)
    if wrong := [each for each in tensors if not each.passed]:
        first = next((each for each in tensors if tolerances.of(each) is False), None)
        if first is None or first.name != wrong[0].name:
            named = "none" if first is None else f"'{first.name}'"
            console.answer(f"  the first wrong tensor would be {named}, and was '{wrong[0].name}'")
    _tell_probes(probes, tolerances, console)


def _bare(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison without what else stands beside it in a list of tensors."""
    return {key: value for key, value in plain.items() if key not in ("op", "own", "module")}


def _tell(what: str, comparisons: Sequence[TensorComparison], tolerances: Tolerances, console: Console) -> None:
    if not comparisons:
        return
    said = [(each, tolerances.of(each)) for each in comparisons]
    turned = [(each, now) for each, now in said if now is not None and now != each.passed]
    unknown = [each for each, now in said if now is None]
    console.answer(f"  {len(turned)} of {len(comparisons)} {what}(s) would change{_unknown(len(unknown))}")

    def line(one: tuple[TensorComparison, bool]) -> str:
        each, now = one
        on = "" if each.sample is None else f" on sample {each.sample}"
        return f"    '{each.name}'{on} {'would match' if now else 'would not match'}: {each.describe()}"

    console.answer_first(turned, _SHOWN, line)
    for each in unknown[:_SHOWN]:
        console.answer(f"    '{each.name}': not known, for its elements were not kept; {each.describe()}")


def _unknown(count: int) -> str:
    return f", and {count} may" if count else ""


@dataclass(frozen=True)
class _Probe:
    number: int
    title: str
    verdict: str
    outcome: Outcome


def _probes(run: Path) -> Iterator[_Probe]:
    """The decisions that rest on a comparison, in their order."""
    outcomes: dict[str, Outcome] = {}
    found: dict[int, _Probe] = {}
    journal = run / JOURNAL
    for entry in read_journal(journal) if journal.exists() else ():
        if entry["event"] == "outcome":
            outcomes[entry["key"]] = Outcome.from_json(entry["outcome"])
        elif entry["event"] == "verdict" and (seen := outcomes.get(entry["key"])) is not None and seen.comparisons:
            found[entry["number"]] = _Probe(entry["number"], entry["title"], entry["verdict"], seen)
        elif entry["event"] == "undo":
            found.pop(entry["number"], None)
    return (found[number] for number in sorted(found))


def _tell_probes(probes: Sequence[_Probe], tolerances: Tolerances, console: Console) -> None:
    if not probes:
        return
    turned: list[tuple[_Probe, str]] = []
    unknown: list[_Probe] = []
    for probe in probes:
        now = tolerances.of_all(probe.outcome.comparisons)
        # One that failed on a sample was not run on the samples behind it.
        if now is None or (now and probe.outcome.sample is not None and probe.outcome.ending is not Ending.PASSED):
            unknown.append(probe)
        elif (now and probe.verdict == "FAIL") or (not now and probe.verdict == "PASS"):
            turned.append((probe, "PASS" if now else "FAIL"))
    console.answer(f"  {len(turned)} of {len(probes)} probe(s) would change{_unknown(len(unknown))}")
    console.answer_first(
        turned,
        _SHOWN,
        lambda each: f"    probe {each[0].number}, {each[0].title}: {each[0].verdict} would be {each[1]}",
    )
    if unknown:
        numbers = ", ".join(str(each.number) for each in unknown[:_SHOWN])
        console.answer(
            f"    not known of probe {numbers}{', ...' if len(unknown) > _SHOWN else ''}: their outputs were not kept"
        )
    moved = [probe.number for probe, _ in turned] + [probe.number for probe in unknown]
    if moved:
        console.answer(
            f"  the search may have gone another way from probe {min(moved)} on: run it again with these tolerances"
        )
    else:
        console.answer("  the search would have gone the same way, to the same answer")


def would_pass(comparison: TensorComparison, atol: float | None, rtol: float | None) -> bool | None:
    """Whether a comparison would pass with other tolerances.

    Args:
        comparison: As it was made.
        atol: The absolute tolerance; as it was where ``None``.
        rtol: The relative one, alike.

    Returns:
        ``None`` where the figures do not say: elementwise, some elements may be forgiven by one tolerance and some by the
        other, and only the largest errors are kept.
    """
    if comparison.reason is not None or comparison.atol is None or comparison.rtol is None or not comparison.total:
        return comparison.passed  # not a matter of tolerances
    if comparison.kind in (ComparisonKind.MISSING, ComparisonKind.SHAPE, ComparisonKind.DTYPE):
        return False
    atol, rtol = comparison.atol if atol is None else atol, comparison.rtol if rtol is None else rtol
    if comparison.measured:
        # These have thresholds of their own; l0 alone counts elements that are past the tolerances.
        others = [each for each in comparison.measured if each.name != Measure.L0.value]
        counts = len(others) < len(comparison.measured) and (atol, rtol) != (comparison.atol, comparison.rtol)
        return None if counts and all(each.passed for each in others) else comparison.passed
    if comparison.stat is ErrorStat.ELEMWISE:
        return _elementwise(comparison, comparison.atol, comparison.rtol, atol, rtol)
    absolute = getattr(comparison, f"{comparison.stat.value}_abs", None)
    relative = getattr(comparison, f"{comparison.stat.value}_rel", None)
    if absolute is None or relative is None:
        return None
    return bool(absolute <= atol or relative <= rtol)  # NaN is within nothing


def _elementwise(seen: TensorComparison, was_atol: float, was_rtol: float, atol: float, rtol: float) -> bool | None:
    # What is forgiven stays so with larger tolerances, and what is not with smaller ones: ties in rounding included.
    wider, narrower = atol >= was_atol and rtol >= was_rtol, atol <= was_atol and rtol <= was_rtol
    within = any(error is not None and error <= most for error, most in ((seen.max_abs, atol), (seen.max_rel, rtol)))
    if (seen.passed and wider) or within:
        return True
    if not seen.passed and narrower:
        return False
    if seen.step is not None or seen.ties:
        return None  # how many elements are one step off is known for the old tolerance alone
    if seen.worst is not None and _is_beyond(seen.worst, atol, rtol):
        return False
    return _needed(seen, was_atol, was_rtol, atol, rtol)


def _needed(seen: TensorComparison, was_atol: float, was_rtol: float, atol: float, rtol: float) -> bool | None:
    """By the smallest tolerance of either kind that would have passed, where the other one stays."""
    if seen.details is not None:
        if rtol == was_rtol and math.isfinite(seen.details.atol_needed):
            return atol >= seen.details.atol_needed
        if atol == was_atol and not math.isnan(seen.details.rtol_needed):  # infinite where it is past the type
            return rtol >= seen.details.rtol_needed
    return _scaled(seen.of_tolerance, was_atol, was_rtol, atol, rtol)


def _scaled(share: float | None, was_atol: float, was_rtol: float, atol: float, rtol: float) -> bool | None:
    """By the largest error in tolerances: the element that has it is beyond both where both are smaller than so many of old."""
    if share is None or not math.isfinite(share):
        return None
    if atol > share * was_atol and rtol > share * was_rtol:
        return True
    if atol < share * was_atol and rtol < share * was_rtol:
        return False
    return None


def _is_beyond(worst: WorstElement, atol: float, rtol: float) -> bool:
    """Whether the element that was told is beyond both."""
    reference = worst.reference
    if isinstance(reference, str | complex):
        return False
    if math.isnan(worst.error):
        return True
    scale = abs(reference) or 2.0**-52
    # A margin of the last digits: the relative error was computed in the tensor's own type.
    return worst.error > atol and worst.error / scale > rtol * (1 + 1e-6)
