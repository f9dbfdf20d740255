"""``reduce``: finds the smallest model that still fails.

Modules that not every search needs are imported in functions: a user's check may take less time
than their import.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bisect_trt.commands.call import Call
from bisect_trt.commands.minimal_case import (
    HELD,
    MOST_FAILURES,
    by_blame,
    extract_suspect,
    find_minimum,
    find_suspects,
    look_for_others,
)
from bisect_trt.commands.session import Case, RebuiltPasses, Session, saving_best
from bisect_trt.commands.shapes import (
    free_where_needed,
    needed_dimensions,
    shrink,
    target_of,
    tell_dynamic,
)
from bisect_trt.errors import ConflictError
from bisect_trt.onnxlib.cut import given_back
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.onnxlib.nodes import in_module
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.report.console import listed
from bisect_trt.report.result import Result
from bisect_trt.report.summary import named
from bisect_trt.report.text import Entry
from bisect_trt.search.confirm import READ_BACK
from bisect_trt.search.oracle import Minimum, Mode, Oracle, Subset, Transcript, Verdict, about_units
from bisect_trt.search.strategy import minimise, shrink_end
from bisect_trt.targets.options import Target
from bisect_trt.tensors.files import save_npz

_SHOWN = 12


def reduce_model(session: Session, settings: Reduce, search: Search) -> Result:
    """Probe the original, search, write the answer, and probe it once more.

    Raises:
        UsageError: All failures are wanted at a prompt.
        DoesNotReproduce: The original passes its check.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    if settings.find_all and isinstance(session.prober.check, PromptCheck):
        raise ConflictError("--all asks too many questions for a prompt; give a --check command.")
    with saving_best(lambda: session.save_best(settings.output)):
        case = session.until_done(lambda: _reduce(session, settings, search))
    if settings.both_ends:

        def deliver_another(other: Case, number: int) -> Entry:
            own = settings.of_another(number)
            answer = smallest(session, own, search, other)
            minimum, culprits = _write(session, own, answer, other.minimum)
            failure = session.failure(minimum, culprits, own.output)
            names = ", ".join(
                f"{each['op']} '{each['name'] or each['outputs'][0]}'" for each in culprits
            )
            session.console.answer(
                f"{own.output}: another failure ({failure['minimality']}): {names}"
            )
            return failure

        look_for_others(
            session, case, deliver_another if settings.find_all else None, settings.mode
        )
        # The rest of the model may be the largest that passes.
        answer = session.subject.cut(case.minimum.units, held=case.held)
        session.result.artifacts["min_good"] = _save_min_good(session, settings.min_good, answer)
    return session.result


def _reduce(session: Session, settings: Reduce, search: Search) -> Case:
    """Find a minimal case with fixed shapes, or with free ones if the model fails only then, and deliver it."""
    subject = session.subject
    session.console.step(
        f"Probe the original ({len(subject.network.nodes)} nodes), then search its {len(subject.units)} units for the fewest "
        "that still fail"
    )
    try:
        case = _find_case(session, settings, search)
    except RebuiltPasses:
        if not free_where_needed(session):
            raise
        case = _find_case(session, settings, search)
    for step in case.minimum.steps:
        session.console.say(f"  {step}")
    deliver(session, settings, smallest(session, settings, search, case), case.minimum)
    return case


def _find_case(session: Session, settings: Reduce, search: Search) -> Case:
    """Find the fewest units that fail: a suspicious node if one fails alone, else by searching the whole model."""
    subject = session.subject
    console = session.console
    check = session.prober.check
    target = target_of(session)
    # Marking all tensors takes one build; bisecting a thousand nodes takes nine or ten.
    looks = (
        target is not None
        and target.target.compiles
        and settings.mode is Mode.AUTO
        and settings.both_ends
    )
    if search.repeat is not None or looks:
        session.probe_original(search)
    suspects: list[int] = []
    if looks and isinstance(check, BuiltinCheck) and check.compares:
        console.step("Find the first wrong tensor")
        suspects = find_suspects(session, check, lambda _: None)
        if (case := extract_suspect(session, target, suspects)) is not None:
            return case
    if not settings.both_ends:
        return _reduce_one_end(session, settings.mode, start_held=settings.reduce_outputs)
    # Else the written model is not, to the byte, the one that was probed: its tensors or the place
    # of its weights differ.
    same = not search.shrink and not has_external_data(subject.network.proto)
    return Case(find_minimum(session, settings.mode, suspects, confirm=same))


def smallest(session: Session, settings: Reduce, search: Search, case: Case) -> Candidate:
    """A case as a candidate, its tensors shrunk unless the user does not want that."""
    settled = session.settle(case)
    if not getattr(session.prober.check, "compares", True):
        return settled  # the rest of the model could not run on other tensors, and small ones are not slow
    answer = needed_dimensions(session, settled)
    if not (search.shrink and settings.both_ends):
        return answer
    session.console.step("Shrink tensors of the minimal case")
    return shrink(session, answer)


def _reduce_one_end(session: Session, mode: Mode, *, start_held: bool) -> Case:
    """Find the fewest ends that fail together with their ancestors; or the fewest starts with their descendants.

    The last unit of the shortest failing prefix is a needed end. It is probed with its ancestors
    alone, then together with ever shorter prefixes, which end in further needed ends, until the
    ends with their ancestors fail. Suffixes and their first units are searched in the same way.
    With the graph's start kept, the outputs are the outputs of the ends.
    """
    subject, network, units = session.subject, session.subject.network, session.subject.units

    def build(ends: Subset) -> Candidate:
        if not start_held:
            return subject.cut(units.with_weights(units.led_to(ends)))
        inside = units.to_nodes(units.leading_to(ends))
        outputs = [
            name
            for unit in sorted(ends)
            for name in given_back(network, network.order[unit], inside)
        ]
        return subject.cut(units.leading_to(ends), outputs=outputs)

    def algorithm(oracle: Oracle) -> tuple[Minimum, Minimum]:
        heard = Transcript(oracle)
        ask = about_units(heard)
        order = units.searched if start_held else units.searched[::-1]
        moved = shrink_end(order, ask)
        # From here on each length was probed that a bisection of these comes to first.
        ends = minimise(order[: len(moved.units)] if mode is Mode.LINEAR else order, ask)
        return moved, session.confirmed(heard, ends, frozenset)

    moved, ends = session.prober.search_from(subject.original, algorithm, build)
    left = build(ends.units)
    return Case(
        replace(ends, units=left.units, why=ends.why or moved.why),
        outputs=left.outputs if start_held else None,
    )


def deliver(session: Session, settings: Reduce, answer: Candidate, minimum: Minimum) -> Result:
    """Write the answer, and print it."""
    console = session.console
    result = session.result
    check = session.prober.check
    minimum, result.culprits = _write(session, settings, answer, minimum)
    session.conclude(minimum)
    result.artifacts |= {
        "reduced": str(settings.output),
        "inputs": str(settings.inputs),
        "golden": str(settings.golden),
        "min_good": _save_min_good(session, settings.min_good, answer),
    }
    count = len(result.culprits)
    session.score_whole(answer)
    console.answer(
        f"{settings.output}: {count} node{'s still fail' if count != 1 else ' still fails'} ({result.minimality})."
    )
    if answer.held:
        result.extra["held"] = True
        console.answer(f"  {HELD}")
    tell_dynamic(session, answer)
    for line in listed([f"  {named(each)}{in_module(each)}" for each in result.culprits], _SHOWN):
        console.answer(line)
    if result.why:
        console.answer(f"  {result.why}")
    if isinstance(check, BuiltinCheck) and check.compares:
        from bisect_trt.commands.arbitration import arbitrate  # noqa: PLC0415 - as the module says

        fault = arbitrate(session, answer.target or check.target, check.tolerance, answer)
        result.extra["fault"] = fault.to_json()
        console.answer(f"  {fault.sentence}")
    return result


def _write(
    session: Session, settings: Reduce, answer: Candidate, minimum: Minimum
) -> tuple[Minimum, list[Entry]]:
    """Write an answer with its inputs and expected outputs, read it back, and probe it.

    Returns:
        The minimum, unproven if the model that was read back does not fail; and the nodes, the most
        guilty first.
    """
    console = session.console
    prober = session.prober
    workspace = session.subject.workspace
    workspace.save(answer.proto, settings.output)
    console.step("Write the model, read it back: does it still fail?")
    again = replace(answer, made=workspace.read_back(settings.output), title=READ_BACK, again=True)
    if prober.ledger.outcome(again.key) is not None:
        console.say("  the same bytes were probed once more just now")
    record = prober.probe(again)
    for path, names in ((settings.inputs, answer.inputs), (settings.golden, answer.outputs)):
        save_npz(path, session.subject.values(answer, names))
    culprits = session.subject.describe_nodes(by_blame(session, answer))
    return minimum if record.verdict is Verdict.FAIL else session.disagreed(
        minimum, record
    ), culprits


def _save_min_good(session: Session, path: Path | None, answer: Candidate) -> str | None:
    """Write the largest passing candidate that shares a unit, or an edge of the graph, with the answer."""
    subject, network = session.subject, session.subject.network

    def tensors(units: Subset, *, made: bool) -> set[str]:
        nodes = [network.order[unit] for unit in units]
        return {
            name for node in nodes for name in (network.made(node) if made else network.reads[node])
        }

    reads = tensors(answer.units, made=False)
    makes = tensors(answer.units, made=True)
    near = [
        units
        for units in {
            identity.units for identity in session.prober.ledger.passed if path is not None
        }
        if not answer.units <= units
        and (
            units & answer.units
            or reads & tensors(units, made=True)
            or makes & tensors(units, made=False)
        )
    ]
    if path is None or not near:
        return None
    good = subject.cut(max(near, key=lambda units: (subject.units.count(units), sorted(units))))
    subject.workspace.save(good.proto, path)
    return str(path)


def run(call: Call) -> Result:
    """Find the smallest model that still fails."""
    own = call[Reduce]
    if not (own.reduce_inputs or own.reduce_outputs):
        raise ConflictError(
            "--no-reduce-inputs with --no-reduce-outputs leaves nothing to reduce; drop one."
        )
    if own.find_all and not (own.reduce_inputs and own.reduce_outputs):
        raise ConflictError("--all conflicts with --no-reduce-inputs and --no-reduce-outputs.")
    call.may_write(*own.files, overwrite=own.overwrite)
    for number in range(2, MOST_FAILURES + 1) if own.find_all else ():
        call.may_write(*own.of_another(number).files, overwrite=own.overwrite)
    check = call.check(call[Target].settings())
    call.open(check)
    with call.searching(check.without_target(call.console)) as session:
        return reduce_model(session, own, call[Search])
