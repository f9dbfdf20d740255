"""The record of a run: its journal on the disk, and in memory the outcomes by candidate and the decisions of the search."""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import structs

from bisect_trt.errors import OutputFileError, RunFolderError
from bisect_trt.probe.candidate import AGAIN, Identity
from bisect_trt.probe.outcome import BARE_EXIT, BROKEN_PREFIXES, Ending, Layer, Outcome, Reason
from bisect_trt.probe.verdict_cache import VerdictCache
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.comparison import strict_json, to_plain
from bisect_trt.tensors.files import open_inside
from bisect_trt.worker.deadline import BudgetSpent, Deadline

JOURNAL = "journal.jsonl"
_MOST_BYTES = 4 << 30
_LONGEST_LINE = 256 << 20
"""Bytes of a journal, and of one line, that are read."""
Key = Annotated[str, msgspec.Meta(pattern=r"\A[\w-]{1,200}\Z")]
"""The key of a candidate, which is part of a path."""
Number = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class Record(msgspec.Struct, frozen=True, tag_field="event", tag="verdict"):
    """One probe that the search asked for and was answered, with what its :class:`Outcome` says.

    Attributes:
        number: Its place in the order in which the search asked.
        key: The candidate's content; its first digits name its folder.
        title: What it is, in a few words.
        size: How many units.
        verdict: The verdict of the check.
    """

    number: Number
    key: Key
    title: str
    size: int
    verdict: Verdict
    signature: str
    reason: str
    tail: str
    seconds: float
    runs: int
    place: str | None = None

    @property
    def fails(self) -> bool:
        """Whether the verdict is ``FAIL``."""
        return self.verdict is Verdict.FAIL

    @property
    def passes(self) -> bool:
        """Whether the verdict is ``PASS``."""
        return self.verdict is Verdict.PASS

    @property
    def said(self) -> str:
        """The last line that a check command printed which failed by its exit status alone; else empty."""
        lines = self.tail.splitlines() if self.signature.startswith(BARE_EXIT) else []
        return lines[-1].strip() if lines else ""

    @property
    def message(self) -> str:
        """The last line that the check printed, else the reason."""
        return self.said or self.reason


class Started(msgspec.Struct, frozen=True, tag_field="event", tag="started"):
    """A probe is about to run."""

    key: Key
    title: str


class Moot(msgspec.Struct, frozen=True, tag_field="event", tag="moot"):
    """A probe has ended, and its answer was not needed any more."""

    key: Key


class Ended(msgspec.Struct, frozen=True, tag_field="event", tag="outcome"):
    """A probe has ended."""

    key: Key
    outcome: Outcome


class Undone(msgspec.Struct, frozen=True, tag_field="event", tag="undo"):
    """The last answer was taken back."""

    key: Key
    number: Number


Line = Started | Moot | Ended | Record | Undone
"""A line of the journal."""


class Watcher:
    """Observes probes as they happen; this one ignores them."""

    def probed(self, record: Record) -> None:
        """A probe has ended, and the search has taken its verdict in."""

    def running(self, run: int, runs: int) -> None:
        """The check of a candidate is about to run, for the ``run``-th time of at most ``runs``."""

    def asking(
        self,
        candidate: Identity,  # noqa: ARG002 - for those that show it
        answered: Sequence[Record],  # noqa: ARG002 - as above
    ) -> AbstractContextManager[None]:
        """Keeps off the terminal while the user is asked about a candidate there, after earlier answers."""
        return nullcontext()


class Ledger:
    """Remembers outcomes and records decisions.

    Three kinds of line in the journal make a probe: ``started`` before it starts, so that a check
    that takes the machine down is known afterwards; ``outcome`` when it has ended, in whatever
    order parallel probes end, or ``moot`` when its answer was not needed any more; ``verdict`` when
    the search has taken it in, in the order in which it asked, which is the same for any number of
    workers. ``undo`` takes the last answer back. Each line is written before the next thing
    happens.

    Attributes:
        records: Every probe taken in, in the order asked.
        passed: The candidates that passed.
        akin: Those that broke in another way, but in the function in which the original does.
        best: The smallest candidate that was seen to fail.
        cached: How many questions were answered from memory.
        original: The signature of the original model's failure, once it has been probed.
        severity: How severe that was, where it is known; what is much milder is another failure.
        apart: Whether each candidate is judged by itself: any failure counts, and none is the
            original's.
        unfinished: The entries of the probes that were running when an earlier session of the run
            ended, by candidate.
        describe: Returns an outcome in words, for people.
        watchers: Observe the probes, in this order.
    """

    def __init__(
        self,
        folder: Path,
        describe: Callable[[Outcome], str],
        watchers: Sequence[Watcher] = (),
        *,
        max_probes: int | None = None,
        deadline: Deadline | None = None,
        cache: VerdictCache | None = None,
    ) -> None:
        """Read what an earlier session of the run has learned; the budget is ``max_probes`` candidates until the ``deadline``.

        What is in the ``cache`` is not probed.

        Raises:
            UsageError: The journal cannot be written.
            UnavailableError: The journal is damaged.
        """
        self.describe = describe
        self.watchers = tuple(watchers)
        self.apart = False
        self._max_probes = max_probes
        self._deadline = deadline or Deadline()
        self._cache = cache
        self.restart()
        self._path = folder / JOURNAL
        self._turn = threading.Lock()
        self._outcomes, _, self.unfinished = read_probes(self._path)
        try:
            self._file = self._path.open("a+b")
            self._file.seek(0)
            # A last line that a crash cut short goes, or the next entry would become a part of it.
            self._file.truncate(self._file.read().rfind(b"\n") + 1)
        except OSError as error:
            raise OutputFileError(
                f"the journal {self._path} cannot be written: {error.strerror}."
            ) from error

    def restart(self) -> None:
        """Start the story over; what is known stays known."""
        self.records: list[Record] = []
        self.passed: list[Identity] = []
        self.akin: list[Identity] = []
        self.best: Identity | None = None
        self.cached = 0
        self.original: str | None = None
        self.severity: float | None = None
        self._decided: dict[str, Record] = {}
        self._repeats: Counter[str] = Counter()

    def follow(self, outcome: Outcome) -> None:
        """Search for another failure from here on: what fails in another way than this says nothing."""
        self.original = outcome.signature
        self.severity = outcome.severity
        self._decided.clear()
        self.akin = []
        self.best = None

    def aside(self) -> Ledger:
        """Return a ledger of the same probes for the search of another model, with other units and another failure."""
        ledger = copy(self)
        ledger.passed = []
        ledger.akin = []
        ledger.best = ledger.original = ledger.severity = None
        ledger._decided = {}
        return ledger

    @contextmanager
    def following(self) -> Iterator[None]:
        """Return to the failure of the original in the end, whatever was followed meanwhile."""
        names = ("original", "severity", "best", "akin", "_decided")
        before = {name: copy(getattr(self, name)) for name in names}
        try:
            yield
        finally:
            if (self.original, self.severity) != (before["original"], before["severity"]):
                vars(self).update(before)

    @contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        """Show each probe to one more watcher meanwhile."""
        before = self.watchers
        self.watchers = (*before, watcher)
        try:
            yield
        finally:
            self.watchers = before

    @contextmanager
    def judging_apart(self, *, apart: bool) -> Iterator[None]:
        """Judge each candidate by itself meanwhile, or by the original's failure."""
        before = self.apart
        self.apart = apart
        try:
            yield
        finally:
            self.apart = before

    @property
    def is_broken(self) -> bool:
        """Whether the original's failure is that it does not run: a crash, a time-out, a refused build."""
        return self.original is not None and self.original.startswith(BROKEN_PREFIXES)

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a candidate, if it was probed."""
        outcome = self._outcomes.get(key)
        if outcome is None and self._cache is not None:
            outcome = self._cache.read(key)
            if outcome is not None:
                self._keep(key, outcome)
        return outcome

    def ended(self, candidate: Identity, ending: Ending) -> bool:
        """Return whether a candidate was probed and ended so."""
        outcome = self._outcomes.get(candidate.key)
        return outcome is not None and outcome.ending is ending

    def start(self, candidate: Identity) -> None:
        """Note that a probe is about to run, within :meth:`check_budget`."""
        self.check_budget()
        self._append(Started(candidate.key, candidate.title))

    def check_budget(self) -> None:
        """Refuse another probe past the budget.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        self._check_number()
        self._deadline.check()

    @property
    def exhausted(self) -> bool:
        """Whether ``max_probes`` are made; a run that is resumed has the same limit."""
        return self._max_probes is not None and len(self.records) >= self._max_probes

    def _check_number(self) -> None:
        if self.exhausted:
            raise BudgetSpent(f"the budget is spent (--max-probes {self._max_probes}).")

    def seconds_left(self) -> float | None:
        """Seconds left for probes; ``None`` without a limit."""
        return self._deadline.seconds_left()

    def end(self, candidate: Identity, outcome: Outcome | None) -> None:
        """A probe has ended; without an outcome if its answer was not needed any more."""
        if outcome is None:
            self._append(Moot(candidate.key))
        else:
            # The journal comes first: this run goes on from it, and the cache only saves time.
            self._keep(candidate.key, outcome)
            if self._cache is not None:
                self._cache.write(candidate.key, outcome)

    def _keep(self, key: str, outcome: Outcome) -> None:
        self._outcomes[key] = outcome
        self._append(Ended(key, outcome), forced=True)

    def once_more(self, candidate: Identity) -> Identity:
        """A name for probing a candidate again although its verdict is known, so that both answers are remembered."""
        self._repeats[candidate.key] += 1
        return structs.replace(
            candidate, key=f"{candidate.key}{AGAIN}-{self._repeats[candidate.key]}"
        )

    def decide(self, candidate: Identity, outcome: Outcome) -> Record:
        """Take an outcome in, as the answer to the search's next question.

        Raises:
            BudgetSpent: No more probes may be made.
        """
        record = self._decided.get(candidate.key)
        if record is None:
            # What was learned in time counts, also when the time is up since.
            self._check_number()
        verdict = outcome.judge(self.original, self.severity)
        if self.original is None and verdict is Verdict.FAIL and not self.apart:
            # The first to fail is the original: without that there is no search.
            self.original = outcome.signature
            self.severity = outcome.severity
        if verdict is Verdict.PASS and outcome.is_milder(self.severity):
            outcome = outcome.seeing(Reason.MILDER)
        if verdict is Verdict.UNRESOLVED and outcome.is_akin(self.original):
            self.akin.append(candidate)
            outcome = outcome.seeing(Reason.AKIN)
        if verdict is Verdict.FAIL and (self.best is None or candidate.size <= self.best.size):
            self.best = candidate
        if verdict is Verdict.PASS:
            self.passed.append(candidate)
        if record is not None:
            self.cached += 1
            return record
        return self._record(candidate, outcome, verdict)

    def _record(self, candidate: Identity, outcome: Outcome, verdict: Verdict) -> Record:
        record = Record(
            number=len(self.records) + 1,
            key=candidate.key,
            title=candidate.title,
            size=candidate.size,
            verdict=verdict,
            signature=outcome.signature,
            reason=self.describe(outcome),
            tail=outcome.tail,
            seconds=round(outcome.seconds, 4),
            runs=outcome.runs,
            place=outcome.place,
        )
        self.records.append(record)
        self._decided[candidate.key] = record
        self._append(record)
        # Last: a Ctrl-C while one prints must not lose the best.
        for watcher in self.watchers:
            watcher.probed(record)
        return record

    def forget_last(self) -> Record | None:
        """Take the last answer back."""
        if not self.records:
            return None
        record = self.records[-1]
        self._outcomes.pop(record.key, None)
        self._append(Undone(record.key, record.number), forced=True)
        self.restart()
        return record

    def _append(self, line: Line, *, forced: bool = False) -> None:
        """Write a line; ``forced`` to the disk, so that no outcome is lost if the machine itself dies."""
        content = sealed(line)
        try:
            # Parallel probes end in threads of their own.
            with self._turn:
                self._file.write(content)
                self._file.flush()
                if forced:
                    os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputFileError(
                f"the journal {self._path} cannot be written: {error.strerror}; make room."
            ) from error

    def close(self) -> None:
        """Close the journal."""
        self._file.close()

    def counts(self) -> Mapping[str, int]:
        """Probes run and cached, and how they ended."""
        ended = {
            v.value.lower(): sum(record.verdict is v for record in self.records) for v in Verdict
        }
        shared = {"shared": self._cache.hits} if self._cache else {}
        return {"run": len(self.records), "cached": self.cached, **shared, **ended}


_CHECKSUM = b', "crc32": '
"""Beginning of a line's last value, its checksum: an edited line is a damaged one."""


def sealed(line: object) -> bytes:
    """Return a line of the journal as bytes, with its checksum."""
    content = json.dumps(to_plain(line)).encode()
    return b"%s%s%d}\n" % (content[:-1], _CHECKSUM, zlib.crc32(content))


def _opened(sealed_line: bytes) -> Line:
    """Return the line that :func:`sealed` wrote.

    Raises:
        ValueError: It is another line than was written.
        RecursionError: It is nested too deeply.
        msgspec.ValidationError: A value is missing or has another type.
    """
    content, _, checksum = sealed_line.rpartition(_CHECKSUM)
    content += b"}"
    if int(checksum[:-2]) != zlib.crc32(content):
        raise ValueError(sealed_line)
    line: Line = msgspec.convert(strict_json(content), Line, strict=False)
    if isinstance(line, Ended):
        msgspec.convert(line.outcome.layers, list[Layer])
    return line


def read_journal(path: Path) -> Iterator[Line]:
    """Yield the lines of a journal, without a last one that was cut short.

    Raises:
        UnavailableError: It is damaged.
    """
    try:
        file = open_inside(path.parent, path.name, _MOST_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(f"the journal {path} cannot be read: {error.strerror}.") from error
    with file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            # A kill may cut the last line short, and what it says was not decided then.
            if line.endswith(b"\n") or len(line) == _LONGEST_LINE:
                try:
                    yield _opened(line)
                except (ValueError, RecursionError, msgspec.ValidationError) as error:
                    raise RunFolderError(
                        f"the journal {path} is damaged in line {number}; take that line and all after it away, or "
                        "start a new run."
                    ) from error


def read_probes(journal: Path) -> tuple[dict[str, Outcome], dict[int, Record], dict[str, Started]]:
    """Return what a journal says: the outcomes by candidate, the verdicts by number, and what has no outcome by candidate.

    Raises:
        UnavailableError: The journal is damaged.
    """
    outcomes = dict[str, Outcome]()
    verdicts = dict[int, Record]()
    unfinished = dict[str, Started]()
    for line in read_journal(journal):
        match line:
            case Started():
                unfinished[line.key] = line
            case Moot():
                unfinished.pop(line.key, None)
            case Ended():
                unfinished.pop(line.key, None)
                outcomes[line.key] = line.outcome
            case Record():
                verdicts[line.number] = line
            case Undone():
                outcomes.pop(line.key, None)
                verdicts.pop(line.number, None)
    return outcomes, verdicts, unfinished
