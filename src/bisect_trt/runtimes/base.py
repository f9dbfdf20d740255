"""What runs a model, behind one small protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray
from onnx import ModelProto

from bisect_trt.runtimes.settings import Lowering, TargetSettings
from bisect_trt.tensors.info import TensorInfo

Arrays = dict[str, NDArray[Any]]


class RuntimeFailure(Exception):  # noqa: N818 - a finding about the model, not an error of ours
    """The runtime does not run the model.

    Attributes:
        message: Why, in the runtime's words, on one line.
        signature: The same with numbers, addresses and paths masked, so that the same failure of another model is equal.
        poisoned: Whether whatever else this process runs would fail too.
    """

    def __init__(self, message: str, *, signature: str | None = None, poisoned: bool = False) -> None:
        """``message`` as the runtime gave it; ``signature`` where the runtime knows more of what to mask."""
        super().__init__(message)
        self.message = clean_message(message)
        self.signature = mask_message(self.message) if signature is None else signature
        self.poisoned = poisoned


class BuildError(RuntimeFailure):
    """It refuses the model."""


class RunError(RuntimeFailure):
    """It takes the model and fails while running it."""


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
        from bisect_trt.runtimes.trt.build import TensorRtRuntime  # noqa: PLC0415 - see above

        return TensorRtRuntime(settings)
    if settings.runtime == "onnx":
        from bisect_trt.runtimes.evaluator import Evaluator  # noqa: PLC0415 - see above

        return Evaluator(settings)
    from bisect_trt.runtimes.onnxrt import OnnxRuntime  # noqa: PLC0415 - see above

    return OnnxRuntime(settings)


_ORT_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
# A file and line of its source, mostly followed by the C++ signature of the function there.
_SOURCE_PLACE = re.compile(
    r"\S+\.(?:h|cc|cpp|cu|cuh):\d+ "
    r"(?:[^()\n]{0,200}?::[^()\s]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])? )?"
)
_RUNNING = re.compile(r"Non-zero status code returned while running (\w+) node\. Name:('[^']*') Status Message: ")
# After it come all the kernels that do not fit.
_CANDIDATES = re.compile(r"\.? Encountered following errors: .*", re.DOTALL)
_PATH_OR_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|(?<![\w>)])[\w.+-]*/[^\s\"',:;()]+")
_NUMBERS = re.compile(r"\d+(?:\s*[,x]\s*-?\d+)*")


def clean_message(message: str) -> str:
    """A runtime's message on one line, without what says nothing to a user: codes, and places in its source."""
    text = _CANDIDATES.sub("", _ORT_PREFIX.sub("", message.strip()))
    text = _SOURCE_PLACE.sub("", _RUNNING.sub(r"\1 node \2: ", text))
    return re.sub(r"\s+", " ", text).strip().rstrip(".")


def mask_message(message: str) -> str:
    """A message with addresses, paths and numbers masked; a list of numbers, such as a shape, counts as one."""
    return _NUMBERS.sub("#", _PATH_OR_ADDRESS.sub("#", message))
