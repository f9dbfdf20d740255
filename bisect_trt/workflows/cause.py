"""Which pass, option or tactic of the target does it: the fewest switches that, turned, make a model pass."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from bisect_trt.errors import BisectError
from bisect_trt.graph.halves import lows_of
from bisect_trt.graph.nodes import all_nodes
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.luck import Believed, look_again
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.probing.workers.process import run_to_end
from bisect_trt.reporting.issue import Cause as Told
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Tier
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.info import is_extension
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.switched import Found, Panel, make_panel, search_switches, suspected_operators

_TOOLS = ("polygraphy", "trtexec")
_MOST_SECONDS = 300.0
"""What the lines of an answer may take to open and run the model."""
_NOT_ITS = {
    "precision": "rounding by itself makes this error",
    "reference": "the reference is wrong",
    "random": "a node draws random numbers",
}
"""Whose fault a failure may be that no switch of the target mends."""
_PLURALS = {"property": "properties"}
_MOST, _MOST_COSTLY = 24, 8
"""What it may cost as a step of a diagnosis; the command that goes on is said."""


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
        operators = frozenset(node.op_type for node in all_nodes(case.proto))
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
    entries: list[dict[str, Any]] = []
    doubts: list[str] = []

    def again(some: Panel, units: Subset) -> Believed:
        """Whether it is no luck that it passes with some of them turned."""
        ways = len(found.alternatives) + len(found.also)
        return look_again(investigation.prober, some.candidate(frozenset()), some.candidate(units), ways)

    failing_ms = _latency(investigation, check, about, frozenset()) if ran else None
    for units in found.alternatives:
        passes = whole is None or investigation.prober.probe(whole.candidate(units)).verdict is Verdict.PASS
        believed = again(about if passes else panel, units)
        if not believed.passes:
            doubts.append(f"{' and '.join(panel.names(units))}: {believed.record.reason}")
            continue
        latency = _latency(investigation, check, about, units) if passes and ran else None
        entries.append(_entry(investigation, check, about, units, latency, passes=passes, seen=believed.seen))
    also = tuple(unit for unit in found.also if not doubts and again(panel, frozenset({unit})).passes)
    entries.sort(key=lambda each: (not each["whole"], len(each["switches"]), each["latency_ms"] or 0.0))
    confirmed = [entry for entry in entries if entry["whole"]]
    title = panel.target.target.title
    detail = {
        "target": title,
        "on": "whole model" if whole is None else "minimal case, confirmed on the whole model",
        "switches": len(panel.switches),
        "failing_ms": failing_ms,
        "alternatives": entries,
        "also": panel.names(also),
        "complete": found.complete,
        "doubted": doubts,
    }
    result.extra |= {"cause": [entry["switches"] for entry in confirmed or entries], "cause_detail": detail}
    if whole is None:
        result.status = "found" if entries else "inconclusive"
        result.minimality = "1-minimal" if entries else "unproven"
    sentences = [describe_alternative(entry, failing_ms) for entry in entries]
    if not entries:
        why = f"none of the {len(panel.switches)} switches of {title} makes it pass, nor do those of a kind together"
        why = "; ".join(doubts) or why
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
        _tell_lines(investigation, entry)
        console.answer(f"  as options: {shlex.join(entry['options'])}")
    if also:
        console.answer(f"  {', '.join(panel.names(also))}: with {panel.said(also)} it passes too.")
    if not found.complete:
        console.answer("  There are more: these are the first that were found.")
    return [(sentence, entry["code"] or ()) for entry, sentence in zip(entries, sentences, strict=True)]


def _tell_lines(investigation: Investigation, entry: dict[str, Any]) -> None:
    """The lines to paste, and what has to be known of them."""
    console, lower = investigation.console, investigation.subject.lower_ir
    for line in entry["code"] or ():
        console.answer(f"  {line}")
    if entry["code"] and entry["code_ran"] is not True:
        console.answer(f"  (these lines {entry['code_ran']})")
    if entry["code"] and lower:
        console.answer(f"  ({lower})")


def describe_alternative(entry: dict[str, Any], failing_ms: float | None) -> str:
    """One of the answers, in a sentence."""
    names = " and ".join(entry["switches"])
    ms = entry["latency_ms"]
    times = [] if ms is None else [f"{ms:.3g} ms", *([] if failing_ms is None else [f"failing {failing_ms:.3g} ms"])]
    seen = "; ".join([*times, *filter(None, [entry["seen"]])])
    where = "it passes" if entry["whole"] else "the minimal case passes, the whole model does not"
    return f"{names}: with {entry['turned']}, {where}{f' ({seen})' if seen else ''}."


def _entry(
    investigation: Investigation,
    check: CheckSettings,
    panel: Panel,
    units: Subset,
    latency: float | None,
    *,
    passes: bool,
    seen: str,
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
        "turned": panel.said(units),
        "latency_ms": latency,
        "whole": passes,
        "seen": seen,
        "code": None if snippet is None else list(snippet.lines),
        "code_ran": None if snippet is None else _run_lines(investigation, check, panel, settings, snippet.script),
        "options": [*settings.flags(), *investigation.place_words],
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
    comparisons = compare_all(
        subject.values(base, base.outputs), values, check.tolerance, lows=lows_of(base.proto.graph)
    )
    return True if all(each.passed for each in comparisons) else "were run here, and do not make it pass"


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
        *investigation.place_words,
        *settings.words(),
    ]
    return f"`{shlex.join([*words, *check.tolerance.words()])}`"
