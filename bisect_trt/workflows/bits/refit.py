"""The cheaper mend: leave everything quantized, and give what does not fit the scale and zero point that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.save import save_model
from bisect_trt.graph.unquantize import drop_unused, rescale
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.luck import look_again
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.workflows.bits.misfit import Misfit
from bisect_trt.workflows.bits.stored import constant_of
from bisect_trt.workflows.bits.yardstick import refitted
from bisect_trt.workflows.precision.lowering import marked
from bisect_trt.workflows.precision.task import Task

_INPUTS = 3
"""Data, weight, bias; and data, scale, zero point."""


@dataclass(frozen=True)
class Refit:
    """Other scales for the tensors that do not fit.

    Attributes:
        misfits: The tensors.
        passed: Whether the model passes with them, all of it quantized.
        reason: What was seen.
        path: Where that model is, if it passes.
    """

    misfits: tuple[Misfit, ...]
    passed: bool
    reason: str
    path: Path | None = None


def try_refit(task: Task, misfits: Sequence[Sequence[Misfit]], kept: Subset) -> Refit | None:
    """Give the tensors of the groups that have to be kept a scale that fits, and probe that.

    Args:
        task: The search.
        misfits: How each tensor fits, by group.
        kept: The groups that have to go back to floats otherwise.

    Returns:
        ``None`` where there is nothing to be tried: no scale is at fault, or only those of stored weights.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    found = [
        each
        for unit in sorted(kept)
        for each in misfits[unit]
        if each.pair.quantize and each.fitted_scale is not None and each.bad and not each.drowned
    ]
    if not found:
        return None
    model = _model(task, task.subject.network, found)
    network = task.subject.network
    title = f"all quantized, {len(found)} scales fitted"
    candidate = marked(Candidate(model, tuple(network.inputs), tuple(network.outputs), title), "refitted")
    record = task.prober.probe(candidate)
    if record.verdict is Verdict.PASS:
        record = look_again(task.prober, task.lowering.candidate(frozenset()), candidate).record
    if record.verdict is not Verdict.PASS:
        return Refit(tuple(found), passed=False, reason=record.reason)
    output = task.settings.output
    path = output.with_name(f"{output.stem}-refitted{output.suffix}")
    source = task.subject.settings
    save_model(_model(task, Network(source.load()), found), source.weights, path, beside=True)
    return Refit(tuple(found), passed=True, reason=record.reason, path=path)


def _model(task: Task, network: Network, misfits: Sequence[Misfit]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    changed: dict[int, tuple[TensorProto, TensorProto | None]] = {}
    for number, each in enumerate(misfits):
        changed |= refitted(network, each, 1.0, f"refitted.{number}")
    rescale(model, changed)
    _fit_biases(task, network, model, changed)
    drop_unused(model)
    return model


def _fit_biases(
    task: Task,
    network: Network,
    model: onnx.ModelProto,
    changed: dict[int, tuple[TensorProto, TensorProto | None]],
) -> None:
    """Biases of 32 bits are in steps of the input's scale times the weight's: integer kernels take them for that."""
    for node in network.nodes:
        if node.op_type not in ("Conv", "Gemm", "ConvTranspose") or len(node.input) < _INPUTS or not node.input[2]:
            continue
        makers = [network.producer.get(name) for name in node.input[:_INPUTS]]
        data, weight, bias = makers
        if data not in changed or weight is None or bias is None:
            continue
        maker = network.nodes[bias]
        stored = network.initializers.get(maker.input[0])
        if maker.op_type != "DequantizeLinear" or stored is None or stored.data_type != TensorProto.INT32:
            continue
        by_weight = constant_of(task.subject, network.nodes[weight].input[1])
        by_bias, steps = constant_of(task.subject, maker.input[1]), constant_of(task.subject, maker.input[0])
        by_data = numpy_helper.to_array(changed[data][0])
        if by_weight is None or by_bias is None or steps is None or by_data.size != 1:
            continue
        scale = np.broadcast_to(by_data.reshape(()) * by_weight, by_bias.shape).astype(by_bias.dtype)
        whole = np.rint(steps * by_bias.astype(np.float64) / scale).clip(-(2**31), 2**31 - 1).astype(np.int32)
        index = network.producer[maker.output[0]]
        for place, value, name in ((0, whole, "refitted"), (1, scale, "refitted_scale")):
            fresh = f"{maker.input[0]}.{name}"
            model.graph.node[index].input[place] = fresh
            model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), fresh))
