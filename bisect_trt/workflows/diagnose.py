"""The accuracy-debugging flow chart, walked from end to end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bisect_trt.graph.save import save_model
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce, Prober
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.reproducer import MODEL
from bisect_trt.reporting.result import Result
from bisect_trt.search.oracle import Minimum
from bisect_trt.search.question import over_units
from bisect_trt.search.strategy import minimise
from bisect_trt.search.verdict import Verdict
from bisect_trt.workflows.isolate import HELD, isolate
from bisect_trt.workflows.layerwise.hiding import report_hiding
from bisect_trt.workflows.layerwise.look import Look, compare_layers
from bisect_trt.workflows.layerwise.origins import Layerwise
from bisect_trt.workflows.layerwise.report import tell, to_json
from bisect_trt.workflows.precision.fix import find_fix
from bisect_trt.workflows.reproduce import conclude, probe_original
from bisect_trt.workflows.reproducer import Answer, Left, leave_reproducer, make_folder
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.shrink import shrink
from bisect_trt.workflows.subject import Subject


@dataclass(frozen=True)
class DiagnoseSettings:
    """How to diagnose.

    Attributes:
        check: The target, its tolerances and the time a candidate may take.
        search: How the search is run.
        output: The folder for the reproducer.
        archive: Where it goes as a ``.zip`` too, if it does.
        anonymous: Whether to rename what is in it and to replace its weights, if it fails then too.
    """

    check: CheckSettings
    search: SearchSettings
    output: Path
    archive: Path | None = None
    anonymous: bool = False


def diagnose(subject: Subject, prober: Prober, settings: DiagnoseSettings, console: Console, result: Result) -> Result:
    """Find why the target differs from the reference, and leave the proof.

    Raises:
        DoesNotReproduce: It does not differ.
    """
    confirm(subject, prober, settings, console, result)
    layers = None if is_broken(prober, console) else look_at_layers(subject, prober, settings, console, result)
    try:
        minimum = isolate(subject, prober, settings.check.target, layers, console) if layers else None
        if minimum is None:
            minimum = reduce_all(subject, prober, layers, console)
        else:
            console.step("4. Reduce the whole model: not needed, the minimal case is known")
        left = deliver(subject, prober, settings, minimum, console, result)
    except (BudgetSpent, KeyboardInterrupt):
        leave_best(subject, prober, settings, console, result)
        raise
    case = subject.cut(minimum.units)
    try:
        find_fix(subject, prober, settings.check, settings.search, case, settings.output, console, result)
    finally:  # the probes that its texts count are those of the whole run
        left.finish(describe_search(subject, prober, left.minimum), settings.archive)
        if settings.archive is not None:
            result.artifacts["archive"] = str(settings.archive)
    return result


def deliver(
    subject: Subject, prober: Prober, settings: DiagnoseSettings, minimum: Minimum, console: Console, result: Result
) -> Left:
    """Step 5: leave a folder that shows the failure, and see that it does."""
    candidate = subject.cut(minimum.units)
    subject.settle(prober.ledger.outcome(candidate.key))
    smaller = "shrink its tensors, and " if settings.search.shrink else ""
    console.step(f"5. Deliver: {smaller}leave a reproducer in {settings.output} that still fails")
    if settings.search.shrink:
        candidate = shrink(subject, prober, candidate, console)
    sentence = describe_answer(subject, candidate)
    answer = Answer(candidate, minimum, sentence, describe_search(subject, prober, minimum))
    left = leave_reproducer(subject, prober, settings.check, answer, settings.output, anonymous=settings.anonymous)
    conclude(prober, left.minimum, result)
    result.culprits = subject.describe_searched(candidate.units)
    result.artifacts |= {"reproducer": str(settings.output), "reduced": str(left.files[0])}
    console.answer(f"{sentence} ({result.minimality}).")
    if candidate.held:
        result.extra["held"] = True
        console.answer(HELD)
    console.answer(f"To see it again: python {settings.output / 'reproduce.py'}")
    return left


def leave_best(subject: Subject, prober: Prober, settings: DiagnoseSettings, console: Console, result: Result) -> None:
    """Write the smallest candidate that was seen to fail so far."""
    best = prober.ledger.best
    if best is None or best.key == subject.original.key:
        return
    make_folder(settings.output)
    path = settings.output / MODEL
    save_model(subject.cut(best.units).proto, subject.workspace.candidates, path)
    result.artifacts["reduced"] = str(path)
    result.culprits = subject.describe_searched(best.units)
    console.answer(f"{path}: the best so far, {subject.units.count(best.units)} units.")


def describe_search(subject: Subject, prober: Prober, minimum: Minimum) -> str:
    """How the answer was found, in words."""
    proof = "1-minimal: without any one of its units the rest does not fail" if minimum.proven else "unproven"
    return (
        f"By `bisect-trt diagnose` from a model of {len(subject.network.nodes)} nodes, {len(subject.units)} of them units "
        f"of the search, in {len(prober.ledger.records)} probes. The answer is {proof}."
    )


def confirm(subject: Subject, prober: Prober, settings: DiagnoseSettings, console: Console, result: Result) -> None:
    """Step 1: does the target differ from the reference at all?"""
    console.step(f"1. Does the target differ from the reference ({len(subject.network.nodes)} nodes)?")
    try:
        record = probe_original(subject, prober, settings.search, console, result)
    except DoesNotReproduce as error:
        steps = ", ".join(next_steps(subject, settings.check))
        raise DoesNotReproduce(f"{error} What to try next: {steps}.") from error
    console.say(f"  yes: {record.reason}")


def next_steps(subject: Subject, check: CheckSettings) -> list[str]:
    """What else may show the failure, after what was done already."""
    target, data = check.target, subject.settings.data
    steps: list[str] = []
    if target is not None and not target.low_precisions:
        steps.append("first the precision of the failing deployment (--fp16, --bf16, ...)")
    if data.load_inputs or data.data_loader_script is not None:
        steps.append("other samples of the failing deployment's inputs")
    else:
        steps += ["real input data (--load-inputs or --data-loader-script) instead of random values", "another --seed"]
    return [*steps, "a tighter --atol and --rtol", "the other options of the failing deployment"]


def is_broken(prober: Prober, console: Console) -> bool:
    """Whether the original does not even run, so that there are no tensors to look at."""
    broken = prober.ledger.is_broken
    if broken:
        console.say("  it does not run at all, so there is nothing to compare layer by layer: go on to reduce it")
    return broken


def look_at_layers(
    subject: Subject, prober: Prober, settings: DiagnoseSettings, console: Console, result: Result
) -> Layerwise | None:
    """Step 2: which tensor goes wrong first? ``None`` if looking does not show it."""
    check = settings.check
    assert check.target is not None
    console.step("2. Mark every tensor as an output: which goes wrong first?")
    look = Look(subject, check.target, check.tolerance, check.timeout)
    layers = compare_layers(look, prober.ledger.outcome(subject.original.key))
    if layers.refused:
        console.say(f"  the target does not run the model with every tensor marked: {layers.refused}")
        console.say("  so go on to reduce the whole model")
        return None
    result.extra |= to_json(subject, layers)
    tell(subject, layers, console)
    if layers.hidden:
        report_hiding(look, layers, prober, console, result, settings.search.budget.probes)
    if not (layers.outputs_fail and layers.origins):
        console.say("  so go on to reduce the whole model")
        return None
    return layers


def reduce_all(subject: Subject, prober: Prober, layers: Layerwise | None, console: Console) -> Minimum:
    """Step 4: reduce the whole model, step by step, to the smallest that still fails."""
    units = subject.units
    console.step(f"4. Reduce the whole model: which of its {len(units)} units are needed to fail?")
    minimum = prober.search(
        over_units(
            Verdict.FAIL,
            lambda ask: minimise(
                units.searched,
                ask,
                weights=units.with_weights,
                inseparable=units.bare,
                pattern=subject.patterns.around,
                suspect=subject.network.rank[layers.origins[0]] if layers is not None else None,
            ),
        ),
        subject.cut,
    )
    for step in minimum.steps:
        console.say(f"  {step}")
    return minimum


def describe_answer(subject: Subject, answer: Candidate) -> str:
    """The answer in a sentence."""
    network = subject.network
    nodes = [network.order[u] for u in sorted(answer.units) if not network.constant[network.order[u]]]
    if len(nodes) == 1:
        return f"{network.describe(nodes[0])} fails alone"
    names = ", ".join(network.describe(index) for index in nodes[:6])
    return f"{len(nodes)} nodes fail together: {names}{', ...' if len(nodes) > 6 else ''}"
