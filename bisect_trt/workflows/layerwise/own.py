"""How far each layer is off by itself: all layers in one model, each fed the reference's values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.graph.isolate import is_frozen, isolate
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.layerwise.groups import MOST_BUILDS, Seen, gather
from bisect_trt.workflows.layerwise.look import Look, layer_slices
from bisect_trt.workflows.layerwise.origins import of_samples
from bisect_trt.workflows.subject import Subject


@dataclass(frozen=True)
class Own:
    """The error that each layer adds.

    Attributes:
        tensors: How a tensor is off when its node is fed the reference's values, in topological order.
        unseen: The tensors of which that is not known, with the reason.
        builds: How many models the target was given.
        refused: Why the target would not run the first of them, if it would not.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    builds: int
    refused: str | None = None


def compare_own(look: Look, names: Sequence[str] | None = None, most: int = MOST_BUILDS) -> Own:
    """Feed every layer the reference's values, all in one model, or in groups where the target refuses that.

    A model whose tensors do not fit into memory is looked at slice by slice, as with marks.

    Args:
        look: How to look.
        names: The tensors whose makers are looked at; ``None`` for all.
        most: How many models the target may be given.
    """
    subject, infos = look.subject, look.subject.reference.infos
    wanted = [name for name in look.wanted if names is None or name in names]
    frozen = _frozen(subject)
    fragile = {name for name in wanted if _is_fragile(subject, name, frozen)}
    left_out: dict[str, str] = {}

    def attempt(names: Sequence[str]) -> Seen:
        model = isolate(subject.network, names, infos, frozen)
        left_out.update(model.left_out)
        if not model.outputs:
            return Seen()
        seen = look.run(model.proto, model.outputs, fed=model.fed)
        assert seen is not None
        return seen

    slices = [wanted]
    if names is None:
        slices = [[name for name in part.tensors if name in infos] for part in layer_slices(subject, look.target)]
    found = [gather(part, fragile, attempt, most=most) for part in slices if part]
    comparisons = of_samples(each for part in found for seen in part.groups for each in seen.comparisons)
    tensors = {name: comparisons[name] for name in wanted if name in comparisons}
    unseen = {name: why for part in found for name, why in part.unseen.items()} | left_out
    refused = next((part.refused for part in found if not part.groups), None)
    builds = sum(part.builds for part in found)
    return Own(tensors, {name: why for name, why in unseen.items() if name not in tensors}, builds, refused)


def _is_fragile(subject: Subject, name: str, frozen: Collection[str]) -> bool:
    """Whether bools or integers go into its node or come out of it."""
    network, infos = subject.network, subject.reference.infos
    index = network.producer[name]
    ends = {*network.made(index), *network.reads[index]}.difference(frozen)
    return any(infos[end].dtype.kind in "biu" for end in ends if end in infos)


def _frozen(subject: Subject) -> dict[str, NDArray[Any]]:
    """The values of what is a shape or an index, as far as all input samples agree on them."""
    reference, frozen = subject.reference, {}
    for name in (*subject.network.inputs, *subject.network.computed):
        if name in reference.infos and is_frozen(reference.infos[name]):
            first, *others = (sample.select([name])[name] for sample in (reference, *reference.more))
            if all(np.array_equal(first, other) for other in others):
                frozen[name] = first
    return frozen
