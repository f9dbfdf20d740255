"""The fewest nodes that have to stay in fp32 for the rest to run in fp16 or bf16."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from bisect_trt.graph.save import check_output
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import DoesNotReproduce, Prober
from bisect_trt.probing.prompt import Undo
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.search.verdict import Verdict
from bisect_trt.tensors.tolerance import Precision
from bisect_trt.workflows.engine_precision import fp32_layers
from bisect_trt.workflows.latency import fastest, latencies
from bisect_trt.workflows.precision_layers import LayerLowering, engine_path, trtexec_line
from bisect_trt.workflows.precision_lowering import CastLowering, Lowering
from bisect_trt.workflows.precision_report import Answer, checker_problem, fill_in, tell_answer, tell_suspects
from bisect_trt.workflows.precision_search import Low, find_suspects, refusal, search_keep
from bisect_trt.workflows.precision_units import known_types, lowerable_units, refuse_lowered
from bisect_trt.workflows.reproduce import conclude, probe_original
from bisect_trt.workflows.settings import CheckSettings, SearchSettings
from bisect_trt.workflows.subject import Subject


class Minimise(str, Enum):
    """What an answer has the least of."""

    NODES = "nodes"
    """Nodes in fp32."""
    LATENCY = "latency"
    """Milliseconds, among the sets of nodes that were seen to be enough."""


@dataclass(frozen=True)
class PrecisionSettings:
    """What to lower, and where the answer goes.

    Attributes:
        output: The mixed-precision model.
        precision: What to lower to.
        target: The runtime that the built-in check compares with the reference; ``None`` for a check command or prompts.
        include: If any, only nodes that one of these patterns matches are lowered.
        exclude: Nodes that one of these matches are not.
        io_low: Whether graph inputs and outputs are lowered as well.
        keep_weights: Whether weights stay in fp32.
        overwrite: Whether a file that exists may be written over.
        by_layer: Whether the target lowers layer by layer, rather than run models that are lowered already.
        minimise: What to have the least of.
    """

    output: Path
    precision: Low
    target: TargetSettings | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    io_low: bool = False
    keep_weights: bool = False
    overwrite: bool = False
    by_layer: bool = False
    minimise: Minimise = Minimise.NODES

    @property
    def emulated(self) -> bool:
        """Whether candidates run where low-precision nodes would be computed in fp32: ONNX Runtime's CPU provider."""
        target = self.target
        if target is None or target.runtime != "onnxrt":
            return False
        return all(name.lower().removesuffix("executionprovider") == "cpu" for name in target.providers)


def check_outputs(settings: PrecisionSettings) -> None:
    """Make sure that the answer can be written.

    Raises:
        UsageError: It cannot.
    """
    check_output(settings.output, overwrite=settings.overwrite)


def built_in_check(check: CheckSettings, subject: Subject, precision: Low) -> CheckSettings:
    """The check for candidates that are lowered already.

    The target takes them as they are. Tolerances that were not given become those of the low precision, as numbers: the
    outputs are always the original's.

    Raises:
        UsageError: A tolerance names no output.
    """
    if check.target is None:
        return check
    tolerance = replace(check.tolerance, precision=Precision(precision))
    tolerance.check_names(subject.network.outputs)
    atol, rtol = dict(tolerance.atol), dict(tolerance.rtol)
    for name, value in subject.reference.select(subject.network.outputs).items():
        resolved = tolerance.for_output(name)[0].resolve(value, tolerance.precision)
        atol[name], rtol[name] = resolved.atol, resolved.rtol
    target = check.target if check.by_layer else replace(check.target, fp16=False, bf16=False)
    timed = target.runtime == "trt"
    return replace(check, target=target, tolerance=replace(tolerance, atol=atol, rtol=rtol), timed=timed)


def make_lowering(subject: Subject, settings: PrecisionSettings) -> Lowering:
    """The way of lowering that the target needs.

    Raises:
        UsageError: The model is not an fp32 one, a pattern matches nothing, or there is nothing to lower.
    """
    refuse_lowered(subject.network, str(subject.settings.path))
    units = lowerable_units(subject, settings.precision, known_types(subject), settings.include, settings.exclude)
    cast = CastLowering(
        subject,
        units,
        settings.precision,
        emulated=settings.emulated,
        lower_ends=settings.io_low,
        keep_weights=settings.keep_weights,
    )
    target = settings.target
    return cast if target is None or not settings.by_layer else LayerLowering(subject, units, target, cast)


def find_precision(
    subject: Subject,
    prober: Prober,
    lowering: Lowering,
    settings: PrecisionSettings,
    search: SearchSettings,
    console: Console,
    result: Result,
) -> Result:
    """See that precision is the reason, search, write the answer, probe it once more.

    Raises:
        DoesNotReproduce: The model fails in fp32 too, or passes lowered.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    result.extra |= {"keep_fp32": [], "latency_ms": None}
    while True:
        try:
            return _find(subject, prober, lowering, settings, search, console, result)
        except (KeyboardInterrupt, BudgetSpent):
            save_best(subject, prober, lowering, settings, console, result)
            raise
        except Undo:  # everything that was answered before is remembered, so starting over comes back to it
            undone = prober.ledger.forget_last()
            console.say(f"  took back probe {undone.number}" if undone else "  there is nothing to take back")


def _find(
    subject: Subject,
    prober: Prober,
    lowering: Lowering,
    settings: PrecisionSettings,
    search: SearchSettings,
    console: Console,
    result: Result,
) -> Result:
    low, count = settings.precision, len(lowering.units)
    console.step(f"What in the reference run speaks against {low} ({count} nodes can be lowered)?")
    suspects = find_suspects(subject, lowering, low)
    tell_suspects(subject, suspects, console)
    console.step(f"Probe all {count} in fp32, then all in {low}, then search for the fewest to keep in fp32")
    if search.repeat > 1:
        measure_lowered(subject, prober, lowering, search, console, result)
    minimum = search_keep(subject, prober, lowering, suspects)
    if settings.minimise is Minimise.LATENCY:
        minimum = fastest(prober, lowering, minimum)
    for step in minimum.steps:
        console.say(f"  {step}")
    return deliver(subject, prober, lowering, settings, Answer(minimum, suspects), console, result)


def measure_lowered(
    subject: Subject, prober: Prober, lowering: Lowering, search: SearchSettings, console: Console, result: Result
) -> None:
    """Measure how often the model fails with everything lowered.

    Raises:
        DoesNotReproduce: It never does.
    """
    try:
        probe_original(subject, prober, search, console, result, lowering.candidate(frozenset()))
    except DoesNotReproduce:
        raise refusal(prober, lowering, frozenset()) from None


def deliver(
    subject: Subject,
    prober: Prober,
    lowering: Lowering,
    settings: PrecisionSettings,
    answer: Answer,
    console: Console,
    result: Result,
) -> Result:
    """Write the answer, read it back, and probe what was read."""
    console.step("Written and read back: does it pass?")
    minimum = write_answer(subject, prober, lowering, settings, answer, result)
    conclude(prober, minimum, result)
    result.culprits = subject.describe_searched(minimum.units)
    tell_answer(settings, result, console)
    return result


def checkable(subject: Subject) -> Path:
    """The original with its weights beside it, which is where the checker looks for them."""
    if subject.settings.external_data_dir is None:
        return subject.settings.path
    copy = subject.workspace.scratch(subject.settings.path.name)  # its weights lie in that folder
    shutil.copyfile(subject.settings.path, copy)
    return copy


def write_answer(
    subject: Subject, prober: Prober, lowering: Lowering, settings: PrecisionSettings, answer: Answer, result: Result
) -> Minimum:
    """Write the mixed model, read it back, and probe what was read.

    Returns:
        The answer; unproven if what was written does not pass.
    """
    keep, minimum = answer.minimum.units, answer.minimum
    lowering.write(keep, settings.output)
    record = prober.probe(lowering.read_back(keep, settings.output), again=True)
    problem = checker_problem(checkable(subject), settings.output) if lowering.writes_model(settings.output) else None
    if record.verdict is not Verdict.PASS:
        minimum = replace(minimum, proven=False, why=f"the final re-check disagreed: {record.reason}")
    elif problem is not None:
        minimum = replace(minimum, proven=False, why=f"ONNX's checker refuses {settings.output}: {problem}")
    result.artifacts["mixed"] = str(settings.output)
    fill_in(subject, lowering, settings, answer, prober.last_outcome, result)
    add_measures(subject, prober, lowering, settings, keep, result)
    return minimum


def add_measures(
    subject: Subject, prober: Prober, lowering: Lowering, settings: PrecisionSettings, keep: Subset, result: Result
) -> None:
    """Put how long it runs, and where its engine is, into a result that has the answer."""
    result.extra["latency_ms"] = latencies(prober, lowering, keep)
    network, outcome = subject.network, prober.ledger.outcome(lowering.candidate(keep).key)
    kept = frozenset(network.order[unit] for unit in keep)
    result.extra["ran_fp32"] = fp32_layers(network, outcome.layers, kept) if outcome is not None else None
    if settings.by_layer and settings.target is not None:
        result.artifacts["engine"] = str(engine_path(settings.output))
        result.extra["trtexec"] = trtexec_line(subject, settings.target, result.extra["keep_fp32"])


def save_best(
    subject: Subject,
    prober: Prober,
    lowering: Lowering,
    settings: PrecisionSettings,
    console: Console,
    result: Result,
) -> None:
    """Write the model with the fewest nodes in fp32 that was seen to pass so far."""
    best = best_keep(prober, lowering)
    if best is None:
        return
    lowering.write(best, settings.output)
    minimum = Minimum(best, proven=False, why="the search did not come to its end")
    result.culprits = subject.describe_searched(best)
    result.artifacts["mixed"] = str(settings.output)
    fill_in(
        subject, lowering, settings, Answer(minimum, find_suspects(subject, lowering, settings.precision)), None, result
    )
    add_measures(subject, prober, lowering, settings, best, result)
    console.answer(f"{settings.output}: the best so far, {len(best)} of {len(lowering.units)} nodes in fp32.")


def best_keep(prober: Prober, lowering: Lowering) -> Subset | None:
    """The smallest set of units that was seen to be enough, if there is one but all of them."""
    everything = frozenset(lowering.units)
    passed = {identity.units for identity in prober.ledger.passed if identity.units < everything}
    return min(passed, key=lambda units: (len(units), sorted(units)), default=None)
