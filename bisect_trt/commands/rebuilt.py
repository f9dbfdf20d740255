"""Whether the failure survives re-serialization: the model of all its units, written as a piece of itself."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from bisect_trt.errors import BisectError, ExitStatus, quoted
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.probe.candidate import Candidate
from bisect_trt.search.confirm import FLAKY, ORIGINAL_PASSED
from bisect_trt.search.oracle import Ask, Minimum, Subset, Verdict

LOST = Minimum(frozenset(), proven=False, why="the failure is lost as soon as the model is rebuilt")
"""What a search ends with where all units together pass."""
_SHOWN = 3


class RebuiltPasses(BisectError):  # noqa: N818 - an ending, not an error
    """The original fails, and the same model of all its units passes: no piece of it can be searched."""

    status = ExitStatus.UNPROVEN


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """All units together do not fail."""


def unless_lost(algorithm: Callable[[Ask], Minimum], ask: Ask, everything: Subset) -> Minimum:
    """Run a search; where nothing fails for as long as a bisection takes, ask about all units together first.

    A subset that fails shows that the model can be cut. So a search of a failure that survives costs no question more, but where
    the culprit is the very last unit.

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
        original: The failing model.
        rebuilt: Makes it of all its units.
        passes_now: Probes whether the original passes by now; called where nothing differs but the serialization.

    Raises:
        RebuiltPasses: There is no answer; the message lists what differs.
    """
    if minimum is not LOST:
        return minimum
    differs = what_differs(original.proto, rebuilt().proto)
    if not differs and passes_now():
        raise RebuiltPasses(f"{FLAKY.format(ORIGINAL_PASSED)}; `bisect-trt repeat` says how often too.")
    raise RebuiltPasses(
        "Re-serializing the model makes the failure disappear, so it cannot be cut. What differs: "
        f"{'; '.join(differs) or 'only the serialization'}. Look for the reason there, or take it out of the model "
        "(`bisect-trt sanitize`) and see whether it fails all the same."
    )


def what_differs(original: onnx.ModelProto, rebuilt: onnx.ModelProto) -> list[str]:
    """What is missing from a rebuilt model, or elsewhere in it, each in words."""
    was, now = original.graph, rebuilt.graph
    old, new = ([first_output(node) for node in graph.node] for graph in (was, now))
    said = ["the order of the nodes"] if [name for name in old if name in set(new)] != new else []
    types = [value.name for value in was.value_info if value not in now.value_info]
    domains, others = ({(e.domain or "ai.onnx", e.version) for e in m.opset_import} for m in (original, rebuilt))
    gone = {
        "node": (old, new, "is missing"),
        "input": ([e.name for e in was.input], [e.name for e in now.input], "is missing"),
        "output": ([e.name for e in was.output], [e.name for e in now.output], "is missing"),
        "weight": ([e.name for e in was.initializer], [e.name for e in now.initializer], "is missing"),
        "declared type": (types, [], "differs or is missing"),
        "operator set": (sorted(domain for domain, _ in domains - others), [], "is not imported"),
        "function": ([e.name for e in original.functions], [e.name for e in rebuilt.functions], "is missing"),
    }
    for kind, (before, after, how) in gone.items():
        missing = [name for name in before if name not in set(after)]
        if missing:
            said.append(f"the {kind} {quoted(missing, _SHOWN)} {how}")
    same = list(original.metadata_props) == list(rebuilt.metadata_props) and was.doc_string == now.doc_string
    return said if same else [*said, "metadata and documentation"]
