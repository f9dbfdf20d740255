"""Look at a model's tensors while it runs on the target."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import onnx

from bisect_trt.graph.network import Network
from bisect_trt.probing.builtin import outcome_of_comparisons, outcome_of_failure
from bisect_trt.probing.outcome import LOST, Ending, Outcome
from bisect_trt.probing.protocol import Compare, Compared, Failed, Sample
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.layerwise.groups import Gathered, Seen, gather, narrow
from bisect_trt.workflows.layerwise.origins import Layerwise, judge_layers
from bisect_trt.workflows.layerwise.sliced import compare_slices, layer_slices
from bisect_trt.workflows.subject import Subject

_UNKNOWN = "the reference has no value of it"


class Comparing(Protocol):
    """How a target is compared with the reference."""

    @property
    def target(self) -> TargetSettings | None:
        """The runtime under suspicion."""

    @property
    def tolerance(self) -> ToleranceOptions:
        """How far a tensor may be off."""

    @property
    def timeout(self) -> float | None:
        """Seconds that one run may take."""


@dataclass(frozen=True)
class Look:
    """How to look.

    Attributes:
        subject: The model.
        target: The runtime under suspicion.
        tolerance: How far a tensor may be off.
        timeout: Seconds that one run may take.
        cancel: Ends a run.
    """

    subject: Subject
    target: TargetSettings
    tolerance: ToleranceOptions
    timeout: float | None = None
    cancel: Cancel | None = None

    @classmethod
    def by(cls, subject: Subject, how: Comparing) -> Look:
        """As a check, or the settings of a command, compares the target."""
        assert how.target is not None, "there is nothing to look at without one"
        return cls(subject, how.target, how.tolerance, how.timeout)

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
    ) -> Seen | None:
        """Run a model on every input sample and compare some of its outputs with the reference's.

        Args:
            model: The model; its outputs go by the original's names.
            names: What to compare.
            fed: Activations that it is fed beside the graph's inputs: tensor by the name of the input.
            unfused: Whether to see what the target does not fuse away, rather than the outputs alone.
            layers: Whether to ask what the target makes of the model.

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
        seen = _read(lambda: self.subject.models.ask(request, self.timeout, self.cancel))
        if seen is None or seen.refused is not None or not unfused:
            return seen
        shown = {comparison.name for comparison in seen.comparisons} | seen.unseen.keys()
        return replace(seen, unseen={**seen.unseen, **{name: "fused away" for name in names if name not in shown}})

    def unfused(self) -> Seen | None:
        """Run the model as it is and see what the target does not fuse away; ``None`` if it cannot show that."""
        return self.run(self.subject.marked(self.outputs), self.wanted, unfused=True)

    def marked(self, names: Sequence[str]) -> Seen:
        """Run the model with these tensors as outputs, beside its own; slice by slice where all are too many to hold."""
        slices = layer_slices(self.subject, self.target) if len(names) == len(self.wanted) else []
        if len(slices) > 1:
            arguments = (self.subject, self.target, self.tolerance, self.timeout, slices)
            sliced = _read(lambda: compare_slices(*arguments))
            assert sliced is not None
            return sliced
        # Graph outputs that have no reference stay outputs all the same: without them the model would be another one.
        own = [name for name in self.outputs if name in self.subject.reference.infos]
        shown = [*dict.fromkeys([*names, *own])]
        seen = self.run(self.subject.marked(dict.fromkeys([*shown, *self.outputs])), shown)
        assert seen is not None
        return seen

    def unmarked(self) -> tuple[Outcome, Seen]:
        """Run the model as it is: how it ends, and what the target makes of it."""
        names = [name for name in self.outputs if name in self.subject.reference.infos]
        seen = self.run(self.subject.network.proto, names, layers=True)
        assert seen is not None
        return self.judge(seen), seen

    def judge(self, seen: Seen) -> Outcome:
        """A run as the outcome of a probe, by the model's own outputs."""
        if seen.refused is not None:
            ending = Ending.SKIPPED if seen.signature == LOST else Ending.BROKEN
            return Outcome(ending, str(seen.signature), seen.refused, seen.seconds)
        mine = tuple(comparison for comparison in seen.comparisons if comparison.name in self.outputs)
        return outcome_of_comparisons(Compared(mine), seen.seconds, self.tolerance)

    def hides(self, original: Outcome | None, seen: Seen) -> bool:
        """Whether the original fails and this run does not, or in another, milder way."""
        if original is None or original.judge(None) is not Verdict.FAIL:
            return False
        return self.judge(seen).judge(original.signature, original.severity) is not Verdict.FAIL


def _read(ask: Callable[[], Compared | Failed]) -> Seen | None:
    """What a worker's answer shows; ``None`` if the target cannot do what it was asked for."""
    began = time.monotonic()
    reply = ask()
    seconds = time.monotonic() - began
    if isinstance(reply, Failed):
        crashed = outcome_of_failure(reply, seconds).reason if reply.kind == "crash" else reply.message
        return Seen(refused=crashed, signature=reply.signature, seconds=seconds)
    if reply.unsupported:
        return None
    return Seen(reply.comparisons, dict(reply.skipped), reply.layers, seconds=seconds)


@dataclass(frozen=True)
class Glance:
    """What :func:`compare_layers` looks at first, whatever the original does, where somebody has looked already.

    Attributes:
        unfused: The run that shows what is not fused away; ``None`` if the target cannot.
        marked: The run with every tensor marked; ``None`` if the other one shows something.
    """

    unfused: Seen | None
    marked: Seen | None

    @property
    def refused(self) -> bool:
        """Whether the target did not run what it was given last, which may be due to what ran beside it."""
        last = self.marked or self.unfused
        return last is None or last.refused is not None


def glance(look: Look) -> Glance:
    """Look at what is looked at first."""
    unfused = look.unfused()
    shows = unfused is not None and unfused.refused is None
    return Glance(unfused, None if shows else look.marked(look.wanted))


def compare_layers(look: Look, original: Outcome | None = None, seen_before: Glance | None = None) -> Layerwise:
    """Compare every tensor that the target can be made to show with the reference's.

    Marking a tensor as an output keeps it from being fused, which may mend what is looked for. So where the target can
    show what it leaves unfused, that is looked at first, and does if it says where it goes wrong.

    Args:
        look: How to look.
        original: How the model ends as it is, if that is known.
        seen_before: What was seen before.
    """
    seen = look.unfused() if seen_before is None else seen_before.unfused
    fused = None
    if seen is not None and seen.refused is None:
        fused = replace(_judge(look, [seen], dict(seen.unseen)), fused=True, hidden=look.hides(original, seen))
        if not fused.outputs_fail or fused.is_exact(look.subject.network):
            return fused
    marked = compare_marked(look, original, None if seen_before is None else seen_before.marked)
    return marked if fused is None or (marked.outputs_fail and marked.origins) else fused


def compare_marked(look: Look, original: Outcome | None = None, everything: Seen | None = None) -> Layerwise:
    """Compare every tensor with the reference's by marking it as an output, with as few builds as it takes.

    ``everything`` is what the run with all of them marked showed, if there was one.
    """
    infos = look.subject.reference.infos
    fragile = {name for name in look.wanted if infos[name].dtype.kind in "biu"} - set(look.outputs)
    broken = original.signature if original is not None and original.ending is Ending.BROKEN else None
    known = [] if everything is None else [everything]  # what is tried first
    found = gather(look.wanted, fragile, lambda names: known.pop() if known else look.marked(names), broken)
    if found.refused is not None and found.builds > 1 and not _is_exact(look, original, found):
        firm = [name for name in look.wanted if name not in fragile and name not in look.outputs]
        leads_to = partial(_leads_to, look.subject.network)
        narrow(found, firm, leads_to, look.marked, lambda seen: not look.hides(original, seen))
    if not found.groups:
        return replace(_judge(look, [], found.unseen), refused=found.refused, builds=found.builds)
    telling = _telling(look, original, found)
    layers = _judge(look, telling or found.groups, found.unseen)
    if telling:
        return replace(layers, builds=found.builds)
    # What is off all the same is not what was looked for.
    mild = (*layers.origins, *layers.mild)
    return replace(layers, origins=[], mild=mild, outputs_fail=False, hidden=True, builds=found.builds)


def _is_exact(look: Look, original: Outcome | None, found: Gathered) -> bool:
    """Whether what was seen shows an origin, and all that it reads."""
    telling = [seen for seen in found.groups if not look.hides(original, seen)]
    return _judge(look, telling, {}).is_exact(look.subject.network)


def _leads_to(network: Network, name: str) -> set[str]:
    """The tensors that one is computed from, without weights."""
    found: set[int] = set()
    pending = [network.producer[name]] if name in network.producer else []
    while pending:
        index = pending.pop()
        new = [parent for parent in network.parents(index) if parent not in found and not network.constant[parent]]
        found.update(new)
        pending += new
    return {made for index in found for made in network.made(index)}


def _telling(look: Look, original: Outcome | None, found: Gathered) -> list[Seen]:
    """The runs whose marks do not hide the failure; what the others show says nothing of it."""
    telling = [seen for seen in found.groups if not look.hides(original, seen)]
    for seen in found.groups if 0 < len(telling) < len(found.groups) else ():
        if seen not in telling:
            names = [comparison.name for comparison in seen.comparisons if comparison.name not in look.outputs]
            found.unseen |= dict.fromkeys(names, f"marking it and {len(names) - 1} others hides the failure")
    return telling


def _judge(look: Look, groups: Sequence[Seen], unseen: dict[str, str]) -> Layerwise:
    network = look.subject.network
    lost = {name: _UNKNOWN for name in network.computed if name not in look.subject.reference.infos}
    merged: dict[tuple[str, int | None], TensorComparison] = {}
    for comparison in (each for seen in groups for each in seen.comparisons):
        key = comparison.name, comparison.sample
        if key not in merged or merged[key].severity < comparison.severity:  # an output is in every group
            merged[key] = comparison
    place = {name: number for number, name in enumerate(look.wanted)}
    ordered = sorted(merged.values(), key=lambda each: (each.sample or 0, place[each.name]))
    return judge_layers(network, look.tolerance, ordered, lost | unseen)
