"""Sizes that the model itself takes: one step between them is found, and nothing else is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bisect_trt.commands.sweep import Dimension, below, strided
from bisect_trt.search.sizes import Point


def dimension(name: str, *sizes: int) -> Dimension:
    return Dimension(name, sizes, (("x", 0),))


@pytest.mark.parametrize("step", [1, 2, 3, 14, 32])
@pytest.mark.parametrize("low", [1, 50])
def test_steps_are_found(step: int, low: int) -> None:
    (found,) = strided([dimension("n", *range(low, 700))], lambda point: point[0] % step == 0)
    assert found.step == (step if step > 1 else None)
    assert found.sizes == tuple(size for size in range(low, 700) if size % step == 0)


def test_each_of_several_dimensions_has_its_own() -> None:
    swept = [dimension("h", *range(1, 65)), dimension("w", *range(3, 65))]
    h, w = strided(swept, lambda point: point[0] % 4 == 0 and point[1] % 2 == 1)
    assert (h.step, h.sizes[0], w.step, w.sizes) == (4, 4, 2, tuple(range(3, 65, 2)))


@pytest.mark.parametrize(
    "takes",
    [
        lambda point: point[0] <= 512,
        lambda point: point[0] >= 7,
        lambda point: point[0] in (8, 9, 11, 16),
        lambda point: point[0] in (8, 11, 16, 700),
        lambda point: point[0] > 2000,
    ],
)
def test_what_has_no_step_stays_whole(takes: Callable[[Point], bool]) -> None:
    swept = [dimension("n", *range(1, 1000))]
    assert strided(swept, takes) == swept


def test_the_next_smaller_size_is_one_that_is_taken() -> None:
    swept = [dimension("h", *range(1, 41)), dimension("w", 1, 2, 7)]
    assert below(swept, (20, 7), lambda point: point[0] % 4 == 0) == [(16, 7), (20, 2)]
    assert below(swept, (4, 1), lambda point: point[0] % 4 == 0) == []
