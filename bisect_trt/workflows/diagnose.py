"""The accuracy-debugging flow chart, walked from end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bisect_trt.graph.exported import in_module
from bisect_trt.graph.network import Network
from bisect_trt.options.searches import Diagnose
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.issue import Cause, Since
from bisect_trt.reporting.reproducer import MODEL, SCRIPT
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Minimum, Search, Verdict
from bisect_trt.workflows.blame import by_blame
from bisect_trt.workflows.cause import name_cause
from bisect_trt.workflows.dynamic import needed_dimensions, say_dynamic
from bisect_trt.workflows.fault.amplified import MOST_QUESTIONS, Amplified, rounding_alone
from bisect_trt.workflows.fault.arbitrate import arbitrate
from bisect_trt.workflows.fault.fault import Fault
from bisect_trt.workflows.foresight import Foresight
from bisect_trt.workflows.freed import free_where_needed
from bisect_trt.workflows.investigation import Case, Investigation, saving_best
from bisect_trt.workflows.layerwise.hiding import report_hiding
from bisect_trt.workflows.layerwise.look import Look, compare_layers
from bisect_trt.workflows.layerwise.telling import tell, to_json
from bisect_trt.workflows.minimal_case import (
    HELD,
    Suspects,
    extract_suspect,
    named_suspects,
    narrow_held,
    weak_suspects,
)
from bisect_trt.workflows.next_steps import advised
from bisect_trt.workflows.others import Other, asked_next, look_for_others, next_failure
from bisect_trt.workflows.precision.fix import find_fix
from bisect_trt.workflows.releases.since import since_when
from bisect_trt.workflows.reproducer import Answer, Left, check_folder, in_folder, leave_reproducer, make_folder
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.shrink import shrink
from bisect_trt.workflows.workaround.workaround import after_diagnosis

MOST_PASSED_OVER = 3
"""So many answers about which nobody is wrong are gone beyond at most: each is a search."""
_SHOWN = 6
"""Nodes that a sentence names."""


@dataclass(frozen=True)
class DiagnoseSettings:
    """How to diagnose.

    Attributes:
        check: The target, its tolerances and the time a candidate may take.
        search: How the search is run.
        output: The folder for the reproducer.
        archive: Where it goes as a ``.zip`` too, if it does.
        anonymous: Whether to rename what is in it and to replace its weights, if it fails then too.
        find_all: Whether to go on with the rest of the model, as long as that fails.
        releases: Whether to find since which release it fails, which installs some.
    """

    check: CheckSettings
    search: SearchSettings
    output: Path
    archive: Path | None = None
    anonymous: bool = False
    find_all: bool = False
    releases: bool = False

    @classmethod
    def of(
        cls, own: Diagnose, check: CheckSettings, search: SearchSettings, folder: Path, *, overwrite: bool
    ) -> DiagnoseSettings:
        """Those of a command, or of a Python function, from its options.

        Raises:
            UsageError: The reproducer cannot be left in the folder; see :func:`check_folder`.
        """
        packed = (folder if folder.name else folder.resolve()).with_suffix(f"{folder.suffix}.zip")
        archive = packed if own.archive else None
        check_folder(folder, archive, overwrite=overwrite)
        return cls(check, search, folder, archive, own.anonymise, own.find_all, own.releases)

    def for_answer(self, answer: Candidate) -> DiagnoseSettings:
        """The same with the target set up as the answer needs it, with another profile say."""
        if answer.target is None:
            return self
        return replace(self, check=replace(self.check, target=answer.target))


def diagnose(investigation: Investigation, settings: DiagnoseSettings) -> Result:
    """Find why the target differs from the reference, and leave the proof.

    Raises:
        DoesNotReproduce: It does not differ.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    foresight = foresee(investigation, settings)
    confirm(investigation, settings)
    amplified = what_rounding_does(investigation, settings)
    with saving_best(lambda: leave_best(investigation, settings)):
        suspects = who_is_named(investigation) or look_at_layers(investigation, settings, foresight)
        foresight.expect(suspects if suspects.grow and not investigation.prober.ledger.is_broken else Suspects())
        case = extract_suspect(investigation, settings.check.target, suspects, "3. ")
        case = reduce_all(investigation, settings, suspects, case, limited=amplified is not None)
        first = judged(investigation, settings, case, suspects.nodes, step="5. ")
        found, passed_over = beyond_ties(investigation, settings, first, limited=amplified is not None)
        left = deliver(investigation, settings, found)
    case, answer, fault = found.case, found.answer, found.fault
    if amplified is not None and fault.whose != "target":
        investigation.console.answer(amplified.sentence)

    def another(other: Case, number: int) -> dict[str, Any]:
        return deliver_another(investigation, settings, judged(investigation, settings, other), number)

    cause: list[Cause] = []
    since: Since | None = None
    try:
        cause = name_cause(investigation, settings.check, answer, fault.whose)
        also = [
            Other(each.case.minimum.units, deliver_another(investigation, settings, each, number))
            for number, each in enumerate(passed_over, 2)
        ]
        look_for_others(investigation, case, another if settings.find_all else None, also=also)
        find_fix(investigation, settings.check, settings.search, answer, settings.output)
        after_diagnosis(investigation, settings.check, case, fault, settings.output, steady=left.steady)
        since = since_when(investigation, settings.check, answer, settings.output, asked=settings.releases)
    finally:  # the probes that its texts count are those of the whole run
        left.finish(describe_search(investigation, left.minimum), settings.archive, cause, since)
        if settings.archive is not None:
            investigation.result.artifacts["archive"] = str(settings.archive)
    return investigation.result


def foresee(investigation: Investigation, settings: DiagnoseSettings) -> Foresight:
    """Begin what comes after the first step, where there is room for it."""

    def delivered(told: Investigation, case: Case) -> None:
        small = needed_dimensions(told, told.settle(case))
        stripped = in_folder(shrink(told, small) if settings.search.shrink else small)
        if not settings.anonymous:
            told.prober.probe(stripped, again=True)

    return Foresight(investigation, Look.by(investigation.subject, settings.check), delivered)


def confirm(investigation: Investigation, settings: DiagnoseSettings) -> None:
    """Step 1: does the target differ from the reference at all?"""
    subject, console = investigation.subject, investigation.console
    console.step(f"1. Does the target differ from the reference ({len(subject.network.nodes)} nodes)?")
    try:
        record = investigation.probe_original(settings.search)
        free_where_needed(investigation, passes=False)
    except DoesNotReproduce as error:
        if free_where_needed(investigation, passes=True):
            record = investigation.probe_original(settings.search)
            console.say(f"  yes: {record.reason}")
            return
        outcome = investigation.prober.ledger.outcome(subject.original.key)
        raise advised(error, subject, settings.check, outcome) from error
    console.say(f"  yes: {record.reason}")


def what_rounding_does(investigation: Investigation, settings: DiagnoseSettings) -> Amplified | None:
    """What rounding alone does to the model, where that fails it as the target does."""
    subject, check = investigation.subject, settings.check
    outcome = investigation.prober.ledger.outcome(subject.original.key)
    if check.target is None or outcome is None:
        return None
    amplified = rounding_alone(subject, check.target, check.tolerance, list(outcome.comparisons))
    if amplified is not None:
        investigation.console.say(f"  {amplified.seen}")
        investigation.result.extra["amplified"] = amplified.to_json()
    return amplified


def who_is_named(investigation: Investigation) -> Suspects | None:
    """Step 2 where the original does not even run, so that there are no tensors to look at: whom does the target name?"""
    if not investigation.prober.ledger.is_broken:
        return None
    investigation.console.step("2. Mark every tensor as an output: not done, for it does not run as it is")
    investigation.console.say(
        "  it does not run at all, so there is nothing to compare layer by layer: go on to reduce it"
    )
    return named_suspects(investigation)


def look_at_layers(
    investigation: Investigation, settings: DiagnoseSettings, foresight: Foresight | None = None
) -> Suspects:
    """Step 2: which tensor goes wrong first? Nobody is suspected if looking does not show it.

    Where something was begun meanwhile, ``foresight`` has it.
    """
    subject, console, check = investigation.subject, investigation.console, settings.check
    assert check.target is not None
    console.step("2. Mark every tensor as an output: which goes wrong first?")
    look, original = Look.by(subject, check), investigation.prober.ledger.outcome(subject.original.key)
    layers = compare_layers(look, original) if foresight is None else foresight.compare_layers(original)
    if layers.refused:
        console.say(f"  the target does not run the model with every tensor marked: {layers.refused}")
        console.say("  so go on to reduce the whole model")
        return weak_suspects(subject, check.target)
    investigation.result.extra |= to_json(subject, layers)
    tell(subject, layers, console)
    if layers.hidden:
        report_hiding(investigation, look, layers, settings.search.budget.probes)
    if not (layers.outputs_fail and layers.origins):
        console.say("  so go on to reduce the whole model")
        return weak_suspects(subject, check.target)
    return Suspects(layers.origins)


def reduce_all(
    investigation: Investigation,
    settings: DiagnoseSettings,
    suspects: Suspects,
    case: Case | None,
    *,
    limited: bool = False,
) -> Case:
    """Step 4, unless there is a minimal case: reduce the whole model, step by step, to the smallest that still fails.

    Where it is ``limited``, because rounding alone fails the model, whose pieces need be no answer, the smallest after some
    questions is taken.
    """
    subject, console = investigation.subject, investigation.console
    if case is not None:
        console.step("4. Reduce the whole model: not needed, the minimal case is known")
        return case
    console.step(f"4. Reduce the whole model: which of its {len(subject.units)} units are needed to fail?")
    suspect, most = suspects.unit(subject.network), MOST_QUESTIONS if limited else None
    rest = asked_next(investigation)
    search = Search(Verdict.FAIL, lambda oracle: investigation.minimise(oracle, suspect=suspect, most=most), rest)
    minimum = investigation.found(investigation.prober.search(search, subject.cut, subject.original))
    if limited and minimum.why is not None and not minimum.proven:
        minimum = replace(minimum, why=f"{minimum.why}, for rounding alone fails the model too")
    for step in minimum.steps:
        console.say(f"  {step}")
    return narrow_held(investigation, settings.check.target, Case(minimum))


@dataclass(frozen=True)
class Judged:
    """An answer before it is delivered.

    Attributes:
        case: What the search ended with.
        answer: It as a candidate.
        small: The same, its tensors shrunk where that is wanted.
        blamed: Its nodes, the guilty first.
        fault: Whose fault it is.
    """

    case: Case
    answer: Candidate
    small: Candidate
    blamed: Sequence[int]
    fault: Fault


def judged(
    investigation: Investigation,
    settings: DiagnoseSettings,
    case: Case,
    suspected: Sequence[int] = (),
    step: str | None = None,
) -> Judged:
    """Shrink a case, and ask whose fault it is; ``step`` says that it is about to be delivered."""
    answer = needed_dimensions(investigation, investigation.settle(case))
    blamed = by_blame(investigation, answer, suspected)
    if step is not None:
        smaller = "shrink its tensors, and " if settings.search.shrink else ""
        words = f"{step}Deliver: {smaller}leave a reproducer in {settings.output} that still fails"
        investigation.console.step(words)
    small = shrink(investigation, answer) if settings.search.shrink else answer
    check = settings.for_answer(small).check
    assert check.target is not None
    return Judged(
        case, answer, small, blamed, arbitrate(investigation, investigation.held(check.target), check.tolerance, small)
    )


def beyond_ties(
    investigation: Investigation, settings: DiagnoseSettings, first: Judged, *, limited: bool
) -> tuple[Judged, Sequence[Judged]]:
    """Go on with the rest of the model while nobody is wrong about what was found, since somebody may be about that.

    Not with a budget, which is the first answer's; once where rounding alone fails the model.

    Returns:
        The answer: the first that somebody may be wrong about, else the first; and the others.
    """
    found, budget = [first], settings.search.budget
    most = 0 if budget.probes is not None or budget.seconds is not None else 1 if limited else MOST_PASSED_OVER
    while found[-1].fault.is_nobodys and len(found) <= most:
        name = describe_answer(investigation.subject.network, found[-1].blamed)
        investigation.console.say(f"  {name}, and nobody is wrong ({found[-1].fault.whose}): is that all?")
        taken = frozenset().union(*(each.case.minimum.units for each in found))
        other = next_failure(investigation, first.case, taken, most=MOST_QUESTIONS if limited else None)
        if other is None:
            break
        found.append(judged(investigation, settings, other))
    answer = found[-1] if not found[-1].fault.is_nobodys else first
    return answer, [each for each in found if each is not answer]


def deliver(investigation: Investigation, settings: DiagnoseSettings, found: Judged) -> Left:
    """Step 5: leave a folder that shows the failure, and see that it does."""
    subject, console, result = investigation.subject, investigation.console, investigation.result
    left, sentence = leave(investigation, settings, found, settings.output)
    investigation.conclude(left.minimum)
    result.culprits = subject.describe_nodes(found.blamed)
    result.extra["fault"] = found.fault.to_json()
    result.artifacts |= {"reproducer": str(settings.output), "reduced": str(left.files[0])}
    console.answer(f"{sentence} ({result.proof}).")
    if result.why:
        console.answer(f"  {result.why[0].upper()}{result.why[1:]}.")
    tell_modules(subject.network, found.blamed, console)
    console.answer(found.fault.sentence)
    if found.small.held:
        result.extra["held"] = True
        console.answer(HELD)
    say_dynamic(investigation, found.small)
    console.answer(f"To see it again: {subject.where.again(settings.output / SCRIPT)}")
    return left


def leave(investigation: Investigation, settings: DiagnoseSettings, found: Judged, folder: Path) -> tuple[Left, str]:
    """Leave a folder that shows a failure; what is in it, and the answer in a sentence."""
    sentence = describe_answer(investigation.subject.network, found.blamed)
    how, minimum = describe_search(investigation, found.case.minimum), found.case.minimum
    answer = Answer(found.small, minimum, sentence, how, found.blamed, found.fault)
    check = settings.for_answer(found.small).check
    return leave_reproducer(investigation, check, answer, folder, anonymous=settings.anonymous), sentence


def leave_best(investigation: Investigation, settings: DiagnoseSettings) -> None:
    """Write the smallest candidate that was seen to fail so far, where the reproducer would be."""
    if investigation.best is not None:
        make_folder(settings.output)
        investigation.save_best(settings.output / MODEL)


def deliver_another(
    investigation: Investigation, settings: DiagnoseSettings, found: Judged, number: int
) -> dict[str, Any]:
    """Leave a folder for another failure beside that of the first, and say what the result does of it."""
    subject, whole = investigation.subject, settings.output.resolve()
    folder = settings.output.parent / f"{whole.name}-{number}"
    left, sentence = leave(investigation, settings, found, folder)
    left.finish(describe_search(investigation, left.minimum), None)
    failure = investigation.failure(left.minimum, subject.describe_nodes(found.blamed), left.files[0])
    investigation.console.answer(f"Another failure: {sentence} ({failure['minimality']}).")
    tell_modules(subject.network, found.blamed, investigation.console)
    investigation.console.answer(found.fault.sentence)
    investigation.console.answer(f"To see it again: {subject.where.again(folder / SCRIPT)}")
    return {**failure, "fault": found.fault.to_json()}


def describe_search(investigation: Investigation, minimum: Minimum) -> str:
    """How the answer was found, in words."""
    subject = investigation.subject
    any_one = "any one, or any two," if minimum.pairs else "any one"
    proof = f"1-minimal: without {any_one} of its units the rest does not fail" if minimum.proven else "unproven"
    return (
        f"By `bisect-trt diagnose` from a model of {len(subject.network.nodes)} nodes, {len(subject.units)} of them units "
        f"of the search, in {len(investigation.prober.ledger.records)} probes. The answer is {proof}."
    )


def tell_modules(network: Network, nodes: Sequence[int], console: Console) -> None:
    """Say which modules of the program these nodes come from, each once, where the model's file says more than their names."""
    said = dict.fromkeys(filter(None, (in_module(network.plain(index)) for index in nodes)))
    for words in list(said)[:_SHOWN]:
        console.answer(f" {words}")


def describe_answer(network: Network, nodes: Sequence[int]) -> str:
    """The answer in a sentence, the guilty first."""
    if len(nodes) == 1:
        return f"{network.describe(nodes[0])} fails alone"
    if not nodes:
        return "No node is needed to fail: what the model hands out of its inputs and weights as they are is off"
    names = ", ".join(network.describe(index) for index in nodes[:_SHOWN])
    return f"{len(nodes)} nodes fail together: {names}{', ...' if len(nodes) > _SHOWN else ''}"
