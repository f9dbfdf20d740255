"""How a search is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bisect_trt.options.spec import option, seconds


@dataclass
class Search:
    """How the search is run."""

    workers: Annotated[
        int | None, option(metavar="N", min=1, help="Probes at a time; default one a GPU, or else one a core.")
    ] = None
    repeat: Annotated[
        int | None, option(metavar="N", min=1, help="Run the original N times to measure how often it fails.")
    ] = None
    confidence: Annotated[
        float, option(metavar="P", min=0.5, max=0.999999, help="How sure to be, if it fails only sometimes.")
    ] = 0.99
    shrink: Annotated[
        bool, option("--shrink/--no-shrink", help="Also make the tensors of the minimal case smaller.")
    ] = True
    max_probes: Annotated[int | None, option(metavar="N", min=1, help="Stop after N probes.")] = None
    max_time: Annotated[float | None, seconds(help="Stop after this time.")] = None
