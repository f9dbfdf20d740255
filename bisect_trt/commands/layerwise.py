"""``layerwise``: compare every tensor on the target with the reference's, and find the first that is wrong.

With ``--isolate`` each layer is also run by itself: all layers in one model, each fed the reference's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.commands.call import Call
from bisect_trt.commands.checks import make_prober
from bisect_trt.commands.layer_report import engine_layers, tell, to_json
from bisect_trt.commands.marking import (
    MOST_BUILDS,
    LayerComparison,
    LayerRun,
    Marking,
    compare_layers,
    gather,
    of_samples,
)
from bisect_trt.commands.metric_commands import layerwise_scored
from bisect_trt.commands.record import recorded
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings, SearchSettings, tolerance_options
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.pieces import is_frozen, isolate
from bisect_trt.options.compare import Compare
from bisect_trt.options.searches import Layerwise
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.outcome import Ending
from bisect_trt.probe.prober import Prober, reconfirm
from bisect_trt.report.plots import check_plot, save_layer_curve
from bisect_trt.report.result import Result
from bisect_trt.search.keep import keep_if_enough
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions

MOST_QUESTIONS = 24
"""About marks that hide the failure: one mark among a thousand takes about a dozen."""
_SHOWN = 5
"""More marks than these go into a file."""
_USEFUL = 20
"""Each mark is a tensor that is computed, kept and copied out; more than this many are no workaround."""
MARKS = "marks.txt"


@dataclass(frozen=True)
class LayerwiseSettings:
    """How to compare every tensor.

    Attributes:
        target: The runtime under suspicion.
        tolerance: How far a tensor may be off.
        timeout: Seconds that one run may take.
        isolated: Whether to measure the error that each layer adds by itself too.
        error_plot: Where the error along the network is drawn, if it is.
    """

    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    isolated: bool = False
    error_plot: Path | None = None


def layerwise(session: Session, settings: LayerwiseSettings) -> Result:
    """Compare every tensor, and name the first node that is wrong.

    Raises:
        UnavailableError: The target does not run the model with tensors marked.
    """
    subject, console, result = session.subject, session.console, session.result
    look = Marking(subject, settings.target, settings.tolerance, settings.timeout)
    console.step(f"{settings.target.describe()} against the reference, every tensor an output")
    original, plain = look.unmarked()
    layers = compare_layers(look, original)
    if layers.refused:
        raise UnavailableError(
            f"the target does not run the model with every tensor marked: {layers.refused}. `diagnose` and `reduce` go "
            "on without marks."
        )
    layers = replace(layers, engine=engine_layers(subject.network, plain.layers))
    if settings.isolated:
        own = compare_own(look)
        if own.refused:
            console.warn(f"the target does not run the layers alone: {own.refused}.")
        layers = replace(layers, own=own.tensors, own_unseen=own.unseen)
    result.extra |= to_json(subject, layers)
    tell(subject, layers, console)
    if layers.hidden:
        console.say(f"  without marks: {original.reason}")
        return _hidden(session, look, layers)
    result.culprits = subject.describe_searched(subject.network.rank[index] for index in layers.origins[:1])
    result.status, result.minimality = "found" if layers.origins else "not_reproduced", "1-minimal"
    if not layers.origins:
        console.answer("Every tensor matches.")
        return result
    console.answer(f"First mismatch: {subject.network.describe(layers.origins[0])}.")
    if original.ending is Ending.PASSED:
        console.answer("The model's own outputs match all the same: the error does not get there.")
    return result


def _hidden(session: Session, look: Marking, layers: LayerComparison) -> Result:
    """Find the marks that make the failure vanish."""
    console, result = session.console, session.result
    result.status = "inconclusive"
    result.why = "marking tensors hides the failure, so they do not show where it begins"
    check = CheckSettings(target=look.target, tolerance=look.tolerance, timeout=look.timeout)
    prober = make_prober(check, SearchSettings(workers=1), look.subject, console)
    try:
        searching = replace(session, probing=prober)
        with recorded(searching, look.target):
            prober.probe_original(look.subject.original)
            report_hiding(searching, look, layers)
    finally:
        prober.ledger.close()
    console.answer("Marking hides the failure; `bisect-trt diagnose` goes on without marks.")
    return result


@dataclass(frozen=True)
class Own:
    """The error that each layer adds.

    Attributes:
        tensors: How far a tensor is off when its node is fed the reference's values, in topological order.
        unseen: The tensors for which that is not known, with the reason.
        builds: How many models the target was given.
        refused: Why the target did not run the first of them, if so.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    builds: int
    refused: str | None = None


def compare_own(look: Marking, names: Sequence[str] | None = None, most: int = MOST_BUILDS) -> Own:
    """Feed every layer the reference's values, all in one model, or in groups where the target refuses that.

    Args:
        look: Runs the model.
        names: The tensors whose makers are run; ``None`` for all.
        most: How many models the target may be given.
    """
    subject, network, infos = look.subject, look.subject.network, look.subject.reference.infos
    wanted = [name for name in look.wanted if names is None or name in names]
    frozen = _frozen(subject)
    left_out: dict[str, str] = {}

    def is_fragile(name: str) -> bool:
        """Whether the node that makes a tensor reads or makes bools or integers."""
        index = network.producer[name]
        ends = {*network.made(index), *network.reads[index]}.difference(frozen)
        return any(infos[end].dtype.kind in "biu" for end in ends if end in infos)

    def attempt(names: Sequence[str]) -> LayerRun:
        model = isolate(network, names, infos, frozen)
        left_out.update(model.left_out)
        if not model.outputs:
            return LayerRun()
        seen = look.run(model.proto, model.outputs, fed=model.fed)
        assert seen is not None
        return seen

    if not wanted:
        return Own({}, {}, 0)
    found = gather(wanted, list(filter(is_fragile, wanted)), attempt, most=most)
    comparisons = of_samples(each for seen in found.groups for each in seen.comparisons)
    tensors = {name: comparisons[name] for name in wanted if name in comparisons}
    unseen = {name: why for name, why in (found.unseen | left_out).items() if name not in tensors}
    return Own(tensors, unseen, found.builds, None if found.groups else found.refused)


def _frozen(subject: Subject) -> dict[str, NDArray[Any]]:
    """The values of shapes and indices, as far as all input samples agree on them."""
    reference, frozen = subject.reference, {}
    for name in (*subject.network.inputs, *subject.network.computed):
        if name in reference.infos and is_frozen(reference.infos[name]):
            first, *others = (sample.select([name])[name] for sample in (reference, *reference.more))
            if all(np.array_equal(first, other) for other in others):
                frozen[name] = first
    return frozen


@dataclass(frozen=True)
class Hiding:
    """Tensors whose marks hide the failure.

    Attributes:
        marks: Their names, in topological order.
        minimum: What the search ended with.
        holds: Whether they hide it each time.
        seen: How often that was seen, in words.
    """

    marks: tuple[str, ...]
    minimum: Minimum
    holds: bool = True
    seen: str = "seen once"

    def to_json(self) -> dict[str, Any]:
        """The field ``hiding`` of the result."""
        return {
            "marks": list(self.marks),
            "minimality": "1-minimal" if self.minimum.proven else "unproven",
            "why": self.minimum.why,
            "seen": self.seen,
            "holds": self.holds,
            "workaround": self.holds and len(self.marks) <= _USEFUL,
        }


def report_hiding(session: Session, look: Marking, layers: LayerComparison, budget: int | None = None) -> None:
    """Find the fewest marks that hide the failure; few of them are a workaround.

    Args:
        session: The original has been probed.
        look: Runs the model.
        layers: What was seen with the marks.
        budget: How many probes the whole run may make, if that is limited; a quarter of them are for this.

    Raises:
        BudgetSpent: No more probes may be made; what was found until then is printed.
    """
    prober, console = session.prober, session.console
    console.say("  which of the marks are enough to hide it?")
    most = MOST_QUESTIONS if budget is None else min(MOST_QUESTIONS, budget // 4)
    hiding = find_hiding(look, [name for name in layers.tensors if name not in look.outputs], prober, most)
    if hiding is None:
        console.say("  all of them together do not hide it again, so they are no workaround")
    else:
        known = session.result.extra["hiding"] = hiding.to_json()
        named, role = _named(session, hiding.marks), "an output" if len(hiding.marks) == 1 else "outputs"
        gone = f"as {role} of the model too, the failure is gone ({known['minimality']}; {hiding.seen})."
        if not hiding.holds:
            console.answer(f"No workaround: with {named} marked, {hiding.minimum.why}.")
        else:
            good = "A workaround" if known["workaround"] else "No workaround, with so many"
            console.answer(f"{good}: with {named} {gone}")
    prober.ledger.check_budget()


def _named(session: Session, marks: Sequence[str]) -> str:
    """The marks by name where they are few, else the file that lists them."""
    if len(marks) <= _SHOWN:
        return ", ".join(f"'{name}'" for name in marks)
    path = session.subject.workspace.folder / MARKS
    try:
        path.write_text(
            "".join(name.replace("\n", "\\n") + "\n" for name in marks), encoding="utf-8", errors="backslashreplace"
        )
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; make room and run again.") from error
    session.result.artifacts["marks"] = str(path)
    return f"the {len(marks)} tensors that {path} lists"


def find_hiding(look: Marking, names: Sequence[str], prober: Prober, most: int = MOST_QUESTIONS) -> Hiding | None:
    """The fewest marks that hide the failure; ``None`` if all of them together do not, asked once more.

    Args:
        look: Runs the model.
        names: The tensors that were marked, in topological order.
        prober: Probes the candidates.
        most: How many questions may be asked once that is known.
    """
    subject, outputs = look.subject, tuple(look.subject.network.outputs)

    def build(marks: Subset) -> Candidate:
        model = subject.marked(dict.fromkeys([*outputs, *(names[place] for place in sorted(marks))]))
        title = f"{len(marks)} of {len(names)} tensors marked"
        inputs = tuple(subject.network.inputs)
        return Candidate(model, inputs, outputs, title, subject.original.units, marks=marks)

    try:
        minimum = prober.search(keep_if_enough(len(names), most), build)
    except BudgetSpent as spent:
        passed = [identity.marks for identity in prober.ledger.passed if identity.marks]
        if not passed:
            raise
        minimum = Minimum(min(passed, key=len), proven=False, why=str(spent))
    if minimum is None:
        return None
    hiding = Hiding(tuple(names[place] for place in sorted(minimum.units)), minimum)
    try:
        believed = reconfirm(prober, subject.original, build(minimum.units))
    except BudgetSpent as spent:
        return replace(hiding, minimum=replace(minimum, proven=False, why=str(spent)))
    if not believed.passes:
        minimum = replace(minimum, proven=False, why=believed.record.reason)
    return replace(hiding, minimum=minimum, holds=believed.passes, seen=believed.seen or hiding.seen)


def run(call: Call) -> Result:
    """Compare every tensor on the target with the reference's.

    Raises:
        UsageError: An option is wrong, or the plot cannot be written.
        UnavailableError: The target or the reference cannot run the model, or matplotlib is not installed.
    """
    own, target = call[Layerwise], call[Target].required()
    if own.save_error_plot is not None:
        check_plot(own.save_error_plot, "--save-error-plot")
    tolerance = tolerance_options(call[Compare], target)
    settings = LayerwiseSettings(target, tolerance, own.timeout, own.isolate, own.save_error_plot)
    job = call.open()
    if job.metric is None:
        with job.examined(own.timeout, target) as session:
            result = layerwise(session, settings)
    else:
        check = job.scored(CheckSettings(target=target, timeout=own.timeout))
        with (
            job.subject(own.timeout, target) as subject,
            job.investigated(subject, check, SearchSettings()) as session,
        ):
            result = layerwise_scored(session)
    if own.save_error_plot is not None:
        save_layer_curve(own.save_error_plot, target.describe(), result)
    return result
