"""What runs a model, behind one small protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from bisect_trt.targets.settings import Lowering, TargetSettings
from bisect_trt.tensors.info import TensorInfo

if TYPE_CHECKING:  # a worker of a target that reads ONNX by itself does without
    from onnx import ModelProto

Arrays = dict[str, NDArray[Any]]


class Session(Protocol):
    """A model, ready to run."""

    @property
    def inputs(self) -> Sequence[TensorInfo]:
        """What it has to be fed."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Outputs of the model that it does not hand out, with the reason."""

    def layers(self) -> list[dict[str, Any]]:
        """What the model has become, in the order it runs; empty where the runtime does not say.

        Each has a ``name`` and a ``kind`` in the runtime's words, the ``precisions`` of what it makes, and the
        ``tensors`` of the model that the nodes make which it runs.
        """

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All its outputs that are tensors, by name.

        Raises:
            RunError: It fails.
        """


class Runtime(Protocol):
    """Something that runs models."""

    def lowered(self, model: Path) -> ModelProto | None:
        """The form of a model that it really runs; ``None`` if that is the model itself."""

    @property
    def lowers_by(self) -> Lowering:
        """Whether half precision is written into the model, or chosen by the runtime layer by layer."""

    def build(self, model: Path, target: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Write what the runtime makes of a model to a file; the arguments are those of :meth:`load`.

        Raises:
            BuildError: It refuses the model.
            UsageError: It makes no such thing, or the file cannot be written.
        """

    def describe_engine(self) -> dict[str, Any]:
        """What the prebuilt engine is made of that it was set up with, as plain values.

        Raises:
            UnavailableError: The engine is not for this runtime.
            UsageError: It has no such thing.
        """

    def gpu_memory(self) -> int:
        """Bytes of its GPU that are in use, by anybody; 0 without one."""

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> Session:
        """Prepare a model.

        Args:
            model: The ONNX file.
            feed: The values that it will be fed, where known; a runtime that compiles may compile for them.

        Raises:
            BuildError: It refuses the model.
        """

    def load_unfused(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> Session | None:
        """The same, but what it gives back are all tensors that it does not fuse away; ``None`` if it cannot.

        Raises:
            BuildError: It refuses the model.
        """


def make_runtime(settings: TargetSettings) -> Runtime:
    """The runtime that is asked for; its package is imported only then.

    Raises:
        UnavailableError: It is not there, or has no such provider, or no GPU.
        UsageError: It has no such option.
    """
    if settings.runtime == "trt":
        from bisect_trt.targets.trt.build import TensorRtRuntime  # noqa: PLC0415 - see above

        return TensorRtRuntime(settings)
    if settings.runtime == "onnx":
        from bisect_trt.targets.evaluator.runtime import Evaluator  # noqa: PLC0415 - see above

        return Evaluator(settings)
    from bisect_trt.targets.onnxrt.runtime import OnnxRuntime  # noqa: PLC0415 - see above

    return OnnxRuntime(settings)
