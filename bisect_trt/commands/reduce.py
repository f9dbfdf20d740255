"""The smallest model that still fails.

What not every search needs is imported where it does: a check of the user's may take less than these imports.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.commands.blame import by_blame
from bisect_trt.commands.call import Call
from bisect_trt.commands.dynamic_dims import free_where_needed, needed_dimensions, target_of, tell_dynamic
from bisect_trt.commands.metric import measure_whole
from bisect_trt.commands.minimal_case import HELD, Suspects, extract_suspect, named_suspects, narrow_held
from bisect_trt.commands.one_sided_reduce import reduce_one_end
from bisect_trt.commands.rebuilt import LOST
from bisect_trt.commands.remaining_failures import check_finds_all, look_for_others
from bisect_trt.commands.session import Case, Session, saving_best
from bisect_trt.commands.settings import ReduceSettings, SearchSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.exported import in_module
from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.onnxlib.save import check_output, save_model
from bisect_trt.options.choices import Mode
from bisect_trt.options.searches import Reduce
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Again, Minimum, Oracle, Subset, Units, Verdict
from bisect_trt.targets.options import Target
from bisect_trt.tensors.npz import save_npz

_SHOWN = 12


def check_outputs(settings: ReduceSettings) -> None:
    """Make sure that the results can be written.

    Raises:
        UsageError: One cannot.
    """
    check_output(settings.output, overwrite=settings.overwrite)  # what lies beside it is named after it
    for path in filter(None, (settings.inputs, settings.golden, settings.min_good)):
        check_output(path, overwrite=settings.overwrite)


def reduce_model(session: Session, settings: ReduceSettings, search: SearchSettings) -> Result:
    """Probe the original, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The original passes its check.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    if settings.find_all:
        check_finds_all(session)
    with saving_best(lambda: session.save_best(settings.output)):
        case = session.until_done(lambda: _free_if_needed(session, settings, search))
    if settings.both_ends:

        def deliver_another(other: Case, number: int) -> dict[str, Any]:
            return deliver_another_model(session, settings.of_another(number), search, other)

        look_for_others(session, case, deliver_another if settings.find_all else None, settings.mode)
        # The rest of the model may be the largest that passes.
        answer = session.subject.cut(case.minimum.units, held=case.held)
        session.result.artifacts["min_good"] = save_min_good(session, settings.min_good, answer)
    return session.result


def _free_if_needed(session: Session, settings: ReduceSettings, search: SearchSettings) -> Case:
    """Reduce with fixed shapes, unless the model fails only with dimensions free."""
    target = target_of(session)
    try:
        if target is not None and target.target.profile(target):
            session.probe_original(search)
            free_where_needed(session, passes=False)
        return _reduce(session, settings, search)
    except DoesNotReproduce:
        if not free_where_needed(session, passes=True):
            raise
        return _reduce(session, settings, search)


def _reduce(session: Session, settings: ReduceSettings, search: SearchSettings) -> Case:
    subject, console = session.subject, session.console
    nodes, units = len(subject.network.nodes), len(subject.units)
    console.step(f"Probe the original ({nodes} nodes), then search its {units} units for the fewest that still fail")
    looks = _looks(session, settings)
    if search.repeat is not None or search.pin or looks:
        session.probe_original(search)
    case, suspect = look_first(session) if looks else (None, None)
    if case is None and not settings.both_ends:
        case = reduce_one_end(session, settings.mode, start_held=settings.reduce_outputs)
    elif case is None:
        # Else what is written is not, to the byte, what was probed: other tensors, or weights that were beside it.
        same = not search.shrink and not has_external_data(subject.network.proto)
        case = Case(find_minimum(session, settings.mode, suspect, confirm=same))
        check = session.prober.runner.check
        case = narrow_held(session, check.target if isinstance(check, BuiltinCheck) else None, case)
    for step in case.minimum.steps:
        console.say(f"  {step}")
    deliver(session, settings, smallest(session, settings, search, case), case.minimum)
    return case


def smallest(session: Session, settings: ReduceSettings, search: SearchSettings, case: Case) -> Candidate:
    """A case as a candidate, its tensors shrunk if they are to be."""
    settled = session.settle(case)
    if isinstance(session.prober.runner.check, MetricCheck):
        return settled  # of other tensors the rest of the model makes nothing
    answer = needed_dimensions(session, settled)
    if not (search.shrink and settings.both_ends):
        return answer
    from bisect_trt.commands.shrink import shrink  # noqa: PLC0415 - as the module says

    session.console.step("Shrink the tensors of what is left")
    return shrink(session, answer)


def _looks(session: Session, settings: ReduceSettings) -> bool:
    """Whether one look at all tensors is worth it: one build, for the nine or ten that bisecting a thousand nodes takes."""
    check = session.prober.runner.check
    return (
        settings.mode is Mode.AUTO
        and settings.both_ends
        and isinstance(check, BuiltinCheck)
        and check.target.target.capabilities.costly
    )


def look_first(session: Session) -> tuple[Case | None, int | None]:
    """Mark every tensor once, and try whether the layer that goes wrong first fails alone.

    Returns:
        What fails, 1-minimal, if that layer or its neighbourhood does; and the unit that a search should try first, if
        one is suspected.
    """
    subject, ledger, check = session.subject, session.prober.ledger, session.prober.runner.check
    assert isinstance(check, BuiltinCheck)
    if ledger.is_broken:
        suspects = named_suspects(session)
    else:
        from bisect_trt.commands.marking import Marking, compare_layers  # noqa: PLC0415 - as the module says

        session.console.step("Look at every tensor once: where does it go wrong first?")
        look = Marking(subject, check.target, check.tolerance, check.timeout)
        layers = compare_layers(look, ledger.outcome(subject.original.key))
        if layers.refused or not (layers.outputs_fail and layers.origins):
            session.console.say("  that does not tell, so bisect without")
            return None, None
        suspects = Suspects(layers.origins)
    return extract_suspect(session, check.target, suspects), suspects.unit(subject.network)


def find_minimum(
    session: Session,
    mode: Mode,
    suspect: int | None = None,
    *,
    confirm: bool = False,
) -> Minimum:
    """Search for the fewest units that still fail.

    Args:
        session: The model, and who probes.
        mode: How to search.
        suspect: A unit that is probably the first culprit.
        confirm: Whether the last question is the answer once more, which several workers then ask ahead of the proof.
    """
    subject = session.subject

    def story(oracle: Oracle) -> Minimum:
        minimum = session.minimise(oracle, mode, suspect)
        if confirm and minimum is not LOST:
            oracle(Again(Units(minimum.units), _READ_BACK, runs=None))
        return minimum

    return session.found(session.prober.search_from(subject.original, story, subject.cut))


_READ_BACK = "the result, read back"


def write_answer(session: Session, output: Path, answer: Candidate, minimum: Minimum) -> Minimum:
    """Write the answer, read it back, and probe what was read.

    Returns:
        The answer; unproven if what was read does not fail.
    """
    console, prober = session.console, session.prober
    save_model(answer.proto, session.subject.workspace.weights.folder_of(answer.proto), output)
    console.step("Written and read back: does it still fail?")
    written = onnx.load(str(output), load_external_data=False)
    session.subject.workspace.take_in(written, output.parent)
    again = replace(answer, made=written, title=_READ_BACK, again=True)
    if prober.ledger.outcome(again.key) is not None:
        console.say("  what was read is, to the byte, what was probed once more just now")
    record = prober.probe(again)
    if record.verdict is Verdict.FAIL:
        return minimum
    return session.disagreed(minimum, record)


def deliver_another_model(
    session: Session, settings: ReduceSettings, search: SearchSettings, case: Case
) -> dict[str, Any]:
    """Write the answer for another failure, and say what the result does of it."""
    subject = session.subject
    answer = smallest(session, settings, search, case)
    minimum = write_answer(session, settings.output, answer, case.minimum)
    save_values(subject, settings, answer)
    culprits = subject.describe_nodes(by_blame(session, answer))
    failure = session.failure(minimum, culprits, settings.output)
    names = ", ".join(f"{culprit['op']} '{culprit['name'] or culprit['outputs'][0]}'" for culprit in culprits)
    session.console.answer(f"{settings.output}: another failure ({failure['minimality']}): {names}")
    return failure


def deliver(session: Session, settings: ReduceSettings, answer: Candidate, minimum: Minimum) -> Result:
    """Leave the answer, and say what it is."""
    subject, console, result = session.subject, session.console, session.result
    session.conclude(write_answer(session, settings.output, answer, minimum))
    result.culprits = subject.describe_nodes(by_blame(session, answer))
    result.artifacts |= {
        "reduced": str(settings.output),
        **save_values(subject, settings, answer),
        "min_good": save_min_good(session, settings.min_good, answer),
    }
    count = len(result.culprits)
    measure_whole(session, answer)
    console.answer(
        f"{settings.output}: {count} node{'s still fail' if count != 1 else ' still fails'} ({result.proof})."
    )
    if answer.held:
        result.extra["held"] = True
        console.answer(f"  {HELD}")
    tell_dynamic(session, answer)
    console.answer_first(
        result.culprits, _SHOWN, lambda each: f"  {each['op']} '{each['name'] or each['outputs'][0]}'{in_module(each)}"
    )
    if result.why:
        console.answer(f"  {result.why}")
    check = session.prober.runner.check
    if isinstance(check, BuiltinCheck):
        from bisect_trt.commands.arbitration import arbitrate  # noqa: PLC0415 - as the module says

        target = session.held(answer.target or check.target)
        fault = arbitrate(session, target, check.tolerance, answer)
        result.extra["fault"] = fault.to_json()
        console.answer(f"  {fault.sentence}")
    return result


def save_values(subject: Subject, settings: ReduceSettings, answer: Candidate) -> dict[str, str]:
    """Write what the answer is fed and what should come out, beside it."""
    for path, names in ((settings.inputs, answer.inputs), (settings.golden, answer.outputs)):
        save_npz(path, subject.values(answer, names))
    return {"inputs": str(settings.inputs), "golden": str(settings.golden)}


def save_min_good(session: Session, path: Path | None, answer: Candidate) -> str | None:
    """Write the largest candidate that passes and is contained in the answer or next to it."""
    if path is None:
        return None
    subject = session.subject
    passed = {identity.units for identity in session.prober.ledger.passed}
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


def run(call: Call) -> Result:
    """Find the smallest model that still fails.

    Raises:
        UsageError: An option is wrong, or a model cannot be written.
        UnavailableError: The target cannot run the model.
    """
    own, search = call[Reduce], call.search
    if not (own.reduce_inputs or own.reduce_outputs):
        raise UsageError("--no-reduce-inputs with --no-reduce-outputs leaves nothing to reduce; drop one.")
    if own.find_all and not (own.reduce_inputs and own.reduce_outputs):
        raise UsageError("--all conflicts with --no-reduce-inputs and --no-reduce-outputs.")
    settings = ReduceSettings.of(own, own.output)
    if not call.resumed:
        check_outputs(settings)
    check = call.check(call[Target].settings())
    job = call.open(check)
    check = job.deciding(job.scored(check))
    with job.subject(check.timeout, check.target) as subject, job.investigated(subject, check, search) as session:
        return reduce_model(session, settings, search)
