"""What a metric is worth: the target's number beside the reference's, the samples it took, and which samples cost it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bisect_trt.reporting.html.markup import Child, Json, Markup, definitions, figure, number, plural, table, tag

_WIDTH, _HEIGHT, _EDGE = 1000, 300, 12


def metric_section(metric: Json | None) -> Markup | None:
    """The panel; ``None`` where no metric says good or bad."""
    if not metric:
        return None
    curve, worst = metric.get("curve") or [], metric.get("worst_samples") or []
    return tag(
        "section",
        tag("h2", f"The metric: {metric['name']}"),
        definitions(_facts(metric)),
        _picture(curve, metric) if len(curve) > 1 else None,
        _worst(worst) if worst else None,
        id="metric",
    )


def _facts(metric: Json) -> list[tuple[str, Child]]:
    """The numbers, in words."""
    value, reference, bound = (_float(metric.get(name)) for name in ("candidate", "reference", "bound"))
    facts: list[tuple[str, Child]] = [("What was measured", number(value)), ("The reference", number(reference))]
    if value is not None and reference is not None and math.isfinite(value - reference):
        part = f" ({(value - reference) / abs(reference):+.2%})" if reference else ""
        facts.append(("Difference", f"{value - reference:+.6g}{part}"))
    if bound is not None:
        side = "at most" if metric["lower_is_better"] else "at least"
        facts.append(("Asked for", f"{side} {bound:.6g}"))
    named = {
        "whole": "The whole model on the target",
        "original": "The same, by the samples of the search",
        "fixed": "Mended",
    }
    facts += [(words, number(_float(metric[name]))) for name, words in named.items() if metric.get(name) is not None]
    facts.append(("Samples", f"{metric['samples']} of {metric['of']}"))
    probes = [probe["samples"] for probe in metric.get("probes") or []]
    if probes:
        took = f"{sum(probes) / len(probes):.0f} on average, {min(probes)} to {max(probes)}"
        facts.append((f"Samples that each of {plural(len(probes), 'probe')} took", took))
    if metric.get("confidence") is not None:
        facts.append(("All verdicts are the whole set's, with confidence", f"{metric['confidence']:.2%}"))
    return facts


def _float(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _picture(curve: Sequence[Json], metric: Json) -> Markup:
    """The candidate's number after each sample, in the order in which all candidates see them; the bound across."""
    values = [float(point["candidate"]) for point in curve]
    known = [_float(metric.get(name)) for name in ("reference", "bound")]
    finite = [each for each in (*values, *known) if each is not None and math.isfinite(each)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    span, last = (high - low) or 1.0, max(curve[-1]["samples"], 1)

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / span
        return _HEIGHT - _EDGE - share * (_HEIGHT - 2 * _EDGE)

    places = [(_WIDTH * point["samples"] / last, y(value)) for point, value in zip(curve, values, strict=True)]
    line = "".join(f"{'L' if place else 'M'}{x:.1f} {at:.1f}" for place, (x, at) in enumerate(places))
    across = [None if each is None or not math.isfinite(each) else f"M0 {y(each):.1f}H{_WIDTH}" for each in known]
    label = f"{metric['name']} after each of {plural(last, 'sample')}"
    paths = [
        tag("path", d=across[1], class_="threshold") if across[1] else None,
        tag("path", d=across[0], class_="line own") if across[0] else None,
        tag("path", d=line, class_="line"),
    ]
    caption = (
        f"{metric['name']} as it is by the samples seen so far, from {low:.6g} to {high:.6g}; the lines across are the "
        "reference's and what was asked for."
    )
    return figure(label, caption, paths, _WIDTH, _HEIGHT)


def _worst(samples: Sequence[Json]) -> Markup:
    """The samples that cost most."""
    heads = ("Sample", "Lost")
    rows = [
        [tag("td", str(each["sample"]), class_="number"), tag("td", number(each["lost"]), class_="number")]
        for each in samples
    ]
    return tag("div", tag("h3", "The samples that cost most"), table(heads, rows, "The samples that cost most", heads))
