"""What the sizes that were seen to fail have in common: intervals, and a rule that explains them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bisect_trt.search.oracle import Verdict

_MOST_PERIOD = 64


@dataclass(frozen=True)
class Rule:
    """What the sizes that fail have in common.

    Attributes:
        kind: ``never``, ``always``, ``from`` (``low`` on), ``up_to`` (``high``), ``between`` (``low`` and ``high``), ``only``
            (``low``), ``outside`` (of ``low`` to ``high``, which pass), ``residue`` or ``but_residue`` (``remainder`` modulo
            ``period``, between ``low`` and ``high``).
        low: The smallest size that was seen to fail; of ``outside`` to pass.
        high: The largest.
        period: Of a residue.
        remainder: The same.
    """

    kind: str
    low: int | None = None
    high: int | None = None
    period: int | None = None
    remainder: int | None = None

    def fails(self, size: int) -> bool:
        """What it says of a size."""
        if self.kind in ("never", "always"):
            return self.kind == "always"
        if self.kind == "from":
            return size >= (self.low or 0)
        if self.kind == "up_to":
            return size <= (self.high or 0)
        inside = (self.low or 0) <= size <= (self.high or 0)
        if self.period is None:
            return inside is not (self.kind == "outside")
        return inside and (size % self.period == self.remainder) is (self.kind == "residue")

    def describe(self) -> str:
        """In words, after "fails"."""
        if self.period is None:
            return {
                "never": "at no size",
                "always": "at every size",
                "from": f"from {self.low} on",
                "up_to": f"up to {self.high}",
                "between": f"from {self.low} to {self.high}",
                "only": f"at {self.low} only",
                "outside": f"at all sizes but {self.low}" + (f" to {self.high}" if self.high != self.low else ""),
            }[self.kind]
        sizes = {(2, 1): "odd sizes", (2, 0): "even sizes"}.get(
            (self.period, self.remainder or 0),
            f"multiples of {self.period}"
            if not self.remainder
            else f"sizes that leave {self.remainder} when divided by {self.period}",
        )
        span = f"from {self.low} to {self.high}"
        return f"at {sizes}, {span}" if self.kind == "residue" else f"at all but {sizes}, {span}"


def fit(seen: Mapping[int, Verdict]) -> Rule | None:
    """The simplest rule that every size which was tried obeys; ``None`` if none of these does."""
    fails = sorted(size for size, verdict in seen.items() if verdict is Verdict.FAIL)
    passes = sorted(size for size, verdict in seen.items() if verdict is Verdict.PASS)
    if not fails:
        return Rule("never") if passes else None
    low, high = fails[0], fails[-1]
    inside = [size for size in passes if low < size < high]
    kinds = {
        "always": not passes,
        "from": bool(passes) and low > passes[-1],
        "up_to": bool(passes) and high < passes[0],
        "only": len(fails) == 1,
        "between": not inside,
    }
    simple = next((kind for kind, fits in kinds.items() if fits), None)
    if simple is not None:
        return Rule(simple, low, high)
    if inside == passes and not any(passes[0] < size < passes[-1] for size in fails):
        return Rule("outside", passes[0], passes[-1])
    return _residue(fails, inside)


def _residue(fails: Sequence[int], inside: Sequence[int]) -> Rule | None:
    """A rule of remainders between the first size that fails and the last; ``inside`` pass and lie there too."""
    low, high = fails[0], fails[-1]
    for period in range(2, min(_MOST_PERIOD, high - low) + 1):
        for kind, ours, others in (("residue", fails, inside), ("but_residue", inside, fails)):
            remainders = {size % period for size in ours}
            if len(ours) > 2 and len(remainders) == 1 and not any(size % period in remainders for size in others):
                return Rule(kind, low, high, period, remainders.pop())
    return None


@dataclass(frozen=True)
class Interval:
    """Sizes in a row: all of those that were tried have one verdict.

    Attributes:
        sizes: Its ends, both tried.
        verdict: Of those that were tried.
        tried: These.
        inferred: The ends of each row of sizes between them that was not.
    """

    sizes: tuple[int, int]
    verdict: Verdict
    tried: tuple[int, ...]
    inferred: tuple[tuple[int, int], ...]


def intervals(sizes: Sequence[int], seen: Mapping[int, Verdict]) -> list[Interval]:
    """The sizes that were tried, in rows of one verdict, with what lies untried inside of each."""
    found: list[list[int]] = []
    for size in sorted(seen):
        if found and seen[found[-1][-1]] is seen[size]:
            found[-1].append(size)
        else:
            found.append([size])
    places = {size: place for place, size in enumerate(sizes)}
    return [
        Interval(
            (tried[0], tried[-1]),
            seen[tried[0]],
            tuple(tried),
            tuple(
                (sizes[places[one] + 1], sizes[places[other] - 1])
                for one, other in pairwise(tried)
                if places[other] - places[one] > 1
            ),
        )
        for tried in found
    ]
