"""``cause``: which pass, option or tactic of the target does it: the fewest switches that, turned, make a model pass.

The space is the switches of the target about one model, the strategy every minimal set that is enough to pass.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bisect_trt.commands.blame import named_nodes
from bisect_trt.commands.call import Call
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings, SearchSettings
from bisect_trt.commands.space import Space
from bisect_trt.errors import BisectError, UsageError
from bisect_trt.onnxlib.nodes import all_nodes
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.prober import Confirmation, reconfirm
from bisect_trt.report.reproducer import Cause as IssueCause
from bisect_trt.report.result import Result
from bisect_trt.search.alternatives import Alternatives, find_alternatives
from bisect_trt.search.oracle import Ask, Enough, Limited, Subset, Verdict
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Switch, Tier
from bisect_trt.worker.protocol import Compare, Failed, Sample, Trace

_TOOLS = ("polygraphy", "trtexec")
_NOT_ITS = {
    "precision": "rounding by itself makes this error",
    "reference": "the reference is wrong",
    "random": "a node draws random numbers",
}
"""The faults of a failure that no switch of the target mends."""
_PLURALS = {"property": "properties"}
_MOST, _MOST_COSTLY = 24, 8
"""The most questions as a step of a diagnosis; the command that goes on is said."""
_FEW_NAMES = 2


@dataclass(frozen=True)
class Panel:
    """The switches of a target, about one model.

    Attributes:
        switches: The switches; a search's units are their places.
        base: The model, with its target set up as it fails.
        target: How that is.
    """

    switches: Sequence[Switch]
    base: Candidate
    target: TargetSettings

    def of(self, *tiers: Tier) -> list[int]:
        """The units of some tiers."""
        return [unit for unit, switch in enumerate(self.switches) if switch.tier in tiers]

    def names(self, units: Iterable[int]) -> list[str]:
        """What some of them are called."""
        return [self.switches[unit].name for unit in sorted(units)]

    def said(self, units: Iterable[int]) -> str:
        """What is done to some of them: ``that turned off``, ``these turned off, set to 0``."""
        ways = dict.fromkeys(self.switches[unit].said for unit in sorted(units))
        return f"{'that' if len(set(units)) == 1 else 'these'} {', '.join(ways)}"

    def turned(self, units: Subset) -> TargetSettings:
        """The target with some of them turned."""
        settings = self.target
        for unit in sorted(units):
            settings = self.switches[unit].turn(settings)
        return settings

    def candidate(self, units: Subset) -> Candidate:
        """The model on that."""
        settings, names = self.turned(units), self.names(units)
        some = f"{len(names)} of {len(self.switches)} switches" if len(names) > _FEW_NAMES else " and ".join(names)
        held = self.base.held and (settings.fp16 or settings.bf16)
        keep = self.base.keep if held or not self.base.held else None
        title = f"{self.base.title}, with {some} turned" if names else self.base.title
        return replace(self.base, title=title, target=settings, held=held, keep=keep)


@dataclass(frozen=True)
class Found:
    """What a search over switches ends with.

    Attributes:
        alternatives: Sets of them, each enough to pass and 1-minimal.
        also: Single ones that turn a whole kind at once and were seen to pass too.
        complete: Whether no others were seen to pass.
    """

    alternatives: tuple[Subset, ...]
    also: tuple[int, ...]
    complete: bool


def told_of_switches(check: CheckSettings) -> CheckSettings:
    """The check, if it can be told of what is turned: the built-in one, or a command that is given engines.

    Raises:
        UsageError: It cannot.
    """
    assert check.target is not None, "the options ask for one"
    if check.function is None and not check.argv:
        return replace(check, timed=check.target.target.capabilities.timed)
    if check.argv and check.target.target.engines is not None:
        return replace(check, by_layer=True)
    what = "a check command" if check.argv else "a check function"
    raise UsageError(
        f"{what} is given models and cannot be told what of {check.target.target.title} is turned; leave it out, so that the "
        "target is compared with the reference, or name a target that makes engines (--trt): a command is given those."
    )


def make_panel(session: Session, target: TargetSettings, base: Candidate, suspects: frozenset[str]) -> Panel:
    """The switches that there are for a model.

    Raises:
        UsageError: The target has no switches.
    """
    models, subject = session.subject.models, session.subject
    feed = models.feed("trace.in", subject.values(base, base.inputs))
    reply = models.ask(Trace(target, models.write("trace", base.proto), feed))
    trace = None if isinstance(reply, Failed) else reply
    operators = frozenset(node.op_type for node in all_nodes(base.proto))
    switches = target.target.switches(target, Looked(trace, operators, suspects))
    if not switches:
        raise UsageError(f"{target.target.title} has nothing that can be turned, as it is set up.")
    return Panel(switches, base, target)


def suspected_operators(session: Session) -> frozenset[str]:
    """The operators of the nodes that the failure's message speaks of, and of those around them."""
    network, ledger = session.subject.network, session.prober.ledger
    outcome = ledger.outcome(session.subject.original.key)
    if outcome is None or not ledger.is_broken:
        return frozenset()
    named = set(named_nodes(network, outcome.reason)[:1])
    readers = {index for index in network.order if named.intersection(network.parents(index))}
    around = named | readers | {parent for index in readers for parent in network.parents(index)}
    return frozenset(network.nodes[index].op_type for index in around)


def search_switches(session: Session, panel: Panel, most: int | None = None) -> Found | None:
    """Find the fewest switches that make the model pass, and what else does.

    What is done to the model one by one comes first, then options, then both together; what turns a whole kind at once
    is an answer only where nothing less is.

    Args:
        session: Whose model it is.
        panel: The switches.
        most: How many questions may be asked, if that is limited; ``None`` is given back if they are not enough.
    """
    weights = {unit: switch.weight for unit, switch in enumerate(panel.switches)}
    passes, options, spares = panel.of(Tier.PASS), panel.of(Tier.OPTION), panel.of(Tier.SPARE)
    wholes = panel.of(Tier.WHOLE)

    def find(units: Sequence[int], ask: Ask, *, likely: bool) -> Alternatives:
        return find_alternatives(units, ask, weights=weights, likely=likely) if units else Alternatives()

    def story(ask: Ask) -> Found:
        gates = [unit for unit in wholes if panel.switches[unit].covers is not None]
        shut = {panel.switches[unit].covers for unit in gates if ask(frozenset({unit})) is Verdict.FAIL}
        found = Alternatives() if shut else find(passes, ask, likely=bool(gates))
        if not shut and not found.found and spares:
            found = find([*passes, *spares], ask, likely=False)
        more = find(options, ask, likely=False)
        if not (found.found or more.found) and passes and options:
            more = find([*passes, *options], ask, likely=False)
        alternatives, complete = (*found.found, *more.found), found.complete and more.complete
        rest = [unit for unit in wholes if panel.switches[unit].within not in shut]
        asked = gates if alternatives else rest
        also = tuple(unit for unit in asked if ask(frozenset({unit})) is Verdict.PASS)
        if alternatives:
            return Found(alternatives, also, complete)
        return Found(tuple(frozenset({unit}) for unit in also), (), complete)

    def limited(ask: Ask) -> Found | None:
        try:
            return story(Limited(ask, frozenset(weights), most))
        except Enough:
            return None

    return Space(panel.candidate, session.subject.original).search(session.prober, limited)


def find_cause(session: Session, check: CheckSettings, search: SearchSettings) -> Result:
    """The command: which switches make the whole model pass?

    Raises:
        DoesNotReproduce: The model passes.
        UsageError: The target has no switches, or the check cannot be told of them.
        BudgetSpent: No more probes may be made.
    """
    subject, console, result = session.subject, session.console, session.result
    target = check.target
    assert target is not None, "the options ask for one"
    result.extra |= {"cause": [], "cause_detail": None}
    console.step(f"1. Does it fail as it is set up ({len(subject.network.nodes)} nodes)?")
    record = session.probe_original(search)
    console.say(f"  yes: {record.reason}")
    panel = make_panel(session, target, subject.original, suspected_operators(session))
    console.step(f"2. Which of its switches make it pass? {_count(panel)}")
    found = search_switches(session, panel)
    assert found is not None, "nothing limits it"
    _deliver(_Answer(session, check, panel, panel), found)
    return result


def name_cause(session: Session, check: CheckSettings, case: Candidate, whose: str) -> list[IssueCause]:
    """A step of a diagnosis: the same about the minimal case, then confirmed on the whole model.

    An error is said, and does not end the diagnosis: the failure itself was found before.

    Args:
        session: Found the minimal case.
        check: Its check.
        case: The minimal case.
        whose: The fault; see ``Fault``. Where it is not the target's, nothing of it is turned.

    Returns:
        The causes for a bug report; none if there is nothing to say.
    """
    console, target = session.console, check.target
    assert target is not None, "a diagnosis has one"
    console.step("Which pass, option or tactic of the target does it?")
    session.result.extra |= {"cause": [], "cause_detail": None}
    if whose in _NOT_ITS:
        console.say(f"  not asked: {_NOT_ITS[whose]}")
        return []
    try:
        held = replace(case.target or target, keep=case.keep or target.keep, held=case.held or target.held)
        operators = frozenset(node.op_type for node in all_nodes(case.proto))
        panel = make_panel(session, held, replace(case, title="the minimal case"), operators)
        # Whether it is precision is a step of its own.
        panel = replace(panel, switches=[each for each in panel.switches if each.kind != "precision"])
        console.say(f"  {_count(panel)}")
        found = search_switches(session, panel, _MOST_COSTLY if target.target.capabilities.costly else _MOST)
        if found is None:
            console.say(f"  not found in so many probes; {_command(session, check)} goes on")
            return []
        whole = replace(panel, base=session.subject.original, target=target)
        return _deliver(_Answer(session, check, panel, whole), found)
    except BudgetSpent as error:
        console.say(f"  {error} {_command(session, check)} does it.")
    except BisectError as error:
        console.say(f"  not known: {error}")
    return []


@dataclass(frozen=True)
class _Answer:
    """Says switches that make a model pass.

    Attributes:
        session: The failure.
        check: Its check.
        panel: The switches, about the model that was searched.
        whole: The same about the whole model.
    """

    session: Session
    check: CheckSettings
    panel: Panel
    whole: Panel

    def passes_again(self, panel: Panel, units: Subset, ways: int) -> Confirmation:
        """Confirm that a model passes with some switches turned."""
        return reconfirm(self.session.prober, panel.candidate(frozenset()), panel.candidate(units), ways)

    def passes_whole(self, units: Subset) -> bool:
        """Whether the whole model passes too."""
        if self.whole is self.panel:
            return True
        return self.session.prober.probe(self.whole.candidate(units)).verdict is Verdict.PASS

    def latency(self, units: Subset) -> float | None:
        """Milliseconds of one run of the whole model: as its probe measured it, else by a few runs now."""
        if self.check.argv:
            return None
        subject, candidate = self.session.subject, self.whole.candidate(units)
        outcome = self.session.prober.ledger.outcome(candidate.key)
        if outcome is not None and outcome.latency_ms is not None:
            return outcome.latency_ms
        models, base = subject.models, self.whole.base
        inputs, golden = subject.values(base, base.inputs), subject.values(base, base.outputs)
        sample = Sample(models.feed("timed.in", inputs), models.feed("timed.golden", golden))
        target = replace(candidate.target or self.whole.target, held=candidate.held)
        request = Compare(target, models.write("timed", base.proto), (sample,), self.check.tolerance, warm_up=1)
        reply = models.ask(request, self.check.timeout)
        return None if isinstance(reply, Failed) or reply.latency_ms is None else round(reply.latency_ms, 4)

    def entry(self, units: Subset, *, passes: bool, seen: str) -> dict[str, Any]:
        """One of the answers, as the result has it."""
        settings = self.whole.turned(units)
        lines = settings.target.snippet(settings)
        model = Minimal(str(self.session.subject.settings.path))
        said: dict[str, list[str] | None] = {}
        for tool in _TOOLS:
            words = settings.target.said_to(tool, settings, model)
            said[tool] = None if words is None or isinstance(words, NotReproducible) else words
        return {
            "switches": self.panel.names(units),
            "turned": self.panel.said(units),
            "latency_ms": self.latency(units) if passes else None,
            "whole": passes,
            "seen": seen,
            "code": None if lines is None else list(lines),
            "options": [*settings.flags(), *self.session.place_words],
            **said,
        }

    def tell(self, entry: dict[str, Any], lead: str, failing_ms: float | None) -> str:
        """Say one of the answers with its lines to paste; returns it as a sentence."""
        console, lower = self.session.console, self.session.subject.lower_ir
        sentence = describe_alternative(entry, failing_ms)
        console.answer(lead + sentence)
        for line in entry["code"] or ():
            console.answer(f"  {line}")
        if entry["code"] and lower:
            console.answer(f"  ({lower})")
        console.answer(f"  as options: {shlex.join(entry['options'])}")
        return sentence


def _deliver(answer: _Answer, found: Found) -> list[IssueCause]:
    """Confirm what was found, and say it, cheapest first."""
    console, result, panel = answer.session.console, answer.session.result, answer.panel
    alone = answer.whole is panel
    entries: list[dict[str, Any]] = []
    doubts: list[str] = []
    ways = len(found.alternatives) + len(found.also)
    for units in found.alternatives:
        passes = answer.passes_whole(units)
        believed = answer.passes_again(answer.whole if passes else panel, units, ways)
        if believed.passes:
            entries.append(answer.entry(units, passes=passes, seen=believed.seen))
        else:
            doubts.append(f"{' and '.join(panel.names(units))}: {believed.record.reason}")
    also = tuple(u for u in found.also if not doubts and answer.passes_again(panel, frozenset({u}), ways).passes)
    entries.sort(key=lambda each: (not each["whole"], len(each["switches"]), each["latency_ms"] or 0.0))
    confirmed = [entry for entry in entries if entry["whole"]]
    failing_ms = answer.latency(frozenset())
    title = panel.target.target.title
    result.extra["cause"] = [entry["switches"] for entry in confirmed or entries]
    result.extra["cause_detail"] = {
        "target": title,
        "on": "whole model" if alone else "minimal case, confirmed on the whole model",
        "switches": len(panel.switches),
        "failing_ms": failing_ms,
        "alternatives": entries,
        "also": panel.names(also),
        "complete": found.complete,
        "doubted": doubts,
    }
    if alone:
        result.status = "found" if entries else "inconclusive"
        result.minimality = "1-minimal" if entries else "unproven"
    if not entries:
        why = f"none of the {len(panel.switches)} switches of {title} makes it pass, nor do those of a kind together"
        why = "; ".join(doubts) or why
        if alone:
            result.why = why
            console.answer(f"No cause among the switches: {why}.")
        else:
            console.say(f"  {why}")
        return [(f"{why[0].upper()}{why[1:]}.", ())]
    many = {1: "", 2: " (either of these)"}.get(len(entries), " (any of these)")
    leads = [f"What does it{many}: ", *["Or: "] * (len(entries) - 1)]
    said = [answer.tell(entry, lead, failing_ms) for entry, lead in zip(entries, leads, strict=True)]
    if also:
        console.answer(f"  {', '.join(panel.names(also))}: with {panel.said(also)} it passes too.")
    if not found.complete:
        console.answer("  There are more: these are the first that were found.")
    return [(sentence, entry["code"] or ()) for entry, sentence in zip(entries, said, strict=True)]


def describe_alternative(entry: dict[str, Any], failing_ms: float | None) -> str:
    """One of the answers, in a sentence."""
    names = " and ".join(entry["switches"])
    ms = entry["latency_ms"]
    times = [] if ms is None else [f"{ms:.3g} ms", *([] if failing_ms is None else [f"failing {failing_ms:.3g} ms"])]
    seen = "; ".join([*times, *filter(None, [entry["seen"]])])
    where = "it passes" if entry["whole"] else "the minimal case passes, the whole model does not"
    return f"{names}: with {entry['turned']}, {where}{f' ({seen})' if seen else ''}."


def _count(panel: Panel) -> str:
    """How many there are of each kind, in words."""
    kinds: dict[str, int] = {}
    for unit in panel.of(Tier.PASS, Tier.OPTION, Tier.WHOLE):
        kinds[panel.switches[unit].kind] = kinds.get(panel.switches[unit].kind, 0) + 1
    said = ", ".join(
        f"{count} {_PLURALS.get(kind, f'{kind}s') if count > 1 else kind}" for kind, count in kinds.items()
    )
    spare = len(panel.of(Tier.SPARE))
    return f"({said}{f'; {spare} more did not touch it' if spare else ''})"


def _command(session: Session, check: CheckSettings) -> str:
    """The command that does the same about the whole model."""
    assert check.target is not None
    settings = session.subject.settings
    words = ["bisect-trt", "cause", str(settings.path), *check.target.flags(), *session.place_words]
    return f"`{shlex.join([*words, *settings.words(), *check.tolerance.words()])}`"


def run(call: Call) -> Result:
    """Find which switches of the target make the model pass.

    Raises:
        UsageError: An option is wrong, or the check cannot be given switches of the target.
        UnavailableError: The target or the reference cannot run the model.
    """
    search = call.search
    check = call.check(call[Target].required(), used=True)
    job = call.open(check)
    check = told_of_switches(check)
    with job.subject(check.timeout) as subject, job.investigated(subject, check, search) as session:
        return find_cause(session, check, search)
