"""The three things a check can say of a candidate."""

from __future__ import annotations

from enum import Enum


class Verdict(str, Enum):
    """What a probe says. Three values, never a bool: a candidate that broke in another way proves nothing."""

    FAIL = "FAIL"
    """It shows the failure that is being looked for."""
    PASS = "PASS"
    """It does not."""
    UNRESOLVED = "UNRESOLVED"
    """It broke in some other way, so it says nothing."""
