"""How far a target may be off, and how that is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.errors import UsageError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare_script import check_script
from bisect_trt.tensors.method import Algorithm, Method
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions


@dataclass
class Compare:
    """How far the target may be off."""

    atol: Annotated[
        list[str],
        typer.Option(metavar="[OUT:]TOL", help="Absolute tolerance; default 1e-5 or 2e-4 of each RMS, with --fp16 1% of it."),
    ] = field(default_factory=list)
    rtol: Annotated[
        list[str], typer.Option(metavar="[OUT:]TOL", help="Relative tolerance; default 1e-5, with --fp16 1e-2.")
    ] = field(default_factory=list)
    check_error_stat: Annotated[
        list[str], typer.Option(metavar="[OUT:]STAT", help="elemwise, max, mean, median or quantile; default elemwise.")
    ] = field(default_factory=list)
    error_quantile: Annotated[
        list[str], typer.Option(metavar="[OUT:]Q", help="Which quantile of the errors to check; default 0.99.")
    ] = field(default_factory=list)
    infinities_compare_equal: Annotated[
        bool, typer.Option("--infinities-compare-equal", help="The same Inf on both sides is no error.")
    ] = False
    validate: Annotated[bool, typer.Option("--validate", help="Any NaN or Inf, on either side, is a failure.")] = False
    compare_as: Annotated[
        Algorithm, typer.Option("--compare", "--compare-func", help="As numbers, or as lists of indices.")
    ] = Algorithm.SIMPLE
    index_tolerance: Annotated[
        list[str], typer.Option(metavar="[OUT:]N", help="For --compare indices: how many places one may be away.")
    ] = field(default_factory=list)
    postprocess: Annotated[
        list[str],
        typer.Option(
            "--postprocess",
            "--postprocess-func",
            metavar="[OUT:]top-K[,axis=N]",
            help="Compare the indices of the K largest values instead.",
        ),
    ] = field(default_factory=list)
    no_shape_check: Annotated[
        bool, typer.Option("--no-shape-check", help="Permute or reshape where shapes differ.")
    ] = False
    compare_func_script: Annotated[
        str | None,
        typer.Option(metavar="FILE[:FUNC]", help="Python file with a compare_outputs(target, reference) -> dict."),
    ] = None

    def files(self) -> list[Path]:
        """The files that the comparison depends on."""
        return [] if self.compare_func_script is None else [check_script(self.compare_func_script)]

    def require_numbers(self) -> None:
        """Make sure that outputs are compared as they are, number by number.

        Raises:
            UsageError: They are not.
        """
        given = {
            "--compare indices": self.compare_as is Algorithm.INDICES,
            "--postprocess": bool(self.postprocess),
            "--no-shape-check": self.no_shape_check,
            "--compare-func-script": self.compare_func_script is not None,
        }
        for option, wanted in given.items():
            if wanted:
                raise UsageError(
                    f"{option} is for outputs, and `diagnose` compares every tensor inside; use it with `run` or `reduce`."
                )

    def method(self) -> Method:
        """What is compared and how, as plain data.

        Raises:
            UsageError: A value is malformed, or an option does not fit the others.
        """
        if self.index_tolerance and self.compare_as is not Algorithm.INDICES:
            raise UsageError("--index-tolerance says how to compare indices; add --compare indices.")
        if self.compare_func_script is not None:
            check_script(self.compare_func_script)
        return Method.parse(
            self.compare_as,
            self.index_tolerance,
            self.postprocess,
            shape_check=not self.no_shape_check,
            validate=self.validate,
            script=self.compare_func_script,
        )

    def settings(self, target: TargetSettings | None, *, nonfinite_equal: bool = True) -> ToleranceOptions:
        """As plain data.

        Raises:
            UsageError: A value is malformed, or an option does not fit the others.
        """
        precision = _coarsest(target)
        return ToleranceOptions.parse(
            self.atol,
            self.rtol,
            self.check_error_stat,
            self.error_quantile,
            precision=precision,
            nonfinite_equal=nonfinite_equal,
            infinities_equal=self.infinities_compare_equal,
            method=self.method(),
        )


def _coarsest(target: TargetSettings | None) -> Precision:
    """What rounds most of what a target may compute in; 8-bit types are held to bfloat16, which has as few digits."""
    low = frozenset(target.low_precisions if target is not None else ())
    if low & {"bf16", "fp8", "int8"}:
        return Precision.BF16
    return Precision.FP16 if "fp16" in low else Precision.TF32 if "tf32" in low else Precision.FP32
