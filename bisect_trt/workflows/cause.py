"""Which pass, option or tactic of the target does it: the fewest switches that, turned, make a model pass."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from bisect_trt.errors import BisectError, UsageError
from bisect_trt.graph.network import bodies
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.protocol import Compare, Failed, Sample, Trace
from bisect_trt.probing.workers.process import run_to_end
from bisect_trt.reporting.issue import Cause as Told
from bisect_trt.reporting.result import Result
from bisect_trt.search.alternatives import Alternatives, find_alternatives
from bisect_trt.search.oracle import Ask, Enough, Limited, Subset, Verdict, over_units
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Switch, Tier
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.info import is_extension
from bisect_trt.workflows.blame import named_nodes
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.settings import CheckSettings, SearchSettings

_TOOLS = ("polygraphy", "trtexec")
_MOST_SECONDS = 300.0
"""What the lines of an answer may take to open and run the model."""
_FEW_NAMES = 2
_NOT_ITS = {"precision": "rounding by itself makes this error", "reference": "the reference is wrong"}
"""Whose fault a failure may be that no switch of the target mends."""
_PLURALS = {"property": "properties"}
_MOST, _MOST_COSTLY = 24, 8
"""What it may cost as a step of a diagnosis; the command that goes on is said."""


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


def find_cause(investigation: Investigation, check: CheckSettings, search: SearchSettings) -> Result:
    """The command: which switches make the whole model pass?

    Raises:
        DoesNotReproduce: The model passes.
        UsageError: The target has no switches, or the check cannot be told of them.
        BudgetSpent: No more probes may be made.
    """
    subject, console, result = investigation.subject, investigation.console, investigation.result
    target = check.target
    assert target is not None, "the options ask for one"
    result.extra |= {"cause": [], "cause_detail": None}
    console.step(f"1. Does it fail as it is set up ({len(subject.network.nodes)} nodes)?")
    record = investigation.probe_original(search)
    console.say(f"  yes: {record.reason}")
    panel = make_panel(investigation, target, subject.original, suspected_operators(investigation))
    console.step(f"2. Which of its switches make it pass? {_count(panel)}")
    found = search_switches(investigation, panel)
    assert found is not None, "nothing limits it"
    _deliver(investigation, check, panel, found, ran=not check.argv)
    return result


def name_cause(investigation: Investigation, check: CheckSettings, case: Candidate, whose: str) -> list[Told]:
    """A step of a diagnosis: the same about the minimal case, then confirmed on the whole model.

    What stands in its way is said, and is no reason to fail: the failure itself was found before.

    Args:
        investigation: Found the minimal case.
        check: Its check.
        case: The minimal case.
        whose: Whose fault it is; see ``Fault``. Where it is not the target's, nothing of it is turned.

    Returns:
        What it comes to, for a bug report; none if there is nothing to say.
    """
    console, target = investigation.console, check.target
    assert target is not None, "a diagnosis has one"
    console.step("Which pass, option or tactic of the target does it?")
    investigation.result.extra |= {"cause": [], "cause_detail": None}
    if whose in _NOT_ITS:
        console.say(f"  not asked: {_NOT_ITS[whose]}")
        return []
    try:
        held = replace(case.target or target, keep=case.keep or target.keep, held=case.held or target.held)
        operators = frozenset(node.op_type for node in _nodes(case.proto))
        panel = make_panel(investigation, held, replace(case, title="the minimal case"), operators)
        # Whether it is precision is a step of its own.
        panel = replace(panel, switches=[each for each in panel.switches if each.kind != "precision"])
        console.say(f"  {_count(panel)}")
        found = search_switches(investigation, panel, _MOST_COSTLY if target.target.capabilities.costly else _MOST)
        if found is None:
            console.say(f"  not found in so many probes; {_command(investigation, check)} goes on")
            return []
        whole = replace(panel, base=investigation.subject.original, target=target)
        return _deliver(investigation, check, panel, found, whole=whole)
    except BudgetSpent as error:
        console.say(f"  {error} {_command(investigation, check)} does it.")
    except BisectError as error:
        console.say(f"  not known: {error}")
    return []


def make_panel(
    investigation: Investigation, target: TargetSettings, base: Candidate, suspects: frozenset[str]
) -> Panel:
    """The switches that there are for a model.

    Args:
        investigation: Whose model it is.
        target: How the target is set up.
        base: The model.
        suspects: Operators that something speaks against.

    Raises:
        UsageError: The target has no switches.
    """
    models, subject = investigation.subject.models, investigation.subject
    feed = models.feed("trace.in", subject.values(base, base.inputs))
    reply = models.ask(Trace(target, models.write("trace", base.proto), feed))
    trace = None if isinstance(reply, Failed) else reply.found
    operators = frozenset(node.op_type for node in _nodes(base.proto))
    switches = target.target.switches(target, Looked(trace, operators, suspects))
    if not switches:
        raise UsageError(f"{target.target.title} has nothing that can be turned, as it is set up.")
    return Panel(switches, base, target)


def suspected_operators(investigation: Investigation) -> frozenset[str]:
    """The operators of the nodes that the failure's message speaks of, and of those around them."""
    network, ledger = investigation.subject.network, investigation.prober.ledger
    outcome = ledger.outcome(investigation.subject.original.key)
    if outcome is None or not ledger.is_broken:
        return frozenset()
    named = set(named_nodes(network, outcome.reason)[:1])
    readers = {index for index in network.order if named.intersection(network.parents(index))}
    around = named | readers | {parent for index in readers for parent in network.parents(index)}
    return frozenset(network.nodes[index].op_type for index in around)


def search_switches(investigation: Investigation, panel: Panel, most: int | None = None) -> Found | None:
    """Find the fewest switches that make the model pass, and what else does.

    What is done to the model one by one comes first, then options, then both together; what turns a whole kind at once
    is an answer only where nothing less is.

    Args:
        investigation: Whose model it is.
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

    return investigation.prober.search(
        over_units(Verdict.PASS, limited), panel.candidate, investigation.subject.original
    )


def _deliver(
    investigation: Investigation,
    check: CheckSettings,
    panel: Panel,
    found: Found,
    *,
    whole: Panel | None = None,
    ran: bool = True,
) -> list[Told]:
    """Say what was found, cheapest first, in the result too; each set of settings is run as it is said.

    Args:
        investigation: Whose failure it is.
        check: Its check.
        panel: The switches, about the model that was searched.
        found: What came of it.
        whole: The same about the whole model, if that is another.
        ran: Whether the target is what says good or bad, so that its latency can be measured.
    """
    console, result, about = investigation.console, investigation.result, whole or panel
    entries = []
    failing_ms = _latency(investigation, check, about, frozenset()) if ran else None
    for units in found.alternatives:
        passes = whole is None or investigation.prober.probe(whole.candidate(units)).verdict is Verdict.PASS
        latency = _latency(investigation, check, about, units) if passes and ran else None
        entries.append(_entry(investigation, check, about, units, latency, passes=passes))
    entries.sort(key=lambda each: (not each["whole"], len(each["switches"]), each["latency_ms"] or 0.0))
    confirmed = [entry for entry in entries if entry["whole"]]
    title = panel.target.target.title
    detail = {
        "target": title,
        "on": "whole model" if whole is None else "minimal case, confirmed on the whole model",
        "switches": len(panel.switches),
        "failing_ms": failing_ms,
        "alternatives": entries,
        "also": panel.names(found.also),
        "complete": found.complete,
    }
    result.extra |= {"cause": [entry["switches"] for entry in confirmed or entries], "cause_detail": detail}
    if whole is None:
        result.status = "found" if entries else "inconclusive"
        result.minimality = "1-minimal" if entries else "unproven"
    sentences = [describe_alternative(entry, failing_ms) for entry in entries]
    if not entries:
        why = f"none of the {len(panel.switches)} switches of {title} makes it pass, nor do those of a kind together"
        if whole is None:
            result.why = why
            console.answer(f"No cause among the switches: {why}.")
        else:
            console.say(f"  {why}")
        return [(f"{why[0].upper()}{why[1:]}.", ())]
    head = "either of these" if len(entries) == 2 else "any of these" if len(entries) > 1 else ""
    for number, (entry, sentence) in enumerate(zip(entries, sentences, strict=True)):
        lead = f"What does it ({head}): " if head and not number else "Or: " if number else "What does it: "
        console.answer(lead + sentence)
        for line in entry["code"] or ():
            console.answer(f"  {line}")
        if entry["code"] and entry["code_ran"] is not True:
            console.answer(f"  (these lines {entry['code_ran']})")
        console.answer(f"  as options: {shlex.join(entry['options'])}")
    if found.also:
        console.answer(f"  {', '.join(panel.names(found.also))}: with that turned it passes too.")
    if not found.complete:
        console.answer("  There are more: these are the first that were found.")
    return [(sentence, entry["code"] or ()) for entry, sentence in zip(entries, sentences, strict=True)]


def describe_alternative(entry: dict[str, Any], failing_ms: float | None) -> str:
    """One of the answers, in a sentence."""
    names = " and ".join(entry["switches"])
    ms = entry["latency_ms"]
    cost = (
        "" if ms is None else f" ({ms:.3g} ms" + ("" if failing_ms is None else f"; failing {failing_ms:.3g} ms") + ")"
    )
    where = "it passes" if entry["whole"] else "the minimal case passes, the whole model does not"
    return f"{names}: with {'that' if len(entry['switches']) == 1 else 'these'} turned, {where}{cost}."


def _entry(
    investigation: Investigation,
    check: CheckSettings,
    panel: Panel,
    units: Subset,
    latency: float | None,
    *,
    passes: bool,
) -> dict[str, Any]:
    """One of the answers, as the result has it."""
    settings = panel.turned(units)
    snippet = settings.target.snippet(settings)
    model = Minimal(str(investigation.subject.settings.path))
    said: dict[str, list[str] | None] = {}
    for tool in _TOOLS:
        words = settings.target.said_to(tool, settings, model)
        said[tool] = None if words is None or isinstance(words, NotReproducible) else words
    return {
        "switches": panel.names(units),
        "latency_ms": latency,
        "whole": passes,
        "code": None if snippet is None else list(snippet.lines),
        "code_ran": None if snippet is None else _run_lines(investigation, check, panel, settings, snippet.script),
        "options": [*settings.flags(), *_places(investigation)],
        **said,
    }


def _run_lines(
    investigation: Investigation, check: CheckSettings, panel: Panel, settings: TargetSettings, script: str | None
) -> bool | str:
    """Run the lines as whoever pastes them does; ``True`` if they give what the reference gives, else what came of it."""
    subject, base = investigation.subject, panel.base
    python = _interpreter(investigation, settings)
    if script is None or python is None:
        return "were not run here"
    fed = [subject.values(base, [name])[name] for name in base.inputs]
    if any(is_extension(value.dtype) for value in fed):
        return "were not run here: NumPy has no such types"
    models, scratch = subject.models, subject.workspace.scratch
    model, inputs, made = models.write("lines", base.proto), scratch("lines.in.npz"), scratch("lines.out.npz")
    ran = models.lowered(model, settings)
    if isinstance(ran, Failed):
        return "were not run here: the model cannot be lowered"
    if ran is not None:
        model = models.write("lines-lowered", ran)
    np.savez(inputs, *fed)
    program, log = scratch("lines.py"), scratch("lines.log")
    program.write_text(script, encoding="utf-8")
    words = [python, *map(str, (program, model, inputs, made))]
    end = run_to_end(words, log=log, environment={}, timeout=_MOST_SECONDS)
    if end.code != 0 or end.timed_out:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"were run here and end with {end.describe()}{': ' if last else ''}{''.join(last)}"
    names = [output.name for output in base.proto.graph.output]
    with np.load(made) as outputs:
        values = {name: outputs[f"arr_{place}"] for place, name in enumerate(names)}
    comparisons = compare_all(subject.values(base, base.outputs), values, check.tolerance)
    return True if all(each.passed for each in comparisons) else "were run here, and do not make it pass"


def _places(investigation: Investigation) -> list[str]:
    """Where the target runs, as options."""
    return [word for place in investigation.subject.workers.places for word in ("--on", place.said)]


def _interpreter(investigation: Investigation, settings: TargetSettings) -> str | None:
    """The Python that the target runs in; ``None`` if that is not on this machine."""
    places = () if settings.target.stays else investigation.subject.workers.places
    if not places:
        return sys.executable
    return places[0].argv[0] if places[0].local else None


def _latency(investigation: Investigation, check: CheckSettings, panel: Panel, units: Subset) -> float | None:
    """Milliseconds that one run takes; what the probe measured, if it did, else a few runs now."""
    subject, candidate = investigation.subject, panel.candidate(units)
    outcome = investigation.prober.ledger.outcome(candidate.key)
    if outcome is not None and outcome.latency_ms is not None:
        return outcome.latency_ms
    models, base = subject.models, panel.base
    model = models.write("timed", base.proto)
    inputs = models.feed("timed.in", subject.values(base, base.inputs))
    golden = models.feed("timed.golden", subject.values(base, base.outputs))
    target = replace(candidate.target or panel.target, held=candidate.held)
    reply = models.ask(Compare(target, model, (Sample(inputs, golden),), check.tolerance, warm_up=1), check.timeout)
    return None if isinstance(reply, Failed) or reply.latency_ms is None else round(reply.latency_ms, 4)


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


def _command(investigation: Investigation, check: CheckSettings) -> str:
    """The command that does the same about the whole model."""
    assert check.target is not None
    settings = investigation.subject.settings
    words = [
        "bisect-trt",
        "cause",
        str(settings.path),
        *check.target.flags(),
        *_places(investigation),
        *settings.words(),
    ]
    return f"`{shlex.join([*words, *check.tolerance.words()])}`"


def _nodes(proto: ModelProto) -> Iterable[NodeProto]:
    """All nodes of a model, in bodies and functions too."""
    pending = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while pending:
        node = pending.pop()
        yield node
        pending += [inner for body in bodies(node) for inner in body.node]
