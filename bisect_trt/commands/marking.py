"""Compare the tensors of a model on the target with the reference's, by marking them as outputs.

A mark keeps the target from fusing a tensor away, which may hide the failure. Where the target refuses to run the model with
every tensor marked, fewer are marked at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.cut import is_frozen, isolate
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.oracles import outcome_of_comparisons, outcome_of_failure
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison, required_severity, severity_weight
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import LOST, Compare, Compared, Failed, Sample

MOST_BUILDS = 8
"""A build may take a minute; tensors that no build has shown by then stay unseen."""


@dataclass(frozen=True)
class LayerRun:
    """The result of one run of a model.

    Attributes:
        comparisons: One for each tensor that it returned, on every input sample.
        unseen: Tensors that the target did not return, with the reason.
        refused: Why the target did not run the model, if so.
        signature: The kind of that refusal.
        seconds: How long the run took.
    """

    comparisons: tuple[TensorComparison, ...] = ()
    unseen: dict[str, str] = field(default_factory=dict)
    refused: str | None = None
    signature: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class LayerComparison:
    """How every tensor of the target compares with the reference's.

    Attributes:
        tensors: One comparison for each tensor that could be seen, in topological order: of the first input sample on which
            it is wrong, else of the first.
        unseen: The tensors that could not, with the reason.
        origins: Nodes that make a wrong tensor although all that they read is right, in topological order.
        outputs_fail: Whether a graph output is wrong with tensors marked; if not, marking may hide the failure.
        refused: Why the target did not run the marked model, if so.
        mild: As ``origins``, for tensors that are off far less than the outputs are: rounding, mostly.
        hidden: Whether the model fails without marks and passes, or is far less off, with them.
        builds: How many marked models the target was given.
        own: The error of each layer fed the reference's values; empty unless that was measured.
        own_unseen: The tensors of which that is not known, with the reason.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    origins: list[int]
    outputs_fail: bool
    refused: str | None = None
    mild: tuple[int, ...] = ()
    hidden: bool = False
    builds: int = 1
    own: dict[str, TensorComparison] = field(default_factory=dict)
    own_unseen: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Marking:
    """Runs a model on the target with some of its tensors returned.

    Attributes:
        subject: The model.
        target: The runtime under suspicion.
        tolerance: How far a tensor may be off.
        timeout: Seconds that one run may take.
    """

    subject: Subject
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None

    @property
    def outputs(self) -> list[str]:
        """The graph's outputs that nodes compute."""
        network = self.subject.network
        return [name for name in network.outputs if name in network.producer]

    @property
    def wanted(self) -> list[str]:
        """Every tensor that can be compared, in topological order."""
        names = dict.fromkeys([*self.subject.network.computed, *self.outputs])
        return [name for name in names if name in self.subject.reference.infos]

    def run(
        self,
        model: onnx.ModelProto,
        names: Sequence[str],
        *,
        fed: Mapping[str, str] | None = None,
    ) -> LayerRun:
        """Run a model on every input sample and compare some of its outputs with the reference's.

        Args:
            model: The model; its outputs have the original's names.
            names: The outputs to compare.
            fed: Activations that it is fed beside the graph's inputs: tensor by the name of the input.
        """
        reference = self.subject.reference
        request = Compare(
            self.target,
            self.subject.models.write("marked", model),
            tuple(Sample(each.inputs_file, each.store) for each in (reference, *reference.more)),
            self.tolerance,
            tuple(names),
            every=True,
            fed=dict(fed or {}),
        )
        began = time.monotonic()
        reply = self.subject.workers.ask(request, self.timeout)
        seconds = time.monotonic() - began
        if isinstance(reply, Failed):
            why = outcome_of_failure(reply, seconds).reason if reply.kind == "crash" else reply.message
            return LayerRun(refused=why, signature=reply.signature, seconds=seconds)
        return LayerRun(reply.comparisons, dict(reply.skipped), seconds=seconds)

    def marked(self, names: Sequence[str]) -> LayerRun:
        """Run the model with these tensors as outputs, beside its own."""
        # Outputs that have no reference stay outputs all the same: without them the model would be another one.
        own = [name for name in self.outputs if name in self.subject.reference.infos]
        shown = [*dict.fromkeys([*names, *own])]
        return self.run(self.subject.marked(dict.fromkeys([*shown, *self.outputs])), shown)

    def unmarked(self) -> Outcome:
        """Run the model as it is; return how it ends."""
        names = [name for name in self.outputs if name in self.subject.reference.infos]
        return self._judge(self.run(self.subject.network.proto, names))

    def _judge(self, seen: LayerRun) -> Outcome:
        """Return a run as the outcome of a probe, by the model's own outputs."""
        if seen.refused is not None:
            ending = Ending.SKIPPED if seen.signature == LOST else Ending.BROKEN
            return Outcome(ending, str(seen.signature), seen.refused, seen.seconds)
        mine = tuple(comparison for comparison in seen.comparisons if comparison.name in self.outputs)
        return outcome_of_comparisons(Compared(mine), seen.seconds, self.tolerance)

    def hides(self, original: Outcome | None, seen: LayerRun) -> bool:
        """Return whether the original fails and this run passes, or fails in another, milder way."""
        if original is None or original.judge(None) is not Verdict.FAIL:
            return False
        return self._judge(seen).judge(original.signature, original.severity) is not Verdict.FAIL

    def summarize(self, runs: Sequence[LayerRun], unseen: Mapping[str, str]) -> LayerComparison:
        """Find the origins in what runs showed, on each input sample by itself; of several comparisons the worst counts."""
        network = self.subject.network
        samples: dict[int | None, dict[str, TensorComparison]] = {}
        for comparison in (each for seen in runs for each in seen.comparisons):
            tensors = samples.setdefault(comparison.sample, {})
            known = tensors.get(comparison.name)
            if known is None or known.severity < comparison.severity:
                tensors[comparison.name] = comparison
        found: set[int] = set()
        suspected: set[int] = set()
        outputs_fail = False
        for tensors in samples.values():
            worst = max((tensors[name].severity for name in self.outputs if name in tensors), default=0.0)
            required = 0.0
            if worst and not (self.tolerance.atol or self.tolerance.rtol):  # a tolerance that the user gave is exact
                weight = severity_weight(self.tolerance.precision)
                required = required_severity(weight * worst) / weight
            found.update(find_origins(network, tensors, required))
            suspected.update(find_origins(network, tensors))
            outputs_fail |= worst > 0
        origins, mild = (sorted(nodes, key=network.rank.__getitem__) for nodes in (found, suspected - found))
        first = of_samples(
            each for number in sorted(samples, key=lambda n: n or 0) for each in samples[number].values()
        )
        unknown = (name for name in network.computed if name not in self.subject.reference.infos)
        lost = dict.fromkeys(unknown, "the reference has no value of it")
        shown = {name: first[name] for name in self.wanted if name in first}
        return LayerComparison(shown, {**lost, **unseen}, origins, outputs_fail=outputs_fail, mild=tuple(mild))


def compare_layers(look: Marking, original: Outcome | None = None) -> LayerComparison:
    """Compare every tensor with the reference's by marking it as an output, with as few builds as possible.

    Args:
        look: Runs the model.
        original: How the model ends without marks, if that is known.
    """
    infos = look.subject.reference.infos
    fragile = {name for name in look.wanted if infos[name].dtype.kind in "biu"} - set(look.outputs)
    broken = original is not None and original.ending is Ending.BROKEN  # whatever is marked
    found = gather(look.wanted, fragile, look.marked, 1 if broken else MOST_BUILDS)
    if not found.runs:
        return replace(look.summarize([], found.unseen), refused=found.refused, builds=found.builds)
    telling = [seen for seen in found.runs if not look.hides(original, seen)]
    if not telling:  # what is off all the same is another, milder error
        layers = look.summarize(found.runs, found.unseen)
        mild = (*layers.origins, *layers.mild)
        return replace(layers, origins=[], mild=mild, outputs_fail=False, hidden=True, builds=found.builds)
    for seen in (each for each in found.runs if each not in telling):
        names = [comparison.name for comparison in seen.comparisons if comparison.name not in look.outputs]
        found.unseen |= dict.fromkeys(names, f"marking it and {len(names) - 1} others hides the failure")
    return replace(look.summarize(telling, found.unseen), builds=found.builds)


@dataclass
class Gathered:
    """The results of several runs.

    Attributes:
        runs: Those that worked.
        unseen: Tensors that no run shows, with the reason.
        builds: How many runs were tried.
        refused: Why the first did not work, if it did not.
    """

    runs: list[LayerRun] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    builds: int = 0
    refused: str | None = None


def gather(
    names: Sequence[str],
    fragile: Collection[str],
    attempt: Callable[[Sequence[str]], LayerRun],
    most: int = MOST_BUILDS,
) -> Gathered:
    """Run a model with tensors marked; where the target refuses that, mark fewer.

    First those are left out that targets refuse most often, then the rest is split into halves, and halves of halves.

    Args:
        names: The tensors, in topological order.
        fragile: Those of them to leave out first.
        attempt: Runs the model with some of them marked.
        most: How many runs may be tried.
    """
    found, pending = Gathered(), deque([names])
    while pending and (found.builds < most or not found.builds):
        group = pending.popleft()
        seen = attempt(group)
        found.builds += 1
        if seen.refused is None:
            found.runs.append(seen)
            found.unseen |= {name: why for name, why in seen.unseen.items() if name in group}
            continue
        why = f"the target does not run the model with {{}} shown: {seen.refused}"
        if found.builds == 1:
            found.refused = seen.refused
            firm = [name for name in names if name not in fragile]
            if 0 < len(firm) < len(names):
                left_out = (name for name in names if name in fragile)
                found.unseen |= dict.fromkeys(left_out, why.format("every tensor"))
                pending.append(firm)
                continue
        if len(group) > 1:
            middle = (len(group) + 1) // 2
            pending += [group[:middle], group[middle:]]
        else:
            found.unseen |= dict.fromkeys(group, why.format("it"))
    for group in pending:
        why = f"{found.builds} builds were spent, and the target does not run the model with it and others shown"
        found.unseen |= dict.fromkeys(group, f"{why}: {found.refused}")
    return found


def of_samples(comparisons: Iterable[TensorComparison]) -> dict[str, TensorComparison]:
    """Return one comparison for each tensor: of the first input sample on which it is wrong, else of the first."""
    shown: dict[str, TensorComparison] = {}
    for comparison in comparisons:
        if comparison.name not in shown or (shown[comparison.name].passed and not comparison.passed):
            shown[comparison.name] = comparison
    return shown


def find_origins(network: Network, tensors: Mapping[str, TensorComparison], severity: float = 0.0) -> list[int]:
    """Return the nodes that make a wrong tensor of right ones, in topological order.

    A tensor that was not compared counts as right if all that it is computed from is.

    Args:
        network: The model.
        tensors: The comparisons.
        severity: How severe a mismatch must be to count as wrong.
    """
    clean: dict[str, bool] = {}
    origins: list[int] = []
    for index in network.order:
        inputs_clean = all(clean.get(name, True) for name in network.reads[index])
        for name in network.made(index):
            seen = tensors.get(name)
            clean[name] = inputs_clean if seen is None else seen.passed or seen.severity < severity
            if inputs_clean and not clean[name] and index not in origins:
                origins.append(index)
    return origins


def compare_own(look: Marking, names: Sequence[str] | None = None, most: int = MOST_BUILDS) -> LayerComparison:
    """Compare the tensors that nodes make when they are fed the reference's values, so that only their own errors are left.

    All nodes are in one model, or in groups where the target refuses that. There are no ``origins``.

    Args:
        look: Runs the model.
        names: The tensors to make; ``None`` for all.
        most: How many models the target may be given.
    """
    subject, network, infos = look.subject, look.subject.network, look.subject.reference.infos
    wanted = [name for name in look.wanted if names is None or name in names]
    frozen = _frozen(subject)
    left_out: dict[str, str] = {}

    def is_fragile(name: str) -> bool:
        """Return whether the node that makes a tensor reads or makes bools or integers."""
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
        return LayerComparison({}, {}, [], outputs_fail=False, builds=0)
    found = gather(wanted, list(filter(is_fragile, wanted)), attempt, most=most)
    comparisons = of_samples(each for seen in found.runs for each in seen.comparisons)
    tensors = {name: comparisons[name] for name in wanted if name in comparisons}
    unseen = {name: why for name, why in (found.unseen | left_out).items() if name not in tensors}
    refused = None if found.runs else found.refused
    return LayerComparison(tensors, unseen, [], outputs_fail=False, refused=refused, builds=found.builds)


def _frozen(subject: Subject) -> dict[str, NDArray[Any]]:
    """Return the values of shapes and indices, as far as all input samples agree on them."""
    reference, frozen = subject.reference, {}
    for name in (*subject.network.inputs, *subject.network.computed):
        if name in reference.infos and is_frozen(reference.infos[name]):
            first, *others = (sample.select([name])[name] for sample in (reference, *reference.more))
            if all(np.array_equal(first, other) for other in others):
                frozen[name] = first
    return frozen
