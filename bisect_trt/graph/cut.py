"""Make a model of any set of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from bisect_trt.graph.network import Network
from bisect_trt.graph.surgeon import StoredValue, select, splice
from bisect_trt.tensors.info import TensorInfo


@dataclass(frozen=True)
class Cut:
    """A model made of some of another's nodes.

    Attributes:
        proto: The model.
        inputs: The tensors it has to be fed, in order.
        outputs: The tensors it gives back, in order.
    """

    proto: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut(
    network: Network,
    chosen: Iterable[int],
    infos: Mapping[str, TensorInfo],
    stored: StoredValue,
    outputs: Sequence[str] | None = None,
) -> Cut:
    """Make a model of exactly the chosen nodes; :func:`select` says what goes in and out.

    Args:
        network: The original.
        chosen: Node numbers.
        infos: Type and shape of each tensor that may become an input or an output, where known.
        stored: Gives the values of the weights whose makers are not chosen; they become initializers.
        outputs: What to give back, where that is not all that something outside reads.

    Returns:
        The model; names of nodes and tensors are the original's, and so is the order of nodes wherever it is valid.
    """
    piece = select(network, chosen, outputs)
    inputs, outputs = (tuple(tensor.name for tensor in ends) for ends in (piece.inputs, piece.outputs))
    return Cut(splice(network, piece, infos, stored), inputs, outputs)
