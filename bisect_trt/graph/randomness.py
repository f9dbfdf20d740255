"""Which nodes of a model draw random numbers: something new in each run, and in each runtime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bisect_trt.graph.nodes import held, inner_nodes

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_TRAINING_MODE = 2
"""Which input of a Dropout says that it drops something; from opset 12 on, by default it does not."""


class Draws:
    """Finds the nodes of a model that draw random numbers."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, NDArray[Any]], *, unsure: bool) -> None:
        """Look at the functions.

        Args:
            model: The model.
            values: Of tensors that are known, beside those that the model has.
            unsure: What counts where it is not known whether a Dropout trains.
        """
        self._model, self._values, self._unsure = model, values, unsure
        self._functions: set[tuple[str, str]] = set()
        while True:
            rest = [each for each in model.functions if (each.domain, each.name) not in self._functions]
            more = {(each.domain, each.name) for each in rest if any(self.by(node) for node in each.node)}
            if not more:
                break
            self._functions |= more

    def by(self, node: onnx.NodeProto) -> bool:
        """Whether a node, one in a body of it, or one of a function that it calls does."""
        return any(
            each.op_type in _RANDOM or (each.domain, each.op_type) in self._functions or self.drops(each)
            for each in inner_nodes([node])
        )

    def drops(self, node: onnx.NodeProto) -> bool:
        """Whether a node is a Dropout in training mode."""
        if node.op_type != "Dropout" or len(node.input) <= _TRAINING_MODE or not node.input[_TRAINING_MODE]:
            return False
        return self._flags.get(node.input[_TRAINING_MODE], self._unsure)

    @cached_property
    def _flags(self) -> dict[str, bool]:
        """What is known of the tensors of one bool."""
        nodes = [*self._model.graph.node, *(node for function in self._model.functions for node in function.node)]
        stored = {tensor.name: tensor for tensor in self._model.graph.initializer}
        for node in nodes:
            if (tensor := held(node)) is not None:
                stored |= dict.fromkeys(node.output, tensor)
        known = {
            name: numpy_helper.to_array(tensor)
            for name, tensor in stored.items()
            if tensor.data_type == TensorProto.BOOL and tensor.data_location != TensorProto.EXTERNAL
        }
        known |= {name: value for name, value in self._values.items() if value.dtype.kind == "b"}
        return {name: bool(value.reshape(-1)[0]) for name, value in known.items() if value.size == 1}
