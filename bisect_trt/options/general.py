"""What every command takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bisect_trt.options.spec import option


@dataclass
class General:
    """What every command takes."""

    json: Annotated[Path | None, option(help="Write the result as JSON.", metavar="FILE")] = None
    report: Annotated[
        Path | None, option(help="Write report.html here too; one lies in the run's folder.", metavar="FILE")
    ] = None
    verbose: Annotated[int, option("-v", "--verbose", count=True, help="Say more; -vv also shows tracebacks.")] = 0
    quiet: Annotated[int, option("-q", "--quiet", count=True, help="Say only the answer.")] = 0
    log_file: Annotated[
        Path | None,
        option(metavar="FILE", help="Add all that -v says to this file, with the time, whatever the terminal shows."),
    ] = None

    @property
    def verbosity(self) -> int:
        """``-v`` less ``-q``."""
        return self.verbose - self.quiet
