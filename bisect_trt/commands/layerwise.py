"""``layerwise``: compare every tensor on the target with the reference's, and find the first that is wrong.

With ``--isolate`` each layer is also run by itself: all layers in one model, each fed the reference's values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import onnx

from bisect_trt.commands.call import Call
from bisect_trt.commands.checks import tolerance_options
from bisect_trt.commands.marking import LayerComparison, Marking, compare_layers, compare_own
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import ModelRefusedError
from bisect_trt.onnxlib.exported import in_module, module_of
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.searches import Layerwise
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.console import IN_JSON, Console
from bisect_trt.report.result import Result
from bisect_trt.targets.options import Target
from bisect_trt.tensors.comparison import TensorComparison

_SHOWN, _SHOWN_ATTRIBUTES, _SHOWN_REASONS = 5, 8, 3


def run(call: Call) -> Result:
    """Compare every tensor on the target with the reference's.

    Raises:
        UsageError: An option is wrong.
        UnavailableError: The target or the reference cannot run the model.
    """
    own, target = call[Layerwise], call[Target].required()
    tolerance = tolerance_options(call[CompareOptions], target)
    call.open()
    with call.examined(own.timeout, target) as session:
        return layerwise(session, Marking(session.subject, target, tolerance, own.timeout), isolate=own.isolate)


def layerwise(session: Session, look: Marking, *, isolate: bool = False) -> Result:
    """Compare every tensor, and name the first node that is wrong.

    Args:
        session: The model.
        look: Runs it.
        isolate: Whether to measure the error that each layer adds by itself too.

    Raises:
        UnavailableError: The target does not run the model with tensors marked.
    """
    subject, console, result = session.subject, session.console, session.result
    console.step(f"{look.target.describe()} against the reference, every tensor an output")
    original = look.unmarked()
    layers = compare_layers(look, original)
    if layers.refused:
        raise ModelRefusedError(
            f"the target does not run the model with every tensor marked: {layers.refused}. `diagnose` and `reduce` go "
            "on without marks."
        )
    if isolate:
        own = compare_own(look)
        if own.refused:
            console.warn(f"the target does not run the layers alone: {own.refused}.")
        layers = replace(layers, own=own.tensors, own_unseen=own.unseen)
    result.extra |= to_json(subject, layers)
    tell(subject, layers, console)
    if layers.hidden:
        console.say(f"  without marks: {original.reason}")
        result.status = "inconclusive"
        result.why = "marking tensors hides the failure, so they do not show where it begins"
        console.answer(
            "Marking hides the failure; `bisect-trt diagnose` goes on without marks, `workaround` finds which hide it."
        )
        return result
    result.culprits = subject.describe_searched(subject.network.rank[index] for index in layers.origins[:1])
    result.status, result.minimality = "found" if layers.origins else "not_reproduced", "1-minimal"
    if not layers.origins:
        console.answer("Every tensor matches.")
        return result
    console.answer(f"First mismatch: {subject.network.describe(layers.origins[0])}.")
    if original.ending is Ending.PASSED:
        console.answer("The model's own outputs match all the same: the error does not reach them.")
    return result


def tell(subject: Subject, layers: LayerComparison, console: Console) -> None:
    """Print the result of a layerwise comparison."""
    wrong = sum(not comparison.passed for comparison in layers.tensors.values())
    console.say(f"  {wrong} of {len(layers.tensors)} tensors mismatch, from {len(layers.origins)} origin(s)")
    for place, index in enumerate(layers.origins[:_SHOWN]):
        first, *rest = describe_origin(subject, index, layers)
        console.say(f"  {'first mismatch' if place == 0 else 'later origin'}: {first}")
        for line in rest:
            console.say(f"    {line}")
    if len(layers.origins) > _SHOWN:
        console.say(f"  ... and {len(layers.origins) - _SHOWN} more origins{IN_JSON}")
    notes = {
        f"{len(layers.mild)} layer(s) are off by far less than the outputs are: rounding{IN_JSON}": layers.mild,
        "marking hides it: with these tensors as outputs the model's own outputs do not fail as without": layers.hidden,
        f"not all tensors can be marked at once: {layers.builds} builds with some of them each": layers.builds > 1,
        f"{len(layers.unseen)} tensors could not be seen{IN_JSON}": layers.unseen,
    }
    for note, applies in notes.items():
        if applies:
            console.say(f"  {note}")
    for why, count in Counter(layers.unseen.values()).most_common(_SHOWN_REASONS):
        console.say(f"    {count} because: {why}")
    if not layers.own:
        return
    alone = [comparison for comparison in layers.own.values() if not comparison.passed]
    console.say(f"  fed the reference's values, {len(alone)} of {len(layers.own)} tensors mismatch by themselves")
    for comparison in sorted(alone, key=lambda each: -each.severity)[:_SHOWN]:
        maker = subject.network.describe(subject.network.producer[comparison.name])
        console.say(f"    '{comparison.name}' of {maker}: {comparison.describe()}")
    if layers.own_unseen:
        console.say(f"  {len(layers.own_unseen)} tensors could not be computed alone{IN_JSON}")


def describe_origin(subject: Subject, index: int, layers: LayerComparison) -> list[str]:
    """Return lines about a wrong layer: its error, its operator, its inputs, its attributes."""
    network, made = subject.network, subject.network.made(index)
    wrong = [layers.tensors[name] for name in made if name in layers.tensors and not layers.tensors[name].passed]
    lines = [f"'{each.name}': {_on_sample(each)}{each.describe()}" for each in wrong]
    lines.append(f"made by {network.describe(index)}")
    lines += [f" {words}" for words in (in_module(network.plain(index)),) if words]
    lines += [f"  reads '{name}' {_describe_input(subject, name, layers)}" for name in network.reads[index]]
    attributes = [_attribute(attribute) for attribute in network.nodes[index].attribute[:_SHOWN_ATTRIBUTES]]
    if attributes:
        lines.append(f"  attributes {', '.join(attributes)}")
    own = (layers.own[name] for name in made if name in layers.own)
    lines += [f"  alone, fed the reference's values: '{each.name}' {each.describe()}" for each in own]
    return lines


def _on_sample(comparison: TensorComparison) -> str:
    return "" if comparison.sample is None else f"on sample {comparison.sample}, "


def _describe_input(subject: Subject, name: str, layers: LayerComparison) -> str:
    """Return type, shape and state of a tensor that an origin reads."""
    info, maker = subject.infos.get(name), subject.network.producer.get(name)
    kind = f"{info.dtype.name}{list(info.shape or ())}" if info else "of unknown type"
    if name in layers.tensors:
        read = layers.tensors[name]
        state = "which matches" if read.passed else f"which is off too: {_on_sample(read)}{read.describe()}"
    elif name in subject.network.inputs:
        state = "a graph input"
    else:
        state = "a constant" if maker is None or subject.network.constant[maker] else "not seen"
    return f"{kind}, {state}"


def _attribute(attribute: onnx.AttributeProto) -> str:
    if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TENSOR):
        return f"{attribute.name}=..."
    return str(onnx.helper.printable_attribute(attribute)).replace(" = ", "=")


def to_json(subject: Subject, layers: LayerComparison) -> dict[str, Any]:
    """Return the fields of the result that describe a layerwise comparison."""
    network = subject.network

    def origin(index: int) -> dict[str, Any]:
        bad = [name for name in network.made(index) if name in layers.tensors and not layers.tensors[name].passed]
        return {
            "tensor": bad[0],
            "node": network.plain(index),
            "inputs": list(network.reads[index]),
            "attributes": {each.name: _attribute(each) for each in network.nodes[index].attribute},
            "comparison": layers.tensors[bad[0]].to_json(),
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
