"""The interface between a worker and a target's ``runner.py``, which runs models with the runtime's own package.

A target names its runner module last in ``Target.sent``, after the modules of the package that the runner imports. The runner
module defines ``make(settings) -> TargetRunner``; ``settings`` is a mapping of plain values: the fields of
``TargetSettings`` and those of the target's own settings. A worker on this machine, a worker in another interpreter or on
another host, and ``reproduce.py`` all call it in the same way.

A runner module imports the standard library, NumPy, the runtime's package and the modules of ``Target.sent``: never ``onnx``,
and no other module of the package. What it needs to know of a graph, ``Target.hints`` finds on the driver's side; low precision
is written into the model there too (``Target.lower``). It runs on Python 3.10 and up.

Failures have a type each, from :mod:`bisect_trt.targets.messages` and :mod:`bisect_trt.errors`:

- ``BuildError(message, signature=..., poisoned=...)``: the runtime refuses the model;
- ``RunError(message, signature=..., poisoned=...)``: it fails to run it. The signature is the same for the same failure of
  another model: the message with its numbers, paths and names masked. ``poisoned`` means that the process can run nothing else;
- ``UsageError``: a setting is wrong; ``UnavailableError``: the package, the provider, the device or the GPU is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bisect_trt.tensors.info import TensorInfo


class LoadedModel(Protocol):
    """A model that a runtime has loaded."""

    @property
    def inputs(self) -> Sequence[TensorInfo]:
        """The inputs that it has to be fed."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """Outputs that it cannot return, with the reason."""

    def layers(self) -> list[dict[str, Any]]:
        """The layers of the engine in execution order; empty if the runtime does not report them. See ``Session.layers``."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """All outputs that are tensors, by name.

        Raises:
            RunError: The runtime fails.
        """


class TargetRunner(Protocol):
    """A runtime that is set up.

    Attributes:
        facts: Plain values for the driver: ``version``, ``lowers_by`` (``cast`` or ``layer``), and the target's own, such as the
            names of its devices or execution providers.
    """

    facts: Mapping[str, Any]

    def load(
        self, path: Path, feed: Mapping[str, NDArray[Any]], hints: Mapping[str, Any], unfused: bool
    ) -> LoadedModel | None:
        """Load a model.

        Args:
            path: The ONNX file, with its external data beside it.
            feed: The values that it will be fed; a runtime that compiles may compile for their shapes.
            hints: What ``Target.hints`` found in the model.
            unfused: Whether to return every tensor that is not fused away, instead of the outputs.

        Returns:
            The model; ``None`` if ``unfused`` is not possible.

        Raises:
            BuildError: The runtime refuses the model.
        """

    def build(self, path: Path, to: Path, feed: Mapping[str, NDArray[Any]], hints: Mapping[str, Any]) -> None:
        """Write the engine of a model to a file.

        Raises:
            BuildError: The runtime refuses the model.
            UsageError: The runtime has no engines.
        """

    def describe_engine(self) -> dict[str, Any]:
        """The contents of the prebuilt engine that the settings name, as plain values.

        Raises:
            UsageError: The runtime has no engines.
        """

    def trace(self, path: Path, feed: Mapping[str, NDArray[Any]], hints: Mapping[str, Any]) -> dict[str, Any]:
        """What the runtime does to a model while loading it, as plain values; empty if it does not report that."""

    def gpu_memory(self) -> int:
        """Bytes of the GPU that are in use by any process; 0 without a GPU."""
