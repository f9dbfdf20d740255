"""``diagnose``: from a wrong model to the layers that cause it, the side that is wrong, a fix and a reproducer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bisect_trt.commands.arbitration import Fault, arbitrate
from bisect_trt.commands.call import Call
from bisect_trt.commands.cause import name_cause
from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.dynamic_dims import free_where_needed, needed_dimensions, tell_dynamic
from bisect_trt.commands.layerwise import tell, to_json
from bisect_trt.commands.marking import LayerComparison
from bisect_trt.commands.metric import diagnose_metric
from bisect_trt.commands.minimal_case import (
    HELD,
    Suspects,
    by_blame,
    extract_suspect,
    find_suspects,
    look_for_others,
    narrow_held,
    weak_suspects,
)
from bisect_trt.commands.preflight import advised, keep_worst_samples
from bisect_trt.commands.reduce import find_minimum
from bisect_trt.commands.releases import since_when
from bisect_trt.commands.reproducer import Delivered, Left, check_folder, leave_reproducer, make_folder
from bisect_trt.commands.rounding import rounding_alone
from bisect_trt.commands.session import Case, Session, saving_best
from bisect_trt.commands.shrink import shrink
from bisect_trt.commands.workarounds import after_diagnosis
from bisect_trt.mixed_precision.fix import find_fix
from bisect_trt.onnxlib.exported import in_module
from bisect_trt.onnxlib.network import Network
from bisect_trt.options.searches import Diagnose
from bisect_trt.options.shared import Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.console import Console
from bisect_trt.report.reproducer import MODEL, SCRIPT, Cause, Since
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum, Mode
from bisect_trt.targets.options import Target
from bisect_trt.worker.place import rerun_command

_SHOWN = 6
"""Nodes that a sentence names."""


@dataclass(frozen=True)
class DiagnoseSettings:
    """How to diagnose.

    Attributes:
        check: The target, its tolerances and the time a candidate may take.
        search: How the search is run.
        output: The folder for the reproducer.
        own: The options of the command.
    """

    check: CheckSettings
    search: Search
    output: Path
    own: Diagnose

    @property
    def archive(self) -> Path | None:
        """Where the folder goes as a ``.zip`` too, if it does."""
        folder = self.output if self.output.name else self.output.resolve()
        return folder.with_suffix(f"{folder.suffix}.zip") if self.own.archive else None

    def for_answer(self, answer: Candidate) -> CheckSettings:
        """The check with the target set up as the answer needs it, with another profile say."""
        return self.check if answer.target is None else replace(self.check, target=answer.target)


def diagnose(session: Session, settings: DiagnoseSettings) -> Result:
    """Find why the target differs from the reference, and write a reproducer that proves it.

    Raises:
        DoesNotReproduce: It does not differ.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    session.result.extra |= {"cause": [], "cause_detail": None, "workarounds": []}
    with saving_best(lambda: save_best(session, settings)):
        case, suspected = find_case(session, settings)
        if case is None:
            return session.result
        answer = judge_case(session, settings, case, suspected, step="5. ")
        left = deliver(session, settings, answer)
    if "amplified" in session.result.extra and answer.fault.whose != "target":
        session.console.answer(session.result.extra["amplified"]["sentence"])
    cause: list[Cause] = []
    since: Since | None = None
    try:
        if answer.fault.is_bug:
            cause = name_cause(session, settings.check, answer.whole)
        another = partial(deliver_another, session, settings) if settings.own.find_all else None
        look_for_others(session, answer.case, another)
        if answer.fault.is_targets:
            find_fix(session, settings.check, settings.search, answer.whole, settings.output)
            after_diagnosis(session, settings.check, answer.case, answer.fault, settings.output, steady=left.steady)
            since = since_when(session, settings.check, answer.whole, settings.output, asked=settings.own.releases)
        else:
            session.console.say("The target is not wrong, so there is nothing to work around.")
    finally:  # the texts count the probes of the whole run
        left.finish(describe_search(session, left.minimum), settings.archive, cause, since)
        if settings.archive is not None:
            session.result.artifacts["archive"] = str(settings.archive)
    return session.result


def find_case(session: Session, settings: DiagnoseSettings) -> tuple[Case | None, Sequence[int]]:
    """Confirm, locate, extract, reduce.

    Returns:
        The smallest that fails, ``None`` where many nodes amplify rounding and none fails alone; and the suspected nodes.
    """
    confirm(session, settings)
    outcome = session.prober.ledger.outcome(session.subject.original.key)
    amplified = rounding_alone(session.subject, settings.check, outcome.comparisons) if outcome else None
    if amplified is not None:
        session.console.say("  so does the reference with rounding added")
        session.result.extra["amplified"] = amplified
    suspects = locate(session, settings)
    case = extract_suspect(session, settings.check.target, suspects, "3. ")
    if case is None and amplified is not None and amplified["spread"]:
        stop_at_rounding(session, amplified)
        return None, suspects.nodes
    return reduce_all(session, settings, suspects, case), suspects.nodes


def stop_at_rounding(session: Session, amplified: Mapping[str, Any]) -> None:
    """The end where rounding alone fails the whole model: any piece of it may fail or not by its last digit."""
    result = session.result
    result.status, result.minimality = "inconclusive", "unproven"
    result.why = "rounding alone fails the model too, and no node fails alone"
    result.extra["fault"] = Fault("rounding", amplified["sentence"], {"op": amplified["op"]}).to_json()
    session.console.step("4. Reduce the whole model: not done, for its pieces amplify rounding wherever they are cut")
    session.console.answer(amplified["sentence"])


def confirm(session: Session, settings: DiagnoseSettings) -> None:
    """Step 1: does the target differ from the reference at all?"""
    subject, console = session.subject, session.console
    console.step(f"1. Does the target differ from the reference ({len(subject.network.nodes)} nodes)?")
    try:
        record = session.probe_original(settings.search)
        free_where_needed(session, passes=False)
    except DoesNotReproduce as error:
        if not free_where_needed(session, passes=True):
            raise advised(error, subject, settings.check) from error
        record = session.probe_original(settings.search)
    console.say(f"  yes: {record.reason}")


def locate(session: Session, settings: DiagnoseSettings) -> Suspects:
    """Step 2: which nodes make a wrong tensor of right ones?"""
    subject, console, target = session.subject, session.console, settings.check.target
    check = session.prober.runner.check
    assert target is not None
    assert isinstance(check, BuiltinCheck)
    console.step("2. Mark every tensor as an output: which goes wrong first?")
    if session.prober.ledger.is_broken:
        console.say("  the model does not run at all, so there is nothing to compare")

    def show(layers: LayerComparison) -> None:
        session.result.extra |= to_json(subject, layers)
        tell(subject, layers, console)

    return find_suspects(session, check, show) or weak_suspects(session, target)


def reduce_all(session: Session, settings: DiagnoseSettings, suspects: Suspects, case: Case | None) -> Case:
    """Step 4, unless there is a minimal case: reduce the whole model to the smallest that still fails."""
    subject, console = session.subject, session.console
    if case is not None:
        console.step("4. Reduce the whole model: not needed, the minimal case is known")
        return case
    console.step(f"4. Reduce the whole model: which of its {len(subject.units)} units are needed to fail?")
    minimum = find_minimum(session, Mode.AUTO, suspects.unit(subject.network))
    for step in minimum.steps:
        console.say(f"  {step}")
    return narrow_held(session, settings.check.target, Case(minimum))


def judge_case(
    session: Session,
    settings: DiagnoseSettings,
    case: Case,
    suspected: Sequence[int] = (),
    step: str | None = None,
) -> Delivered:
    """Shrink a case, and decide which side is wrong; ``step`` numbers the step that is printed before."""
    whole = needed_dimensions(session, session.settle(case))
    blamed = by_blame(session, whole, suspected)
    if step is not None:
        smaller = "shrink its tensors, and " if settings.search.shrink else ""
        words = f"{step}Deliver: {smaller}leave a reproducer in {settings.output} that still fails"
        session.console.step(words)
    small = shrink(session, whole) if settings.search.shrink else whole
    check = settings.for_answer(small)
    assert check.target is not None
    fault = arbitrate(session, check.target, check.tolerance, small)
    return Delivered(case, whole, small, blamed, fault, describe_answer(session.subject.network, blamed))


def deliver(session: Session, settings: DiagnoseSettings, answer: Delivered) -> Left:
    """Step 5: write a folder that shows the failure, and check that it does."""
    result = session.result
    left = leave(session, settings, answer, settings.output)
    session.conclude(left.minimum)
    result.culprits = session.subject.describe_nodes(answer.blamed)
    result.extra |= {"fault": answer.fault.to_json()} | ({"held": True} if answer.candidate.held else {})
    result.artifacts |= {"reproducer": str(settings.output), "reduced": str(left.files[0])}
    tell_answer(session, answer, f"{answer.sentence} ({result.proof}).", result.why, settings.output)
    if answer.candidate.held:
        session.console.answer(HELD)
    tell_dynamic(session, answer.candidate)
    return left


def deliver_another(session: Session, settings: DiagnoseSettings, case: Case, number: int) -> dict[str, Any]:
    """Write a folder for another failure beside that of the first; returns its entry in ``failures``."""
    answer = judge_case(session, settings, case)
    folder = settings.output.parent / f"{settings.output.resolve().name}-{number}"
    left = leave(session, settings, answer, folder)
    left.finish(describe_search(session, left.minimum), None)
    failure = session.failure(left.minimum, session.subject.describe_nodes(answer.blamed), left.files[0])
    tell_answer(session, answer, f"Another failure: {answer.sentence} ({failure['minimality']}).", None, folder)
    return {**failure, "fault": answer.fault.to_json()}


def leave(session: Session, settings: DiagnoseSettings, answer: Delivered, folder: Path) -> Left:
    """Write a folder that shows a failure."""
    check, how = settings.for_answer(answer.candidate), describe_search(session, answer.case.minimum)
    own = settings.own
    tracker = own.tracker.value if own.tracker else ""
    return leave_reproducer(session, check, answer, how, folder, anonymous=own.anonymise, tracker=tracker)


def tell_answer(session: Session, answer: Delivered, sentence: str, why: str | None, folder: Path) -> None:
    """Print an answer, which side is wrong, and how to see it again."""
    console, subject = session.console, session.subject
    console.answer(sentence)
    if why:
        console.answer(f"  {why[0].upper()}{why[1:]}.")
    tell_modules(subject.network, answer.blamed, console)
    console.answer(answer.fault.sentence)
    console.answer(f"To see it again: {rerun_command(folder / SCRIPT, subject.workers.places)}")


def save_best(session: Session, settings: DiagnoseSettings) -> None:
    """Write the smallest candidate that was seen to fail so far, where the reproducer would be."""
    if session.best is not None:
        make_folder(settings.output)
        session.save_best(settings.output / MODEL)


def describe_search(session: Session, minimum: Minimum) -> str:
    """How the answer was found, in words."""
    subject = session.subject
    any_one = "any one, or any two," if minimum.pairs else "any one"
    proof = f"1-minimal: without {any_one} of its units the rest does not fail" if minimum.proven else "unproven"
    return (
        f"By `bisect-trt diagnose` from a model of {len(subject.network.nodes)} nodes, {len(subject.units)} of them units "
        f"of the search, in {len(session.prober.ledger.records)} probes. The answer is {proof}."
    )


def tell_modules(network: Network, nodes: Sequence[int], console: Console) -> None:
    """Print the modules of the program that these nodes come from, each once, where the model's file has them."""
    modules = dict.fromkeys(filter(None, (in_module(network.plain(index)) for index in nodes)))
    for words in list(modules)[:_SHOWN]:
        console.answer(f" {words}")


def describe_answer(network: Network, nodes: Sequence[int]) -> str:
    """The answer in a sentence, the culprits first."""
    if len(nodes) == 1:
        return f"{network.describe(nodes[0])} fails alone"
    if not nodes:
        return "No node is needed to fail: what the model hands out of its inputs and weights as they are is off"
    names = ", ".join(network.describe(index) for index in nodes[:_SHOWN])
    return f"{len(nodes)} nodes fail together: {names}{', ...' if len(nodes) > _SHOWN else ''}"


def run(call: Call) -> Result:
    """Find why the target is wrong, and leave a reproducer.

    Raises:
        UsageError: An option is wrong, or the reproducer cannot be written.
        UnavailableError: The target or the reference cannot run the model.
    """
    own = call[Diagnose]
    target = call[Target].required()
    check = call.comparison(target, own.timeout)
    folder = own.output or Path(f"{own.model.stem.lstrip('-')}-reproducer".lstrip("-"))
    settings = DiagnoseSettings(check, call[Search], folder, own)
    check_folder(folder, settings.archive, overwrite=own.overwrite or call.resumed)
    call.open()
    # The latency of the original is what a fix is compared with, which does not build it again.
    timed = target.target.compiles and check.metric is None
    settings = replace(settings, check=replace(check, timed=timed))
    with call.subject(check.timeout, target, older=own.releases) as subject:
        if check.metric is None:
            keep_worst_samples(subject, settings.check, call.console, call.result)
        with call.investigated(subject, settings.check) as session:
            return diagnose(session, settings) if check.metric is None else diagnose_metric(session, settings)
