"""The parameters of a search for precision, and how they follow from the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bisect_trt.errors import ConflictError, MissingOptionError, ValueRefusedError
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.inputs import is_script, split_script
from bisect_trt.tensors.saved import files_of
from bisect_trt.tensors.tolerance import ToleranceOptions

Low = Literal["fp16", "bf16", "int8", "fp8", "int4"]
BITS: tuple[Low, ...] = ("int8", "fp8", "int4")
"""Quantized types; a search for one of these searches Q/DQ groups."""
HALVES: tuple[Low, ...] = ("fp16", "bf16")
UNUSED_RANGES = "no ranges are found: TensorRT 8.6 to 10 do that, with --int8, of models without Q/DQ"


@dataclass(frozen=True)
class PrecisionSettings:
    """The options of a search for precision, and the values that follow from them.

    Attributes:
        options: The options.
        precision: The precision that nodes are lowered to. With ``calibrated``, that of the tolerance.
        target: The runtime that is compared with the reference; ``None`` for a check command or prompts.
        bits: The quantized types whose groups are searched; none for a search of nodes.
        by_layer: Whether the target lowers layer by layer, rather than run models with Casts.
        calibrated: Whether nodes that are not kept may run in INT8, by ranges that TensorRT measured.
        most: The largest number of questions of the search for the minimal set; ``None`` for no limit.
        tolerance: The tolerance on fresh samples; ``None`` for that of the search.
    """

    options: PrecisionOptions
    precision: Low
    target: TargetSettings | None = None
    bits: tuple[Low, ...] = ()
    by_layer: bool = False
    calibrated: bool = False
    most: int | None = None
    tolerance: ToleranceOptions | None = None

    @property
    def output(self) -> Path:
        """The file of the answer."""
        return self.options.output

    @property
    def low(self) -> str:
        """The precision of units that are not kept, in words."""
        return "/".join(self.bits) or ("int8" if self.calibrated else self.precision)

    @property
    def rungs(self) -> tuple[str, ...]:
        """The precisions of ``--ladder``, the cheapest first; none without it."""
        return tuple(self.options.ladder or ())

    @property
    def half(self) -> Low | None:
        """The precision of the ladder between the quantized types and fp32, if it has one."""
        return next((low for low in HALVES if low in self.rungs), None)

    @property
    def emulated(self) -> bool:
        """Whether candidates run on a runtime that would compute low-precision nodes in fp32: ONNX Runtime's CPU provider."""
        return self.target is not None and self.target.target.emulates_low(self.target)


def precision_files(own: PrecisionOptions) -> list[Path]:
    """The files of ``--validation-data`` and ``--reference``.

    Raises:
        UsageError: A script does not exist, or a file holds no samples.
    """
    found = [] if own.reference is None else [own.reference]
    for entry in own.validation_data:
        found += [split_script(entry, "", "data-loader")[0]] if is_script(entry) else files_of(Path(entry))
    return found


def low_precision(target: Target, own: PrecisionOptions) -> tuple[tuple[Low, ...], TargetSettings | None]:
    """What a search for precision lowers to, and the target without it: the search lowers the model itself.

    A target with quantized types keeps them: to it, Q/DQ in a model shows where to quantize, and the option allows it.

    Raises:
        UsageError: Not exactly one of --fp16 and --bf16 is given and no quantized type, or another option does not fit.
    """
    given = {"fp16": target.fp16, "bf16": target.bf16, "int8": target.int8, "fp8": target.fp8, "int4": own.int4}
    if own.ladder is not None:
        rungs = ",".join(own.ladder)
        beside = next((name for name, on in given.items() if on and name not in own.ladder), None)
        if beside is not None:
            raise ConflictError(
                f"--{beside} is not among the precisions of --ladder {rungs}; drop it, or name it there."
            )
        first = [name for name in own.ladder if name in BITS] or own.ladder[:1]
        given = {name: name in first for name in given}
        target = target.but(**{name: given[name] for name in ("fp16", "bf16", "int8", "fp8")})
    bits = tuple(each for each in BITS if given[each])
    if own.calibration_cache is not None and "int8" not in bits:
        raise ConflictError(f"--calibration-cache: {UNUSED_RANGES}; drop it.")
    if not bits:
        runtime = (target if target.named() else target.but(fp16=False, bf16=False)).settings()
        if own.reference is not None:
            raise ValueRefusedError(
                "--reference is the model before quantization: use it with --int8, --fp8 or --int4."
            )
        if given["fp16"] == given["bf16"]:
            raise MissingOptionError(
                "precision needs exactly one of --fp16 and --bf16; for a quantized model --int8, --fp8 or --int4."
            )
        return ("fp16" if given["fp16"] else "bf16",), runtime
    plugins = target.named()
    able = [each for each in plugins if each.name != "onnxrt"] or plugins
    unable = {each: False for each in ("int8", "fp8") if not able or each not in able[0].precisions}
    flag = next((name for name in HALVES if given[name]), None)
    if flag is not None and not (able and able[0].compiles):
        raise ConflictError(
            f"--{flag} and --{bits[0]} are two searches for this target: drop --{flag}, and search for it in the "
            f"model that is written, or use --ladder {bits[0]},{flag},fp32."
        )
    return bits, target.but(**unable).settings()
