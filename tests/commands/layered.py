"""A model under investigation whose target is ONNX Runtime, but for what a test makes of it."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import onnx

from bisect_trt.options.shared import Data
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.layers import Marking
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Compare, Compared, Failed

Shown = Compared | Failed
Ask = Callable[[Compare], Shown]
Target = Callable[[Compare, Ask], Shown]
"""Answers a request about the target, by itself or with what ONNX Runtime says."""


@lru_cache(maxsize=1)
def shared_workers() -> WorkerPool:
    """Workers for all tests: a new process takes half a second."""
    pool = WorkerPool(Path(mkdtemp()))
    atexit.register(pool.close)
    return pool


@contextmanager
def looking(
    model: Path, target: Target | None = None, *, fp16: bool = False, **data: Any
) -> Iterator[Marking]:
    """Look at a model."""
    settings = ModelSettings(model, data=Data(**data))
    with Subject(settings, Workspace(model.with_suffix(".run")), Console(-1)) as subject:
        real = shared_workers().ask

        def ask(request: Any, *rest: Any, **more: Any) -> Any:
            if target is None or not isinstance(request, Compare):
                return real(request, *rest, **more)
            return target(request, lambda changed: real(changed, *rest, **more))

        subject.workers.ask = ask  # type: ignore[method-assign]  # who answers here
        precision = Precision.FP16 if fp16 else Precision.FP32
        yield Marking(subject, TargetSettings(fp16=fp16), ToleranceOptions(precision=precision))


def outputs_of(request: Compare) -> set[str]:
    """The outputs of the model that a request is about."""
    return {
        value.name for value in onnx.load(str(request.model), load_external_data=False).graph.output
    }
