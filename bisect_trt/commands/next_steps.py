"""The error of a failure that does not reproduce, with what may still show it, as commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import quoted
from bisect_trt.onnxlib.nodes import bodies, label
from bisect_trt.onnxlib.qdq import TYPES, find_quantized
from bisect_trt.options.shared import Data
from bisect_trt.options.spec import written
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import DoesNotReproduce

_LIST, _SHOWN = "\n  - ", 4
MOST_SWEPT = 32
"""The largest size that is advised."""


def advised(
    error: DoesNotReproduce, subject: Subject, check: CheckSettings, outcome: Outcome | None = None
) -> DoesNotReproduce:
    """The error with what to try next, one a line; ``outcome`` is that of the original."""
    seen = () if outcome is None else outcome.comparisons
    types = dict.fromkeys(
        f"'{each.name}' is {each.target_dtype} and the reference's {each.reference_dtype}"
        for each in seen
        if each.target_dtype not in (None, each.reference_dtype)
    )
    steps = [f"readers of the outputs: values match, types do not ({', '.join(list(types)[:_SHOWN])})"] if types else []
    steps += [*_unseen(subject, check), *_settings(subject, check)]
    steps += [f"{what} ({shlex.join(['bisect-trt', *words])})" for what, words in _commands(subject, check)]
    return DoesNotReproduce(f"{error} What to try next:{_LIST}{_LIST.join(steps)}")


def _unseen(subject: Subject, check: CheckSettings) -> Iterator[str]:
    """Differences that this comparison cannot show."""
    network, reference, target = subject.network, subject.reference, check.target
    values = reference.select([name for name in network.outputs if name in reference.infos])
    if empty := [name for name, value in values.items() if not value.size]:
        nothing = f"{quoted(empty, _SHOWN)} ha{'s' if len(empty) == 1 else 've'} no elements with these"
        yield f"inputs of which something is left to compare: {nothing}"
    floats = {name: value for name, value in values.items() if value.dtype.kind == "f" and value.size}
    if lost := [name for name, value in floats.items() if np.mean(~np.isfinite(value)) >= 0.5]:
        made = f"the reference itself makes NaN or Inf of half of {quoted(lost, _SHOWN)} or more"
        yield f"inputs of which something is left to compare: {made}, and NaN beside NaN matches"
    if target is None:
        return
    rungs = {group.rung for group in find_quantized(network).groups}
    if rungs:
        words = [
            *_words(subject, check, written(subject.settings.data)),
            *([] if check.metric is None else written(check.metric)),
        ]
        words += [f"--{rung}" for rung in TYPES if rung in rungs and f"--{rung}" not in words]
        end = ["--reference", "FLOAT.onnx", "-o", "mixed.onnx"]
        said = shlex.join(["bisect-trt", "precision", str(subject.settings.path), *words, *end])
        why = "the reference computes with the same, so bad ones are on both sides"
        yield f"whether its scales fit: {why} ({said}, where FLOAT.onnx is the model before it was quantized)"
    nested = [node for node in network.nodes if any(bodies(node))]
    if nested and target.low_precisions and target.target.emulates_low(target):
        inside = f"inside of {nested[0].op_type} '{label(nested[0])}' nothing was rounded here"
        yield f"hardware that computes in {' and '.join(target.low_precisions)}: {inside}"


def _settings(subject: Subject, check: CheckSettings) -> Iterator[str]:
    """Options that may show the failure."""
    data, target = subject.settings.data, check.target
    if target is not None and not target.low_precisions:
        yield "the precision of the failing deployment (--fp16, --bf16, ...)"
    if check.metric is not None:
        yield "the labels and preprocessing of the failing deployment, for the reference scores no better"
        if check.metric.max_drop is not None:
            yield "a smaller --max-drop"
    elif data.given:
        yield "other samples of the failing deployment's inputs"
    else:
        yield "real input data (--load-inputs or --data-loader-script) instead of random values, or another --seed"
    yield "a tighter --atol and --rtol, and the other options of the failing deployment"


def _words(subject: Subject, check: CheckSettings, inputs: Sequence[str]) -> list[str]:
    """The target, the inputs, the places and the tolerances, as options."""
    assert check.target is not None
    places = [word for place in subject.workers.places for word in ("--on", place.said)]
    return [*check.target.flags(), *inputs, *places, *written(check.tolerance)]


def _commands(subject: Subject, check: CheckSettings) -> Iterator[tuple[str, list[str]]]:
    """Commands that ask in another way."""
    data, model = subject.settings.data, str(subject.settings.path)
    if check.metric is not None:
        return
    if check.target is None:
        return
    words = _words(subject, check, written(data))
    yield "whether tensors inside differ, though the outputs do not", ["layerwise", model, *words]
    yield "whether it fails in some builds alone", ["repeat", model, *words, "--until", "bad", "-n", "20"]
    shapes: dict[object, str] = {}
    for name, value in subject.samples[0].items():
        dims = subject.declared.get(name, value.shape)
        free = next((axis for axis, dim in enumerate(dims) if not isinstance(dim, int)), None)
        if free is not None:
            sizes = [f"1..{MOST_SWEPT}" if axis == free else str(size) for axis, size in enumerate(value.shape)]
            shapes.setdefault(dims[free] or name, f"{name}:[{','.join(sizes)}]")
    if shapes:
        words = _words(subject, check, written(replace(data, input_shapes={})))
        yield "other sizes of what is free", ["sweep", model, *words, "--shapes", *shapes.values()]
    if not data.given:
        words = _words(subject, check, written(replace(data, iterations=None, seed=Data().seed)))
        yield "many random samples", ["samples", model, *words, "--iterations", "50"]
