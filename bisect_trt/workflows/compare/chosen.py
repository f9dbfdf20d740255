"""Which tensors are compared: names, globs, and types of operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from bisect_trt.errors import UsageError, quoted
from bisect_trt.graph.network import Network

OPERATOR = "op:"
"""Before a type of operators, as for ``--keep``."""
MARK_ALL = ("mark", "all")
MARK_UNFUSED = ("mark", "unfused")


def choose_outputs(network: Network, wanted: Sequence[str], excluded: Sequence[str] = ()) -> list[str]:
    """The tensors to compare, each once.

    Args:
        network: The model.
        wanted: Names and globs of tensors, or ``op:TYPE`` for what operators of a type make; ``MARK_ALL`` or
            ``MARK_UNFUSED`` for every one; without any, the graph's outputs.
        excluded: The same of those to leave out.

    Raises:
        UsageError: A name or glob is of no tensor, or none is left.
    """
    every = list(dict.fromkeys([*network.computed, *network.outputs]))
    chosen = network.outputs
    if tuple(wanted) in (MARK_ALL, MARK_UNFUSED):
        chosen = every
    elif wanted:
        # A weight that a node makes can be asked for by its name.
        known = [*every, *(name for name in network.producer if name not in every)]
        chosen = _named("--onnx-outputs", wanted, known, network)
    gone = set(_named("--onnx-exclude-outputs", excluded, chosen, network))
    left = [name for name in chosen if name not in gone]
    if not left:
        raise UsageError("--onnx-exclude-outputs leaves no tensor to compare; name fewer.")
    return left


def _named(option: str, patterns: Sequence[str], known: Iterable[str], network: Network) -> list[str]:
    """The tensors that names, globs and types are of; a tensor whose name looks like a glob or a type is found by it."""
    known = list(known)
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern in known else [name for name in known if _fits(name, pattern, network)]
        if not names:
            raise UsageError(
                f"{option}: the model makes no tensor '{pattern}', or it is not among those to compare (all of them: "
                f"--onnx-outputs mark all).{_instead(pattern, known, network)}"
            )
        found.update(dict.fromkeys(names))
    return list(found)


def _instead(pattern: str, known: Sequence[str], network: Network) -> str:
    """What may have been meant by a name that no tensor has: what a node of that name makes, or one that is spelt alike."""
    made = [name for name in known for maker in [network.producer.get(name)] if maker is not None]
    made = [name for name in made if network.nodes[network.producer[name]].name == pattern]
    if made:
        return f" A node is called so, and makes {quoted(made)}."
    operators = pattern.startswith(OPERATOR)
    words = sorted({f"{OPERATOR}{node.op_type}" for node in network.nodes}) if operators else known
    close = get_close_matches(pattern, words)
    return f" Close to it: {quoted(close)}." if close else ""


def _fits(name: str, pattern: str, network: Network) -> bool:
    """Whether a tensor is of a glob, or is made by an operator of the type."""
    if pattern.startswith(OPERATOR):
        maker = network.producer.get(name)
        return maker is not None and fnmatchcase(network.nodes[maker].op_type, pattern.removeprefix(OPERATOR))
    return fnmatchcase(name, pattern)
