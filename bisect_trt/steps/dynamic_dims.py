"""Shapes of candidates: dimensions that have to stay free for the failure, and tensors that can be smaller.

The first probe is about the model as it is in its file. Candidates have fixed shapes if it fails
with fixed shapes too. If it passes with them, candidates keep the dimensions that depend on input
dimensions. Reference runs at other sizes show which these are, one run for each dimension of the
inputs, and their ranges over a target's profile. The tensors of the minimal case are made smaller
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone
from bisect_trt.onnxlib.shapes import (
    Shape,
    fix_input_shapes,
    free_inputs,
)
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import reconfirm
from bisect_trt.probe.reference import Reference
from bisect_trt.report.parts import DynamicShapes, FreeDimension, InputAxis
from bisect_trt.report.proofs import last_record
from bisect_trt.session.free_dims import Axis, Freed
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.steps.shrink import with_output_shapes
from bisect_trt.targets.base import ShapeRange, TargetSettings
from bisect_trt.tensors.files import shapes_of
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import resized

_SCRATCH_SAMPLE = 1_000_000
"""The sample number of runs that only compute shapes."""


def profile_of(target: TargetSettings | None) -> Mapping[str, ShapeRange]:
    """The shapes for which a target is built: smallest, usual, largest; none where it needs no profile."""
    return {} if target is None else target.target.profile(target)


def free_symbols(subject: Subject, target: TargetSettings | None) -> dict[str, list[Axis]]:
    """The free dimensions of the inputs: those without a size in the file, or those for which the profile has a range."""
    profile = profile_of(target)
    symbols: dict[str, list[Axis]] = {}
    for name, value in subject.samples[0].items():
        for axis, dim in enumerate(subject.declared.get(name, ())):
            free = not profile and not isinstance(dim, int)
            if name in profile:
                free = profile[name][0][axis : axis + 1] != profile[name][2][axis : axis + 1]
            if free and axis < value.ndim:
                symbols.setdefault(dim if isinstance(dim, str) else f"{name}_{axis}", []).append(
                    (name, axis)
                )
    return symbols


def target_of(session: Session) -> TargetSettings | None:
    """The target of the built-in check; ``None`` for another check."""
    check = session.prober.check
    return check.runtime if check.judges_runtime else None


def free_where_needed(session: Session) -> bool:
    """Probe a failing model with fixed shapes; unless it fails with these too, keep its dimensions free from here on.

    It is asked where no candidate with fixed shapes fails: one that fails is proof enough. Before
    the search it is asked where a profile has ranges, see :func:`free_where_profiled`.

    Returns:
        Whether they are kept.
    """
    subject = session.subject
    console = session.console
    prober = session.prober
    target = target_of(session)
    symbols = free_symbols(subject, target)
    if not symbols or subject.freed is not None or prober.check.asks_user:
        return False
    names = ", ".join(symbols)
    console.step(
        f"It fails with free dimensions ({names}), as in its file: does it fail with fixed shapes?"
    )
    profile = profile_of(target)
    fixed = subject.fixed
    if target is not None and profile:
        fixed = replace(fixed, target=target.target.spanning(target, {}))
    record = prober.probe(fixed)
    if record.passes:
        # Fixed shapes must pass each time.
        record = last_record(reconfirm(prober, subject.original, fixed))
    if record.fails:
        console.say("  yes, so candidates have fixed shapes")
        return False
    answer = "it passes" if record.passes else f"it breaks in another way ({record.reason})"
    console.say(f"  no, {answer}: candidates keep the free dimensions")
    subject.free(free(subject, symbols, target))
    return True


def free_where_profiled(session: Session) -> None:
    """Ask :func:`free_where_needed` where the target has a profile with ranges.

    The profile keeps the inputs of the model free in each candidate that has them, whatever its
    shapes, and a candidate without them has fixed shapes. Verdicts of both in one search would blame
    what reads the inputs.
    """
    profile = profile_of(target_of(session))
    if any(low != high for low, _, high in profile.values()):
        free_where_needed(session)


def free(
    subject: Subject, symbols: Mapping[str, Sequence[Axis]], target: TargetSettings | None
) -> Freed:
    """Find the tensors that depend on dimensions of the inputs, by running the reference at other sizes."""
    sample = subject.samples[0]
    profile = profile_of(target)
    declared: dict[str, list[int | str | None]] = {
        name: list(value.shape) for name, value in sample.items()
    }
    other: dict[Axis, int] = {}
    for number, (symbol, places) in enumerate(symbols.items(), 1):
        for name, axis in places:
            declared[name][axis] = symbol
        name, axis = places[0]
        span = [shape[axis] for shape in profile.get(name, ())]
        # Each name gets a size of its own, so that an output's size tells which name it follows.
        other |= dict.fromkeys(places, _other_size(sample[name].shape[axis], number, span))
    network = Network(free_inputs(subject.network.proto, declared, forget=False))

    def run_at(changed: Mapping[Axis, int]) -> dict[str, Sequence[int]]:
        """Return the shapes of all tensors at other sizes; the sample's values are repeated or cut."""
        inputs = {
            name: resized(
                value,
                tuple(changed.get((name, axis), size) for axis, size in enumerate(value.shape)),
            )
            for name, value in sample.items()
        }
        run = Reference(
            network, inputs, subject.workspace, subject.models, _SCRATCH_SAMPLE, subject.swap_limit
        )
        return _static(run.infos)

    here = _static(subject.reference.infos)
    shapes = _free_shapes(here, run_at(other), declared)
    places = [place for each in symbols.values() for place in each if place[0] in profile]
    ranges: dict[str, ShapeRange] = {}
    if profile:
        ranges = _ranges(
            here,
            [run_at({(n, axis): profile[n][end][axis] for n, axis in places}) for end in range(3)],
        )
    return Freed(network, shapes, target, ranges)


def _free_shapes(
    here: Mapping[str, Sequence[int]],
    there: Mapping[str, Sequence[int]],
    declared: Mapping[str, Sequence[int | str | None]],
) -> dict[str, Shape]:
    """Return the shapes that change with the inputs', with a name for each dimension that changes."""
    shapes: dict[str, Shape] = {}
    for name, sizes in here.items():
        changed = there.get(name, sizes)
        if changed != sizes and len(changed) == len(sizes):
            names = declared.get(name) or [f"{name}_{axis}" for axis in range(len(sizes))]
            changes = zip(names, sizes, changed, strict=True)
            shapes[name] = tuple(symbol if one != two else one for symbol, one, two in changes)
    return shapes


def _other_size(size: int, number: int, span: Sequence[int]) -> int:
    """Return another size of a dimension, in its range if it has one; each dimension changes by another ``number``."""
    sizes = (size + number, size - number, *span)
    span = span or sizes[:1]
    return next(each for each in sizes if each != size and min(span) <= each <= max(span))


def _ranges(
    here: Mapping[str, Sequence[int]], ends: Sequence[Mapping[str, Sequence[int]]]
) -> dict[str, ShapeRange]:
    """Return the shapes of each tensor in the profile, of its shapes at the sample's sizes and at the profile's."""
    ranges: dict[str, ShapeRange] = {}
    for name, sizes in here.items():
        if all(len(end.get(name, ())) == len(sizes) for end in ends):
            low, usual, high = (end[name] for end in ends)
            # One size may fall while another grows.
            lowest, highest = (
                tuple(map(pick, zip(low, high, sizes, strict=True))) for pick in (min, max)
            )
            ranges[name] = (lowest, tuple(np.clip(usual, lowest, highest).tolist()), highest)
    return ranges


def _static(infos: Mapping[str, TensorInfo]) -> dict[str, Sequence[int]]:
    return {
        name: [int(dim or 0) for dim in info.shape]
        for name, info in infos.items()
        if info.shape is not None
    }


def _free_places(answer: Candidate) -> dict[str, list[Axis]]:
    """The places of the inputs where each free dimension stands."""
    places: dict[str, list[Axis]] = {}
    for value in answer.proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                places.setdefault(dim.dim_param, []).append((value.name, axis))
    return places


def needed_dimensions(session: Session, answer: Candidate) -> Candidate:
    """Return the answer with fixed shapes if it fails with them; ``dynamic`` in the result says whether it does not."""
    subject, console, freed = session.subject, session.console, session.subject.freed
    if freed is None:
        return answer
    names = ", ".join(_free_places(answer))
    console.step(f"Does it need its free dimensions ({names or 'none are left'})?")
    fixed = clone(answer.proto)
    fix_input_shapes(fixed, shapes_of(subject.values(answer, answer.inputs)))
    fixed = with_output_shapes(fixed, subject.values(answer, answer.outputs))
    static = freed.dress(replace(answer, made=fixed, title="the answer, with fixed shapes"))
    needed = bool(names) and not session.prober.probe(static).fails
    session.result.dynamic = DynamicShapes(needed=needed, dimensions=())
    console.say(
        f"  yes, it fails only with {names} free"
        if needed
        else "  no: it fails with fixed shapes too"
    )
    return answer if needed else static


def note_dynamic(session: Session, answer: Candidate) -> None:
    """Put the free dimensions that the answer needs into the result, with their sizes after shrinking."""
    if not session.result.dynamic or not session.result.dynamic.needed:
        return
    values = session.subject.values(answer, answer.inputs)
    dimensions = []
    for symbol, places in _free_places(answer).items():
        inputs = (
            InputAxis(name=name, axis=axis, size=int(values[name].shape[axis]))
            for name, axis in places
        )
        dimensions.append(FreeDimension(name=symbol, inputs=tuple(inputs)))
    session.result.dynamic = DynamicShapes(needed=True, dimensions=tuple(dimensions))
