"""An ONNX model into a TensorRT network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.targets.messages import BuildError, names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.config import is_strongly_typed, network_flags
from bisect_trt.targets.trt.knobs import NoSuch, plug_instancenorm, set_parser_flags
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.standalone import layers_of
from bisect_trt.targets.trt.wording import reason, signature

Feed = Mapping[str, NDArray[Any]]


class Orders:
    """In what types the parser itself told layers to run.

    That of 8.6 tells QuantizeLinear to make INT8, without which the builder refuses the network.
    """

    def __init__(self, network: Any) -> None:
        self._precisions: dict[int, Any] = {}
        self._outputs: dict[tuple[int, int], Any] = {}
        for place, layer in enumerate(layers_of(network)):
            if layer.precision_is_set:
                self._precisions[place] = layer.precision
            for index in range(layer.num_outputs):
                if layer.output_type_is_set(index):
                    self._outputs[place, index] = layer.get_output_type(index)

    def restore(self, network: Any) -> None:
        """Take back all that its layers were told since."""
        for place, layer in enumerate(layers_of(network)):
            if place in self._precisions:
                layer.precision = self._precisions[place]
            elif layer.precision_is_set:
                layer.reset_precision()
            for index in range(layer.num_outputs):
                if (place, index) in self._outputs:
                    layer.set_output_type(index, self._outputs[place, index])
                elif layer.output_type_is_set(index):
                    layer.reset_output_type(index)


@dataclass
class Parsed:
    """A network, and what of the model it was parsed from.

    Attributes:
        network: TensorRT's own.
        model: The model as parsed: shape inputs are initializers now, every node has a name of its own.
        told: What the parser told its layers, where types are not the graph's alone.
        skipped: Outputs of the model that TensorRT does not hand out, with the reason.
        _parser: Kept because the weights in the network are the parser's.
    """

    network: Any
    model: ModelProto
    told: Orders | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    _parser: Any = None


def parse(model: ModelProto, path: Path, settings: TargetSettings, feed: Feed | None, tensorrt: TensorRt) -> Parsed:
    """Parse a model; weights outside it lie beside ``path``.

    An input that says how large something is (the second input of a Reshape) would make a network with shapes that
    TensorRT does not know. Its value is known here, so it becomes a constant.

    Args:
        model: The model; it is changed.
        path: Where it would lie as a file.
        settings: The target.
        feed: The values that it will be fed, where known.
        tensorrt: This process's TensorRT.

    Raises:
        BuildError: TensorRT's parser refuses it.
    """
    name_nodes(model)
    parsed = _parse(model, path, settings, tensorrt)
    shapes = [tensor.name for tensor in _inputs(parsed.network) if tensor.is_shape_tensor]
    known = {name: feed[name] for name in shapes if name in feed} if feed is not None else {}
    if known:
        freeze(model, known)
        parsed = _parse(model, path, settings, tensorrt)
    _unmark_shapes(parsed)
    return parsed


def _parse(model: ModelProto, path: Path, settings: TargetSettings, tensorrt: TensorRt) -> Parsed:
    network = tensorrt.builder.create_network(network_flags(settings, tensorrt))
    parser = tensorrt.parser(network)
    try:
        set_parser_flags(tensorrt.trt, parser, settings.of(TrtSettings).onnx_flags)
        if settings.of(TrtSettings).plugin_instancenorm:
            plug_instancenorm(tensorrt.trt, parser)
    except NoSuch as error:
        raise UsageError(f"{error}.") from error
    tensorrt.log.take()
    if not parser.parse(model.SerializeToString(), str(path)):
        message = _why(model, parser, tensorrt)
        raise BuildError(message, signature=signature(message, names_of(model.graph)))
    told = None if is_strongly_typed(settings, tensorrt.version) else Orders(network)
    return Parsed(network, model, told, _parser=parser)


def _why(model: ModelProto, parser: Any, tensorrt: TensorRt) -> str:
    """The parser's first error: which node, and what of it."""
    if parser.num_errors == 0:
        return reason(tensorrt.log.take(), "the ONNX parser refuses the model and does not say why")
    error = parser.get_error(0)
    where = ""
    if 0 <= error.node() < len(model.graph.node):
        node = model.graph.node[error.node()]
        where = f"{node.op_type} node '{node.name}': "
    return f"the ONNX parser refuses {where}{error.desc().strip()}"


def name_nodes(model: ModelProto) -> None:
    """Give every node a name of its own, because TensorRT's layers are found again by it."""
    given = Counter(node.name for node in model.graph.node)
    taken = set(given)
    for node in model.graph.node:
        if node.name and given[node.name] == 1:
            continue
        given[node.name] -= 1
        named = chain([first_output(node)], (f"{first_output(node)}_{number}" for number in count(1)))
        node.name = next(name for name in named if name and name not in taken)
        taken.add(node.name)


def freeze(model: ModelProto, values: Feed) -> None:
    """Turn inputs into initializers."""
    kept = [value for value in model.graph.input if value.name not in values]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())


def free_dimensions(model: ModelProto, settings: TargetSettings) -> None:
    """Let those input dimensions vary for which an optimisation profile gives a range.

    Raises:
        UsageError: A shape has another number of dimensions than its input.
    """
    lows, highs = dict(settings.of(TrtSettings).min_shapes), dict(settings.of(TrtSettings).max_shapes)
    for value in model.graph.input:
        if value.name not in lows or value.name not in highs:
            continue
        dims = value.type.tensor_type.shape.dim
        if len(lows[value.name]) != len(dims):
            raise UsageError(
                f"--trt-min-shapes: the input '{value.name}' has {len(dims)} dimensions, but "
                f"{list(lows[value.name])} has {len(lows[value.name])}; give one number for each."
            )
        for place, (low, high) in enumerate(zip(lows[value.name], highs[value.name], strict=True)):
            if low != high:
                dims[place].dim_param = f"{value.name}_{place}"
    del model.graph.value_info[:]


def _unmark_shapes(parsed: Parsed) -> None:
    """Take back those outputs that TensorRT computes on the host to know sizes: marking them breaks its builds.

    The last one stays: a network has to have an output.
    """
    network = parsed.network
    for tensor in [network.get_output(index) for index in range(network.num_outputs)]:
        if tensor.is_shape_tensor and network.num_outputs > 1:
            parsed.skipped[tensor.name] = "a shape tensor, which TensorRT computes on the host"
            network.unmark_output(tensor)


def _inputs(network: Any) -> Iterator[Any]:
    return (network.get_input(index) for index in range(network.num_inputs))


def output_types(model: ModelProto) -> dict[str, int]:
    """``TensorProto.DataType`` of the graph's outputs, where stated."""
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    return {name: element for name, element in types.items() if element != TensorProto.UNDEFINED}
