"""The end of the time that a run may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bisect_trt.errors import BisectError

_SAVING_SECONDS = 30.0
"""The time for saving what is known once the deadline has passed."""


class BudgetSpent(BisectError):  # noqa: N818 - an ending, not an error
    """No more probes may be made."""

    code = "BT3002"
    remedy = "Resume the run, or start it with a larger budget."


class Deadline:
    """The deadline of a run (``--max-time``), which every request to a worker and every loop of probes keeps to."""

    def __init__(self, seconds: float | None = None) -> None:
        """The time begins now; ``None`` is no limit."""
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def seconds_left(self) -> float | None:
        """Seconds left; ``None`` without a limit."""
        return (
            None
            if self._end is None
            else min(max(self._end - time.monotonic(), 0), threading.TIMEOUT_MAX)
        )

    def check(self) -> None:
        """Refuse to begin anything else.

        Raises:
            BudgetSpent: It has passed.
        """
        if self._end is not None and time.monotonic() >= self._end:
            raise BudgetSpent(f"the budget is spent (--max-time {self._seconds:g}).")

    @contextmanager
    def extended(self) -> Iterator[None]:
        """Give the saving of what is known so far a little more time."""
        before = self._end
        if before is not None:
            self._end = max(before, time.monotonic() + _SAVING_SECONDS)
        try:
            yield
        finally:
            self._end = before
