"""A TensorRT network from an ONNX model, with the types of its layers."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bisect_trt.aliases import Fields, Plain
from bisect_trt.targets.messages import BuildError, Feed
from bisect_trt.targets.trt.config import builder_flags, is_strongly_typed, network_inputs
from bisect_trt.targets.trt.process import TensorRt, clean_parser, signature

LAYER_SUFFIX = re.compile(r"(_\d+)?( \[[^\]]*\])?$")
"""The parser appends it where a node makes several layers."""
_NO_PLUGIN = re.compile("Plugin not found")
"""The parser's message about an operator that it does not know, and no plugin has."""
_ELEMENTS = {"bool": 9, "int32": 6, "int64": 7, "float32": 1}
"""ONNX's numbers of the types that shapes are given in."""


@dataclass
class ParsedNetwork:
    """A network of TensorRT, and its model.

    Attributes:
        nodes: Of each node of the model its name, outputs, and, where that is known, inputs and
            outputs in the original.
        skipped: Outputs of the model that the network does not return, with the reason.
        parser: Kept because it owns the weights of the network.
    """

    network: Any
    nodes: Sequence[Sequence[Any]]
    skipped: dict[str, str] = field(default_factory=dict)
    parser: Any = None

    def layers(self) -> list[Any]:
        """Return the layers in the order they were made."""
        return [self.network.get_layer(index) for index in range(self.network.num_layers)]

    def places(self) -> list[int | None]:
        """Return for each layer the place of its node in the graph; ``None`` where it belongs to none.

        The parser makes the layers of one node after the other. A layer has the name of its node,
        or makes its output; unnamed layers before such a one belong to the same node.
        """
        by_name = {node[0]: place for place, node in enumerate(self.nodes) if node[0]}
        by_output = {
            output: place for place, node in enumerate(self.nodes) for output in node[1] if output
        }
        places: list[int | None] = []
        pending = 0
        for layer in self.layers():
            place = by_name.get(layer.name, by_name.get(LAYER_SUFFIX.sub("", layer.name)))
            if place is None:
                output_names = [layer.get_output(index).name for index in range(layer.num_outputs)]
                place = next((by_output[name] for name in output_names if name in by_output), None)
            places.append(place)
            pending += 1
            if place is not None:
                # Unnamed layers before a named one belong to the same node.
                places[-pending:] = [place] * pending
                pending = 0
        return places


def parse(
    process: TensorRt, settings: Plain, path: pathlib.Path, feed: Feed, hints: Plain
) -> ParsedNetwork:
    """Parse a model.

    An input that gives a size (the second input of a Reshape) would make a network with shapes that
    TensorRT does not know. Its value is known here (``feed``), so it becomes a constant.

    Args:
        process: This process's TensorRT.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
        path: The ONNX file.
        feed: The values of the first sample, by input name.
        hints: Plain values about the model: ``nodes``, ``lowered``, ``types``, ``names``, and
            ``content`` where it is not in the file.

    Raises:
        BuildError: The parser refuses it.
    """
    content, lies = model_of(path, hints)
    names = hints.get("names", ())
    log = process.log

    def parsed(model: bytes) -> ParsedNetwork:
        network, parser = _parser(process, settings, hints)
        for flag in builder_flags(process.trt, settings)[1]:
            parser.set_flag(flag)
        log.errors.clear()
        if parser.parse(model, lies):
            return ParsedNetwork(network, hints["nodes"], parser=parser)
        if parser.num_errors == 0:
            raise log.failure(
                BuildError, "the ONNX parser refuses the model and gives no reason", names
            )
        raise refusal(parser.get_error(0), hints["nodes"], names)

    result = parsed(content)
    constants = {
        tensor_in.name: feed[tensor_in.name]
        for tensor_in in network_inputs(result.network)
        if _gives_shape(tensor_in, feed)
    }
    if constants:
        # Parsed again with these inputs as constants: a network cannot be changed.
        result = parsed(with_values(content, constants))
    network = result.network
    for tensor in [network.get_output(index) for index in range(network.num_outputs)]:
        # Marking what TensorRT computes on the host breaks its builds; but a network has to have an
        # output.
        if tensor.is_shape_tensor and network.num_outputs > 1:
            result.skipped[tensor.name] = "a shape tensor, which TensorRT computes on the host"
            network.unmark_output(tensor)
    return result


def model_of(path: pathlib.Path, hints: Plain) -> tuple[bytes, str]:
    """Return a serialized model, and the path beside which its weights are."""
    lies = pathlib.Path(hints.get("weights") or path.absolute().parent, path.name)
    return hints.get("content") or path.read_bytes(), str(lies)


def partition(process: TensorRt, settings: Plain, path: pathlib.Path, hints: Plain) -> Fields:
    """Return which nodes the parser refuses, as ``polygraphy inspect capability`` does; nothing is built.

    Args:
        process: This process's TensorRT.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
        path: The ONNX file.
        hints: Plain values about the model: ``nodes``, ``lowered``, ``types``, ``names``, and
            ``content`` where it is not in the file.

    Returns:
        ``refused``: of each such node ``node`` and ``reason``. ``parts``: the names of the nodes
            between them, by part. Empty
        before TensorRT 10.
    """
    (_network, parser), nodes = _parser(process, settings, hints), hints["nodes"]
    # Before TensorRT 10.
    if not hasattr(parser, "supports_model_v2"):
        return {}
    parser.supports_model_v2(*model_of(path, hints))
    places = [parser.get_subgraph_nodes(index) for index in range(parser.num_subgraphs)]
    refused = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = {
        error.node(): refusal(error, nodes, ()).message
        for error in refused
        if 0 <= error.node() < len(nodes)
    }
    return {
        "refused": [
            {"node": nodes[place][0], "reason": reason} for place, reason in sorted(reasons.items())
        ],
        "parts": [[nodes[place][0] for place in part] for part in places],
    }


def refusal(error: Any, nodes: Sequence[Sequence[Any]], names: Sequence[str]) -> BuildError:
    """Return the failure that an error of the parser describes.

    The message names the node; since TensorRT 10 also its operator and, for a node in a function or
    in the body of an If, a Loop or a Scan, the nodes around it. The signature has the operator and
    no name, because a reproducer knows no names.

    Args:
        error: The parser's error.
        nodes: The nodes of the model; the first entry of each is its name.
        names: The names of the model's nodes and tensors, which the signature masks.
    """
    outer = ""
    name = ""
    operator = ""
    around = list[str]()
    # A reproducer has no nodes.
    if 0 <= error.node() < len(nodes):
        outer = name = str(nodes[error.node()][0])
    # The accessors of nodes exist since TensorRT 10.
    if hasattr(error, "node_operator"):
        name = error.node_name() or outer
        operator = error.node_operator()
        around = list(error.local_function_stack())
    within = f", within {' > '.join(around or [outer])}" if outer and name != outer else ""
    location = f"node '{name}'{within}" if name else "the model"
    explanation = clean_parser(error.desc())
    kind = f"{operator}: " if operator else ""
    # The parser checks for an importer of the operator, and reports the condition alone.
    if explanation == "false":
        explanation = "this operator is not supported"
    if _NO_PLUGIN.search(explanation):
        explanation = "there is neither such an operator nor a plugin of that name; load the plugin's library with --plugins"
    return BuildError(
        f"the ONNX parser refuses {location}: {kind}{explanation}",
        signature=signature(f"the ONNX parser: {kind}{explanation}", names),
    )


def _gives_shape(tensor: Any, feed: Feed) -> bool:
    return (
        tensor.is_shape_tensor and tensor.name in feed and feed[tensor.name].dtype.name in _ELEMENTS
    )


def _parser(process: TensorRt, settings: Plain, hints: Plain) -> tuple[Any, Any]:
    """Return an empty network and its parser; TensorRT 10 needs no EXPLICIT_BATCH any more, 11 does not have it."""
    trt, flags = process.trt, process.trt.NetworkDefinitionCreationFlag
    strong = is_strongly_typed(trt, settings, lowered=hints["lowered"])
    wanted = ["EXPLICIT_BATCH", *(["STRONGLY_TYPED"] if strong else [])]
    bits = sum(1 << int(getattr(flags, name)) for name in wanted if hasattr(flags, name))
    network = process.builder.create_network(bits)
    return network, trt.OnnxParser(network, process.logger)


def with_values(model: bytes, values: Plain) -> bytes:
    """Return a serialized ONNX model with initializers for some of its inputs.

    Protobuf merges a message that is appended to another one, so no ONNX is needed. A parser takes
    an input that is an initializer too for a constant.
    """
    tensors = b""
    for name, value in values.items():
        array = np.asarray(value)
        fields = b"".join(b"\x08" + _varint(size) for size in array.shape)  # dims
        fields += b"\x10" + _varint(_ELEMENTS[array.dtype.name])  # data_type
        fields += _delimited(b"\x42", name.encode()) + _delimited(
            b"\x4a", array.tobytes()
        )  # name, raw_data
        tensors += _delimited(b"\x2a", fields)  # GraphProto.initializer
    return model + _delimited(b"\x3a", tensors)  # ModelProto.graph


def _delimited(key: bytes, content: bytes) -> bytes:
    return key + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def constrain(trt: Any, parsed: ParsedNetwork, settings: Plain) -> None:
    """Set the types of layers: layers of kept nodes in fp32, all others in the low precision with ``held``.

    Only for networks that are not strongly typed.

    Args:
        trt: TensorRT's module.
        parsed: The network; the types of its layers are set.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
    """
    # Without either, the builder is free to choose, as in the user's build.
    if settings["keep"] or settings["held"]:
        low = trt.DataType.BF16 if settings["bf16"] else trt.DataType.HALF
        fp32_nodes = {
            place
            for place, node in enumerate(parsed.nodes)
            if next(filter(None, node[1]), None) in settings["keep"]
        }
        for layer, place in zip(parsed.layers(), parsed.places(), strict=True):
            if place in fp32_nodes or settings["held"]:
                hold(trt, layer, trt.DataType.FLOAT if place in fp32_nodes else low)


def hold(trt: Any, layer: Any, precision: Any) -> None:
    """Have a layer that makes floats make them in one type.

    A Cast has its type already, and so have Quantize and Dequantize. What the network returns keeps
    the model's.

    Args:
        trt: TensorRT's module.
        layer: The layer; it is changed.
        precision: The ``DataType`` of its outputs.
    """
    kinds = trt.LayerType
    if layer.type in (kinds.CONSTANT, kinds.SHAPE, kinds.CAST, kinds.QUANTIZE, kinds.DEQUANTIZE):
        return
    outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
    floats = [
        i
        for i, tensor in enumerate(outputs)
        if tensor.dtype in (trt.DataType.FLOAT, trt.DataType.HALF)
    ]
    # Shape tensors are computed on the host, and take no precision.
    if not floats or any(outputs[index].is_shape_tensor for index in floats):
        return
    layer.precision = precision
    for index in floats:
        if precision == trt.DataType.FLOAT or not outputs[index].is_network_output:
            layer.set_output_type(index, precision)
