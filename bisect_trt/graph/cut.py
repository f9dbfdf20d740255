"""Pieces of a model: of any set of nodes, between two sets of tensors, or the whole with other tensors as its outputs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from bisect_trt.errors import UsageError, quoted
from bisect_trt.graph.network import Network
from bisect_trt.graph.surgeon import PRODUCER, Spliced, StoredValue, between, nothing_stored, select, splice
from bisect_trt.graph.values import value_info
from bisect_trt.tensors.info import TensorInfo


@dataclass(frozen=True)
class Cut:
    """A model made of some of another's nodes.

    Attributes:
        made: The model.
        inputs: The tensors it has to be fed, in order.
        outputs: The tensors it gives back, in order.
    """

    made: Spliced
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def proto(self) -> onnx.ModelProto:
        """The model's message; treat it as read-only."""
        return self.made.proto


def cut(
    network: Network,
    chosen: Iterable[int],
    infos: Mapping[str, TensorInfo],
    stored: StoredValue,
    outputs: Sequence[str] | None = None,
) -> Cut:
    """Make a model of exactly the chosen nodes; :func:`~bisect_trt.graph.surgeon.select` says what goes in and out.

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
    return Cut(splice(network, piece, infos, stored), tuple(piece.inputs), tuple(piece.outputs))


def mark_outputs(network: Network, names: Sequence[str], infos: Mapping[str, TensorInfo]) -> onnx.ModelProto:
    """The same model with other outputs.

    Args:
        network: The original; it is not changed.
        names: The tensors to give back, in this order.
        infos: Types and shapes, where known.

    Returns:
        A new model with exactly these outputs.
    """
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    model.producer_name = PRODUCER
    marked = set(names)
    kept = [value for value in network.proto.graph.value_info if value.name not in marked]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    del model.graph.output[:]
    model.graph.output.extend(value_info(name, infos, network.declared) for name in names)
    return model


def extract(
    network: Network, inputs: Sequence[str], outputs: Sequence[str], infos: Mapping[str, TensorInfo]
) -> tuple[onnx.ModelProto, list[str]]:
    """The model that computes some tensors from others.

    Args:
        network: The original.
        inputs: Where to stop walking back. Graph inputs and weights end it too.
        outputs: What to compute, in this order; without any, those of the graph's outputs that nodes compute.
        infos: Types and shapes of the tensors, where known.

    Returns:
        The model, and its inputs: the given ones in their order, then the graph inputs that are needed besides.

    Raises:
        UsageError: A name is no tensor of the model, an output is an input as well, an input is not needed, or the node
            that makes it has to stay.
    """
    inputs = tuple(dict.fromkeys(inputs))
    outputs = tuple(dict.fromkeys(outputs)) or _computed_outputs(network, inputs)
    _check_names(network, inputs, outputs)
    piece = between(network, inputs, outputs)
    _check_inputs(network, inputs, set(piece.nodes), set(piece.inputs))
    return splice(network, piece, infos, nothing_stored).proto, list(piece.inputs)


def _computed_outputs(network: Network, inputs: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in network.outputs if name in network.producer and name not in inputs)


def _check_names(network: Network, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    known = network.producer.keys() | set(network.inputs)
    known |= network.initializers.keys() | network.sparse_initializers.keys()
    for option, names in (("--inputs", inputs), ("--outputs", outputs)):
        for name in names:
            if name not in known:
                raise _no_tensor(network, option, name, known)
    for name in outputs:
        if name in inputs or name not in network.producer:
            raise UsageError(f"--outputs: '{name}' is not computed from the inputs, so there is nothing to extract.")
    if not outputs:
        raise UsageError("--outputs: no node computes an output of the model; name a tensor that one computes.")


def _no_tensor(network: Network, option: str, name: str, known: Collection[str]) -> UsageError:
    """Why a name is no tensor: it is a node's, or a misspelt one."""
    for index, node in enumerate(network.nodes):
        if node.name == name:
            return UsageError(
                f"{option}: '{name}' is a node ({node.op_type}), not a tensor; name what it makes: "
                f"{quoted(network.made(index))}."
            )
    close = difflib.get_close_matches(name, known)
    if close:
        return UsageError(
            f"{option}: the model has no tensor '{name}'; close to it: {quoted(close)}. "
            "`bisect-trt inspect model FILE --show layers` lists all."
        )
    return UsageError(
        f"{option}: the model has no tensor '{name}'; `bisect-trt inspect model FILE --show layers` lists all."
    )


def _check_inputs(network: Network, inputs: Sequence[str], chosen: set[int], reached: set[str]) -> None:
    for name in inputs:
        maker = network.producer.get(name)
        if maker in chosen:
            raise UsageError(
                f"--inputs: {network.describe(maker)}, which makes '{name}', is needed for what else it makes; "
                "name that too."
            )
        if name not in reached:
            raise UsageError(f"--inputs: no output depends on '{name}'; leave it out.")
