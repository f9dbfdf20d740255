"""What the samples that fail have in common, and those that pass have not: ranges, zeros, tokens, lengths.

Each property is held against all samples. How likely it is that it separates them so well by chance is Fisher's exact test,
corrected for the number of thresholds that were tried of it, and of properties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.search.exact import fisher, holm

Values = Mapping[str, NDArray[Any]]
MOST_TOKENS = 512
"""So many different whole numbers are looked at one by one."""
SHOWN = 10
SURE = 0.05


@dataclass(frozen=True)
class Property:
    """Something that some samples have.

    Attributes:
        said: In words.
        input: Of which input.
        kind: ``max``, ``min``, ``magnitude``, ``zeros``, ``length``, ``nan``, ``inf``, ``token``, ``negative``.
        failing: How many of those that fail have it.
        passing: How many of those that pass have it.
        chance: That it separates them so well by chance, of itself.
        bounds: How many bounds were tried for it.
    """

    said: str
    input: str
    kind: str
    failing: int
    passing: int
    chance: float
    bounds: int = 1


def find_common(failing: Sequence[Values], passing: Sequence[Values]) -> list[dict[str, Any]]:
    """The properties that set the failing samples apart, the surest first; there are some of both kinds.

    Returns:
        Of each ``property``, ``input``, ``kind``, ``failing`` and ``passing`` (``[with it, of]``), ``p_value``, ``p_corrected``,
        and ``separates`` if all that fail have it and none that passes.
    """
    found: list[Property] = []
    for name in failing[0]:
        ours, others = [sample[name] for sample in failing], [sample[name] for sample in passing]
        if ours[0].dtype.kind in "fiub":
            found += _of_numbers(name, ours, others)
        found += _of_shapes(name, ours, others)
    corrected = holm([min(1.0, each.chance * each.bounds) for each in found])
    entries: list[dict[str, Any]] = [
        {
            "property": each.said,
            "input": each.input,
            "kind": each.kind,
            "failing": [each.failing, len(failing)],
            "passing": [each.passing, len(passing)],
            "p_value": each.chance,
            "p_corrected": chance,
            "separates": each.failing == len(failing) and each.passing == 0,
        }
        for each, chance in zip(found, corrected, strict=True)
    ]
    told = [entry for entry in entries if entry["separates"] or entry["p_corrected"] <= SURE]
    return sorted(told, key=lambda entry: (entry["p_value"], not entry["separates"]))[:SHOWN]


def _of_numbers(name: str, ours: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]]) -> Iterator[Property]:
    measures: dict[str, tuple[str, Callable[[NDArray[Any]], float]]] = {
        "max": ("the largest element", lambda value: float(np.max(value))),
        "min": ("the smallest element", lambda value: float(np.min(value))),
        "magnitude": ("the largest magnitude", lambda value: float(np.max(np.abs(value.astype(np.float64))))),
        "zeros": ("the number of zeros", lambda value: float(np.sum(value == 0))),
    }
    both = [*ours, *others]
    if all(value.size for value in both):
        finite = all(bool(np.isfinite(value).all()) for value in both)
        for kind, (said, measure) in measures.items():
            if finite or kind == "zeros":
                yield from _threshold(name, kind, said, [*map(measure, ours)], [*map(measure, others)])
    flags: dict[str, tuple[str, Callable[[NDArray[Any]], bool]]] = {
        "nan": ("a NaN", lambda value: bool(np.isnan(value).any())),
        "inf": ("an infinite element", lambda value: bool(np.isinf(value).any())),
        "negative": ("a negative element", lambda value: bool((value < 0).any())),
    }
    for kind, (what, test) in flags.items():
        yield from _flag(name, kind, f"{what} in '{name}'", [*map(test, ours)], [*map(test, others)])
    if ours[0].dtype.kind in "iu":
        tokens = np.unique(np.concatenate([np.unique(value) for value in ours]))[:MOST_TOKENS]
        for token in tokens:
            has = [[bool((value == token).any()) for value in side] for side in (ours, others)]
            yield from _flag(name, "token", f"{token} in '{name}'", *has)


def _of_shapes(name: str, ours: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]]) -> Iterator[Property]:
    for axis in range(min(value.ndim for value in (*ours, *others))):
        sizes = [[float(value.shape[axis]) for value in side] for side in (ours, others)]
        yield from _threshold(name, "length", f"dimension {axis}", *sizes)


def _flag(name: str, kind: str, said: str, ours: Sequence[bool], others: Sequence[bool]) -> Iterator[Property]:
    bad, good = sum(ours), sum(others)
    if 0 < bad + good < len(ours) + len(others):
        yield Property(said, name, kind, bad, good, fisher(bad, len(ours), good, len(others)))


def _threshold(name: str, kind: str, said: str, ours: Sequence[float], others: Sequence[float]) -> Iterator[Property]:
    """The bound, from above or from below, that separates best."""
    levels = sorted({*ours, *others})
    best: Property | None = None
    for below, above in pairwise(levels):
        for high in (True, False):
            bound = above if high else below
            bad, good = (
                sum((value >= bound) if high else (value <= bound) for value in side) for side in (ours, others)
            )
            if bad * len(others) < good * len(ours):
                continue
            chance = fisher(bad, len(ours), good, len(others))
            words = f"{said} of '{name}' is {bound:g} or {'more' if high else 'less'}"
            found = Property(words, name, kind, bad, good, chance, len(levels) - 1)
            if best is None or (found.chance, -found.failing) < (best.chance, -best.failing):
                best = found
    if best is not None and not math.isnan(best.chance):
        yield best
