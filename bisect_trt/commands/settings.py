"""What the user asked for, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from bisect_trt.onnxlib.load import load_model, needed_ir_version
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.metric import MetricOptions
from bisect_trt.options.oracle import Oracle
from bisect_trt.options.shared import CheckOptions, Data
from bisect_trt.options.spec import written
from bisect_trt.probe.workspace import FIXED_PATH, POLYGRAPHYS_PATH
from bisect_trt.report.console import Console
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare import check_script
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions

_PLACES = ("{model}", "{dir}", "{engine}")
"""Any of these tells a check where the candidate is."""


@dataclass(frozen=True)
class ModelSettings:
    """The model and what to feed it.

    Attributes:
        path: The ``.onnx`` file.
        data: Where the values of its inputs come from, and where its weights lie.
        most: How many samples are taken at most; ``None`` for all.
        any_shapes: Whether samples may have other shapes than the first, where the file leaves dimensions free.
        stays_free: Whether what is made of it has the file's free dimensions, so that nobody need be told of their sizes.
        older: Whether a runtime that is asked may be older than its IR version; it then gets the lowest that it needs.
    """

    path: Path
    data: Data = field(default_factory=Data)
    most: int | None = None
    any_shapes: bool = False
    stays_free: bool = False
    older: bool = False

    def load(self) -> onnx.ModelProto:
        """The model as all that is made of it is written.

        Raises:
            UnavailableError: As :func:`load_model`; and UsageError.
        """
        model = load_model(self.path, self.data.external_data_dir)
        if self.older:
            model.ir_version = needed_ir_version(model)
        return model

    @property
    def weights(self) -> Path:
        """The folder that the files of its weights lie in."""
        return (self.data.external_data_dir or self.path.parent).absolute()


@dataclass(frozen=True)
class CheckSettings:
    """What says good or bad.

    Attributes:
        options: What the user said of it; of a built-in check the time that a candidate may take.
        argv: The user's command; empty without one.
        target: The runtime that the built-in check compares with the reference; ``None`` without one.
        tolerance: How far it may be off.
        by_layer: Whether the target lowers candidates itself, layer by layer; a command is then given their engines.
        timed: Whether the built-in comparison measures how long a candidate runs.
        metric: The metric that says good or bad of the target, in place of the tolerance.
        function: A Python function that says good or bad; see ``FunctionCheck``.
        oracle: The oracle of another package that decides, if one does.
    """

    options: CheckOptions = field(default_factory=CheckOptions)
    argv: tuple[str, ...] = ()
    target: TargetSettings | None = None
    tolerance: ToleranceOptions = field(default_factory=ToleranceOptions)
    by_layer: bool = False
    timed: bool = False
    metric: MetricOptions | None = None
    function: Callable[..., object] | None = None
    oracle: Oracle | None = None

    @property
    def timeout(self) -> float | None:
        """Seconds a candidate may take."""
        return self.options.timeout

    def without_target(self, console: Console) -> CheckSettings:
        """The check without a target that has no effect beside a check command; a note says so."""
        if not self.argv or self.target is None:
            return self
        console.say(f"--check says good or bad, so {' '.join(self.target.flags())} is not used")
        return replace(self, target=None)

    def how_to(self, command: str, model: Path, inputs: Path, places: Sequence[str]) -> str:
        """``reduce`` or ``repeat`` by the same check of the user's on these values: a command line, or a call for a function."""
        if self.function is not None:
            name = getattr(self.function, "__name__", "check")
            return f"bisect_trt.{command}({str(model)!r}, {name}, inputs={str(inputs)!r})"
        conditions = replace(self.options, check=[], artifacts=[], artifacts_dir=CheckOptions.artifacts_dir)
        words = ["bisect-trt", command, str(model), *(["-o", "reduced.onnx"] if command == "reduce" else [])]
        words += [*places, "--load-inputs", str(inputs), *written(conditions)]
        return shlex.join([*words, *(("--check", *self.argv) if self.argv else ())])

    @property
    def fixed_path(self) -> Path | None:
        """Where every candidate has to lie, if the check cannot be told where it is."""
        if self.options.candidate is not None:
            return self.options.candidate
        if not self.argv and not (self.target is None and self.function is None and self.oracle is None):
            return None
        if any(name in word for word in self.argv for name in _PLACES):
            return None
        # A command that was written for Polygraphy would look at a file that is not there.
        return POLYGRAPHYS_PATH if any(POLYGRAPHYS_PATH.name in word for word in self.argv) else FIXED_PATH


def tolerance_options(
    compare: CompareOptions, target: TargetSettings | None, *, nonfinite_equal: bool = True
) -> ToleranceOptions:
    """How far a target may be off.

    Raises:
        UsageError: An option does not fit the others, or there is no such script.
    """
    compare.check()
    if compare.compare_func_script is not None:
        check_script(compare.compare_func_script)
    return ToleranceOptions(**vars(compare), precision=_coarsest(target), nonfinite_equal=nonfinite_equal)


def _coarsest(target: TargetSettings | None) -> Precision:
    """What rounds most of what a target may compute in; 8-bit types are held to bfloat16, which has as few digits."""
    low = frozenset(target.low_precisions if target is not None else ())
    if low & {"bf16", "fp8", "int8"}:
        return Precision.BF16
    return Precision.FP16 if "fp16" in low else Precision.TF32 if "tf32" in low else Precision.FP32
