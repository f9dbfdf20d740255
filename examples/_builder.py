"""What the example scripts share: naming nodes as ``torch.onnx.export`` does, drawing weights, writing the files."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = npt.NDArray[np.float32]

IR_VERSION = 8
"""Fixed, so that the file is the same whichever ``onnx`` writes it, and old ONNX Runtimes read
it."""


class GraphBuilder:
    """Collects nodes and weights in topological order and makes a model of them.

    Args:
        seed: Seeds the weights. The same seed gives the same bytes.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._uses: Counter[str] = Counter()

    def op(self, op_type: str, *inputs: str, scope: str = "", **attributes: Any) -> str:  # noqa: ANN401 - as make_node
        """Adds a node with one output and returns the output's name.

        The names are the PyTorch exporter's: the first ``Add`` in scope ``/blocks.5/mlp/fc2`` is
        the node ``/blocks.5/mlp/fc2/Add`` and makes ``/blocks.5/mlp/fc2/Add_output_0``; the next is
        ``.../Add_1``.
        """
        name = f"{scope}/{op_type}"
        number = self._uses[name]
        self._uses[name] += 1
        if number:
            name = f"{name}_{number}"
        output = f"{name}_output_0"
        self._nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def constant(
        self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32, scope: str = ""
    ) -> str:
        """Adds a ``Constant`` node, as the PyTorch exporter does for numbers in the code, and returns its output."""
        return self.op(
            "Constant", scope=scope, value=numpy_helper.from_array(np.asarray(value, dtype))
        )

    def weight(self, name: str, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """Stores an initializer and returns its name."""
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def draw(self, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Array:
        """Draws from a normal distribution, clipped at two standard deviations, then rounded to fp16.

        Rounded as the weights of a half-precision checkpoint are: what fp16 breaks is then all in
        the activations.
        """
        drawn = mean + std * self.rng.standard_normal(shape).clip(-2, 2)
        return drawn.astype(np.float16).astype(np.float32)

    def normal(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> str:
        """Draws an initializer, stores it and returns its name."""
        return self.weight(name, self.draw(shape, std, mean))

    def model(
        self,
        name: str,
        inputs: Mapping[str, tuple[int, tuple[int, ...]]],
        output: str,
        shape: tuple[int, ...],
        opset: int,
    ) -> onnx.ModelProto:
        """Makes the checked model.

        Args:
            name: The graph's name.
            inputs: Element type (``TensorProto.FLOAT``, ...) and shape of each graph input.
            output: The tensor to return, a float32 one. The last node, which makes it, is left to
                return it.
            shape: Its shape.
            opset: Version of the default domain.
        """
        self._nodes[-1].output[0] = output
        graph = helper.make_graph(
            self._nodes,
            name,
            [
                helper.make_tensor_value_info(key, elem_type, dims)
                for key, (elem_type, dims) in inputs.items()
            ],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            self._weights,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def parse_arguments(description: str, script: str) -> tuple[Path, int]:
    """Reads the command line of an example script.

    Args:
        description: What the script writes, for ``--help``.
        script: The script's ``__file__``.

    Returns:
        The folder to write to, which exists, and the seed.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(script).resolve().parent, metavar="DIR",
        help="folder to write to (default: the script's own)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seeds the weights (default: 0)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    return arguments.output, arguments.seed
