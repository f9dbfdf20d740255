"""Sentences about nodes that stay in fp32."""

from __future__ import annotations

from bisect_trt.errors import first_few
from bisect_trt.onnxlib.low_census import Census
from bisect_trt.onnxlib.low_plan import Stays
from bisect_trt.report.text import clean, plural

_STAYS = {
    Stays.DOMAIN: "of other domains than ONNX's",
    Stays.FUNCTION: "that call functions which cannot be inlined",
    Stays.UNTYPED: "with tensors of unknown type",
    Stays.OPERATOR: "without {precision} in ONNX at the model's opset",
}
_OPERATORS_SHOWN = 5
BUILT = "{}: the engine of {}, {} bytes. It was built and not run."
CONVERTED = (
    "{}: {} in {}, {} nodes before, {} now, {} of them Casts. "
    "It was not run; `precision` writes a model that was."
)


def describe_left(census: Census, precision: str) -> str:
    """Return how many nodes cannot be lowered to ``precision``, with the reasons, without a period; empty if there is none."""
    parts = []
    for stay, text in _STAYS.items():
        counts = {
            operator: count
            for (reason, operator), count in census.left.most_common()
            if reason is stay
        }
        if counts:
            names = first_few([clean(name) for name in counts], _OPERATORS_SHOWN)
            parts.append(f"{sum(counts.values())} {text.format(precision=precision)} ({names})")
    total = plural(census.left.total(), "node")
    return f"{total} cannot be lowered to {precision}: {', '.join(parts)}" if parts else ""
