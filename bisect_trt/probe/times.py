"""Where the time goes: seconds by what they are spent on.

What a thread does is put down in the account that is open in it, each second once: a part within another is time of the inner
one. A worker process has an account for each request, and sends it along with its reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PARTS = {
    "start": "until the model is read, from the beginning of the process",
    "reference": "running models on the reference",
    "cutting": "making candidates",
    "writing": "writing them and their values to files",
    "building": "loading them into the target, which may build an engine",
    "running": "running them, or the check command",
    "comparing": "holding what they make against the reference",
    "waiting": "for processes to start, for room in memory, for replies, for an answer at a prompt",
    "other": "the search itself, the journal, the report",
}
"""What time is spent on. ``other`` is what is left of a whole run."""

Spent = dict[str, float]
"""Seconds by part."""


class _Thread(threading.local):
    """What is open in a thread: accounts, the innermost last, and when the parts within that were begun or gone on with."""

    def __init__(self) -> None:
        self.accounts: list[Spent] = []
        self.parts: list[tuple[str, float]] = []


_here = _Thread()
_lock = threading.Lock()


@contextmanager
def account(into: Spent | None = None) -> Iterator[Spent]:
    """Open an account; what this thread does until its end is put down there and not in the account before.

    Args:
        into: Another account, which gets all of it in the end; it may be another thread's.
    """
    spent: Spent = {}
    before, _here.parts = _here.parts, []
    _here.accounts.append(spent)
    try:
        yield spent
    finally:
        _here.accounts.pop()
        _here.parts = before
        if into is not None:
            _add(into, spent)


def current() -> Spent:
    """The account that is open in this thread; one that nobody reads if there is none."""
    return _here.accounts[-1] if _here.accounts else {}


@contextmanager
def spending(part: str) -> Iterator[Callable[[], float]]:
    """Whatever is done meanwhile is this part, but for parts within it; gives a function for the seconds since it began."""
    began = now = time.monotonic()
    _put_down(now)
    _here.parts.append((part, now))
    try:
        yield lambda: time.monotonic() - began
    finally:
        now = time.monotonic()
        _put_down(now)
        _here.parts.pop()
        if _here.parts:
            _here.parts[-1] = _here.parts[-1][0], now


def _put_down(now: float) -> None:
    """What the innermost part has taken since it was begun or gone on with."""
    if _here.parts and _here.accounts:
        part, since = _here.parts[-1]
        _add(_here.accounts[-1], {part: now - since})


def _add(account: Spent, spent: Mapping[str, float]) -> None:
    with _lock:
        for part, seconds in spent.items():
            account[part] = account.get(part, 0.0) + seconds


@contextmanager
def asking() -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Another process is asked; gives a function for what it says it spent. The rest is waiting.

    Within a part, such as the reference run, all of it is that part.
    """
    began = time.monotonic()
    told: Spent = {}
    try:
        yield told.update
    finally:
        if not _here.parts and _here.accounts:
            waited = max(time.monotonic() - began - sum(told.values()), 0.0)
            _add(_here.accounts[-1], {**told, "waiting": waited})


def whole(spent: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Every part of a run that took so many seconds, ``other`` too; probes beside each other make more of it than there was."""
    left = max(seconds - sum(spent.values()), 0.0)
    return {part: round(spent.get(part, 0.0) if part != "other" else left, 4) for part in PARTS}
