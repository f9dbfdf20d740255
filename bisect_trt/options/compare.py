"""How far a target may be off, and how that is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from bisect_trt.errors import UsageError
from bisect_trt.options.choices import AccuracyAlgorithm, Algorithm, ErrorStat, Measure
from bisect_trt.options.spec import option
from bisect_trt.options.values import TopK, decibels, one_of, places, quantile, similarity, tolerance, top_k


@dataclass
class Compare:
    """How far the target may be off."""

    atol: Annotated[
        dict[str, float],
        option(
            metavar="[OUT:]TOL",
            help="Absolute tolerance; default 1e-5 or 2e-4 of each RMS, with --fp16 1% of it.",
            read=tolerance,
        ),
    ] = field(default_factory=dict)
    rtol: Annotated[
        dict[str, float],
        option(metavar="[OUT:]TOL", help="Relative tolerance; default 1e-5, with --fp16 1e-2.", read=tolerance),
    ] = field(default_factory=dict)
    check_error_stat: Annotated[
        dict[str, Enum],
        option(
            metavar="[OUT:]STAT",
            help="elemwise (the default), max, mean, median, quantile, l2, cosine, psnr, snr, lpips, l0, l1, mse, linf or cos.",
            read=one_of(ErrorStat, Measure),
        ),
    ] = field(default_factory=dict)
    error_quantile: Annotated[
        dict[str, float],
        option(metavar="[OUT:]Q", help="Which quantile of the errors to check; default 0.99.", read=quantile),
    ] = field(default_factory=dict)
    infinities_compare_equal: Annotated[
        bool, option("--infinities-compare-equal", help="The same Inf on both sides is no error.")
    ] = False
    validate: Annotated[bool, option("--validate", help="Any NaN or Inf, on either side, is a failure.")] = False
    compare_as: Annotated[
        Algorithm,
        option("--compare", "--compare-func", help="As numbers, as indices, or by one number for each output."),
    ] = Algorithm.SIMPLE
    l2_threshold: Annotated[
        dict[str, float],
        option(
            "--l2-threshold",
            "--l2-tolerance",
            metavar="[OUT:]TOL",
            help="Largest L2 norm of the error; default 1e-5.",
            read=tolerance,
        ),
    ] = field(default_factory=dict)
    cosine_similarity_threshold: Annotated[
        dict[str, float],
        option(metavar="[OUT:]COS", help="Least cosine similarity; default 0.997.", read=similarity),
    ] = field(default_factory=dict)
    psnr_threshold: Annotated[
        dict[str, float],
        option(
            "--psnr-threshold",
            "--psnr-tolerance",
            metavar="[OUT:]DB",
            help="Least peak signal-to-noise ratio; default 30.",
            read=decibels,
        ),
    ] = field(default_factory=dict)
    snr_threshold: Annotated[
        dict[str, float],
        option(
            "--snr-threshold",
            "--snr-tolerance",
            metavar="[OUT:]DB",
            help="Least signal-to-noise ratio; default 20.",
            read=decibels,
        ),
    ] = field(default_factory=dict)
    lpips_threshold: Annotated[
        dict[str, float],
        option(
            "--lpips-threshold",
            "--lpips-tolerance",
            metavar="[OUT:]TOL",
            help="Largest perceptual distance of images; default 0.1. Needs the extra lpips.",
            read=tolerance,
        ),
    ] = field(default_factory=dict)
    accuracy_algorithm: Annotated[
        AccuracyAlgorithm | None,
        option("--accuracy-algorithm", "--accuracyAlgorithm", help="As trtexec compares; needs --accuracy-threshold."),
    ] = None
    accuracy_threshold: Annotated[
        dict[str, float],
        option(
            "--accuracy-threshold",
            "--accuracyThreshold",
            metavar="[OUT:]TOL",
            help="The most that l0, l1, mse, linf and cos may be.",
            read=tolerance,
        ),
    ] = field(default_factory=dict)
    index_tolerance: Annotated[
        dict[str, int],
        option(metavar="[OUT:]N", help="For --compare indices: how many places one may be away.", read=places),
    ] = field(default_factory=dict)
    postprocess: Annotated[
        dict[str, TopK],
        option(
            "--postprocess",
            "--postprocess-func",
            metavar="[OUT:]top-K[,axis=N]",
            help="Compare the indices of the K largest values instead.",
            read=top_k,
        ),
    ] = field(default_factory=dict)
    no_shape_check: Annotated[bool, option("--no-shape-check", help="Permute or reshape where shapes differ.")] = False
    compare_func_script: Annotated[
        str | None,
        option(metavar="FILE[:FUNC]", help="Python file with a compare_outputs(target, reference) -> dict."),
    ] = None

    def require_numbers(self) -> None:
        """Make sure that outputs are compared as they are, number by number.

        Raises:
            UsageError: They are not.
        """
        given = {
            f"--compare {self.compare_as.value}": self.compare_as is not Algorithm.SIMPLE,
            "--accuracy-algorithm": self.accuracy_algorithm is not None,
            "--postprocess": bool(self.postprocess),
            "--no-shape-check": self.no_shape_check,
            "--compare-func-script": self.compare_func_script is not None,
        }
        for flag, wanted in given.items():
            if wanted:
                raise UsageError(
                    f"{flag} is for outputs, and `diagnose` compares every tensor inside; use it with `run` or `reduce`."
                )
