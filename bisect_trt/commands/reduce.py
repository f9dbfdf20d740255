"""The smallest model that still fails.

Imports that not every search needs stand where they are used: a user's check may take less time than they do.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.commands.call import Call
from bisect_trt.commands.dynamic_dims import free_where_needed, needed_dimensions, target_of, tell_dynamic
from bisect_trt.commands.minimal_case import (
    HELD,
    Suspects,
    by_blame,
    check_finds_all,
    extract_suspect,
    find_suspects,
    look_for_others,
    narrow_held,
)
from bisect_trt.commands.session import FAILURE_LOST, Case, Session, saving_best
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ConflictError
from bisect_trt.onnxlib.cut import given_back
from bisect_trt.onnxlib.exported import in_module
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.save import save_model
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import (
    Again,
    Minimum,
    Mode,
    Oracle,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
    over_units,
)
from bisect_trt.search.strategy import minimise, shrink_end, shrink_start
from bisect_trt.targets.options import Target
from bisect_trt.tensors.npz import save_npz

_SHOWN = 12
_READ_BACK = "the result, read back"


def reduce_model(session: Session, settings: Reduce, search: Search) -> Result:
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
            return _deliver_another(session, settings.of_another(number), search, other)

        look_for_others(session, case, deliver_another if settings.find_all else None, settings.mode)
        # The rest of the model may be the largest that passes.
        answer = session.subject.cut(case.minimum.units, held=case.held)
        session.result.artifacts["min_good"] = _save_min_good(session, settings.min_good, answer)
    return session.result


def _free_if_needed(session: Session, settings: Reduce, search: Search) -> Case:
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


def _reduce(session: Session, settings: Reduce, search: Search) -> Case:
    subject, console, check = session.subject, session.console, session.prober.runner.check
    nodes, units = len(subject.network.nodes), len(subject.units)
    console.step(f"Probe the original ({nodes} nodes), then search its {units} units for the fewest that still fail")
    target = check.target if isinstance(check, BuiltinCheck) else None
    # One look at all tensors is one build, for the nine or ten that bisecting a thousand nodes takes.
    costly = target is not None and target.target.compiles
    looks = costly and settings.mode is Mode.AUTO and settings.both_ends
    if search.repeat is not None or looks:
        session.probe_original(search)
    suspects, case = Suspects(), None
    if isinstance(check, BuiltinCheck) and looks:
        console.step("Look at every tensor once: where does it go wrong first?")
        suspects = find_suspects(session, check, lambda _: None) or suspects
        case = extract_suspect(session, target, suspects)
    if case is None and not settings.both_ends:
        case = _reduce_one_end(session, settings.mode, start_held=settings.reduce_outputs)
    elif case is None:
        # Else what is written is not, to the byte, what was probed: other tensors, or weights that were beside it.
        same = not search.shrink and not has_external_data(subject.network.proto)
        suspect = suspects.unit(subject.network)
        case = narrow_held(session, target, Case(find_minimum(session, settings.mode, suspect, confirm=same)))
    for step in case.minimum.steps:
        console.say(f"  {step}")
    deliver(session, settings, smallest(session, settings, search, case), case.minimum)
    return case


def smallest(session: Session, settings: Reduce, search: Search, case: Case) -> Candidate:
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


def find_minimum(session: Session, mode: Mode, suspect: int | None = None, *, confirm: bool = False) -> Minimum:
    """Search for the fewest units that still fail.

    Args:
        session: The model, and the prober.
        mode: How to search.
        suspect: A unit that is probably the first culprit.
        confirm: Whether the last question is the answer once more, which several workers then ask ahead of the proof.
    """
    subject = session.subject

    def story(oracle: Oracle) -> Minimum:
        minimum = session.minimise(oracle, mode, suspect)
        if confirm and minimum is not FAILURE_LOST:
            oracle(Again(Units(minimum.units), _READ_BACK, runs=None))
        return minimum

    return session.found(session.prober.search_from(subject.original, story, subject.cut))


def _reduce_one_end(session: Session, mode: Mode, *, start_held: bool) -> Case:
    """The fewest units that fail as ends, with all that leads to them; or as starts, with all that they lead to.

    The last unit of the shortest failing prefix is an end that is needed. It is probed with what leads to it alone,
    then together with ever shorter prefixes, whose last units are ends too, until what was found fails by itself. Suffixes
    and their first units are searched in the same way. With the graph's start held, the outputs of ends that have several are
    searched too.
    """
    subject, network, units = session.subject, session.subject.network, session.subject.units

    def build(ends: Subset) -> Candidate:
        if not start_held:
            return subject.cut(units.with_weights(units.led_to(ends)))
        inside = units.to_nodes(units.leading_to(ends))
        outputs = [name for unit in sorted(ends) for name in given_back(network, network.order[unit], inside)]
        return subject.cut(units.leading_to(ends), outputs=outputs)

    def algorithm(oracle: Oracle) -> tuple[Minimum, Minimum]:
        heard = Transcript(oracle)
        ask = about_units(heard)
        moved = (shrink_end if start_held else shrink_start)(units.searched, ask, mode)
        order = units.searched if start_held else units.searched[::-1]
        # From here on each length was probed that a bisection of these comes to first.
        ends = minimise(order[: len(moved.units)] if mode is Mode.LINEAR else order, ask)
        return moved, session.confirmed(heard, ends, frozenset)

    moved, ends = session.prober.search_from(subject.original, algorithm, build)
    left = build(ends.units)
    minimum = replace(ends, units=left.units, why=ends.why or moved.why)
    if not start_held:
        return Case(minimum)
    names = left.outputs or ()

    def keep(chosen: Subset) -> Candidate:
        outputs = tuple(name for place, name in enumerate(names) if place in chosen)
        return subject.cut(units.leading_to(network.rank[network.producer[name]] for name in outputs), outputs=outputs)

    fewest = session.prober.search(over_units(lambda ask: minimise(range(len(names)), ask)), keep)
    left = keep(fewest.units)
    return Case(replace(minimum, units=left.units, proven=minimum.proven and fewest.proven), outputs=left.outputs)


def deliver(session: Session, settings: Reduce, answer: Candidate, minimum: Minimum) -> Result:
    """Leave the answer, and say what it is."""
    subject, console, result = session.subject, session.console, session.result
    session.conclude(_write_answer(session, settings.output, answer, minimum))
    result.culprits = subject.describe_nodes(by_blame(session, answer))
    result.artifacts |= {
        "reduced": str(settings.output),
        **_save_values(subject, settings, answer),
        "min_good": _save_min_good(session, settings.min_good, answer),
    }
    count = len(result.culprits)
    session.score_whole(answer)
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

        target = answer.target or check.target
        fault = arbitrate(session, target, check.tolerance, answer)
        result.extra["fault"] = fault.to_json()
        console.answer(f"  {fault.sentence}")
    return result


def _deliver_another(session: Session, settings: Reduce, search: Search, case: Case) -> dict[str, Any]:
    """Write the answer for another failure; returns its entry in the result."""
    answer = smallest(session, settings, search, case)
    minimum = _write_answer(session, settings.output, answer, case.minimum)
    _save_values(session.subject, settings, answer)
    culprits = session.subject.describe_nodes(by_blame(session, answer))
    failure = session.failure(minimum, culprits, settings.output)
    names = ", ".join(f"{culprit['op']} '{culprit['name'] or culprit['outputs'][0]}'" for culprit in culprits)
    session.console.answer(f"{settings.output}: another failure ({failure['minimality']}): {names}")
    return failure


def _write_answer(session: Session, output: Path, answer: Candidate, minimum: Minimum) -> Minimum:
    """Write the answer, read it back, and probe what was read; unproven if that does not fail."""
    console, prober = session.console, session.prober
    save_model(answer.proto, session.subject.workspace.weights.folder_of(answer.proto), output)
    console.step("Written and read back: does it still fail?")
    written = onnx.load(str(output), load_external_data=False)
    session.subject.workspace.weights.take_in(written, output.parent)
    again = replace(answer, made=written, title=_READ_BACK, again=True)
    if prober.ledger.outcome(again.key) is not None:
        console.say("  what was read is, to the byte, what was probed once more just now")
    record = prober.probe(again)
    return minimum if record.verdict is Verdict.FAIL else session.disagreed(minimum, record)


def _save_values(subject: Subject, settings: Reduce, answer: Candidate) -> dict[str, str]:
    """Write the inputs of the answer and its expected outputs beside it."""
    for path, names in ((settings.inputs, answer.inputs), (settings.golden, answer.outputs)):
        save_npz(path, subject.values(answer, names))
    return {"inputs": str(settings.inputs), "golden": str(settings.golden)}


def _save_min_good(session: Session, path: Path | None, answer: Candidate) -> str | None:
    """Write the largest candidate that passes and shares a unit, or an edge of the graph, with the answer."""
    subject, network = session.subject, session.subject.network

    def tensors(units: Subset, *, made: bool) -> set[str]:
        nodes = [network.order[unit] for unit in units]
        return {name for node in nodes for name in (network.made(node) if made else network.reads[node])}

    reads, makes = tensors(answer.units, made=False), tensors(answer.units, made=True)
    near = [
        units
        for units in {identity.units for identity in session.prober.ledger.passed if path is not None}
        if not answer.units <= units
        and (units & answer.units or reads & tensors(units, made=True) or makes & tensors(units, made=False))
    ]
    if path is None or not near:
        return None
    good = subject.cut(max(near, key=lambda units: (subject.units.count(units), sorted(units))))
    save_model(good.proto, subject.workspace.weights.folder_of(good.proto), path)
    return str(path)


def run(call: Call) -> Result:
    """Find the smallest model that still fails.

    Raises:
        UsageError: An option is wrong, or a model cannot be written.
        UnavailableError: The target cannot run the model.
    """
    own = call[Reduce]
    if not (own.reduce_inputs or own.reduce_outputs):
        raise ConflictError("--no-reduce-inputs with --no-reduce-outputs leaves nothing to reduce; drop one.")
    if own.find_all and not (own.reduce_inputs and own.reduce_outputs):
        raise ConflictError("--all conflicts with --no-reduce-inputs and --no-reduce-outputs.")
    call.may_write(*filter(None, (own.output, own.inputs, own.golden, own.min_good)), overwrite=own.overwrite)
    check = call.check(call[Target].settings())
    call.open(check)
    with call.searching(check.without_target(call.console)) as session:
        return reduce_model(session, own, call[Search])
