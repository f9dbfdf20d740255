"""Compare every tensor on the target with the reference's, and find the first that is wrong.

Tensors are seen by marking them as outputs. A mark keeps the target from fusing the tensor away,
which may hide the failure. If the target refuses to run the model with every tensor marked, fewer
are marked at a time. With ``--isolate`` each layer is also fed the reference's values, all layers
side by side in one model, so that only its own error is left.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from msgspec import UNSET, Struct, structs

from bisect_trt.onnxlib.cut import is_frozen, isolate
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import module_of
from bisect_trt.probe.check import Comparing
from bisect_trt.probe.oracles import outcome_of_comparisons, outcome_of_failure
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.report.console import IN_JSON, Console
from bisect_trt.report.parts import Comparison, Origin
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import Unseen
from bisect_trt.search.oracle import Verdict
from bisect_trt.session.record import attribute_texts
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.comparison import (
    ComparisonKind,
    TensorComparison,
    required_severity,
    severity_weight,
)
from bisect_trt.tensors.files import Arrays
from bisect_trt.tensors.info import tensor_of
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.protocol import Compare, Compared, Failed, Sample

MOST_BUILDS = 8
"""A build may take a minute; tensors that no build has shown by then stay unseen."""
_NONFINITE = (ComparisonKind.INF, ComparisonKind.NAN)
_SHOWN_REASONS = 3


class Gathered(Struct):
    """The results of several runs, each with other tensors marked.

    Attributes:
        runs: The runs that worked.
        unseen: Tensors that no run shows, with the reason.
        builds: How many runs were tried.
        refused: Why the first did not work, if it did not.
    """

    runs: list[Compared] = []
    unseen: dict[str, str] = {}
    builds: int = 0
    refused: str | None = None


class LayerComparison(Struct, frozen=True):
    """The comparison of every tensor with the reference's.

    Attributes:
        tensors: One comparison for each tensor that could be seen, in topological order: of the
            first input sample on which it is wrong, else of the first sample.
        unseen: The tensors that could not be seen, with the reason.
        origins: Nodes that compute a wrong tensor from right ones, in topological order.
        outputs_fail: Whether a graph output is wrong with tensors marked; if not, marking may hide
            the failure.
        refused: Why the target did not run the marked model, if so.
        mild: Origins of tensors with far smaller errors than the outputs have: mostly rounding.
        hidden: Whether the model fails without marks and passes, or has far smaller errors, with
            them.
        builds: How many marked models the target was given.
        own: The error of each layer fed the reference's values; empty unless that was measured.
        own_unseen: The tensors for which it could not be measured, with the reason.
    """

    tensors: dict[str, TensorComparison] = {}
    unseen: dict[str, str] = {}
    origins: list[int] = []
    outputs_fail: bool = False
    refused: str | None = None
    mild: tuple[int, ...] = ()
    hidden: bool = False
    builds: int = 0
    own: dict[str, TensorComparison] = {}
    own_unseen: dict[str, str] = {}


class Marking(Struct, frozen=True):
    """Runs a model on the target with some of its tensors returned."""

    subject: Subject
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None

    @classmethod
    def by(cls, check: Comparing, subject: Subject, *, held: bool = False) -> Marking:
        """Return the marking of a check that compares a target, which is ``held`` to its low precision or as the check has it."""
        target = check.runtime
        return cls(
            subject,
            replace(target, held=held or target.held),
            check.tolerances,
            check.timeout,
        )

    @property
    def outputs(self) -> list[str]:
        """The graph's outputs that nodes compute."""
        network = self.subject.network
        return [name for name in network.outputs if name in network.producer]

    @property
    def wanted(self) -> list[str]:
        """Every tensor that can be compared, in topological order."""
        names = dict.fromkeys([*self.subject.network.computed, *self.outputs])
        return [name for name in names if self.subject.reference.stored_names(name)]

    def run(
        self, model: onnx.ModelProto, names: Sequence[str], fed: Mapping[str, str] | None = None
    ) -> Compared | Failed:
        """Run a model on every input sample and compare some of its outputs with the reference's.

        Args:
            model: The model; its outputs have the original's names.
            names: The outputs to compare.
            fed: Activations that it is fed beside the graph's inputs: the tensor by the name of the
                input.
        """
        reference = self.subject.reference
        request = Compare(
            self.target,
            self.subject.models.write("marked", model),
            tuple(Sample(run.inputs_file, run.store) for run in (reference, *reference.more)),
            replace(self.tolerance, by_channel=True),
            tuple(names),
            every=True,
            fed=dict(fed or {}),
        )
        reply = self.subject.workers.ask(request, self.timeout)
        if isinstance(reply, Failed):
            return reply
        makers = self.subject.network.producer
        # A member of a sequence counts as the sequence that a node makes.
        named = (
            comparison
            if comparison.name in makers
            else structs.replace(comparison, name=tensor_of(comparison.name))
            for comparison in reply.comparisons
        )
        return structs.replace(reply, comparisons=tuple(named))

    def marked(self, names: Sequence[str]) -> Compared | Failed:
        """Run the model with these tensors as outputs, beside its own."""
        shown = [*dict.fromkeys([*names, *self._known_outputs])]
        if not self.target.debug_tensors:
            return self.run(self.subject.marked(dict.fromkeys([*shown, *self.outputs])), shown)
        reply = self.run(self.subject.network.proto, shown)
        if isinstance(reply, Failed):
            return reply
        comparisons = reply.comparisons
        fused = [
            each.name
            for each in comparisons
            if each.kind is ComparisonKind.MISSING and each.name not in self.outputs
        ]
        return structs.replace(
            reply,
            comparisons=tuple(each for each in comparisons if each.name not in fused),
            skipped={**reply.skipped, **dict.fromkeys(fused, Unseen.FUSED.value)},
        )

    def unmarked(self) -> Outcome:
        """Run the model as it is; returns how it ends."""
        return self._judge(self.run(self.subject.network.proto, self._known_outputs))

    @property
    def _known_outputs(self) -> list[str]:
        """The outputs with reference values; the others stay outputs all the same: without them it is another model."""
        return [name for name in self.outputs if self.subject.reference.stored_names(name)]

    def _judge(self, reply: Compared | Failed) -> Outcome:
        """Return a run as the outcome of a probe, by the model's own outputs."""
        if isinstance(reply, Failed):
            return outcome_of_failure(reply)
        errors = tuple(
            comparison for comparison in reply.comparisons if comparison.name in self.outputs
        )
        return outcome_of_comparisons(Compared(errors), self.tolerance)

    def hides(self, original: Outcome | None, marked: Compared) -> bool:
        """Return whether the original fails and this run passes, or fails in another way or with far smaller errors."""
        if original is None or original.judge(None) is not Verdict.FAIL:
            return False
        return self._judge(marked).judge(original.signature, original.severity) is not Verdict.FAIL

    def summarize(self, gathered: Gathered, runs: Sequence[Compared]) -> LayerComparison:
        """Find the origins in what some runs showed, on each input sample alone; of several comparisons the worst counts."""
        network = self.subject.network
        exact = self.tolerance.atol or self.tolerance.rtol
        weight = severity_weight(self.tolerance.precision)
        samples = _worst_by_sample(runs)
        firm = set[int]()
        suspected = set[int]()
        outputs_fail = False
        for tensors in samples.values():
            worst = max(
                (tensors[name].severity for name in self.outputs if name in tensors), default=0.0
            )
            # A tolerance that the user gave is exact.
            required = 0.0 if exact or not worst else required_severity(weight * worst) / weight
            firm.update(find_origins(network, tensors, required))
            suspected.update(find_origins(network, tensors))
            outputs_fail |= worst > 0
        origins, mild = map(network.in_order, (firm, suspected - firm))
        first = _of_samples(
            tensor for number in sorted(samples) for tensor in samples[number].values()
        )
        lost = [name for name in network.computed if not self.subject.reference.stored_names(name)]
        return LayerComparison(
            {name: first[name] for name in self.wanted if name in first},
            {
                **dict.fromkeys(lost, Unseen.NO_VALUE.value),
                **gathered.unseen,
            },
            origins,
            outputs_fail,
            gathered.refused if not gathered.runs else None,
            tuple(mild),
            builds=gathered.builds,
        )


def compare_layers(
    look: Marking, original: Outcome | None = None, limit: int = MOST_BUILDS
) -> LayerComparison:
    """Compare every tensor with the reference's by marking it as an output, with as few builds as possible.

    Args:
        look: Runs the model.
        original: The outcome of the model without marks, if it is known.
        limit: How many models the target may be given.
    """
    infos = look.subject.reference.infos
    inner = set(look.wanted).difference(look.outputs)
    fragile = {name for name in inner if name not in infos or infos[name].dtype.kind in "biu"}
    # Such a run fails whatever is marked.
    broken = original is not None and original.ending is Ending.BROKEN
    gathered = gather(look.wanted, fragile, look.marked, 1 if broken else limit)
    telling = [run for run in gathered.runs if not look.hides(original, run)]
    if gathered.runs and not telling:
        # What still differs is another, smaller error.
        layers = look.summarize(gathered, gathered.runs)
        return structs.replace(
            layers,
            origins=[],
            mild=(*layers.origins, *layers.mild),
            outputs_fail=False,
            hidden=True,
        )
    for run in (run for run in gathered.runs if run not in telling):
        names = [
            comparison.name for comparison in run.comparisons if comparison.name not in look.outputs
        ]
        gathered.unseen |= dict.fromkeys(names, Unseen.HIDES.value.format(len(names) - 1))
    return confirm_origins(look, look.summarize(gathered, telling))


def _worst_by_sample(runs: Sequence[Compared]) -> dict[int, dict[str, TensorComparison]]:
    """Return the worst comparison of each tensor, by sample and name."""
    samples: dict[int, dict[str, TensorComparison]] = {}
    for comparison in sorted(
        (each for run in runs for each in run.comparisons),
        key=lambda each: (-each.severity, not each.is_suspect),
    ):
        samples.setdefault(comparison.sample or 0, {}).setdefault(comparison.name, comparison)
    return samples


def confirm_origins(look: Marking, layers: LayerComparison) -> LayerComparison:
    """Move each origin that is right when fed the reference's values to the node with the error that it only shows.

    An error in small channels is within the tolerance of a tensor with large ones, and becomes
    visible where a later node scales or drops these. The target is asked once, and only if an
    origin reads a tensor that is suspect.
    """
    network = look.subject.network

    def sources(index: int) -> list[int]:
        """Return the nodes that make the suspect inputs of a node."""
        reads = (name for name in network.reads[index] if name in layers.tensors)
        suspects = (name for name in reads if layers.tensors[name].is_suspect)
        return list(dict.fromkeys(network.producers_of(suspects)))

    doubted = [index for index in layers.origins if sources(index)]
    if not doubted:
        return layers
    nodes = _reached(doubted, sources)
    errors = compare_own(look, {*network.made_by(nodes)}, 1).tensors

    def is_right(index: int) -> bool:
        """Return whether a node was seen to make nothing wrong of the reference's values."""
        wanted = [name for name in network.made(index) if name in layers.tensors]
        return all(name in errors and not errors[name].is_suspect for name in wanted)

    origins = set(layers.origins).difference(doubted)
    tensors = dict(layers.tensors)
    for origin in doubted:
        # Upstream as far as nodes are right: the first that is wrong on its own made the error.
        before = _reached([origin], lambda index: sources(index) if is_right(index) else [])
        wrong = [index for index in before if not is_right(index)]
        origins.update(wrong or [origin])
        for name in network.made_by(before if wrong else ()):
            comparison = tensors.get(name)
            if comparison is not None and comparison.by_channel:
                tensors[name] = structs.replace(
                    comparison.by_channel, name=name, sample=comparison.sample
                )
    return structs.replace(
        layers,
        tensors=tensors,
        origins=network.in_order(origins),
        mild=tuple(index for index in layers.mild if index not in origins),
    )


def _reached(start: Iterable[int], sources: Callable[[int], Iterable[int]]) -> list[int]:
    """Return the nodes that are reached from some by going to the sources of each, these included."""
    reached = dict.fromkeys(start)
    pending = deque(reached)
    while pending:
        new = [index for index in sources(pending.popleft()) if index not in reached]
        reached |= dict.fromkeys(new)
        pending += new
    return list(reached)


def gather(
    names: Sequence[str],
    fragile: Collection[str],
    attempt: Callable[[Sequence[str]], Compared | Failed],
    limit: int = MOST_BUILDS,
) -> Gathered:
    """Run a model with tensors marked; if the target refuses it, mark fewer.

    The first retry omits the tensors that targets refuse most often, then the rest is split into
    halves, and halves of halves.

    Args:
        names: The tensors, in topological order.
        fragile: The tensors to omit first.
        attempt: Runs the model with some of them marked.
        limit: How many runs may be tried.
    """
    gathered = Gathered()
    pending = deque([names])
    while pending and (gathered.builds < limit or not gathered.builds):
        group = pending.popleft()
        reply = attempt(group)
        gathered.builds += 1
        if isinstance(reply, Compared):
            gathered.runs.append(reply)
            gathered.unseen |= {
                name: reason for name, reason in reply.skipped.items() if name in group
            }
            continue
        refused = reply.describe("the target") if reply.kind == "crash" else reply.message
        # First without the tensors that compilers refuse to show most often; only then in halves.
        if gathered.builds == 1:
            gathered.refused = refused
            firm = [name for name in names if name not in fragile]
            if 0 < len(firm) < len(names):
                omitted = (name for name in names if name in fragile)
                gathered.unseen |= dict.fromkeys(omitted, Unseen.REFUSED.value.format(refused))
                pending.append(firm)
                continue
        if len(group) > 1:
            # Halves find few refused tensors in few builds, which is what a refusal usually is
            # about.
            middle = (len(group) + 1) // 2
            pending += [group[:middle], group[middle:]]
        else:
            gathered.unseen |= dict.fromkeys(group, Unseen.REFUSED_ALONE.value.format(refused))
    for group in pending:
        reason = Unseen.NOT_RUN.value.format(gathered.builds, gathered.refused)
        gathered.unseen |= dict.fromkeys(group, reason)
    return gathered


def _of_samples(comparisons: Iterable[TensorComparison]) -> dict[str, TensorComparison]:
    """Return one comparison for each tensor: of the first input sample on which it is wrong, else of the first."""
    shown: dict[str, TensorComparison] = {}
    for comparison in comparisons:
        before = shown.get(comparison.name)
        if (
            before is None
            or (before.passed and not comparison.passed)
            or (not before.is_suspect and comparison.is_suspect)
        ):
            shown[comparison.name] = comparison
    return shown


def find_origins(
    network: Network, tensors: Mapping[str, TensorComparison], severity: float = 0.0
) -> list[int]:
    """Return the nodes that compute a wrong tensor and have no wrong tensor among their ancestors, in topological order.

    A tensor between two wrong ones may match although it is wrong: few large elements make its
    tolerance large. A NaN or Inf that no later tensor shows, as of a mask before a Softmax, counts
    only where nothing else is wrong.

    Args:
        network: The model.
        tensors: The comparisons.
        severity: The smallest severity of a mismatch that counts as wrong.
    """
    spreads = _spreading(network, tensors)
    clean: dict[str, bool] = {}
    origins: list[int] = []
    harmless: list[int] = []
    for index in network.order:
        ancestors_clean = all(clean.get(name, True) for name in network.reads[index])
        comparisons = (tensors.get(name) for name in network.made(index))
        is_wrong = any(
            comparison is not None and not comparison.passed and comparison.severity >= severity
            for comparison in comparisons
        )
        goes_on = is_wrong and index in spreads
        clean |= dict.fromkeys(network.made(index), ancestors_clean and not goes_on)
        if ancestors_clean and is_wrong:
            (origins if goes_on else harmless).append(index)
    return origins or harmless


def _spreading(network: Network, tensors: Mapping[str, TensorComparison]) -> set[int]:
    """Return the nodes with an error that is finite, at an output, or shown by a node that reads it."""
    nodes = set[int]()
    for index in reversed(network.order):
        seen = [tensors.get(name) for name in network.made(index)]
        suspect = [each for each in seen if each is None or each.is_suspect]
        # NaN and Inf beside right readers are masked out, as attention does with -Inf.
        finite = any(each is None or each.kind not in _NONFINITE for each in suspect)
        ends = not network.returned.isdisjoint(network.made(index))
        readers = network.readers_of(network.made(index))
        if suspect and (finite or ends or not nodes.isdisjoint(readers)):
            nodes.add(index)
    return nodes


def find_births(
    network: Network, tensors: Mapping[str, TensorComparison]
) -> list[tuple[bool, bool, list[int]]]:
    """Find the nodes that make NaN or Inf of tensors without.

    Returns:
        Each with the nodes that its NaN or Inf reaches, to the first finite tensors after it. Before
            these whether it stays inside, away from all outputs, and whether such a tensor is almost
            right, as the Softmax behind a mask. The likely ones first.
    """
    lost = {name for name, each in tensors.items() if each.severity == math.inf}
    births: list[tuple[bool, bool, list[int]]] = []
    for index in network.order:
        if lost.isdisjoint(network.made(index)) or not lost.isdisjoint(network.reads[index]):
            continue
        nodes = _reached(
            [index], lambda node: network.readers_of(lost.intersection(network.made(node)))
        )
        made = {*network.made_by(nodes)}
        inside = lost.isdisjoint(network.returned & made)
        ends = [tensors[name].severity for name in made - lost if name in tensors]
        if not inside or any(ends):
            births.append((inside, min(ends, default=10) < required_severity(math.inf), nodes))
    return sorted(births, key=lambda birth: birth[:2])


def compare_own(
    look: Marking, names: Collection[str] | None = None, limit: int = MOST_BUILDS
) -> LayerComparison:
    """Compare the tensors that nodes compute from the reference's values, so that only their own errors are left.

    All nodes are in one model, or in groups if the target refuses that. There are no ``origins``.

    Args:
        look: Runs the model.
        names: The tensors to compute; ``None`` for all.
        limit: How many models the target may be given.
    """
    network = look.subject.network
    infos = look.subject.reference.infos
    wanted = [name for name in look.wanted if names is None or name in names]
    if not wanted:
        return LayerComparison()
    frozen = _frozen(look.subject)
    left_out: dict[str, str] = {}

    def is_fragile(name: str) -> bool:
        """Return whether the node that computes a tensor reads or makes bools or integers."""
        index = network.producer[name]
        ends = {*network.made(index), *network.reads[index]}.difference(frozen)
        return any(infos[end].dtype.kind in "biu" for end in ends if end in infos)

    def attempt(names: Sequence[str]) -> Compared | Failed:
        model = isolate(network, names, infos, frozen)
        left_out.update(model.left_out)
        return look.run(model.proto, model.outputs, model.fed) if model.outputs else Compared(())

    gathered = gather(wanted, list(filter(is_fragile, wanted)), attempt, limit=limit)
    comparisons = _of_samples(comparison for run in gathered.runs for comparison in run.comparisons)
    tensors = {name: comparisons[name] for name in wanted if name in comparisons}
    unseen = {
        name: reason for name, reason in (gathered.unseen | left_out).items() if name not in tensors
    }
    return LayerComparison(
        tensors, unseen, refused=None if gathered.runs else gathered.refused, builds=gathered.builds
    )


def _frozen(subject: Subject) -> Arrays:
    """Return the values of shapes and indices, as far as all input samples agree on them."""
    reference = subject.reference
    frozen = {}
    for name in (*subject.network.inputs, *subject.network.computed):
        if name in reference.infos and is_frozen(reference.infos[name]):
            first, *outputs = (
                sample.select([name])[name] for sample in (reference, *reference.more)
            )
            # A tensor of sizes that differ between samples is no constant.
            if all(np.array_equal(first, output) for output in outputs):
                frozen[name] = first
    return frozen


def tell(layers: LayerComparison, console: Console) -> None:
    """Print how many tensors mismatch, and why others could not be seen; the summary names the origins."""
    wrong = sum(not comparison.passed for comparison in layers.tensors.values())
    console.say(
        f"  {wrong} of {len(layers.tensors)} tensors mismatch, from {len(layers.origins)} origin(s)"
    )
    if layers.hidden:
        console.say(
            "  marking hides the failure: with these tensors as outputs the model's own outputs do not fail"
        )
    if layers.unseen:
        console.say(f"  {len(layers.unseen)} tensors could not be seen{IN_JSON}")
    for reason, count in Counter(layers.unseen.values()).most_common(_SHOWN_REASONS):
        console.say(f"    {count} because: {reason}")


def fill_in(result: Result, subject: Subject, layers: LayerComparison) -> None:
    """Put a layerwise comparison into a result."""
    network = subject.network

    def origin(index: int) -> Origin:
        bad = next(
            name
            for name in network.made(index)
            if name in layers.tensors and not layers.tensors[name].passed
        )
        return Origin(
            tensor=bad,
            node=network.plain(index),
            inputs=tuple(network.reads[index]),
            attributes=attribute_texts(network.nodes[index]),
            comparison=Comparison.of(layers.tensors[bad]),
        )

    def tensor(name: str, comparison: TensorComparison) -> Comparison:
        node = network.nodes[network.producer[name]]
        isolated = layers.own.get(name)
        isolated_part = None if isolated is None else Comparison.of(isolated)
        module = module_of(node)
        return Comparison.of(
            comparison, node.op_type, module, isolated_part if layers.own else UNSET
        )

    result.origins = list(map(origin, layers.origins))
    result.first_mismatch = next(iter(result.origins), None)
    result.mild_origins = list(map(origin, layers.mild))
    result.tensors = [tensor(*entry) for entry in layers.tensors.items()]
    result.unseen = dict(layers.unseen)
    result.builds = layers.builds
    if layers.own:
        result.own_unseen = dict(layers.own_unseen)
