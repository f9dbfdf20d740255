"""The options of the commands that search or compare; the docstring of each group is the help of its command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from bisect_trt.aliases import Names
from bisect_trt.errors import ConflictError
from bisect_trt.options.compare import BASELINE
from bisect_trt.options.reading import Sizes, assignment, compiler_option, swept_shape
from bisect_trt.options.shared import (
    FindAll,
    Model,
    NoOtherRelease,
    Overwrite,
    ReferenceModel,
    time_out,
    to_file,
)
from bisect_trt.options.spec import MOST, argument, counted, option, switch
from bisect_trt.search.oracle import Mode

FRESH_SAMPLES = 200
"""If none of 200 samples fails, less than 1.5% of all fail, with 95% confidence."""


@dataclass(frozen=True)
class Diagnose:
    """Find out why the target is wrong, and write a reproducer. Start with this command.

    Examples:
        diagnose model.onnx --trt --fp16
        diagnose model.onnx --onnxrt --load-inputs inputs.npz
    """

    model: Model
    output: Annotated[
        Path | None, to_file("Folder for the reproducer; default MODEL-reproducer.", "DIR")
    ] = None
    timeout: Annotated[float | None, time_out("one candidate")] = None
    archive: Annotated[
        bool, option("--zip", help="Pack the reproducer into a .zip beside it too.")
    ] = False
    anonymise: Annotated[
        bool, switch("Rename the reproducer's tensors and nodes, and replace its weights.")
    ] = False
    reference: ReferenceModel = None
    find_all: FindAll = False
    releases: Annotated[
        bool,
        switch("Also find since which release it fails; installs releases from the package index."),
    ] = False
    no_other_release: NoOtherRelease = False
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Workaround:
    """Write a model that passes, with the least loss: fusion barriers, another form of the culprit, layers in fp32.

    Examples:
        workaround model.onnx --trt -o patched.onnx
        workaround model.onnx --onnxrt --load-inputs inputs.npz
    """

    model: Model
    output: Annotated[Path, to_file("Where the patched model goes.")] = Path("patched.onnx")
    timeout: Annotated[float | None, time_out("one candidate")] = None
    no_other_release: NoOtherRelease = False
    overwrite: Overwrite = False


CompilerSwitches = Annotated[
    Names,
    option(
        metavar="NAME=VALUES",
        help="Search only these options of TensorRT's compiler: values A|B, or a counter LOW..HIGH.",
        read=compiler_option,
    ),
]


@dataclass(frozen=True)
class Cause:
    """Find the pass, option or tactic that is the cause: the fewest switches of the target that fix the model.

    Examples:
        cause model.onnx --onnxrt
        cause model.onnx --trt --fp16 --load-inputs inputs.npz
    """

    model: Model
    compiler_switch: CompilerSwitches = ()
    no_other_release: NoOtherRelease = False


@dataclass(frozen=True)
class Reduce:
    """Find the smallest model that still fails, with your own check, a built-in comparison, or by asking you.

    Examples:
        reduce model.onnx -o small.onnx --trt
        reduce model.onnx -o small.onnx --check ./check.sh {model}
    """

    model: Model
    output: Annotated[Path, to_file("Where the smallest failing model goes.")]
    min_good: Annotated[
        Path | None, option(help="Where the largest passing model next to it goes.", writes=True)
    ] = None
    reduce_inputs: Annotated[bool, option(help="Keep the start of the graph.")] = True
    reduce_outputs: Annotated[bool, option(help="Keep the end of the graph.")] = True
    mode: Annotated[Mode, option(help="How to search.")] = Mode.AUTO
    find_all: FindAll = False
    no_other_release: NoOtherRelease = False
    overwrite: Overwrite = False

    @property
    def both_ends(self) -> bool:
        """Whether both ends of the graph may move."""
        return self.reduce_inputs and self.reduce_outputs

    @property
    def inputs(self) -> Path:
        """The file for the inputs of the reduced model."""
        return self.output.with_suffix(".inputs.npz")

    @property
    def golden(self) -> Path:
        """The file for its outputs on the reference."""
        return self.output.with_suffix(".golden.npz")

    @property
    def files(self) -> list[Path]:
        """All files of the answer."""
        return [*filter(None, (self.output, self.inputs, self.golden, self.min_good))]

    def of_another(self, number: int) -> Reduce:
        """Return the options with the files of another failure."""
        output = self.output.with_name(f"{self.output.stem}-{number}{self.output.suffix}")
        return replace(self, output=output, min_good=None)


RUNGS = ("int4", "int8", "fp8", "fp16", "bf16", "fp32")
QUANTIZED_RUNGS = RUNGS[:3]
HALF_RUNGS = RUNGS[3:5]


def rungs(value: Any) -> Names:  # noqa: ANN401 - whatever was given
    """Precisions from the cheapest to fp32, as ``int8,fp16,fp32``.

    Raises:
        ValueError: They are not that.
    """
    names = tuple(
        str(name).strip().lower()
        for name in (value.split(",") if isinstance(value, str) else value)
    )
    # Quantized rungs come first, then at most one of fp16 and bf16, then fp32.
    kinds = [0 if name in QUANTIZED_RUNGS else 1 if name in HALF_RUNGS else 2 for name in names]
    valid = set(names) <= set(RUNGS) and len(set(names)) == len(names)
    if (
        not valid
        or len(names) < 2
        or names[-1] != "fp32"
        or kinds != sorted(kinds)
        or kinds.count(1) > 1
    ):
        raise ValueError(
            "precisions from the cheapest to fp32, such as int8,fp16,fp32: what is quantized (int4, int8, fp8), then fp16 or "
            "bf16, then fp32"
        )
    return names


def share(value: Any) -> float:  # noqa: ANN401 - whatever was given
    """A share, as ``1%`` or ``0.01``.

    Raises:
        ValueError: It is none.
    """
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("a share such as 1% or 0.01")
    return number


def multiple(value: Any) -> float:  # noqa: ANN401 - whatever was given
    """A multiple, as ``2x`` or ``2``.

    Raises:
        ValueError: It is none.
    """
    try:
        number = float(str(value).strip().removesuffix("x"))
    except ValueError:
        number = math.nan
    if not number > 0:
        raise ValueError("a multiple of the tolerance such as 2x")
    return number


@dataclass(frozen=True)
class PrecisionOptions:
    """Find the fewest nodes that have to stay in fp32 for the rest to run in fp16 or bf16, and write that model.

    With --int8, --fp8 or --int4: of a quantized model (QuantizeLinear/DequantizeLinear) the fewest
    groups that have to go back to floats.

    Examples:
        precision model.onnx -o mixed.onnx --trt --fp16
        precision int8.onnx -o mixed.onnx --trt --int8 --reference m.onnx
    """

    model: Model
    output: Annotated[Path, to_file("Where the mixed model goes.")]
    include: Annotated[
        Names,
        option(
            metavar="PATTERN",
            help="Lower these nodes only: globs over names, or over operators (op:Softmax).",
        ),
    ] = ()
    exclude: Annotated[Names, option(metavar="PATTERN", help="Never lower these nodes.")] = ()
    validation_data: Annotated[
        Names,
        option(
            metavar="FILE[:FUNC]",
            help="Hold sets against these samples, .npz, .json or a Python file, not against made-up ones.",
        ),
    ] = ()
    fresh_samples: Annotated[
        int, counted("Hold sets against N samples that the search has not seen.", minimum=0)
    ] = FRESH_SAMPLES
    keep_set: Annotated[
        int | None,
        option(
            metavar="N",
            min=0,
            help="Write the set of N nodes of the last run's curve, without a new search.",
        ),
    ] = None
    fail_share: Annotated[
        float | None,
        option(
            metavar="SHARE",
            help="Write the smallest set of the last run's curve with which at most this share of samples fails, as 1%.",
            read=share,
        ),
    ] = None
    error: Annotated[
        float | None,
        option(
            metavar="Nx",
            help="Write the smallest set of the last run's curve with errors of up to N times the tolerance, as 2x.",
            read=multiple,
        ),
    ] = None
    int4: Annotated[bool, switch("Of a quantized model, what is in 4-bit integers.")] = False
    ladder: Annotated[
        Sequence[str] | None,
        option(
            metavar="LOW,...,fp32",
            help="What cannot stay quantized goes to fp16 where that passes, else to fp32: int8,fp16,fp32.",
            read=rungs,
        ),
    ] = None
    reference: Annotated[
        Path | None,
        option(
            metavar="MODEL",
            help="The model from before quantization: what is right, and its weights.",
        ),
    ] = None
    calibration_cache: Annotated[
        Path | None,
        option(
            help="Of a model that is not quantized: ranges for --int8, read if there, else written (TensorRT 8.6 to 10).",
            writes=True,
        ),
    ] = None
    sensitivity: Annotated[
        bool, option(help="Do not measure the error of each quantized group alone.")
    ] = True
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Releases:
    """Find the release of the target in which a failure appeared, and the one in which it was fixed.

    Examples:
        releases model.onnx --onnxrt
        releases model.onnx --onnxrt --from 1.17 --to 1.20
    """

    model: Annotated[Path, argument("The ONNX model, or the folder of a reproducer.")]
    from_: Annotated[
        str,
        option(
            "--from",
            metavar="VERSION",
            help="The oldest release; default the oldest for this Python.",
        ),
    ] = ""
    to: Annotated[
        str,
        option(
            metavar="VERSION",
            help="The newest release, with all that begin with it; default the newest for this Python.",
        ),
    ] = ""
    find_all: Annotated[
        bool,
        option("--all", help="Probe every release instead of bisecting; the report has the table."),
    ] = False
    package: Annotated[
        str | None, option(metavar="NAME", help="The package to probe with a --check command.")
    ] = None
    beside: Annotated[
        Names,
        option(
            "--with",
            metavar="PACKAGE",
            help="Another package to install in each environment, as pip takes it.",
        ),
    ] = ()
    fusion: Annotated[
        Names,
        option(
            metavar="NODE",
            help="Say of each release whether one layer runs these nodes in an engine.",
        ),
    ] = ()


RUNS = 10
"""The default number of builds of ``repeat``."""
MOST_RUNS = 1000
"""The default largest number of builds with ``--until``."""


def until(value: Any) -> str | int:  # noqa: ANN401 - whatever was given
    """``good``, ``bad`` or ``both``, or a number.

    Raises:
        ValueError: It is none of them.
    """
    word = str(value).lower()
    if word in ("good", "bad", "both"):
        return word
    if word.isdecimal() and 0 < int(word) <= MOST:
        return int(word)
    raise ValueError(f"good, bad, both, or a number from 1 to {MOST}")


@dataclass(frozen=True)
class Repeat:
    """Build or run a model repeatedly: how often it fails, and which choices of the bad builds are the reason.

    Examples:
        repeat model.onnx --trt --fp16 -n 20
        repeat model.onnx --trt --until both
    """

    model: Model
    number: Annotated[
        int | None,
        counted("Builds or runs; default 10. With --until, the largest number.", "-n", "--number"),
    ] = None
    until: Annotated[
        str | None,
        option(
            metavar="good|bad|both|N",
            help="Stop once a good one, a bad one or both have been seen (at most 1000), or after N.",
            read=until,
        ),
    ] = None
    same_engine: Annotated[
        bool, switch("Build once, and run that build repeatedly in one context.")
    ] = False
    compiler_switch: CompilerSwitches = ()

    def limits(self) -> tuple[int, str | None]:
        """Return the largest number, and the verdicts to wait for.

        Raises:
            UsageError: ``-n`` and ``--until`` are both numbers.
        """
        # Polygraphy's `--until N` is a number of runs.
        if self.until is not None and str(self.until).isdecimal():
            if self.number is not None:
                raise ConflictError("-n conflicts with --until N; drop one.")
            return int(self.until), None
        default = RUNS if self.until is None else MOST_RUNS
        return (default if self.number is None else self.number), self.until


@dataclass(frozen=True)
class Samples:
    """Find which of many inputs fail, and the smallest input that still fails.

    Examples:
        samples model.onnx --trt --load-inputs set.npz
        samples model.onnx --onnxrt --iterations 100
    """

    model: Model
    output: Annotated[Path, to_file("Where the smallest input that fails goes, .npz.")] = Path(
        "minimal-input.npz"
    )
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Sweep:
    """Find the sizes at which the target goes wrong: of a batch, or of any dimensions of the inputs.

    Examples:
        sweep model.onnx --trt --shapes x:[1..64,3,224,224]
        sweep model.onnx --onnxrt --shapes x:[n=1..8,16] y:[n=1..8]
    """

    model: Model
    shapes: Annotated[
        tuple[tuple[str, tuple[Sizes, ...]], ...],
        option(
            metavar="NAME:[D,...]",
            help="An input and its sizes: 1..64 is a range, 1..64:8 a range with a step, {1,2,7} a list; dimensions of one name "
            "(n=1..64) have the same size.",
            read=swept_shape,
        ),
    ] = ()
    tries: Annotated[int, counted("The largest number of sizes to probe.", minimum=2)] = 64


@dataclass(frozen=True)
class Layerwise:
    """Compare every tensor with the reference, and name the first that is wrong; or compare the time of every layer.

    Examples:
        layerwise model.onnx --trt --fp16
        layerwise model.onnx --onnxrt --latency
    """

    model: Model
    timeout: Annotated[float | None, time_out("the target")] = None
    isolate: Annotated[
        bool, switch("Also show the error of each layer alone, with inputs from the reference.")
    ] = False
    debug_tensors: Annotated[
        bool,
        switch("Compare the tensors that the compiler keeps, without marks (TensorRT 10.12 on)."),
    ] = False
    latency: Annotated[
        bool, switch("Show the time of each layer beside the baseline's, instead of its values.")
    ] = False
    baseline: Annotated[str | None, BASELINE] = None
    no_other_release: NoOtherRelease = False


@dataclass(frozen=True)
class Matrix:
    """Compare a target with the reference in each combination of releases, precisions or other options, and print one table.

    Examples:
        matrix model.onnx --onnxrt --over release=1.28..1.32
        matrix model.onnx --over target=trt,onnxrt precision=fp32,fp16
    """

    model: Model
    over: Annotated[
        tuple[tuple[str, str], ...],
        option(
            metavar="AXIS=VALUES",
            help="Values with commas of an axis: release (also FIRST..LAST), precision, target, or an option of `run`.",
            read=assignment,
        ),
    ] = ()
    find_all: Annotated[
        bool, option("--all", help="Ask every release, instead of bisecting them.")
    ] = False
    timeout: Annotated[float | None, time_out("the target")] = None


@dataclass(frozen=True)
class Run:
    """Compare a target with the reference or with saved results, or saved results with each other.

    Examples:
        run model.onnx --trt --atol 1e-3
        run --load-outputs before.npz after.npz
    """

    model: Annotated[Path | None, argument("The ONNX model; none to compare saved results.")] = None


@dataclass(frozen=True)
class RunOptions:
    """Outputs to compare."""

    onnx_outputs: Annotated[
        Names,
        option(
            metavar="TENSOR",
            help="Tensors to compare instead of the outputs, by name, glob or op:TYPE; or: mark all.",
        ),
    ] = ()
    onnx_exclude_outputs: Annotated[
        Names,
        option(
            metavar="TENSOR",
            help="Tensors to exclude, by name, glob or op:TYPE.",
        ),
    ] = ()
    save_onnx: Annotated[
        Path | None, option(help="Write the model that the target runs.", writes=True)
    ] = None
    explain_fusions: Annotated[
        bool,
        switch(
            "List the layers that TensorRT's compiler makes of several nodes, and what turns each off."
        ),
    ] = False
    timeout: Annotated[float | None, time_out("the target")] = None
    save_inputs: Annotated[
        Path | None,
        option(help="Write the inputs: .npz, .safetensors, or Polygraphy's .json.", writes=True),
    ] = None
    save_outputs: Annotated[
        Path | None,
        option(
            help="Write the target's outputs: .npz, .safetensors, or Polygraphy's .json.",
            writes=True,
        ),
    ] = None
    reference: ReferenceModel = None
    load_outputs: Annotated[
        tuple[Path, ...],
        option(
            help="Compare with these outputs instead of the reference; two or more files without a model are compared with the "
            "last.",
        ),
    ] = ()
