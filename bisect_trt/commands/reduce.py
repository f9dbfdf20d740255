"""``reduce``: finds the smallest model that still fails.

Modules that not every search needs are imported in functions: a user's check may take less time
than their import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from bisect_trt.errors import ConflictError
from bisect_trt.onnxlib.cut import given_back
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.parts import Failure
from bisect_trt.report.proofs import tell_steps
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum, Mode, Oracle, Subset, Transcript, about_units
from bisect_trt.search.strategy import minimise, shrink_end
from bisect_trt.session.call import Call
from bisect_trt.session.session import Case, RebuiltPasses, Session, saving_best
from bisect_trt.steps.dynamic_dims import (
    free_where_needed,
    free_where_profiled,
    target_of,
)
from bisect_trt.steps.minimal_case import (
    MOST_FAILURES,
    extract_suspect,
    find_minimum,
    find_suspects,
    look_for_others,
)
from bisect_trt.steps.reduced_model import deliver, save_min_good, smallest, write_reduced
from bisect_trt.steps.refused_format import require_format
from bisect_trt.targets.options import Target

if TYPE_CHECKING:
    from bisect_trt.steps.arbiter import Arbiter


def reduce_model(
    session: Session, settings: Reduce, search: Search, arbiter: Arbiter | None = None
) -> Result:
    """Probe the original, search, write the answer, and probe it once more.

    Args:
        session: The session of a search.
        settings: The options of the command.
        search: The options of the search.
        arbiter: Judges the answer, if a target is compared with the reference.

    Raises:
        UsageError: All failures are wanted at a prompt.
        DoesNotReproduce: The original passes its check.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    if settings.find_all and session.prober.check.asks_user:
        raise ConflictError("--all asks too many questions for a prompt; give a --check command.")
    with saving_best(lambda: session.save_best(settings.output)):
        case = session.until_done(lambda: _reduce(session, settings, search, arbiter))
    if settings.both_ends:

        def deliver_another(case: Case, number: int) -> Failure:
            another = settings.of_another(number)
            answer = smallest(session, another, search, case)
            minimum, culprits = write_reduced(session, another, answer, case.minimum)
            return session.failure(minimum, culprits, another.output)

        look_for_others(
            session, case, deliver_another if settings.find_all else None, settings.mode
        )
        # The rest of the model may be the largest that passes.
        answer = session.subject.cut(case.minimum.units, held=case.held)
        session.result.artifacts["min_good"] = save_min_good(session, settings.min_good, answer)
    return session.result


def _reduce(session: Session, settings: Reduce, search: Search, arbiter: Arbiter | None) -> Case:
    """Find a minimal case with fixed shapes, or with free ones if the model fails only then, and deliver it."""
    subject = session.subject
    session.console.step(
        f"Probe the original ({len(subject.network.nodes)} nodes), then search its {len(subject.units)} units for the fewest "
        "that still fail",
        len(subject.units),
    )
    try:
        case = _find_case(session, settings, search)
    except RebuiltPasses:
        require_format(session, session.prober.ledger.records[0], arbiter)
        # With fixed shapes the failure is gone; with free ones it may be there.
        if not free_where_needed(session):
            raise
        case = _find_case(session, settings, search)
    else:
        require_format(session, session.prober.ledger.records[0], arbiter)
    tell_steps(case.minimum, session.console)
    answer = smallest(session, settings, search, case)
    deliver(session, settings, answer, case.minimum)
    if arbiter is not None:
        arbiter.judge(answer)
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
        free_where_profiled(session)
    suspects: list[int] = []
    if looks and check.compares:
        console.step("Find the first wrong tensor")
        suspects = find_suspects(session, lambda _: None)
        if (case := extract_suspect(session, target, suspects)) is not None:
            return case
    if not settings.both_ends:
        return _reduce_one_end(session, settings.mode, start_held=settings.reduce_outputs)
    # Else the written model is not, to the byte, the one that was probed: its tensors or the place
    # of its weights differ.
    reusable = not search.shrink and not has_external_data(subject.network.proto)
    return Case(find_minimum(session, settings.mode, suspects, confirm=reusable))


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
        transcript = Transcript(oracle)
        ask = about_units(transcript)
        order = units.searched if start_held else units.searched[::-1]
        moved = shrink_end(order, ask)
        # From here on each length was probed that a bisection of these comes to first.
        ends = minimise(order[: len(moved.units)] if mode is Mode.LINEAR else order, ask)
        return moved, session.confirmed(transcript, ends, frozenset)

    moved, ends = session.prober.search_from(subject.original, algorithm, build)
    remaining = build(ends.units)
    return Case(
        structs.replace(ends, units=remaining.units, remark=ends.remark or moved.remark),
        outputs=remaining.outputs if start_held else None,
    )


def run(call: Call) -> Result:
    """Find the smallest model that still fails."""
    options = call[Reduce]
    if not (options.reduce_inputs or options.reduce_outputs):
        raise ConflictError(
            "--no-reduce-inputs with --no-reduce-outputs leaves nothing to reduce; drop one."
        )
    if options.find_all and not (options.reduce_inputs and options.reduce_outputs):
        raise ConflictError("--all conflicts with --no-reduce-inputs and --no-reduce-outputs.")
    call.may_write(*options.files, overwrite=options.overwrite)
    # Files of failures that are found later are checked before anything runs.
    for number in range(2, MOST_FAILURES + 1) if options.find_all else ():
        call.may_write(*options.of_another(number).files, overwrite=options.overwrite)
    check = call.check(call[Target].settings())
    opened = call.open(check)
    with opened.searching(check.without_target(call.console)) as session:
        if not session.prober.check.compares:
            return reduce_model(session, options, call[Search])
        from bisect_trt.steps.arbiter import Arbiter  # noqa: PLC0415 - as the module says

        arbiter = Arbiter(session, check, not options.no_other_release)
        try:
            return reduce_model(session, options, call[Search], arbiter)
        except DoesNotReproduce as error:
            raise arbiter.doubted(error) from error
