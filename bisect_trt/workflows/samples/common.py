"""What the samples that fail have in common, and those that pass have not.

Each property divides the samples in two, as a bound on a number does. How likely one divides those that fail from those that
pass so well by chance is Fisher's exact test, corrected by Holm for all divisions that were looked at, each once however many
properties make it. What is looked at beside (:mod:`bisect_trt.workflows.samples.properties`) is a family of its own, so that it
costs what is looked at first no more than a factor of two: each has half of the error that is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bisect_trt.search.exact import fisher, holm
from bisect_trt.workflows.samples.properties import Looked, Values, look

SHOWN = 10
SURE = 0.05
_MOST_BOUNDS = 64
"""Of a number that takes more values, so many bounds are tried, evenly spread among them, and those around what fails.

As the latter go by which samples fail, all bounds that there are count as looked at.
"""


@dataclass(frozen=True)
class _Property:
    """A division of the samples, and what makes it."""

    said: str
    looked: Looked
    mask: int
    chance: float


def find_common(failing: Sequence[Values], passing: Sequence[Values]) -> list[dict[str, Any]]:
    """The properties that set the failing samples apart, the surest first; there are some of both kinds.

    Returns:
        Of each ``property``, ``input``, ``kind``, ``failing`` and ``passing`` (``[with it, of]``), ``p_value``, ``p_corrected``,
        ``sure`` if that is at most 0.05, ``separates`` if all that fail have it and none that passes, and what ``also`` divides
        the samples so.
    """
    bads, goods = len(failing), len(passing)
    everything = (1 << (bads + goods)) - 1
    ours = (1 << bads) - 1

    @cache
    def chance(bad: int, having: int) -> float:
        return fisher(bad, bads, having - bad, goods)

    families: dict[bool, dict[int, float]] = {False: {}, True: {}}
    passed_over = {False: 0, True: 0}
    found: list[_Property] = []
    for looked in sorted(look([*failing, *passing]), key=lambda each: each.more):
        best: _Property | None = None
        levels = sorted(set(looked.values))
        bounds = _bounds(looked, levels, bads)
        passed_over[looked.more] += len(levels) - 1 - len(bounds)
        for mask, said in _divisions(looked, levels, bounds):
            bad, having = (mask & ours).bit_count(), mask.bit_count()
            key = min(mask, everything ^ mask)
            if not (looked.more and key in families[False]):
                families[looked.more].setdefault(key, chance(bad, having))
            if bad * goods < (having - bad) * bads:
                continue  # it is those that pass which have it
            here = _Property(said, looked, mask, chance(bad, having))
            if best is None or (here.chance, -bad) < (best.chance, -(best.mask & ours).bit_count()):
                best = here
        if best is not None:
            found.append(best)
    corrected: dict[int, float] = {}
    for more in (True, False):
        family, share = families[more], 2 if all(families.values()) else 1
        chances = holm([*family.values(), *[1.0] * passed_over[more]])[: len(family)]
        corrected |= zip(family, (min(1.0, share * each) for each in chances), strict=True)
    entries = []
    for each, also in _told_once(found):
        bad = (each.mask & ours).bit_count()
        good = each.mask.bit_count() - bad
        sure = corrected[min(each.mask, everything ^ each.mask)]
        entries.append(
            {
                "property": each.said,
                "input": each.looked.input,
                "kind": each.looked.kind,
                "failing": [bad, bads],
                "passing": [good, goods],
                "p_value": each.chance,
                "p_corrected": sure,
                "sure": sure <= SURE,
                "separates": bad == bads and good == 0,
                "also": also,
            }
        )
    told = [entry for entry in entries if entry["separates"] or entry["sure"]]
    return sorted(told, key=lambda entry: (entry["p_value"], not entry["separates"]))[:SHOWN]


def _told_once(found: Sequence[_Property]) -> list[tuple[_Property, list[dict[str, str]]]]:
    """Each with what is looked at beside and divides the samples in the same way."""
    also: dict[int, list[dict[str, str]]] = {}
    first: list[_Property] = []
    for each in found:
        if each.looked.more and each.mask in also:
            also[each.mask].append({"property": each.said, "kind": each.looked.kind})
        else:
            also.setdefault(each.mask, [])
            first.append(each)
    return [(each, also[each.mask]) for each in first]


def _bounds(looked: Looked, levels: Sequence[float], bads: int) -> list[int]:
    """The levels at which a number is divided; those that fail come first among its values."""
    steps = range(1, len(levels))
    if looked.flag or len(steps) <= _MOST_BOUNDS:
        return [*steps]
    around = {levels.index(min(looked.values[:bads])), levels.index(max(looked.values[:bads])) + 1}
    return sorted({*steps[:: len(steps) // _MOST_BOUNDS], *around.intersection(steps)})


def _divisions(looked: Looked, levels: Sequence[float], bounds: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The samples that have a property, a bit for each, and the property in words; from above and from below for a number."""
    if looked.flag:
        if len(levels) > 1:
            yield _mask(looked, above=1), looked.said
        return
    for place in bounds:
        mask = _mask(looked, above=levels[place])
        yield mask, f"{looked.said} is {levels[place]:g} or more"
        yield ((1 << len(looked.values)) - 1) ^ mask, f"{looked.said} is {levels[place - 1]:g} or less"


def _mask(looked: Looked, above: float) -> int:
    return int.from_bytes(np.packbits(np.asarray(looked.values) >= above, bitorder="little").tobytes(), "little")
