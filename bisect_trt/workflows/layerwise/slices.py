"""Compare every tensor slice by slice, for models that do not fit into memory with every tensor an output."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bisect_trt.graph.slices import Slice, plan_slices, slice_model
from bisect_trt.probing.reference import Reference
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.subject import Subject


def layer_slices(subject: Subject, target: TargetSettings) -> list[Slice]:
    """The slices in which a target is to run a model with every tensor marked; one if all fits.

    Not with TensorRT: an engine for each slice would take longer to build than it saves.
    """
    network, reference = subject.network, subject.reference
    limit = subject.swap_limit if target.target.capabilities.sliced else 1 << 62
    known = [index for index in network.order if index not in reference.lost]
    return plan_slices(network, known, reference.infos, limit)


def compare_slices(
    subject: Subject,
    target: TargetSettings,
    tolerance: ToleranceOptions,
    timeout: float | None,
    slices: Sequence[Slice],
) -> dict[str, Any]:
    """Run one slice after the other on the target, each on what the target made of those before it.

    Returns:
        The worker's reply, as if the model had been run in one piece.

    Raises:
        WorkerDied: The target crashed or ran past the time-out.
    """
    comparisons: list[dict[str, Any]] = []
    reference = subject.reference
    for number, sample in enumerate((reference, *reference.more), 1):
        reply = _compare_sample(subject, sample, target, tolerance, timeout, slices)
        if "error" in reply:
            return reply
        several = {"sample": number} if reference.more else {}
        comparisons += [{**comparison, **several} for comparison in reply["comparisons"]]
    return {"comparisons": comparisons}


def _compare_sample(
    subject: Subject,
    sample: Reference,
    target: TargetSettings,
    tolerance: ToleranceOptions,
    timeout: float | None,
    slices: Sequence[Slice],
) -> dict[str, Any]:
    model, made = subject.workspace.scratch("slice.onnx"), subject.workspace.scratch("target")
    handed_on = {name for part in slices for name in part.inputs}.difference(subject.network.inputs)
    request: dict[str, Any] = {"op": "compare", "model": str(model), "inputs": str(sample.inputs_file)}
    request |= {"golden": str(sample.store), "feeds_next": str(made), "every": True}
    request |= {"target": target.to_json(), "tolerance": tolerance.to_json()}
    comparisons: list[dict[str, Any]] = []
    for place, part in enumerate(slices):
        model.write_bytes(slice_model(subject.network, part, sample.infos).SerializeToString())
        request |= {"names": list(part.tensors), "keep": [name for name in part.tensors if name in handed_on]}
        reply = subject.workers.ask({**request, **({"feeds": str(made)} if place else {})}, timeout)
        if "error" in reply:
            return reply
        comparisons += reply["comparisons"]
    _remove(made)
    return {"comparisons": comparisons}


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
