"""The free dimensions of candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec import Struct

from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import (
    Shape,
)
from bisect_trt.probe.candidate import Candidate
from bisect_trt.targets.base import ShapeRange, TargetSettings
from bisect_trt.tensors.info import TensorInfo

Axis = tuple[str, int]
"""A tensor's name, and one of its dimensions."""


class Freed(Struct, frozen=True):
    """The free dimensions of candidates, and the profile that the target needs for them.

    Attributes:
        network: The model with free dimensions of its inputs.
        shapes: The shapes of the tensors that depend on one, with names in place of sizes.
        target: The target, if it has a profile for the model's inputs.
        ranges: The shapes of tensors over that profile: smallest, usual, largest.
    """

    network: Network
    shapes: Mapping[str, Shape]
    target: TargetSettings | None
    ranges: Mapping[str, ShapeRange]

    def infos(self, infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Types and shapes of tensors, with their free dimensions."""
        return {
            name: replace(info, shape=self.shapes.get(name, info.shape))
            for name, info in infos.items()
        }

    def dress(self, candidate: Candidate) -> Candidate:
        """The candidate with the profile that it needs, if the target has one."""
        if self.target is None:
            return candidate
        ranges: dict[str, ShapeRange] = {}
        for value in candidate.proto.graph.input:
            dims = [dim.dim_value or None for dim in value.type.tensor_type.shape.dim]
            if (
                value.name in self.ranges
                and None in dims
                and len(dims) == len(self.ranges[value.name][0])
            ):
                # What the case has fixed stays fixed at all three ends of the profile.
                low, usual, high = (
                    tuple(dim or size for dim, size in zip(dims, shape, strict=True))
                    for shape in self.ranges[value.name]
                )
                ranges[value.name] = (low, usual, high)
        return replace(candidate, target=self.target.target.spanning(self.target, ranges))
