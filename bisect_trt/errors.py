"""Every way a run ends early, with its exit status.

The statuses are a promise to scripts (docs/json.md, "Exit status"). No traceback reaches a user unless ``-vv``: the command
line prints the message of a :class:`BisectError`, which names the thing, the reason and the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitStatus(IntEnum):
    """Process exit statuses."""

    OK = 0
    """The search ended with a proven answer; for ``run``: everything matched."""
    NOT_REPRODUCED = 1
    """The failure does not reproduce; for ``run``: something did not match."""
    USAGE = 2
    """The command line, or a file it names, is wrong."""
    UNPROVEN = 3
    """Ended without proof: flaky, budget spent, the final re-check disagreed. The best so far is saved."""
    UNAVAILABLE = 4
    """Something needed is not there: no TensorRT, no GPU, an unreadable model."""
    INTERRUPTED = 130
    """Ctrl-C; resumable."""


class BisectError(Exception):
    """An ending with a clear sentence for the user."""

    status = ExitStatus.UNPROVEN


class UsageError(BisectError):
    """What the user asked for cannot be done as asked."""

    status = ExitStatus.USAGE


class UnavailableError(BisectError):
    """Something the run needs is missing or unreadable."""

    status = ExitStatus.UNAVAILABLE


def quoted(names: Iterable[str], limit: int = 20) -> str:
    """Names for a message, the first few of them where there are many."""
    return first_few([f"'{name}'" for name in names], limit) or "none"


def first_few(words: Sequence[str], limit: int) -> str:
    """The first words, and how many more there are, on one line."""
    return ", ".join(words[:limit]) + (f" and {len(words) - limit} more" if len(words) > limit else "")
