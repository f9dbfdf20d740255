"""Mark tensors as outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from bisect_trt.graph.network import Network
from bisect_trt.graph.surgeon import PRODUCER
from bisect_trt.graph.values import value_info
from bisect_trt.tensors.info import TensorInfo


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
