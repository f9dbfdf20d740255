"""The options of TensorRT's compiler that are known in public, and the switches that they make.

Nothing is read out of the vendor's libraries: names and values come from ``all_build_routes``, the
API of 11.1 and later; from :data:`PUBLIC`, which names the source of each; and from the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from bisect_trt.errors import UnknownNameError
from bisect_trt.options.reading import harmful
from bisect_trt.targets.base import Switch, Tier
from bisect_trt.targets.switches import adding

PUBLIC = (
    # NVIDIA/TensorRT-Edge-LLM, cpp/builder/llmBuilder.cpp
    "peep:fc_h_fusion=off",
    "peep:match_dual_gemm=off",
    "mlir:collective:fp4=off",
    "cask_fusion:async_policy=1",
    # NVIDIA/TensorRT-Edge-LLM, issue 151
    "cask_fusion:max_num_epilogues=1",
    # Model-Connect, README: a workaround for builds of Edge-LLM
    "mlir:collective=off",
    # a workaround for TensorRT-RTX 1.6 on GB10
    "l2cm:enable=off",
    # NVIDIA/TensorRT, samples/trtexec/README.md
    "copy_ppg=off",
    "match_ragged_mha=off",
    # pytorch/TensorRT, global_perf_tuning_attention_example.py
    "reshape_ppg=off",
    "slice_fusion=off",
    "peep:max=1",
    "kgen:codegen:cuda_tile=0",
    "cask_fusion:num_tactics=10",
    # trtexec 11.1, --helpBuildRoute
    "conv_lowering=off",
    "kgen:tiling=0",
)
"""Options with a value that is not the default, below where they are documented or used."""


def compiler_switches(wanted: Sequence[str], routes: str) -> Iterator[Switch]:
    """Yield switches for options of the compiler, and for each counter one for each of its values, in order.

    Args:
        wanted: What the user asks for, each ``NAME=VALUES``: a name or a pattern; values between
            bars, ``*`` for all that are known, or ``LOW..HIGH``. Empty for all that are known.
        routes: The JSON of ``all_build_routes``; empty where there is none.

    Raises:
        UsageError: No known name fits a pattern, or the values of a name are not known.
    """
    options = _known(routes)
    for request in wanted or [f"{name}=*" for name in options]:
        pattern, _, values = request.partition("=")
        names = [name for name in options if fnmatchcase(name, pattern)]
        if not names and any(sign in pattern for sign in "*?["):
            raise UnknownNameError(
                f"--compiler-switch {request}: no known option fits; known are: {', '.join(options)}."
            )
        for name in names or [pattern]:
            yield from _switches(request, name, values, options.get(name, []))


def _switches(request: str, name: str, values: str, names: Sequence[str]) -> Iterator[Switch]:
    counts = re.fullmatch(r"(\d{1,4})\.\.(\d{1,4})", values)
    chosen: Iterable[object] = names if values == "*" else values.split("|")
    if counts:
        low, high = map(int, counts.groups())
        chosen = range(low, high + 1)
    elif values == "*" and not names:
        raise UnknownNameError(f"--compiler-switch {request}: its values are not known; give them.")
    for value in chosen:
        option = f"{name}={value}"
        # Some options write files, connect to hosts or end the process.
        if not harmful(option):
            yield Switch(
                f"pass:{option}",
                adding("compiler_options", option),
                Tier.STEP if counts else Tier.COMPILER,
                within=name if counts else None,
            )


def _known(routes: str) -> dict[str, list[str]]:
    """Return the values other than the default of each known option."""
    options = dict[str, list[str]]()
    for option in PUBLIC:
        name, _, value = option.partition("=")
        options.setdefault(name, []).append(value)
    # Releases that list their own options have the last word on the values.
    for knob in json.loads(routes or "{}").get("tuner_options", ()):
        name, _, values = str(knob["allowed_values"]).removeprefix("-").partition("=")
        listed = re.fullmatch(r"\[(.*)\]", values)
        if listed and ".." not in values:
            default = str(knob.get("default_value"))
            options[name] = [value for value in listed[1].split("|") if value != default]
    return options
