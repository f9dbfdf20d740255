"""A tool from ONNX to ONNX: what it writes, run in the reference."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.base import Arrays, Session
from bisect_trt.targets.interpreter import Interpreter
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.runtime import OnnxRuntime
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.targets.through.settings import ThroughSettings
from bisect_trt.targets.through.tool import ToolFailed, run_tool, same_ends


class Through(Interpreter):
    """A tool, and the reference for its models."""

    name = "the tool"

    def __init__(self, settings: TargetSettings) -> None:
        """Set it up."""
        self._own = asdict(settings.of(ThroughSettings))
        self._runs = OnnxRuntime(reference_settings())

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> ThroughSession:
        """Have the tool make its model, and prepare that; ``feed`` makes no difference.

        Raises:
            BuildError: The tool fails, or its model has other ends, or does not load.
            UnavailableError: The tool cannot be run.
        """
        graph = onnx.load(str(model), load_external_data=False).graph
        wanted, given = [value.name for value in graph.output], {value.name for value in graph.input}
        with tempfile.TemporaryDirectory(prefix="bisect_trt_") as folder:
            try:
                written = run_tool(model, Path(folder), self._own)
            except ToolFailed as error:
                raise BuildError(str(error)) from error
            except OSError as error:
                raise UnavailableError(f"the tool cannot be run: {error.strerror or error}; check its path.") from error
            try:
                session = self._runs.load(written, feed)
            except BuildError as error:
                raise BuildError(f"the model that the tool writes does not load: {error.message}") from error
        outputs = [*session.names, *session.skipped]
        if wrong := same_ends(given, [info.name for info in session.inputs], outputs, wanted):
            raise BuildError(wrong)
        return ThroughSession(session, wanted)


class ThroughSession:
    """The tool's model, ready to run.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs that cannot be had as NumPy arrays, with their type.
    """

    def __init__(self, session: Session, wanted: list[str]) -> None:
        """``session`` is the reference's; ``wanted`` are the outputs of the original, which may be fewer."""
        self._session, self._wanted = session, wanted
        self.inputs, self.skipped = session.inputs, session.skipped

    def layers(self) -> list[dict[str, Any]]:
        """None: what became of a node the tool does not say."""
        return []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs of the original that are tensors.

        Raises:
            RunError: It fails.
        """
        outputs = self._session.run(inputs)
        return {name: outputs[name] for name in self._wanted if name in outputs}
