"""What a run looks like from outside, while it runs or after: read from its folder and nothing else."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_trt.errors import BisectError, UnavailableError
from bisect_trt.graph.load import load_model
from bisect_trt.probing.journal import JOURNAL
from bisect_trt.probing.workspace import KEY_LENGTH
from bisect_trt.reporting.html.runs import RunView
from bisect_trt.reporting.result import RESULT_FILE, read_result
from bisect_trt.workflows.binding import CALL_FILE, RUN_FILE, Binding
from bisect_trt.workflows.log import read_probes

_CUT = " units"
"""In the title of a candidate that the whole model was cut down to, and of no other."""
_LATE = 1.0
"""Seconds by which the journal is newer than the result of a run that goes on again."""


class Runs:
    """The runs of a folder, or one run; what was read of each is kept until its files change."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is a run's own, or holds runs.

        Raises:
            UnavailableError: It is neither.
        """
        self._folder = folder
        self._kept: dict[str, tuple[tuple[int, ...], RunView]] = {}
        self._names: dict[Path, tuple[tuple[str, tuple[str, ...]], ...]] = {}
        if not folder.is_dir():
            raise UnavailableError(f"{folder} is no folder; give that of a run, or one that holds runs.")

    def folders(self) -> dict[str, Path]:
        """Each run's folder by its name, the newest first."""
        found = [self._folder] if _is_run(self._folder) else [f for f in self._folder.iterdir() if _is_run(f)]
        found.sort(key=lambda folder: (_times(folder), folder.name), reverse=True)
        return {folder.resolve().name: folder for folder in found}

    def all(self) -> list[RunView]:
        """Every run that can be read, the newest first."""
        views = []
        for name in self.folders():
            with contextlib.suppress(BisectError, OSError):  # it is being written, or is damaged: the others are there
                views.append(self.read(name, nodes=False))
        return views

    def read(self, name: str, *, nodes: bool = True) -> RunView:
        """One run.

        Args:
            name: One of :meth:`folders`.
            nodes: Whether to read the model and the best candidate too.

        Raises:
            UnavailableError: There is no such run, or it is damaged.
        """
        folder = self.folders().get(name)
        if folder is None:
            raise UnavailableError(f"there is no run {name} in {self._folder}.")
        state, key = (*_times(folder), int(nodes)), f"{name}:{nodes}"
        if key not in self._kept or self._kept[key][0] != state:
            self._kept[key] = state, self._read(folder, nodes)
        return self._kept[key][1]

    def _read(self, folder: Path, nodes: bool) -> RunView:
        called = (folder / CALL_FILE).exists()
        binding = Binding.read(folder, CALL_FILE if called else RUN_FILE)
        command, *words = binding.argv or ("",)
        probes, unfinished = read_probes(folder)
        result = _result(folder)
        cut = [probe for probe in probes if probe["verdict"] == "FAIL" and _CUT in probe["title"]]
        best = min(cut, key=lambda probe: probe["size"], default=None)
        return RunView(
            name=folder.resolve().name,
            words=f"bisect_trt.{command}({', '.join(words)})" if called else f"bisect-trt {shlex.join(binding.argv)}",
            command=command,
            began=(folder / (CALL_FILE if called else RUN_FILE)).stat().st_mtime,
            touched=max(path.stat().st_mtime for path in _files(folder)),
            result=result,
            probes=probes,
            running=[str(entry["title"]) for entry in unfinished],
            best=best,
            nodes=self._states(folder, binding, best, result) if nodes else (),
        )

    def _states(
        self, folder: Path, binding: Binding, best: Mapping[str, Any] | None, result: Mapping[str, Any] | None
    ) -> Sequence[tuple[str, str]]:
        """Name and state of each node of the model; none where it is not there any more."""
        models = [Path(binding.cwd) / path for path in binding.files if path.endswith(".onnx")]
        every = self._outputs(models[0]) if models else ()
        culprits = {out for node in (result or {}).get("culprits") or () for out in node["outputs"]}
        kept = {out for node in (result or {}).get("keep_fp32") or () for out in node["outputs"]}
        within: set[str] | None = None
        if best is not None:
            candidate = folder / "candidates" / str(best["key"])[:KEY_LENGTH]
            inner = candidate / "model.onnx"
            read = self._outputs(inner if inner.exists() else candidate.with_suffix(".onnx"))
            within = {out for _, outputs in read for out in outputs} or None

        def state(outputs: tuple[str, ...]) -> str:
            if culprits.intersection(outputs):
                return "culprit"
            if kept.intersection(outputs):
                return "kept"
            if culprits:
                return "out"
            if within is None:
                return "unknown"
            return "best" if within.intersection(outputs) else "out"

        return [(name, state(outputs)) for name, outputs in every]

    def _outputs(self, path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Name and outputs of a model's nodes, read once; candidates never change, and the model is the run's."""
        if path not in self._names:
            try:
                model = load_model(path, structure=True)
            except (BisectError, OSError):
                return ()
            self._names[path] = tuple((node.name or node.output[0], tuple(node.output)) for node in model.graph.node)
        return self._names[path]


def _is_run(folder: Path) -> bool:
    return (folder / RUN_FILE).exists() or (folder / CALL_FILE).exists()


def _files(folder: Path) -> list[Path]:
    return [path for name in (RUN_FILE, CALL_FILE, JOURNAL, RESULT_FILE) if (path := folder / name).exists()]


def _times(folder: Path) -> tuple[int, ...]:
    """When its files were written, that of the start first."""
    return tuple(path.stat().st_mtime_ns for path in _files(folder))


def _result(folder: Path) -> dict[str, Any] | None:
    """How it ended; ``None`` while it runs, and while it goes on again after it had ended early."""
    file, journal = folder / RESULT_FILE, folder / JOURNAL
    if not file.exists():
        return None
    if journal.exists() and journal.stat().st_mtime > file.stat().st_mtime + _LATE:
        return None
    return read_result(folder)


def now() -> float:
    """Seconds since the epoch, as the files' times are."""
    return time.time()
