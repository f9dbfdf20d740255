"""Candidates of a search over quantized groups: the quantized model, some of its groups in floats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from bisect_trt.graph.load import load_model
from bisect_trt.graph.network import Network
from bisect_trt.graph.qdq import Group, Pair
from bisect_trt.graph.save import save_model
from bisect_trt.graph.shapes import take_input_shapes
from bisect_trt.graph.unquantize import Stored, unquantize
from bisect_trt.probing.candidate import Candidate
from bisect_trt.search.oracle import Subset
from bisect_trt.workflows.precision.lowering import marked
from bisect_trt.workflows.subject import Subject


class GroupLowering:
    """By taking QuantizeLinear/DequantizeLinear pairs out.

    Attributes:
        units: The groups, by number.
        groups: The groups.
    """

    def __init__(self, subject: Subject, groups: Sequence[Group], weights: Stored, precision: str) -> None:
        """Prepare.

        Args:
            subject: The quantized model.
            groups: What may be taken out.
            weights: Weights that are stored quantized, in floats, by what dequantizes them makes.
            precision: What they are quantized to, in words.
        """
        self.units = tuple(range(len(groups)))
        self.groups = tuple(groups)
        self._subject = subject
        self._weights = weights
        self._precision = precision

    def candidate(self, keep: Subset) -> Candidate:
        """What is probed: ``keep`` in floats, the other groups quantized."""
        model = self.without(self.pairs(keep))
        return self._candidate(model, keep, f"{len(keep)} of {len(self.units)} groups in floats")

    def pairs(self, keep: Subset) -> list[Pair]:
        """The pairs of some groups."""
        return [pair for unit in sorted(keep) for pair in self.groups[unit].pairs]

    def without(self, pairs: Sequence[Pair]) -> onnx.ModelProto:
        """The model without some pairs."""
        network = self._subject.network
        return unquantize(network, pairs, self._weights) if pairs else network.proto

    def floats(self, keep: Subset) -> Network:
        """The graph with ``keep`` in floats."""
        return Network(self.without(self.pairs(keep)))

    def writes_model(self, path: Path) -> bool:  # noqa: ARG002 - whatever it is called
        """Always."""
        return True

    def write(self, keep: Subset, path: Path) -> None:
        """Write the model, of the shapes of the original file.

        Raises:
            UsageError: It cannot be written.
        """
        source = self._subject.settings
        network = Network(source.load())
        model = onnx.ModelProto()
        model.CopyFrom(unquantize(network, self.pairs(keep), self._weights) if keep else network.proto)
        save_model(model, source.weights, path, beside=True)

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """What was written, with the input shapes of the search."""
        proto = load_model(path)
        self._subject.workspace.take_in(proto, path.parent)
        take_input_shapes(proto, self._subject.network)
        return self._candidate(proto, keep, f"{path.name}, read back")

    def _candidate(self, model: onnx.ModelProto, keep: Subset, title: str) -> Candidate:
        network = self._subject.network
        candidate = Candidate(model, tuple(network.inputs), tuple(network.outputs), title, keep)
        return marked(candidate, self._precision)
