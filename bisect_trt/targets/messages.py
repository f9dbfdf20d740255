"""How a runtime fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from bisect_trt.targets.signatures import clean_message, mask_message

if TYPE_CHECKING:
    import onnx


class RuntimeFailure(Exception):  # noqa: N818 - a finding about the model, not an error of ours
    """The runtime does not run the model.

    Attributes:
        message: Why, in the runtime's words, on one line.
        poisoned: Whether whatever else this process runs would fail too.
    """

    def __init__(self, message: str, *, signature: str | None = None, poisoned: bool = False) -> None:
        """``message`` as the runtime gave it; ``signature`` where the runtime knows more of what to mask."""
        super().__init__(message)
        self.message = clean_message(message)
        self.poisoned = poisoned
        self._signature = signature

    @property
    def masked(self) -> str | None:
        """The signature that the runtime gave, where it knows more of what to mask."""
        return self._signature

    @property
    def signature(self) -> str:
        """The message as a template, where the names of the model are not known."""
        return self.sign(())

    def sign(self, names: Iterable[str]) -> str:
        """The message with numbers, addresses, paths and names masked, so that the same failure of another model is equal.

        Args:
            names: Of the nodes and tensors of the model that failed.
        """
        return mask_message(self.message, names) if self._signature is None else self._signature


class BuildError(RuntimeFailure):
    """It refuses the model."""


class RunError(RuntimeFailure):
    """It takes the model and fails while running it."""


def names_of(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name of a node or tensor of a graph, those in bodies of control flow too."""
    for value in (*graph.input, *graph.output):
        yield value.name
    for tensor in graph.initializer:
        yield tensor.name
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from names_of(body)
