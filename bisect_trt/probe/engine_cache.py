"""The engines of candidates that passed."""

from __future__ import annotations

import threading
from pathlib import Path

from bisect_trt.probe.workspace import CandidateFiles

ENGINE = "model.engine"
"""A candidate's engine, in its folder."""


class EngineCache:
    """Keeps the engine of the candidate that passed with the fewest nodes in fp32; all engines would fill the disk."""

    def __init__(self) -> None:
        """None was kept yet."""
        self._lock = threading.Lock()
        self._best: tuple[int, Path] | None = None

    def clear(self) -> None:
        """Remove the engine: the next one is of another set of nodes, which may be larger."""
        with self._lock:
            if self._best is not None:
                self._best[1].unlink(missing_ok=True)
            self._best = None

    def offer(self, files: CandidateFiles, *, passed: bool) -> None:
        """Keep a candidate's engine in its folder, or remove it."""
        engine = files.folder / ENGINE
        count = len(files.keep or ())
        with self._lock:
            best = self._best
            # An engine is as large as the model's weights, so only the best one stays.
            if not passed or (best is not None and best[0] <= count and best[1] != engine):
                engine.unlink(missing_ok=True)
                return
            if best is not None and best[1] != engine:
                best[1].unlink(missing_ok=True)
            self._best = count, engine
