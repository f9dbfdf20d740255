"""A model that does not fit into memory with every tensor an output, compared slice by slice."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from bisect_trt.graph.slices import Slice, plan_slices, slice_model
from bisect_trt.probing.activations import Reference
from bisect_trt.probing.protocol import Compare, Compared, Failed, Sample
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.subject import Subject


def layer_slices(subject: Subject, target: TargetSettings) -> list[Slice]:
    """The slices in which a target is to run a model with every tensor marked; one if all fits.

    Not with TensorRT: an engine for each slice would take longer to build than it saves.
    """
    network, reference = subject.network, subject.reference
    known = [index for index in network.order if index not in reference.lost]
    if not target.target.capabilities.sliced:
        return plan_slices(network, known, reference.infos, sys.maxsize, len(network.order))
    return plan_slices(network, known, reference.infos, subject.swap_limit)


def compare_slices(
    subject: Subject,
    target: TargetSettings,
    tolerance: ToleranceOptions,
    timeout: float | None,
    slices: Sequence[Slice],
) -> Compared | Failed:
    """Run one slice after the other on the target, each on what the target made of those before it.

    Returns:
        The reply, as if the model had been run in one piece.
    """
    comparisons: list[TensorComparison] = []
    reference = subject.reference
    for number, sample in enumerate((reference, *reference.more), 1):
        reply = _compare_sample(subject, sample, target, tolerance, timeout, slices)
        if isinstance(reply, Failed):
            return reply
        comparisons += [each.of_sample(number) if reference.more else each for each in reply.comparisons]
    return Compared(tuple(comparisons))


def _compare_sample(
    subject: Subject,
    sample: Reference,
    target: TargetSettings,
    tolerance: ToleranceOptions,
    timeout: float | None,
    slices: Sequence[Slice],
) -> Compared | Failed:
    made = subject.workspace.scratch("target")
    handed_on = {name for part in slices for name in part.inputs}.difference(subject.network.inputs)
    comparisons: list[TensorComparison] = []
    for place, part in enumerate(slices):
        request = Compare(
            target,
            subject.models.write("slice", slice_model(subject.network, part, sample.infos)),
            (Sample(sample.inputs_file, sample.store),),
            tolerance,
            tuple(part.tensors),
            feeds=made if place else None,
            keep=tuple(name for name in part.tensors if name in handed_on),
            keep_in=made,
        )
        reply = subject.models.ask(request, timeout)
        if isinstance(reply, Failed):
            return reply
        comparisons += reply.comparisons
    shutil.rmtree(made, ignore_errors=True)
    return Compared(tuple(comparisons))
