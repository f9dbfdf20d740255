"""The corpus: which bug is planted where, and what is the truth about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from truth.networks import Network, generated, in_light_model
from truth.patterns import JOINED, PLANTED, REFUSED, Pattern

_LIGHT = ("inception_v1", "resnet50", "shufflenet", "squeezenet", "zfnet512", "vgg19")


@dataclass(frozen=True)
class Case:
    """A network under a release.

    Attributes:
        where: For reports: what the bug is planted into.
        pattern: The bug.
        release: Under which the network fails.
        make: Writes the network down.
    """

    where: str
    pattern: Pattern
    release: str
    make: Callable[[], Network]

    def __str__(self) -> str:
        """For the names of tests."""
        return (
            f"{self.pattern.name.replace(', ', '-')}:{self.where.replace(' ', '-')}:{self.release}"
        )


def onnxruntime_cases() -> Iterator[Case]:
    """All bugs of ONNX Runtime, singly and twice, in small and large networks of look-alikes and in a light model."""
    for seed, pattern in enumerate((*PLANTED, *REFUSED)):
        light = _LIGHT[seed % len(_LIGHT)]
        for release in pattern.failing:
            yield Case("60 nodes", pattern, release, partial(generated, pattern, 60, 1, seed))
            yield Case("400 nodes", pattern, release, partial(generated, pattern, 400, 1, seed))
            yield Case("twice in 200", pattern, release, partial(generated, pattern, 200, 2, seed))
            yield Case(light, pattern, release, partial(in_light_model, pattern, light, seed))


def healthy_cases() -> Iterator[Case]:
    """Networks of look-alikes alone, under the releases that have the bug."""
    for seed, pattern in enumerate((*PLANTED, *REFUSED)):
        for release in pattern.failing:
            yield Case("look-alikes", pattern, release, partial(generated, pattern, 200, 0, seed))


def cases_elsewhere() -> Iterator[Case]:
    """The four bugs that other releases than the one at hand have, in small and large networks of look-alikes."""
    for seed, pattern in enumerate(PLANTED[:4]):
        for nodes in (60, 400):
            release = pattern.failing[nodes == 400 and pattern.mended is not None]
            yield Case(
                f"{nodes} nodes", pattern, release, partial(generated, pattern, nodes, 1, seed)
            )


def openvino_cases() -> Iterator[Case]:
    """The bug of OpenVINO."""
    for release in JOINED.failing:
        yield Case("120 nodes", JOINED, release, partial(generated, JOINED, 120, 1, 0))
