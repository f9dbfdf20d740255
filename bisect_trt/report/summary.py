"""The summary of a result in at most 25 lines, in the order of importance, for the terminal, the report and Python."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bisect_trt.aliases import Names
from bisect_trt.errors import first_few, quoted
from bisect_trt.onnxlib.nodes import Node, in_module
from bisect_trt.probe.outcome import BARE_EXIT, SLOW
from bisect_trt.report.charts import downsample
from bisect_trt.report.outcomes import describe_comparison, describe_details
from bisect_trt.report.parts import (
    FOR_FRESH,
    NEEDED,
    CauseDetail,
    Cost,
    EngineLayer,
    Inside,
    Origin,
    Steps,
    Switches,
    Unit,
    WorkaroundTried,
)
from bisect_trt.report.result import Result
from bisect_trt.report.text import Entry, named, number, plural, seconds, shorten, spans

MOST_LINES = 25
MOST_ROWS = 16
WIDTH = 80
_INDENT = 9
_LINES_OF_A_ROW = 6
_NAMED = 3
_PLAIN = 6
"""Number of nodes that are named one by one, and number where they take few columns; more are grouped by modules."""
_SHOWN = 4
_REASON_LENGTH = 160
_VERBATIM = ("Proof", "Wrote", "Report", "Next")
"""Rows of paths and commands, which are not wrapped, so that they can be copied."""
_WHOLE = ("Cause", "Fix")
"""Rows with continuations that limit them: they are shown together or not at all."""
_QUOTED = re.compile(r"`bisect-trt [^`]*`")
_JOINED = "\0"
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
Row = tuple[str, str]
"""A label and a text; the label is empty where the row continues the one before."""


def summary(result: Result) -> list[Row]:
    """Return the rows of the summary of a result; fewer for a command without a run."""
    without_run = result.artifacts.get("run") is None and not result.comparisons
    if without_run or result.status == "error":
        rows = [*(("", line) for line in _answers(result)), *_ending(result), *_files(result)]
        return [*rows, *(("Next", command) for command in (result.next or ())[:1])]
    rows = [
        *([("Step", describe_steps(result.steps))] if result.steps else []),
        *_failure(result),
        *_nodes(result),
        *_why(result),
        *_cause(result),
        *_releases(result),
        *_fixes(result),
    ]
    if not any(label not in ("Fails", "Match") for label, _ in rows):
        rows += [("", line) for line in _answers(result)]
    placed = describe_placement(result.layers or ())
    rows += [("Placed", placed)] if placed else []
    return [*rows, *_ending(result, shown=_shows_reason(result)), *_files(result), *_next(result)]


def summary_lines(result: Result) -> Iterator[Row]:
    """Yield the lines of the summary, at most 25 of at most 80 columns; paths and commands are not wrapped.

    Where there are more, whole rows are left out, the last first. A command without a run prints its
    answer unwrapped.
    """
    rows = summary(result)
    if result.artifacts.get("run") is None and not result.comparisons:
        yield from ((f"{label:{_INDENT}}" if label else "", text) for label, text in rows)
        return
    width = max(min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - _INDENT, 24)
    wrapped = [
        (label, [text] if label in _VERBATIM else _wrap(text, width)) for label, text in rows
    ]
    while sum(len(lines) for _, lines in wrapped) > MOST_LINES:
        last = max(place for place, row in enumerate(wrapped) if row[0] not in _VERBATIM)
        head = max((place for place, row in enumerate(wrapped[: last + 1]) if row[0]), default=last)
        # Some rows make no sense in part, and go as a whole.
        first = head if wrapped[head][0] in _WHOLE else last
        del wrapped[first : last + 1]
    for label, lines in wrapped:
        for place, line in enumerate(lines):
            yield f"{'' if place else label:{_INDENT}}", line


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of the sentences that fit; only a sentence that is too long by itself is cut (a runtime's message)."""
    # A command is copied from its line.
    text = _QUOTED.sub(lambda found: found[0].replace(" ", _JOINED), text)
    sentences = _SENTENCE_END.split(text)
    while True:
        lines = textwrap.wrap(
            " ".join(sentences), width, break_long_words=False, break_on_hyphens=False
        )
        whole = [line.replace(_JOINED, " ") for line in lines] or [""]
        if len(whole) <= _LINES_OF_A_ROW:
            return whole
        if len(sentences) == 1:
            return [*whole[:_LINES_OF_A_ROW], "..."]
        sentences.pop()


def headline(result: Result) -> str:
    """Return the answer in one sentence."""
    if result.status == "error":
        return str(result.why or "The command ended with an error.")
    rows = [row for row in summary(result) if row[0] not in _VERBATIM]
    texts = [
        text
        for label in ("Nodes", "Fix", "Since", "Cause")
        for row_label, text in rows
        if row_label == label
    ]
    answer = next(
        iter([*texts, *(text for _, text in rows)]),
        f"The run ended with status '{result.status}'.",
    )
    return f"Stopped by the user. {answer}" if result.status == "interrupted" else answer


def describe_inside(level: Inside) -> str:
    """Return in a sentence what fails inside a node with a body, an entry of the field ``inside`` of a result."""
    place = f"{level.op} '{level.name}'"
    if level.branch:
        place += f", {level.branch}"
    if level.iteration:
        place += f", iteration {level.iteration}"
    if not level.nodes:
        return f"Inside {place}: no node is named: {level.why}"
    reason = f": {level.why}" if level.why else ""
    fault = level.fault
    loss = ""
    if fault and fault.value:
        loss = f", as {fault.precision} cannot represent {fault.value:.5g}"
    return f"Inside {place}: {failing(level.nodes)}{loss} ({level.minimality}{reason})"


def failing(nodes: Sequence[Node]) -> str:
    """Return which nodes fail, in a sentence."""
    if not nodes:
        return (
            "No node is needed to fail: an output that is an input or a weight of the model differs"
        )
    return f"{grouped(nodes)} {'fail together' if nodes[1:] else 'fails alone'}"


_KINDS = 6
"""The largest number of operators that are named of an execution provider."""


def describe_placement(layers: Sequence[Entry]) -> str:
    """Return how many nodes each execution provider runs, and the operators of all but the largest part, with reasons.

    Args:
        layers: The field ``layers`` of a result; engines have layers without providers.
    """
    placed = [layer for layer in layers if "provider" in layer]
    counts = Counter(layer["provider"] for layer in placed)
    parts = []
    for place, (provider, count) in enumerate(counts.most_common()):
        run = [layer for layer in placed if layer["provider"] == provider]
        kinds = Counter(layer["kind"] for layer in run)
        reasons = {layer["kind"]: layer["reason"] for layer in run if layer["reason"]}
        operators = [
            f"{kind} ({times}{f': {reasons[kind]}' if kind in reasons else ''})"
            for kind, times in kinds.most_common()
        ]
        # Where most nodes run is no news; the exceptions are named.
        parts.append(f"{count} on {provider}{f': {first_few(operators, _KINDS)}' if place else ''}")
    return f"Of {plural(len(placed), 'node')} {'; '.join(parts)}." if placed else ""


def describe_steps(steps: Steps) -> str:
    """Return in some sentences which step of a loop is wrong first, and of which kind the failure is."""
    own_run = steps.own
    right = f"error at most {steps.right.worst:.2g} of the tolerance"
    if steps.right.first:
        # The worst of rounding is no faulty step, and is said so.
        right += (
            f", past it first in step {steps.right.first}, less than five times the usual error"
        )
    if steps.kind == "none":
        return f"No step of {steps.steps} is wrong, with the target's own state and with the reference's ({right})."
    wrong = f"the target is wrong from step {own_run.first} on"
    free = f"with its own state {wrong if own_run.first else 'no step is past the tolerance'}"
    if own_run.token:
        free += f", with another argmax from step {own_run.token} on"
    if steps.whole:
        first = steps.whole.first
        free += f"; in one run {f'step {first} is wrong first' if first else 'all steps match'}"
    if steps.step is None:
        entries = [
            f"'{name}'{f' at {first_few([*map(str, places)], _SHOWN)}' if places else ''}"
            for name, places in steps.positions.items()
        ]
        carriers = first_few(entries, _SHOWN)
        rate = f", about {steps.rate:.3g} times a step" if steps.rate else ""
        reason = f"Feedback of {carriers} magnifies small errors{rate}, to {own_run.worst:.3g} times the tolerance."
        if steps.kind == "flaky":
            reason = f"Feedback does not explain that: with the same state again, step {own_run.first} gives other values."
        return (
            f"{steps.kind.title()}: no step of {steps.steps} is wrong with the state of the reference ({right}); "
            f"{free}. {reason}"
        )
    worst = next(error for error in steps.right.errors if error.sample == steps.step)
    names = ", ".join(repr(name) for name in steps.tensors[:_NAMED] if name)
    error = ": ".join(filter(None, (names, describe_comparison(worst))))
    wrong_steps = spans(steps.failing)
    count = len(steps.right.errors)
    scope = f" ({count} of {steps.steps} were run)" if count < steps.steps else ""
    return (
        f"Step {steps.step} of {steps.steps} is the first that is wrong with the state of the reference: {error}. Wrong steps: "
        f"{first_few(wrong_steps, _SHOWN)}{scope}; {free}."
    )


def steps_table(steps: Steps) -> tuple[Names, list[Names]]:
    """Return the columns and the rows of a table: the errors of some steps in each way, in tolerances."""
    ratios = [
        {error.sample: error.tolerance_ratio for error in series.errors}
        for series in steps.ways.values()
    ]
    firsts = {series.first - 1 for series in steps.ways.values() if series.first}
    places = downsample([*ratios[0].values()], MOST_ROWS, firsts)
    rows = [
        (
            str(step),
            *(number(by_step[step], 3) if step in by_step else "" for by_step in ratios),
        )
        for step in (place + 1 for place in places)
    ]
    return ("step", *steps.ways), rows


def grouped(nodes: Sequence[Node]) -> str:
    """Return nodes as text: up to three by name, more as operators in modules (``Pow, ReduceMean in 13 LayerNorms``)."""
    plain = ", ".join(map(named, nodes[:_PLAIN]))
    if len(nodes) <= _NAMED or (len(nodes) <= _PLAIN and len(plain) <= 4 * WIDTH):
        return plain
    modules: dict[tuple[str, str], dict[str, None]] = {}
    for node in nodes:
        module = node.module
        path = (module.path if module else "") or node.name.rpartition("/")[0]
        kind = (module.cls if module else "") or ""
        modules.setdefault((path, kind), {})[node.op] = None
    groups: dict[tuple[Names, str], list[str]] = {}
    for (path, kind), ops in modules.items():
        groups.setdefault((tuple(ops), kind), []).append(path)
    parts = [_group(", ".join(ops), kind, paths) for (ops, kind), paths in groups.items()]
    return "; ".join(parts[:_NAMED]) + (
        f"; {plural(len(parts) - _NAMED, 'more group')}" if len(parts) > _NAMED else ""
    )


def _group(ops: str, kind: str, paths: Sequence[str]) -> str:
    places = [path for path in paths if path]
    if not places:
        return ops
    if len(places) == 1:
        return f"{ops} in {places[0]}"
    noun = kind.rpartition(".")[2] or (
        "LayerNorm" if {"Pow", "ReduceMean"} <= set(ops.split(", ")) else "module"
    )
    return f"{ops} in {plural(len(places), noun)}, {places[0]} to {places[-1]}"


def _answers(result: Result) -> list[str]:
    story = result.page.story
    return story.answers if story else []


def _shows_reason(result: Result) -> bool:
    """Return whether another row has the reason: beside the nodes, in the row of the cause, or in the command's own lines."""
    if result.error or result.status == "interrupted":
        # Where no step of a loop is wrong, its row is the reason.
        return bool(result.error and result.steps and result.steps.step is None)
    commands = {
        "cause": True,
        "run": True,
        "samples": True,
        "repeat": result.bad or not result.interval,
    }
    return bool(commands.get(result.command) or (result.status == "found" and result.culprits))


def _ending(result: Result, *, shown: bool = False) -> Iterator[Row]:
    """Yield the reason for a missing answer, unless another row has it (``shown``), and suggestions."""
    if result.status == "error" or not result.why:
        return
    reason, *steps = str(result.why).split("\n")
    if not shown:
        yield "Result", reason
    for place, step in enumerate(steps):
        yield "" if place else "Try", step.removeprefix("  - ")


def _failing_probe(result: Result) -> Iterator[Row]:
    """Yield why the original fails by a check that compares no outputs, or in a release."""
    probes = result.page.probes or ()
    if probes and probes[0].fails and result.command != "samples":
        # Here the first probe is of a set of nodes, not of the original.
        subject = f"with {probes[0].title}: " if result.command == "precision" else ""
        yield "Fails", f"{subject}{probes[0].reason}"
        if probes[0].signature == SLOW:
            yield "", "The verdicts are measurements: load on this machine can change them"
        if probes[0].printed:
            yield "", f"The check printed: {probes[0].printed}"
        ends = {probe.signature for probe in probes if probe.fails} - {probes[0].signature}
        statuses = sorted(end for end in ends if end.startswith(BARE_EXIT))
        if statuses:
            yield (
                "",
                f"Candidates that end with {', '.join(statuses)} count as failing too (see --fail-code)",
            )
    elif result.failing and isinstance(result.reasons, dict):
        release = result.failing[-1][-1]
        yield "Fails", f"{result.package} {release}: {result.reasons[release]}"


def _failure(result: Result) -> Iterator[Row]:
    """Yield the outputs that fail, the largest error first."""
    if own := result.own_outputs:
        yield "Match" if own.match else "Fails", f"the model's own outputs: {own.reason}"
    comparisons = result.comparisons or ()
    failed = sorted(
        (comparison for comparison in comparisons if not comparison.passed),
        key=lambda comparison: -comparison.severity,
    )
    shown = 1 if result.amplified else _SHOWN  # the reason needs the lines
    fault = result.fault or None
    is_export = fault is not None and fault.whose == "export"
    for comparison in failed[:shown]:
        sample = "" if comparison.sample is None else f"sample {comparison.sample}: "
        yield "Fails", f"{sample}'{comparison.name}': {describe_comparison(comparison)}"
        # A tolerance with which a wrong export passes is no way out.
        if comparison.details is not None and not is_export:
            yield "", describe_details(comparison.details)
    if len(failed) > shown:
        yield "", f"{plural(len(failed) - shown, 'more output')} with mismatches"
    if comparisons:
        yield "Match", f"{len(comparisons) - len(failed)} of {plural(len(comparisons), 'output')}"
        return
    yield from _failing_probe(result)


def _proof(result: Result) -> str:
    """Return the minimality in parentheses; nothing for a flaky failure, of which a row has the confidence."""
    flaky = result.flaky or None
    return "" if flaky and flaky.reached is not None else f" ({result.minimality})"


def _nodes(result: Result) -> Iterator[Row]:
    """Yield the nodes that fail."""
    culprits = result.culprits
    origins = result.origins or ()
    exported = result.fault and result.fault.whose == "export"
    if result.command == "layerwise" and origins:
        first = origins[0]
        yield (
            "Nodes",
            f"First mismatch: {named(first.node)}: {describe_comparison(first.comparison)}",
        )
    elif culprits and result.command != "precision" and not exported:
        yield "Nodes", f"{failing(culprits)}{_proof(result)}"
        for line in dict.fromkeys(filter(None, map(in_module, culprits[:_NAMED]))):
            yield "", line.strip()
    for level in result.inside or ():
        yield "", describe_inside(level)
    if (free := result.dynamic) and free.needed:
        names = ", ".join(f"'{dimension.name}'" for dimension in free.dimensions)
        yield "", f"Fails only with dynamic dimensions ({names}); passes with fixed shapes"
    # What the answer names already is not repeated among the origins.
    known = [each.name for each in culprits or [origin.node for origin in origins[:1]]]
    others = [origin for origin in origins if origin.node.name not in known]
    yield from _other_origins(result, others)
    for other in (result.failures or ())[1 : _SHOWN + 1]:
        yield "", f"Another failure: {grouped(other.culprits)} ({other.minimality})"
    if result.more_failures and not others:
        yield "", "The rest of the model fails too; --all finds each failure"
    why = str(result.why or "")
    if culprits and result.status == "found" and why not in ("", why_no_use(result)):
        yield "", why


def _other_origins(result: Result, origins: Sequence[Origin]) -> Iterator[Row]:
    """Yield the origins that are not in the answer, those with an input that may be wrong apart, and what was not seen."""
    unseen = result.unseen or {}
    if result.command == "layerwise" and result.origins:
        for name in result.origins[0].inputs:
            if name in unseen:
                yield "", f"Its input '{name}' could not be seen, so the error may begin before it"
    wrong = (tensor.name for tensor in result.tensors or () if not tensor.passed)
    doubtful = {*unseen, *wrong}
    groups: dict[str, list[Node]] = {}
    for origin in origins:
        is_clean = doubtful.isdisjoint(origin.inputs)
        inputs = "correct inputs" if is_clean else "inputs that are slightly wrong or were not seen"
        # An origin with doubtful inputs may only pass an error on.
        alone = ", but right alone" * origin.right_alone
        groups.setdefault(f"{inputs} and wrong outputs{alone}", []).append(origin.node)
    for problem, nodes in groups.items():
        yield "", f"{plural(len(nodes), 'more node')} with {problem}: {grouped(nodes)}"


def _why(result: Result) -> Iterator[Row]:
    """Yield the reason for the failure, and the command that proves it."""
    if fault := result.fault:
        yield "Why", fault.sentence
    elif amplified := result.amplified:
        yield "Why", amplified.sentence
    elif doubt := result.reference_doubt:
        yield "Why", doubt
    elif result.command == "precision":
        # A node that only fresh samples need is not the reason of the failure.
        first = {unit.outputs for unit in result.minimal or ()}
        kept = [
            f"{named(unit)}: {unit.reason}"
            for unit in sorted(result.keep_fp32 or (), key=lambda unit: unit.outputs not in first)
            if unit.rule not in (FOR_FRESH, NEEDED)
        ]
        if kept:
            more = f" ({plural(len(kept) - 1, 'more node')} in the report)" if kept[1:] else ""
            yield "Why", f"{kept[0]}{more}"
    if proof := result.page.proof:
        yield "Proof", proof.command
        if proof.why:
            yield "", proof.why
        for command in proof.others[:_SHOWN]:
            yield "Proof", command


def _cause(result: Result) -> Iterator[Row]:
    """Yield the switches that fix the failure."""
    detail = result.cause_detail
    if not detail:
        return
    # A patched model is the better fix, so one switch is enough beside it.
    for entry in detail.alternatives[: 1 if result.artifacts.get("patched") else 2]:
        subject = "the model" if entry.whole else "the minimal case, but not the whole model,"
        yield (
            "Cause",
            f"{' and '.join(entry.switches)}: {subject} passes with {shlex.join(entry.options)}",
        )
        if entry.whole:
            yield "", _sentence(entry.seen)
        yield from (("", note) for note in notes_of(entry))
    if not detail.alternatives:
        yield "Cause", f"not found in {detail.target}: {why_no_cause(detail)}"


def why_no_cause(detail: CauseDetail) -> str:
    """Return why no switch is known to fix the failure."""
    if detail.doubted:
        return "; ".join(detail.doubted)
    # A switch of the compiler that leaves the engine as it is is not tried.
    if not detail.tried:
        return f"none of the {detail.switches} switches acts on the model"
    return f"the failure stays with each of the {tried_of(detail)} changed"


_MOST_LAYERS = 8
"""The largest number of layers of an engine in a sentence."""


def notes_of(entry: Switches) -> Iterator[str]:
    """Yield what switches change in the engine, how they are set without bisect-trt, and what the minimal case does not show."""
    if (changed := entry.layers) is not None:
        if changed.fusion is not None:
            tactic = "" if changed.steady else " Some builds with it pass, so its tactic decides."
            yield f"It stops before fusion {changed.fusion}.{tactic}"
        if changed.failing or changed.passing:
            yield f"Layers of the failing engine alone: {_layers(changed.failing)}."
            yield f"Layers of the passing engine alone: {_layers(changed.passing)}."
        else:
            yield "Both engines report the same layers."
    if (setting := entry.elsewhere) is not None:
        doubt = "" if setting.documented else " This is undocumented, and may go with a release."
        yield f"Without bisect-trt: {setting.name}='{setting.value}'.{doubt}"
    if entry.whole and entry.case is False:
        larger = "" if entry.larger is None else f" The larger case in {entry.larger} passes."
        yield (
            f"The minimal case still fails with it, so that it shows the same mechanism is unproven.{larger}"
        )


def _layers(layers: Sequence[EngineLayer]) -> str:
    words = [f"{' + '.join(layer.nodes)} ({layer.kind})" for layer in layers]
    return first_few(words, _MOST_LAYERS) if words else "none"


def tried_of(detail: CauseDetail) -> str:
    """The switches that were tried, in words: ``18 switches that were tried (of 82)``."""
    if detail.tried == detail.switches:
        return f"{detail.tried} switches"
    return f"{detail.tried} switches that were tried (of {detail.switches})"


def _releases(result: Result) -> Iterator[Row]:
    """Yield the releases that fail, and the nearest that pass."""
    if result.failing:
        yield "Since", f"{describe_releases(result)} ({result.package})"


def describe_releases(result: Result) -> str:
    """Return which releases of the package fail, and the nearest that pass."""
    failing = result.failing or []
    releases = [*(result.releases or {})]
    older = releases[: releases.index(failing[0][0])]
    newer = releases[releases.index(failing[-1][-1]) + 1 :]
    start = _beyond(result, older, -1) or "no older release was probed"
    # There may be newer ones that --to excludes.
    end = _beyond(result, newer, 1) or "the newest that was probed"
    return f"{start}, fails in {', '.join(spans(failing))}, {end}"


def _beyond(result: Result, releases: Sequence[str], step: int) -> str:
    """Return the release beyond the failing ones that passes, or why none has a verdict; the nearest is first with this step."""
    verdicts = result.releases or {}
    reasons = result.reasons if isinstance(result.reasons, dict) else {}
    for release in releases[::step]:
        if verdicts[release] == "PASS":
            return f"passes in {release}"
    if not releases:
        return ""
    reason = shorten(reasons.get(releases[::step][0], "").partition(". ")[0], _REASON_LENGTH)
    return f"no verdict in {spans([(releases[0], releases[-1])])[0]} ({reason})"


def _fixes(result: Result) -> Iterator[Row]:
    """Yield the models that pass, with their cost and the number of fresh samples that they pass on."""
    if result.upgrade:
        yield "Fix", result.upgrade
    units = result.keep_fp32
    mixed = isinstance(units, list) and result.artifacts.get("mixed")
    if mixed:
        yield from _mixed(result, units or [], mixed)
    tried = result.workarounds or ()
    passing = [workaround for workaround in tried if workaround.passes]
    yield from _patched(result, passing, second=bool(mixed))
    if tried and not passing and not units and not result.upgrade:
        yield "Fix", f"not found: {plural(len(tried), 'workaround')} tried"
    elif result.command == "workaround" and not any(workaround.file for workaround in passing):
        # The cause's row has the switch that passes.
        patches = [workaround for workaround in tried if workaround.kind != "switch"]
        if patches:
            closest = max(patches, key=lambda workaround: workaround.fresh.passed)
            yield "Fix", f"no model is written; tried: {closest.what}: {closest.why}"


def _patched(result: Result, passing: Sequence[WorkaroundTried], *, second: bool) -> Iterator[Row]:
    """Yield two patched models that pass; ``second`` to a model of mixed precision."""
    low = f", an fp32 model to run in {result.precision}" if result.precision else ""
    models = [each for each in passing if each.file and each.kind != "precision"]
    for workaround in models[:2]:  # a switch is in the cause's row
        yield "Fix", f"{workaround.file}{low}: {workaround.what}"
        if workaround.why:
            yield "", _sentence(workaround.why)
        if second and result.validation and result.validation.holds:
            yield "", "Prefer the first fix, which replaces no node."


def said_of_cost(cost: Cost, fp32: float | None) -> str:
    """Return what a change costs, in words; ``fp32`` are the milliseconds of a run of the model in fp32, if known."""
    clause = "a run takes" if cost.unit == "ms" else "the engine has"
    slow = " (no faster than fp32)" * _is_slow(cost.after, fp32)
    return f"{clause} {cost.after:.3g} {cost.unit}{slow}, {cost.before:.3g} {cost.unit} without it"


def _is_slow(ms: float, fp32: float | None) -> bool:
    """Return whether a fix is as slow as the model in fp32; not if that is not known."""
    return fp32 is not None and ms >= 0.99 * fp32


def why_no_use(result: Result) -> str:
    """Return why none of the files of a mixed-precision model passes as it is used; empty if one does, or none was tried."""
    uses = result.uses or ()
    return "" if not uses or any(use.passed for use in uses) else uses[-1].reason


BARRIERS = {
    "Max": "a Max node",
    "Einsum": "an Einsum node that keeps each dimension",
    "output": "an extra output that need not be fetched",
}
NOT_NEEDED = "The target is not wrong, so no workaround is needed."
NO_BARRIER = "the error is rounding, so barriers cannot help"
EQUIVALENT = "an equivalent form of the culprit"
NO_EQUIVALENT = "none is known for these operators"
CASE_ONLY = "the minimal case passes with it, the whole model does not"
FILE_FAILS = "the file fails in a new process"
CONVERTED_FAILS = "converted to {} it does not pass: {}"
"""Workarounds, and reasons why they do not help."""
TRY_UNMARKED = (
    "Marking hides the failure. `diagnose` works without marks; "
    "`workaround` finds which marks hide it."
)
MARKING_HIDES = "marking tensors hides the failure, so they do not show where it begins"
INNER_ONLY = "The error does not reach the model's own outputs."
SLOWER_LAYERS = "{:.4g} ms in layers, {:.4g} ms on the baseline. The largest differences:"
"""Answers of a comparison of inner tensors, or of layers."""
CASE_CONFIRMED = "minimal case, confirmed on the whole model"
WITH_RIGHT_STATE = "the target, with the state of the reference"
LARGE = "More than 20% of the nodes stay"
"""Why a set of nodes that holds is no fix."""


def _mixed(result: Result, kept: list[Unit], file: str) -> Iterator[Row]:
    """Yield the mixed-precision model, what it keeps in fp32, and how it does on fresh samples."""
    used = next((use.what for use in result.uses or () if use.passed), file)
    count = f"{len(kept)} of {len(kept) + (result.lowered or 0)}"
    low = result.precision or "low"
    quantized = result.groups and not result.ladder
    noun, form = ("groups", "floats") if quantized else ("nodes", "fp32")
    units = f"{noun} in {form}"
    of = f": {grouped(kept)}" if kept else ""
    validation = result.validation or None
    refused = why_no_use(result)
    # A search that was stopped may leave a set that other inputs break; a metric or command judges all.
    unbroken = result.minimal_proven or not result.accuracy
    holds = bool(validation.holds if validation else unbroken)
    large = f"{LARGE} in fp32, so this set is no fix" if result.large else ""
    if large and not result.lowered:
        large = f"All {noun} stay in {form}, so this set is no fix"
    holds = holds and not (result.slow or large or refused)
    if not kept and not result.groups:
        count = f"all {result.lowered}"
        units = f"nodes{f'; so {low} is not the reason for a failure seen elsewhere' * holds}"
        if result.command == "diagnose":
            # The failure was seen here.
            units = f"nodes; {_widened(result) or 'the nodes that only make weights stay in fp32'}"
    yield "Fix" if holds else "Mixed", f"{used}: {low}, with {count} {units}{of}"
    scores = ", ".join(f"{each:.6g}" for each in result.metric.streams) if result.metric else ""
    not_run = f"not run on fresh samples: {result.not_validated or None}"
    fresh = f"on other random steps: {scores}" if scores else not_run
    # What the runtime refuses as a file ran in another form.
    passes = f"{'in the search it ' * bool(refused)}{validation.sentence}" if validation else fresh
    yield "", _sentence(passes)
    if refused or large or (validation and not (holds or result.trade_off)):
        yield "", refused or large or "So this set is no fix"
    outputs = {name for unit in kept for name in unit.outputs}
    lowered = [node for node in result.culprits if outputs.isdisjoint(node.outputs)]
    # What is kept in a body or a function is inside of the culprit; a group has several operators.
    if kept and holds and lowered and not (result.inside or result.groups):
        yield "", f"It passes without {grouped(lowered)} in fp32: errors there alone do no harm"
    yield from _scored(result)
    yield from _smaller(result, kept, noun)
    if result.rounding:
        yield "", result.rounding
    times = {name: value for name, value in (result.latency_ms or {}).items() if value is not None}
    if times:
        names = {"lowered": f"all in {low}"}
        # This machine may have no kernels of the low precision; the one that it is for may.
        slow = _is_slow(times.get("mixed", 0.0), times.get("fp32"))
        notes = {"mixed": " (no faster)" * slow}
        texts = [
            f"{names.get(name, name)} {value:.3g} ms{notes.get(name, '')}"
            for name, value in times.items()
        ]
        yield "", f"latency: {', '.join(texts)}"
    if result.slow:
        yield (
            "",
            f"As slow as the model in fp32, where {low} as a whole is faster: try a smaller set",
        )


def _widened(result: Result) -> str:
    """Say which outputs a mixed-precision model may have further off than the failure was judged by; empty if none."""
    judged = {tensor.name: tensor.atol or 0.0 for tensor in result.tensors or ()}
    outputs = {output.name: output.atol or 0.0 for output in result.accuracy or ()}
    wider = [name for name, atol in outputs.items() if atol > judged.get(name, atol)]
    if not wider:
        return ""
    most = max(outputs[name] for name in wider)
    return (
        f"{quoted(wider, _NAMED)} may be off by {number(most)}, as probabilities and heatmaps may"
    )


def _why_kept(minimal: Sequence[Unit], units: Sequence[Unit]) -> str:
    """Return why units outside the minimal set are kept."""
    needed = {unit.outputs for unit in minimal}
    rules = [unit.rule for unit in units if unit.outputs not in needed]
    reasons = {
        "break the outputs alone, or would with larger values": any(
            rule != FOR_FRESH for rule in rules
        ),
        "are for fresh samples": FOR_FRESH in rules,
    }
    return " or ".join(reason for reason, applies in reasons.items() if applies)


def _smaller(result: Result, units: list[Unit], noun: str) -> Iterator[Row]:
    """Yield the smaller sets that were seen, and whether another command may find some."""
    minimal = result.minimal or ()
    proven = result.minimal_proven
    if len(minimal) < len(units):
        proof = "1-minimal" if proven else "unproven"
        are = "is" if len(minimal) == 1 else "are"
        enough = f"{len(minimal)} of these {noun} {are} enough ({proof}); the others"
        if not minimal:
            wider = _widened(result)
            enough = f"none of these {noun} is needed{f', where {wider}' * bool(wider)}; they"
        yield "", f"For the given inputs {enough} {_why_kept(minimal, units)}"
    if result.command == "precision":
        yield from _other_sets(result)
    elif not proven:
        yield "", "Preliminary: `precision` searches longer and may keep fewer nodes"
    elif len(minimal) < len(units) and result.validation:
        yield "", "`precision` may keep fewer: 1% may fail there, none here"


_SETS = 8
"""The number of sets of which the score is shown."""


def _other_sets(result: Result) -> Iterator[Row]:
    """Yield the other sets of the curve, with what passed."""
    # --keep-set N writes the first set of N nodes.
    first = {point.nodes: point for point in reversed(result.curve or ())}
    rest = [first[nodes] for nodes in sorted(first) if not first[nodes].recommended]
    # The smallest set that passes all samples is named however many are before it.
    holding = [point for point in rest[3:] if point.passed == point.samples][:1]
    listed = [*rest[:3], *(holding or rest[3:4])]
    sets = [f"{p.nodes} ({p.passed} of {p.samples} samples pass)" for p in listed]
    if sets:
        yield "", f"Other sets, by --keep-set N: {', '.join(sets)}"


def _scored(result: Result) -> Iterator[Row]:
    """Yield the metric of a set with its sampling error, and the best score of sets of each size."""
    metric = result.metric
    if not metric:
        return
    if metric.sampling_error is not None:
        error = f"sampling error {metric.sampling_error:.2g}, 95% confidence"
        yield "", f"{metric.name} {metric.candidate:.4g} on {metric.of} samples ({error})"
    if result.command == "precision":
        scores = sorted(metric.probes or (), key=lambda probe: probe.candidate)
        best = reversed(scores) if metric.lower_is_better else scores
        by_size = {probe.size: f"{probe.size} ({probe.candidate:.4g})" for probe in best}
        sets = ", ".join(by_size[size] for size in sorted(by_size)[:_SETS])
        yield "", f"Sets by size, with their {metric.name}: {sets}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _files(result: Result) -> Iterator[Row]:
    """Yield the files that were written."""
    artifacts = result.artifacts
    folder = artifacts.get("reproducer")
    inside = [f"{folder}/"] if folder else []
    paths = [
        path
        for key, path in artifacts.items()
        if path and key not in ("run", "report", "reproducer")
    ]
    paths += [tried.file for tried in result.workarounds or () if tried.file]
    further = [other.reduced for other in (result.failures or ())[1:] if other.reduced]
    paths += [f"{Path(path).parent}/" if folder else path for path in further]
    outside = [path for path in paths if not (folder and Path(path).is_relative_to(folder))]
    if written := [*inside, *dict.fromkeys(outside)]:
        yield "Wrote", ", ".join(written)
    if report := artifacts.get("report"):
        yield from _report_file(result, Path(report))


def _report_file(result: Result, path: Path) -> Iterator[Row]:
    """Yield where the report is, and the number of probes in it."""
    run = result.probes["run"]
    yield "Report", str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    if run:
        shared = result.probes.get("shared", 0)
        cached = f" ({plural(shared, 'verdict')} from the cache)" if shared else ""
        yield "", f"{plural(run, 'probe')} in {seconds(result.wall_s)}{cached}"


def _next(result: Result) -> Iterator[Row]:
    """Yield the next command."""
    if result.first_passing and result.upgrade:
        # The fix is an upgrade.
        return
    resume = [command.command for command in result.page.commands or () if command.resumes]
    for command in [*(result.next or ()), *resume][:1]:
        yield "Next", command
