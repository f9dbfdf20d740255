"""From suspects to minimal cases: extract one, order the nodes of an answer by blame, search the rest of the model.

Imports that not every search needs stand where they are used: a user's check may take less time than they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bisect_trt.commands.session import Case, Session
from bisect_trt.errors import ConflictError
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import reconfirm
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.delta_debugging import make_minimal
from bisect_trt.search.oracle import Minimum, Mode, Oracle, Subset, Transcript, Verdict, about_units
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from bisect_trt.commands.marking import LayerComparison

Delivery = Callable[[Case, int], dict[str, Any]]
"""Writes another answer, given its number from 2 on; returns its entry in ``failures``."""
MOST_FAILURES = 10
"""Failing sets that are searched for at most."""
GROWTH_STEPS = 3
"""How many times a layer that passes alone is grown by what it reads, before the whole model is reduced."""
SUSPECTS_TRIED = 3
MOST_NARROWED = 12
"""Each may be a build, but a small one."""
MOST_BUILDS = 3
"""Of models with the answer's nodes side by side."""
HELD = "It fails with --hold-precision, which it runs in as part of the whole model; alone, TensorRT may choose fp32."


@dataclass(frozen=True)
class Suspects:
    """Nodes that are probably to blame.

    Attributes:
        nodes: Their numbers, the most suspicious first.
        grow: Whether one that passes alone is tried with what it reads.
    """

    nodes: Sequence[int] = ()
    grow: bool = True

    def unit(self, network: Network) -> int | None:
        """The one that a search of the whole model should try first."""
        return network.rank[self.nodes[0]] if self.nodes and self.grow else None


def find_suspects(session: Session, check: BuiltinCheck, show: Callable[[LayerComparison], None]) -> Suspects | None:
    """Find the nodes that make a wrong tensor of right ones, with every tensor marked as an output.

    Where the original does not run, it is the node that the target's message names.

    Args:
        session: The model.
        check: The target and its tolerances.
        show: Prints the comparison.

    Returns:
        ``None`` where the tensors do not show it.
    """
    from bisect_trt.commands.marking import Marking, compare_layers  # noqa: PLC0415 - as the module says

    subject, ledger, console = session.subject, session.prober.ledger, session.console
    outcome = ledger.outcome(subject.original.key)
    if ledger.is_broken:
        return Suspects(named_nodes(subject.network, outcome.reason)[:1] if outcome is not None else ())
    layers = compare_layers(Marking(subject, check.target, check.tolerance, check.timeout), outcome)
    if layers.refused:
        console.say(f"  the target does not run the model with every tensor marked: {layers.refused}")
    else:
        show(layers)
    return Suspects(layers.origins) if layers.outputs_fail and layers.origins and not layers.refused else None


def weak_suspects(session: Session, target: TargetSettings) -> Suspects:
    """Return nodes that the reference's values make suspicious: they are tried with ``--hold-precision``."""
    if not _may_choose_precision(target):
        return Suspects()
    from bisect_trt.mixed_precision.suspicion import BREAKS, suspect  # noqa: PLC0415 - as the module says

    found = suspect(session.subject, "fp16" if target.fp16 else "bf16")
    return Suspects([session.subject.network.order[each.unit] for each in found if each.score >= BREAKS], grow=False)


def extract_suspect(
    session: Session, target: TargetSettings | None, suspects: Suspects, number: str = ""
) -> Case | None:
    """Probe each suspect alone, on the reference's activations; where it passes, with what it reads.

    Returns:
        The failing case, 1-minimal; ``None`` if no suspect fails, nor with its neighbours.
    """
    network, console = session.subject.network, session.console
    steps = GROWTH_STEPS if suspects.grow else 0
    if number and not suspects.nodes:
        console.step(f"{number}Extract a suspect: not done, for nothing points at a node")
    for index in suspects.nodes[:SUSPECTS_TRIED]:
        console.step(
            f"{number}Extract {network.describe(index)}, feed it the reference's activations: does it fail alone?"
        )
        units = frozenset({network.rank[index]})
        for step in range(steps + 1):
            failing, held = _first_failing(session, units), False
            if failing is None and step == 0 and _may_choose_precision(target):
                console.say("  no, but alone it may run in fp32: try --hold-precision")
                failing, held = _first_failing(session, units, held=True), True
            if failing is not None:
                with_others = f", with {len(units)} units: minimise them"
                console.say(f"  yes{with_others if step else ': this is a minimal case'}")
                return _minimise_case(session, failing, held=held)
            if step < steps:
                console.say("  no: it needs more of what it reads; add its producers")
                parents = {parent for unit in units for parent in network.parents(network.order[unit])}
                units |= {network.rank[parent] for parent in parents if not network.constant[parent]}
    if suspects.nodes:
        console.say("  no layer fails alone, nor with its neighbours: go on to reduce the whole model")
    return None


def narrow_held(session: Session, target: TargetSettings | None, case: Case) -> Case:
    """Return the one of several nodes that fails alone with ``--hold-precision``, if there is one; else all of them.

    As part of the others it ran in that precision; alone the target may have chosen fp32 for it.
    """
    subject, console = session.subject, session.console
    if case.held or not _may_choose_precision(target) or not 1 < len(case.minimum.units) <= MOST_NARROWED:
        return case
    console.step("Does one of them fail alone, held to the low precision?")
    for node in by_blame(session, subject.cut(case.minimum.units, held=True)):
        failing = _first_failing(session, frozenset({subject.network.rank[node]}), held=True)
        if failing is not None:
            console.say(f"  yes: {subject.network.describe(node)}")
            return _minimise_case(session, failing, held=True)
    console.say("  no")
    return case


def _may_choose_precision(target: TargetSettings | None) -> bool:
    """Return whether the target may run a piece in fp32 that it runs in the low precision as part of the whole."""
    return target is not None and target.target.compiles and (target.fp16 or target.bf16)


def _minimise_case(session: Session, failing: Subset, *, held: bool) -> Case:
    """Leave out the units that a small failing set does not need."""
    subject = session.subject

    def algorithm(oracle: Oracle) -> Minimum:
        heard = Transcript(oracle)
        return session.confirmed(heard, make_minimal(failing, about_units(heard), subject.units.bare))

    minimum = session.prober.search(algorithm, lambda units: subject.cut(units, held=held), subject.original)
    return Case(session.doubted(minimum), held)


def _first_failing(session: Session, units: Subset, *, held: bool = False) -> Subset | None:
    """Probe some units with stored weights, then with the nodes that make their weights."""
    subject = session.subject
    for chosen in dict.fromkeys((units, subject.units.with_weights(units))):
        candidate = subject.cut(chosen, held=held)
        if session.prober.probe(candidate).verdict is Verdict.FAIL:
            return candidate.units
    return None


def by_blame(session: Session, answer: Candidate, suspects: Sequence[int] = ()) -> list[int]:
    """Return the nodes of an answer, without those that only make weights, the guilty first.

    Each node is fed the reference's own values, all of them side by side in one model: the more it is off, the more it is to
    blame. Where that cannot be measured (a check of the user's, a target that does not run the model at all) and where
    nothing is off by itself, suspects come first, and then the topological order counts.

    Args:
        session: The model, and the check that found the answer.
        answer: The failing candidate.
        suspects: Nodes that were suspected before, the most suspicious first.
    """
    network = session.subject.network
    nodes = [network.order[unit] for unit in sorted(answer.units) if not network.constant[network.order[unit]]]
    if not nodes:  # what fails depends on no input
        made = {network.producer.get(name) for node in answer.proto.graph.node for name in node.output}
        nodes = [index for index in network.order if index in made and network.reads[index]]
    errors = _own_errors(session, answer, nodes) if len(nodes) > 1 else {}
    ranks = {node: place for place, node in enumerate(suspects)}
    return sorted(nodes, key=lambda node: (-errors.get(node, 0.0), ranks.get(node, len(ranks)), network.rank[node]))


def _own_errors(session: Session, answer: Candidate, nodes: Sequence[int]) -> dict[int, float]:
    """Return how severely each node is off by itself, where it is; infinitely where it makes NaN or Inf."""
    check, subject = session.prober.runner.check, session.subject
    if not isinstance(check, BuiltinCheck) or session.prober.ledger.is_broken:
        return {}
    from bisect_trt.commands.marking import Marking, compare_own  # noqa: PLC0415 - as the module says

    target = replace(check.target, held=answer.held or check.target.held)
    names = [name for node in nodes for name in subject.network.made(node)]
    own = compare_own(Marking(subject, target, check.tolerance, check.timeout), names, MOST_BUILDS)
    errors: dict[int, float] = {}
    for name, comparison in own.tensors.items():
        if not comparison.passed:
            node = subject.network.producer[name]
            errors[node] = max(errors.get(node, 0.0), comparison.severity)
    return errors


def named_nodes(network: Network, text: str) -> list[int]:
    """Return the nodes that a message names, in its order: by their names, those of what they make, or names made of these.

    A runtime that rewrites a graph names what it makes after what was there: ``x_q`` or ``x_token_220`` after ``x``.
    """
    makers = {name: index for index in network.order for name in network.made(index)}
    makers |= {network.nodes[index].name: index for index in network.order if network.nodes[index].name}
    words = list(dict.fromkeys(_words(text)))
    exact = [makers[word] for word in words if word in makers]
    if exact:
        return list(dict.fromkeys(exact))
    derived = (word[:end] for word in words for end in range(len(word) - 1, 0, -1) if word[end] in "_/.:-")
    return [makers[name] for name in derived if name in makers][:1]


def _words(text: str) -> Iterator[str]:
    """Yield possible names in a message: quoted text, text in brackets or after a colon, then every word."""
    for quoted in re.findall(r"'([^']+)'|\"([^\"]+)\"|\(([^()\s]+)\)|\b[Nn]ame:\s*(\S+)", text):
        yield next(filter(None, quoted))
    for word in re.split(r"[\s'\"()\[\]{},;]+", text):
        yield from dict.fromkeys((word, word.rstrip(".:")))


def check_finds_all(session: Session) -> None:
    """Refuse ``--all`` at a prompt.

    Raises:
        UsageError: A prompt would ask about one failure after the other.
    """
    if isinstance(session.prober.runner.check, PromptCheck):
        raise ConflictError(
            "--all asks about each failure, which is too much to answer at a prompt; give a --check command."
        )


def look_for_others(
    session: Session,
    case: Case,
    deliver: Delivery | None = None,
    mode: Mode = Mode.AUTO,
) -> None:
    """Probe the model without an answer; if it fails and all failures are wanted, search the rest.

    Args:
        session: The answer is in its result; ``failures`` and ``more_failures`` are added.
        case: The answer.
        deliver: Writes the next answer; ``None`` to find out only whether there is one.
        mode: How to search.

    Raises:
        BudgetSpent: No more probes may be made, and all failures are wanted; those found so far are in the result.
    """
    console, result, searched = session.console, session.result, session.subject.units.searched
    if deliver is None and isinstance(session.prober.runner.check, PromptCheck):
        return
    first = {"culprits": result.culprits, "minimality": result.minimality, "why": result.why}
    failures = [first | {"reduced": result.artifacts["reduced"]}]
    result.extra |= {"failures": failures, "more_failures": None}
    taken = case.minimum.units.intersection(searched) or case.minimum.units  # else they make weights
    try:
        while rest := failing_rest(session, case, taken, sure=deliver is not None):
            if deliver is None or len(failures) == MOST_FAILURES:
                more = "At least one more: without these nodes the rest of the model still fails (--all finds each)."
                console.answer(more if deliver is None else f"The rest still fails: more than these {MOST_FAILURES}.")
                return
            console.step(f"The rest of the model fails too: failure {len(failures) + 1}")
            other = search_rest(session, case, rest, mode)
            if other is None:
                return
            failures.append(deliver(other, len(failures) + 1))
            taken |= other.minimum.units.intersection(searched) or other.minimum.units
    except BudgetSpent:
        if deliver is not None:
            raise
    if deliver is not None and result.extra["more_failures"] is False:
        console.answer(f"That is all: {len(failures)} found, and the rest of the model does not fail.")


def failing_rest(session: Session, case: Case, taken: Subset, *, sure: bool) -> Sequence[int]:
    """The units that can be cut without any of those that are taken, where they fail; none where they do not.

    ``more_failures`` in the result is filled in: ``None`` if the rest breaks in another way. A pass is confirmed by more
    probes where it has to be ``sure``.
    """
    subject, extra = session.subject, session.result.extra
    rest = [unit for unit in subject.units.searched if taken.isdisjoint(subject.units.with_weights({unit}))]
    extra["more_failures"] = None if rest else False
    if not rest:
        return ()
    candidate = subject.cut(subject.units.with_weights(rest), held=case.held)
    candidate = replace(candidate, title=f"the rest: {candidate.title}")
    record = session.prober.probe(candidate)
    if sure and record.verdict is Verdict.PASS:
        record = reconfirm(session.prober, subject.original, candidate).record
    check, outcome = session.prober.runner.check, session.outcome(record)
    builds = isinstance(check, BuiltinCheck) and check.target.build_only
    if sure and builds and record.verdict is Verdict.UNRESOLVED and outcome.ending is Ending.BROKEN:
        session.console.say("  it cannot be built for another reason, which is searched for now")
        session.prober.ledger.follow(outcome)
        record = session.prober.probe(candidate)
    if record.verdict is not Verdict.UNRESOLVED:
        extra["more_failures"] = record.verdict is Verdict.FAIL
    return rest if record.verdict is Verdict.FAIL else ()


def search_rest(session: Session, case: Case, rest: Sequence[int], mode: Mode) -> Case | None:
    """The fewest units of the rest that fail, with the target held if the answer was; ``None`` if it fails no more."""
    subject = session.subject
    # No failure is among the first units of the rest alone, as far as they are within something that passed.
    passed = (identity.units for identity in session.prober.ledger.passed)
    within = (next((place for place, unit in enumerate(rest) if unit not in units), 0) for units in passed)
    passing = max(within, default=0)

    def search(oracle: Oracle) -> Minimum:
        return session.minimise(oracle, mode, searched=rest, passing=passing)

    minimum = session.prober.search(search, lambda units: subject.cut(units, held=case.held), subject.original)
    if not minimum.units:  # it failed once, and passed when it was probed again
        session.result.extra["more_failures"] = None
        return None
    for step in minimum.steps:
        session.console.say(f"  {step}")
    return Case(session.doubted(minimum), case.held)
