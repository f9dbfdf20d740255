"""One reason to suspect a node, and how much it weighs."""

from __future__ import annotations

import math
from dataclasses import dataclass

BREAKS = 4.0
"""In low precision there will be an Inf, a NaN or a 0 in place of a divisor."""
INSIDE = 3.0
"""What the operator computes inside breaks, if it is computed in low precision there too."""
LOSES = 2.0
"""Most of the digits get lost."""
MAY = 1.0
"""Something is odd, and mostly harmless."""

FP16_MAX = 65504.0
FP16_TINY = 2.0**-24
"""The smallest fp16 number, 6e-8; what is under half of it becomes 0."""
FP16_NORMAL = 2.0**-14
"""Under this fp16 has fewer digits."""


@dataclass(frozen=True)
class Finding:
    """A reason to suspect a node.

    Attributes:
        score: How much it weighs: one of the bands above, and up to 1 more within the band.
        rule: The name of the rule that applies.
        reason: A sentence.
    """

    score: float
    rule: str
    reason: str


@dataclass(frozen=True)
class Suspect:
    """A unit that may need fp32.

    Attributes:
        unit: The unit.
        score: How suspicious it is; from ``BREAKS`` on it is known to give an Inf, a NaN or a 0.
        rule: The name of the strongest rule that applies.
        reason: The reason in words.
        more: What else was found, in words, strongest first.
    """

    unit: int
    score: float
    rule: str
    reason: str
    more: tuple[str, ...] = ()


def within(band: float, ratio: float) -> float:
    """The score of something that is so many times too large, or too small; nearly the same for nearly the same."""
    return round(band + min(math.log10(max(ratio, 1.0)) / 50, 0.9), 2)


def number(value: float) -> str:
    """A number for a sentence."""
    return f"{value:.6g}"
