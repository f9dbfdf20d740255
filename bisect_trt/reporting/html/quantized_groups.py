"""What each quantized group costs and what is wrong with its scales, as a picture and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bisect_trt.reporting.html.curve import Scale
from bisect_trt.reporting.html.markup import Json, Markup, breakable, figure, number, plural, shorten, table, tag

_WIDTH, _HEIGHT = 1000, 300
_MOST_ROWS, _NAME_LENGTH, _SENTENCE = 200, 80, 300
_HEADS = ("Group", "", "Alone quantized", "Alone in floats", "Bits lost", "Scales", "What is wrong")


def groups_section(groups: Sequence[Json], whole: float | None) -> Markup | None:
    """The groups, those that stay in floats first, then by what they cost.

    Args:
        groups: As the result has them.
        whole: The error with all of them quantized, in units of what is allowed.
    """
    if not groups:
        return None
    ordered = sorted(groups, key=lambda group: (not group["kept"], -_cost(group), group["id"]))
    rows = [_row(group) for group in ordered[:_MOST_ROWS]]
    measured = any(group["error_alone_quantized"] is not None for group in groups)
    said = "Errors are in units of what is allowed, as Q/DQ is written, on ONNX Runtime's CPU provider."
    said += "" if whole is None else f" With all quantized: {number(whole, 3)}."
    hidden = len(ordered) - len(rows)
    return tag(
        "div",
        tag("h2", "What each quantized group costs"),
        tag("p", said, class_="quiet") if measured else None,
        _picture(groups) if measured else None,
        table(_HEADS, rows, "What each quantized group costs", _HEADS[2:5]),
        tag("p", f"{plural(hidden, 'group')} more in result.json.", class_="quiet") if hidden > 0 else None,
    )


def _cost(group: Json) -> float:
    return float(group["error_alone_quantized"] or group["bits_lost"] or 0.0)


def _row(group: Json) -> list[Markup]:
    name = tag("td", tag("code", breakable(shorten(group["name"], _NAME_LENGTH))))
    state = tag("td", tag("b", f"in {group.get('rung', 'floats')}", class_="wrong") if group["kept"] else "")
    numbers = [
        tag("td", number(group[key], 3), class_="number")
        for key in ("error_alone_quantized", "error_alone_removed", "bits_lost")
    ]
    bad = [tensor for tensor in group["tensors"] if tensor["bad"]]
    scales = tag("td", tag("code", breakable(shorten(", ".join(tensor["scale"] for tensor in bad), _NAME_LENGTH))))
    reason = f"{group['rule']}: {group['reason']}" if group["rule"] else ""
    return [name, state, *numbers, scales, tag("td", shorten(reason, _SENTENCE))]


def _picture(groups: Sequence[Json]) -> Markup:
    """Both errors of each group, in topological order, on a logarithmic scale: above the line the model fails."""
    lines: dict[str, list[Any]] = {
        key: [group[key] for group in groups] for key in ("error_alone_quantized", "error_alone_removed")
    }
    known = [float(value) for values in lines.values() for value in values if value is not None]
    scale = Scale.of(known, len(groups))
    threshold = scale.y(1.0)
    bars = "".join(
        f"M{scale.x(place):.1f} {_HEIGHT}V{scale.y(float(value)):.1f}"
        for place, value in enumerate(lines["error_alone_quantized"])
        if value is not None
    )
    other = "".join(
        f"{'L' if place else 'M'}{scale.x(place):.1f} {scale.y(float(value)):.1f}"
        for place, value in enumerate(lines["error_alone_removed"])
        if value is not None
    )
    label = f"What each of {plural(len(groups), 'group')} costs, relative to what is allowed"
    paths = [
        tag("rect", x=0, y=0, width=_WIDTH, height=threshold, class_="over"),
        tag("path", d=f"M0 {threshold:.1f}H{_WIDTH}", class_="threshold"),
        tag("path", d=bars, class_="line"),
        tag("path", d=f"M{other[1:]}" if other else "", class_="line own"),
    ]
    caption = "Bars: each group alone quantized. Line: each alone in floats, all others quantized. In the shaded part it fails."
    return figure(label, caption, paths, _WIDTH, _HEIGHT)
