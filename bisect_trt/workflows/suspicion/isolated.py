"""Each node's own error in low precision: what it makes of the reference's values, and of nobody else's errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from bisect_trt.graph.lower.roundtrip import EXACT_OPS
from bisect_trt.graph.nodes import bodies
from bisect_trt.graph.values import from_info, value_info
from bisect_trt.tensors.stats import blocks
from bisect_trt.tensors.store import ActivationStore
from bisect_trt.tensors.tolerance import Precision, ResolvedTolerance, automatic_tolerance
from bisect_trt.workflows.subject import Subject
from bisect_trt.workflows.suspicion.facts import BREAKS, MAY, Facts, Finding, Values, within

NEW_INF = "new Inf"
_SLICE_BYTES = 256 << 20
"""Of activations in memory at a time."""
_NOTABLE = 0.1
"""Of the tolerance. Rounding alone takes about 0.02 of it."""


@dataclass(frozen=True)
class OwnError:
    """How far a tensor is from the reference's, in units of the automatic tolerance.

    Attributes:
        worst: The largest error; 1 is just within the tolerance.
        mean: The mean error over the absolute tolerance.
        nan: Whether there is a NaN where the reference has a number.
        inf: The same for Inf.
    """

    worst: float
    mean: float
    nan: bool
    inf: bool


def own_errors(facts: Facts) -> dict[int, Finding]:
    """The nodes whose own result is notably off, by number.

    Every node reads the reference's values as graph inputs, so one run tells of many nodes, and an error stays where it is
    made. Weights pass as they are; nodes that only move values, and those with bodies, are left out.
    """
    found: dict[int, Finding] = {}
    for nodes in _slices(facts):
        for name, error in _run(facts, nodes).items():
            index = facts.network.producer[name]
            finding = _judge(facts, index, error)
            if finding is not None and (index not in found or found[index].score < finding.score):
                found[index] = finding
    return found


def _judge(facts: Facts, index: int, error: OwnError) -> Finding | None:
    who, precision = facts.who(index), facts.precision
    if error.nan:
        # Where another rule knows why, that one is told first.
        return Finding(BREAKS, "new NaN", f"{who} makes new NaN in {precision} of the reference's own values")
    if error.inf:
        return Finding(BREAKS, NEW_INF, f"{who} makes new Inf in {precision} of the reference's own values")
    if error.worst > 1:
        reason = f"{who} alone is off by {error.worst:.3g} times the tolerance in {precision}"
        return Finding(within(MAY + 0.1, error.worst), "own error", reason)
    if error.mean < _NOTABLE:
        return None
    reason = f"{who} alone is off by {error.mean:.0%} of the tolerance on average in {precision}"
    return Finding(MAY * error.mean, "own error", reason)


def own_error(made: Values, reference: Values, tolerance: ResolvedTolerance) -> OwnError:
    """Compare two tensors of one shape, a block at a time, where the reference is finite."""
    worst = total = 0.0
    count, nan, inf = 0, False, False
    for got, wanted in zip(blocks(made), blocks(reference), strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(got - wanted)
        allowed = tolerance.atol + tolerance.rtol * np.abs(wanted)
        if not (known := np.isfinite(errors)).all():
            number = np.isfinite(wanted)
            nan = nan or bool((np.isnan(got) & number).any())
            inf = inf or bool((np.isinf(got) & number).any())
            errors, allowed = errors[known], allowed[known]
        if errors.size:
            worst = max(worst, float((errors / allowed).max()))
            total += float(errors.sum(dtype=np.float64))
            count += errors.size
    return OwnError(worst, total / max(count, 1) / tolerance.atol, nan, inf)


def _tolerance(facts: Facts, name: str) -> ResolvedTolerance:
    """The automatic tolerance, by the root mean square that is known already."""
    least = automatic_tolerance(np.zeros(1, np.float32), Precision(facts.precision))
    seen = facts.magnitudes(name)
    return least if seen is None else replace(least, atol=max(least.rtol * seen.rms, least.atol))


def _slices(facts: Facts) -> Iterator[list[int]]:
    """The nodes that can be run alone, so many at a time that their inputs fit into memory."""
    subject = facts.subject
    chosen: list[int] = []
    size = 0
    for index in facts.nodes:
        unit = subject.network.rank[index]
        alone = subject.units.count(subject.units.with_weights([unit])) == 1
        made = [name for name in facts.makes(index) if name in subject.reference.infos]
        node = facts.node(index)
        if not alone or not made or node.op_type in EXACT_OPS or any(bodies(node)):
            continue
        needed = sum(_bytes(subject, name) for name in (*subject.network.reads[index], *made))
        if chosen and size + needed > _SLICE_BYTES:
            yield chosen
            chosen, size = [], 0
        chosen.append(index)
        size += needed
    if chosen:
        yield chosen


def _bytes(subject: Subject, name: str) -> int:
    info = subject.reference.infos.get(name)
    size = 0 if info is None else info.dtype.itemsize
    for dim in (info.shape if info is not None else None) or ():
        size *= int(dim or 0)
    return size


def _run(facts: Facts, nodes: Sequence[int]) -> dict[str, OwnError]:
    """Run some nodes, each on the reference's values, and see how far what they make is off."""
    subject = facts.subject
    wanted = [name for index in nodes for name in facts.makes(index) if name in subject.reference.infos]
    model, fed = isolated_model(facts, nodes, wanted)
    models, made = subject.models, subject.workspace.scratch("isolated")
    known = subject.reference.select(list(fed.values()))
    inputs = models.feed("isolated", {given: known[name] for given, name in fed.items()})
    target = replace(models.reference, fp16=facts.precision == "fp16", bf16=facts.precision == "bf16")
    if models.collect(models.write("isolated", model), inputs, made, target, here=True) is not None:
        return {}
    store = ActivationStore.open(made)
    reference = subject.reference.select(wanted)
    return {
        name: own_error(store.get(name), reference[name], _tolerance(facts, name))
        for name in wanted
        if name in store and store.info(name).shape == reference[name].shape
    }


def isolated_model(facts: Facts, nodes: Sequence[int], wanted: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A model in which no node reads what another makes.

    Returns:
        The model, and for each of its inputs the tensor whose value it is fed.
    """
    subject, network = facts.subject, facts.network
    weights = subject.units.to_nodes(subject.units.with_weights(network.rank[index] for index in nodes)) - set(nodes)
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    graph = model.graph
    for field in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer, graph.sparse_initializer):
        del field[:]
    taken = network.producer.keys() | network.initializers.keys()
    names: dict[str, str] = {}
    order = sorted([*nodes, *weights], key=lambda index: network.rank[index])
    for index in order:
        node = graph.node.add()
        node.CopyFrom(network.nodes[index])
        for position, name in enumerate(node.input):
            if name and not facts.is_weight(name):
                names.setdefault(name, _fresh(name, taken))
                node.input[position] = names[name]
    read = {name for index in order for name in network.reads[index]}
    graph.initializer.extend(tensor for name, tensor in network.initializers.items() if name in read)
    graph.sparse_initializer.extend(t for name, t in network.sparse_initializers.items() if name in read)
    for name, given in names.items():
        graph.input.append(from_info(subject.infos[name]))
        graph.input[-1].name = given
    graph.output.extend(value_info(name, subject.infos, network.declared) for name in wanted)
    return model, {given: name for name, given in names.items()}


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_reference"
    return name
