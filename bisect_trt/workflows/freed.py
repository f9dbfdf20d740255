"""Dimensions that stay free: for failures that need a dynamic model, which a model of fixed shapes does not have.

Candidates have fixed shapes as long as they fail so. Where the whole model passes with its shapes fixed, and fails as the file
has them, pieces keep the dimensions that depend on those of the inputs: which these are is seen in reference runs at other
sizes, one for each dimension of the inputs, and so are the ranges of a target's profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import free_inputs
from bisect_trt.probing.activations import Reference
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.luck import look_again
from bisect_trt.probing.prompt import PromptCheck
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.base import ShapeRange
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import resized
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.subject import Subject

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Freed:
    """What is free, and how the target is told.

    Attributes:
        network: The model with the dimensions of its inputs free.
        symbols: Size of each by name, as it is in the sample that fails.
        shapes: Of every tensor that depends on one, with names where a dimension does.
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
        return {
            name: replace(info, shape=self.shapes[name]) if name in self.shapes else info
            for name, info in known.items()
        }

    def dress(self, candidate: Candidate) -> Candidate:
        """The candidate with the profile that it needs, where the target has one."""
        if self.target is None:
            return candidate
        ranges: dict[str, ShapeRange] = {}
        for value in candidate.proto.graph.input:
            dims = value.type.tensor_type.shape.dim
            if value.name not in self.ranges or len(dims) != len(self.ranges[value.name][0]):
                continue
            fixed = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
            if None in fixed:
                low, usual, high = (
                    tuple(size if known is None else known for size, known in zip(shape, fixed, strict=True))
                    for shape in self.ranges[value.name]
                )
                ranges[value.name] = (low, usual, high)
        return replace(candidate, target=self.target.target.spanning(self.target, ranges))


def free_symbols(subject: Subject, target: TargetSettings | None) -> dict[str, list[tuple[str, int]]]:
    """The dimensions of the inputs that are free: those that the file leaves so, or those of which a profile has a range."""
    profile = {} if target is None else target.target.profile(target)
    symbols: dict[str, list[tuple[str, int]]] = {}
    for name, value in subject.samples[0].items():
        for axis, dim in enumerate(subject.declared.get(name, ())):
            if name in profile:
                free = profile[name][0][axis : axis + 1] != profile[name][2][axis : axis + 1]
            else:
                free = not profile and not isinstance(dim, int)
            if free and axis < value.ndim:
                symbols.setdefault(dim if isinstance(dim, str) else f"{name}_{axis}", []).append((name, axis))
    return symbols


def target_of(investigation: Investigation) -> TargetSettings | None:
    """The target that the built-in check compares; ``None`` where another check says good or bad."""
    check = investigation.prober.runner.check
    return check.target if isinstance(check, BuiltinCheck) else None


def free_where_needed(investigation: Investigation, *, passes: bool) -> bool:
    """Keep dimensions free from here on, if the model fails only then.

    Args:
        investigation: The model is as it was opened: of fixed shapes, but for those that a target frees by its profile.
        passes: Whether it was seen to pass so.

    Returns:
        Whether they are kept.
    """
    subject, console, prober = investigation.subject, investigation.console, investigation.prober
    target = target_of(investigation)
    symbols = free_symbols(subject, target)
    if not symbols or subject.freed is not None or isinstance(prober.runner.check, PromptCheck):
        return False
    names = ", ".join(symbols)
    if passes and target is not None and target.target.capabilities.compiles_shapes:
        return False  # it takes free dimensions with a profile only, and then they were free
    profile = {} if target is None else target.target.profile(target)
    if not passes:
        if target is None or not profile:
            return False
        console.step(f"Does it fail with its shapes fixed too, without a range of {names}?")
        fixed = replace(
            subject.original, title="the original, its shapes fixed", target=target.target.spanning(target, {})
        )
        if prober.probe(fixed).verdict is Verdict.FAIL or not _holds(investigation, subject.original, fixed):
            return False
        console.say("  no, so pieces keep the dimensions that are free in it")
    else:
        console.step(f"With its shapes fixed it passes: does it fail with {names} free, as in its file?")
    freed = free(subject, symbols, target if profile else None)
    if passes:
        original = freed.dress(_free_original(subject, freed))
        fails = prober.probe(original).verdict is Verdict.FAIL
        if not fails:
            console.say("  no")
        if not fails or not _holds(investigation, original, subject.original):
            return False
        console.say("  yes, so pieces keep the dimensions that are free in it")
    subject.free(freed)
    return True


def _holds(investigation: Investigation, failing: Candidate, fixed: Candidate) -> bool:
    """Whether it is no luck that it passes with its shapes fixed; else that is said."""
    believed = look_again(investigation.prober, failing, fixed)
    if not believed.passes:
        investigation.console.say(f"  that says nothing of its shapes: {believed.record.reason}")
    return believed.passes


def _free_original(subject: Subject, freed: Freed) -> Candidate:
    return replace(subject.original, made=freed.network.proto, title="the original, its dimensions free")


def free(subject: Subject, symbols: Mapping[str, Sequence[tuple[str, int]]], target: TargetSettings | None) -> Freed:
    """Find what depends on dimensions of the inputs.

    Args:
        subject: The model.
        symbols: The dimensions that are to be free, by name.
        target: The target, if it has a profile.
    """
    base = {name: value.shape for name, value in subject.samples[0].items()}
    declared: dict[str, list[int | str | None]] = {name: list(shape) for name, shape in base.items()}
    for symbol, places in symbols.items():
        for name, axis in places:
            declared[name][axis] = symbol
    network = Network(free_inputs(subject.network.proto, declared, forget=False))
    profile = {} if target is None else target.target.profile(target)
    sizes = {symbol: base[name][axis] for symbol, ((name, axis), *_) in symbols.items()}
    seen: dict[str, Mapping[str, TensorInfo]] = {}
    for symbol, places in symbols.items():
        name, axis = places[0]
        other = _other_size(sizes[symbol], [shape[axis] for shape in profile.get(name, ())])
        seen[symbol] = _run_at(subject, network, base, dict.fromkeys(places, other))
    known = subject.reference.infos
    shapes: dict[str, Shape] = {}
    for name, info in known.items():
        shape = _named(info, sizes, {symbol: infos.get(name) for symbol, infos in seen.items()})
        if shape is not None and not all(isinstance(dim, int) for dim in shape):
            shapes[name] = shape
    ranges = _ranges(subject, network, base, symbols, profile) if profile else {}
    return Freed(network, sizes, shapes, target, ranges)


def _other_size(size: int, within: Sequence[int]) -> int:
    """Another size, within a profile if there is one."""
    if not within:
        return size + 1
    return next(each for each in (size + 1, size - 1, *within) if min(within) <= each <= max(within) and each != size)


def _run_at(
    subject: Subject, network: Network, base: Mapping[str, tuple[int, ...]], sizes: Mapping[tuple[str, int], int]
) -> dict[str, TensorInfo]:
    """What every tensor is like at other sizes: the sample's values, repeated or cut."""
    inputs: dict[str, NDArray[Any]] = {}
    for name, value in subject.samples[0].items():
        shape = tuple(sizes.get((name, axis), size) for axis, size in enumerate(base[name]))
        inputs[name] = resized(value, shape)
    run = Reference(network, inputs, subject.workspace, subject.models, _SCRATCH_SAMPLE, subject.swap_limit)
    return dict(run.infos)


_SCRATCH_SAMPLE = 1_000_000
"""The number that runs for shapes alone go by, past that of any sample."""


def _named(info: TensorInfo, sizes: Mapping[str, int], others: Mapping[str, TensorInfo | None]) -> Shape | None:
    """A tensor's shape with names for what depends on a dimension; ``None`` where its rank does."""
    if info.shape is None:
        return None
    dims: list[int | str | None] = list(info.shape)
    for symbol, other in others.items():
        if other is None or other.shape is None:
            continue
        if len(other.shape) != len(dims):
            return None
        for axis, (here, there) in enumerate(zip(info.shape, other.shape, strict=True)):
            if here == there or not isinstance(here, int):
                continue
            plain = here == sizes[symbol] and isinstance(dims[axis], int)
            dims[axis] = (
                symbol if plain else f"{symbol}.{here}" if isinstance(dims[axis], int) else f"{dims[axis]}.{symbol}"
            )
    return tuple(dims)


def _ranges(
    subject: Subject,
    network: Network,
    base: Mapping[str, tuple[int, ...]],
    symbols: Mapping[str, Sequence[tuple[str, int]]],
    profile: Mapping[str, ShapeRange],
) -> dict[str, ShapeRange]:
    """The shapes of all tensors at the ends of the profile and at its usual shapes, as they are in reference runs."""
    places = [place for each in symbols.values() for place in each]
    runs = [
        _run_at(
            subject, network, base, {(name, axis): profile[name][end][axis] for name, axis in places if name in profile}
        )
        for end in range(3)
    ]
    found: dict[str, ShapeRange] = {}
    for name, info in subject.reference.infos.items():
        shapes = [run[name].shape for run in runs if name in run]
        if (
            info.shape is None
            or len(shapes) != 3
            or any(shape is None or len(shape) != len(info.shape) for shape in shapes)
        ):
            continue
        low, usual, high = (tuple(int(dim or 0) for dim in shape or ()) for shape in shapes)
        here = tuple(int(dim or 0) for dim in info.shape)
        # A size may fall where another grows.
        lowest, highest = (tuple(map(pick, zip(low, high, here, strict=True))) for pick in (min, max))
        middle = tuple(min(max(size, a), b) for size, a, b in zip(usual, lowest, highest, strict=True))
        found[name] = (lowest, middle, highest)
    return found
