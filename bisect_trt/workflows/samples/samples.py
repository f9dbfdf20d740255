"""Which of many inputs fail, what these have in common, and the smallest of them that still fails."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.save import check_output
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Ask, Verdict, over_units
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.workflows.freed import free_symbols, target_of
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.samples.common import find_common
from bisect_trt.workflows.samples.fed import Fed, Values
from bisect_trt.workflows.samples.smallest import Smallest, not_nothing, reduce_input
from bisect_trt.workflows.settings import CheckSettings

_SHOWN, _MOST_ALSO = 12, 3
_MOST_ELEMENTS = 1000
"""So many elements of the smallest input are in the JSON one by one."""


@dataclass(frozen=True)
class SamplesSettings:
    """What to do.

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


def look_at_samples(investigation: Investigation, settings: SamplesSettings) -> Result:
    """Probe each sample; compare those that fail with those that pass; reduce the smallest.

    Returns:
        The result; ``samples`` in it has the numbers of those that are ``failing``, ``passing`` and ``unresolved``, what was
        said of ``each``, what is ``common``, and the ``minimal_input``.

    Raises:
        BudgetSpent: What was seen until then is in the result, and the smallest input that failed is written.
        DoesNotReproduce: None fails.
        KeyboardInterrupt: As with the budget.
        UnavailableError: The reference runs none.
    """
    subject, console, result = investigation.subject, investigation.console, investigation.result
    samples, target = subject.samples, target_of(investigation)
    fed = Fed(investigation, target)
    console.step(f"Which of {len(samples)} samples fail?" if len(samples) > 1 else "Does the sample fail?")
    told: dict[str, Any] = {"total": len(samples)}
    result.extra["samples"] = told
    symbols = free_symbols(subject, None)
    compiles = target is not None and target.target.capabilities.compiles_shapes
    try:
        verdicts = _probe_each(investigation, fed, samples)
        if Verdict.FAIL not in verdicts and symbols and not compiles:
            console.say("  none with shapes fixed; with the dimensions free that are free in the file?")
            fed.free = True
            verdicts = _probe_each(investigation, fed, samples)
    except (BudgetSpent, KeyboardInterrupt):
        seen = _seen(investigation, fed)
        _fill(investigation, fed, told, seen)
        if seen:
            failing = told["failing"]
            said = f": {_numbers(failing)}" * bool(failing)
            console.answer(f"So far {len(failing)} of {len(seen)} samples fail{said}; {len(samples)} were given.")
        raise
    _fill(investigation, fed, told, dict(enumerate(verdicts, 1)))
    failing, passing = told["failing"], told["passing"]
    if not failing:
        if not passing:
            raise UnavailableError(f"no sample says anything: {told['each'][0]['reason']}.")
        none = f"none of the {len(samples)} samples fails." if len(samples) > 1 else "the only sample passes."
        raise DoesNotReproduce(none)
    several = f"{len(failing)} of {len(samples)} samples fail: {_numbers(failing)}."
    console.answer(several if len(samples) > 1 else "The only sample fails.")
    told["common"] = _tell_common(investigation, [samples[n - 1] for n in failing], [samples[n - 1] for n in passing])
    _deliver(investigation, settings, fed, _simplest(samples, failing), symbols if fed.free or not compiles else {})
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


def _title(number: int) -> str:
    return f"sample {number}"


def _probe_each(investigation: Investigation, fed: Fed, samples: Sequence[Values]) -> list[Verdict]:
    refused = [fed.refused(sample) is not None for sample in samples]

    def story(ask: Ask) -> list[Verdict]:
        return [Verdict.UNRESOLVED if known else ask(frozenset({place})) for place, known in enumerate(refused)]

    investigation.prober.ledger.apart = True  # each sample may fail in its own way
    try:
        return investigation.prober.search(
            over_units(Verdict.FAIL, story),
            lambda units: fed.candidate(samples[next(iter(units))], _title(next(iter(units)) + 1)),
        )
    finally:
        investigation.prober.ledger.apart = False


def _seen(investigation: Investigation, fed: Fed) -> dict[int, Verdict]:
    """What is known of samples where the work ends early."""
    latest = {record.title: record for record in investigation.prober.ledger.records}
    known = [(n, sample) for n, sample in enumerate(investigation.subject.samples, 1) if _title(n) in latest]
    records = [(n, latest[_title(n)], fed.candidate(sample, _title(n)).key) for n, sample in known]
    return {n: record.verdict for n, record, key in records if record.key == key}


def _fill(investigation: Investigation, fed: Fed, told: dict[str, Any], verdicts: Mapping[int, Verdict]) -> None:
    """Put into the result what was seen of each sample, by their numbers."""
    for name, wanted in (("failing", Verdict.FAIL), ("passing", Verdict.PASS), ("unresolved", Verdict.UNRESOLVED)):
        told[name] = [number for number, verdict in verdicts.items() if verdict is wanted]
    told |= {"each": _each(investigation, fed, verdicts), "free_dimensions": fed.free}


def _each(investigation: Investigation, fed: Fed, verdicts: Mapping[int, Verdict]) -> list[dict[str, Any]]:
    entries = []
    for number, verdict in verdicts.items():
        sample = investigation.subject.samples[number - 1]
        refused = fed.refused(sample)
        said = {"reason": f"the reference does not run it: {refused}", "signature": None}
        if refused is None:
            outcome = investigation.prober.ledger.outcome(fed.candidate(sample, _title(number)).key)
            assert outcome is not None, "it was probed"
            said = {"reason": outcome.reason, "signature": outcome.signature}
        shapes = {name: list(value.shape) for name, value in sample.items()}
        entries.append({"sample": number, "verdict": verdict.value, **said, "shapes": shapes})
    return entries


def _tell_common(
    investigation: Investigation, failing: Sequence[Values], passing: Sequence[Values]
) -> list[dict[str, Any]]:
    console = investigation.console
    console.step("What have those that fail in common?")
    if not passing:
        console.say("  all fail, so nothing sets them apart")
        return []
    common = find_common(failing, passing)
    likewise: set[str] = set()
    for entry in common:
        (bad, bads), (good, goods) = entry["failing"], entry["passing"]
        sure = f"p = {entry['p_value']:.2g}, {entry['p_corrected']:.2g} for as many as were looked at"
        sure += "" if entry["sure"] else ": it may be chance"
        also = "".join(f"; likewise {each['property']}" for each in entry["also"][:_MOST_ALSO])
        also = "" if also in likewise else also  # those that divide the samples so are said once
        likewise.add(also)
        console.answer(f"  {entry['property']}: {bad} of {bads} that fail, {good} of {goods} that pass ({sure}){also}")
    if not common:
        console.say("  nothing that was looked at: ranges, sums, zeros, tokens, lengths, order, slices, NaN and Inf")
    return common


def _deliver(
    investigation: Investigation,
    settings: SamplesSettings,
    fed: Fed,
    number: int,
    symbols: Mapping[str, Sequence[tuple[str, int]]],
) -> None:
    """Reduce a sample, write it, read it back and probe it.

    Raises:
        BudgetSpent: The smallest that was seen to fail has been written.
        KeyboardInterrupt: The same.
    """
    subject, console, result = investigation.subject, investigation.console, investigation.result
    ledger, values = investigation.prober.ledger, subject.samples[number - 1]
    outcome = ledger.outcome(fed.candidate(values, _title(number)).key)
    assert outcome is not None, "it was probed"
    ledger.original, ledger.severity = outcome.signature, outcome.severity  # what is left has to fail in this way
    console.step(f"Sample {number} is the smallest that fails: what of it is needed?")
    found, ended = Smallest(values), None
    try:
        reduce_input(investigation, fed, found, symbols)
    except (BudgetSpent, KeyboardInterrupt) as error:
        found.proven, found.why, ended = False, str(error) or "it was interrupted", error
    for step in found.steps:
        console.say(f"  {step}")
    save_npz(settings.output, found.values)
    if ended is None:
        again = replace(fed.candidate(load_npz(settings.output), "the smallest input, read back"), again=True)
        try:
            shown = investigation.prober.probe(again).verdict is Verdict.FAIL
        except (BudgetSpent, KeyboardInterrupt) as error:
            shown, ended = False, error
        if not shown:
            found.proven, found.why = False, found.why or "what was written and read back was not seen to fail"
    result.status, result.minimality, result.why = "found", "1-minimal" if found.proven else "unproven", found.why
    result.artifacts["minimal_input"] = str(settings.output)
    before = sum(int(not_nothing(value).sum()) for value in values.values())
    kept = found.kept
    command = _command(investigation, settings, fed, steady=found.steady)
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
    console.answer(
        f"{settings.output}: of sample {number}, {len(kept)} of {before} elements that are not zero, {shapes} "
        f"({result.minimality})."
    )
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


def _command(investigation: Investigation, settings: SamplesSettings, fed: Fed, *, steady: bool) -> str:
    """What shows the failure with the written input: it was probed so, as the command opens the model; or how often it fails."""
    model, check = str(investigation.subject.settings.path), settings.check
    if check.target is None:
        name = "reduce" if steady else "repeat"
        return check.how_to(name, investigation.subject.settings.path, settings.output, investigation.place_words)
    words = [
        *check.target.flags(),
        *investigation.place_words,
        "--load-inputs",
        str(settings.output),
        *check.tolerance.words(),
    ]
    name = "diagnose" if fed.free else "run"  # which fixes shapes
    return shlex.join(["bisect-trt", name if steady else "repeat", model, *words])
