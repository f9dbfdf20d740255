"""A cache of outcomes that runs, people and machines share: one record for each question, named by its content.

A record is written once and never changed, so readers and writers need no lock. It is a file under
a URL that fsspec reads: a folder, ``s3://``, ``gs://`` and others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from types import ModuleType

import msgspec

from bisect_trt.errors import OutputFileError, PackageError
from bisect_trt.probe.candidate import AGAIN
from bisect_trt.probe.outcome import Ending, Layer, Outcome
from bisect_trt.tensors.comparison import strict_json, to_plain

_STORED = (Ending.FAILED, Ending.MISMATCHED, Ending.PASSED)
"""Other endings (a crash, a time-out, a lack of memory) may be the fault of the machine."""


def _fsspec() -> ModuleType:
    try:
        return import_module("fsspec")
    except ImportError as error:
        raise PackageError(
            "--cache needs fsspec; install it: pip install 'bisect-trt[cache]'."
        ) from error


class VerdictCache:
    """Outcomes by question, of all runs in the same scope.

    Attributes:
        hits: How many outcomes were read.
    """

    def __init__(self, url: str, scope: Callable[[], Sequence[str]], *, proof: bool) -> None:
        """Open the cache.

        Args:
            url: The folder or the URL.
            scope: Returns everything that verdicts depend on beside the candidate: the check, its
                files, the settings, the environment. It is called with the first question, when the
                environment of each place is known.
            proof: Whether questions of the proof, which are asked again, are read from it too.

        Raises:
            UsageError: The URL has no file system, or cannot be written.
            UnavailableError: fsspec, or its package for this URL, is not installed.
        """
        fsspec = _fsspec()
        self.hits = 0
        self._url = url
        # A search with several workers looks for the same question each time that it guesses.
        self._missing = set[str]()
        self._proof = proof
        self._scope_of = scope
        try:
            self._files, self._root = fsspec.url_to_fs(url)
            self._files.makedirs(self._root, exist_ok=True)
        except ImportError as error:
            raise PackageError(f"--cache {url}: {error}; install that package.") from error
        except (ValueError, OSError) as error:
            raise OutputFileError(f"--cache {url}: {error}; give a folder or a URL.") from error

    def read(self, key: str) -> Outcome | None:
        """Return the outcome of a question; ``None`` where there is none, or the record is damaged."""
        # A remote store is asked once about what it lacks.
        if key in self._missing or (AGAIN in key and not self._proof):
            return None
        try:
            record = strict_json(self._files.cat_file(self._path(key)))
            outcome = msgspec.convert(record, Outcome, strict=False)
            msgspec.convert(outcome.layers, list[Layer])
        except (OSError, ValueError, RecursionError, msgspec.ValidationError):
            self._missing.add(key)
            return None
        self.hits += 1
        return outcome

    def write(self, key: str, outcome: Outcome) -> None:
        """Add a record, unless the outcome may be the machine's fault.

        Raises:
            UsageError: It cannot be written.
        """
        path = self._path(key)
        if outcome.ending not in _STORED:
            return
        try:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, msgspec.json.encode(to_plain(outcome)))
        except OSError as error:
            raise OutputFileError(
                f"--cache {self._url} cannot be written: {error}; make room, or leave it out."
            ) from error

    @cached_property
    def _scope(self) -> str:
        return hashlib.sha256(repr(list(self._scope_of())).encode()).hexdigest()

    def _path(self, key: str) -> str:
        name = hashlib.sha256(f"{self._scope} {key}".encode()).hexdigest()
        return f"{self._root}/{name[:2]}/{name}.json"
