"""``--log-file``: what is said, plain and with the time, whatever the terminal shows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from bisect_trt.errors import UsageError


class LogFile:
    """A file that grows; a run that goes on adds to what its earlier sessions said.

    Attributes:
        path: Where it lies.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            UsageError: It cannot be written.
        """
        self.path = path
        try:
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"the log file {path} cannot be written: {error.strerror}; name another.") from error

    def write(self, text: str) -> None:
        """Add lines, on the disk at once.

        Raises:
            OSError: There is no room.
        """
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        for line in text.splitlines():
            self._file.write(f"{now} {line}\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
