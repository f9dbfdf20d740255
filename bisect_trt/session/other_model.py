"""Another ONNX model as the reference of one: an earlier export, or another exporter's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from numpy.typing import NDArray

from bisect_trt.errors import ModelRefusedError, UnsuitableModelError, quoted
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.reference import Reference
from bisect_trt.session.eager import Operation
from bisect_trt.session.subject import Subject
from bisect_trt.tensors.files import Values
from bisect_trt.worker.protocol import Failed

_SAME_NAMES = 0.8
"""The least share of tensors with the name and operator of one of the other model, where both have one exporter's."""
_NUMBER = 0
"""The number of its activations, which no sample has."""


class OtherModel(Struct, frozen=True):
    """Another model, which the reference's runtime runs; it can do what an :class:`Eager` can.

    Attributes:
        subject: The model under test.
        network: The other one.
        title: Its path, in messages.
    """

    subject: Subject
    network: Network
    title: str

    @classmethod
    def load(cls, path: Path, subject: Subject) -> OtherModel:
        """Read a model.

        Raises:
            UnavailableError: It cannot be read.
            UsageError: It takes an input that the model under test lacks, or lacks an output or the
                state.
        """
        proto = load_model(path)
        subject.workspace.weights.take_in(proto, path.parent)
        network = Network(proto)
        tested = subject.network
        extra = sorted({*network.inputs}.difference(tested.inputs))
        needed = {*tested.outputs, *subject.state.taken}
        missing = sorted(needed.difference(network.outputs, network.inputs))
        if extra or missing:
            raise UnsuitableModelError(
                f"--reference: {path} takes {quoted(extra)} beside the inputs of {subject.settings.path}, and lacks "
                f"{quoted(missing)} of its outputs and its state; export one with the same, the cache too, or exchange the two."
            )
        return cls(subject, network, str(path))

    def run(self, sample: Values, names: Sequence[str]) -> Values:
        """Return some outputs by name.

        Raises:
            UnavailableError: The model does not run.
        """
        outputs = self.subject.models.run("other", self.network.proto, sample)
        if isinstance(outputs, Failed):
            raise ModelRefusedError(f"--reference: {self.title} does not run: {outputs.message}.")
        return {name: outputs[name] for name in names}

    def trace(
        self, sample: Values, find: Callable[[NDArray[Any]], frozenset[str]]
    ) -> tuple[list[Operation], list[int]]:
        """Return the nodes as operations, and for each output the number of the one that computes it; see :class:`Eager`.

        Where both models have the names of one exporter, tensors of one name are matched, since a
        value may be the same by chance: a sum without one of its terms is the other term.
        """
        network = self.network
        subject = self.subject
        values = Reference(
            network, sample, subject.workspace, subject.models, _NUMBER, subject.swap_limit
        )
        nodes = {
            name: subject.network.nodes[node] for name, node in subject.network.producer.items()
        }
        named = {
            name
            for name, node in network.producer.items()
            if name in nodes and nodes[name].op_type == network.nodes[node].op_type
        }
        # Another exporter's names match by accident only.
        if len(named) < _SAME_NAMES * len(network.producer):
            named = set()
        operations = [Operation(None, (), sample.keys())]
        makers = dict.fromkeys(network.inputs, 0)
        for index in network.order:
            reads = {makers[name] for name in network.reads[index] if name in makers}
            if reads:
                node = network.nodes[index]
                makers |= dict.fromkeys(node.output, len(operations))
                equal = set[str]()
                for name, value in values.select(node.output).items():
                    equal |= find(value) & {name} if name in named else find(value)
                operations.append(Operation(None, reads, equal, node=network.plain(index)))
        return operations, [makers.get(name, 0) for name in subject.network.outputs]
