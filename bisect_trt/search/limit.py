"""An oracle that may be asked only so often."""

from __future__ import annotations

from bisect_trt.search.oracle import Ask, Subset, Verdict


class Enough(Exception):  # noqa: N818 - how a search that costs too much ends
    """It has asked as much as it may."""


class Limited:
    """An ``Ask`` that ends the search after a number of questions.

    Attributes:
        best: The smallest set that was seen to pass.
    """

    def __init__(self, ask: Ask, best: Subset, most: int | None) -> None:
        """``best`` is known to pass; ``most`` is the number of questions, if that is limited."""
        self.best = best
        self._ask = ask
        self._left = most

    def __call__(self, units: Subset) -> Verdict:
        """Ask.

        Raises:
            Enough: No more questions may be asked.
        """
        if self._left is not None:
            if self._left == 0:
                raise Enough
            self._left -= 1
        verdict = self._ask(units)
        if verdict is Verdict.PASS and len(units) < len(self.best):
            self.best = units
        return verdict
