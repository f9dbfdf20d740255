"""What a target makes: a runtime, which loads models, and a session, which is one that is ready; as protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:  # nothing of them is needed to parse a command line
    from numpy.typing import NDArray
    from onnx import ModelProto

    from bisect_trt.tensors.info import TensorInfo

    Arrays = dict[str, NDArray[Any]]
else:
    Arrays = dict

Lowering = Literal["cast", "layer"]
"""How a model is lowered: by Casts in the ONNX graph, or by the runtime's own per-layer precision."""


@dataclass(frozen=True)
class EngineLayer:
    """A layer of what a target makes of a model.

    Attributes:
        name: As the target calls it.
        kind: Its type.
        nodes: Places of the ONNX nodes it runs, as far as its name tells.
        precisions: The types of what it makes, as ``float32`` or ``float16``.
        tactic: The kernel that runs it, as the target calls it; ``None`` where it does not say.
        formats: How what it reads and makes lies in memory, in the target's words.
    """

    name: str
    kind: str
    nodes: tuple[int, ...]
    precisions: tuple[str, ...]
    tactic: str | None = None
    formats: tuple[str, ...] = ()


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
        ``tensors`` of the model that the nodes make which it runs; it may have what ``chosen.choices_of_layers`` reads.
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

    def trace(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """What it does to a model on the way to running it, as plain values that its target's ``switches`` read.

        A model that it refuses has a trace too, of what was done before. Empty where the runtime does not say.
        """

    def load_unfused(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> Session | None:
        """The same, but what it gives back are all tensors that it does not fuse away; ``None`` if it cannot.

        Raises:
            BuildError: It refuses the model.
        """
