"""Where the error of a set is born on a sample on which it fails: which lowered nodes make it of what was still right.

The set is run on ONNX Runtime's CPU provider with every value rounded as the low precision rounds it, whichever target it is
for, and every tensor is held against the reference's. That ranks nodes; what passes is for the target to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from bisect_trt.graph.lower import LOW_TYPES
from bisect_trt.probing.activations import Reference
from bisect_trt.probing.protocol import Failed
from bisect_trt.search.oracle import Subset
from bisect_trt.tensors.store import ActivationStore
from bisect_trt.tensors.tolerance import Precision, automatic_tolerance
from bisect_trt.workflows.precision.lowering import CastLowering
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.suspicion.isolated import OwnError, own_error

_NOTHING = OwnError(0.0, 0.0, nan=False, inf=False)


@dataclass(frozen=True)
class Births:
    """Where errors are born.

    Attributes:
        broken: The lowered units that make NaN or Inf where all that they read is finite, in topological order.
        growth: The other lowered units that add to the error, the one that adds most first.
    """

    broken: tuple[int, ...]
    growth: tuple[int, ...]


def births(task: Task, keep: Subset, reference: Reference) -> Births:
    """Look for the nodes at which a set goes wrong."""
    if task.settings.calibrated:  # by ranges that only TensorRT can read
        return Births((), ())
    subject, precision = task.subject, task.settings.precision
    network = subject.network
    lowering = CastLowering(subject, task.lowering.units, precision, emulated=True)
    model = onnx.ModelProto()
    model.CopyFrom(lowering.candidate(keep).proto)
    made = {name for node in model.graph.node for name in node.output if name}
    suffix = "fp16" if LOW_TYPES[precision] == TensorProto.FLOAT16 else "bf16"
    seen: dict[str, str] = {}
    for unit in task.lowering.units:
        for name in network.made(network.order[unit]):
            form = next((each for each in (name, f"{name}_{suffix}") if each in made), None)
            if form is not None and name in reference.infos and reference.infos[name].dtype == np.float32:
                seen[name] = form
    del model.graph.output[:]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(form, TensorProto.FLOAT, None) for form in seen.values()
    )
    models, folder = subject.models, subject.workspace.scratch("born")
    collected = models.collect(models.write("born", model), reference.inputs_file, folder)
    if isinstance(collected, Failed):
        return Births((), ())
    store = ActivationStore.open(folder)
    errors = {name: _error(task, store, reference, name, form) for name, form in seen.items() if form in store}
    return _ranked(task, keep, errors)


def _error(task: Task, store: ActivationStore, reference: Reference, name: str, form: str) -> OwnError:
    wanted, got = reference.select([name])[name], store.get(form)
    if wanted.shape != got.shape or not wanted.size:
        return _NOTHING
    return own_error(got, wanted, automatic_tolerance(wanted, Precision(task.settings.precision)))


def _ranked(task: Task, keep: Subset, errors: dict[str, OwnError]) -> Births:
    network = task.subject.network
    broken: list[int] = []
    growth: list[tuple[float, int]] = []
    for unit in task.lowering.units:
        if unit in keep:
            continue
        index = network.order[unit]
        made = [errors[name] for name in network.made(index) if name in errors]
        read = [errors[name] for name in network.reads[index] if name in errors]
        if any(each.nan or each.inf for each in made):
            if not any(each.nan or each.inf for each in read):
                broken.append(unit)
            continue
        gain = max((each.mean for each in made), default=0.0) - max((each.mean for each in read), default=0.0)
        if gain > 0:
            growth.append((gain, unit))
    return Births(tuple(broken), tuple(unit for _, unit in sorted(growth, key=lambda entry: (-entry[0], entry[1]))))
