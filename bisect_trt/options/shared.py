"""Options, and groups of them, that several commands have: output, check, data, search, places, pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from bisect_trt.aliases import Names
from bisect_trt.errors import OutputFileError
from bisect_trt.options.reading import ranged_shape, regex, size, value_range
from bisect_trt.options.spec import Option, argument, counted, option, seconds, switch

Model = Annotated[Path, argument("The ONNX model.")]
ReferenceModel = Annotated[
    str | None,
    option(
        metavar="FILE[:NAME]",
        help="Compare with another ONNX model, or with the PyTorch module that NAME of a Python file is or returns (default: "
        "make): is the export right?",
    ),
]
FindAll = Annotated[
    bool,
    option(
        "--all",
        help="Find every failure, not just one: failing sets that share no node, ten at most.",
    ),
]
NoOtherRelease = Annotated[
    bool,
    option(
        "--no-other-release", help="Do not install the newest release, to see whether it is right."
    ),
]
Overwrite = Annotated[bool, switch("Write over files that exist.")]
RunFolder = Annotated[
    Path | None, argument("The run's folder, under .bisect-trt; default the newest.")
]


def time_out(subject: str, default: str = "10 minutes, 2 hours on TensorRT") -> Option:
    """Declare how long something may take."""
    return seconds(f"Time {subject} may take; default {default}.")


def to_file(help: str, metavar: str = "FILE") -> Option:  # noqa: A002 - as every command line library calls it
    """Declare where the result goes."""
    # A folder may be `.`; a file needs a name, beside which other files are named.
    check = _named if metavar == "FILE" else None
    return option("-o", "--output", metavar=metavar, help=help, check=check, writes=True)


def _named(path: Path) -> Path:
    """A path with a name, beside which other files can be named.

    Raises:
        UsageError: It is ``.`` or the root.
    """
    if not path.name:
        raise OutputFileError(f"{path} is a folder; name a file to write.")
    return path


@dataclass(frozen=True)
class Verbosity:
    """Verbosity."""

    verbose: Annotated[
        int, option("-v", "--verbose", count=True, help="Print more; -vv also prints tracebacks.")
    ] = 0
    quiet: Annotated[int, option("-q", "--quiet", count=True, help="Print only the answer.")] = 0

    @property
    def verbosity(self) -> int:
        """``-v`` less ``-q``."""
        return self.verbose - self.quiet


@dataclass(frozen=True)
class General(Verbosity):
    """Output."""

    json: Annotated[
        Path | None, option(help="Write the result as JSON; - for standard output.", writes=True)
    ] = None
    report: Annotated[
        Path | None,
        option(help="Write report.html here too; the run's folder has one.", writes=True),
    ] = None
    junit: Annotated[
        Path | None,
        option(help="Write the result as JUnit XML too, a test case for each output.", writes=True),
    ] = None
    model_explorer: Annotated[
        Path | None,
        option(help="Write errors and nodes of the answer for Model Explorer.", writes=True),
    ] = None


@dataclass(frozen=True)
class CheckOptions:
    """Check."""

    check: Annotated[
        Names,
        option(
            metavar="CMD...",
            help="Command that exits with 0 if a candidate passes; takes all words that follow, so put it last. {model}, "
            "{inputs}, {golden} and {dir} become the candidate's paths, {shapes} the shapes of its inputs (x:5x3,y:5).",
        ),
    ] = ()
    fail_regex: Annotated[
        Names,
        option(
            metavar="REGEX",
            help="Only output that matches one of these is the failure.",
            read=regex,
        ),
    ] = ()
    fail_code: Annotated[
        tuple[int, ...], option(metavar="N", help="Only these exit statuses are the failure.")
    ] = ()
    ignore_fail_code: Annotated[
        tuple[int, ...], option(metavar="N", help="These exit statuses are a pass.")
    ] = ()
    timeout: Annotated[
        float | None,
        seconds(
            "Time one candidate may take; default unlimited for a command, else 10 minutes, 2 hours on TensorRT."
        ),
    ] = None
    candidate: Annotated[
        Path | None,
        option(metavar="PATH", help="Write each candidate to this fixed path.", writes=True),
    ] = None
    artifacts: Annotated[
        tuple[Path, ...],
        option(help="Files that a check writes, sorted into good/ and bad/.", writes=True),
    ] = ()
    artifacts_dir: Annotated[
        Path, option(metavar="DIR", help="The folder for --artifacts.", writes=True)
    ] = Path("artifacts")


@dataclass(frozen=True)
class Data:
    """Inputs and weights."""

    input_shapes: Annotated[
        dict[str, tuple[int | range, ...]],
        option(
            metavar="NAME:[D,...]",
            help="Shapes of inputs with free dimensions; of a range, such as 5..9, samples have both ends and sizes between.",
            read=ranged_shape,
            need_name=True,
        ),
    ] = field(default_factory=dict)
    val_range: Annotated[
        dict[str, tuple[float, float]],
        option(
            metavar="[NAME:][LO,HI]",
            help="Range of random values; default [0,1], and of indices of a table all of its entries.",
            read=value_range,
        ),
    ] = field(default_factory=dict)
    seed: Annotated[int, option(help="Seed of random values.")] = 1
    iterations: Annotated[
        int | None, counted("Samples of random values, or the largest number from the script.")
    ] = None
    load_inputs: Annotated[
        tuple[Path, ...],
        option(help="Input values by tensor name: .npz, .safetensors, or Polygraphy's .json."),
    ] = ()
    data_loader_script: Annotated[
        str | None,
        option(
            metavar="FILE[:FUNC]",
            help="Python file with a load_data() that yields dicts of arrays.",
        ),
    ] = None
    external_data_dir: Annotated[
        Path | None,
        option(
            metavar="DIR",
            help="The folder of the files of the model's weights; default the model's folder.",
        ),
    ] = None
    array_swap_mb: Annotated[
        int | None,
        option(
            metavar="MIB",
            min=0,
            help="Above this size of weights and tensors, compute tensors slice by slice through the disk; default an eighth "
            "of the free memory, at most 1024.",
        ),
    ] = None
    memory_limit: Annotated[
        int | None,
        option(
            metavar="SIZE",
            help="Memory that one probe and its processes may use, such as 8G; above that it is ended.",
            read=size,
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether the values of the inputs are given, rather than random."""
        return bool(self.load_inputs) or self.data_loader_script is not None


@dataclass(frozen=True)
class Loop:
    """Loop, for a model with a state."""

    steps: Annotated[
        int | None,
        counted(
            "Run the model N times, each with the state that the last one returned, and search the step that is wrong."
        ),
    ] = None
    state: Annotated[
        Names,
        option(
            metavar="IN=OUT",
            help="An input that takes an output of the step before; * is any text, argmax(OUT) for the next token. "
            "By default pairs are found by name (past.*=present.*).",
        ),
    ] = ()


@dataclass(frozen=True)
class Search:
    """Search."""

    workers: Annotated[
        int | None,
        option(
            metavar="N",
            min=1,
            help="Probes at a time; default one for each core, on a GPU one for 4 cores, at most 4.",
        ),
    ] = None
    repeat: Annotated[
        int | None, counted("Run the original N times to measure how often it fails.")
    ] = None
    confidence: Annotated[
        float,
        option(
            metavar="P",
            min=0.5,
            max=0.999999,
            help="Confidence for a failure that is not deterministic.",
        ),
    ] = 0.99
    shrink: Annotated[bool, option(help="Do not make the tensors of the minimal case smaller.")] = (
        True
    )
    max_probes: Annotated[int | None, counted("Stop after N probes.")] = None
    max_time: Annotated[float | None, seconds("Stop after this time.")] = None
    cache: Annotated[
        str | None,
        option(
            metavar="URL",
            help="Share verdicts with other runs: a folder, or a URL such as s3://BUCKET/NAME (extra: cache).",
        ),
    ] = None
    cache_proof: Annotated[
        bool,
        option(help="Take the verdicts of the proof from --cache too; by default they are run."),
    ] = False


@dataclass(frozen=True)
class Plots:
    """Plots of the errors, drawn with matplotlib (extra: plots)."""

    save_heatmaps: Annotated[
        Path | None,
        option(metavar="DIR", help="Heat maps of the errors of each output.", writes=True),
    ] = None
    save_error_metrics_plot: Annotated[
        Path | None,
        option(metavar="DIR", help="Errors over the magnitude of the reference.", writes=True),
    ] = None


@dataclass(frozen=True)
class Places:
    """Places."""

    on: Annotated[
        Names,
        option(
            metavar="PLACE",
            help="Run the target there: python=PATH, env='onnxruntime==1.20.1 numpy<2', ssh=HOST,python=PATH, "
            "command='... python3 -', or ray=auto. Several are several workers.",
        ),
    ] = ()
