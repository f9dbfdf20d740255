"""The error of a failure that does not reproduce, with what to try next, as options and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import quoted
from bisect_trt.onnxlib.qdq import TYPES, find_quantized
from bisect_trt.options.shared import Data
from bisect_trt.options.spec import written
from bisect_trt.probe.prober import DoesNotReproduce

_LIST, _SHOWN = "\n  - ", 4


def advised(error: DoesNotReproduce, subject: Subject, check: CheckSettings) -> DoesNotReproduce:
    """Return the error with what to try next, one a line."""
    steps = [*_settings(subject, check), *_commands(subject, check)]
    return DoesNotReproduce(f"{error} What to try next:{_LIST}{_LIST.join(steps)}")


def _settings(subject: Subject, check: CheckSettings) -> Iterator[str]:
    """Yield inputs and options that may show the failure."""
    data, target = subject.settings.data, check.target
    values = subject.reference.select([name for name in subject.network.outputs if name in subject.reference.infos])
    lost = [
        name
        for name, value in values.items()
        if not value.size or (value.dtype.kind == "f" and np.mean(~np.isfinite(value)) >= 0.5)
    ]
    if lost:
        yield f"other inputs: {quoted(lost, _SHOWN)} has no elements here, or NaN or Inf in half of them or more"
    if target is not None and not target.low_precisions:
        yield "the precision of the failing deployment (--fp16, --bf16, ...)"
    if check.metric is not None:
        yield "the labels and preprocessing of the failing deployment"
        if check.metric.max_drop is not None:
            yield "a smaller --max-drop"
    elif data.given:
        yield "other samples of the failing deployment's inputs"
    else:
        yield "real input data (--load-inputs or --data-loader-script) instead of random values, or another --seed"
    yield "a tighter --atol and --rtol, and the other options of the failing deployment"


def _commands(subject: Subject, check: CheckSettings) -> Iterator[str]:
    """Yield commands that look for other failures, each in words and as a line."""
    data, model, target = subject.settings.data, str(subject.settings.path), check.target
    if target is None:
        return
    places = [word for place in subject.workers.places for word in ("--on", place.said)]

    def line(command: str, *more: str, inputs: Data = data) -> str:
        words = [model, *target.flags(), *written(inputs), *places, *written(check.tolerance)]
        return shlex.join(["bisect-trt", command, *words, *more])

    rungs = {group.rung for group in find_quantized(subject.network).groups}
    if rungs:
        metric = () if check.metric is None else written(check.metric)
        flags = [f"--{rung}" for rung in TYPES if rung in rungs and f"--{rung}" not in target.flags()]
        command = line("precision", *metric, *flags, "--reference", "FLOAT.onnx", "-o", "mixed.onnx")
        yield f"whether its scales fit ({command}, where FLOAT.onnx is the model before it was quantized)"
    if check.metric is not None:
        return
    yield f"tensors inside that differ, though the outputs match ({line('layerwise')})"
    yield f"builds that fail now and then ({line('repeat', '--until', 'bad', '-n', '20')})"
    if any(not isinstance(dim, int) for dims in subject.declared.values() for dim in dims):
        yield "other sizes of the free dimensions (sweep --shapes)"
    if not data.given:
        random = replace(data, iterations=None, seed=Data().seed)
        yield f"many random samples ({line('samples', '--iterations', '50', inputs=random)})"
