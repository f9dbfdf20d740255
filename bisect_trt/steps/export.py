"""Decides whether a model computes what the PyTorch module that it was exported from, or another export, computes.

The tensors of the exported model and what the operations of the module compute are matched by
their values, so this works with every exporter, whatever it renames, fuses or folds.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
from msgspec import structs

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.qdq import find_quantized
from bisect_trt.onnxlib.roundings import lows_of
from bisect_trt.probe.candidate import Candidate
from bisect_trt.report.faults import Exported
from bisect_trt.report.parts import Whose, WrongSide
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.eager import Eager
from bisect_trt.session.other_model import OtherModel
from bisect_trt.session.session import Session
from bisect_trt.steps.rounding import rounding_alone
from bisect_trt.steps.second_opinion import Disagreement, Vote, ask_evaluator
from bisect_trt.targets.base import reference_settings
from bisect_trt.tensors.compare import compare_all, compare_tensor
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.info import Array
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

_PLACES = 8
"""Elements that are compared before whole tensors are."""
_SHAPES = ("Shape", "Size")
_ROUGH = 0.1
"""The largest difference of these that may match, relative to the largest element."""


def judge_export(
    session: Session, eager: Eager | OtherModel, tolerance: ToleranceOptions
) -> WrongSide | None:
    """Compare the exported model on the reference with the module or the other model, and decide which is wrong.

    The fault goes into the result, the first wrong node among its culprits; both are printed.

    Args:
        session: The exported model with the session's reference.
        eager: The module or the other model that it was exported from.
        tolerance: The tolerance of the user.

    Returns:
        ``None`` where they match.
    """
    subject = session.subject
    names = subject.network.outputs
    session.console.step(f"Does the exported model compute what {eager.title} computes?")
    # Both sides compute in fp32, whatever the target may do.
    exact = replace(tolerance, precision=Precision.FP32, nonfinite_equal=True)
    lows = lows_of(subject.network.proto.graph)
    for number, sample in enumerate(subject.samples, 1):
        case = replace(subject.original, sample=number)
        right = eager.run(sample, names)
        mismatches = [
            comparison
            for comparison in compare_all(right, subject.values(case, names), exact, lows=lows)
            if not comparison.passed
        ]
        if mismatches:
            break
    else:
        return None
    reference = reference_settings()
    runtime = reference.target.title
    check = CheckSettings(target=reference, tolerance=exact)
    rounding = rounding_alone(subject, check, mismatches)
    # Where the evaluator agrees with ONNX Runtime, two read the file alike, so the file is wrong.
    opinion = ask_evaluator(subject, exact)
    whose: Whose = "unknown"
    explained = ""
    quantizes = rounding is None and _quantizes(subject.network, eager)
    if rounding is not None:
        whose = "rounding"
        explained = rounding.sentence
    elif opinion is Vote.AGREES and not quantizes:
        whose = "export"
    elif isinstance(opinion, Disagreement) and not quantizes:
        whose = "reference"
        explained = opinion.sentence
    consumers = subject.network.consumers
    ignored = tuple(name for name in subject.network.inputs if name not in consumers)
    fault = Exported(
        whose, eager.title, runtime, number, mismatches[0], explained, quantizes, ignored
    )
    if rounding is None and not quantizes:
        fault = _locate(
            session, eager, case, fault, [comparison.name for comparison in mismatches], lows
        )
    session.result.fault = part = fault.to_part()
    return part


def _quantizes(network: Network, eager: Eager | OtherModel) -> bool:
    """Return whether a model has Q/DQ and the other model that it is compared with has none."""
    if not isinstance(eager, OtherModel):
        return False
    return bool(find_quantized(network).groups) and not find_quantized(eager.network).groups


def _of_shapes(network: Network) -> set[str]:
    """Return shapes and what follows from them alone, which has no counterpart in a module, right or wrong."""
    shapes = set[str]()
    for index in network.order:
        reads = network.computed_reads(index)
        if network.nodes[index].op_type in _SHAPES or (reads and shapes.issuperset(reads)):
            shapes.update(network.nodes[index].output)
    return shapes


def _locate(
    session: Session,
    eager: Eager | OtherModel,
    case: Candidate,
    fault: Exported,
    wrong: Collection[str],
    lows: Mapping[str, Precision],
) -> Exported:
    """Find the first line of the module with values that the exported model lacks, and its first wrong node.

    Args:
        session: The model, and the result, which the node is added to.
        eager: The module or the other model.
        case: The model with the number of a sample.
        fault: The difference, without a place.
        wrong: The outputs that differ.
        lows: The precisions below fp32 of tensors, by name.

    Returns:
        The fault with both.
    """
    subject = session.subject
    network = subject.network
    values = subject.values(case, [*network.inputs, *network.computed])
    operations, makers = eager.trace(subject.samples[case.sample - 1], _finder(values, lows))
    bad = {maker for name, maker in zip(network.outputs, makers, strict=True) if name in wrong}
    right = set[str]()
    for index, operation in reversed([*enumerate(operations)]):
        right |= {*operation.same}
        if index in bad:
            bad |= {read for read in operation.reads if not operations[read].same}
    first = operations[min(bad)]
    source = ""
    if first.line is not None:
        file, _, at = first.line.rpartition(":")
        source = linecache.getline(file, int(at)).strip()
    number = next((operations[each] for each in sorted(bad) if operations[each].is_number), None)
    decision = next((each for each in operations[min(bad) :: -1] if each.is_decision), None)
    node = None

    def first_of(nodes: Collection[int], same: Collection[str]) -> int:
        """Return the first of some nodes and of those that compute what they read and what is not right."""
        wrong_nodes = network.leading_to(
            nodes, lambda name: name not in same and not network.is_weight(name)
        )
        return min(wrong_nodes, key=network.rank.__getitem__)

    producers = network.producers_of(wrong)
    if producers:
        index = first_of(producers, right | _of_shapes(network))
        # What it takes of shapes, such as a position, may be what is wrong; a shape itself is not.
        number_of_it = first_of([index], right)
        if network.nodes[number_of_it].op_type not in _SHAPES:
            index = number_of_it
        node = network.plain(index)
        session.result.culprits = [node]
    return structs.replace(
        fault,
        line=first.line,
        source=source,
        other=first.node,
        number=number and number.line,
        branch=decision and decision.line,
        node=node,
    )


def _finder(tensors: Values, lows: Mapping[str, Precision]) -> Callable[[Array], frozenset[str]]:
    """Return a function from values to the names of the tensors that have them, in any shape."""
    sizes: dict[int, list[str]] = {}
    for name, value in tensors.items():
        sizes.setdefault(value.size, []).append(name)
    exact = ToleranceOptions()

    def find(value: Array) -> frozenset[str]:
        # A few places tell most tensors apart; only those that agree are compared in full.
        stride = slice(None, None, max(value.size // _PLACES, 1))
        limit = _ROUGH * np.max(np.abs(value), initial=0, where=np.isfinite(value))
        candidates = (
            (name, tensors[name])
            for name in sizes.get(value.size, ())
            if np.allclose(
                value.reshape(-1)[stride], tensors[name].reshape(-1)[stride], 0, limit, True
            )
        )
        comparisons = (
            compare_tensor(
                name, value.reshape(values.shape), values, exact, precision=lows.get(name)
            )
            for name, values in candidates
        )
        return frozenset(comparison.name for comparison in comparisons if comparison.passed)

    return find
