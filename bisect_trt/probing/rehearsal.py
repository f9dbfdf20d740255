"""A story told ahead: what it asks is begun, and nothing is written of its answers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.journal import Journal, Record
from bisect_trt.probing.ledger import Budget, Ledger
from bisect_trt.probing.meanwhile import Moot
from bisect_trt.probing.outcome import COMPARED
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.workers.process import Cancel


class Rehearsal(Prober):
    """Answers a story that is likely to be told, in a thread of its own, by what another prober begins beside what it is asked.

    The story is judged as if the first failure that it meets were the original's, which nobody knows yet.
    """

    def __init__(self, real: Prober, cancel: Cancel) -> None:
        """``real`` is who will be asked in earnest; ``cancel`` ends the story."""
        super().__init__(real.runner, Ledger(_Nowhere(), _Nobody(), Budget()))
        self._real = real
        self._cancel = cancel

    def probe(self, candidate: Candidate, *, again: bool = False) -> Record:
        """Probe one candidate ahead.

        Raises:
            Moot: Nobody will ask, or somebody has; or it is not known what the target makes of it.
        """
        identity = self.ledger.once_more(candidate.identity) if again else candidate.identity
        begun = self._real.beside.probe(candidate, identity, self._cancel)
        outcome = begun.result() if isinstance(begun, Future) else begun
        if self._cancel.is_set or outcome.ending not in COMPARED:
            raise Moot
        self.ledger.end(identity, outcome)
        return self.ledger.decide(identity, outcome)


class _Nobody:
    """Is told of what is only likely."""

    def probed(self, record: Record) -> None:
        """It may never be asked."""


class _Nowhere(Journal):
    """Where it is written down."""

    def __init__(self) -> None:
        self.outcomes, self.unfinished = {}, {}

    def _append(self, entry: dict[str, Any], *, forced: bool = False) -> None:
        pass
