"""Files that a check leaves, sorted by what it said."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bisect_trt.errors import UsageError
from bisect_trt.probing.journal import Record
from bisect_trt.search.verdict import Verdict

_FOLDERS = {Verdict.PASS: "good", Verdict.FAIL: "bad", Verdict.UNRESOLVED: "unresolved"}


class ArtifactSorter:
    """Moves the named files to ``good/``, ``bad/`` or ``unresolved/`` after each probe, with its number before the name."""

    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        """``files`` as the check leaves them, ``folder`` to sort them into."""
        self._files = files
        self._folder = folder

    def probed(self, record: Record) -> None:
        """Sort what this probe left.

        Raises:
            UsageError: A file cannot be moved.
        """
        for file in self._files:
            if file.exists():
                target = self._folder / _FOLDERS[record.verdict] / f"{record.number:04d}_{file.name}"
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(file, target)
                except OSError as error:
                    raise UsageError(f"the artifact {file} cannot be moved to {target}: {error.strerror}.") from error
