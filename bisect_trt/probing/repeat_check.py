"""A check of builds or runs of the same model, one after the other: each leaves what it chose and what it built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.engine_check import EngineCheck
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.shelf import ENGINE, EveryEngine
from bisect_trt.probing.workers.process import Cancel
from bisect_trt.probing.workspace import CandidateFiles
from bisect_trt.targets.settings import TargetSettings


@dataclass(frozen=True)
class RepeatCheck:
    """Has each candidate built by itself, or all run on one build.

    Attributes:
        inner: What says good or bad.
        target: What builds.
        shared: The folder of the one build that is run again and again; ``None`` for a build each time.
    """

    inner: BuiltinCheck | EngineCheck
    target: TargetSettings
    shared: Path | None = None

    @classmethod
    def of(cls, check: BuiltinCheck | EngineCheck, shared: Path | None) -> RepeatCheck:
        """The same check, told to keep what is built."""
        target, every = check.target, EveryEngine()
        if isinstance(check, EngineCheck):
            return cls(replace(check, shelf=every), target, shared)
        shelf = every if target.target.engines is not None and shared is None else None
        return cls(replace(check, layers=True, same=shared is not None, shelf=shelf), target, shared)

    @property
    def finds_weights(self) -> bool:
        """Whether it needs no copy of weights in files of their own."""
        return bool(getattr(self.inner, "finds_weights", False))

    @property
    def parallel(self) -> bool:
        """Whether several may run at a time."""
        return self.inner.parallel and self.shared is None

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        """Probe one repetition.

        Raises:
            UsageError: As the check.
            UnavailableError: The same.
        """
        target = files.target or self.target
        folder = files.folder if self.shared is None else self.shared
        target = target.target.recording(target, folder)
        engines = target.target.engines
        if self.shared is None or engines is None:
            return self.inner.run(replace(files, target=target), cancel)
        folder.mkdir(parents=True, exist_ok=True)
        engine = folder / ENGINE
        if engine.is_file():
            return self.inner.run(replace(files, engine=engine, target=target), cancel)
        outcome = self.inner.run(replace(files, target=engines.save(target, engine)), cancel)
        built = files.folder / ENGINE
        if built.is_file() and not engine.exists():  # a check command is given it there
            built.rename(engine)
        return outcome
