"""Who is to blame: the nodes of an answer, those first that go wrong by themselves, or of which a message speaks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bisect_trt.commands.session import Session
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import BuiltinCheck

MOST_BUILDS = 3
"""Of models with the answer's nodes side by side."""


def by_blame(session: Session, answer: Candidate, suspects: Sequence[int] = ()) -> list[int]:
    """The nodes of an answer, without those that only make weights, the guilty first.

    Each node is fed the reference's own values, all of them side by side in one model. What makes NaN or Inf of those, or
    is off, is more to blame than what only hands it on: the more it is off, the more. Where that cannot be told (a check of
    the user's, a target that does not run the model at all, an answer of one node) and where nothing is off by itself,
    suspects come first, and then the topological order counts.

    Args:
        session: The model, and whose check found the answer.
        answer: What fails.
        suspects: Nodes that were suspected before, the most suspicious first.
    """
    network = session.subject.network
    nodes = [network.order[unit] for unit in sorted(answer.units) if not network.constant[network.order[unit]]]
    if not nodes:  # what fails depends on no input
        made = {network.producer.get(name) for node in answer.proto.graph.node for name in node.output}
        nodes = [index for index in network.order if index in made and network.reads[index]]
    errors = _own_errors(session, answer, nodes) if len(nodes) > 1 else {}
    ranks = {node: place for place, node in enumerate(suspects)}
    return sorted(nodes, key=lambda node: (-errors.get(node, 0.0), ranks.get(node, len(ranks)), network.rank[node]))


def _own_errors(session: Session, answer: Candidate, nodes: Sequence[int]) -> dict[int, float]:
    """How severely each node is off by itself, where it is; infinitely where it makes NaN or Inf."""
    check, subject = session.prober.runner.check, session.subject
    if not isinstance(check, BuiltinCheck) or session.prober.ledger.is_broken:
        return {}
    from bisect_trt.commands.marking import Marking, compare_own  # noqa: PLC0415 - not needed for a user's check

    target = replace(check.target, held=answer.held or check.target.held)
    names = [name for node in nodes for name in subject.network.made(node)]
    own = compare_own(Marking(subject, target, check.tolerance, check.timeout), names, MOST_BUILDS)
    errors: dict[int, float] = {}
    for name, comparison in own.tensors.items():
        if not comparison.passed:
            node = subject.network.producer[name]
            errors[node] = max(errors.get(node, 0.0), comparison.severity)
    return errors


def named_nodes(network: Network, text: str) -> list[int]:
    """The nodes that a message speaks of, in its order: by their names, those of what they make, or names made of these.

    A runtime that rewrites a graph names what it makes after what was there: ``x_q`` or ``x_token_220`` after ``x``.
    """
    makers = {name: index for index in network.order for name in network.made(index)}
    makers |= {network.nodes[index].name: index for index in network.order if network.nodes[index].name}
    words = list(dict.fromkeys(_words(text)))
    exact = [makers[word] for word in words if word in makers]
    if exact:
        return list(dict.fromkeys(exact))
    derived = (word[:end] for word in words for end in range(len(word) - 1, 0, -1) if word[end] in "_/.:-")
    return [makers[name] for name in derived if name in makers][:1]


def _words(text: str) -> Iterator[str]:
    """What may be a name in a message: what is quoted, what is in brackets or follows a colon, then every word."""
    for quoted in re.findall(r"'([^']+)'|\"([^\"]+)\"|\(([^()\s]+)\)|\b[Nn]ame:\s*(\S+)", text):
        yield next(filter(None, quoted))
    for word in re.split(r"[\s'\"()\[\]{},;]+", text):
        yield from dict.fromkeys((word, word.rstrip(".:")))
