"""TensorRT's layers and the ONNX nodes that they come from; what keeps some of them in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import ModelProto

from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.config import is_strongly_typed, lowers_by_cast
from bisect_trt.targets.trt.knobs import order_layers
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.standalone import hold, layers_of, nodes_of


def layer_nodes(network: Any, model: ModelProto) -> list[int | None]:
    """For each layer the place of its node in the graph; ``None`` where it belongs to none.

    Args:
        network: What was parsed.
        model: What it was parsed from, each node with a name of its own.
    """
    return nodes_of(network, [[node.name, list(node.output)] for node in model.graph.node])


def named_layers(network: Any, model: ModelProto) -> list[tuple[str, int | None]]:
    """The name of each layer with the place of its node; see :func:`layer_nodes`."""
    names = [layer.name for layer in layers_of(network)]
    return list(zip(names, layer_nodes(network, model), strict=True))


def constrain(network: Any, model: ModelProto, settings: TargetSettings, tensorrt: TensorRt) -> list[str]:
    """Say in what precision layers run, where that is TensorRT's to choose.

    With ``layer``, layers of kept nodes run in fp32. With ``cast`` on a version without strong typing, each layer runs
    in the type of what it reads: the types in the graph are no more than hints there. A target that is held runs all
    else in the low precision.

    Returns:
        The names of the layers that are told to run in fp32, or in a type of their own.
    """
    if is_strongly_typed(settings, tensorrt.version):
        return []
    types = tensorrt.trt.DataType
    low = types.BF16 if settings.bf16 else types.HALF
    told: list[str] = []
    for layer, kept in zip(layers_of(network), _kept(network, model, settings, tensorrt), strict=True):
        if kept and hold(tensorrt.trt, layer, types.FLOAT):
            told.append(layer.name)
        elif kept is False:
            hold(tensorrt.trt, layer, low)
    return told + order_layers(tensorrt.trt, layers_of(network), settings.of(TrtSettings).layer_precisions)


def _kept(network: Any, model: ModelProto, settings: TargetSettings, tensorrt: TensorRt) -> Iterator[bool | None]:
    """For each layer whether it is to run in fp32, in the low precision, or (``None``) as TensorRT likes."""
    if lowers_by_cast(settings, tensorrt.version):
        yield from (not _reads_half(layer, tensorrt) for layer in layers_of(network))
        return
    names = set(settings.keep)
    kept = {index for index, node in enumerate(model.graph.node) if first_output(node) in names}
    other = False if settings.held else None
    yield from (True if node in kept else other for node in layer_nodes(network, model))


def _reads_half(layer: Any, tensorrt: TensorRt) -> bool:
    half = tensorrt.trt.DataType.HALF
    tensors = [layer.get_input(index) for index in range(layer.num_inputs)]
    return any(tensor is not None and tensor.dtype == half for tensor in tensors)
