"""Other ways to look for the fewest units that are needed, to count their questions beside those of ours.

Each takes the units, of which all together show what is looked for, and ``ask``, which says whether
a set does; each gives back the set it ends with. None is used by bisect-trt: ``docs/search.md`` has
what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bisect_trt.search.oracle import Subset

Asks = Callable[[Subset], bool]


def by_repeated_bisection(units: Sequence[int], ask: Asks) -> Subset:
    """The shortest prefix that does, again and again with what was found kept (Zeller's "dd" with a fixed order)."""
    found = frozenset[int]()
    rest = list(units)
    while not (found and ask(found)):
        low = 0
        high = len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if ask(found.union(rest[:middle])) else (middle, high)
        found = found | {rest[high - 1]}
        rest = rest[: high - 1]
    return found


def by_quickxplain(units: Sequence[int], ask: Asks) -> Subset:
    """QuickXplain (Junker, AAAI 2004)."""

    def explain(background: Subset, new: bool, rest: list[int]) -> Subset:
        if new and background and ask(background):
            return frozenset()
        if len(rest) == 1:
            return frozenset(rest)
        first = rest[: len(rest) // 2]
        second = rest[len(rest) // 2 :]
        right = explain(background.union(first), True, second)
        return right | explain(background | right, bool(right), first)

    return explain(frozenset(), False, list(units))


def by_hwang(units: Sequence[int], ask: Asks, count: int) -> Subset:
    """Generalised binary splitting (Hwang, JASA 1972), which is told how many there are."""
    kept = frozenset(units)
    rest = list(units)
    found = frozenset[int]()
    while count and rest:
        few = len(rest) <= 2 * count - 2
        size = 1 if few else 2 ** int(math.log2((len(rest) - count + 1) / count))
        group = rest[:size]
        if (without := kept.difference(group)) and ask(without):
            kept = without
            rest = rest[size:]
            continue
        while len(group) > 1:
            half = group[: len(group) // 2]
            if (without := kept.difference(half)) and ask(without):
                kept = without
                group = group[len(half) :]
            else:
                group = half
        found |= {group[0]}
        rest = [unit for unit in rest if unit in kept and unit != group[0]]
        count -= 1
    return kept.difference(rest) | found


def by_probabilities(units: Sequence[int], ask: Asks) -> Subset:
    """Probabilistic delta debugging, ProbDD (Wang et al., ESEC/FSE 2021), each unit needed with a chance of 0.1 at first."""
    chance = dict.fromkeys(units, 0.1)
    while any(0 < p < 1 for p in chance.values()):
        order = sorted((unit for unit, p in chance.items() if p < 1), key=lambda unit: chance[unit])
        best = 0
        gain = 0.0
        none = 1.0
        for size, unit in enumerate(order, 1):
            none *= 1 - chance[unit]
            if size * none < gain:
                break
            best = size
            gain = size * none
        left_out = order[:best]
        if len(left_out) < len(chance) and ask(frozenset(chance).difference(left_out)):
            for unit in left_out:
                del chance[unit]
            continue
        none = math.prod(1 - chance[unit] for unit in left_out)
        for unit in left_out:
            chance[unit] = 1.0 if len(left_out) == 1 else min(chance[unit] / (1 - none), 1.0)
    return frozenset(chance)
