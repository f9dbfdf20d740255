"""The values of tensors that depend on no input."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.cut import cut, mark_outputs
from bisect_trt.graph.network import Network
from bisect_trt.graph.units import Units
from bisect_trt.probing.models import Models
from bisect_trt.probing.protocol import Failed


class Constants:
    """Computes weights that nodes make, each once, on the reference runtime."""

    def __init__(self, network: Network, units: Units, models: Models) -> None:
        """Nothing is computed yet."""
        self._network = network
        self._units = units
        self._models = models
        self._values: dict[str, onnx.TensorProto] = {}

    def value(self, name: str) -> onnx.TensorProto:
        """The value as an initializer of that name.

        Raises:
            UnavailableError: ONNX Runtime cannot compute it.
        """
        if name not in self._values:
            node = self._network.nodes[self._network.producer[name]]
            tensor = next((a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"), None)
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor if tensor is not None else self._compute(name))
            copy.name = name
            self._values[name] = copy
        return self._values[name]

    def _compute(self, name: str) -> onnx.TensorProto:
        network = self._network
        maker = network.rank[network.producer[name]]
        nodes = self._units.to_nodes(self._units.with_weights([maker]))
        part = Network(cut(network, nodes, {}, stored=self.value).proto)
        made = self._models.run("constant", mark_outputs(part, [name], {}), {})
        if isinstance(made, Failed):
            raise UnavailableError(f"ONNX Runtime cannot compute the weight '{name}': {made.message}.")
        return numpy_helper.from_array(made[name], name)
