"""The smallest model that still fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from bisect_trt.graph.externals import has_external_data
from bisect_trt.graph.save import check_output, save_model
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.prompt import Undo
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Ask, Minimum, Subset
from bisect_trt.search.question import Again, Oracle, Search, Units, about_units
from bisect_trt.search.strategy import Mode, minimise, shrink_end, shrink_start
from bisect_trt.search.verdict import Verdict
from bisect_trt.tensors.npz import save_npz
from bisect_trt.workflows.isolate import HELD
from bisect_trt.workflows.reproduce import conclude, probe_original
from bisect_trt.workflows.settings import ReduceSettings, SearchSettings
from bisect_trt.workflows.shrink import shrink
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspected import looks, try_suspect

_SHOWN = 12


def check_outputs(settings: ReduceSettings) -> None:
    """Make sure that the results can be written.

    Raises:
        UsageError: One cannot.
    """
    for path in filter(None, (settings.output, settings.inputs, settings.golden, settings.min_good)):
        check_output(path, overwrite=settings.overwrite)


def reduce_model(
    subject: Subject, prober: Prober, settings: ReduceSettings, search: SearchSettings, console: Console, result: Result
) -> Result:
    """Probe the original, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The original passes its check.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    while True:
        try:
            return _reduce(subject, prober, settings, search, console, result)
        except (KeyboardInterrupt, BudgetSpent):
            save_best(subject, prober, settings, console, result)
            raise
        except Undo:  # everything that was answered before is remembered, so starting over comes back to it
            undone = prober.ledger.forget_last()
            console.say(f"  took back probe {undone.number}" if undone else "  there is nothing to take back")


def _reduce(
    subject: Subject, prober: Prober, settings: ReduceSettings, search: SearchSettings, console: Console, result: Result
) -> Result:
    nodes, units = len(subject.network.nodes), len(subject.units)
    console.step(f"Probe the original ({nodes} nodes), then search its {units} units for the fewest that still fail")
    if search.repeat > 1:
        probe_original(subject, prober, search, console, result)
    minimum, suspect = look_first(subject, prober, settings, search, console, result)
    shrinks = search.shrink and settings.reduce_inputs and settings.reduce_outputs
    if minimum is None:
        # Else what is written is not, to the byte, what was probed: other tensors, or weights that were beside it.
        same = not shrinks and not has_external_data(subject.network.proto)
        minimum = find_minimum(subject, prober, settings, suspect, confirm=same)
    for step in minimum.steps:
        console.say(f"  {step}")
    answer = subject.cut(minimum.units)
    subject.settle(prober.ledger.outcome(answer.key))
    if shrinks:
        console.step("Shrink the tensors of what is left")
        answer = shrink(subject, prober, answer, console)
    return deliver(subject, prober, settings, answer, minimum, console, result)


def look_first(
    subject: Subject, prober: Prober, settings: ReduceSettings, search: SearchSettings, console: Console, result: Result
) -> tuple[Minimum | None, int | None]:
    """The answer, or the unit that a search should try first, where one look at all tensors is cheaper than bisecting."""
    if settings.mode is not Mode.AUTO or not (settings.reduce_inputs and settings.reduce_outputs) or not looks(prober):
        return None, None
    if search.repeat == 1:
        probe_original(subject, prober, search, console, result)
    return try_suspect(subject, prober, console)


def find_minimum(
    subject: Subject,
    prober: Prober,
    settings: ReduceSettings,
    suspect: int | None = None,
    *,
    confirm: bool = False,
) -> Minimum:
    """Search as far as the settings let the graph's ends move.

    Args:
        subject: The model under investigation.
        prober: Who probes.
        settings: What may be reduced, and how.
        suspect: A unit that is probably the first culprit.
        confirm: Whether the last question is the answer once more, which several workers then ask ahead of the proof.
    """
    units = subject.units
    whole = not (settings.reduce_inputs and settings.reduce_outputs)

    def algorithm(ask: Ask) -> Minimum:
        if not whole:
            return minimise(
                units.searched,
                ask,
                settings.mode,
                weights=units.with_weights,
                inseparable=units.bare,
                pattern=subject.patterns.around,
                suspect=suspect,
            )

        def ask_whole(chosen: Subset) -> Verdict:
            return ask(units.with_weights(chosen))

        shrink = shrink_end if settings.reduce_outputs else shrink_start
        minimum = shrink(units.searched, ask_whole, settings.mode)
        return replace(minimum, units=units.with_weights(minimum.units))

    def story(oracle: Oracle) -> Minimum:
        minimum = algorithm(about_units(oracle))
        if confirm:
            oracle(Again(Units(minimum.units), _READ_BACK))
        return minimum

    return prober.search_from(subject.original, Search(Verdict.FAIL, story), subject.cut)


_READ_BACK = "the result, read back"


def deliver(
    subject: Subject,
    prober: Prober,
    settings: ReduceSettings,
    answer: Candidate,
    minimum: Minimum,
    console: Console,
    result: Result,
) -> Result:
    """Write the answer, read it back, and probe what was read."""
    save_model(answer.proto, subject.workspace.candidates, settings.output)
    console.step("Written and read back: does it still fail?")
    again = replace(answer, proto=onnx.load(str(settings.output)), title=_READ_BACK, again=True)
    if prober.ledger.outcome(again.key) is not None:
        console.say("  what was read is, to the byte, what was probed once more just now")
    record = prober.probe(again)
    if record.verdict is not Verdict.FAIL:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    conclude(prober, minimum, result)
    result.culprits = subject.describe_searched(answer.units)
    result.artifacts |= {
        "reduced": str(settings.output),
        **save_values(subject, settings, answer),
        "min_good": save_min_good(subject, prober, settings.min_good, answer),
    }
    count = len(result.culprits)
    console.answer(
        f"{settings.output}: {count} node{'s still fail' if count != 1 else ' still fails'} ({result.minimality})."
    )
    if answer.held:
        result.extra["held"] = True
        console.answer(f"  {HELD}")
    for culprit in result.culprits[:_SHOWN]:
        console.answer(f"  {culprit['op']} '{culprit['name'] or culprit['outputs'][0]}'")
    if count > _SHOWN:
        console.answer(f"  ... and {count - _SHOWN} more")
    if result.why:
        console.answer(f"  {result.why}")
    return result


def save_values(subject: Subject, settings: ReduceSettings, answer: Candidate) -> dict[str, str]:
    """Write what the answer is fed and what should come out, beside it."""
    for path, names in ((settings.inputs, answer.inputs), (settings.golden, answer.outputs)):
        save_npz(path, subject.values(answer, names))
    return {"inputs": str(settings.inputs), "golden": str(settings.golden)}


def save_best(subject: Subject, prober: Prober, settings: ReduceSettings, console: Console, result: Result) -> None:
    """Write the smallest candidate that was seen to fail so far."""
    best = prober.ledger.best
    if best is None or best.key == subject.original.key:
        return
    save_model(subject.cut(best.units).proto, subject.workspace.candidates, settings.output)
    result.artifacts["reduced"] = str(settings.output)
    result.culprits = subject.describe_searched(best.units)
    console.answer(f"{settings.output}: the best so far, {subject.units.count(best.units)} units.")


def save_min_good(subject: Subject, prober: Prober, path: Path | None, answer: Candidate) -> str | None:
    """Write the largest candidate that passes and is contained in the answer or next to it."""
    if path is None:
        return None
    passed = {identity.units for identity in prober.ledger.passed}
    near = [units for units in passed if not answer.units <= units and _touches(subject, units, answer.units)]
    if not near:
        return None
    good = subject.cut(max(near, key=lambda units: (subject.units.count(units), sorted(units))))
    save_model(good.proto, subject.workspace.candidates, path)
    return str(path)


def _touches(subject: Subject, one: Subset, other: Subset) -> bool:
    """Whether two sets of units share one, or an edge of the graph leads from one to the other."""
    network = subject.network
    reads = {name for unit in other for name in network.reads[network.order[unit]]}
    made = {name for unit in other for name in network.made(network.order[unit])}
    return bool(one & other) or any(
        reads.intersection(network.made(network.order[unit])) or made.intersection(network.reads[network.order[unit]])
        for unit in one
    )
