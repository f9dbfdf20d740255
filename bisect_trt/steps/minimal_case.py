"""Steps from a failing model to its minimal cases: find and extract suspects, minimize, order by blame, search the rest.

Modules that not every search needs are imported in functions: a user's check may take less time
than their import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from bisect_trt.mixed_precision.nodes import find_losing
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.check import comparing
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.parts import Failure
from bisect_trt.report.proofs import UNJUDGED_WITHOUT, last_record, tell_steps
from bisect_trt.search.confirm import read_back
from bisect_trt.search.oracle import (
    Minimum,
    Mode,
    Note,
    Oracle,
    Remark,
    Subset,
    Transcript,
    Units,
    Verdict,
    about_units,
)
from bisect_trt.search.strategy import make_minimal
from bisect_trt.session.record import prepare_report
from bisect_trt.session.session import FAILURE_LOST, Case, Session
from bisect_trt.targets.base import TargetSettings
from bisect_trt.worker.deadline import BudgetSpent

if TYPE_CHECKING:
    from bisect_trt.report.faults import Fault
    from bisect_trt.steps.layers import LayerComparison

Delivery = Callable[[Case, int], Failure]
"""Writes another answer, given its number from 2 on; returns its entry in ``failures``."""
MOST_FAILURES = 10
"""The largest number of failures that are searched for."""
GROWTH_STEPS = 3
"""Number of times that a layer that passes alone is extended by its producers, before the whole
model is reduced."""
SUSPECTS_TRIED = 3
MOST_BUILDS = 3
"""Builds of models with the answer's nodes side by side."""
_SHOWN = 6
"""Nodes that a sentence names."""


class JudgedCase(Struct, frozen=True):
    """A minimal case, the nodes to blame and the side that is wrong.

    Attributes:
        case: The failing units, and whether their minimality is proven.
        whole: The same as a candidate.
        candidate: The same with its tensors shrunk, unless the user does not want that.
        blamed: Indices of its nodes, the most guilty first.
        fault: The side that is wrong.
    """

    case: Case
    whole: Candidate
    candidate: Candidate
    blamed: Sequence[int]
    fault: Fault


def find_suspects(session: Session, show: Callable[[LayerComparison], None]) -> list[int]:
    """Find the nodes that compute a wrong tensor from right ones, by marking every tensor as an output.

    If the original does not run, it is the node that the target's message names.

    Returns:
        The nodes, the first in topological order first; none where the tensors do not show any, or
            nothing is compared.
    """
    from bisect_trt.steps.layers import Marking, compare_layers, find_births  # noqa: PLC0415 - as the module says

    subject = session.subject
    ledger = session.prober.ledger
    console = session.console
    outcome = ledger.outcome(subject.original.key)
    if ledger.is_broken:
        console.say("  the model does not run at all, so there is nothing to compare")
        return named_nodes(subject.network, outcome.message)[:1] if outcome is not None else []
    comparison = comparing(session.prober.check)
    if comparison is None:
        return []
    layers = compare_layers(Marking.by(comparison, subject), outcome)
    if layers.refused:
        console.say(
            f"  the target does not run the model with every tensor marked: {layers.refused}"
        )
        return find_losing(subject, session.prober.check.runtime)
    show(layers)
    if not layers.outputs_fail:
        return []
    # A sensitive node before them differs too, but NaN and Inf are born elsewhere.
    births = find_births(subject.network, layers.tensors)[:SUSPECTS_TRIED]

    def harms(nodes: Sequence[int]) -> bool:
        """Return whether NaN or Inf, and no error beside it, makes the tensors at its end wrong."""
        units = frozenset(map(subject.network.rank.__getitem__, nodes))
        return session.prober.probe(subject.cut(units)).fails

    lost = next((nodes[:1] for inside, _, nodes in births if not inside or harms(nodes)), [])
    return [*dict.fromkeys([*lost, *layers.origins])]


def extract_suspect(
    session: Session, target: TargetSettings | None, suspects: Sequence[int]
) -> Case | None:
    """Probe each suspect alone with the reference's activations; if it passes, with its producers.

    A Cast is probed with its readers first: the type that it makes at the end of a case is not lowered.

    Args:
        session: The model.
        target: The target; one that compiles in fp16 may lower a node in the whole model alone.
        suspects: Indices of nodes, the most suspicious first.

    Returns:
        The failing case, 1-minimal; ``None`` if no suspect fails.
    """
    network = session.subject.network
    console = session.console
    # Inside the whole model the target runs it in the low precision.
    may_be_fp32 = target is not None and target.target.compiles and (target.fp16 or target.bf16)
    for index in suspects[:SUSPECTS_TRIED]:
        console.step(
            f"Extract {network.describe(index)} and feed it the reference's activations: does it fail alone?"
        )
        units = frozenset({network.rank[index]})
        for step in range(GROWTH_STEPS + 1):
            failing = _first_failing(session, units)
            held = False
            if failing is None and step == 0 and may_be_fp32:
                console.say("  no, but alone it may run in fp32: try --hold-precision")
                failing = _first_failing(session, units, held=True)
                held = True
            if failing is not None:
                console.say(
                    f"  yes, with {len(units)} units: minimize them"
                    if step
                    else "  yes: this is a minimal case"
                )
                return _minimize_case(session, failing, held=held)
            if step == 0:
                _mark_right(session, index)
            if step < GROWTH_STEPS:
                at_end = step == 0 and network.nodes[index].op_type == "Cast"
                console.say(f"  no: add its {'readers' if at_end else 'producers'}")
                units |= _around(network, units, readers=at_end)
    if suspects:
        console.say("  no suspicious layer fails, alone or with its producers")
    return None


def _mark_right(session: Session, index: int) -> None:
    """Mark the origins of a node that passed alone."""
    subject = session.subject
    result = session.result
    alone = subject.cut(frozenset({subject.network.rank[index]}))
    outcome = session.prober.ledger.outcome(alone.key)
    if result.origins and outcome is not None and outcome.ending is Ending.PASSED:
        made = subject.network.made(index)
        result.origins = [
            structs.replace(origin, right_alone=True) if origin.tensor in made else origin
            for origin in result.origins
        ]


def _around(network: Network, units: Subset, *, readers: bool) -> Subset:
    """Return the units that read what some units make, or that make what they read."""
    nodes = [network.order[unit] for unit in units]
    around = (
        network.readers_of(network.made_by(nodes))
        if readers
        else (parent for node in nodes for parent in network.parents(node))
    )
    return frozenset(network.rank[node] for node in around if not network.constant[node])


def find_minimum(
    session: Session, mode: Mode, suspects: Sequence[int] = (), *, confirm: bool = False
) -> Minimum:
    """Search the whole model for the fewest units that still fail.

    The first suspect is tried as the first culprit. ``confirm`` asks the answer once more: several
    workers do that ahead.
    """
    subject = session.subject
    suspect = subject.network.rank[suspects[0]] if suspects else None

    def search(oracle: Oracle) -> Minimum:
        minimum = session.minimise(oracle, mode, suspect)
        inner = _between_ends(subject.network, minimum.units)
        # The integers alone may fail; then their ends are not needed.
        if inner and oracle(Units(frozenset(inner))) is Verdict.FAIL:
            minimum = session.minimise(oracle, mode, searched=inner)
        if confirm and minimum is not FAILURE_LOST:
            return read_back(minimum, oracle)
        return minimum

    return _followed(
        session, session.found(session.prober.search_from(subject.original, search, subject.cut))
    )


def _between_ends(network: Network, units: Subset) -> list[int]:
    """Return the units between a QuantizeLinear at the inputs of a case and a DequantizeLinear at its outputs; none without both.

    Without one of these two a runtime may compute in floats, and fail all the same without both.
    """
    nodes = {network.order[unit] for unit in units}
    # The first and the last nodes only bring values into the case's types.
    fed = {index for index in nodes if nodes.isdisjoint(network.parents(index))}
    read = {parent for index in nodes for parent in network.parents(index)}
    first = {index for index in fed if network.nodes[index].op_type == "QuantizeLinear"}
    last = {index for index in nodes - read if network.nodes[index].op_type == "DequantizeLinear"}
    inner = nodes - first - last if first and last else set()
    return sorted(network.rank[index] for index in inner)


def _followed(session: Session, minimum: Minimum, *, held: bool = False) -> Minimum:
    """Return the wrong values inside a refused answer, if there are any, in place of the answer; see ``Note.FOLLOWED``.

    A wrong shape or value may be what a node further down is refused for. Without that node the
    candidate mismatches, which is ``UNRESOLVED`` in the search for the refusal.
    """
    subject = session.subject
    ledger = session.prober.ledger
    if not ledger.is_broken:
        return minimum
    refused = max(minimum.units, default=None)
    # Small parts first: the fewest nodes beside the wrong ones.
    for part in sorted(minimum.refused, key=lambda part: (len(part), sorted(part))):
        outcome = ledger.outcome(subject.cut(part, held=held).key)
        searched = [unit for unit in subject.units.searched if unit in part]
        if (
            outcome is None
            or outcome.ending is not Ending.MISMATCHED
            or refused in part
            or not searched
        ):
            continue
        session.console.say("  a part of it is not refused but wrong: search that first")
        ledger.follow(outcome)
        search = partial(session.minimise, searched=searched)
        wrong = session.prober.search(
            search, lambda units: subject.cut(units, held=held), subject.original
        )
        if wrong.units:
            return structs.replace(wrong, remark=wrong.remark or Remark(Note.FOLLOWED))
    return minimum


def _minimize_case(session: Session, failing: Subset, *, held: bool) -> Case:
    """Drop the units that a small failing set does not need."""
    subject = session.subject

    def search(oracle: Oracle) -> Minimum:
        transcript = Transcript(oracle)
        return session.confirmed(
            transcript, make_minimal(failing, about_units(transcript), subject.units.bare)
        )

    minimum = session.prober.search(
        search, lambda units: subject.cut(units, held=held), subject.original
    )
    return Case(_followed(session, session.doubted(minimum), held=held), held)


def _first_failing(session: Session, units: Subset, *, held: bool = False) -> Subset | None:
    """Probe some units with stored weights, then with the nodes that make their weights; returns the first set that fails."""
    subject = session.subject
    for chosen in dict.fromkeys((units, subject.units.with_weights(units))):
        candidate = subject.cut(chosen, held=held)
        if session.prober.probe(candidate).fails:
            return candidate.units
    return None


def by_blame(session: Session, answer: Candidate, suspects: Sequence[int] = ()) -> list[int]:
    """Return the nodes of an answer, the guilty first, without nodes that only compute weights.

    Each node is fed the reference's values, all of them side by side in one model: the larger its
    own error, the more it is to blame. Where that cannot be measured (a user's check, a target that
    does not run the model) and where no node has an error of its own, suspects come first, and then
    the topological order counts.

    Args:
        session: The model with its reference.
        answer: The minimal case.
        suspects: Indices of nodes, the most suspicious first.
    """
    network = session.subject.network
    nodes = [
        network.order[unit]
        for unit in sorted(answer.units)
        if not network.constant[network.order[unit]]
    ]
    if not nodes:
        # The failure depends on no input.
        makers = {
            network.producer.get(name) for node in answer.proto.graph.node for name in node.output
        }
        nodes = [index for index in network.order if index in makers and network.reads[index]]
    errors = _own_errors(session, answer, nodes) if len(nodes) > 1 else {}
    ranks = {node: place for place, node in enumerate(suspects)}
    return sorted(
        nodes,
        key=lambda node: (-errors.get(node, 0.0), ranks.get(node, len(ranks)), network.rank[node]),
    )


def _own_errors(session: Session, answer: Candidate, nodes: Sequence[int]) -> dict[int, float]:
    """Return the severity of each node's own error, if it has one; infinite for NaN or Inf."""
    check = comparing(session.prober.check)
    subject = session.subject
    if check is None or session.prober.ledger.is_broken:
        return {}
    from bisect_trt.steps.layers import Marking, compare_own  # noqa: PLC0415 - as the module says

    names = subject.network.made_by(nodes)
    isolated = compare_own(Marking.by(check, subject, held=answer.held), names, MOST_BUILDS)
    errors: dict[int, float] = {}
    for name, comparison in isolated.tensors.items():
        if not comparison.passed:
            node = subject.network.producer[name]
            errors[node] = max(errors.get(node, 0.0), comparison.severity)
    return errors


def named_nodes(network: Network, text: str) -> list[int]:
    """Return the nodes that a message names, in its order: by node names, tensor names, or names derived from these.

    A runtime that rewrites a graph derives names from the original ones: ``x_q`` or ``x_token_220``
    from ``x``.
    """
    makers = {name: index for index in network.order for name in network.made(index)}
    makers |= {
        network.nodes[index].name: index for index in network.order if network.nodes[index].name
    }
    words = list(dict.fromkeys(_words(text)))
    exact = [makers[word] for word in words if word in makers]
    if exact:
        return list(dict.fromkeys(exact))
    derived = (
        word[:end] for word in words for end in range(len(word) - 1, 0, -1) if word[end] in "_/.:-"
    )
    return [makers[name] for name in derived if name in makers][:1]


def _words(text: str) -> Iterator[str]:
    """Yield possible names in a message: quoted text, text in brackets or after a colon, then every word."""
    for quoted in re.findall(r"'([^']+)'|\"([^\"]+)\"|\(([^()\s]+)\)|\b[Nn]ame:\s*(\S+)", text):
        yield next(filter(None, quoted))
    for word in re.split(r"[\s'\"()\[\]{},;]+", text):
        yield from dict.fromkeys((word, word.rstrip(".:")))


def look_for_others(
    session: Session, case: Case, deliver: Delivery | None = None, mode: Mode = Mode.AUTO
) -> None:
    """Probe the model without an answer; if it fails, in any way, and all failures are wanted, search the rest.

    Args:
        session: The answer is in its result; ``failures`` and ``more_failures`` are added.
        case: The answer.
        deliver: Writes the next answer; ``None`` to find out only whether there is one.
        mode: How to search.

    Raises:
        BudgetSpent: No more probes may be made, and all failures are wanted; those found so far are
            in the result.
    """
    result = session.result
    if deliver is None and session.prober.check.asks_user:
        return
    prepare_report()
    first = Failure(
        culprits=tuple(result.culprits),
        minimality=result.minimality,
        why=result.why,
        reduced=result.artifacts["reduced"],
    )
    result.failures = failures = [first]
    result.more_failures = None
    # Later steps are about the first failure again.
    with session.prober.ledger.following():
        try:
            _search_others(session, case, failures, deliver, mode)
        except BudgetSpent:
            if deliver is not None:
                raise


def _search_others(
    session: Session,
    case: Case,
    failures: list[Failure],
    deliver: Delivery | None,
    mode: Mode,
) -> None:
    """Add to ``failures`` what fails without those before it."""
    searched = session.subject.units.searched
    # Units that are not searched only make weights.
    covered = case.minimum.units.intersection(searched) or case.minimum.units
    while candidates := _failing_rest(session, case, covered, sure=deliver is not None):
        if deliver is None or len(failures) == MOST_FAILURES:
            return
        session.console.step(f"The rest of the model fails too: failure {len(failures) + 1}")
        another = _search_rest(session, case, candidates, mode)
        if another is None:
            return
        failures.append(deliver(another, len(failures) + 1))
        covered |= another.minimum.units.intersection(searched) or another.minimum.units


def _failing_rest(session: Session, case: Case, taken: Subset, *, sure: bool) -> Sequence[int]:
    """Return the units that can be cut without the taken ones, if they fail; else none.

    A failure of another kind (a refusal beside wrong values) is followed from here on; a mismatch
    that is milder than the first failure is rounding beside it. Sets ``more_failures`` in the
    result: ``None`` if the rest cannot be judged. A pass is confirmed by more probes if it has to be ``sure``.
    """
    subject = session.subject
    result = session.result
    ledger = session.prober.ledger
    remaining = subject.units.independent(taken)
    result.more_failures = None if remaining else False
    if not remaining:
        return ()
    units = subject.units.with_weights(remaining)
    # A larger model that matched has no failure left, as long as failures are monotone.
    matched = (record.units for record in ledger.passed if ledger.ended(record, Ending.PASSED))
    if case.minimum.rest_passes and not sure and any(units <= larger for larger in matched):
        result.more_failures = False
        return ()
    candidate = subject.cut(units, held=case.held)
    candidate = replace(candidate, title=f"the rest: {candidate.title}")
    record = session.prober.probe(candidate)
    outcome = session.outcome(record)
    runs = session.prober.check.judges_runtime
    broken_or_wrong = outcome.ending in (Ending.BROKEN, Ending.MISMATCHED)
    # While one failure is followed, another kind counts as unresolved.
    if runs and broken_or_wrong and record.verdict is Verdict.UNRESOLVED:
        session.console.say("  it fails in another way, which is followed from here on")
        ledger.follow(outcome)
        record = session.prober.probe(candidate)
    if sure and record.passes:
        record = last_record(reconfirm(session.prober, subject.original, candidate))
    if record.verdict is Verdict.UNRESOLVED:
        session.console.answer(f"{UNJUDGED_WITHOUT}: {record.reason}.")
    else:
        result.more_failures = record.fails
    return remaining if record.fails else ()


def _search_rest(
    session: Session, case: Case, candidates: Sequence[int], mode: Mode
) -> Case | None:
    """Return the fewest units of the rest that fail, in the precision of the answer; ``None`` if it fails no more."""
    subject = session.subject
    # No failure is among the first units of the rest alone, as far as they are within something
    # that passed.
    passed = (identity.units for identity in session.prober.ledger.passed)
    within = (
        next((place for place, unit in enumerate(candidates) if unit not in units), 0)
        for units in passed
    )
    passing = max(within, default=0)

    def search(oracle: Oracle) -> Minimum:
        return session.minimise(oracle, mode, searched=candidates, passing=passing)

    minimum = session.prober.search(
        search, lambda units: subject.cut(units, held=case.held), subject.original
    )
    if not minimum.units:
        # It failed once, and passed when it was probed again.
        session.result.more_failures = None
        return None
    tell_steps(minimum, session.console)
    return Case(_followed(session, session.doubted(minimum), held=case.held), case.held)
