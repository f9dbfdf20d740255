"""The precisions that were asked for beside those in which the layers of an engine run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bisect_trt.targets.settings import TargetSettings

_TYPES = {
    "fp32": ("float32",),
    "fp16": ("float16",),
    "bf16": ("bfloat16",),
    "fp8": ("fp8", "float8_e4m3fn"),
    "int8": ("int8", "uint8"),
    "int4": ("int4",),
    "fp4": ("fp4",),
}
"""Names of types in the layers of engines and networks, by precision; what has none of them (integers, masks) is not counted."""
_LITTLE = 0.5
"""Below this share of layers in a precision that was asked for, the difference is said."""


@dataclass(frozen=True)
class PrecisionAudit:
    """The precisions of an engine's layers.

    Attributes:
        asked: The precisions that were asked for.
        counts: The number of layers that make each precision.
        total: The number of layers that make any.
        sentence: The difference in words, or the counts.
    """

    asked: tuple[str, ...]
    counts: Mapping[str, int]
    total: int
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"asked": list(self.asked), "counts": dict(self.counts), "total": self.total, "sentence": self.sentence}


def audit_precision(target: TargetSettings, layers: Sequence[Mapping[str, Any]]) -> PrecisionAudit:
    """Compare the precisions that were asked for with those of the layers, as ``RuntimeSession.layers`` has them."""
    counts: Counter[str] = Counter()
    total = 0
    for layer in layers:
        kinds = {name for name, types in _TYPES.items() if set(types).intersection(layer.get("precisions") or ())}
        total += bool(kinds)
        counts.update(kinds)
    found = ", ".join(f"{number} in {name}" for name, number in counts.most_common())
    sentence = f"{len(layers)} layers{f', {found}' if found else ''}."
    asked = tuple(name for name in target.low_precisions if name != "tf32")
    missed = [name for name in asked if counts[name] < _LITTLE * total]
    if missed and total:
        most, number = counts.most_common(1)[0]
        sentence = (
            f"{' and '.join(missed)} {'was' if len(missed) == 1 else 'were'} asked for, and {number} of {total} layers run in "
            f"{most}. A strongly typed network takes types from the graph, so write them into it: `bisect-trt convert` adds "
            "Casts for fp16 and bf16; int8 and fp8 need Q/DQ nodes."
        )
    return PrecisionAudit(asked, dict(counts), total, sentence)
