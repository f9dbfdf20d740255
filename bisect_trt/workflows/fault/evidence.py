"""What others make of a minimal case: ONNX's reference evaluator, the same in float64, and rounding without the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.errors import BisectError
from bisect_trt.graph.lower import LOW_TYPES, lower_roundtrip
from bisect_trt.graph.lower.rewriter import round_to_bfloat16, round_to_half
from bisect_trt.graph.nodes import attribute
from bisect_trt.graph.widen import widened
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.protocol import Collect, Failed
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.margins import DECIDING
from bisect_trt.tensors.npz import load_npz
from bisect_trt.workflows.fault.conditioning import expected_movement, spelled
from bisect_trt.workflows.subject import Subject

Values = Mapping[str, NDArray[Any]]
_LIMIT_SECONDS = 120.0
"""The evaluator is written for clarity, not for speed."""
_EVALUATOR = TargetSettings("onnx")
_WHOLE = tuple(
    getattr(onnx.TensorProto, name)
    for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)


@dataclass(frozen=True)
class Evidence:
    """What was made of a minimal case; what could not be had is the reason why, in words.

    Attributes:
        model: The case, its deciding nodes' tensors among its outputs.
        outputs: The tensors that are compared.
        inputs: What it is fed.
        reference: What the reference makes of it.
        target: What the target does.
        evaluator: What ONNX's reference evaluator does.
        wide: The same in float64.
        rounded: What the reference makes of it if each tensor is rounded to the target's precision; ``None`` where there is
            nothing to round.
        low: That precision.
        read: The inputs as the target rounds them.
        others: Precisions of the target that are not emulated here.
        movement: How far rounding in fp32, or TF32, must be expected to move each output; ``None`` where that is not known.
    """

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    inputs: Values
    reference: Values
    target: Values | str
    evaluator: Values | str
    wide: Values | str
    rounded: Values | str | None = None
    low: str | None = None
    read: Values = field(default_factory=dict)
    others: tuple[str, ...] = ()
    movement: Values | None = None

    @property
    def arbiter(self) -> Values | str:
        """The word that is taken: float64's, else the evaluator's, else why there is none."""
        return self.wide if not isinstance(self.wide, str) else self.evaluator


def gather(subject: Subject, candidate: Candidate, target: TargetSettings, *, refused: str | None) -> Evidence:
    """Have a minimal case computed by others."""
    settings = replace(target, keep=candidate.keep or target.keep, held=candidate.held or target.held)
    inputs = dict(subject.values(candidate, candidate.inputs))
    golden = dict(subject.values(candidate, candidate.outputs))
    marked, inner = _marked(candidate.proto)
    reference: Values = golden
    if inner:  # the activations of a model whose tensors were shrunk are not the original's
        made = _run(subject, "fault-reference", marked, inputs, None)
        reference = made if not isinstance(made, str) else golden
    low, others = _low(settings)
    rounded = None if low is None else _rounded(subject, marked, inputs, settings, low)
    seen = refused if refused is not None else _of_target(subject, candidate, marked, inputs, settings, golden)
    fp32 = low is None and not others and not isinstance(seen, str)
    return Evidence(
        marked,
        tuple(name for name in candidate.outputs if name in golden),
        inputs,
        {**reference, **golden},
        seen,
        _run(subject, "fault-evaluator", marked, inputs, _EVALUATOR),
        _wide(subject, marked, inputs),
        rounded,
        low,
        {}
        if low is None
        else {name: _round(value, low) for name, value in inputs.items() if value.dtype == np.float32},
        others,
        _movement(subject, marked, inputs, "tf32" in settings.low_precisions) if fp32 else None,
    )


def unheeded(subject: Subject, evidence: Evidence) -> str | None:
    """An attribute that the evaluator passes over, in words: without it it makes the same, and the reference does not.

    The evaluator knows not each attribute of each operator (``input_forget`` of an LSTM, say), and does not say so.
    """
    model, made = evidence.model, evidence.evaluator
    if isinstance(made, str):
        return None
    for number, node in enumerate(model.graph.node):
        for name in [each.name for each in node.attribute]:
            bare = onnx.ModelProto()
            bare.CopyFrom(model)
            left = [each for each in node.attribute if each.name != name]
            del bare.graph.node[number].attribute[:]
            bare.graph.node[number].attribute.extend(left)
            without = _run(subject, "fault-bare", bare, evidence.inputs, _EVALUATOR)
            if isinstance(without, str) or not _alike(without, made):
                continue
            reference = _run(subject, "fault-bare", bare, evidence.inputs, None)
            if not isinstance(reference, str) and not _alike(reference, evidence.reference):
                return f"it passes over '{name}' of {node.op_type}"
    return None


def _alike(some: Values, others: Values) -> bool:
    return all(
        np.array_equal(value, others[name], equal_nan=value.dtype.kind == "f")
        for name, value in some.items()
        if name in others
    )


def _low(target: TargetSettings) -> tuple[str | None, tuple[str, ...]]:
    """The one low precision that can be emulated here, and those that cannot; TF32 is a matter of tolerance."""
    names = tuple(name for name in target.low_precisions if name != "tf32")
    return (names[0], ()) if len(names) == 1 and names[0] in LOW_TYPES else (None, names)


def _of_target(
    subject: Subject,
    candidate: Candidate,
    marked: onnx.ModelProto,
    inputs: Values,
    settings: TargetSettings,
    golden: Values,
) -> Values | str:
    """What the target makes of the case; without the marks, where they hide what it does."""
    seen = _run(subject, "fault-target", marked, inputs, settings)
    if marked is candidate.proto or isinstance(seen, str):
        return seen
    bare = _run(subject, "fault-target", candidate.proto, inputs, settings)
    if isinstance(bare, str):
        return bare
    same = all(np.array_equal(bare[name], seen[name], equal_nan=bare[name].dtype.kind == "f") for name in golden)
    return seen if same else bare


def _marked(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Sequence[str]]:
    """The model with all that its deciding nodes read and make among its outputs; and the names of what was added."""
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    known |= {tensor.name for tensor in model.graph.initializer}
    deciding = [node for node in model.graph.node if decides(node)]
    made = {name for node in model.graph.node for name in node.output}
    names = [name for node in deciding for name in (*node.input, *node.output) if name in made and name not in known]
    if not names:
        return model, []
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    types = {value.name: value for value in model.graph.value_info}
    added = list(dict.fromkeys(names))
    marked.graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added)
    return marked, added


def decides(node: onnx.NodeProto) -> bool:
    """Whether the least difference of what a node reads may make a wholly different result."""
    return node.op_type in DECIDING and (node.op_type != "Cast" or attribute(node, "to") in _WHOLE)


def _run(
    subject: Subject, name: str, model: onnx.ModelProto, inputs: Values, target: TargetSettings | None
) -> Values | str:
    """The outputs of a model, or why there are none."""
    models = subject.models
    made = subject.workspace.scratch(f"{name}.made.npz")
    settings = models.reference if target is None else target
    request = Collect(settings, models.write(name, model), models.feed(f"{name}.in", inputs), made)
    try:
        limit = _LIMIT_SECONDS if settings == _EVALUATOR else None
        reply = models.ask(request, limit, here=target is None)
    except BisectError as error:
        return str(error)
    return reply.message if isinstance(reply, Failed) else load_npz(made)


def _wide(subject: Subject, model: onnx.ModelProto, inputs: Values) -> Values | str:
    """What float64 says; NaN where it cannot be told from what the evaluator makes of a type that it does not expect."""
    try:
        wide = widened(model, subject.workspace.weights.folder_of(model))
    except Exception as error:  # weights that are not there, and whatever else ONNX raises
        return str(error)
    return _run(subject, "fault-float64", wide, _doubled(inputs), _EVALUATOR)


def _movement(subject: Subject, model: onnx.ModelProto, inputs: Values, tf32: bool) -> Values | None:
    """How far rounding moves the outputs, as float64 has it."""
    fed, unit = _doubled(inputs), 2.0**-10 if tf32 else 2.0**-23

    def compute(wide: onnx.ModelProto) -> Values | str:
        return _run(subject, "fault-moved", wide, fed, _EVALUATOR)

    try:
        simple = spelled(model)
        wide = widened(simple, subject.workspace.weights.folder_of(model))
        return expected_movement(simple, wide, inputs, unit, compute)
    except Exception:  # as above, where it is said; and a node whose shapes are not those of its operator
        return None


def _doubled(inputs: Values) -> Values:
    return {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in inputs.items()}


def _rounded(
    subject: Subject, model: onnx.ModelProto, inputs: Values, target: TargetSettings, low: str
) -> Values | str:
    """What is left if every tensor is rounded, and each node computes in fp32 in between."""
    try:
        lowered = lower_roundtrip(model, target.keep, low=LOW_TYPES[low])
    except Exception as error:  # an opset that is too old, and what inference raises
        return str(error)
    return _run(subject, "fault-rounded", lowered, inputs, None)


def _round(value: NDArray[Any], low: str) -> NDArray[Any]:
    if low == "fp16":
        return round_to_half(value).astype(np.float32)
    return (round_to_bfloat16(value).astype(np.uint32) << np.uint32(16)).view(np.float32)
