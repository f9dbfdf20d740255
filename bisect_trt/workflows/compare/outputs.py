"""Which tensors ``run`` compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from bisect_trt.errors import UsageError
from bisect_trt.graph.network import Network

MARK_ALL = ("mark", "all")


def choose_outputs(network: Network, wanted: Sequence[str], excluded: Sequence[str] = ()) -> list[str]:
    """The tensors to compare, each once.

    Args:
        network: The model.
        wanted: Names and globs of tensors; ``("mark", "all")`` for every one; without any, the graph's outputs.
        excluded: Names and globs of those to leave out.

    Raises:
        UsageError: A name or glob is of no tensor, or none is left.
    """
    every = list(dict.fromkeys([*network.computed, *network.outputs]))
    chosen = network.outputs
    if tuple(wanted) == MARK_ALL:
        chosen = every
    elif wanted:
        # A weight that a node makes can be asked for by its name.
        chosen = _named("--onnx-outputs", wanted, [*every, *(name for name in network.producer if name not in every)])
    gone = set(_named("--onnx-exclude-outputs", excluded, chosen))
    left = [name for name in chosen if name not in gone]
    if not left:
        raise UsageError("--onnx-exclude-outputs leaves no tensor to compare; name fewer.")
    return left


def _named(option: str, patterns: Sequence[str], known: Iterable[str]) -> list[str]:
    """The tensors that names and globs are of; a tensor whose name looks like a glob is found by it."""
    known = list(known)
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise UsageError(
                f"{option}: the model makes no tensor '{pattern}', or it is not among those to compare (all of them: "
                "--onnx-outputs mark all)."
            )
        found.update(dict.fromkeys(names))
    return list(found)
