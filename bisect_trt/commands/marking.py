"""Compare every tensor of a model on the target with the reference's, by marking tensors as outputs.

Marking a tensor keeps the target from fusing it away, which may hide the failure. So a target that can show what it leaves
unfused does that first; and where it refuses to run the model with every tensor marked, fewer are marked at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.oracles import outcome_of_comparisons, outcome_of_failure
from bisect_trt.probe.outcome import LOST, Ending, Outcome
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import EngineLayer
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison, required_severity, severity_weight
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Compared, Failed, Sample

MOST_BUILDS = 8
"""A build may take a minute; tensors that no build has shown by then stay unseen."""
AT_A_TIME = 8
MOST_NARROWING = 12
"""Further builds that bisect for the first wrong tensor; one tensor at a time, they tell a thousand apart."""


@dataclass(frozen=True)
class LayerRun:
    """What one run of a model showed.

    Attributes:
        comparisons: One for each tensor that it returned, on every input sample.
        unseen: Tensors that the target did not return, with the reason.
        layers: Layers of the target's engine, as the worker returns them.
        refused: Why the target did not run the model, if so.
        signature: The kind of that refusal.
        seconds: How long the run took.
    """

    comparisons: tuple[TensorComparison, ...] = ()
    unseen: dict[str, str] = field(default_factory=dict)
    layers: tuple[dict[str, Any], ...] = ()
    refused: str | None = None
    signature: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class LayerComparison:
    """How every tensor of the target compares with the reference's.

    Attributes:
        tensors: One comparison a tensor that could be seen, in topological order: of the first input sample on which it
            is wrong, else of the first.
        unseen: The tensors that could not, with the reason.
        origins: Nodes that make a wrong tensor although all that they read is right, in topological order.
        outputs_fail: Whether a graph output is wrong with tensors marked; if not, marking may hide the failure.
        refused: Why the target did not run the marked model, if so.
        mild: As ``origins``, for tensors that are off far less than the outputs are: rounding, mostly.
        hidden: Whether the model fails without marks and passes, or is far less off, with them.
        fused: Whether nothing was marked: the target showed what it had not fused away.
        builds: How many marked models the target was given.
        own: How far each layer is off by itself, fed the reference's values; empty unless that was looked at.
        own_unseen: The tensors of which that is not known, with the reason.
        engine: For nodes, by number, the layer of the target's engine that runs it; empty where it does not say.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    origins: list[int]
    outputs_fail: bool
    refused: str | None = None
    mild: tuple[int, ...] = ()
    hidden: bool = False
    fused: bool = False
    builds: int = 1
    own: dict[str, TensorComparison] = field(default_factory=dict)
    own_unseen: dict[str, str] = field(default_factory=dict)
    engine: dict[int, EngineLayer] = field(default_factory=dict)

    def is_exact(self, network: Network) -> bool:
        """Whether all that some origin reads was seen, so that no node before it can be the culprit."""
        computed = set(network.computed)
        return any(computed.intersection(network.reads[index]) <= self.tensors.keys() for index in self.origins)


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
        unfused: bool = False,
        layers: bool = False,
    ) -> LayerRun | None:
        """Run a model on every input sample and compare some of its outputs with the reference's.

        Args:
            model: The model; its outputs have the original's names.
            names: The outputs to compare.
            fed: Activations that it is fed beside the graph's inputs: tensor by the name of the input.
            unfused: Whether to return all that the target does not fuse away, rather than the outputs alone.
            layers: Whether to return the layers of the target's engine.

        Returns:
            ``None`` if the target cannot show what it does not fuse away.
        """
        reference = self.subject.reference
        request = Compare(
            self.target,
            self.subject.models.write("marked", model),
            tuple(Sample(each.inputs_file, each.store) for each in (reference, *reference.more)),
            self.tolerance,
            tuple(names),
            every=True,
            unfused=unfused,
            layers=layers,
            fed=dict(fed or {}),
        )
        began = time.monotonic()
        reply = self.subject.models.ask(request, self.timeout)
        seconds = time.monotonic() - began
        if isinstance(reply, Failed):
            why = outcome_of_failure(reply, seconds).reason if reply.kind == "crash" else reply.message
            return LayerRun(refused=why, signature=reply.signature, seconds=seconds)
        if reply.unsupported:
            return None
        unseen = dict(reply.skipped)
        if unfused:
            shown = {comparison.name for comparison in reply.comparisons} | unseen.keys()
            unseen |= {name: "fused away" for name in names if name not in shown}
        return LayerRun(reply.comparisons, unseen, reply.layers, seconds=seconds)

    def marked(self, names: Sequence[str]) -> LayerRun:
        """Run the model with these tensors as outputs, beside its own."""
        # Graph outputs that have no reference stay outputs all the same: without them the model would be another one.
        own = [name for name in self.outputs if name in self.subject.reference.infos]
        shown = [*dict.fromkeys([*names, *own])]
        seen = self.run(self.subject.marked(dict.fromkeys([*shown, *self.outputs])), shown)
        assert seen is not None
        return seen

    def unmarked(self) -> tuple[Outcome, LayerRun]:
        """Run the model as it is; return how it ends, and the layers of its engine."""
        names = [name for name in self.outputs if name in self.subject.reference.infos]
        seen = self.run(self.subject.network.proto, names, layers=True)
        assert seen is not None
        return self.judge(seen), seen

    def judge(self, seen: LayerRun) -> Outcome:
        """A run as the outcome of a probe, by the model's own outputs."""
        if seen.refused is not None:
            ending = Ending.SKIPPED if seen.signature == LOST else Ending.BROKEN
            return Outcome(ending, str(seen.signature), seen.refused, seen.seconds)
        mine = tuple(comparison for comparison in seen.comparisons if comparison.name in self.outputs)
        return outcome_of_comparisons(Compared(mine), seen.seconds, self.tolerance)

    def hides(self, original: Outcome | None, seen: LayerRun) -> bool:
        """Whether the original fails and this run passes, or fails in another, milder way."""
        if original is None or original.judge(None) is not Verdict.FAIL:
            return False
        return self.judge(seen).judge(original.signature, original.severity) is not Verdict.FAIL

    def summarise(self, groups: Sequence[LayerRun], unseen: dict[str, str]) -> LayerComparison:
        """Find the origins in what several runs showed; of an output that each run returns, the worst comparison counts."""
        network = self.subject.network
        lost = {
            name: "the reference has no value of it"
            for name in network.computed
            if name not in self.subject.reference.infos
        }
        merged: dict[tuple[str, int | None], TensorComparison] = {}
        for comparison in (each for seen in groups for each in seen.comparisons):
            key = comparison.name, comparison.sample
            if key not in merged or merged[key].severity < comparison.severity:
                merged[key] = comparison
        place = {name: number for number, name in enumerate(self.wanted)}
        ordered = sorted(merged.values(), key=lambda each: (each.sample or 0, place[each.name]))
        return judge_layers(network, self.tolerance, ordered, lost | unseen)


def compare_layers(look: Marking, original: Outcome | None = None) -> LayerComparison:
    """Compare every tensor that the target can return with the reference's.

    Args:
        look: Runs the model.
        original: How the model ends without marks, if that is known.
    """
    seen, fused = look.run(look.subject.marked(look.outputs), look.wanted, unfused=True), None
    if seen is not None and seen.refused is None:
        fused = look.summarise([seen], dict(seen.unseen))
        fused = replace(fused, fused=True, hidden=look.hides(original, seen))
        if not fused.outputs_fail or fused.is_exact(look.subject.network):
            return fused
    marked = compare_marked(look, original)
    return marked if fused is None or (marked.outputs_fail and marked.origins) else fused


def compare_marked(look: Marking, original: Outcome | None = None) -> LayerComparison:
    """Compare every tensor with the reference's by marking it as an output, with as few builds as possible."""
    infos, network = look.subject.reference.infos, look.subject.network
    fragile = {name for name in look.wanted if infos[name].dtype.kind in "biu"} - set(look.outputs)
    broken = original.signature if original is not None and original.ending is Ending.BROKEN else None
    found = gather(look.wanted, fragile, look.marked, broken)

    def tells(seen: LayerRun) -> bool:
        return not look.hides(original, seen)

    if found.refused is not None and found.builds > 1:
        exact = look.summarise([seen for seen in found.groups if tells(seen)], {}).is_exact(network)
        if not exact:
            firm = [name for name in look.wanted if name not in fragile and name not in look.outputs]
            narrow(found, firm, lambda name: _leads_to(network, name), look.marked, tells)
    if not found.groups:
        return replace(look.summarise([], found.unseen), refused=found.refused, builds=found.builds)
    telling = [seen for seen in found.groups if tells(seen)]
    if not telling:  # what is off all the same is another, milder error
        layers = look.summarise(found.groups, found.unseen)
        mild = (*layers.origins, *layers.mild)
        return replace(layers, origins=[], mild=mild, outputs_fail=False, hidden=True, builds=found.builds)
    for seen in (each for each in found.groups if each not in telling):
        names = [comparison.name for comparison in seen.comparisons if comparison.name not in look.outputs]
        found.unseen |= dict.fromkeys(names, f"marking it and {len(names) - 1} others hides the failure")
    return replace(look.summarise(telling, found.unseen), builds=found.builds)


def _leads_to(network: Network, name: str) -> set[str]:
    """The tensors that one is computed from, without weights."""
    found: set[int] = set()
    pending = [network.producer[name]] if name in network.producer else []
    while pending:
        new = [p for p in network.parents(pending.pop()) if p not in found and not network.constant[p]]
        found.update(new)
        pending += new
    return {made for index in found for made in network.made(index)}


@dataclass
class Gathered:
    """What several runs showed.

    Attributes:
        groups: The runs that worked.
        unseen: Tensors that no run shows, with the reason.
        builds: How many runs were tried.
        refused: Why the first did not work, if it did not.
    """

    groups: list[LayerRun] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    builds: int = 0
    refused: str | None = None

    def take(self, seen: LayerRun, names: Collection[str]) -> bool:
        """Count a run and keep what it showed; returns whether it worked."""
        self.builds += 1
        if seen.refused is not None:
            return False
        self.groups.append(seen)
        self.unseen |= {name: why for name, why in seen.unseen.items() if name in names}
        return True

    def leave_out(self, names: Iterable[str], seen: LayerRun, what: str) -> None:
        """Note tensors that cannot be marked."""
        self.unseen |= dict.fromkeys(names, f"the target does not run the model with {what} shown: {seen.refused}")


def gather(
    names: Sequence[str],
    fragile: Collection[str],
    attempt: Callable[[Sequence[str]], LayerRun],
    hopeless: str | None = None,
    most: int = MOST_BUILDS,
) -> Gathered:
    """Run a model with tensors marked; where the target refuses that, mark fewer.

    First those are left out that targets refuse most often, then the rest is split into halves, and halves of halves.

    Args:
        names: The tensors, in topological order.
        fragile: Those of them to leave out first.
        attempt: Runs the model with some of them marked.
        hopeless: The signature of a refusal that fewer marks do not change, if there is one.
        most: How many runs may be tried.
    """
    found, first = Gathered(), attempt(names)
    if found.take(first, names):
        return found
    found.refused = first.refused
    if first.signature == hopeless:
        return found
    firm = [name for name in names if name not in fragile]
    pending = deque([firm] if 0 < len(firm) < len(names) else _halves(names))
    if 0 < len(firm) < len(names):
        found.leave_out([name for name in names if name in fragile], first, "every tensor")
    while pending and found.builds < most:
        group = pending.popleft()
        seen = attempt(group)
        if not found.take(seen, group):
            if len(group) == 1:
                found.leave_out(group, seen, "it")
            pending.extend(_halves(group))
    for group in pending:
        why = f"{found.builds} builds were spent, and the target does not run the model with it and others shown"
        found.unseen |= dict.fromkeys(group, f"{why}: {first.refused}")
    return found


def _halves(names: Sequence[str]) -> list[Sequence[str]]:
    middle = (len(names) + 1) // 2
    return [names[:middle], names[middle:]] if len(names) > 1 else []


def narrow(
    found: Gathered,
    names: Sequence[str],
    leads_to: Callable[[str], Collection[str]],
    attempt: Callable[[Sequence[str]], LayerRun],
    tells: Callable[[LayerRun], bool],
) -> None:
    """Where a target refuses many marks, bisect for the first wrong tensor: mark a few at a time, evenly spaced.

    What leads to the first wrong tensor, and not to one that is right, is what is left to look at.

    Args:
        found: What was seen before; gets what is seen now.
        names: The tensors, in topological order.
        leads_to: Returns the tensors that one is computed from.
        attempt: Runs the model with some of them marked.
        tells: Returns whether a run still shows the failure.
    """
    known: dict[str, bool] = {}

    def learn(seen: LayerRun) -> None:
        for comparison in seen.comparisons:
            known[comparison.name] = known.get(comparison.name, True) and comparison.passed
            found.unseen.pop(comparison.name, None)

    for earlier in found.groups:
        learn(earlier)
    left, width = set(names), AT_A_TIME
    for _ in range(MOST_NARROWING):
        # The model's own outputs, which every run returns, come last.
        wrong = next((name for name in (*names, *known) if not known.get(name, True)), None)
        if wrong is not None:
            before = set(leads_to(wrong))
            left &= before.difference(*(leads_to(name) for name in before if known.get(name, False)))
        region = [name for name in names if name in left and name not in known]
        if not region:
            return
        width = min(width, len(region))
        group = [region[(2 * place + 1) * len(region) // (2 * width)] for place in range(width)]
        seen = attempt(group)
        if seen.refused is None and tells(seen):
            found.take(seen, group)
            learn(seen)
            continue
        found.builds += 1
        left -= set(group) if width == 1 else set()
        width = max(1, width // 2)


def judge_layers(
    network: Network, tolerance: ToleranceOptions, comparisons: Sequence[TensorComparison], unseen: dict[str, str]
) -> LayerComparison:
    """Find the nodes where the error begins, on each input sample by itself."""
    outputs = [name for name in network.outputs if name in network.producer]
    samples: dict[int | None, dict[str, TensorComparison]] = {}
    for comparison in comparisons:
        samples.setdefault(comparison.sample, {})[comparison.name] = comparison
    found: set[int] = set()
    suspected: set[int] = set()
    outputs_fail = False
    for tensors in samples.values():
        fail = any(not tensors[name].passed for name in outputs if name in tensors)
        required = 0.0
        if fail and not (tolerance.atol or tolerance.rtol):  # a tolerance that the user gave is exact
            weight = severity_weight(tolerance.precision)
            worst = max(tensors[name].severity for name in outputs if name in tensors)
            required = required_severity(weight * worst) / weight
        found.update(find_origins(network, tensors, required))
        suspected.update(find_origins(network, tensors))
        outputs_fail |= fail
    origins, mild = (sorted(nodes, key=network.rank.__getitem__) for nodes in (found, suspected - found))
    return LayerComparison(of_samples(comparisons), unseen, origins, outputs_fail=outputs_fail, mild=tuple(mild))


def of_samples(comparisons: Iterable[TensorComparison]) -> dict[str, TensorComparison]:
    """One comparison a tensor: of the first input sample on which it is wrong, else of the first."""
    shown: dict[str, TensorComparison] = {}
    for comparison in comparisons:
        if comparison.name not in shown or (shown[comparison.name].passed and not comparison.passed):
            shown[comparison.name] = comparison
    return shown


def find_origins(network: Network, tensors: Mapping[str, TensorComparison], severity: float = 0.0) -> list[int]:
    """Nodes that make a wrong tensor of right ones, in topological order.

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
