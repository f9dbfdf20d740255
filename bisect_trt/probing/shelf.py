"""Engines of candidates that passed: the best so far is kept, because building it again gives another one."""

from __future__ import annotations

import threading
from pathlib import Path

from bisect_trt.probing.workspace import CandidateFiles

ENGINE = "model.engine"
"""A candidate's engine, in its folder."""


class EngineShelf:
    """Holds the engine of the candidate that passed with the fewest nodes in fp32; each one's would fill the disk."""

    def __init__(self) -> None:
        """Nothing has passed yet."""
        self._lock = threading.Lock()
        self._best: tuple[int, Path] | None = None

    def clear(self) -> None:
        """Take the engine away: from here on it is about another set of nodes, which may be larger."""
        with self._lock:
            if self._best is not None:
                self._best[1].unlink(missing_ok=True)
            self._best = None

    def offer(self, files: CandidateFiles, *, passed: bool) -> None:
        """Keep a candidate's engine in its folder, or take it away."""
        engine, count = files.folder / ENGINE, len(files.keep or ())
        with self._lock:
            if not passed or (self._best is not None and self._best[0] <= count and self._best[1] != engine):
                engine.unlink(missing_ok=True)
                return
            if self._best is not None and self._best[1] != engine:
                self._best[1].unlink(missing_ok=True)
            self._best = count, engine


class EveryEngine(EngineShelf):
    """Keeps them all: each build is another one, and they are to be held against each other."""

    def offer(self, files: CandidateFiles, *, passed: bool) -> None:
        """Leave it where it is."""
