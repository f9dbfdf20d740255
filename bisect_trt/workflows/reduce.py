"""The smallest model that still fails.

What not every search needs is imported where it does: a check of the user's may take less than these imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from bisect_trt.graph.exported import in_module
from bisect_trt.graph.externals import has_external_data
from bisect_trt.graph.save import check_output, save_model
from bisect_trt.options.choices import Mode
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.metric_check import MetricCheck
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Again, Minimum, Oracle, Question, Search, Subset, Units, Verdict
from bisect_trt.tensors.npz import save_npz
from bisect_trt.workflows.blame import by_blame
from bisect_trt.workflows.dynamic import needed_dimensions, say_dynamic
from bisect_trt.workflows.ends import reduce_one_end
from bisect_trt.workflows.freed import free_where_needed, target_of
from bisect_trt.workflows.investigation import Case, Investigation, saving_best
from bisect_trt.workflows.minimal_case import HELD, Suspects, extract_suspect, named_suspects, narrow_held
from bisect_trt.workflows.others import asked_next, check_finds_all, look_for_others
from bisect_trt.workflows.rebuilt import LOST
from bisect_trt.workflows.scale import measure_whole
from bisect_trt.workflows.settings import ReduceSettings, SearchSettings
from bisect_trt.workflows.subject import Subject

if TYPE_CHECKING:
    from bisect_trt.workflows.foresight import Foresight

_SHOWN = 12


def check_outputs(settings: ReduceSettings) -> None:
    """Make sure that the results can be written.

    Raises:
        UsageError: One cannot.
    """
    check_output(settings.output, overwrite=settings.overwrite)  # what lies beside it is named after it
    for path in filter(None, (settings.inputs, settings.golden, settings.min_good)):
        check_output(path, overwrite=settings.overwrite)


def reduce_model(investigation: Investigation, settings: ReduceSettings, search: SearchSettings) -> Result:
    """Probe the original, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The original passes its check.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    if settings.find_all:
        check_finds_all(investigation)
    with saving_best(lambda: investigation.save_best(settings.output)):
        case = investigation.until_done(lambda: _free_if_needed(investigation, settings, search))
    if settings.both_ends:

        def deliver_another(other: Case, number: int) -> dict[str, Any]:
            return deliver_another_model(investigation, settings.of_another(number), search, other)

        look_for_others(investigation, case, deliver_another if settings.find_all else None, settings.mode)
        # The rest of the model may be the largest that passes.
        answer = investigation.subject.cut(case.minimum.units, held=case.held)
        investigation.result.artifacts["min_good"] = save_min_good(investigation, settings.min_good, answer)
    return investigation.result


def _free_if_needed(investigation: Investigation, settings: ReduceSettings, search: SearchSettings) -> Case:
    """Reduce with fixed shapes, unless the model fails only with dimensions free."""
    target = target_of(investigation)
    try:
        if target is not None and target.target.profile(target):
            investigation.probe_original(search)
            free_where_needed(investigation, passes=False)
        return _reduce(investigation, settings, search)
    except DoesNotReproduce:
        if not free_where_needed(investigation, passes=True):
            raise
        return _reduce(investigation, settings, search)


def _reduce(investigation: Investigation, settings: ReduceSettings, search: SearchSettings) -> Case:
    subject, console = investigation.subject, investigation.console
    nodes, units = len(subject.network.nodes), len(subject.units)
    console.step(f"Probe the original ({nodes} nodes), then search its {units} units for the fewest that still fail")
    looks = _looks(investigation, settings)
    foresight = _foresee(investigation, settings, search) if looks else None
    if search.repeat is not None or search.pin or looks:
        investigation.probe_original(search)
    case, suspect = (None, None) if foresight is None else look_first(investigation, foresight)
    if case is None and not settings.both_ends:
        case = reduce_one_end(investigation, settings.mode, start_held=settings.reduce_outputs)
    elif case is None:
        # Else what is written is not, to the byte, what was probed: other tensors, or weights that were beside it.
        same = not search.shrink and not has_external_data(subject.network.proto)
        case = Case(find_minimum(investigation, settings.mode, suspect, confirm=same, then=asked_next(investigation)))
        check = investigation.prober.runner.check
        case = narrow_held(investigation, check.target if isinstance(check, BuiltinCheck) else None, case)
    for step in case.minimum.steps:
        console.say(f"  {step}")
    deliver(investigation, settings, smallest(investigation, settings, search, case), case.minimum)
    return case


def smallest(investigation: Investigation, settings: ReduceSettings, search: SearchSettings, case: Case) -> Candidate:
    """A case as a candidate, its tensors shrunk if they are to be."""
    settled = investigation.settle(case)
    if isinstance(investigation.prober.runner.check, MetricCheck):
        return settled  # of other tensors the rest of the model makes nothing
    answer = needed_dimensions(investigation, settled)
    if not (search.shrink and settings.both_ends):
        return answer
    from bisect_trt.workflows.shrink import shrink  # noqa: PLC0415 - as the module says

    investigation.console.step("Shrink the tensors of what is left")
    return shrink(investigation, answer)


def _looks(investigation: Investigation, settings: ReduceSettings) -> bool:
    """Whether one look at all tensors is worth it: one build, for the nine or ten that bisecting a thousand nodes takes."""
    check = investigation.prober.runner.check
    return (
        settings.mode is Mode.AUTO
        and settings.both_ends
        and isinstance(check, BuiltinCheck)
        and check.target.target.capabilities.costly
    )


def _foresee(investigation: Investigation, settings: ReduceSettings, search: SearchSettings) -> Foresight:
    """Begin what comes after the original, where there is room for it."""
    check = investigation.prober.runner.check
    assert isinstance(check, BuiltinCheck)
    from bisect_trt.workflows.foresight import Foresight  # noqa: PLC0415 - as the module says
    from bisect_trt.workflows.layerwise.look import Look  # noqa: PLC0415 - as above

    def delivered(told: Investigation, case: Case) -> None:
        told.prober.probe(replace(smallest(told, settings, search, case), title=_READ_BACK, again=True))

    return Foresight(investigation, Look.by(investigation.subject, check), delivered)


def look_first(investigation: Investigation, foresight: Foresight) -> tuple[Case | None, int | None]:
    """See whether the layer that goes wrong first, with every tensor marked, fails alone.

    Args:
        investigation: The model, whose original has been probed.
        foresight: What was begun meanwhile.

    Returns:
        What fails, 1-minimal, if that layer or its neighbourhood does; and the unit that a search should try first, if
        one is suspected.
    """
    subject, ledger = investigation.subject, investigation.prober.ledger
    check = investigation.prober.runner.check
    assert isinstance(check, BuiltinCheck)
    if ledger.is_broken:
        named = named_suspects(investigation)
        foresight.expect(Suspects())  # what was begun would say the same
        return extract_suspect(investigation, check.target, named), named.unit(subject.network)
    investigation.console.step("Look at every tensor once: where does it go wrong first?")
    layers = foresight.compare_layers(ledger.outcome(subject.original.key))
    if layers.refused or not (layers.outputs_fail and layers.origins):
        investigation.console.say("  that does not tell, so bisect without")
        foresight.expect(Suspects())
        return None, None
    suspects = Suspects(layers.origins)
    foresight.expect(suspects)
    return extract_suspect(investigation, check.target, suspects), suspects.unit(subject.network)


def find_minimum(
    investigation: Investigation,
    mode: Mode,
    suspect: int | None = None,
    *,
    confirm: bool = False,
    then: Callable[[Minimum], Question | None] | None = None,
) -> Minimum:
    """Search for the fewest units that still fail.

    Args:
        investigation: The model, and who probes.
        mode: How to search.
        suspect: A unit that is probably the first culprit.
        confirm: Whether the last question is the answer once more, which several workers then ask ahead of the proof.
        then: What the caller asks next; see :class:`Search`.
    """
    subject = investigation.subject

    def story(oracle: Oracle) -> Minimum:
        minimum = investigation.minimise(oracle, mode, suspect)
        if confirm and minimum is not LOST:
            oracle(Again(Units(minimum.units), _READ_BACK, runs=None))
        return minimum

    search = Search(Verdict.FAIL, story, then)
    minimum = investigation.prober.search_from(subject.original, search, subject.cut)
    return investigation.found(minimum)


_READ_BACK = "the result, read back"


def write_answer(investigation: Investigation, output: Path, answer: Candidate, minimum: Minimum) -> Minimum:
    """Write the answer, read it back, and probe what was read.

    Returns:
        The answer; unproven if what was read does not fail.
    """
    console, prober = investigation.console, investigation.prober
    save_model(answer.proto, investigation.subject.workspace.weights.folder_of(answer.proto), output)
    console.step("Written and read back: does it still fail?")
    written = onnx.load(str(output), load_external_data=False)
    investigation.subject.workspace.take_in(written, output.parent)
    again = replace(answer, made=written, title=_READ_BACK, again=True)
    if prober.ledger.outcome(again.key) is not None:
        console.say("  what was read is, to the byte, what was probed once more just now")
    record = prober.probe(again)
    if record.verdict is Verdict.FAIL:
        return minimum
    return investigation.disagreed(minimum, record)


def deliver_another_model(
    investigation: Investigation, settings: ReduceSettings, search: SearchSettings, case: Case
) -> dict[str, Any]:
    """Write the answer for another failure, and say what the result does of it."""
    subject = investigation.subject
    answer = smallest(investigation, settings, search, case)
    minimum = write_answer(investigation, settings.output, answer, case.minimum)
    save_values(subject, settings, answer)
    culprits = subject.describe_nodes(by_blame(investigation, answer))
    failure = investigation.failure(minimum, culprits, settings.output)
    names = ", ".join(f"{culprit['op']} '{culprit['name'] or culprit['outputs'][0]}'" for culprit in culprits)
    investigation.console.answer(f"{settings.output}: another failure ({failure['minimality']}): {names}")
    return failure


def deliver(investigation: Investigation, settings: ReduceSettings, answer: Candidate, minimum: Minimum) -> Result:
    """Leave the answer, and say what it is."""
    subject, console, result = investigation.subject, investigation.console, investigation.result
    investigation.conclude(write_answer(investigation, settings.output, answer, minimum))
    result.culprits = subject.describe_nodes(by_blame(investigation, answer))
    result.artifacts |= {
        "reduced": str(settings.output),
        **save_values(subject, settings, answer),
        "min_good": save_min_good(investigation, settings.min_good, answer),
    }
    count = len(result.culprits)
    measure_whole(investigation, answer)
    console.answer(
        f"{settings.output}: {count} node{'s still fail' if count != 1 else ' still fails'} ({result.proof})."
    )
    if answer.held:
        result.extra["held"] = True
        console.answer(f"  {HELD}")
    say_dynamic(investigation, answer)
    console.answer_first(
        result.culprits, _SHOWN, lambda each: f"  {each['op']} '{each['name'] or each['outputs'][0]}'{in_module(each)}"
    )
    if result.why:
        console.answer(f"  {result.why}")
    check = investigation.prober.runner.check
    if isinstance(check, BuiltinCheck):
        from bisect_trt.workflows.fault.arbitrate import arbitrate  # noqa: PLC0415 - as the module says

        target = investigation.held(answer.target or check.target)
        fault = arbitrate(investigation, target, check.tolerance, answer)
        result.extra["fault"] = fault.to_json()
        console.answer(f"  {fault.sentence}")
    return result


def save_values(subject: Subject, settings: ReduceSettings, answer: Candidate) -> dict[str, str]:
    """Write what the answer is fed and what should come out, beside it."""
    for path, names in ((settings.inputs, answer.inputs), (settings.golden, answer.outputs)):
        save_npz(path, subject.values(answer, names))
    return {"inputs": str(settings.inputs), "golden": str(settings.golden)}


def save_min_good(investigation: Investigation, path: Path | None, answer: Candidate) -> str | None:
    """Write the largest candidate that passes and is contained in the answer or next to it."""
    if path is None:
        return None
    subject = investigation.subject
    passed = {identity.units for identity in investigation.prober.ledger.passed}
    near = [units for units in passed if not answer.units <= units and _touches(subject, units, answer.units)]
    if not near:
        return None
    good = subject.cut(max(near, key=lambda units: (subject.units.count(units), sorted(units))))
    save_model(good.proto, subject.workspace.weights.folder_of(good.proto), path)
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
