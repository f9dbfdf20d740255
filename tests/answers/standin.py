"""A stand-in for TensorRT that runs models on ONNX Runtime, so that its commands have answers without a GPU.

It takes precisions as TensorRT to 10 does: the runtime lowers the model, layers can be held, an
engine is a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bisect_trt.targets.runtime import Runtime


class StandInTensorRt:
    """As the runtime of ``--trt``."""

    facts: Mapping[str, Any] = {"lowers_by": "layer"}

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def gpu_memory(self) -> int:
        """None is used."""
        return 0

    def lowered(self, model: Path) -> None:
        """It lowers models itself."""

    def trace(self, model: Path, feed: Any = None, method: str = "trace") -> dict[str, Any]:  # noqa: ARG002 - the protocol's
        """It reports nothing."""
        return {}

    def load(
        self,
        model: Path,
        feed: Mapping[str, Any] | None = None,
        ranges: object = None,  # noqa: ARG002 - as above
    ) -> Any:
        """A session."""
        engine, to = (
            getattr(self._settings.own, name, None) for name in ("load_engine", "save_engine")
        )
        if to is not None:  # the model as it is lowered
            lowered = self._runtime().lowered(model)
            Path(to).write_bytes(
                model.read_bytes() if lowered is None else lowered.SerializeToString()
            )
        if engine is None:
            return self._runtime().load(model, feed)
        return self._runtime(fp16=False, bf16=False).load(Path(engine), feed)

    def _runtime(self, **changes: Any) -> Any:
        return Runtime(replace(self._settings, runtime="onnxrt", own=None, **changes))
