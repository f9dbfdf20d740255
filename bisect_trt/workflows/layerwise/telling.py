"""A layerwise comparison in words and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import onnx

from bisect_trt.graph.exported import in_module, module_of
from bisect_trt.graph.network import Network
from bisect_trt.reporting.console import IN_JSON, Console
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.engine_layers import describe_engine_layer, engine_json
from bisect_trt.workflows.layerwise.origins import Layerwise
from bisect_trt.workflows.subject import Subject

_SHOWN_ATTRIBUTES = 8
_SHOWN_ORIGINS = 5
_SHOWN_OWN = 5
_SHOWN_REASONS = 3
_SHOWN_TIES = 3


def describe_origin(subject: Subject, index: int, layers: Layerwise) -> list[str]:
    """A wrong layer in words: its error, its operator, what it reads, its attributes."""
    network = subject.network
    node = network.nodes[index]
    lines = [
        f"'{name}': {_on_sample(layers.tensors[name])}{layers.tensors[name].describe()}"
        for name in network.made(index)
        if name in layers.tensors and not layers.tensors[name].passed
    ]
    lines.append(f"made by {network.describe(index)}")
    words = in_module(network.plain(index))
    lines += [f" {words}"] if words else []
    sample = next((layers.tensors[name].sample for name in network.made(index) if name in layers.tensors), None)
    lines += [f"  reads '{name}' {_describe_input(subject, name, layers, sample)}" for name in network.reads[index]]
    attributes = [_attribute(attribute) for attribute in node.attribute[:_SHOWN_ATTRIBUTES]]
    if attributes:
        lines.append(f"  attributes {', '.join(attributes)}")
    own = (layers.own[name] for name in network.made(index) if name in layers.own)
    lines += [f"  alone, fed the reference's values: '{each.name}' {each.describe()}" for each in own]
    if index in layers.engine:
        lines.append(f"  {describe_engine_layer(layers.engine[index])}")
    return lines


def _on_sample(comparison: TensorComparison) -> str:
    return "" if comparison.sample is None else f"on sample {comparison.sample}, "


def _describe_input(subject: Subject, name: str, layers: Layerwise, sample: int | None) -> str:
    """What an origin reads: what is wrong with it is far less than what is wrong behind, or it would be no origin."""
    info = subject.infos.get(name)
    kind = f"{info.dtype.name}{list(info.shape or ())}" if info else "of unknown type"
    if name in layers.tensors:
        read = layers.tensors[name]
        if read.passed:
            return f"{kind}, which matches"
        if read.sample != sample:
            return f"{kind}, which does not match {_on_sample(read).rstrip(', ')}"
        return f"{kind}, which is off too, by far less than the outputs: {read.describe()}"
    maker = subject.network.producer.get(name)
    if name in subject.network.inputs:
        return f"{kind}, a graph input"
    if maker is None or subject.network.constant[maker]:
        return f"{kind}, a constant"
    return f"{kind}, not seen"


def _attribute(attribute: onnx.AttributeProto) -> str:
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TENSOR):
        return f"{attribute.name}=..."
    return str(onnx.helper.printable_attribute(attribute)).replace(" = ", "=")


def to_json(subject: Subject, layers: Layerwise) -> dict[str, Any]:
    """The part of the result that only a layerwise comparison has."""
    network = subject.network

    def origin(index: int) -> dict[str, Any]:
        node = network.nodes[index]
        bad = [name for name in network.made(index) if name in layers.tensors and not layers.tensors[name].passed]
        return {
            "tensor": bad[0],
            "node": network.plain(index),
            "inputs": list(network.reads[index]),
            "attributes": {attribute.name: _attribute(attribute) for attribute in node.attribute},
            "comparison": layers.tensors[bad[0]].to_json(),
            "engine_layer": engine_json(network, layers.engine[index]) if index in layers.engine else None,
        }

    origins = [origin(index) for index in layers.origins]
    own = {name: comparison.to_json() for name, comparison in layers.own.items()}
    tensors = [
        {
            **comparison.to_json(),
            "op": network.nodes[network.producer[name]].op_type,
            **_module(network, network.producer[name]),
            **({"own": own.get(name)} if own else {}),
        }
        for name, comparison in layers.tensors.items()
    ]
    return {
        "first_mismatch": origins[0] if origins else None,
        "origins": origins,
        "mild_origins": [origin(index) for index in layers.mild],
        "tensors": tensors,
        "unseen": layers.unseen,
        "builds": layers.builds,
        **({"own_unseen": layers.own_unseen} if own else {}),
    }


def _module(network: Network, index: int) -> dict[str, Any]:
    module = module_of(network.nodes[index])
    return {} if module is None else {"module": module.to_json()}


def tell(subject: Subject, layers: Layerwise, console: Console) -> None:
    """Say what was found."""
    wrong = sum(not comparison.passed for comparison in layers.tensors.values())
    console.say(f"  {wrong} of {len(layers.tensors)} tensors mismatch, from {len(layers.origins)} origin(s)")
    for place, index in enumerate(layers.origins[:_SHOWN_ORIGINS]):
        title = "first mismatch" if place == 0 else "later origin"
        first, *rest = describe_origin(subject, index, layers)
        console.say(f"  {title}: {first}")
        for line in rest:
            console.say(f"    {line}")
    if len(layers.origins) > _SHOWN_ORIGINS:
        console.say(f"  ... and {len(layers.origins) - _SHOWN_ORIGINS} more origins{IN_JSON}")
    _tell_ties(layers.tensors.values(), console)
    if layers.mild:
        console.say(f"  {len(layers.mild)} layer(s) are off by far less than the outputs are: rounding{IN_JSON}")
    if layers.hidden:
        console.say("  marking hides it: with these tensors as outputs the model's own outputs do not fail as without")
    if layers.fused:
        console.say("  nothing was marked: these are the tensors that the target does not fuse away")
    if layers.builds > 1:
        console.say(f"  not all tensors can be marked at once: {layers.builds} builds with some of them each")
    _tell_unseen(layers.unseen, console)
    if layers.own:
        _tell_own(subject, layers, console)


def _tell_ties(comparisons: Iterable[TensorComparison], console: Console) -> None:
    tied = [comparison for comparison in comparisons if comparison.ties]
    for comparison in tied[:_SHOWN_TIES]:
        console.say(f"  '{comparison.name}': {comparison.describe_ties()}")
    if len(tied) > _SHOWN_TIES:
        console.say(f"  ... and so are some of {len(tied) - _SHOWN_TIES} more tensors{IN_JSON}")


def _tell_unseen(unseen: dict[str, str], console: Console) -> None:
    if unseen:
        console.say(f"  {len(unseen)} tensors could not be seen{IN_JSON}")
    for why, count in Counter(unseen.values()).most_common(_SHOWN_REASONS):
        console.say(f"    {count} because: {why}")


def _tell_own(subject: Subject, layers: Layerwise, console: Console) -> None:
    """Say which layers are off by themselves, the worst first."""
    wrong = [comparison for comparison in layers.own.values() if not comparison.passed]
    console.say(f"  fed the reference's values, {len(wrong)} of {len(layers.own)} tensors mismatch by themselves")
    for comparison in sorted(wrong, key=lambda each: -each.severity)[:_SHOWN_OWN]:
        maker = subject.network.describe(subject.network.producer[comparison.name])
        console.say(f"    '{comparison.name}' of {maker}: {comparison.describe()}")
    if layers.own_unseen:
        console.say(f"  {len(layers.own_unseen)} tensors could not be computed alone{IN_JSON}")
