"""How far a target may be off, and how that is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from bisect_trt.errors import ConflictError, MissingOptionError
from bisect_trt.options.reading import TopK, top_k
from bisect_trt.options.spec import Option, option, switch


class ErrorStat(str, Enum):
    """The number that is compared with the tolerances (Polygraphy's ``--check-error-stat``)."""

    ELEMWISE = "elemwise"
    """Fails where an element exceeds both tolerances."""
    MAX = "max"
    """Fails where the largest absolute and the largest relative error each exceed their tolerance."""
    MEAN = "mean"
    MEDIAN = "median"
    QUANTILE = "quantile"
    """As ``max``, but of the errors without the largest few: their quantile, 0.99 by default."""


class Algorithm(str, Enum):
    """How two tensors are compared (Polygraphy's ``--compare``)."""

    SIMPLE = "simple"
    """By the error of each element."""
    INDICES = "indices"
    """As lists of indices, such as TopK makes: by how many places each is away from where it should be."""


PerOutput = dict[str, float]
"""A number for each output, by name; that of the name ``''`` for all others."""


def threshold(unit: str, help: str, low: float = 0, high: float = float("inf")) -> Option:  # noqa: A002 - as in Typer
    """Declare a number for each output."""
    return option(metavar=f"[OUT:]{unit}", help=help, min=low, max=high)


@dataclass(frozen=True)
class CompareOptions:
    """Comparison."""

    atol: Annotated[
        PerOutput,
        threshold(
            "TOL", "Absolute tolerance; default 1e-5 or 2e-4 of each RMS, with --fp16, or of fp16 itself, 1% of it."
        ),
    ] = field(default_factory=dict)
    rtol: Annotated[PerOutput, threshold("TOL", "Relative tolerance; default 1e-5, with --fp16 1e-2.")] = field(
        default_factory=dict
    )
    check_error_stat: Annotated[
        dict[str, ErrorStat],
        option(
            metavar="[OUT:]STAT",
            help="elemwise (the default), max, mean, median or quantile.",
        ),
    ] = field(default_factory=dict)
    error_quantile: Annotated[
        PerOutput, threshold("Q", "Which quantile of the errors to check; default 0.99.", 0, 1)
    ] = field(default_factory=dict)
    infinities_compare_equal: Annotated[bool, switch("The same Inf on both sides is no error.")] = False
    validate: Annotated[bool, switch("Any NaN or Inf, on either side, is a failure.")] = False
    compare_as: Annotated[
        Algorithm,
        option("--compare", help="As numbers, or as indices."),
    ] = Algorithm.SIMPLE
    index_tolerance: Annotated[
        dict[str, int],
        threshold("N", "For --compare indices: how many places one may be away."),
    ] = field(default_factory=dict)
    postprocess: Annotated[
        dict[str, TopK],
        option(
            metavar="[OUT:]top-K[,axis=N]",
            help="Compare the indices of the K largest values instead.",
            read=top_k,
        ),
    ] = field(default_factory=dict)
    compare_func_script: Annotated[
        str | None, option(metavar="FILE[:FUNC]", help="Python file with a compare_outputs(target, reference) -> dict.")
    ] = None

    def check(self) -> None:
        """Make sure that the options fit each other.

        Raises:
            UsageError: ``--index-tolerance`` is given without ``--compare indices``.
        """
        if self.index_tolerance and self.compare_as is not Algorithm.INDICES:
            raise MissingOptionError("--index-tolerance says how to compare indices; add --compare indices.")

    def other_ways(self) -> list[str]:
        """The options by which outputs are compared in another way than as they are, number by number."""
        given = {
            f"--compare {self.compare_as.value}": self.compare_as is not Algorithm.SIMPLE,
            "--postprocess": bool(self.postprocess),
            "--compare-func-script": self.compare_func_script is not None,
        }
        return [flag for flag, wanted in given.items() if wanted]

    def require_numbers(self) -> None:
        """Make sure that outputs are compared as they are, number by number.

        Raises:
            UsageError: They are not.
        """
        for flag in self.other_ways():
            raise ConflictError(
                f"{flag} is for outputs, and `diagnose` compares every tensor inside; use it with `run` or `reduce`."
            )
