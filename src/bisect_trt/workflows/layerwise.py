"""Mark every tensor as an output and find the first that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.network import Network
from bisect_trt.probing.worker import WorkerDied
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison, required_severity
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.subject import Subject

_SHOWN_ATTRIBUTES = 8
_SHOWN_ORIGINS = 5


@dataclass(frozen=True)
class Layerwise:
    """How every tensor of the target compares with the reference's.

    Attributes:
        tensors: One comparison a tensor that could be seen, in topological order: of the first input sample on which it
            is wrong, else of the first.
        unseen: The tensors that could not, with the reason.
        origins: Nodes that make a wrong tensor although all they compute it from is right, in topological order.
        mild: The same for tensors that are off, but far less than the outputs are: rounding, mostly.
        outputs_fail: Whether a graph output is wrong with all tensors marked; if not, marking hides the failure.
        refused: Why the target would not run the marked model, if it would not.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    origins: list[int]
    outputs_fail: bool
    refused: str | None = None
    mild: tuple[int, ...] = ()


def compare_layers(
    subject: Subject, target: TargetSettings, tolerance: ToleranceOptions, timeout: float | None
) -> Layerwise:
    """Run the model on the target with every tensor as an output, and compare each with the reference's."""
    network, reference = subject.network, subject.reference
    outputs = [name for name in network.outputs if name in network.producer]
    wanted = [name for name in dict.fromkeys([*network.computed, *outputs]) if name in reference.infos]
    unseen = {name: "the reference has no value of it" for name in network.computed if name not in reference.infos}
    model = subject.workspace.scratch("marked.onnx")
    # Graph outputs that have no reference stay outputs all the same: without them the model would be another one.
    model.write_bytes(subject.marked(dict.fromkeys([*wanted, *outputs])).SerializeToString())
    request: dict[str, Any] = {"op": "compare", "model": str(model), "names": wanted}
    request |= {"inputs": str(reference.inputs_file), "golden": str(reference.store)}
    request |= {"more": [[str(each.inputs_file), str(each.store)] for each in reference.more], "every": True}
    request |= {"target": target.to_json(), "tolerance": tolerance.to_json()}
    try:
        reply = subject.workers.ask(request, timeout)
    except WorkerDied as death:
        return Layerwise({}, unseen, [], outputs_fail=False, refused=death.end.describe())
    if "error" in reply:
        return Layerwise({}, unseen, [], outputs_fail=False, refused=str(reply["message"]))
    comparisons = [TensorComparison.from_json(entry) for entry in reply["comparisons"]]
    return judge_layers(network, tolerance, comparisons, unseen)


def judge_layers(
    network: Network, tolerance: ToleranceOptions, comparisons: Sequence[TensorComparison], unseen: dict[str, str]
) -> Layerwise:
    """Find where it goes wrong, on each input sample by itself.

    Args:
        network: The model.
        tolerance: How far a tensor may be off.
        comparisons: Of every tensor, on every sample.
        unseen: The tensors that could not be seen.
    """
    outputs = [name for name in network.outputs if name in network.producer]
    samples: dict[int | None, dict[str, TensorComparison]] = {}
    for comparison in comparisons:
        samples.setdefault(comparison.sample, {})[comparison.name] = comparison
    found: list[int] = []
    suspected: list[int] = []
    outputs_fail = False
    for tensors in samples.values():
        fail = any(not tensors[name].passed for name in outputs if name in tensors)
        required = 0.0
        if fail and not (tolerance.atol or tolerance.rtol):  # what the user gives is meant to the letter
            required = required_severity(max(tensors[name].severity for name in outputs if name in tensors))
        found += find_origins(network, tensors, required)
        suspected += find_origins(network, tensors)
        outputs_fail |= fail
    shown: dict[str, TensorComparison] = {}
    for comparison in comparisons:
        if comparison.name not in shown or (shown[comparison.name].passed and not comparison.passed):
            shown[comparison.name] = comparison
    origins = sorted(set(found), key=network.rank.__getitem__)
    mild = tuple(sorted(set(suspected) - set(found), key=network.rank.__getitem__))
    return Layerwise(shown, unseen, origins, outputs_fail=outputs_fail, mild=mild)


def layerwise(
    subject: Subject,
    target: TargetSettings,
    tolerance: ToleranceOptions,
    timeout: float | None,
    console: Console,
    result: Result,
) -> Result:
    """The command: compare every tensor, say where it goes wrong first.

    Raises:
        UnavailableError: The target does not run the model with every tensor marked.
    """
    console.step(f"{target.describe()} against the reference, every tensor an output")
    layers = compare_layers(subject, target, tolerance, timeout)
    if layers.refused:
        raise UnavailableError(
            f"the target does not run the model with every tensor marked: {layers.refused}. `diagnose` and `reduce` go "
            "on without marks."
        )
    result.extra |= to_json(subject, layers)
    tell(subject, layers, console)
    result.culprits = subject.describe_searched(subject.network.rank[index] for index in layers.origins[:1])
    result.status = "found" if layers.origins else "not_reproduced"
    result.minimality = "1-minimal"
    if not layers.origins:
        console.answer("Every tensor matches.")
    else:
        console.answer(f"First mismatch: {subject.network.describe(layers.origins[0])}.")
        if not layers.outputs_fail:
            console.answer(
                "The model's own outputs match all the same: marking hides the failure, or it does not get there."
            )
    return result


def find_origins(network: Network, tensors: dict[str, TensorComparison], severity: float = 0.0) -> list[int]:
    """Nodes that make a wrong tensor of right ones, in topological order.

    A tensor that was not compared counts as right if all that it is computed from is.

    Args:
        network: The model.
        tensors: The comparisons.
        severity: How severe a mismatch must be to count as wrong.
    """
    clean: dict[str, bool] = {}
    origins: list[int] = []
    for index in network.order:
        inputs_clean = all(clean.get(name, True) for name in network.reads[index])
        for name in network.made(index):
            clean[name] = _right(tensors[name], severity) if name in tensors else inputs_clean
            if inputs_clean and not clean[name] and index not in origins:
                origins.append(index)
    return origins


def _right(comparison: TensorComparison, severity: float) -> bool:
    return comparison.passed or comparison.severity < severity


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
    lines += [f"  reads '{name}' {_describe_input(subject, name, layers)}" for name in network.reads[index]]
    attributes = [_attribute(attribute) for attribute in node.attribute[:_SHOWN_ATTRIBUTES]]
    if attributes:
        lines.append(f"  attributes {', '.join(attributes)}")
    return lines


def _on_sample(comparison: TensorComparison) -> str:
    return "" if comparison.sample is None else f"on sample {comparison.sample}, "


def _describe_input(subject: Subject, name: str, layers: Layerwise) -> str:
    info = subject.infos.get(name)
    kind = f"{info.dtype.name}{list(info.shape or ())}" if info else "of unknown type"
    if name in layers.tensors:
        return f"{kind}, which matches" if layers.tensors[name].passed else f"{kind}, which does not match"
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
            "node": {"name": node.name, "op": node.op_type, "outputs": network.made(index)},
            "inputs": list(network.reads[index]),
            "attributes": {attribute.name: _attribute(attribute) for attribute in node.attribute},
            "comparison": layers.tensors[bad[0]].to_json(),
        }

    origins = [origin(index) for index in layers.origins]
    tensors = [
        {**comparison.to_json(), "op": network.nodes[network.producer[name]].op_type}
        for name, comparison in layers.tensors.items()
    ]
    return {
        "first_mismatch": origins[0] if origins else None,
        "origins": origins,
        "mild_origins": [origin(index) for index in layers.mild],
        "tensors": tensors,
        "unseen": layers.unseen,
    }


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
        console.say(f"  ... and {len(layers.origins) - _SHOWN_ORIGINS} more origins (--json lists them)")
    if layers.mild:
        console.say(
            f"  {len(layers.mild)} layer(s) are off by far less than the outputs are: rounding (--json lists them)"
        )
    if layers.unseen:
        console.say(f"  {len(layers.unseen)} tensors could not be seen (--json lists them)")
