"""``cause``: the pass, option or tactic of the target that makes a model fail: the fewest switches that fix it.

The space is the switches of the target, the strategy finds every minimal set that is enough to
pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, structs

from bisect_trt.aliases import Names
from bisect_trt.errors import BisectError, ConflictError, UnsuitableModelError, UsageError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.parts import CauseDetail, Switches
from bisect_trt.report.proofs import describe_confirmation
from bisect_trt.report.summary import CASE_CONFIRMED, why_no_cause
from bisect_trt.search.keep import Alternatives, find_alternatives, shortest_prefix
from bisect_trt.search.oracle import (
    Ask,
    Enough,
    Limited,
    Minimum,
    Oracle,
    Subset,
    Transcript,
    Verdict,
    about_units,
)
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import Case, Session
from bisect_trt.steps.compiler_passes import Engines
from bisect_trt.steps.minimal_case import named_nodes
from bisect_trt.steps.panel import Panel
from bisect_trt.targets.base import Looked, TargetSettings, Tier
from bisect_trt.worker.deadline import BudgetSpent
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import About, Failed, Trace

_MOST_COSTLY = 8
"""The largest number of builds in a diagnosis."""


def switchable(check: CheckSettings) -> CheckSettings:
    """Return the check, if it can use changed switches: the built-in one, or a command that receives engines.

    Raises:
        UsageError: It cannot.
    """
    plugin = check.runtime.target
    if check.function is None and not check.argv:
        return check
    if check.argv and plugin.engines:
        return replace(check, by_layer=True)
    subject = "a check command" if check.argv else "a check function"
    raise ConflictError(
        f"{subject} receives models, so it cannot use changed switches of {plugin.title}; drop it to compare the "
        "target with the reference, or use a target with engines (--trt), which commands receive."
    )


def make_panel(
    session: Session,
    check: CheckSettings,
    base: Candidate,
    *,
    case: bool,
    wanted: Names = (),
) -> Panel:
    """Return the switches of the check's target that it takes, for the whole model or for a minimal case.

    Args:
        session: The model's session.
        check: Its check.
        base: The model that is searched.
        case: Whether that is the minimal case of a diagnosis.
        wanted: The switches of the compiler that the user asks for; empty for all of any kind.

    Raises:
        UsageError: The target has no switches.
    """
    models = session.subject.models
    target = base.settings(check.runtime)
    feed = models.feed("trace.in", session.subject.values(base, base.inputs))
    reply = models.workers.ask(Trace(target, models.write("trace", base.proto), feed))
    operators = frozenset(node.op_type for node in all_nodes(base.proto))
    trace = None if isinstance(reply, Failed) else reply
    suspects = operators if case else suspected_operators(session)
    switches = target.target.switches(target, Looked(trace, operators, suspects, wanted))
    if target.target.compiles:
        # What one release keeps another drops.
        switches = [switch for switch in switches if _taken(models.workers, switch.turn(target))]
    if not switches:
        raise UnsuitableModelError(f"{target.target.title} has no switches with these settings.")
    base = replace(base, title="the minimal case") if case else base
    return Panel(switches, base, target, trace or {}, session.place_words)


def _taken(workers: WorkerPool, settings: TargetSettings) -> bool:
    """Return whether the runtime takes some settings."""
    try:
        workers.ask(About(settings))
    except UsageError:
        return False
    return True


def suspected_operators(session: Session) -> frozenset[str]:
    """Return the operators of the nodes in the failure's message, and of their neighbours."""
    network = session.subject.network
    ledger = session.prober.ledger
    outcome = ledger.outcome(session.subject.original.key)
    if outcome is None or not ledger.is_broken:
        return frozenset()
    named = set(named_nodes(network, outcome.message)[:1])
    readers = {index for index in network.order if named.intersection(network.parents(index))}
    around = named | readers | {parent for index in readers for parent in network.parents(index)}
    return frozenset(network.nodes[index].op_type for index in around)


class Answers(Struct, frozen=True):
    """The switches that a search found.

    Attributes:
        alternatives: The sets of switches that fix the model.
        failures: How often the model failed with none of these changed.
        tried: The number of switches that were changed in a candidate, alone or with others.
    """

    alternatives: Alternatives
    failures: int
    tried: int


def search_switches(session: Session, engines: Engines, most: int | None = None) -> Answers | None:
    """Find the fewest switches that fix the model, and alternatives.

    Passes about single nodes come first, then options, then both together, then passes of the
    compiler; switches of a whole kind are an answer only if nothing smaller is.

    Args:
        session: The model's session.
        engines: The switches, and the engines that they make.
        most: The largest number of questions about each of these three; ``None`` is returned if they
            are not enough.
    """
    panel = engines.panel
    weights = {unit: switch.weight for unit, switch in enumerate(panel.switches)}
    passes, options, wholes = map(panel.of, (Tier.PASS, Tier.OPTION, Tier.WHOLE))
    shut = set[str | None]()

    def find(units: Sequence[int], ask: Ask, *, likely: bool = False) -> Alternatives:
        if session.prober.check.bounds_whole:
            return _alone(units, ask)
        return find_alternatives(units, ask, weights=weights, likely=likely)

    def outer(ask: Ask) -> Alternatives:
        gates = [unit for unit in wholes if panel.switches[unit].covers is not None]
        shut.update(
            panel.switches[unit].covers for unit in gates if ask(frozenset({unit})) is Verdict.FAIL
        )
        found = Alternatives() if shut else find(passes, ask, likely=bool(gates))
        more = find(options, ask)
        if not (found.found or more.found) and passes and options:
            more = find([*passes, *options], ask)
        return Alternatives((*found.found, *more.found), found.complete and more.complete)

    def inner(ask: Ask) -> Alternatives:
        units = engines.acting(singly=most is None)
        # Where some do not act, the others are few.
        likely = most is None and len(units) < len(panel.of(Tier.COMPILER))
        return find_alternatives(units, ask) if engines.sized else find(units, ask, likely=likely)

    def whole(ask: Ask) -> Alternatives:
        return _alone([unit for unit in wholes if panel.switches[unit].within not in shut], ask)

    def limited(oracle: Oracle) -> Answers | None:
        transcript = Transcript(oracle)
        shut.clear()
        found = _first_found(
            (outer, inner, whole),
            lambda: Limited(about_units(transcript), frozenset(weights), most),
        )
        if found is None:
            return None
        failing = transcript.heard(Verdict.FAIL)
        asked = [units for verdict in Verdict for units in transcript.heard(verdict)]
        failures = sum(not any(each <= units for each in found.found) for units in failing)
        return Answers(found, failures, len(frozenset().union(*asked)))

    return session.prober.search(limited, panel.candidate)


def _first_found(
    parts: Sequence[Callable[[Ask], Alternatives]], limited: Callable[[], Ask]
) -> Alternatives | None:
    """Return the answers of the first part that has any; ``None`` if there are none and a part was ended before."""
    alternatives: Alternatives | None = Alternatives()
    for part in parts:
        try:
            answers = part(limited())
        except Enough:
            alternatives = None
            continue
        if answers.found:
            return answers
    return alternatives


def _alone(units: Sequence[int], ask: Ask) -> Alternatives:
    """Ask about each alone: with a limit of the whole model one switch may undo what another one gains."""
    return Alternatives(
        tuple(one for unit in units if ask(one := frozenset({unit})) is Verdict.PASS)
    )


def explain(
    session: Session,
    check: CheckSettings,
    case: Candidate | None = None,
    wanted: Names = (),
    keep: Callable[[Case], str] | None = None,
) -> Mapping[Names, Candidate]:
    """Find the fewest switches that fix the whole model, and put them into the result.

    Args:
        session: The model, which fails.
        check: Its check.
        case: A minimal case, which is searched first, because it is quicker. If no answer fixes the
            whole model, that is searched too, unless each probe is a build.
        wanted: The switches of the compiler that the user asks for; no others are searched then.
        keep: Writes a larger case, if the minimal one shows another mechanism; returns its folder.

    Returns:
        The whole model with the switches of each answer that fixes it, by their names.

    Raises:
        UsageError: The target has no switches.
        BudgetSpent: No more probes may be made.
    """
    target = check.runtime
    original = session.subject.original
    result = session.result
    result.cause = []
    result.cause_detail = None
    costly = case is not None and target.target.compiles
    for base in filter(None, (case, None if costly else original)):
        panel = make_panel(session, check, base, case=base is case, wanted=wanted)
        if case is not None:  # precision has a step of its own
            panel = structs.replace(
                panel, switches=[switch for switch in panel.switches if switch.kind != "precision"]
            )
        most = _MOST_COSTLY if costly else None
        session.console.progress.expect(len(panel.switches), most)
        sized = check.limits is not None and not check.limits.others
        engines = Engines(session, panel, asked=bool(wanted), sized=sized)
        counted = engines.fusions()
        found = search_switches(session, engines, most)
        if found is None:
            session.console.say(
                f"  not found in {_MOST_COSTLY} builds; `{session.command('cause', check)}` searches further"
            )
            return {}
        whole_panel = structs.replace(panel, base=original, target=target)
        small = None if case is None or costly else structs.replace(panel, base=case)
        detail = _confirm(session, engines, whole_panel, found, small)
        detail = structs.replace(detail, alternatives=(*detail.alternatives, *counted))
        passing = any(entry.whole for entry in detail.alternatives)
        # The message of a refusal or a crash shows which mechanism it is; a wrong value does not.
        if passing and base is case and not costly and not session.prober.ledger.is_broken:
            more = _fixing_only_whole(session, whole_panel, case, found)
            detail = structs.replace(detail, alternatives=(*detail.alternatives, *more))
        if detail.alternatives or not result.cause_detail:
            result.cause_detail = detail
        if passing:
            break
    assert result.cause_detail, "the original is searched, or the case"
    if keep is not None and case is not None:
        result.cause_detail = _with_larger(session, whole_panel, result.cause_detail, case, keep)
    whole = [entry for entry in result.cause_detail.alternatives if entry.whole]
    result.cause = [entry.switches for entry in whole or result.cause_detail.alternatives]
    fixed = {entry.switches: whole_panel.candidate(whole_panel.units(entry)) for entry in whole}
    if costly:
        session.console.say(
            f"  `{session.command('cause', check)}` searches the whole model, for all alternatives"
        )
    return fixed


def make_counters(session: Session, check: CheckSettings, wanted: Names) -> Panel:
    """Return the switches of some counters of the compiler, for the whole model.

    Args:
        session: The model's session.
        check: Its check.
        wanted: The counters, each with its range.

    Raises:
        UsageError: One of them is no counter.
    """
    panel = make_panel(session, check, session.subject.original, case=False, wanted=wanted)
    if len(panel.of(Tier.STEP)) < len(panel.switches):
        raise ConflictError(
            "--compiler-switch: `repeat` takes counters, NAME=LOW..HIGH; `cause` searches other options."
        )
    return panel


def explain_fusions(session: Session, panel: Panel, runs: int) -> str | None:
    """Find the fusion without which no build fails, and put it into the result.

    Args:
        session: The model, of which some builds fail.
        panel: The counters of the compiler; see :func:`make_counters`.
        runs: The number of builds of which one fails, if some do.

    Returns:
        Why none is found.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    engines = Engines(session, panel, asked=True, runs=runs)
    fusions = tuple(engines.fusions())
    title = panel.target.target.title
    doubts = tuple(engines.doubts())
    count = len(panel.switches)
    detail = CauseDetail(title, "whole model", count, count, fusions, complete=True, doubted=doubts)
    session.result.cause_detail = detail
    return None if fusions else why_no_cause(detail)


def _with_larger(
    session: Session,
    whole: Panel,
    detail: CauseDetail,
    case: Candidate,
    keep: Callable[[Case], str],
) -> CauseDetail:
    """Return the answers, the first with the folder of a larger case that it fixes, where no answer fixes the minimal case."""
    fixing = [entry for entry in detail.alternatives if entry.whole]
    if not fixing or any(entry.case is not False for entry in fixing):
        return detail
    session.console.step("Search a larger case that shows the mechanism of the whole model")
    larger = larger_case(session, whole, whole.units(fixing[0]), case.units)
    if larger is None:
        return detail
    entry = structs.replace(fixing[0], larger=keep(larger))
    alternatives = (
        alternative for alternative in detail.alternatives if alternative is not fixing[0]
    )
    return structs.replace(detail, alternatives=(entry, *alternatives))


def _fixing_only_whole(
    session: Session, whole: Panel, case: Candidate, answers: Answers
) -> Sequence[Switches]:
    """Return confirmed alternatives that fix the whole model while its minimal case fails: the case shows another mechanism.

    Args:
        session: The model's session.
        whole: The switches of the minimal case, for the whole model.
        case: The minimal case.
        answers: The alternatives for the case. Switches that are in none of them are changed
            together first.
    """
    unused = frozenset(
        unit for unit, switch in enumerate(whole.switches) if switch.tier is not Tier.WHOLE
    ).difference(*answers.alternatives.found)
    small = structs.replace(whole, base=case)
    probe = session.prober.probe
    if (
        not unused
        or not probe(small.candidate(unused)).fails
        or not probe(whole.candidate(unused)).passes
    ):
        return ()
    unused_panel = structs.replace(
        whole, switches=[whole.switches[unit] for unit in sorted(unused)]
    )
    engines = Engines(session, unused_panel)
    extra_answers = search_switches(session, engines)
    assert extra_answers is not None, "the number of questions is not limited"
    case_panel = structs.replace(unused_panel, base=case)
    return _confirm(session, engines, unused_panel, extra_answers, case_panel).alternatives


def _confirm(
    session: Session, engines: Engines, whole: Panel, answers: Answers, small: Panel | None
) -> CauseDetail:
    """Confirm alternatives on the whole model.

    Args:
        session: The model's session.
        engines: The engines of the switches that were searched, for the model that was searched.
        whole: The same switches for the whole model.
        answers: The alternatives.
        small: The same switches for the minimal case, which is probed too; ``None`` if there is none.

    Returns:
        The field ``cause_detail``, the fewest switches first.
    """
    prober = session.prober
    panel = engines.panel
    entries = list[Switches]()
    doubts = engines.doubts()
    same_base = whole.base is panel.base
    alternatives = answers.alternatives
    for units in alternatives.found:
        passes = same_base or prober.probe(whole.candidate(units)).passes
        on = whole if passes else panel
        names = panel.names(units)
        failures = answers.failures if on.base is panel.base else 0
        believed = reconfirm(
            prober,
            on.candidate(frozenset()),
            on.candidate(units),
            len(alternatives.found),
            failures,
        )
        if not believed.passes:
            doubts.append(f"{' and '.join(names)}: {describe_confirmation(believed)}")
            continue
        case_passes = None if small is None else prober.probe(small.candidate(units)).passes
        inner = any(panel.switches[unit].tier is Tier.COMPILER for unit in units)
        layers = engines.changed(frozenset(), units) if inner else None
        evidence = describe_confirmation(believed)
        entries.append(whole.entry(units, evidence, layers, whole=passes, case=case_passes))
    entries.sort(key=lambda entry: (not entry.whole, len(entry.switches)))
    return CauseDetail(
        target=panel.target.target.title,
        on="whole model" if same_base else CASE_CONFIRMED,
        switches=sum(switch.tier is not Tier.STEP for switch in panel.switches),
        tried=answers.tried,
        alternatives=tuple(entries),
        complete=alternatives.complete,
        doubted=tuple(doubts),
    )


def name_cause(
    session: Session,
    check: CheckSettings,
    case: Candidate | None = None,
    keep: Callable[[Case], str] | None = None,
) -> Mapping[Names, Candidate]:
    """Search the cause as a step of a diagnosis, first for the minimal case; an error is printed and does not end it.

    Args:
        session: The model with its prober.
        check: The check of the diagnosis.
        case: The minimal case; ``None`` to search on the whole model.
        keep: Writes a larger case that shows a cause, and returns its path.
    """
    session.console.step("Search the cause in the target")
    try:
        return explain(session, check, case, keep=keep)
    except BudgetSpent as error:
        session.console.say(f"  {error} To continue: {session.command('cause', check)}")
    except BisectError as error:
        session.console.say(f"  unknown: {error}")
    return {}


def larger_case(
    session: Session, panel: Panel, switches: Subset, units: Iterable[int]
) -> Case | None:
    """Return a part of the model that holds the minimal case, fails, and passes with some switches.

    The case grows by the nearest nodes first. It is at most an eighth larger than needed, if larger
    parts behave as the whole model does.

    Args:
        session: The model's session.
        panel: The switches of the target.
        switches: Those that fix the whole model; indices into the panel.
        units: The units of the minimal case, which still fails with them.

    Returns:
        ``None`` where only the whole model does.
    """
    subject = session.subject
    probe = session.prober.probe
    case = frozenset(units)
    neighbours = _nearest_first(subject.network, case)

    def shows(prefix: Sequence[int]) -> bool:
        part = subject.cut(case.union(prefix))
        fixed = structs.replace(panel, base=part).candidate(switches)
        return probe(part).verdict is Verdict.FAIL and probe(fixed).verdict is Verdict.PASS

    count = shortest_prefix(neighbours, shows)
    if count is None or count == len(neighbours):
        return None
    return Case(Minimum(case.union(neighbours[:count]), proven=False))


def _nearest_first(network: Network, case: Subset) -> list[int]:
    """Return the other units by their distance from the case, in edges of either direction."""
    neighbours = defaultdict[int, set[int]](set)
    for index in network.order:
        for parent in network.parents(index):
            unit = network.rank[index]
            neighbours[unit].add(network.rank[parent])
            neighbours[network.rank[parent]].add(unit)
    ordered = sorted(case)
    # The list grows while it is read.
    for unit in ordered:
        visited = {*ordered}
        ordered += sorted(neighbours[unit] - visited)
    remaining = {*range(len(network.order))}.difference(ordered)
    return [*ordered[len(case) :], *sorted(remaining)]
