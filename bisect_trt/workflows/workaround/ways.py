"""The ways around a failure: a switch of the target that the search for the cause found, fusion barriers, equivalent forms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.errors import BisectError, UsageError, first_few, quoted
from bisect_trt.graph.barrier import can_bar, with_barriers
from bisect_trt.graph.cut import mark_outputs
from bisect_trt.graph.network import Network
from bisect_trt.graph.rewrites import RULES, Fragment, View, matches, splice_in
from bisect_trt.graph.save import said_beside, save_model
from bisect_trt.probing.candidate import Candidate
from bisect_trt.search.keep import keep_if_enough
from bisect_trt.search.oracle import Minimum, Subset, Verdict
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.switched import make_panel
from bisect_trt.workflows.workaround.proof import Prover, Way

FAILS_BARRED, UNKNOWN = "with them it fails too", "none is known of these operators"
"""Why a way is none: what then is left to try is nothing, if the culprit fails alone."""
_SHOWN = 3
_MOST_BARRIERS = 20
"""More than that nobody wants in a model."""
_MOST_SWITCHES = 3
_PRECISION = "precision"
"""Without its low precision a target is another one: that is no way around, but all of it in fp32."""
Change = Callable[[Network], onnx.ModelProto]
"""Makes the patched form of a model, of the search's or of the user's file: their nodes are the same."""


@dataclass(frozen=True)
class Culprit:
    """What the minimal case is made of.

    Attributes:
        nodes: Its nodes' numbers.
        ranged: Whether it is past a precision's range, rather than a bug: then no barrier helps.
    """

    nodes: frozenset[int]
    ranged: bool = False

    def tensors(self, network: Network) -> list[str]:
        """What its nodes read and make, but for weights, in topological order; what is read between them first."""
        nodes = sorted(self.nodes, key=network.rank.__getitem__)
        made = [name for node in nodes for name in network.made(node) if network.consumers.get(name)]
        read = [name for node in nodes for name in network.reads[node] if not network.is_weight(name)]
        inner = [name for name in made if name in set(read)]
        return list(dict.fromkeys([*inner, *read, *made]))


def bar(prover: Prover, culprit: Culprit, output: Path, most: int, *, everywhere: bool) -> Way:
    """The fewest fusion barriers: nodes that compute nothing, or else tensors that are outputs too.

    Args:
        prover: Proves it.
        culprit: What to look at first.
        output: Where the model goes.
        most: How many questions may be asked.
        everywhere: Whether to look at all tensors where those of the culprit do not do.
    """
    subject = prover.investigation.subject
    network, opset = subject.network, View(subject.network).opset
    near = culprit.tensors(network)
    places = [near, *([list(dict.fromkeys([*near, *network.computed]))] if everywhere else [])]
    asked = 0
    for names in places:
        barred = [name for name in names if can_bar(subject.infos.get(name), opset)]
        marked = [name for name in names if name in network.producer and name not in network.returned]
        for words, some, change in (
            ("a barrier (Max of itself) behind", barred, _barring),
            ("as outputs too:", marked, _marking),
        ):
            if not some or asked >= most:
                continue
            minimum = _fewest(prover, some, change, subject, most - asked)
            asked += 1 if minimum is None else 4
            if minimum is None or len(minimum.units) > _MOST_BARRIERS:
                continue
            chosen = [some[place] for place in sorted(minimum.units)]
            way = Way("barrier", f"{words} {quoted(chosen, _SHOWN)}", None, str(output))
            return prove_written(prover, way, change(subject, chosen), output)
    return Way("barrier", "barriers around the culprit", False, why=FAILS_BARRED)


def _barring(subject: Subject, names: Collection[str]) -> Change:  # noqa: ARG001 - as marks
    return lambda network: with_barriers(network, names)


def _marking(subject: Subject, names: Collection[str]) -> Change:
    return lambda network: mark_outputs(network, list(dict.fromkeys([*network.outputs, *names])), subject.infos)


def _fewest(
    prover: Prover,
    names: Sequence[str],
    change: Callable[[Subject, Collection[str]], Change],
    subject: Subject,
    most: int,
) -> Minimum | None:
    def candidate(units: Subset) -> Candidate:
        some = [names[place] for place in sorted(units)]
        return prover.candidate(change(subject, some)(subject.network), f"{len(some)} of {len(names)} barriers")

    return prover.investigation.prober.search(keep_if_enough(len(names), most), candidate)


def rewrite(prover: Prover, culprit: Culprit, output: Path, most: int) -> Way:
    """Equivalent forms of the culprit, the cheapest first: there, then wherever the pattern is found."""
    subject = prover.investigation.subject
    view = View(_as_written(subject))
    names = [name for name in RULES if RULES[name].ranges or not culprit.ranged]
    found = {name: matches(view, name) for name in names}
    touching = {name: [each for each in found[name] if each.matched & culprit.nodes] for name in names}
    tried: list[str] = []
    rest = [name for name in names if touching[name]]
    if not rest:
        return Way("rewrite", "an equivalent form of the culprit", None, why=UNKNOWN)
    several = culprit.ranged and len(prover.investigation.result.extra.get("origins") or ()) > 1
    plans = [(name, some) for name in rest for some in _plans(touching[name], found[name], several=several)]
    whole = [each for name in rest for each in found[name]]
    if len(rest) > 1:
        plans.append((" and ".join(rest), _apart(whole)))
    for name, some in plans[:most]:
        title = f"{name} in {len(some)} place{'s' if len(some) > 1 else ''}"
        if prover.probe(splice_in(View(subject.network), some), title) is Verdict.PASS:
            way = Way("rewrite", _what(name, some, view), None, str(output))
            return prove_written(prover, way, lambda network: splice_in(View(network), some), output)  # noqa: B023 - returned
        tried.append(title)
    return Way("rewrite", f"other forms: {', '.join(rest)}", False, why=f"tried without success: {'; '.join(tried)}")


def _plans(near: list[Fragment], everywhere: list[Fragment], *, several: bool) -> list[list[Fragment]]:
    """Where to put another form: there, then everywhere; the latter alone where several places are known to be wrong."""
    if several or len(near) == len(everywhere):
        return [everywhere]
    return [near, everywhere]


def _apart(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Those that share no node, the first of each."""
    taken: set[int] = set()
    chosen = []
    for fragment in fragments:
        if not taken & fragment.matched:
            taken |= fragment.matched
            chosen.append(fragment)
    return chosen


def _what(name: str, some: Sequence[Fragment], view: View) -> str:
    nodes = [view.network.describe(fragment.anchor) for fragment in some]
    words = RULES[name].what if name in RULES else "in other forms"
    return f"{first_few(nodes, _SHOWN)} {words} ({name})"


def _as_written(subject: Subject) -> Network:
    """The user's file; its shapes may be free, so that nothing is made of the shapes of one run."""
    return Network(subject.settings.load())


def prove_written(prover: Prover, way: Way, change: Change, output: Path) -> Way:
    """Write the patched form of the user's file, read it back, and prove that; what cannot be written is proven as it was."""
    subject = prover.investigation.subject
    try:
        save_model(change(_as_written(subject)), subject.settings.weights, output, beside=True)
    except UsageError as error:
        proven = prover.prove(
            replace(way, file=None), prover.candidate(change(subject.network), f"{output.name}, unwritten")
        )
        return replace(proven, why=f"{proven.why}; {error}")
    proven = prover.prove(way, prover.read_back(output, f"{output.name}, read back"))
    beside = said_beside(output)
    return proven if beside is None else replace(proven, why=f"{proven.why}; {beside}")


def turn(prover: Prover) -> list[Way]:
    """The alternatives that were found for the cause, the whole model on each run on fresh inputs."""
    detail = prover.investigation.result.extra.get("cause_detail")
    entries = [] if detail is None else detail["alternatives"]
    kinds = [{name.partition(":")[0] for name in entry["switches"]} for entry in entries]
    usable = [entry for entry, some in zip(entries, kinds, strict=True) if some != {_PRECISION}]
    return [_proven(prover, entry) for entry in usable[:_MOST_SWITCHES]]


def _proven(prover: Prover, entry: Mapping[str, Any]) -> Way:
    names = " and ".join(entry["switches"])
    line = "\n".join(entry["code"]) if entry["code"] and entry["code_ran"] is True else None
    way = {
        "kind": "switch",
        "what": f"{names}, with {entry['turned']}",
        "line": line,
        "latency_ms": entry["latency_ms"],
    }
    if not entry["whole"]:
        return Way(**way, passes=False, why="the minimal case passes with it, and the whole model does not")
    subject = prover.investigation.subject
    try:
        panel = make_panel(prover.investigation, prover.target, subject.original, frozenset())
    except BisectError as error:
        return Way(**way, passes=True, why=f"not run on fresh inputs: {error}")
    units = frozenset(unit for unit, switch in enumerate(panel.switches) if switch.name in entry["switches"])
    measured = (
        prover.measure(subject.network.proto, panel.turned(units)) if len(units) == len(entry["switches"]) else None
    )
    if measured is None:
        return Way(**way, passes=True, why="not run on fresh inputs")
    held = f"held on {measured.passed} of {measured.samples} fresh inputs"
    passes = measured.passed == measured.samples
    return Way(
        **{**way, "latency_ms": measured.latency_ms},
        passes=passes,
        worst_error=measured.worst_error,
        fresh=(measured.samples, measured.passed),
        why=held if passes else f"{held}: {measured.why}",
    )
