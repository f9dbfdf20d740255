"""What every command takes, and options that several declare alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)]
Annotation = Annotated[
    Path | None,
    typer.Option(
        "--annotate", metavar="FILE", help="Write the model with each node's verdict in its metadata, for Netron."
    ),
]


@dataclass
class General:
    """What every command takes."""

    json: Annotated[Path | None, typer.Option(help="Write the result as JSON.", metavar="FILE")] = None
    report: Annotated[
        Path | None, typer.Option(help="Write report.html here too; one lies in the run's folder.", metavar="FILE")
    ] = None
    verbose: Annotated[
        int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv also shows tracebacks.")
    ] = 0
    quiet: Annotated[int, typer.Option("-q", "--quiet", count=True, help="Say only the answer.")] = 0
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Add all that -v says to this file, with the time, whatever the terminal shows."
        ),
    ] = None

    @property
    def verbosity(self) -> int:
        """``-v`` less ``-q``."""
        return self.verbose - self.quiet
