"""Searches whose candidates are tiny models, and whose check runs in this process and ends whenever it likes."""

from __future__ import annotations

import json
import os
import random
import select
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper

from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.check import Check
from bisect_trt.probe.ledger import Ledger, Record, Watcher
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.search.oracle import Ask, Minimum, Mode, Subset, Verdict, over_units
from bisect_trt.search.strategy import minimise
from bisect_trt.worker.process import Cancel
from bisect_trt.worker.protocol import CANCELLED

Predicate = Callable[[Subset], Verdict]


def needs(culprits: Iterable[int]) -> Predicate:
    """Fails where all of some units are there."""
    wanted = frozenset(culprits)
    return lambda units: Verdict.FAIL if wanted <= units else Verdict.PASS


@st.composite
def culprits_among(
    draw: st.DrawFn, least: int = 1, count: int = 300, most: int = 6
) -> tuple[int, Subset]:
    """A number of units, and some of them."""
    units = draw(st.integers(least, count))
    return units, draw(st.frozensets(st.integers(0, units - 1), min_size=1, max_size=most))


Algorithm = Callable[[Ask], Minimum]
ORIGINAL_SIGNATURE = "wrong"
_OUTCOMES = {
    Verdict.FAIL: Outcome(Ending.FAILED, ORIGINAL_SIGNATURE, "it fails"),
    Verdict.PASS: Outcome(Ending.PASSED, "pass", "it passes"),
    Verdict.UNRESOLVED: Outcome(Ending.OTHER, "other", "it breaks in another way"),
}


def build(units: Iterable[int]) -> Candidate:
    """A model that says which units it has."""
    chosen = frozenset(units)
    proto = onnx.ModelProto(ir_version=8, graph=onnx.GraphProto(name="test"))
    helper.set_model_props(proto, {"units": json.dumps(sorted(chosen))})
    return Candidate(proto, (), (), f"{len(chosen)} units", chosen)


def units_of(files: CandidateFiles) -> Subset:
    """The units that a written candidate has."""
    (entry,) = onnx.load(str(files.model)).metadata_props
    return frozenset(json.loads(entry.value))


def scratch() -> TemporaryDirectory[str]:
    """An empty folder in memory where there is such a place: these runs do nothing but write small files."""
    return TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


class NoActivations:
    """Nothing is fed to these models."""

    more = ()
    refused = None

    def select(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        assert not names
        return {}


class FakeCheck(Check):
    """Answers from a predicate, after a random time if a seed is given.

    Attributes:
        ended: How often it came to its end on each set of units.
        running: How many are running now.
        most: How many ran at a time at most.
    """

    parallel = True
    runs_user_code = False

    def __init__(self, predicate: Predicate, seed: int | None = None) -> None:
        self.ended: Counter[Subset] = Counter()
        self.running = self.most = 0
        self._predicate = predicate
        self._seed = seed
        self._lock = threading.Lock()

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        units = units_of(files)
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            if self._seed is not None and cancel is not None:
                # Drawn for each candidate alone, so that the threads' order has no say; half of
                # them take no time.
                delay = random.Random(f"{self._seed} {sorted(units)}").uniform(-1, 1) / 1000
                if select.select([cancel.read_fd], [], [], max(delay, 0))[0]:
                    return Outcome(Ending.SKIPPED, CANCELLED, "its answer was not needed any more")
            outcome = _OUTCOMES[self._predicate(units)]
        finally:
            with self._lock:
                self.running -= 1
        with self._lock:
            self.ended[units] += 1
        return outcome


class Listening(Watcher):
    """Keeps the records that it is told, and may end the run like a kill would, after one of them."""

    def __init__(self, killed_after: int | None = None) -> None:
        self.records: list[Record] = []
        self._killed_after = killed_after

    def probed(self, record: Record) -> None:
        self.records.append(record)
        if record.number == self._killed_after:
            raise Killed


class Killed(BaseException):
    """Stands for the end of the driver."""


class FakeRun:
    """A session of a run in a folder; a context manager that closes its journal.

    Attributes:
        check: What it asks.
        prober: Who asks.
        ledger: What is known.
        told: The records.
    """

    def __init__(
        self,
        folder: Path,
        check: FakeCheck,
        workers: int = 1,
        *,
        killed_after: int | None = None,
    ) -> None:
        self.check = check
        workspace = Workspace(folder)
        self.told = Listening(killed_after)
        self.ledger = Ledger(folder, describe_outcome, [self.told])
        self.prober = Prober(check, workspace, NoActivations(), self.ledger, workers)

    def __enter__(self) -> FakeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    def reduce(
        self, count: int, algorithm: Algorithm, repeat: int = 1, *, rest: bool = False
    ) -> Minimum:
        """Probe the original of so many units, then search, as ``reduce`` does; then the rest, if wanted."""
        whole = frozenset(range(count))
        original = build(range(count))
        if repeat > 1:
            self.prober.probe_original(original, repeat=repeat, units=count)
        search = over_units(algorithm)
        minimum = self.prober.search_from(original, search, build)
        if rest:
            self.prober.probe(build(whole - minimum.units))
        return minimum


def decisions(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """All that is recorded of probes but the times they took."""
    return [
        (r.number, r.key, r.title, r.size, r.verdict, r.signature, r.reason, r.runs)
        for r in records
    ]


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    """The entries of one kind in a run's journal, without their checksums."""
    lines = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    return [
        {name: entry[name] for name in entry if name != "crc32"}
        for entry in lines
        if entry["event"] == event
    ]


@dataclass(frozen=True)
class Case:
    """A search to be made.

    Attributes:
        count: How many units.
        predicate: What a check says of them.
        algorithm: The search.
    """

    count: int
    predicate: Predicate
    algorithm: Algorithm


@st.composite
def cases(draw: st.DrawFn, most: int = 40) -> Case:
    """Units of a random graph, some of which cannot be cut from their parents, and a failure that they show.

    More units may make the failure vanish again, and units break without others.
    """
    count = draw(st.integers(2, most))
    unit = st.integers(0, count - 1)
    some = st.frozensets(unit, min_size=1, max_size=4)
    tied = dict(draw(st.lists(st.tuples(unit, unit), max_size=3)))
    parents = {child: parent for child, parent in tied.items() if parent < child}
    causes = draw(st.lists(some, min_size=1, max_size=3))
    cures = draw(st.lists(some, max_size=3))
    breaks = draw(st.lists(st.tuples(unit, unit), max_size=4))

    def predicate(chosen: Subset) -> Verdict:
        if len(chosen) == count:
            return Verdict.FAIL
        if any((one in chosen) != (other in chosen) for one, other in breaks):
            return Verdict.UNRESOLVED
        caused = any(cause <= chosen for cause in causes)
        return (
            Verdict.FAIL if caused and not any(cure <= chosen for cure in cures) else Verdict.PASS
        )

    def with_parents(chosen: Subset) -> Subset:
        closed = set(chosen)
        for child in sorted(parents, reverse=True):
            if child in closed:
                closed.add(parents[child])
        return frozenset(closed)

    mode = draw(st.sampled_from(Mode))

    def algorithm(ask: Ask) -> Minimum:
        return minimise(range(count), ask, mode, inseparable=with_parents)

    return Case(count, predicate, algorithm)
