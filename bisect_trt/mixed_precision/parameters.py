"""The parameters of a search for precision, and how they are read from the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.choices import Minimise
from bisect_trt.options.searches import FRESH_SAMPLES, Precision
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.saved import files_of
from bisect_trt.tensors.scripts import is_script, split_script
from bisect_trt.tensors.tolerance import ToleranceOptions

Low = Literal["fp16", "bf16", "int8", "fp8", "int4"]
BITS: tuple[Low, ...] = ("int8", "fp8", "int4")
"""Quantized types; a search for one of these is about Q/DQ groups."""
HALVES: tuple[Low, ...] = ("fp16", "bf16")
UNUSED_RANGES = "no ranges are found: TensorRT 8.6 to 10 do that, with --int8, of models without Q/DQ"


@dataclass(frozen=True)
class PrecisionSettings:
    """What to lower, and where the answer goes.

    Attributes:
        output: The mixed-precision model.
        precision: What to lower to.
        target: The runtime that the built-in check compares with the reference; ``None`` for a check command or prompts.
        include: If any, only nodes that one of these patterns matches are lowered.
        exclude: Nodes that one of these matches are not.
        io_low: Whether graph inputs and outputs are lowered as well.
        keep_weights: Whether weights stay in fp32.
        overwrite: Whether a file that exists may be written over.
        by_layer: Whether the target lowers layer by layer, rather than run models that are lowered already.
        minimise: What to have the least of.
        fresh_samples: How many samples that the search has not seen the safe set is held against; 0 for none.
        validation_data: The user's own, files or scripts, instead.
        minimal_output: Where the model of the minimal set goes, if it was asked for.
        bits: The quantized types whose groups are searched, of a quantized model; none for a search of nodes.
        float_model: The model from before quantization, if it was given.
        sensitivity: Whether to measure what each group costs alone.
        rungs: The precisions that the parts of a model may have, the cheapest first; none without ``--ladder``.
        calibration_cache: The file of the ranges for INT8, if given.
        calibrated: Whether what is not kept may run in INT8 by those ranges; ``precision`` then says how far it may be off.
        divide_regions: Whether each node is searched alone also in what the target fuses whatever is asked for.
        most: How many questions the search for the minimal set may ask; ``None`` for no limit.
        tolerance: The tolerance on fresh samples; ``None`` for that of the search.
    """

    output: Path
    precision: Low
    target: TargetSettings | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    io_low: bool = False
    keep_weights: bool = False
    overwrite: bool = False
    by_layer: bool = False
    minimise: Minimise = Minimise.NODES
    fresh_samples: int = FRESH_SAMPLES
    validation_data: tuple[str, ...] = ()
    minimal_output: Path | None = None
    bits: tuple[Low, ...] = ()
    float_model: Path | None = None
    sensitivity: bool = True
    rungs: tuple[str, ...] = ()
    calibration_cache: Path | None = None
    calibrated: bool = False
    divide_regions: bool = False
    most: int | None = None
    tolerance: ToleranceOptions | None = None

    @classmethod
    def of(cls, own: Precision, output: Path, low: Sequence[Low], target: TargetSettings | None) -> PrecisionSettings:
        """The settings that a command's or a Python function's options give.

        Args:
            own: The options.
            output: Where the mixed model goes.
            low: What the rest is to run in; of quantized types there may be several.
            target: The runtime under suspicion.
        """
        return cls(
            output,
            low[0],
            target,
            tuple(own.include),
            tuple(own.exclude),
            own.io_fp16,
            own.keep_weights,
            own.overwrite,
            minimise=own.minimise,
            fresh_samples=own.fresh_samples,
            validation_data=tuple(own.validation_data),
            minimal_output=own.minimal_output,
            bits=tuple(each for each in low if each in BITS),
            float_model=own.reference,
            sensitivity=own.sensitivity,
            rungs=own.ladder or (),
            calibration_cache=own.calibration_cache,
            divide_regions=own.divide_regions,
        )

    @property
    def low(self) -> str:
        """The precision of what is not kept, in words."""
        return "/".join(self.bits) or ("int8" if self.calibrated else self.precision)

    @property
    def half(self) -> Low | None:
        """The rung of a ladder between the quantized types and fp32, if it has one."""
        return next((low for low in HALVES if low in self.rungs), None)

    @property
    def emulated(self) -> bool:
        """Whether candidates run where low-precision nodes would be computed in fp32, such as ONNX Runtime's CPU provider."""
        return self.target is not None and self.target.target.emulates_low(self.target)

    @property
    def by_arithmetic(self) -> bool:
        """Whether they round by arithmetic there, and not by Casts."""
        return self.target is not None and self.target.target.drops_casts(self.target)

    def check_output(self) -> None:
        """Make sure that the answer can be written.

        Raises:
            UsageError: It cannot.
        """
        check_output(self.output, overwrite=self.overwrite)
        if self.minimal_output is not None:
            check_output(self.minimal_output, overwrite=self.overwrite)
            if self.minimal_output.absolute() == self.output.absolute():
                raise UsageError(
                    f"-o and --minimal-output both name {self.output}, which can hold one of both sets; name another file."
                )


def precision_files(own: Precision) -> list[Path]:
    """The files of ``--validation-data`` and ``--reference``.

    Raises:
        UsageError: A script does not exist, or a file holds no samples.
    """
    found = [] if own.reference is None else [own.reference]
    for entry in own.validation_data:
        found += [split_script(entry, "", "data-loader")[0]] if is_script(entry) else files_of(Path(entry))
    return found


def low_precision(target: Target, own: Precision) -> tuple[tuple[Low, ...], TargetSettings | None]:
    """What a search for precision lowers to, and the target without it: the search lowers the model itself.

    A target that has quantized types of its own keeps them: to it, Q/DQ in a model says where, and the option that it may.

    Raises:
        UsageError: Not exactly one of --fp16 and --bf16 is given and no quantized type, or another option does not fit.
    """
    if own.ladder is not None:
        target, own = _on_ladder(target, own, own.ladder)
    asked = {"int8": target.int8, "fp8": target.fp8, "int4": own.int4}
    bits = tuple(each for each in BITS if asked[each])
    if own.calibration_cache is not None and "int8" not in bits:
        raise UsageError(f"--calibration-cache: {UNUSED_RANGES}; drop it.")
    if not bits:
        runtime = (target if target.named() else target.but(fp16=False, bf16=False)).settings()
        if own.reference is not None:
            raise UsageError("--reference is the model before quantization: use it with --int8, --fp8 or --int4.")
        if target.fp16 == target.bf16:
            raise UsageError(
                "precision needs exactly one of --fp16 and --bf16; for a quantized model --int8, --fp8 or --int4."
            )
        return ("fp16" if target.fp16 else "bf16",), runtime
    plugins = target.named()
    able = [each for each in plugins if each.name != "onnxrt"] or plugins
    unable = {each: False for each in ("int8", "fp8") if not able or each not in able[0].precisions}
    if not able or not able[0].capabilities.lowers_layers:
        for flag in ("fp16", "bf16"):
            if getattr(target, flag):
                raise UsageError(
                    f"--{flag} and --{bits[0]} are two searches for this target: drop --{flag}, and search for it in the "
                    f"model that is written, or use --ladder {bits[0]},{flag},fp32."
                )
    return bits, target.but(**unable).settings()


def _on_ladder(target: Target, own: Precision, ladder: Sequence[str]) -> tuple[Target, Precision]:
    """The options for the first search of a ladder.

    Raises:
        UsageError: A precision is given that is not on it.
    """
    flags = {name: getattr(target, name) for name in ("fp16", "bf16", "int8", "fp8")} | {"int4": own.int4}
    beside = next((name for name, given in flags.items() if given and name not in ladder), None)
    if beside is not None:
        raise UsageError(
            f"--{beside} is not among the precisions of --ladder {','.join(ladder)}; drop it, or name it there."
        )
    first = [name for name in ladder if name in BITS] or ladder[:1]
    wanted = {name: name in first for name in ("fp16", "bf16", "int8", "fp8")}
    return target.but(**wanted), replace(own, int4="int4" in first)
