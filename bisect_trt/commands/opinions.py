"""Further opinions on a minimal case: ONNX's reference evaluator, the same in float64, and rounding without the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.commands.rounding_error import expected_movement, spelled
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.lower import LOW_TYPES, lower_roundtrip
from bisect_trt.onnxlib.lower.rewriter import round_to_bfloat16, round_to_half
from bisect_trt.onnxlib.nodes import attribute
from bisect_trt.onnxlib.widen import widened
from bisect_trt.probe.candidate import Candidate
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.margins import DECIDING
from bisect_trt.tensors.npz import load_npz
from bisect_trt.worker.protocol import Collect, Failed

Values = Mapping[str, NDArray[Any]]
_LIMIT_SECONDS = 120.0
"""The evaluator is written for clarity, not for speed."""
_EVALUATOR = TargetSettings("onnx")
_INTEGERS = {
    getattr(onnx.TensorProto, name)
    for name in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
}


@dataclass(frozen=True)
class Evidence:
    """The outputs of a minimal case by several runtimes; where one has none, the reason in words.

    Attributes:
        model: The case, with the tensors of its deciding nodes among its outputs.
        outputs: The tensors that are compared.
        inputs: What it is fed.
        reference: The reference's outputs.
        target: The target's.
        evaluator: Those of ONNX's reference evaluator.
        wide: The same in float64.
        rounded: The reference's with each tensor rounded to the target's precision; ``None`` where there is nothing to round.
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
        """The outputs that count as right: float64's, else the evaluator's, else why there are none."""
        return self.wide if not isinstance(self.wide, str) else self.evaluator


def gather(subject: Subject, candidate: Candidate, target: TargetSettings, *, refused: str | None) -> Evidence:
    """Compute a minimal case by all of them; ``refused`` is why the target does not run it, if so."""
    settings = replace(target, keep=candidate.keep or target.keep, held=candidate.held or target.held)
    inputs = dict(subject.values(candidate, candidate.inputs))
    golden = dict(subject.values(candidate, candidate.outputs))
    marked, inner = _marked(candidate.proto)
    reference: Values = golden
    if inner:  # the activations of a model whose tensors were shrunk are not the original's
        made = _run(subject, "fault-reference", marked, inputs, None)
        reference = made if not isinstance(made, str) else golden
    # TF32 is a matter of tolerance.
    others = tuple(name for name in settings.low_precisions if name != "tf32")
    low = others[0] if len(others) == 1 and others[0] in LOW_TYPES else None
    read: dict[str, NDArray[Any]] = {}
    rounded: Values | str | None = None
    if low is not None:
        read = {name: _round(value, low) for name, value in inputs.items() if value.dtype == np.float32}
        try:
            lowered = lower_roundtrip(marked, settings.keep, low=LOW_TYPES[low])
            rounded = _run(subject, "fault-rounded", lowered, inputs, None)
        except Exception as error:  # an opset that is too old, and what inference raises
            rounded = str(error)
    seen: Values | str = refused if refused is not None else _of_target(subject, candidate, marked, inputs, settings)
    wide, movement = _wide(subject, marked, inputs), None
    if not others and not isinstance(seen, str):
        movement = _movement(subject, marked, inputs, 2.0**-10 if "tf32" in settings.low_precisions else 2.0**-23)
    return Evidence(
        marked,
        tuple(name for name in candidate.outputs if name in golden),
        inputs,
        {**reference, **golden},
        seen,
        _run(subject, "fault-evaluator", marked, inputs, _EVALUATOR),
        wide,
        rounded,
        low,
        read,
        others if low is None else (),
        movement,
    )


def ignored_attribute(subject: Subject, evidence: Evidence) -> str | None:
    """An attribute that the evaluator ignores, in words: without it the evaluator makes the same, and the reference does not.

    The evaluator does not implement each attribute of each operator (``input_forget`` of an LSTM, say), and does not say so.
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


def decides(node: onnx.NodeProto) -> bool:
    """Whether the least difference in a node's inputs may make a wholly different result."""
    return node.op_type in DECIDING and (node.op_type != "Cast" or attribute(node, "to") in _INTEGERS)


def _alike(some: Values, others: Values) -> bool:
    shared = ((value, others[name]) for name, value in some.items() if name in others)
    return all(np.array_equal(one, two, equal_nan=one.dtype.kind == "f") for one, two in shared)


def _of_target(
    subject: Subject, candidate: Candidate, marked: onnx.ModelProto, inputs: Values, settings: TargetSettings
) -> Values | str:
    """The target's outputs; without the marks, where these change them."""
    seen = _run(subject, "fault-target", marked, inputs, settings)
    if marked is candidate.proto or isinstance(seen, str):
        return seen
    bare = _run(subject, "fault-target", candidate.proto, inputs, settings)
    return bare if isinstance(bare, str) or not _alike(bare, seen) else seen


def _marked(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Sequence[str]]:
    """The model with all that its deciding nodes read and make among its outputs; and the names that were added."""
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    known |= {tensor.name for tensor in model.graph.initializer}
    made = {name for node in model.graph.node for name in node.output}
    deciding = [name for node in model.graph.node if decides(node) for name in (*node.input, *node.output)]
    added = list(dict.fromkeys(name for name in deciding if name in made and name not in known))
    if not added:
        return model, []
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    types = {value.name: value for value in model.graph.value_info}
    marked.graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added)
    return marked, added


def _run(
    subject: Subject, name: str, model: onnx.ModelProto, inputs: Values, target: TargetSettings | None
) -> Values | str:
    """The outputs of a model, or why there are none; ``None`` for the reference."""
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
    """The outputs in float64."""
    try:
        wide = widened(model, subject.workspace.weights.folder_of(model))
    except Exception as error:  # weights that are not there, and whatever else ONNX raises
        return str(error)
    return _run(subject, "fault-float64", wide, _doubled(inputs), _EVALUATOR)


def _movement(subject: Subject, model: onnx.ModelProto, inputs: Values, unit: float) -> Values | None:
    """How far rounding moves the outputs, in float64."""
    fed = _doubled(inputs)

    def compute(wide: onnx.ModelProto) -> Values | str:
        return _run(subject, "fault-moved", wide, fed, _EVALUATOR)

    try:
        simple = spelled(model)
        wide = widened(simple, subject.workspace.weights.folder_of(model))
        return expected_movement(simple, wide, inputs, unit, compute)
    except Exception:  # as above; and a node whose shapes are not those of its operator
        return None


def _doubled(inputs: Values) -> Values:
    return {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in inputs.items()}


def _round(value: NDArray[Any], low: str) -> NDArray[Any]:
    if low == "fp16":
        return round_to_half(value).astype(np.float32)
    return (round_to_bfloat16(value).astype(np.uint32) << np.uint32(16)).view(np.float32)
