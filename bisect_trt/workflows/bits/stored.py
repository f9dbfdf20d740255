"""What a quantized model has stored, or computes of nothing but that: scales, zero points, weights in floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.network import Network
from bisect_trt.graph.nodes import held
from bisect_trt.probing.protocol import Failed
from bisect_trt.workflows.subject import Subject


def constant_of(subject: Subject, name: str | None, network: Network | None = None) -> NDArray[Any] | None:
    """The value of a tensor that depends on no input; ``None`` of another one.

    Args:
        subject: The quantized model.
        name: The tensor.
        network: That model with other tensors in floats, if it is its value there that is asked for.
    """
    network = network or subject.network
    if name is None:
        return None
    tensor = network.initializers.get(name)
    maker = network.producer.get(name)
    if tensor is None and (maker is None or not network.constant[maker]):
        return None
    if tensor is None and maker is not None:
        tensor = held(network.nodes[maker])
    try:
        if tensor is not None:
            folder = subject.workspace.weights.folder_of(network.proto)
            return np.asarray(numpy_helper.to_array(tensor, str(folder)))
    except Exception:  # its file is gone, or it is of a type that NumPy lacks: ONNX and NumPy raise their own
        return None
    made = _computed(subject, [name], network)
    return None if isinstance(made, Failed) else np.asarray(made[name])


def dequantized(subject: Subject, names: Sequence[str]) -> dict[str, TensorProto]:
    """The values of weights, computed by the reference runtime all at once.

    Raises:
        UnavailableError: It cannot.
    """
    made = _computed(subject, names, subject.network) if names else {}
    if isinstance(made, Failed):
        raise UnavailableError(f"ONNX Runtime does not dequantize the model's weights: {made.message}.")
    return {name: numpy_helper.from_array(np.asarray(made[name]), name) for name in names}


def _computed(subject: Subject, names: Sequence[str], network: Network) -> dict[str, NDArray[Any]] | Failed:
    """What depends on no input, by name; the model itself is not run, and so nothing is taken for the reference's."""
    nodes, waiting = set[int](), list(names)
    while waiting:
        maker = network.producer.get(waiting.pop())
        if maker is not None and maker not in nodes:
            nodes.add(maker)
            waiting += network.reads[maker]
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    read = {name for index in nodes for name in network.reads[index]}
    copies = [onnx.NodeProto.FromString(network.nodes[i].SerializeToString()) for i in network.order if i in nodes]
    stored = [tensor for tensor in network.proto.graph.initializer if tensor.name in read]
    for field in ("node", "initializer", "input", "output", "value_info"):
        model.graph.ClearField(field)
    model.graph.node.extend(copies)
    model.graph.initializer.extend(stored)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return subject.models.run("weights", model, {})
