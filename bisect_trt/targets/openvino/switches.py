"""What of OpenVINO can be turned: properties of the device, and precisions.

A release build has no switch for a single transformation of the graph; two properties leave out whole families of them:
``SNIPPETS_MODE`` the fusion of elementwise nodes into generated code, ``LP_TRANSFORMS_MODE`` the propagation of
QuantizeLinear and DequantizeLinear (``src/plugins/intel_cpu/src/config.cpp``). They are not among the properties that the
device lists, so what it takes is tried.
"""

from __future__ import annotations

from functools import partial

from bisect_trt.targets.openvino.opening import FULL, HINT, HINTS, PROPERTIES
from bisect_trt.targets.openvino.settings import OpenVinoSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import LIKELY, Looked, Snippet, Switch, Tier, precision_switches

_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear"})


def openvino_switches(settings: TargetSettings, looked: Looked) -> list[Switch]:
    """Properties that are given, each left out; those that the device takes, each turned; precisions."""
    own, takes = settings.of(OpenVinoSettings), (looked.trace or {}).get("takes", ())
    given = dict(own.properties)
    found = [Switch(f"option:{name}", partial(_without, name), weight=LIKELY, how="left out") for name in given]
    for name, value in PROPERTIES:
        if name in given or name not in takes:
            continue
        quantized = name.startswith("LP_")
        if quantized and not looked.operators & _QUANTIZED:
            continue
        found.append(
            Switch(
                f"option:{name}={value}",
                partial(_with, name, value),
                Tier.PASS if name in ("LP_TRANSFORMS_MODE", "SNIPPETS_MODE") else Tier.OPTION,
                LIKELY if quantized and looked.suspects & _QUANTIZED else 1.0,
            )
        )
    return sorted([*found, *precision_switches(settings)], key=lambda each: each.tier)


def _without(name: str, settings: TargetSettings) -> TargetSettings:
    pairs = settings.of(OpenVinoSettings).properties
    return settings.with_own(properties=tuple(pair for pair in pairs if pair[0] != name))


def _with(name: str, value: str, settings: TargetSettings) -> TargetSettings:
    return settings.with_own(properties=(*settings.of(OpenVinoSettings).properties, (name, value)))


_SCRIPT = """import sys

import numpy as np
import openvino

m = sys.argv[1]
{code}
with np.load(sys.argv[2]) as values:
    fed = [values[f"arr_{{place}}"] for place in range(len(compiled.inputs))]
found = compiled(fed)
np.savez(sys.argv[3], *[found[place] for place in range(len(compiled.outputs))])
"""


def openvino_snippet(settings: TargetSettings) -> Snippet:
    """The line that compiles a model so; what was rounded to a low precision in the file runs in fp32."""
    own = settings.of(OpenVinoSettings)
    low = next(iter(settings.low_precisions), None)
    rounded = low is None or settings.keep or (low == "fp16" and settings.target.drops_casts(settings))
    properties = {HINT: FULL if rounded or low is None else HINTS[low], **dict(own.properties)}
    line = f"compiled = openvino.Core().compile_model(m, {own.device!r}, {properties!r})".replace("'", '"')
    return Snippet((line,), _SCRIPT.format(code=line))
