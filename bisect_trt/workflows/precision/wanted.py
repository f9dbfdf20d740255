"""What a search for precision is to lower, and on what it depends, from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisect_trt.errors import UsageError
from bisect_trt.options.searches import Precision
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.saved import files_of
from bisect_trt.tensors.user_script import is_script, split_script
from bisect_trt.workflows.precision.task import BITS, UNUSED_RANGES, Low


def precision_files(own: Precision) -> list[Path]:
    """The files of ``--validation-data`` and ``--reference``.

    Raises:
        UsageError: There is no such script, or a file is none that holds samples.
    """
    found = [] if own.reference is None else [own.reference]
    for entry in own.validation_data:
        found += [split_script(entry, "", "data-loader")[0]] if is_script(entry) else files_of(Path(entry))
    return found


def _on_ladder(target: Target, own: Precision, ladder: Sequence[str]) -> tuple[Target, Precision]:
    """The options as they ask for the first search of a ladder.

    Raises:
        UsageError: Another precision is asked for beside it.
    """
    flags = {name: getattr(target, name) for name in ("fp16", "bf16", "int8", "fp8")} | {"int4": own.int4}
    beside = next((name for name, given in flags.items() if given and name not in ladder), None)
    if beside is not None:
        raise UsageError(
            f"--{beside} is not among the precisions of --ladder {','.join(ladder)}; drop it, or name it there."
        )
    first = [name for name in ladder if name in BITS] or ladder[:1]
    if first[0] not in BITS and own.cost is not None:
        raise UsageError("--cost compares assignments with quantized parts; name int8, fp8 or int4 first in --ladder.")
    wanted = {name: name in first for name in ("fp16", "bf16", "int8", "fp8")}
    return target.but(**wanted), replace(own, int4="int4" in first)


def low_precision(target: Target, own: Precision) -> tuple[tuple[Low, ...], TargetSettings | None]:
    """What a search for precision lowers to, and the target without it: the search lowers the model itself.

    A target that has quantized types of its own keeps them: to it, Q/DQ in a model says where, and the option that it may.

    Raises:
        UsageError: Not exactly one of --fp16 and --bf16 is given and no quantized type, or another option does not fit.
    """
    if own.ladder is not None:
        target, own = _on_ladder(target, own, own.ladder)
    elif own.cost is not None:
        raise UsageError(
            "--cost compares the assignments of a --ladder, and there is none; add --ladder int8,fp16,fp32."
        )
    asked = {"int8": target.int8, "fp8": target.fp8, "int4": own.int4}
    bits = tuple(each for each in BITS if asked[each])
    if own.calibration_cache is not None and "int8" not in bits:
        raise UsageError(f"--calibration-cache: {UNUSED_RANGES}; drop it.")
    if not bits:
        runtime = (target if target.named() else target.but(fp16=False, bf16=False)).settings()
        if own.reference is not None:
            raise UsageError(
                "--reference is the model from before quantization, and --int8, --fp8 or --int4 goes with it."
            )
        if target.fp16 == target.bf16:
            raise UsageError(
                "a search for precision is about one of --fp16 and --bf16; say which, and only one. Of a quantized model it is "
                "about --int8, --fp8 or --int4."
            )
        return ("fp16" if target.fp16 else "bf16",), runtime
    plugins = target.named()
    able = [each for each in plugins if each.name != "onnxrt"] or plugins
    unable = {each: False for each in ("int8", "fp8") if not able or each not in able[0].precisions}
    if not able or not able[0].capabilities.lowers_layers:
        for flag in ("fp16", "bf16"):
            if getattr(target, flag):
                raise UsageError(
                    f"--{flag} and --{bits[0]} are two searches for this target: what is quantized goes back to the floats that "
                    f"the model has; drop --{flag}, and search for it in what comes out, or use --trt, which chooses among both."
                )
    return bits, target.but(**unable).settings()
