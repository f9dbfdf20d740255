"""What makes the whole model pass with the least loss: a switch, fusion barriers, an equivalent form, layers in fp32.

Each is proven before it is recommended: the whole model is probed as it was written, and run on fresh inputs.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from bisect_trt.commands.arbitration import Fault
from bisect_trt.commands.cause import make_panel
from bisect_trt.commands.session import Case, Session
from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.space import Space
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError, UsageError, first_few, quoted
from bisect_trt.mixed_precision.precision import MIXED
from bisect_trt.mixed_precision.validation import in_tolerances, table_sizes
from bisect_trt.onnxlib.barrier import can_bar, with_barriers
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.rewrites import RULES, Fragment, View, matches, splice_in
from bisect_trt.onnxlib.save import check_output, said_beside, save_model
from bisect_trt.onnxlib.shapes import fix_input_shapes, free_inputs, input_infos
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.oracles import error_of
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.search.keep import keep_if_enough
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import to_plain
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.stats import is_finite
from bisect_trt.worker.protocol import Compare, Failed, Sample

PATCHED = "patched.onnx"
_IN_A_DIAGNOSIS, _FRESH_IN_A_DIAGNOSIS = 8, 4
"""The limits of a diagnosis: questions for each way, and fresh inputs; the command that goes on is said."""
_FAILS_BARRED, _UNKNOWN = "with them it fails too", "none is known of these operators"
"""Reasons after which nothing is left to try, if the culprit fails alone."""
_SHOWN = 3
_MOST_BARRIERS = 20
"""More barriers than that are no answer."""
_MOST_SWITCHES = 3
_PRECISION = "precision"
"""The switch that turns a low precision off, which is not a way around but the model in fp32."""
Change = Callable[[Network], onnx.ModelProto]
"""Makes the patched form of a model, of the search's or of the user's file: their nodes are the same."""


@dataclass(frozen=True)
class WorkaroundSettings:
    """Parameters of ``workaround``.

    Attributes:
        check: The target, and how it is compared.
        output: Where the patched model goes.
        fresh: On how many fresh inputs a way has to hold.
        most: How many questions each way may ask.
        everywhere: Whether barriers are looked for outside of the culprit too, and all ways are tried after one that passes.
    """

    check: CheckSettings
    output: Path
    fresh: int = 20
    most: int = 24
    everywhere: bool = True

    @property
    def rewritten(self) -> Path:
        """Where a second patched model goes."""
        return self.output.with_name(f"{self.output.stem}-rewrite{self.output.suffix}")

    def check_output(self, *, overwrite: bool) -> None:
        """Make sure that the patched model, and what may come beside it, can be written.

        Raises:
            UsageError: It cannot.
        """
        for path in (self.output, self.rewritten, self.output.parent / MIXED):
            check_output(path, overwrite=overwrite)


@dataclass(frozen=True)
class Way:
    """A way around a failure, and what was seen of it.

    Attributes:
        kind: ``switch``, ``barrier``, ``rewrite`` or ``precision``.
        what: What is done, in words.
        passes: Whether it was seen to pass on the whole model and on fresh inputs; ``None`` where it was not tried.
        file: The model to use, where there is one.
        line: A line to paste, where that is all it takes.
        worst_error: The largest error over all inputs in units of the tolerance; ``None`` if it was not measured.
        latency_ms: Milliseconds of one run, copies included; ``None`` if it was not measured.
        fresh: How many fresh samples were tried, and on how many it passed.
        why: What was seen, or why nothing was.
    """

    kind: str
    what: str
    passes: bool | None
    file: str | None = None
    line: str | None = None
    worst_error: float | None = None
    latency_ms: float | None = None
    fresh: tuple[int, int] = (0, 0)
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        tried, passed = self.fresh
        plain: dict[str, Any] = to_plain({**vars(self), "fresh": {"samples": tried, "passed": passed}})
        return plain

    def held(self, measured: Way, seen: str = "") -> Way:
        """The same with what was measured on fresh inputs, after what was ``seen`` before."""
        samples, passed = measured.fresh
        words = "; ".join(filter(None, [seen, f"held on {passed} of {samples} fresh inputs"]))
        return replace(
            self,
            passes=measured.passes,
            worst_error=measured.worst_error,
            latency_ms=measured.latency_ms,
            fresh=measured.fresh,
            why=words if measured.passes else f"{words}: {measured.why}",
        )


@dataclass(frozen=True)
class Prover:
    """Proves ways around a failure.

    Attributes:
        session: The model.
        check: How it is compared.
        samples: How many fresh samples to try.
        timed: Whether to measure how long models run.
    """

    session: Session
    check: CheckSettings
    samples: int
    timed: bool

    @property
    def target(self) -> TargetSettings:
        """The target that fails."""
        assert self.check.target is not None, "a check of the user's is no target"
        return self.check.target

    def candidate(self, model: onnx.ModelProto, title: str) -> Candidate:
        """The whole model in another form; the original's outputs are compared, whatever others it has."""
        return replace(self.session.subject.original, made=model, title=title)

    def read_back(self, path: Path) -> Candidate:
        """A model that was written, with the input shapes of the search."""
        subject, proto = self.session.subject, load_model(path)
        subject.workspace.take_in(proto, path.parent)
        shapes = {info.name: info.shape or () for info in input_infos(subject.network)}
        if subject.freed is not None:  # it fails only while its dimensions are free
            proto = free_inputs(proto, shapes, forget=False)
        else:
            fix_input_shapes(proto, {name: tuple(int(dim or 1) for dim in shape) for name, shape in shapes.items()})
        return self.candidate(proto, f"{path.name}, read back")

    @cached_property
    def _fresh(self) -> tuple[Sample, ...]:
        """Fresh inputs, and the reference's outputs for them."""
        subject = self.session.subject
        made: list[Sample] = []
        law = FreshSamples.like(subject.samples, table_sizes(subject.network), subject.settings.data.seed)
        for number in range(self.samples if law.varies else 0):
            inputs, name = law.draw(number), f"fresh-{number}"
            golden = subject.models.run(name, subject.network.proto, inputs)
            if isinstance(golden, Failed) or not all(map(is_finite, golden.values())):
                continue
            known = {each: golden[each] for each in subject.network.outputs if each in golden}
            made.append(Sample(subject.models.feed(f"{name}.in", inputs), subject.models.feed(f"{name}.golden", known)))
        return tuple(made)

    def measure(self, model: onnx.ModelProto, target: TargetSettings | None = None) -> Way | None:
        """Run a model on fresh inputs; ``None`` where there are none."""
        subject, samples = self.session.subject, self._fresh
        if not samples:
            return None
        file, names = subject.models.write("way", model), tuple(subject.network.outputs)
        request = Compare(
            target or self.target,
            file,
            samples,
            self.check.tolerance,
            names=names,
            every=True,
            warm_up=1 if self.timed else None,
        )
        broken = Way("fresh", "", False, fresh=(len(samples), 0))
        try:
            reply = subject.models.ask(request, self.check.timeout)
        except BisectError as error:
            return replace(broken, why=str(error))
        if isinstance(reply, Failed):
            return replace(broken, why=reply.message)
        failed = [comparison for comparison in reply.comparisons if not comparison.passed]
        passed = len(samples) - len({comparison.sample for comparison in failed})
        return Way(
            "fresh",
            "",
            not failed,
            worst_error=max(map(error_of, reply.comparisons), default=0.0),
            latency_ms=reply.latency_ms,
            fresh=(len(samples), passed),
            why=f"'{failed[0].name}': {failed[0].describe()}" if failed else "",
        )

    def prove(self, way: Way, candidate: Candidate) -> Way:
        """A way that passed once in the search: confirmed as it was written, and run on fresh inputs."""
        believed = reconfirm(self.session.prober, self.session.subject.original, candidate)
        if not believed.passes:
            return replace(way, passes=False, why=believed.record.reason)
        outcome = self.session.outcome(believed.record)
        worst = max(map(error_of, outcome.comparisons), default=None)
        measured = self.measure(candidate.proto)
        if measured is None:
            none = "no fresh inputs are to be had of this model"
            why = "; ".join(filter(None, [believed.seen, none]))
            return replace(way, passes=True, worst_error=worst, why=why)
        if measured.worst_error is not None:
            worst = max(worst or 0.0, measured.worst_error)
        return way.held(replace(measured, worst_error=worst), believed.seen)

    def written(self, way: Way, change: Change, output: Path) -> Way:
        """Write the patched form of the user's file, read it back, and prove that; or prove it unwritten where it cannot be."""
        subject = self.session.subject
        try:
            save_model(change(_as_written(subject)), subject.settings.weights, output, beside=True)
        except UsageError as error:
            unwritten = self.candidate(change(subject.network), f"{output.name}, unwritten")
            proven = self.prove(replace(way, file=None), unwritten)
            return replace(proven, why=f"{proven.why}; {error}")
        proven = self.prove(way, self.read_back(output))
        beside = said_beside(output)
        return proven if beside is None else replace(proven, why=f"{proven.why}; {beside}")


def _as_written(subject: Subject) -> Network:
    """The user's file; its shapes may be free, so that nothing is made of the shapes of one run."""
    return Network(subject.settings.load())


@dataclass(frozen=True)
class Culprit:
    """The nodes of the minimal case.

    Attributes:
        nodes: Their numbers.
        ranged: Whether the failure is past a precision's range, rather than a bug: then no barrier helps.
    """

    nodes: frozenset[int]
    ranged: bool = False

    def tensors(self, network: Network) -> list[str]:
        """The tensors that its nodes read and make, but for weights; those between them first."""
        nodes = sorted(self.nodes, key=network.rank.__getitem__)
        made = [name for node in nodes for name in network.made(node) if network.consumers.get(name)]
        read = [name for node in nodes for name in network.reads[node] if not network.is_weight(name)]
        inner = [name for name in made if name in set(read)]
        return list(dict.fromkeys([*inner, *read, *made]))


def turn(prover: Prover) -> list[Way]:
    """The switches that were found for the cause, the whole model on each run on fresh inputs."""
    detail = prover.session.result.extra.get("cause_detail")
    entries = [] if detail is None else detail["alternatives"]
    usable = [each for each in entries if {name.partition(":")[0] for name in each["switches"]} != {_PRECISION}]
    return [_turned(prover, entry) for entry in usable[:_MOST_SWITCHES]]


def _turned(prover: Prover, entry: Mapping[str, Any]) -> Way:
    what = f"{' and '.join(entry['switches'])}, with {entry['turned']}"
    line = "\n".join(entry["code"]) if entry["code"] else None
    way = Way("switch", what, True, line=line, latency_ms=entry["latency_ms"], why="not run on fresh inputs")
    if not entry["whole"]:
        return replace(way, passes=False, why="the minimal case passes with it, and the whole model does not")
    subject = prover.session.subject
    try:
        panel = make_panel(prover.session, prover.target, subject.original, frozenset())
    except BisectError as error:
        return replace(way, why=f"{way.why}: {error}")
    units = frozenset(unit for unit, switch in enumerate(panel.switches) if switch.name in entry["switches"])
    if len(units) != len(entry["switches"]):
        return way
    measured = prover.measure(subject.network.proto, panel.turned(units))
    return way if measured is None else way.held(measured)


def bar(prover: Prover, culprit: Culprit, output: Path, most: int, *, everywhere: bool) -> Way:
    """The fewest fusion barriers: nodes that compute nothing, or else tensors that are outputs too.

    Args:
        prover: Proves it.
        culprit: What to look at first.
        output: Where the model goes.
        most: How many questions may be asked.
        everywhere: Whether to look at all tensors where those of the culprit do not do.
    """
    subject = prover.session.subject
    network, opset = subject.network, View(subject.network).opset

    def mark(names: Collection[str]) -> Change:
        return lambda network: mark_outputs(network, list(dict.fromkeys([*network.outputs, *names])), subject.infos)

    def barred(names: Collection[str]) -> Change:
        return lambda network: with_barriers(network, names)

    near = culprit.tensors(network)
    asked = 0
    for names in [near, *([list(dict.fromkeys([*near, *network.computed]))] if everywhere else [])]:
        can = [name for name in names if can_bar(subject.infos.get(name), opset)]
        inner = [name for name in names if name in network.producer and name not in network.returned]
        for words, some, change in (
            ("a barrier (Max of itself) behind", can, barred),
            ("as outputs too:", inner, mark),
        ):
            if not some or asked >= most:
                continue

            def build(units: Subset, some: Sequence[str] = some, change: Callable[..., Change] = change) -> Candidate:
                chosen = [some[place] for place in sorted(units)]
                return prover.candidate(change(chosen)(network), f"{len(chosen)} of {len(some)} barriers")

            minimum = Space(build).run(prover.session.prober, keep_if_enough(len(some), most - asked))
            asked += 1 if minimum is None else 4
            if minimum is None or len(minimum.units) > _MOST_BARRIERS:
                continue
            chosen = [some[place] for place in sorted(minimum.units)]
            way = Way("barrier", f"{words} {quoted(chosen, _SHOWN)}", None, str(output))
            return prover.written(way, change(chosen), output)
    return Way("barrier", "barriers around the culprit", False, why=_FAILS_BARRED)


def rewrite(prover: Prover, culprit: Culprit, output: Path, most: int) -> Way:
    """Equivalent forms of the culprit, the cheapest first: there, then wherever the pattern is found."""
    subject = prover.session.subject
    view = View(_as_written(subject))
    found = {name: matches(view, name) for name in RULES if RULES[name].ranges or not culprit.ranged}
    near = {name: touching for name in found if (touching := [e for e in found[name] if e.matched & culprit.nodes])}
    if not near:
        return Way("rewrite", "an equivalent form of the culprit", None, why=_UNKNOWN)
    # Where several places are known to be wrong, one of them alone is not tried.
    several = culprit.ranged and len(prover.session.result.extra.get("origins") or ()) > 1
    plans: list[tuple[str, list[Fragment]]] = []
    for name, touching in near.items():
        here = not several and len(touching) != len(found[name])
        plans += [*([(name, touching)] if here else []), (name, found[name])]
    if len(near) > 1:
        plans.append((" and ".join(near), _apart([each for name in near for each in found[name]])))
    tried: list[str] = []
    for name, some in plans[:most]:

        def change(network: Network, some: list[Fragment] = some) -> onnx.ModelProto:
            return splice_in(View(network), some)

        title = f"{name} in {len(some)} place{'s' if len(some) > 1 else ''}"
        record = prover.session.prober.probe(prover.candidate(change(subject.network), title))
        if record.verdict is Verdict.PASS:
            nodes = [view.network.describe(fragment.anchor) for fragment in some]
            words = RULES[name].what if name in RULES else "in other forms"
            way = Way("rewrite", f"{first_few(nodes, _SHOWN)} {words} ({name})", None, str(output))
            return prover.written(way, change, output)
        tried.append(title)
    return Way("rewrite", f"other forms: {', '.join(near)}", False, why=f"tried without success: {'; '.join(tried)}")


def _apart(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Those that share no node, the first of each."""
    taken: set[int] = set()
    chosen = []
    for fragment in fragments:
        if not taken & fragment.matched:
            taken |= fragment.matched
            chosen.append(fragment)
    return chosen


def work_around(session: Session, settings: WorkaroundSettings, case: Case, fault: Fault) -> list[Way]:
    """Look for ways around a failure whose minimal case is known; they are put into the result."""
    subject, result = session.subject, session.result
    # How long an emulation takes says little, and a diagnosis does not wait for it.
    timed = settings.everywhere or not _emulated(settings.check.target)
    prover = Prover(session, settings.check, settings.fresh, timed=timed)
    nodes = frozenset(subject.network.order[unit] for unit in case.minimum.units)
    culprit = Culprit(nodes, ranged=fault.whose == "precision")
    ways: list[Way] = []
    try:
        if culprit.ranged:
            why = "rounding alone makes the error, so none helps"
            ways.append(Way("barrier", "behind tensors of the culprit", None, why=why))
        else:
            ways += turn(prover)
            ways.append(bar(prover, culprit, settings.output, settings.most, everywhere=settings.everywhere))
        passing = any(way.passes for way in ways)
        if settings.everywhere or not passing:
            output = settings.rewritten if passing else settings.output
            ways.append(rewrite(prover, culprit, output, settings.most))
    except BudgetSpent as error:
        session.console.say(f"  {error}")
    for place, way in enumerate(ways):
        if way.file is not None and not way.passes:
            Path(way.file).unlink(missing_ok=True)
            ways[place] = replace(way, file=None)
    patched = next((way.file for way in ways if way.passes and way.file is not None), None)
    result.artifacts["patched"] = patched
    result.extra["workarounds"] = [way.to_json() for way in ways]
    wanted = prover.timed and any(way.passes for way in ways)
    result.extra["workaround_baseline"] = _baseline(prover) if wanted else None
    return ways


def _emulated(target: TargetSettings | None) -> bool:
    """Whether a low precision is emulated on a target, by more work than it would be."""
    return target is not None and bool(target.low_precisions) and target.target.emulates_low(target)


def _baseline(prover: Prover) -> Mapping[str, Any]:
    """The latency of the failing model, and that with all of it in fp32."""
    network, target = prover.session.subject.network, prover.target
    failing = prover.measure(network.proto)
    full: dict[str, Any] = dict.fromkeys(target.low_precisions, False)
    right = prover.measure(network.proto, replace(target, **full, keep=(), held=False)) if full else None
    return {
        "failing_ms": None if failing is None else failing.latency_ms,
        "fp32_ms": None if right is None else right.latency_ms,
        "target": target.describe(),
        "emulated": _emulated(target),
    }


def add_precision(result: Result) -> None:
    """Add the last way: layers that stay in fp32, as the search for precision found them."""
    ways, nodes = result.extra.get("workarounds"), result.extra.get("keep_fp32")
    if ways is None or not nodes or result.artifacts.get("mixed") is None:
        return
    seen = result.extra.get("validation") or {}
    way = Way(
        "precision",
        f"{len(nodes)} nodes in fp32",
        any(use["passed"] for use in result.extra.get("uses") or []),
        result.artifacts["mixed"],
        worst_error=seen.get("worst_error"),
        latency_ms=(result.extra.get("latency_ms") or {}).get("mixed"),
        fresh=(seen.get("samples", 0), seen.get("passed", 0)),
        why=f"held on {seen['passed']} of {seen['samples']} fresh inputs" if seen else "on the inputs given",
    )
    ways.append(way.to_json())


def tell(result: Result, console: Console) -> None:
    """Say what was tried, as a table."""
    ways = result.extra.get("workarounds") or []
    passing = sorted((way for way in ways if way["passes"]), key=_missed)
    if not passing:
        console.answer("No way around it was found:" if ways else "No way around it was looked for.")
    else:
        first = passing[0]
        where = f" ({first['file']})" if first["file"] else ""
        but = ", which does not hold on all fresh inputs" if _missed(first) else ""
        console.answer(f"A way around it: {first['what']}{where}{but}.")
    for way in sorted(ways, key=lambda way: _missed(way) if way["passes"] else 0.0):
        console.answer(f"  {_row(way)}")
    baseline = result.extra.get("workaround_baseline") or {}
    times = [
        f"{words} {baseline[key]:.3f} ms"
        for key, words in (("failing_ms", "as it fails"), ("fp32_ms", "all in fp32"))
        if baseline.get(key) is not None
    ]
    if times:
        how = ", emulated: a target that computes in it takes other times" if baseline["emulated"] else ""
        console.answer(f"  beside them: {', '.join(times)} on {baseline['target']}{how}")


def _missed(way: Mapping[str, Any]) -> float:
    """The share of fresh inputs that a way fails on; 0 where none were tried."""
    fresh = way["fresh"]
    return 1 - fresh["passed"] / fresh["samples"] if fresh["samples"] else 0.0


def _row(way: Mapping[str, Any]) -> str:
    verdict = {True: "passes", False: "does not pass", None: "not tried"}[way["passes"]]
    if way["passes"] and _missed(way):
        verdict = "passes on the inputs given, does not hold on fresh ones"
    parts = [f"{way['kind']}: {way['what']}: {verdict}"]
    if isinstance(way["worst_error"], float):
        parts.append(f"worst error {in_tolerances(way['worst_error'])}")
    if way["latency_ms"] is not None:
        parts.append(f"{way['latency_ms']:.3f} ms")
    return "; ".join([*parts, *filter(None, [way["file"], way["why"]])])


def command(session: Session, check: CheckSettings) -> str:
    """The command line that looks further."""
    settings, target = session.subject.settings, check.target
    assert target is not None, "a diagnosis has one"
    words = ["bisect-trt", "workaround", str(settings.path), *target.flags(), *session.place_words]
    return shlex.join([*words, *settings.words(), *check.tolerance.words()])


def after_diagnosis(
    session: Session, check: CheckSettings, case: Case, fault: Fault, folder: Path, *, steady: bool
) -> None:
    """The last step of a diagnosis: a few questions, and the command that asks more.

    None where the failure is not ``steady``: a pass may be luck then.
    """
    console, target, result = session.console, check.target, session.result
    assert target is not None, "a diagnosis has one"
    result.extra |= {"workarounds": [], "workaround_baseline": None}
    console.step("What makes the whole model pass?")
    if fault.whose in ("reference", "tie", "random"):
        console.say("  the target is not wrong, so there is nothing to work around")
        return
    why_not = None
    if not steady:
        why_not = "what was found passed when it was probed once more, so a pass may be luck"
    elif target.target.capabilities.costly:
        why_not = f"since each probe is a build; this does: {command(session, check)}"
    if why_not is not None:
        add_precision(result)
        console.say(f"  not looked for: {why_not}")
        return
    settings = WorkaroundSettings(check, folder / PATCHED, _FRESH_IN_A_DIAGNOSIS, _IN_A_DIAGNOSIS, everywhere=False)
    try:
        ways = work_around(session, settings, case, fault)
    except BisectError as error:  # the failure itself was found before
        console.say(f"  no way around was found: {error}")
        ways = []
    add_precision(result)
    tell(result, console)
    if any(way.passes for way in ways):
        return
    if ways and len(case.minimum.units) == 1 and all(way.why in (_FAILS_BARRED, _UNKNOWN) for way in ways):
        around = "another operator in its place may do, or another release"
        console.answer(f"  it fails alone, whatever is around it: {around}")
    else:
        console.answer(f"  this looks further: {command(session, check)}")
