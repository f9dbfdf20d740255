"""What every step of a search for precision works with."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.probing.prober import Prober
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.precision.lowering import Lowering
from bisect_trt.workflows.precision.settings import PrecisionSettings
from bisect_trt.workflows.subject import Subject


@dataclass(frozen=True)
class Task:
    """A search for precision.

    Attributes:
        subject: The model.
        prober: Who probes.
        lowering: What may be lowered; makes the candidates.
        settings: What was asked for.
        console: Who is told.
        result: What is filled in.
    """

    subject: Subject
    prober: Prober
    lowering: Lowering
    settings: PrecisionSettings
    console: Console
    result: Result
