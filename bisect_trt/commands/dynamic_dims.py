"""Free dimensions: for failures that need a dynamic model, which candidates of fixed shapes do not show.

Candidates have fixed shapes as long as they fail so. Where the whole model passes with its shapes fixed, and fails as in its
file, candidates keep the dimensions that depend on those of the inputs. Reference runs at other sizes show which these are, one
run for each dimension of the inputs, and the ranges over a target's profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import free_inputs
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.prober import reconfirm
from bisect_trt.probe.reference import Reference
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import ShapeRange
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import resized

Shape = tuple[int | str | None, ...]
Place = tuple[str, int]
"""An input and one of its dimensions."""
_SCRATCH_SAMPLE = 1_000_000
"""The number of runs for shapes alone, past that of any sample."""


@dataclass(frozen=True)
class Freed:
    """The free dimensions of the candidates, and the profile that the target needs for them.

    Attributes:
        network: The model with the dimensions of its inputs free.
        symbols: Size of each by name, as it is in the sample that fails.
        shapes: The shape of every tensor that depends on one, with names where a dimension does.
        target: The target where it has a profile for the model's inputs.
        ranges: The shapes of tensors over that profile.
    """

    network: Network
    symbols: Mapping[str, int]
    shapes: Mapping[str, Shape]
    target: TargetSettings | None
    ranges: Mapping[str, ShapeRange]

    def infos(self, known: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Types and shapes of tensors, with the free dimensions free."""
        return {name: replace(info, shape=self.shapes.get(name, info.shape)) for name, info in known.items()}

    def dress(self, candidate: Candidate) -> Candidate:
        """The candidate with the profile that it needs, where the target has one."""
        if self.target is None:
            return candidate
        ranges: dict[str, ShapeRange] = {}
        for value in candidate.proto.graph.input:
            dims = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
            if value.name in self.ranges and None in dims and len(dims) == len(self.ranges[value.name][0]):
                low, usual, high = (
                    tuple(dim or size for dim, size in zip(dims, shape, strict=True))
                    for shape in self.ranges[value.name]
                )
                ranges[value.name] = (low, usual, high)
        return replace(candidate, target=self.target.target.spanning(self.target, ranges))


def free_symbols(subject: Subject, target: TargetSettings | None) -> dict[str, list[Place]]:
    """The free dimensions of the inputs: those that the file leaves so, or those of which a profile has a range."""
    profile = {} if target is None else target.target.profile(target)
    symbols: dict[str, list[Place]] = {}
    for name, value in subject.samples[0].items():
        for axis, dim in enumerate(subject.declared.get(name, ())):
            free = not profile and not isinstance(dim, int)
            if name in profile:
                free = profile[name][0][axis : axis + 1] != profile[name][2][axis : axis + 1]
            if free and axis < value.ndim:
                symbols.setdefault(dim if isinstance(dim, str) else f"{name}_{axis}", []).append((name, axis))
    return symbols


def target_of(session: Session) -> TargetSettings | None:
    """The target of the built-in check; ``None`` for another check."""
    check = session.prober.runner.check
    return check.target if isinstance(check, BuiltinCheck) else None


def free_where_needed(session: Session, *, passes: bool) -> bool:
    """Keep dimensions free from here on, if the model fails only then.

    Args:
        session: The model has fixed shapes, but for those that a target frees by its profile.
        passes: Whether it passes so.

    Returns:
        Whether they are kept.
    """
    subject, console, prober, target = session.subject, session.console, session.prober, target_of(session)
    symbols, profile = free_symbols(subject, target), {} if target is None else target.target.profile(target)
    if not symbols or subject.freed is not None or isinstance(prober.runner.check, PromptCheck):
        return False
    names, fixed = ", ".join(symbols), subject.original
    if passes:
        if target is not None and target.target.compiles:
            return False  # it takes free dimensions with a profile only, and then they were free
        console.step(f"With its shapes fixed it passes: does it fail with {names} free, as in its file?")
        freed = free(subject, symbols, target if profile else None)
        failing = replace(fixed, made=freed.network.proto, title="the original, its dimensions free")
        failing = freed.dress(failing)
        needed = prober.probe(failing).verdict is Verdict.FAIL
    else:
        if target is None or not profile:
            return False
        console.step(f"Does it fail with its shapes fixed too, without a range of {names}?")
        spanned = target.target.spanning(target, {})
        failing, fixed = fixed, replace(fixed, title="the original, its shapes fixed", target=spanned)
        needed = prober.probe(fixed).verdict is not Verdict.FAIL
    believed = reconfirm(prober, failing, fixed) if needed else None  # whether it passes with fixed shapes each time
    if believed is None or not believed.passes:
        console.say(f"  inconclusive: {believed.record.reason}" if believed else "  its shapes do not matter")
        return False
    console.say("  so its shapes matter, and pieces keep the dimensions that are free in it")
    subject.free(freed if passes else free(subject, symbols, target))
    return True


def free(subject: Subject, symbols: Mapping[str, Sequence[Place]], target: TargetSettings | None) -> Freed:
    """Find the tensors that depend on dimensions of the inputs, by a run of the reference at other sizes.

    Args:
        subject: The model.
        symbols: The dimensions that are to be free, by name.
        target: The target, if it has a profile.
    """
    base = {name: value.shape for name, value in subject.samples[0].items()}
    profile = {} if target is None else target.target.profile(target)
    declared: dict[str, list[int | str | None]] = {name: list(shape) for name, shape in base.items()}
    other: dict[Place, int] = {}
    for number, (symbol, places) in enumerate(symbols.items(), 1):  # each changes by another number
        for name, axis in places:
            declared[name][axis] = symbol
        name, axis = places[0]
        size, within = base[name][axis], [shape[axis] for shape in profile.get(name, ())]
        allowed = (each for each in (size + number, size - number, *within) if each != size)
        fits = (each for each in allowed if not within or min(within) <= each <= max(within))
        other |= dict.fromkeys(places, next(fits))
    network = Network(free_inputs(subject.network.proto, declared, forget=False))

    def run_at(changed: Mapping[Place, int]) -> dict[str, Sequence[int]]:
        """The shapes of all tensors at other sizes; the sample's values are repeated or cut."""
        inputs: dict[str, NDArray[Any]] = {}
        for name, value in subject.samples[0].items():
            shape = tuple(changed.get((name, axis), size) for axis, size in enumerate(base[name]))
            inputs[name] = resized(value, shape)
        run = Reference(network, inputs, subject.workspace, subject.models, _SCRATCH_SAMPLE, subject.swap_limit)
        return _static(run.infos)

    here, there = _static(subject.reference.infos), run_at(other)
    shapes: dict[str, Shape] = {}
    for name, sizes in here.items():
        if len(there.get(name, ())) == len(sizes):
            changes = enumerate(zip(sizes, there.get(name, ()), strict=True))
            names = declared.get(name) or [f"{name}_{axis}" for axis in range(len(sizes))]
            shape = tuple(names[axis] if one != two else one for axis, (one, two) in changes)
            shapes |= {name: shape} if shape != tuple(sizes) else {}
    places = [place for each in symbols.values() for place in each if place[0] in profile]
    ends = [run_at({(n, axis): profile[n][end][axis] for n, axis in places}) for end in range(3)] if profile else []
    ranges: dict[str, ShapeRange] = {}
    for name, sizes in here.items():
        if ends and all(len(end.get(name, ())) == len(sizes) for end in ends):
            low, usual, high = (end[name] for end in ends)
            # A size may fall where another grows.
            lowest, highest = (tuple(map(pick, zip(low, high, sizes, strict=True))) for pick in (min, max))
            middle = tuple(min(max(size, a), b) for size, a, b in zip(usual, lowest, highest, strict=True))
            ranges[name] = (lowest, middle, highest)
    return Freed(
        network, {symbol: base[n][axis] for symbol, ((n, axis), *_) in symbols.items()}, shapes, target, ranges
    )


def _static(infos: Mapping[str, TensorInfo]) -> dict[str, Sequence[int]]:
    return {name: [int(dim or 0) for dim in info.shape] for name, info in infos.items() if info.shape is not None}


def needed_dimensions(session: Session, answer: Candidate) -> Candidate:
    """Return the answer with all shapes fixed if it fails so too; ``dynamic`` in the result lists the free dimensions."""
    subject, console, freed = session.subject, session.console, session.subject.freed
    if freed is None:
        return answer
    values = subject.values(answer, (*answer.inputs, *answer.outputs))
    places = [
        (dim.dim_param, {"name": value.name, "axis": axis, "size": int(values[value.name].shape[axis])})
        for value in answer.proto.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param
    ]
    names = list(dict.fromkeys(name for name, _ in places))
    console.step(f"Does it need its free dimensions ({', '.join(names) or 'none are left'})?")
    fixed = onnx.ModelProto()
    fixed.CopyFrom(answer.proto)
    for value in (*fixed.graph.input, *fixed.graph.output):
        sizes = values[value.name].shape if value.name in values else ()
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            if dim.dim_param:
                dim.dim_value = size
    static = freed.dress(replace(answer, made=fixed, title="the answer with all shapes fixed"))
    needed = bool(names) and session.prober.probe(static).verdict is not Verdict.FAIL
    session.result.extra["dynamic"] = {
        "needed": needed,
        "dimensions": [
            {"name": each, "inputs": [place for name, place in places if name == each]}
            for each in (names if needed else ())
        ],
        "fixed": [] if needed else names,
        "original": dict(freed.symbols),
        "profile": {
            name: [list(shape) for shape in freed.ranges[name]] for name in answer.inputs if name in freed.ranges
        },
    }
    where = ", ".join(f"'{name}' of '{at['name']}' ({at['size']} here)" for name, at in places)
    console.say(f"  it fails only with dimensions free: {where}" if needed else "  no: it fails with fixed shapes too")
    return answer if needed else static


def tell_dynamic(session: Session, answer: Candidate) -> None:
    """Print the dimensions that the answer keeps free, and put their sizes after shrinking into the result."""
    known = session.result.extra.get("dynamic")
    if not known or not known["needed"]:
        return
    values = session.subject.values(answer, answer.inputs)
    for each in known["dimensions"]:
        left = [place for place in each["inputs"] if place["name"] in values]
        each["inputs"] = [{**place, "size": int(values[place["name"]].shape[place["axis"]])} for place in left]
    names = ", ".join(f"'{each['name']}'" for each in known["dimensions"])
    session.console.answer(
        f"  It has to be dynamic: {names} stays free in the model, and with its shapes fixed it passes."
    )
