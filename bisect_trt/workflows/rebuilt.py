"""Whether the failure survives that the model is rebuilt at all: of every unit, but as a piece of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx

from bisect_trt.errors import BisectError, ExitStatus, quoted
from bisect_trt.graph.lower import first_output
from bisect_trt.probing.candidate import Candidate
from bisect_trt.search.confirm import FLAKY, ORIGINAL_PASSED
from bisect_trt.search.oracle import Ask, Minimum, Subset, Verdict

LOST = Minimum(frozenset(), proven=False, why="the failure is lost as soon as the model is rebuilt")
"""What a search ends with that finds nothing to search: all units together do not fail."""
_SHOWN = 3


class RebuiltPasses(BisectError):  # noqa: N818 - an ending, not an error
    """The original fails, and the same rebuilt of all its units passes: no piece of it can be searched."""

    status = ExitStatus.UNPROVEN


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """All units together do not fail."""


def unless_lost(algorithm: Callable[[Ask], Minimum], ask: Ask, everything: Subset) -> Minimum:
    """Run a search; where nothing fails for as long as a bisection takes, ask about all units together first.

    Before that nobody need know: whatever fails shows that pieces can. So a search of a failure that survives costs no
    question more, but where the culprit is the very last unit.

    Returns:
        What the search found; ``LOST`` if all units together pass.
    """
    heard: set[Subset] = set()
    patience, fails = len(everything).bit_length() + 1, False

    def watched(units: Subset) -> Verdict:
        nonlocal fails
        verdict = ask(units)
        if fails or verdict is Verdict.FAIL:
            fails = True
            heard.clear()
            return verdict
        heard.add(units)
        if len(heard) == patience:
            heard.add(everything)
            if ask(everything) is Verdict.PASS:
                raise _Lost
        return verdict

    try:
        return algorithm(watched)
    except _Lost:
        return LOST


def refuse_lost(
    minimum: Minimum, original: Candidate, rebuilt: Callable[[], Candidate], passes_now: Callable[[], bool]
) -> Minimum:
    """The answer of a search.

    Args:
        minimum: What it ended with.
        original: It failed.
        rebuilt: Makes it of all its units.
        passes_now: Asks whether the original passes by now; it is asked where nothing differs but how it is written.

    Raises:
        RebuiltPasses: There is none; what differs is said.
    """
    if minimum is not LOST:
        return minimum
    differs = what_differs(original.proto, rebuilt().proto)
    if not differs and passes_now():
        raise RebuiltPasses(f"{FLAKY.format(ORIGINAL_PASSED)}; `bisect-trt repeat` says how often too.")
    raise RebuiltPasses(
        "the model fails, and rebuilt of all its units it passes, so no piece of it can be searched. What differs: "
        f"{'; '.join(differs) or 'nothing but how it is written'}. Look for the reason there, or take it out of the model "
        "(`bisect-trt sanitize`) and see whether it fails all the same."
    )


def what_differs(original: onnx.ModelProto, rebuilt: onnx.ModelProto) -> list[str]:
    """What is not in a rebuilt model, or elsewhere in it, each in words."""
    was, now = original.graph, rebuilt.graph
    said = []
    old, new = ([first_output(node) for node in graph.node] for graph in (was, now))
    kept = set(new)
    if [name for name in old if name in kept] != new:
        said.append("the order of the nodes")
    said += _gone("node", [name for name in old if name not in kept], "is not computed")
    for kind, before, after in (
        ("input", was.input, now.input),
        ("output", was.output, now.output),
        ("weight", was.initializer, now.initializer),
    ):
        names = {entry.name for entry in after}
        said += _gone(kind, [entry.name for entry in before if entry.name not in names], "is not there")
    said += _gone(
        "declared type", [v.name for v in was.value_info if v not in now.value_info], "is another, or not there"
    )
    domains = {(entry.domain, entry.version) for entry in rebuilt.opset_import}
    unused = [
        entry.domain or "ai.onnx" for entry in original.opset_import if (entry.domain, entry.version) not in domains
    ]
    said += _gone("operator set", unused, "is not imported")
    functions = {entry.name for entry in rebuilt.functions}
    said += _gone(
        "function", [entry.name for entry in original.functions if entry.name not in functions], "is not there"
    )
    same = list(original.metadata_props) == list(rebuilt.metadata_props) and was.doc_string == now.doc_string
    return said if same else [*said, "metadata and documentation"]


def _gone(kind: str, names: Sequence[str], what: str) -> list[str]:
    return [f"the {kind} {quoted(names, _SHOWN)} {what}"] if names else []
