"""What of OpenVINO can be turned: transformations of the graph that have a property, other properties, the device.

The properties that are no part of ``SUPPORTED_PROPERTIES`` are those of the CPU plugin's own tests
(``intel_cpu/src/config.cpp``: ``LP_TRANSFORMS_MODE``, ``SNIPPETS_MODE``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bisect_trt.targets.openvino.opening import FULL, HINT, HINTS
from bisect_trt.targets.openvino.settings import CPU, OpenVinoSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import LIKELY, Looked, Snippet, Switch, Tier, precision_switches

Turn = Callable[[TargetSettings], TargetSettings]
_TRANSFORMATIONS = (("LP_TRANSFORMS_MODE", "NO"), ("SNIPPETS_MODE", "DISABLE"))
"""Low-precision transformations, which take what is quantized; subgraphs that are compiled as one."""
_PROPERTIES = (
    ("EXECUTION_MODE_HINT", "ACCURACY"),
    ("INFERENCE_NUM_THREADS", "1"),
    ("NUM_STREAMS", "1"),
    ("CPU_DENORMALS_OPTIMIZATION", "YES"),
    ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
    ("KV_CACHE_PRECISION", "f32"),
)
_QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear", "FakeQuantize"})


def openvino_switches(settings: TargetSettings, looked: Looked) -> list[Switch]:
    """All of them: properties that are given, each left out; transformations and properties, each turned."""
    own = settings.of(OpenVinoSettings)
    found = [*_given(own), *precision_switches(settings)]
    if own.device == CPU:
        found += _turned(own, looked)
    else:
        found.append(Switch("device:CPU", lambda given: given.with_own(device=CPU, properties=()), Tier.WHOLE))
    return sorted(found, key=lambda each: each.tier)


def _given(own: OpenVinoSettings) -> Iterator[Switch]:
    for name, _ in own.properties:

        def drop(settings: TargetSettings, without: str = name) -> TargetSettings:
            pairs = settings.of(OpenVinoSettings).properties
            return settings.with_own(properties=tuple(pair for pair in pairs if pair[0] != without))

        yield Switch(f"property:{name}", drop, weight=LIKELY)


def _turned(own: OpenVinoSettings, looked: Looked) -> Iterator[Switch]:
    for tier, pairs in ((Tier.PASS, _TRANSFORMATIONS), (Tier.OPTION, _PROPERTIES)):
        for name, value in pairs:
            if name not in dict(own.properties):
                likely = name == "LP_TRANSFORMS_MODE" and bool(looked.operators & _QUANTIZED)
                yield Switch(f"property:{name}={value}", _set(name, value), tier, LIKELY if likely else 1.0)


def _set(name: str, value: str) -> Turn:
    def turn(settings: TargetSettings) -> TargetSettings:
        given = settings.of(OpenVinoSettings).properties
        return settings.with_own(properties=(*given, (name, value)))

    return turn


_SCRIPT = """import sys

import numpy as np
import openvino

m = sys.argv[1]
{code}
with np.load(sys.argv[2]) as values:
    results = compiled([values[f"arr_{{place}}"] for place in range(len(compiled.inputs))])
np.savez(sys.argv[3], *[results[place] for place in range(len(compiled.outputs))])
"""


def openvino_snippet(settings: TargetSettings) -> Snippet:
    """The lines that compile a model so."""
    own = settings.of(OpenVinoSettings)
    low = next(iter(settings.low_precisions), None)
    properties = {
        HINT: FULL if low is None or settings.target.emulates_low(settings) else HINTS[low],
        **dict(own.properties),
    }
    said = ", ".join(f'"{name}": "{value}"' for name, value in properties.items())
    lines = (f'compiled = openvino.Core().compile_model(m, "{own.device}", {{{said}}})',)
    return Snippet(lines, _SCRIPT.format(code="\n".join(lines)))
