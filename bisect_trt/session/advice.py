"""The next step where the reference cannot run the user's model: sentences that follow the reason."""

from __future__ import annotations

from collections.abc import Iterator

from bisect_trt.errors import UsageError, quoted
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS, function_key
from bisect_trt.onnxlib.shapes import resized
from bisect_trt.report.sentences import TRY_LIBRARY, TRY_OUTPUTS, TRY_VALUES
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.inputs import make_inputs
from bisect_trt.worker.protocol import Failed

_SIZES = (2, 8, 16, 32, 224)
"""Sizes of free dimensions that models often need: heads, patches, strides, images."""
_KNOWN_DOMAINS = {*DEFAULT_DOMAINS, "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"}


def advice(subject: Subject, failed: Failed) -> str:
    """Return what may make the model run: one sentence or more after a space, or nothing."""
    # A type error stays with other sizes and values.
    runs = failed.kind != "build"
    sentences = (
        _library(subject),
        _compiled(subject),
        _sizes(subject) if runs else "",
        _values(subject) if runs else "",
        subject.renaming.strip(),
    )
    return "".join(f" {sentence}" for sentence in sentences if sentence)


def _library(subject: Subject) -> str:
    """Name the operators that a library of the user has to bring."""
    network = subject.network
    functions = set(map(function_key, network.proto.functions))
    foreign = {
        f"{node.domain}:{node.op_type}"
        for node in network.nodes
        if node.domain not in _KNOWN_DOMAINS and function_key(node) not in functions
    }
    if not foreign:
        return ""
    return TRY_LIBRARY.format(", ".join(sorted(foreign)))


def _compiled(subject: Subject) -> str:
    """Name the outputs to compare a compiled model with, which only its provider runs."""
    compiled = any(node.op_type == "EPContext" for node in subject.network.nodes)
    return TRY_OUTPUTS if compiled else ""


def _sizes(subject: Subject) -> str:
    """Try other sizes of the free dimensions that were set to 1, and name the first ones that run."""
    # The reference, which runs here, says nothing about a place, nor about sizes that it runs itself.
    if subject.workers.places or refused_sizes(subject) is None:
        return ""
    for shapes in _other_shapes(subject):
        infos = resized(input_infos(subject.network), shapes)
        try:
            (sample, *_) = make_inputs(infos, subject.data, 1)
        except UsageError:
            return ""
        if not isinstance(subject.models.run("sized", subject.network.proto, sample), Failed):
            words = (f"{name}:[{','.join(map(str, shape))}]" for name, shape in shapes.items())
            return f"It runs with --input-shapes {' '.join(words)}."
    return ""


def refused_sizes(subject: Subject) -> Failed | None:
    """Return how ONNX Runtime refuses the sizes that were assumed; ``None`` if it runs them, or all are given."""
    if not subject.assumed:
        return None
    reply = subject.models.run("assumed", subject.network.proto, subject.samples[0])
    return reply if isinstance(reply, Failed) else None


def _other_shapes(subject: Subject) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield shapes with one size for all dimensions that were set to 1; the first dimension, a batch, stays 1 at first."""
    free = {name: subject.declared.get(name, shape) for name, shape in subject.assumed.items()}
    for batch in (True, False):
        for size in _SIZES:
            yield {
                name: tuple(
                    dim if isinstance(dim, int) else 1 if batch and axis == 0 else size
                    for axis, dim in enumerate(dims)
                )
                for name, dims in free.items()
            }


def _values(subject: Subject) -> str:
    """Ask for real values where random integers may be out of range."""
    integers = [name for name, value in subject.samples[0].items() if value.dtype.kind in "iu"]
    if not integers or subject.settings.data.given:
        return ""
    return TRY_VALUES.format(quoted(integers))
