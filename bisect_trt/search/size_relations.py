"""Which rule the points of several dimensions that fail obey, and which points are to be tried to find it.

A rule is a guess that all points obey which were tried. What is tried next is what the rules that are left say different things
of (query by committee: Seung, Opper and Sompolinsky, COLT 1992), then what lies between a bound and the points that hold it, then
points of both kinds that nobody has tried.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise, product
from math import prod

from bisect_trt.search.oracle import Verdict
from bisect_trt.search.size_conditions import Condition, Feature, Point, Relation

_PERIODS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64, 128)
_MOST_RULES, _MOST_ALIKE, _POOL, _MOST_SIZES = 40, 3, 400, 400
_RIVAL = 1.5
"""Rules that cost so much more than the simplest are not asked about."""
FRESH = 6
"""At so many points of either kind, not tried before, a rule is put to the test."""


@lru_cache(maxsize=16)
def _features(count: int) -> tuple[Feature, ...]:
    single = [Feature("size", (place,)) for place in range(count)]
    groups = [pair for size in sorted({2, count}) if size <= count for pair in combinations(range(count), size)]
    more = [Feature(kind, group) for kind in ("product", "sum") for group in groups]
    return (*single, *more, *(Feature("difference", pair) for pair in combinations(range(count), 2)))


def relations(failing: Sequence[Point], passing: Sequence[Point]) -> list[Relation]:
    """The simplest rules that all points obey, the simplest first; there are some of both kinds."""
    found = [Relation(conditions) for conditions in _covering(failing, passing)]
    for conditions in _covering(passing, failing):
        turned = tuple(_held_by(each.negated(), failing) for each in conditions)
        found.append(Relation(turned, every=len(turned) == 1))
    return sorted(dict.fromkeys(found), key=lambda each: (each.cost, repr(each)))[:_MOST_RULES]


def _held_by(condition: Condition, failing: Sequence[Point]) -> Condition:
    """The same with its bound at the first point that meets it: what lies before was not seen to fail."""
    met = [value for value in map(condition.feature.of, failing) if condition.met_by(value)]
    if condition.kind == "from" and met:
        return replace(condition, low=min(met))
    if condition.kind == "up_to" and met:
        return replace(condition, high=max(met))
    return condition


def _covering(ours: Sequence[Point], others: Sequence[Point]) -> list[tuple[Condition, ...]]:
    """Conditions that all of ours meet, and each of the others breaks at least one of: one, two, or three if need be."""
    full = (1 << len(others)) - 1
    known = _conditions(ours, others)
    by_mask: dict[int, list[Condition]] = {}
    for condition, mask in known:
        by_mask.setdefault(mask, []).append(condition)
    kept = sorted(
        ((each, mask) for mask, some in by_mask.items() for each in sorted(some, key=_cost)[:_MOST_ALIKE]),
        key=lambda pair: _cost(pair[0]),
    )
    found: list[tuple[Condition, ...]] = [(condition,) for condition, mask in kept if mask == full]
    part = [(condition, mask) for condition, mask in kept if mask != full]
    pairs: list[tuple[Condition, ...]] = []
    for number, (one, mask) in enumerate(part):
        for other, more in part[number + 1 :]:
            if mask | more == full:
                pairs.append((one, other))
    found += sorted(pairs, key=lambda pair: _cost(pair[0]) + _cost(pair[1]))[:_MOST_RULES]
    return found or _three(part, full)


def _three(part: Sequence[tuple[Condition, int]], full: int) -> list[tuple[Condition, ...]]:
    found: list[tuple[Condition, ...]] = []
    cheap = part[:60]
    for number, (one, mask) in enumerate(cheap):
        for second, (two, more) in enumerate(cheap[number + 1 :], number + 1):
            left = full & ~(mask | more)
            if mask | more in (mask, more):
                continue
            found += [(one, two, three) for three, last in cheap[second + 1 :] if last & left == left]
            if len(found) > _MOST_RULES:
                return found
    return found


def _cost(condition: Condition) -> float:
    return condition.cost


def _conditions(ours: Sequence[Point], others: Sequence[Point]) -> Iterator[tuple[Condition, int]]:
    """The tightest conditions of each kind that all of ours meet, each with those of the others that break it, a bit for each."""
    for feature in _features(len(ours[0])):
        mine, theirs = [feature.of(point) for point in ours], [feature.of(point) for point in others]
        for condition in _tightest(feature, mine):
            mask = sum(1 << place for place, value in enumerate(theirs) if not condition.met_by(value))
            if mask and (condition.kind != "between" or min(theirs) < condition.low <= condition.high < max(theirs)):
                yield condition, mask


def _tightest(feature: Feature, mine: Sequence[int]) -> Iterator[Condition]:
    low, high = min(mine), max(mine)
    yield Condition(feature, "from", low)
    yield Condition(feature, "up_to", high=high)
    yield Condition(feature, "between", low, high)
    if feature.kind == "difference":
        if 0 not in mine:
            yield Condition(feature, "outside", 0, 0)
        return
    for period in _PERIODS:
        remainders = {value % period for value in mine}
        if len(remainders) == 1 and (len(mine) > 1 or remainders == {0}):
            yield Condition(feature, "residue", remainders.pop(), period=period)
        elif period > 2 and 0 not in remainders:
            yield Condition(feature, "but_residue", 0, period=period)


@dataclass(frozen=True)
class Guess:
    """The simplest rule that fits, and what is known of it.

    Attributes:
        relation: It.
        fresh: How many points were tried since it was the simplest: it foretold all of them.
        others: Rules about as simple that fit as well, and say something else of points that were not tried.
    """

    relation: Relation
    fresh: int
    others: tuple[Relation, ...]


def guess(axes: Sequence[Sequence[int]], seen: Mapping[Point, Verdict]) -> Guess | None:
    """The rule for points that were tried in this order; ``None`` if none fits, or all are alike."""
    known = _known(seen)
    rules = _fitting(frozenset(known))
    if not rules:
        return None
    if len(known) == prod(map(len, axes)) and (alone := _alone(known)) is not None:
        return Guess(alone, 0, ())
    best, fresh = rules[0], 0
    while fresh < len(known):
        earlier = _fitting(frozenset(known[: len(known) - fresh - 1]))
        if not earlier or earlier[0] != best:
            break
        fresh += 1
    pool = _pool(_frozen(axes))
    others = [rule for rule in _rivals(rules)[1:] if any(rule.fails(point) != best.fails(point) for point in pool)]
    return Guess(best, fresh, tuple(others[:3]))


def _alone(known: Sequence[tuple[Point, bool]]) -> Relation | None:
    """Of all points the only one that fails, or passes: no rule says it better than its sizes."""
    for fails in (True, False):
        points = [point for point, failed in known if failed is fails]
        if len(points) == 1:
            kind = "between" if fails else "outside"
            each = [Condition(Feature("size", (place,)), kind, size, size) for place, size in enumerate(points[0])]
            return Relation(tuple(each), every=fails)
    return None


def explore(axes: Sequence[Sequence[int]], ask: Callable[[Point], Verdict], seen: Mapping[Point, Verdict]) -> None:
    """Ask of points until one rule is left that was put to the test, or no rule fits; ``seen`` has what was asked."""
    best, fresh = None, (0, 0)
    while True:
        known = frozenset(_known(seen))
        rules = _fitting(known)
        if not rules:
            return
        if rules[0] != best:
            best, fresh = rules[0], (0, 0)
        point = _choose(_frozen(axes), known, fresh, frozenset(seen))
        if point is None:
            return
        foretold = best.fails(point)
        if ask(point) is (Verdict.FAIL if foretold else Verdict.PASS):
            fresh = (fresh[0] + foretold, fresh[1] + (not foretold))


def foretells(seen: Mapping[Point, Verdict], point: Point) -> Verdict | None:
    """What the simplest rule says of a point, if one fits."""
    rules = _fitting(frozenset(_known(seen)))
    return (Verdict.FAIL if rules[0].fails(point) else Verdict.PASS) if rules else None


def _known(seen: Mapping[Point, Verdict]) -> list[tuple[Point, bool]]:
    return [(point, verdict is Verdict.FAIL) for point, verdict in seen.items() if verdict is not Verdict.UNRESOLVED]


def _frozen(axes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, axes))


@lru_cache(maxsize=4096)
def _fitting(known: frozenset[tuple[Point, bool]]) -> tuple[Relation, ...]:
    """A search that is run ahead asks the same again and again."""
    failing, passing = (sorted(point for point, fails in known if fails is kind) for kind in (True, False))
    return tuple(relations(failing, passing)) if failing and passing else ()


def _rivals(rules: Sequence[Relation]) -> list[Relation]:
    return [rule for rule in rules if rule.cost <= rules[0].cost + _RIVAL]


@lru_cache(maxsize=4096)
def _choose(
    axes: tuple[tuple[int, ...], ...],
    known: frozenset[tuple[Point, bool]],
    fresh: tuple[int, int],
    tried: frozenset[Point],
) -> Point | None:
    rules = _rivals(_fitting(known))
    pool = [point for point in _pool(axes) if point not in tried]
    if (point := _disputed(rules, pool)) is not None or (point := _between(axes, rules[0], known, tried)) is not None:
        return point
    for kind in (True, False):
        if fresh[not kind] < FRESH:
            for point in pool:
                if rules[0].fails(point) is kind:
                    return point
    return None


def _disputed(rules: Sequence[Relation], pool: Sequence[Point]) -> Point | None:
    """The point of which rules say different things, as near to equally likely as there is."""
    weights = [2.0 ** (2 * (rules[0].cost - rule.cost)) for rule in rules]
    least, chosen = sum(weights) * 0.99, None
    for point in pool:
        fails = sum(weight for rule, weight in zip(rules, weights, strict=True) if rule.fails(point))
        worst = max(fails, sum(weights) - fails)
        if worst < least:
            least, chosen = worst, point
    return chosen


def _between(
    axes: tuple[tuple[int, ...], ...], rule: Relation, known: frozenset[tuple[Point, bool]], tried: frozenset[Point]
) -> Point | None:
    """A point between a bound and what holds it there, by halves, where nothing but that bound decides."""
    for number, condition in enumerate(rule.conditions):
        rest = [each for place, each in enumerate(rule.conditions) if place != number]

        def free(point: Point, rest: Sequence[Condition] = rest) -> bool:
            return all(each.holds(point) is rule.every for each in rest)

        values = sorted((condition.feature.of(point), condition.holds(point)) for point, _ in known if free(point))
        for (low, held), (high, holds) in pairwise(values):
            if held is not holds and high - low > 1 and not condition.period:
                point = _valued(axes, condition.feature, low, high, free, [point for point, _ in sorted(known)], tried)
                if point is not None:
                    return point
    return None


def _valued(
    axes: tuple[tuple[int, ...], ...],
    feature: Feature,
    low: int,
    high: int,
    free: Callable[[Point], bool],
    known: Sequence[Point],
    tried: frozenset[Point],
) -> Point | None:
    """The point whose feature is nearest to the middle between two values, both left out."""
    middle, nearest, chosen = (low + high) / 2, (high - low) / 2, None
    last = feature.places[-1]
    for start in (*known, *_lines(axes, feature.places[:-1])):
        axis = axes[last]
        values = [feature.of(_with(start, last, size)) for size in (axis[0], axis[-1])]
        step = 1 if values[0] <= values[1] else -1

        def rising(size: int, start: Point = start, step: int = step) -> int:
            return step * feature.of(_with(start, last, size))

        place = bisect_left(axis, step * middle, key=rising)
        for size in axis[max(place - 2, 0) : place + 2]:
            point = _with(start, last, size)
            far = abs(feature.of(point) - middle)
            if far < nearest and point not in tried and free(point):
                nearest, chosen = far, point
    return chosen


def _with(point: Point, place: int, size: int) -> Point:
    return (*point[:place], size, *point[place + 1 :])


def _lines(axes: tuple[tuple[int, ...], ...], places: Sequence[int]) -> Iterator[Point]:
    """Points with all sizes, or many, of some dimensions; the others are by chance, twice."""
    rng = random.Random(0)
    several = [
        axes[place] if len(axes[place]) <= _MOST_SIZES else rng.sample(axes[place], _MOST_SIZES) for place in places
    ]
    for chosen in product(*several) if prod(map(len, several)) <= _MOST_SIZES else zip(*several, strict=False):
        for _ in range(2):
            point = [rng.choice(axis) for axis in axes]
            for place, size in zip(places, chosen, strict=True):
                point[place] = size
            yield tuple(point)


@lru_cache(maxsize=16)
def _pool(axes: tuple[tuple[int, ...], ...]) -> tuple[Point, ...]:
    """Points by chance: of all, of such with equal sizes, and of multiples of 8."""
    rng = random.Random(0)
    common = sorted(set(axes[0]).intersection(*axes[1:]))
    round_ = [[size for size in axis if size % 8 == 0] or axis for axis in axes]
    found = [tuple(rng.choice(axis) for axis in axes) for _ in range(_POOL)]
    found += [tuple(rng.choice(axis) for axis in rng.choice([round_, axes])) for _ in range(_POOL // 4)]
    for _ in range(_POOL // 4 if common else 0):
        one, steps = rng.choice(common), [rng.choice((-1, 0, 0, 1)) for _ in axes]
        point = tuple(one + step for step in steps)
        found.append(point if all(size in axis for size, axis in zip(point, axes, strict=True)) else (one,) * len(axes))
    for _ in range(_POOL // 4):  # small ones count too, where few of all are
        found.append(tuple(axis[min(int(len(axis) * rng.random() ** 3), len(axis) - 1)] for axis in axes))
    return tuple(dict.fromkeys(found))
