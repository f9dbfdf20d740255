"""How far a target may be off, and how that is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from bisect_trt.errors import ConflictError, MissingOptionError
from bisect_trt.options.reading import TopK, one_of, top_k
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


class OutputStat(str, Enum):
    """One number for a whole output, with its own threshold; ``--check-error-stat`` takes these too."""

    L2 = "l2"
    """The L2 norm of the error, at most --l2-threshold."""
    COSINE = "cosine"
    """Cosine similarity, at least --cosine-similarity-threshold."""
    PSNR = "psnr"
    """Peak signal-to-noise ratio in dB, at least --psnr-threshold."""
    SNR = "snr"
    """Signal-to-noise ratio in dB, at least --snr-threshold."""


class Algorithm(str, Enum):
    """How two tensors are compared (Polygraphy's ``--compare``)."""

    SIMPLE = "simple"
    """By the error of each element."""
    INDICES = "indices"
    """As lists of indices, such as TopK makes: by how many places each is away from where it should be."""


THRESHOLDS = {
    OutputStat.L2: "--l2-threshold",
    OutputStat.COSINE: "--cosine-similarity-threshold",
    OutputStat.PSNR: "--psnr-threshold",
    OutputStat.SNR: "--snr-threshold",
}
"""The options with the thresholds of statistics that are one number for an output."""
PerOutput = dict[str, float]
"""A number for each output, by name; that of the name ``''`` for all others."""


def threshold(unit: str, help: str, low: float = 0, high: float = math.inf) -> Option:  # noqa: A002 - as in Typer
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
        dict[str, Enum],
        option(
            metavar="[OUT:]STAT",
            help="elemwise (the default), max, mean, median, quantile, l2, cosine, psnr or snr.",
            read=one_of(ErrorStat, OutputStat),
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
    l2_threshold: Annotated[PerOutput, threshold("TOL", "Largest L2 norm of the error; default 1e-5.")] = field(
        default_factory=dict
    )
    cosine_similarity_threshold: Annotated[
        PerOutput, threshold("COS", "Least cosine similarity; default 0.997.", -1, 1)
    ] = field(default_factory=dict)
    psnr_threshold: Annotated[
        PerOutput, threshold("DB", "Least peak signal-to-noise ratio; default 30.", -math.inf)
    ] = field(default_factory=dict)
    snr_threshold: Annotated[PerOutput, threshold("DB", "Least signal-to-noise ratio; default 20.", -math.inf)] = field(
        default_factory=dict
    )
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

    def thresholds(self, stat: OutputStat) -> PerOutput:
        """The thresholds that are given for a statistic."""
        values: PerOutput = getattr(self, THRESHOLDS[stat][2:].replace("-", "_"))
        return values

    def check(self) -> None:
        """Make sure that the options fit each other.

        Raises:
            UsageError: One is of a comparison or a statistic that is not asked for.
        """
        if self.index_tolerance and self.compare_as is not Algorithm.INDICES:
            raise MissingOptionError("--index-tolerance says how to compare indices; add --compare indices.")
        for stat, flag in THRESHOLDS.items():
            if self.thresholds(stat) and stat not in self.check_error_stat.values():
                raise MissingOptionError(
                    f"{flag} is of a statistic that is not asked for; add --check-error-stat {stat.value}."
                )

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
