"""Which free dimensions a failure needs, found by the search and said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.probing.candidate import Candidate
from bisect_trt.search.minimality import make_minimal
from bisect_trt.search.oracle import Ask, Minimum, Verdict, over_units
from bisect_trt.workflows.investigation import Investigation


def needed_dimensions(investigation: Investigation, answer: Candidate) -> Candidate:
    """The answer with no more free dimensions than it needs to fail; the result says which."""
    subject, console = investigation.subject, investigation.console
    freed = subject.freed
    if freed is None:
        return answer
    values = subject.values(answer, (*answer.inputs, *answer.outputs))
    names = list(dict.fromkeys(name for value in answer.proto.graph.input for name in _free_names(value)))
    console.step(f"Which of the free dimensions does it need ({', '.join(names) or 'none are left'})?")

    def build(units: Iterable[int]) -> Candidate:
        kept = {names[unit] for unit in units}
        proto = _fixed(answer.proto, kept, values)
        title = f"the answer with {', '.join(sorted(kept))} free" if kept else "the answer with all shapes fixed"
        return freed.dress(replace(answer, made=proto, title=title))

    def algorithm(ask: Ask) -> Minimum:
        if not names or ask(frozenset()) is Verdict.FAIL:
            return Minimum(frozenset(), proven=True)
        return make_minimal(range(len(names)), ask)

    minimum = investigation.prober.search(over_units(Verdict.FAIL, algorithm), build)
    kept = {names[unit] for unit in minimum.units}
    answer = build(minimum.units)
    dimensions: list[dict[str, Any]] = [
        {
            "name": name,
            "inputs": [
                {"name": value.name, "axis": axis, "size": int(values[value.name].shape[axis])}
                for value in answer.proto.graph.input
                for axis, dim in enumerate(value.type.tensor_type.shape.dim)
                if dim.dim_param == name
            ],
        }
        for name in names
        if name in kept
    ]
    investigation.result.extra["dynamic"] = {
        "needed": bool(kept),
        "dimensions": dimensions,
        "fixed": [name for name in names if name not in kept],
        "original": dict(freed.symbols),
        "profile": {
            name: [list(shape) for shape in freed.ranges[name]] for name in answer.inputs if name in freed.ranges
        },
    }
    if kept:
        where = ", ".join(
            f"'{each['name']}' of '{place['name']}' ({place['size']} here)"
            for each in dimensions
            for place in each["inputs"]
        )
        console.say(f"  it fails only with dimensions free: {where}")
    else:
        console.say("  none: cut out, it fails with fixed shapes too")
    return answer


def say_dynamic(investigation: Investigation, answer: Candidate) -> None:
    """Tell which dimensions the answer keeps free; the result has their sizes as they are now."""
    told = investigation.result.extra.get("dynamic")
    if not told or not told["needed"]:
        return
    values = investigation.subject.values(answer, answer.inputs)
    for each in told["dimensions"]:
        each["inputs"] = [
            {**place, "size": int(values[place["name"]].shape[place["axis"]])}
            for place in each["inputs"]
            if place["name"] in values
        ]
    names = ", ".join(f"'{each['name']}'" for each in told["dimensions"])
    investigation.console.answer(
        f"  It has to be dynamic: {names} stays free in the model, and with its shapes fixed it passes."
    )


def _free_names(value: onnx.ValueInfoProto) -> list[str]:
    return [dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param]


def _fixed(proto: onnx.ModelProto, kept: set[str], values: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model with all dimensions of its ends fixed to those of these values, but for those of some names."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for value in (*fixed.graph.input, *fixed.graph.output):
        if value.name not in values:
            continue
        for dim, size in zip(value.type.tensor_type.shape.dim, values[value.name].shape, strict=False):
            if dim.dim_param and dim.dim_param not in kept and not _of(dim.dim_param, kept):
                dim.dim_value = size
    return fixed


def _of(name: str, kept: set[str]) -> bool:
    """Whether a dimension was named after one that is kept."""
    return any(name.startswith(f"{each}.") for each in kept)
