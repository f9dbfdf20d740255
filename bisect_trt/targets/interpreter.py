"""What the runtimes share that compute a graph as it stands, node by node: no engine, nothing fused, no GPU of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bisect_trt.errors import UsageError
from bisect_trt.targets.base import Lowering
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:  # a worker that lowers nothing needs no ONNX
    from numpy.typing import NDArray
    from onnx import ModelProto


def load_proto(path: Path) -> ModelProto:
    """Read a model without the weights outside it.

    Raises:
        BuildError: It cannot be read.
    """
    import onnx  # noqa: PLC0415 - as above

    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # each of ONNX's formats raises its own
        raise BuildError(f"{path} cannot be read as an ONNX model: {error}") from error


class Interpreter:
    """The part of a :class:`~bisect_trt.targets.base.Runtime` that is the same for all of them.

    Attributes:
        name: What messages call it.
    """

    name: ClassVar[str]

    @property
    def lowers_by(self) -> Lowering:
        """By Casts: it computes what the graph says."""
        return "cast"

    def lowered(self, model: Path) -> ModelProto | None:
        """``None``: it runs the model itself."""
        return None

    def build(self, model: Path, target: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> None:
        """There are no engines here.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self.name} has no engine to write; name TensorRT as the target (--trt).")

    def describe_engine(self) -> dict[str, Any]:
        """There are no engines here.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self.name} has no engine to show; name TensorRT as the target (--trt).")

    def gpu_memory(self) -> int:
        """0: it uses none, or does not say."""
        return 0

    def trace(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """Nothing: it does not say."""
        return {}

    def load_unfused(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> None:
        """``None``: it gives back outputs alone."""
        return


def low_type(settings: TargetSettings) -> int | None:
    """ONNX's element type of the low precision that a graph is lowered to; ``None`` if it stays as it is."""
    from bisect_trt.graph.lower import LOW_TYPES  # noqa: PLC0415 - as above

    return next((LOW_TYPES[name] for name in settings.low_precisions if name in LOW_TYPES), None)
