"""Groups of options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from bisect_trt.errors import UsageError
from bisect_trt.probing.command import CommandCheck
from bisect_trt.probing.ledger import Budget
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.compare_script import check_script
from bisect_trt.tensors.inputs import DataOptions, parse_shapes, parse_val_ranges
from bisect_trt.tensors.method import Algorithm, Method
from bisect_trt.tensors.saved import files_of
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.tensors.user_script import split_script
from bisect_trt.workflows.pictures import Pictures
from bisect_trt.workflows.settings import CheckSettings, ModelSettings, SearchSettings


def between(low: float, high: float) -> Callable[[float | None], float | None]:
    """A callback for an option that takes a number of a range; NaN is in none, which Typer's own ranges forget."""

    def check(value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise typer.BadParameter(f"{value} is not between {low:g} and {high:g}.")
        return value

    return check


seconds = between(0.001, 1e8)
"""A time. The longest is three years; what waits cannot wait for infinity."""

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


@dataclass
class Data:
    """What to feed the model."""

    input_shapes: Annotated[
        list[str],
        typer.Option(
            "--input-shapes",
            "--model-input-shapes",
            metavar="NAME:[D,...]",
            help="Shapes of inputs with free dimensions.",
        ),
    ] = field(default_factory=list)
    val_range: Annotated[
        list[str], typer.Option(metavar="[NAME:][LO,HI]", help="Range of random values; default [0,1].")
    ] = field(default_factory=list)
    seed: Annotated[int, typer.Option(help="Seed of random values.")] = 1
    iterations: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples of random values, or of the script at most.")
    ] = None
    load_inputs: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Input values by tensor name: .npz, or Polygraphy's .json.")
    ] = field(default_factory=list)
    data_loader_script: Annotated[
        str | None,
        typer.Option(metavar="FILE[:FUNC]", help="Python file with a load_data() that yields dicts of arrays."),
    ] = None

    data_loader_func_name: Annotated[
        str | None, typer.Option(metavar="FUNC", help="The script's function; default load_data.")
    ] = None

    external_data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the files of the model's weights lie; default the model's folder."),
    ] = None

    array_swap_mb: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            min=0,
            help="Past so much of weights and tensors, compute every tensor slice by slice, on the disk in between; "
            "default an eighth of the free memory, at most 1024.",
        ),
    ] = None

    def files(self) -> list[Path]:
        """The files that the values come from."""
        script = (
            [] if self.data_loader_script is None else [split_script(self.data_loader_script, "", "data-loader")[0]]
        )
        return [*(file for path in self.load_inputs for file in files_of(path)), *script]

    def script(self) -> str | None:
        """The data-loader script with its function, as ``FILE:FUNCTION`` if one is named.

        Raises:
            UsageError: There is a function and no script, or there are two functions.
        """
        if self.data_loader_func_name is None:
            return self.data_loader_script
        if self.data_loader_script is None:
            raise UsageError("--data-loader-func-name names a function of a script, and there is none; add one.")
        if not Path(self.data_loader_script).is_file():
            split_script(self.data_loader_script, "", "data-loader")
            raise UsageError("--data-loader-script names a function and so does --data-loader-func-name; name one.")
        return f"{self.data_loader_script}:{self.data_loader_func_name}"

    def settings(self, model: Path) -> ModelSettings:
        """As plain data."""
        data = DataOptions(
            self.seed, parse_val_ranges(self.val_range), tuple(self.load_inputs), self.script(), self.iterations
        )
        return ModelSettings(model, parse_shapes(self.input_shapes), data, self.array_swap_mb, self.external_data_dir)


def _coarsest(target: TargetSettings | None) -> Precision:
    """What rounds most of what a target may compute in; 8-bit types are held to bfloat16, which has as few digits."""
    low = frozenset(target.low_precisions if target is not None else ())
    if low & {"bf16", "fp8", "int8"}:
        return Precision.BF16
    return Precision.FP16 if "fp16" in low else Precision.TF32 if "tf32" in low else Precision.FP32


@dataclass
class Compare:
    """How far the target may be off."""

    atol: Annotated[
        list[str],
        typer.Option(metavar="[OUT:]TOL", help="Absolute tolerance; default 1e-5, with --fp16 1% of each RMS."),
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


@dataclass
class Plots:
    """Pictures of the errors, drawn with matplotlib (extra: plots)."""

    save_heatmaps: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the errors of each output are.")] = (
        None
    )
    show_heatmaps: Annotated[bool, typer.Option("--show-heatmaps", help="Open these pictures, saved or not.")] = False
    save_error_metrics_plot: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Errors over the magnitude of the reference.")
    ] = None
    show_error_metrics_plot: Annotated[
        bool, typer.Option("--show-error-metrics-plot", help="Open these pictures, saved or not.")
    ] = False
    save_histograms: Annotated[
        Path | None, typer.Option(metavar="DIR", help="How values and errors are distributed.")
    ] = None

    def settings(self) -> Pictures:
        """As plain data.

        Raises:
            UnavailableError: matplotlib is not installed.
            UsageError: A folder is a file.
        """
        pictures = Pictures(
            self.save_heatmaps,
            self.save_error_metrics_plot,
            self.save_histograms,
            self.show_heatmaps,
            self.show_error_metrics_plot,
        )
        pictures.check()
        return pictures


@dataclass
class Check:
    """What says good or bad."""

    check: Annotated[
        list[str],
        typer.Option(
            metavar="CMD...",
            help="Command that says good (0) or bad; takes all that follows, so it comes last. {model}, {inputs}, {golden} "
            "and {dir} become the candidate's paths.",
        ),
    ] = field(default_factory=list)
    fail_regex: Annotated[
        list[str], typer.Option(metavar="REGEX", help="Only output that matches one of these is the failure.")
    ] = field(default_factory=list)
    fail_code: Annotated[list[int], typer.Option(metavar="N", help="Only these exit statuses are the failure.")] = (
        field(default_factory=list)
    )
    ignore_fail_code: Annotated[list[int], typer.Option(metavar="N", help="These exit statuses are a pass.")] = field(
        default_factory=list
    )
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time one candidate may take.", callback=seconds)
    ] = None
    candidate: Annotated[Path | None, typer.Option(metavar="PATH", help="Write each candidate to this fixed path.")] = (
        None
    )
    artifacts: Annotated[
        list[Path], typer.Option(metavar="FILE", help="Files a check leaves, sorted into good/ and bad/.")
    ] = field(default_factory=list)
    artifacts_dir: Annotated[
        Path, typer.Option("--artifacts-dir", "--art-dir", metavar="DIR", help="Where --artifacts are sorted to.")
    ] = Path("artifacts")
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show all that a check prints, after each probe.")
    ] = False
    hide_fail_output: Annotated[
        bool, typer.Option("--hide-fail-output", help="With --show-output: but not what failing candidates print.")
    ] = False

    def files(self) -> list[Path]:
        """The files that the check's words name, its program too if that is given by its path."""
        words = CommandCheck.parse(self.check) if self.check else ()
        return [Path(word) for word in words if Path(word).is_file()]

    def settings(self, target: TargetSettings | None, compare: Compare) -> CheckSettings:
        """As plain data.

        Raises:
            UsageError: The check's program does not exist.
        """
        return CheckSettings(
            argv=CommandCheck.parse(self.check) if self.check else (),
            fail_codes=tuple(self.fail_code),
            ignore_fail_codes=tuple(self.ignore_fail_code),
            fail_regexes=tuple(self.fail_regex),
            timeout=self.timeout,
            candidate=self.candidate,
            target=target,
            tolerance=compare.settings(target),
            artifacts=tuple(self.artifacts),
            artifacts_dir=self.artifacts_dir,
            show_output=self.show_output,
            hide_fail_output=self.hide_fail_output,
        )


@dataclass
class Search:
    """How the search is run."""

    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Probes at a time; default one a GPU, or else one a core.")
    ] = None
    repeat: Annotated[
        int, typer.Option(metavar="N", min=1, help="Run the original N times to measure how often it fails.")
    ] = 1
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
