"""The search inside a minimal case that is one If, Loop, Scan or call of a function: its body becomes the model under test.

Its inputs are the values of the reference run in the first iteration that goes wrong; then it is
searched as any model, and again if what fails is a node with a body. The case stays the answer:
it is proven with the whole model's node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from msgspec import Struct, structs

from bisect_trt.errors import UnavailableError
from bisect_trt.onnxlib.bodies import Body, Outer, has_body
from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.functions import is_call
from bisect_trt.onnxlib.load import read_weight
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import first_output, label
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.check import comparing
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Ending
from bisect_trt.report.parts import BODY_PASSES, Inside
from bisect_trt.report.text import plural
from bisect_trt.search.oracle import Mode
from bisect_trt.session.checks import make_vet
from bisect_trt.session.session import Case, RebuiltPasses, Session
from bisect_trt.steps.arbitration import arbitrate
from bisect_trt.steps.minimal_case import by_blame, extract_suspect, find_minimum, find_suspects
from bisect_trt.tensors.files import Arrays
from bisect_trt.worker.deadline import BudgetSpent

_FIRST_NUMBER = 2_000_000
"""The number of the activations of the first body; samples have lower numbers."""
_MOST_LEVELS = 16


class _Level(Struct, frozen=True):
    """A case of one node with a body.

    Attributes:
        session: The session of its model.
        case: The case.
        node: The node's number.
        name: Its name behind the names of the nodes around it, with slashes between.
        number: Of the activations of its body.
        outer: The case with the values that the node reads.
    """

    session: Session
    case: Candidate
    node: int
    name: str
    number: int
    outer: Outer


def look_inside(session: Session, case: Candidate) -> list[Inside]:
    """Search the body of the one node that fails, as deep as bodies are nested, and print what fails inside.

    Args:
        session: The session of the whole model.
        case: The minimal case.

    Returns:
        An entry for each body, the outermost first; none if the node has no body, or the check is
        asked of whole models only.
    """
    check = session.prober.check
    levels: list[Inside] = []
    if check.asks_user or check.bounds_whole:
        return levels
    network = session.subject.network
    nodes = [
        network.order[unit] for unit in case.units if not network.constant[network.order[unit]]
    ]
    names = [label(network.nodes[index]) for index in nodes]
    level = _level(session, case, nodes, names, _FIRST_NUMBER, {})
    while level is not None and len(levels) < _MOST_LEVELS:
        node = level.session.subject.network.nodes[level.node]
        session.console.step(f"Look inside {node.op_type} '{level.name}'")
        levels.append(
            Inside(
                name=level.name,
                op=node.op_type,
                branch=None,
                iteration=None,
                nodes=(),
                minimality="unproven",
                why=BODY_PASSES,
            )
        )
        try:
            level = _descend(level, levels)
        except (BudgetSpent, RebuiltPasses, UnavailableError) as error:
            levels[-1] = structs.replace(levels[-1], why=f"the search inside it ended: {error}")
            level = None
    return levels


def _level(
    session: Session,
    case: Candidate,
    nodes: Sequence[int],
    names: Sequence[str],
    number: int,
    sources: Mapping[str, onnx.NodeProto],
) -> _Level | None:
    """Return a case as a level; ``None`` if it is not one node with a body.

    Args:
        session: The session of its model.
        case: The case.
        nodes: The numbers of its nodes.
        names: Their names behind the names of the nodes around them.
        number: The number of the activations of the body.
        sources: The nodes of the file that inlined nodes come from, by first output.
    """
    network = session.subject.network
    if len(nodes) != 1 or not has_body(network.proto, network.nodes[nodes[0]]):
        return None
    node = network.nodes[nodes[0]]
    places = [
        place
        for place, candidate in enumerate(case.proto.graph.node)
        if first_output(candidate) == first_output(node)
    ]
    if len(places) != 1:
        return None
    values = dict(session.subject.values(case, case.inputs))
    values |= _weights(session, case, [name for name in node.input if name and name not in values])
    outer = Outer(case.proto, places[0], values, sources)
    return _Level(session, case, nodes[0], names[0], number, outer)


def _weights(session: Session, case: Candidate, names: Sequence[str]) -> Arrays:
    """Return the values of weights of a case, as far as they are known."""
    subject = session.subject
    network = Network(case.proto)
    stored = {name: tensor for name in names if (tensor := network.stored(name)) is not None}
    folder = subject.workspace.weights.folder_of(case.proto)
    values: Arrays = {name: read_weight(tensor, folder) for name, tensor in stored.items()}
    computed_names = [name for name in names if name in network.producer and name not in stored]
    if computed_names:
        computed = subject.reference.compute(
            mark_outputs(network, computed_names, {}), subject.values(case, case.inputs)
        )
        values |= computed or {}
    return values


def _descend(level: _Level, levels: list[Inside]) -> _Level | None:
    """Search the body of a node, and put what fails into the last of the levels; returns the next one if that has a body too."""
    session = level.session
    case_outcome = session.prober.ledger.outcome(level.case.key)
    as_severe = session.prober.ledger.aside()
    ledgers = [as_severe]
    if case_outcome is not None:
        as_severe.follow(case_outcome)
        if level.outer.iterates and case_outcome.ending is Ending.MISMATCHED:
            # An error that grows is milder after the first iterations.
            ledgers.append(session.prober.ledger.aside())
    for ledger in ledgers:
        for branch, iteration, body in _bodies(level, ledger):
            levels[-1] = structs.replace(levels[-1], branch=branch, iteration=iteration)
            subject = session.subject.of_body(body.model, body.values, level.number)
            vet = None if session.prober.vet is None else make_vet(subject)
            prober = replace(session.prober, ledger=ledger, activations=subject.reference, vet=vet)
            inner = structs.replace(session, subject=subject, probing=prober)
            original = replace(subject.original, title=f"the body of {level.name}")
            if prober.probe(original).fails:
                return _search(level, inner, body, levels)
        if levels[-1].iteration == 1:
            # There is no earlier iteration.
            break
    return None


def _search(level: _Level, inner: Session, body: Body, levels: list[Inside]) -> _Level | None:
    """Find the minimal case of a body that fails."""
    check = inner.prober.check
    network = inner.subject.network
    suspects: list[int] = []
    # Without a comparison there are no wrong tensors to begin with.
    if check.compares:
        suspects = find_suspects(inner, lambda _: None)
    case = extract_suspect(inner, check.runtime, suspects) or Case(
        find_minimum(inner, Mode.AUTO, suspects)
    )
    settled = inner.settle(case)
    nodes = by_blame(inner, settled, suspects)
    failing = []
    for index in nodes:
        source = body.sources.get(first_output(network.nodes[index]), network.nodes[index])
        name = f"{level.name}/{label(source)}"
        outputs = tuple(filter(None, source.output))
        failing.append(structs.replace(network.plain(index), name=name, outputs=outputs))
    minimality, reason = inner.proof(case.minimum)
    levels[-1] = structs.replace(
        levels[-1], nodes=tuple(failing), minimality=minimality, why=reason
    )
    named = [node.name for node in failing]
    deeper = _level(inner, settled, nodes, named, level.number + 1, body.sources)
    comparison = comparing(check)
    if deeper is None and comparison is not None:
        fault = arbitrate(inner, comparison.runtime, comparison.tolerances, settled).to_part()
        levels[-1] = structs.replace(levels[-1], fault=fault)
    return deeper


def _bodies(level: _Level, ledger: Ledger) -> Iterator[tuple[str | None, int | None, Body]]:
    """Yield the bodies of a node that may fail, with the branch or the iteration."""
    outer = level.outer
    models = level.session.subject.models
    if is_call(outer.model, outer.node):
        if (body := outer.inlined()) is not None:
            yield None, None, body
    elif outer.node.op_type == "If":
        for branch in outer.branches(condition_known=not models.build_only):
            if (body := outer.branch(branch)) is not None:
                yield branch, None, body
    else:
        # A build has no iterations, so the first stands for all.
        number = 1 if models.build_only else _first_wrong(level, ledger)
        state = _state(level, number) if number else None
        body = None if state is None else outer.iteration(number, state)
        if body is not None:
            yield None, None if models.build_only else number, body


def _first_wrong(level: _Level, ledger: Ledger) -> int:
    """Return the first iteration after which a Loop or Scan is wrong, 0 if it has none.

    Its first iterations alone are probed, in halves: they pass before that iteration and fail from
    it on. Carried values are compared too, since a later iteration may be the first to return them.
    """
    session = level.session
    passing = 0
    failing = _count(level)
    prober = replace(session.prober, ledger=ledger)
    # Once an iteration is wrong, what it carries is: the first one is found by bisection.
    while failing - passing > 1:
        count = (passing + failing) // 2
        model, inputs, _ = level.outer.limited(count)
        expected = session.subject.reference.compute(model, inputs)
        if expected is None:
            return 0
        title = f"the first {plural(count, 'iteration')} of {level.name}"
        values = {**inputs, **expected}
        outputs = tuple(output.name for output in model.graph.output)
        candidate = Candidate(model, tuple(inputs), outputs, title, level.case.units, values=values)
        if prober.probe(candidate).fails:
            failing = count
        else:
            passing = count
    return failing


def _count(level: _Level) -> int:
    """Return the number of iterations in the reference run."""
    if level.outer.node.op_type == "Scan":
        return level.outer.scan_length()
    model, name = level.outer.counter()
    values = level.session.subject.reference.compute(
        model, level.session.subject.values(level.case, level.case.inputs)
    )
    return 0 if values is None else int(values[name].size)


def _state(level: _Level, number: int) -> list[np.ndarray] | None:
    """Return the carried values of the reference before an iteration; ``None`` where one has no value."""
    outer = level.outer
    if number == 1:
        values = outer.values
        names = [outer.node.input[place] for place in outer.carried]
    else:
        # The loop cut short gives the carried values, on the reference.
        model, inputs, names = outer.limited(number - 1)
        computed = level.session.subject.reference.compute(model, inputs)
        values = {} if computed is None else computed
    return [values[name] for name in names] if all(name in values for name in names) else None
