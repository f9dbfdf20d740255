"""How long candidates of a search for precision run, where its check measured it."""

from __future__ import annotations

from bisect_trt.probing.prober import Prober
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.workflows.precision.lowering import Lowering


def latencies(prober: Prober, lowering: Lowering, keep: Subset) -> dict[str, float | None] | None:
    """Milliseconds of one run with everything in fp32, with the answer, and with everything lowered.

    Returns:
        The median of several runs each; ``None`` where nothing was measured.
    """
    everything = frozenset(lowering.units)
    found = {
        name: _latency(prober, lowering.candidate(units).key)
        for name, units in (("fp32", everything), ("mixed", keep), ("lowered", frozenset[int]()))
    }
    return found if any(value is not None for value in found.values()) else None


def fastest(prober: Prober, lowering: Lowering, minimum: Minimum) -> Minimum:
    """Among all sets of units that were seen to be enough, the one that runs fastest.

    Args:
        prober: Who probed them.
        lowering: Makes the candidates.
        minimum: The one with the fewest units, which stays the answer where nothing was measured or nothing is faster.
    """
    everything = frozenset(lowering.units)
    measured = {
        identity.units: latency
        for identity in prober.ledger.passed
        if identity.units < everything and (latency := _latency(prober, identity.key)) is not None
    }
    best = min(measured, key=lambda units: (measured[units], len(units), sorted(units)), default=minimum.units)
    if best == minimum.units:
        return minimum
    why = f"the fastest of {len(measured)} sets that pass ({measured[best]:.3f} ms), not the one with the fewest nodes"
    return Minimum(best, proven=False, why=why, steps=minimum.steps)


def _latency(prober: Prober, key: str) -> float | None:
    outcome = prober.ledger.outcome(key)
    return None if outcome is None else outcome.latency_ms
