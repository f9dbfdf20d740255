"""Workarounds: switches, fusion barriers, an equivalent form, layers in fp32, each with the least loss.

Each is written, read back and confirmed on the whole model before it is recommended.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from pathlib import Path

import onnx
from msgspec import structs

from bisect_trt.aliases import Names
from bisect_trt.errors import BisectError, first_few, quoted
from bisect_trt.mixed_precision.validation import Fresh, probe_on
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.inputs import input_infos, take_input_shapes
from bisect_trt.onnxlib.low_plan import LOW_TYPES
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.onnxlib.rewrites import (
    ALL_RULES,
    RULES,
    Barrier,
    Fragment,
    NetworkView,
    can_bar,
    disjoint,
    matches,
    splice_in,
    with_barriers,
)
from bisect_trt.onnxlib.save import said_beside, save_model
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import reconfirm
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Cost, FreshCount, Whose, WorkaroundTried
from bisect_trt.report.proofs import describe_confirmation
from bisect_trt.report.result import Result
from bisect_trt.report.summary import (
    BARRIERS,
    CASE_ONLY,
    CONVERTED_FAILS,
    EQUIVALENT,
    FILE_FAILS,
    NO_BARRIER,
    NO_EQUIVALENT,
    said_of_cost,
)
from bisect_trt.search.keep import keep_if_enough, smallest_enough
from bisect_trt.search.oracle import Mode, Subset
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import Case, Session
from bisect_trt.session.space import Space
from bisect_trt.steps.minimal_case import find_minimum
from bisect_trt.steps.second_opinion import FRESH_INPUTS
from bisect_trt.steps.switches import name_cause
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.deadline import BudgetSpent
from bisect_trt.worker.protocol import Compare, Failed, Sample, Trace

PATCHED = "patched.onnx"
_MOST = 24
_IN_A_DIAGNOSIS = 8
"""The largest number of questions for each kind of workaround, in the command and in a
diagnosis."""
_SHOWN = 3
_MOST_BARRIERS = 20
"""The largest number of barriers in an answer."""
_MOST_SWITCHES = 3
Change = Callable[[Network], onnx.ModelProto]
"""Returns a patched model; it is applied to the searched model and to the user's file, which have
the same nodes."""


def beside(output: Path, kind: str) -> Path:
    """Return the path of a further model, of another kind of workaround."""
    return output.with_name(f"{output.stem}-{kind}{output.suffix}")


def _candidate(session: Session, model: onnx.ModelProto, title: str) -> Candidate:
    """Return the whole model in another form; only the original's outputs are compared, or the limit holds as it is given."""
    check = session.prober.check
    target = check.runtime if check.bounds_whole else None
    return replace(session.subject.original, made=model, title=title, target=target)


def _confirmed(
    session: Session, workaround: WorkaroundTried, candidate: Candidate
) -> WorkaroundTried:
    """Return a workaround that passed once, probed again until chance can be excluded."""
    believed = reconfirm(session.prober, session.subject.original, candidate)
    if not believed.passes:
        return structs.replace(workaround, passes=False, why=describe_confirmation(believed))
    worst = max(
        (comparison.tolerance_ratio for comparison in session.outcome(believed.record).comparisons),
        default=None,
    )
    return structs.replace(
        workaround, passes=True, worst_error=worst, why=describe_confirmation(believed)
    )


def _held(session: Session, workaround: WorkaroundTried, candidate: Candidate) -> WorkaroundTried:
    """Return a workaround that passes on the given inputs, run on fresh ones; it fails if one of them fails."""
    check = session.prober.check
    fresh = Fresh(session.subject, FRESH_INPUTS)
    assert check.tolerances is not None, "a target is compared with the reference"
    none = fresh.why_none
    samples = None if none is not None else fresh.round(0)
    if samples is None:
        return structs.replace(
            workaround,
            why=_joined(workaround.why, f"no fresh inputs: {none or 'the reference fails'}"),
        )
    count = len(samples)
    inputs = f"{count} fresh inputs"
    outcome = probe_on(session.prober, candidate, samples, check.tolerances, inputs)
    if not outcome.errors:
        return structs.replace(
            workaround,
            passes=False,
            why=f"on {inputs}: {describe_outcome(outcome)}",
            fresh=FreshCount(count, 0),
        )
    passed = sum(error <= 1 for error in outcome.errors)
    worst = max(workaround.worst_error or 0.0, *outcome.errors)
    reason = _joined(workaround.why, f"{passed} of {inputs} pass")
    return structs.replace(
        workaround,
        passes=passed == count,
        worst_error=worst,
        why=reason,
        fresh=FreshCount(count, passed),
    )


def _joined(*reasons: str | None) -> str:
    return "; ".join(filter(None, reasons))


def _written(
    session: Session, workaround: WorkaroundTried, change: Change, output: Path
) -> WorkaroundTried:
    """Write the patched form of the user's file, with its free dimensions, and confirm the file that was written.

    Raises:
        UsageError: It cannot be written.
    """
    subject = session.subject
    save_model(
        change(Network(subject.settings.load())), subject.settings.weights, output, beside=True
    )
    proto = subject.workspace.read_back(output)
    declared = input_infos(Network(proto))
    take_input_shapes(proto, subject.network)
    candidate = _candidate(session, proto, f"{output.name}, read back")
    tried = _confirmed(session, structs.replace(workaround, file=str(output)), candidate)
    if tried.passes:
        tried = _held(session, tried, candidate)
    if tried.passes and declared == input_infos(subject.network):
        tried = _run_as_file(session, tried, candidate, output)
    if not tried.passes:
        output.unlink(missing_ok=True)
        return structs.replace(tried, file=None)
    tried = structs.replace(tried, why=_joined(tried.why, said_beside(output)))
    return _priced(session, tried, candidate)


def _run_as_file(
    session: Session, workaround: WorkaroundTried, candidate: Candidate, output: Path
) -> WorkaroundTried:
    """Return a workaround that passes, run at its path in a process that has run nothing else, as the user will run it."""
    check = session.prober.check
    if not check.compares:
        return workaround
    check = check.under(fresh=True, same=False)
    files = replace(session.prober.write(candidate), model=output.absolute())
    outcome = check.run(files)
    reason = f"{FILE_FAILS}: {describe_outcome(outcome)}"
    target = check.runtime
    if outcome.ending is Ending.PASSED and target is not None:
        plain = replace(target, fp16=False, bf16=False)
        emulated = plain.target.emulates_low(plain)
        # What the target rounded itself is run with the types in the graph.
        for name in LOW_TYPES.keys() & {*target.low_precisions} if emulated else ():
            types = session.subject.element_types
            lowered = lower_fp16(candidate.proto, target.keep, types, LOW_TYPES[name])
            typed = replace(candidate, made=lowered, target=plain)
            outcome = check.run(session.prober.write(typed))
            reason = CONVERTED_FAILS.format(name, describe_outcome(outcome))
    if outcome.ending is Ending.PASSED:
        return workaround
    return structs.replace(workaround, passes=False, why=reason)


def _cost(session: Session, candidate: Candidate, target: TargetSettings) -> float | None:
    """Return the milliseconds of a run, or where nothing is run the megabytes of the engine; ``None`` if there is no such."""
    files = session.prober.write(candidate)
    target = candidate.settings(target)
    ask = session.subject.workers.ask
    if target.build_only:
        engine = ask(Trace(target, files.model, files.inputs, "fusions"))
        return None if isinstance(engine, Failed) or not engine else engine["size"] / 1e6
    sample = Sample(files.inputs, files.golden)
    ran = ask(Compare(target, files.model, (sample,), ToleranceOptions(), timed=True))
    return None if isinstance(ran, Failed) else ran.latency_ms


def _priced(session: Session, workaround: WorkaroundTried, candidate: Candidate) -> WorkaroundTried:
    """Return a workaround with what a run takes without it and with it, one after the other."""
    target = session.prober.check.runtime
    assert target is not None, "a target is wrong"
    before = _cost(session, session.subject.original, target)
    after = _cost(session, candidate, target)
    if before is None or after is None:
        return workaround
    cost = Cost(before, after, "MB" if target.build_only else "ms")
    reason = _joined(
        workaround.why, said_of_cost(cost, (session.result.latency_ms or {}).get("fp32"))
    )
    return structs.replace(workaround, cost=cost, why=reason)


def turn(session: Session, fixed: Mapping[Names, Candidate]) -> Iterator[WorkaroundTried]:
    """Yield the confirmed switches of the cause, except precisions, run on fresh inputs and timed where the model is at hand."""
    detail = session.result.cause_detail
    usable = [
        alternative
        for alternative in (detail.alternatives if detail else ())
        if any(not name.startswith("precision:") for name in alternative.switches)
    ]
    for alternative in usable[:_MOST_SWITCHES]:
        tried = WorkaroundTried(
            "switch",
            f"{' and '.join(alternative.switches)} {alternative.turned}",
            alternative.whole,
            line=shlex.join(alternative.options),
            why=alternative.seen if alternative.whole else CASE_ONLY,
        )
        if (candidate := fixed.get(alternative.switches)) is not None:
            tried = _held(session, tried, candidate)
            tried = _priced(session, tried, candidate) if tried.passes else tried
        yield tried


def _fused(session: Session) -> Iterator[list[str]]:
    """Yield what the nodes of each layer make that the cause changes: outputs there may keep the compiler from making it."""
    network = session.subject.network
    detail = session.result.cause_detail
    for changed in (entry.layers for entry in detail.alternatives) if detail else ():
        for layer in changed.failing if changed else ():
            places = [
                place
                for place, node in enumerate(network.nodes)
                if {node.name, first_output(node)} & {*layer.nodes}
            ]
            yield network.made_by(places)


def _around(network: Network, nodes: Collection[int]) -> list[str]:
    """Return the tensors between some nodes, then those that they read, and those that they make for others."""
    ordered = network.in_order(nodes)
    made = [name for name in network.made_by(ordered) if network.consumers.get(name)]
    read = [name for node in ordered for name in network.computed_reads(node)]
    return [*_between(network, ordered), *read, *made]


def _between(network: Network, nodes: Collection[int]) -> list[str]:
    read = {name for node in nodes for name in network.computed_reads(node)}
    return [name for name in network.made_by(network.in_order(nodes)) if name in read]


def alike(network: Network, nodes: Collection[int]) -> list[str]:
    """Return the tensors that stand between nodes of the same operators as those between some nodes, of each in turn."""

    def edges(name: str) -> set[tuple[str, str, int]]:
        maker = network.nodes[network.producer[name]].op_type
        readers = (network.nodes[reader] for reader in network.consumers.get(name, ()))
        return {
            (maker, reader.op_type, slot)
            for reader in readers
            for slot, read in enumerate(reader.input)
            if read == name
        }

    known = {name: edges(name) for name in network.computed}
    between = _between(network, nodes)
    places = [other for name in between for other in known if known[name] & known[other]]
    return [] if {*places} == {*between} else places


def bar(
    session: Session, nodes: Collection[int], output: Path, most: int, *, everywhere: bool
) -> WorkaroundTried:
    """Find the fewest fusion barriers: Max or Einsum nodes, which compute nothing and which no runtime removes, or outputs."""
    subject = session.subject
    network, opset = subject.network, NetworkView(subject.network).opset
    near = _around(network, nodes)
    asked = 0
    tried = WorkaroundTried(
        "barrier", "barriers around the culprit", False, why="it fails with them too"
    )
    # What a compiler fuses wrongly here it fuses wrongly elsewhere too.
    places = alike(network, nodes)
    far = [*near, *network.computed] if everywhere else []
    # ONNX Runtime moves Transpose nodes through Max, and not through Einsum.
    transposes = any(node.op_type == "Transpose" for node in network.nodes)
    kinds: tuple[Barrier, ...] = ("Max", "Einsum") if transposes else ("Max",)
    where: list[tuple[Barrier, list[str]]] = [*product(kinds, (near, places, far))]
    where += (("output", names) for names in _fused(session))
    for op, names in where:
        can = [name for name in dict.fromkeys(names) if can_bar(subject.infos.get(name), opset, op)]
        if not can:
            continue
        change = partial(_barred, subject.infos, op, can)
        space = Space(partial(_tried_barriers, session, change))
        strategy = smallest_enough if op == "output" else keep_if_enough
        minimum = space.search(session.prober, partial(strategy, len(can), most - asked))
        asked += 1
        if minimum is not None and len(minimum.units) <= _MOST_BARRIERS:
            chosen = quoted([can[place] for place in sorted(minimum.units)], _SHOWN)
            words = f"a barrier ({BARRIERS[op]}, which prevents fusions) after {chosen}"
            workaround = WorkaroundTried("barrier", words, None)
            tried = _written(session, workaround, partial(change, minimum.units), output)
            if tried.passes:
                break
    return tried


def _barred(
    infos: Mapping[str, TensorInfo],
    op: Barrier,
    names: Sequence[str],
    units: Subset,
    network: Network,
) -> onnx.ModelProto:
    """Return a model with barriers after some of the tensors.

    Args:
        infos: The types and shapes of the tensors.
        op: The kind of barrier.
        names: The tensors.
        units: The places of those that get one.
        network: The model.
    """
    barred = [names[place] for place in sorted(units)]
    if op == "output":
        free = {name: replace(infos[name], shape=None) for name in barred}
        return mark_outputs(network, [*network.outputs, *barred], free)
    ranks = {name: len(infos[name].shape or ()) for name in barred} if op == "Einsum" else None
    return with_barriers(network, barred, ranks)


def _tried_barriers(
    session: Session, change: Callable[[Subset, Network], onnx.ModelProto], units: Subset
) -> Candidate:
    model = change(units, session.subject.network)
    return _candidate(session, model, f"{len(units)} barriers")


Fragments = Mapping[str, Sequence[Fragment]]
"""Places of a pattern by the name of the rule."""


def _plans(singly: Fragments, fragments: Fragments) -> Iterator[tuple[str, Sequence[Fragment]]]:
    """Yield what to rewrite: by each rule a few places, if it has more, and all; then all by all rules."""
    for name, everywhere in fragments.items():
        if len(singly.get(name, everywhere)) != len(everywhere):
            yield name, singly[name]
        yield name, everywhere
    if len(fragments) > 1:
        yield " and ".join(fragments), [*chain(*disjoint(fragments).values())]


def _anchors(view: NetworkView, plan: Sequence[Fragment]) -> str:
    """Return the nodes that are rewritten, or how many there are."""
    anchors = [view.network.describe(fragment.anchor) for fragment in plan]
    if len(anchors) <= _SHOWN:
        return first_few(anchors, _SHOWN)
    return f"{len(anchors)} nodes ({first_few(anchors, 1)})"


def rewrite(
    session: Session, nodes: Collection[int], output: Path, most: int, *, ranged: bool
) -> WorkaroundTried:
    """Try equivalent forms of the culprit's nodes, the cheapest first: at the culprit, then everywhere the pattern occurs.

    ``ranged`` says that values out of the precision's range are the problem.
    """
    subject = session.subject
    view = NetworkView(Network(subject.settings.load()))
    fragments = {name: matches(view, name) for name in (RULES if ranged else ALL_RULES)}
    candidates = {
        name: hit
        for name in fragments
        if (hit := [each for each in fragments[name] if each.matched & frozenset(nodes)])
    }
    if not candidates:
        return WorkaroundTried("rewrite", EQUIVALENT, None, why=NO_EQUIVALENT)
    # With several wrong places, a change of one of them cannot be enough.
    several = ranged and len(session.result.origins or ()) > 1
    plans = _plans({} if several else candidates, {name: fragments[name] for name in candidates})
    tried: list[str] = []
    for name, plan in islice(plans, most):
        change = partial(_spliced, plan)
        tried.append(f"{name} in {len(plan)} place{'s' if len(plan) > 1 else ''}")
        candidate = _candidate(session, change(subject.network), tried[-1])
        if session.prober.probe(candidate).passes:
            places = _anchors(view, plan)
            words = ALL_RULES[name][0] if name in ALL_RULES else "in other forms"
            return _written(
                session,
                WorkaroundTried("rewrite", f"{places} {words} ({name})", None),
                change,
                output,
            )
    return WorkaroundTried(
        "rewrite",
        f"other forms: {', '.join(candidates)}",
        False,
        why=f"tried without success: {'; '.join(tried)}",
    )


def _spliced(fragments: Sequence[Fragment], network: Network) -> onnx.ModelProto:
    return splice_in(NetworkView(network), fragments)


def work_around(
    session: Session,
    case: Case,
    whose: Whose,
    output: Path,
    most: int = _MOST,
    *,
    everywhere: bool = True,
    fixed: Mapping[Names, Candidate] | None = None,
) -> list[WorkaroundTried]:
    """Search workarounds, and put them into the result.

    Args:
        session: The model's session.
        case: The minimal case.
        whose: Which side is wrong.
        output: The file of a patched model.
        most: The largest number of questions about each kind.
        everywhere: Whether to try barriers outside the culprit too, and all kinds after one that
            passes.
        fixed: The models that switches fix, by their names.
    """
    order = session.subject.network.order
    nodes = frozenset(order[unit] for unit in case.minimum.units)
    ranged = whose == "precision"
    workarounds: list[WorkaroundTried] = []
    try:
        if ranged:
            workarounds.append(
                WorkaroundTried("barrier", "behind tensors of the culprit", None, why=NO_BARRIER)
            )
        else:
            workarounds += turn(session, fixed or {})
            workarounds.append(bar(session, nodes, output, most, everywhere=everywhere))
        passing = any(workaround.passes for workaround in workarounds)
        # `diagnose` needs one that holds; `workaround` lists each kind.
        if everywhere or not passing:
            workarounds.append(
                rewrite(
                    session,
                    nodes,
                    beside(output, "rewrite") if passing else output,
                    most,
                    ranged=ranged,
                )
            )
    except BudgetSpent as error:
        session.console.say(f"  {error}")
    for tried in workarounds:
        session.console.say(f"  {_joined(tried.what, tried.why)}")
    session.result.artifacts["patched"] = next(
        (workaround.file for workaround in workarounds if workaround.file is not None), None
    )
    session.result.workarounds = workarounds
    return workarounds


def work_around_limits(
    session: Session, check: CheckSettings, search: Search, output: Path
) -> Result:
    """Find the nodes that take the target past a limit, and a form of the model that keeps it; its values are compared too.

    Raises:
        DoesNotReproduce: No limit is exceeded.
        BudgetSpent: No more probes may be made.
        UsageError: The patched model cannot be written.
    """
    console = session.console
    subject = session.subject
    result = session.result
    console.step(f"Is the target past its limits ({len(subject.network.nodes)} nodes)?")
    session.probe_original(search)
    console.step(f"Which of {len(subject.units)} units take it there?", len(subject.units))
    minimum = find_minimum(session, Mode.AUTO)
    result.culprits = subject.describe_searched(minimum.units)
    fixed = name_cause(session, check)
    console.step("Search barriers and rewrites")
    # Else a form that slows the baseline down would pass.
    yardstick = subject.models.write("yardstick", subject.original.proto)
    prober = session.prober
    session = structs.replace(
        session, probing=replace(prober, check=prober.check.under(yardstick=yardstick))
    )
    work_around(session, Case(minimum), "target", output, fixed=fixed)
    session.conclude(minimum)
    return unless_none(result)


def unless_none(result: Result) -> Result:
    """Return a result; without a workaround that passes it has the status ``inconclusive``, and its nodes keep their proof."""
    if not any(workaround.passes for workaround in result.workarounds or ()):
        result.status = "inconclusive"
        result.why = _joined("no workaround was found", result.why)
    return result


def add_precision(result: Result) -> None:
    """Add the layers that stay in fp32, found by the search for precision, as a workaround."""
    file = result.artifacts.get("mixed")
    if (
        not isinstance(result.workarounds, list)
        or not isinstance(result.keep_fp32, list)
        or file is None
    ):
        return
    workaround = WorkaroundTried(
        "precision",
        f"{len(result.keep_fp32)} nodes in fp32",
        any(use.passed for use in result.uses or ()),
        file,
    )
    if validation := result.validation:
        workaround = structs.replace(
            workaround,
            worst_error=validation.worst_error,
            why=f"{validation.passed} of {validation.samples} fresh inputs pass",
            fresh=FreshCount(validation.samples, validation.passed),
        )
    result.workarounds.append(workaround)


def after_diagnosis(
    session: Session,
    check: CheckSettings,
    case: Case,
    whose: Whose,
    folder: Path,
    *,
    steady: bool,
) -> None:
    """Search workarounds with a few questions, as the last step of a diagnosis; print the command that searches further.

    Nothing is searched if the failure is not ``steady``, because a pass may be chance.
    """
    console = session.console
    result = session.result
    console.step("Search barriers and rewrites")
    command = session.command("workaround", check)
    workarounds = list[WorkaroundTried]()
    if not steady or check.runtime.target.compiles:
        add_precision(result)
        console.say(
            f"  not searched: each probe is a build; to search: {command}"
            if steady
            else "  not searched: the failure is flaky, so a pass may be chance"
        )
        return
    try:
        workarounds = work_around(
            session, case, whose, folder / PATCHED, _IN_A_DIAGNOSIS, everywhere=False
        )
    except BisectError as error:
        # An error here does not end the diagnosis.
        console.say(f"  no workaround was found: {error}")
    # The result adds the fix by precision.
    is_worked_around = any(workaround.passes for workaround in workarounds)
    add_precision(result)
    if not is_worked_around:
        console.answer(f"  to search further: {command}")
        if not any(workaround.passes for workaround in result.workarounds or ()):
            # Else precision is the fix.
            result.suggest(command)
