"""A layerwise comparison in words and as JSON, and the layers of the target's engine that run its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from bisect_trt.commands.marking import LayerComparison
from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.exported import in_module, module_of
from bisect_trt.onnxlib.network import Network
from bisect_trt.report.console import IN_JSON, Console
from bisect_trt.targets.base import EngineLayer
from bisect_trt.tensors.comparison import TensorComparison

_SHOWN, _SHOWN_ATTRIBUTES, _SHOWN_REASONS = 5, 8, 3
_LONGEST = 160
"""Characters of a layer's name that are shown; it holds the names of all its nodes, which may be hundreds."""


def tell(subject: Subject, layers: LayerComparison, console: Console) -> None:
    """Print what a layerwise comparison found."""
    wrong = sum(not comparison.passed for comparison in layers.tensors.values())
    console.say(f"  {wrong} of {len(layers.tensors)} tensors mismatch, from {len(layers.origins)} origin(s)")
    for place, index in enumerate(layers.origins[:_SHOWN]):
        first, *rest = describe_origin(subject, index, layers)
        console.say(f"  {'first mismatch' if place == 0 else 'later origin'}: {first}")
        for line in rest:
            console.say(f"    {line}")
    if len(layers.origins) > _SHOWN:
        console.say(f"  ... and {len(layers.origins) - _SHOWN} more origins{IN_JSON}")
    tied = [comparison for comparison in layers.tensors.values() if comparison.ties]
    for comparison in tied[:_SHOWN_REASONS]:
        console.say(f"  '{comparison.name}': {comparison.describe_ties()}")
    if len(tied) > _SHOWN_REASONS:
        console.say(f"  ... and so are some of {len(tied) - _SHOWN_REASONS} more tensors{IN_JSON}")
    notes = {
        f"{len(layers.mild)} layer(s) are off by far less than the outputs are: rounding{IN_JSON}": layers.mild,
        "marking hides it: with these tensors as outputs the model's own outputs do not fail as without": layers.hidden,
        "nothing was marked: these are the tensors that the target does not fuse away": layers.fused,
        f"not all tensors can be marked at once: {layers.builds} builds with some of them each": layers.builds > 1,
        f"{len(layers.unseen)} tensors could not be seen{IN_JSON}": layers.unseen,
    }
    for note, applies in notes.items():
        if applies:
            console.say(f"  {note}")
    for why, count in Counter(layers.unseen.values()).most_common(_SHOWN_REASONS):
        console.say(f"    {count} because: {why}")
    if layers.own:
        _tell_own(subject, layers, console)


def _tell_own(subject: Subject, layers: LayerComparison, console: Console) -> None:
    """Print the layers that are off by themselves, the worst first."""
    wrong = [comparison for comparison in layers.own.values() if not comparison.passed]
    console.say(f"  fed the reference's values, {len(wrong)} of {len(layers.own)} tensors mismatch by themselves")
    for comparison in sorted(wrong, key=lambda each: -each.severity)[:_SHOWN]:
        maker = subject.network.describe(subject.network.producer[comparison.name])
        console.say(f"    '{comparison.name}' of {maker}: {comparison.describe()}")
    if layers.own_unseen:
        console.say(f"  {len(layers.own_unseen)} tensors could not be computed alone{IN_JSON}")


def describe_origin(subject: Subject, index: int, layers: LayerComparison) -> list[str]:
    """Lines about a wrong layer: its error, its operator, what it reads, its attributes."""
    network, made = subject.network, subject.network.made(index)
    seen = [layers.tensors[name] for name in made if name in layers.tensors]
    lines = [f"'{each.name}': {_on_sample(each)}{each.describe()}" for each in seen if not each.passed]
    lines.append(f"made by {network.describe(index)}")
    words = in_module(network.plain(index))
    lines += [f" {words}"] if words else []
    sample = seen[0].sample if seen else None
    lines += [f"  reads '{name}' {_describe_input(subject, name, layers, sample)}" for name in network.reads[index]]
    attributes = [_attribute(attribute) for attribute in network.nodes[index].attribute[:_SHOWN_ATTRIBUTES]]
    if attributes:
        lines.append(f"  attributes {', '.join(attributes)}")
    own = (layers.own[name] for name in made if name in layers.own)
    lines += [f"  alone, fed the reference's values: '{each.name}' {each.describe()}" for each in own]
    if index in layers.engine:
        lines.append(f"  {describe_engine_layer(layers.engine[index])}")
    return lines


def _on_sample(comparison: TensorComparison) -> str:
    return "" if comparison.sample is None else f"on sample {comparison.sample}, "


def _describe_input(subject: Subject, name: str, layers: LayerComparison, sample: int | None) -> str:
    """Type, shape and state of a tensor that an origin reads."""
    info, maker = subject.infos.get(name), subject.network.producer.get(name)
    kind = f"{info.dtype.name}{list(info.shape or ())}" if info else "of unknown type"
    if name in layers.tensors:
        read = layers.tensors[name]
        if read.passed:
            return f"{kind}, which matches"
        if read.sample != sample:
            return f"{kind}, which does not match {_on_sample(read).rstrip(', ')}"
        return f"{kind}, which is off too, by far less than the outputs: {read.describe()}"
    if name in subject.network.inputs:
        return f"{kind}, a graph input"
    constant = maker is None or subject.network.constant[maker]
    return f"{kind}, a constant" if constant else f"{kind}, not seen"


def _attribute(attribute: onnx.AttributeProto) -> str:
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TENSOR):
        return f"{attribute.name}=..."
    return str(onnx.helper.printable_attribute(attribute)).replace(" = ", "=")


def to_json(subject: Subject, layers: LayerComparison) -> dict[str, Any]:
    """The fields of the result that describe a layerwise comparison."""
    network = subject.network

    def origin(index: int) -> dict[str, Any]:
        bad = [name for name in network.made(index) if name in layers.tensors and not layers.tensors[name].passed]
        return {
            "tensor": bad[0],
            "node": network.plain(index),
            "inputs": list(network.reads[index]),
            "attributes": {each.name: _attribute(each) for each in network.nodes[index].attribute},
            "comparison": layers.tensors[bad[0]].to_json(),
            "engine_layer": engine_json(network, layers.engine[index]) if index in layers.engine else None,
        }

    def tensor(name: str, comparison: TensorComparison) -> dict[str, Any]:
        node = network.nodes[network.producer[name]]
        module = module_of(node)
        own = layers.own.get(name)
        return {
            **comparison.to_json(),
            "op": node.op_type,
            **({} if module is None else {"module": module.to_json()}),
            **({"own": None if own is None else own.to_json()} if layers.own else {}),
        }

    origins = [origin(index) for index in layers.origins]
    return {
        "first_mismatch": origins[0] if origins else None,
        "origins": origins,
        "mild_origins": [origin(index) for index in layers.mild],
        "tensors": [tensor(*each) for each in layers.tensors.items()],
        "unseen": layers.unseen,
        "builds": layers.builds,
        **({"own_unseen": layers.own_unseen} if layers.own else {}),
    }


def engine_layers(network: Network, layers: Iterable[Mapping[str, Any]]) -> dict[int, EngineLayer]:
    """The engine layer that runs each node, by the node's number; of several the last, which makes its outputs."""
    found: dict[int, EngineLayer] = {}
    for plain in layers:
        # A lowered model has tensors and Casts that this one has not.
        nodes = {network.producer[name] for name in plain["tensors"] if name in network.producer}
        ordered = tuple(sorted(nodes, key=network.rank.__getitem__))
        layer = EngineLayer(plain["name"], plain["kind"], ordered, tuple(plain["precisions"]))
        found |= dict.fromkeys(ordered, layer)
    return found


def describe_engine_layer(layer: EngineLayer) -> str:
    """The layer that runs a node, with how many others, and in what precision."""
    others, name = len(layer.nodes) - 1, layer.name
    alone = "runs as" if not others else f"is fused with {others} other node{'s' * (others > 1)} into"
    types = f", which makes {' and '.join(layer.precisions)}" if layer.precisions else ""
    short = name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}...{name[-_LONGEST // 2 :]}"
    return f"{alone} the engine layer '{short}'{types}"


def engine_json(network: Network, layer: EngineLayer) -> dict[str, Any]:
    """An engine layer as JSON; nodes by name, or by what they make where they have none."""
    names = [network.nodes[index].name or network.made(index)[0] for index in layer.nodes]
    return {
        "name": layer.name,
        "kind": layer.kind,
        "precisions": list(layer.precisions),
        "nodes": names,
        "fused_with": len(names) - 1,
    }
