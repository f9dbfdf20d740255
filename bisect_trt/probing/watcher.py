"""Who looks on while a search runs, and how a search keeps them informed."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from bisect_trt.search.forecast import Forecast, forecast, smallest_seen
from bisect_trt.search.oracle import Question, Search, Subset, Units, Verdict

MOST_AHEAD = 200
"""Past so many questions an estimate says "more than"."""
_SHARE = 0.05
"""Looking ahead may take this share of a search's time."""


@dataclass(frozen=True)
class Ahead:
    """What lies ahead of a search, in words and numbers.

    Attributes:
        left: About how many more probes it needs.
        capped: Whether it is more than that.
        best: The smallest candidate of the kind that is looked for, in a few words.
        among: Of how many units the next one that is needed is one.
    """

    left: int
    capped: bool = False
    best: str | None = None
    among: int = 0


class Watcher:
    """Is told what goes on between verdicts. This one does not care.

    Attributes:
        wants_estimates: Whether to look ahead for it.
    """

    wants_estimates = False

    def started(self, key: str, title: str) -> None:
        """A probe runs from now on."""

    def ended(self, key: str) -> None:
        """It does not any more."""

    def wasted(self, number: int) -> None:
        """So many parallel probes were ended because nobody needed their answers."""

    def measured(self, failures: int, runs: int, passes_needed: int) -> None:
        """How often the original fails, and how often a candidate has to pass."""

    def estimated(self, ahead: Ahead | None) -> None:
        """What lies ahead of the search; ``None`` when it has ended."""

    def asking(self) -> AbstractContextManager[None]:
        """Keeps off the terminal while the user is asked there."""
        return nullcontext()


class Lookout:
    """Looks ahead of one search for a watcher, if it wants that."""

    def __init__(self, watcher: Watcher, search: Search[object]) -> None:
        """``watcher`` is told what lies ahead of ``search``."""
        self._watcher = watcher
        self._search = search
        self._known: dict[Question, Verdict] = {}
        self._titles: dict[Question, str] = {}
        self._last: Ahead | None = None
        self._began = time.monotonic()
        self._spent = 0.0

    def look(self) -> None:
        """Tell what lies ahead."""
        if not self._watcher.wants_estimates:
            return
        began = time.thread_time()  # what else the machine does counts for nothing
        if self._last is not None and self._spent > _SHARE * (time.monotonic() - self._began):
            # Too dear for now: one less than before is a good guess.
            best = self._title(smallest_seen(self._search, self._known))
            self._last = replace(self._last, left=max(self._last.left - 1, 1), best=best)
        else:
            self._last = self._in_words(forecast(self._search, self._known, MOST_AHEAD))
            self._spent += time.thread_time() - began
        self._watcher.estimated(self._last)

    def heard(self, question: Question, verdict: Verdict, title: str) -> None:
        """The search was given an answer."""
        self._known[question] = verdict
        self._titles[question] = title
        self.look()

    def end(self) -> None:
        """The search has its answer."""
        self._watcher.estimated(None)

    def _in_words(self, seen: Forecast) -> Ahead:
        return Ahead(seen.left, seen.capped, self._title(seen.best), seen.among)

    def _title(self, units: Subset | None) -> str | None:
        return None if units is None else self._titles[Units(units)]
