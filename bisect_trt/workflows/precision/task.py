"""What every step of a search for precision works with."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.precision.lowering import Lowering
from bisect_trt.workflows.precision.settings import PrecisionSettings


@dataclass(frozen=True)
class Task(Investigation):
    """A search for precision.

    Attributes:
        lowering: What may be lowered; makes the candidates.
        settings: What was asked for.
    """

    lowering: Lowering
    settings: PrecisionSettings
