"""How a search is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from bisect_trt.cli.options.values import between, seconds
from bisect_trt.probing.ledger import Budget
from bisect_trt.workflows.settings import SearchSettings


@dataclass
class Search:
    """How the search is run."""

    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Probes at a time; default one a GPU, or else one a core.")
    ] = None
    repeat: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Run the original N times to measure how often it fails.")
    ] = None
    confidence: Annotated[
        float,
        typer.Option(metavar="P", callback=between(0.5, 0.999999), help="How sure to be, if it fails only sometimes."),
    ] = 0.99
    shrink: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Also make the tensors of the minimal case smaller.")
    ] = True
    max_probes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N probes.")] = None
    max_time: Annotated[
        float | None, typer.Option(metavar="SECONDS", callback=seconds, help="Stop after this time.")
    ] = None

    def settings(self) -> SearchSettings:
        """As plain data."""
        return SearchSettings(
            self.workers, self.repeat, self.confidence, self.shrink, Budget(self.max_probes, self.max_time)
        )
