"""What has to come out the same of a target: an input again, after another one, beside others, and the rows of a batch.

Other inputs are made of the sample's own elements, so that they stay what the model may be fed, and of the smaller ones alone:
what a session keeps of an input (its range, say) then differs from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.inputs import resized as sized

Values = Mapping[str, NDArray[Any]]
Pairs = list[tuple[Values, Values]]
"""What came out, beside what should have."""
Declared = Mapping[str, tuple[int | str | None, ...]]
"""The shapes of the inputs as the model's file has them."""

AGAIN = 8
"""How often one input is run in a session."""
ROWS = 4
"""In a batch, where the model takes any number; more, where another dimension of an input is of that size."""
BESIDE = 3
"""How many other sessions run at the same time."""


@dataclass(frozen=True)
class Trial:
    """Something that has to come out the same.

    Attributes:
        name: For JSON.
        what: In words.
        feeds: What a session is fed, in this order.
        pairs: Which of what comes out is compared with what, from the outputs of each feed.
        beside: How many more sessions run meanwhile, on the second feed; the first one is run before, without them.
        one: Whether it is about one session; else each feed gets its own, where that is no engine to be built.
        batch: The inputs whose dimension has to be free in the model, each with that; it is the batch.
        skipped: Why it is not tried, if so.
    """

    name: str
    what: str
    feeds: tuple[Values, ...] = ()
    pairs: Callable[[Sequence[Values]], Pairs] = lambda _: []
    beside: int = 0
    one: bool = False
    batch: Mapping[str, int] = field(default_factory=dict)
    skipped: str | None = None


def trials(
    samples: Sequence[Values], declared: Declared, alone: str | None, seed: int, *, resized: bool = False
) -> list[Trial]:
    """What to try on the first input sample; those of one name, next to each other, are about several dimensions.

    Args:
        samples: The second one, if there is one, is the other input.
        declared: The shapes of the inputs in the model's file.
        alone: Why sessions cannot run beside each other, if so.
        seed: What is drawn is the same for the same one.
        resized: Whether one session takes several sizes: then a larger batch is run again and again too, and before the sample.
    """
    rng = np.random.default_rng(seed)
    sample = samples[0]
    other = samples[1] if len(samples) > 1 else {name: _other(value, rng) for name, value in sample.items()}
    together = f"beside {BESIDE} other sessions that run at the same time"
    again = _again(sample, f"the same input {AGAIN} times in one session")
    after = _after(other, sample, "an input again after another one")
    beside = Trial(
        "beside",
        together,
        (sample, other, sample, sample, sample),
        lambda made: [(each, made[0]) for each in made[2:]],
        beside=BESIDE,
    )
    last = beside if alone is None else Trial("beside", together, skipped=alone)
    found = batches(sample, declared)
    of_batches = [_batch_trials(sample, declared, axes, rng, told=len(found) > 1) for axes in found]
    batch, axes = next(((order.feeds[0], order.batch) for _, order, _ in of_batches if order.batch), (sample, {}))
    rows = max((batch[name].shape[axis] for name, axis in axes.items()), default=0)
    grown: list[list[Trial]] = [[], []]
    if resized and any(batch[name].shape != value.shape for name, value in sample.items()):
        grown[0] = [replace(_again(batch, f"the same batch of {rows} {AGAIN} times in one session"), batch=axes)]
        grown[1] = [replace(_after(batch, sample, f"an input again after a batch of {rows}"), batch=axes)]
    return [again, *grown[0], after, *grown[1], last, *chain(*zip(*of_batches, strict=True))]


def _again(sample: Values, what: str) -> Trial:
    return Trial("again", what, (sample,) * AGAIN, lambda made: [(each, made[0]) for each in made[1:]], one=True)


def _after(other: Values, sample: Values, what: str) -> Trial:
    """Each of the two after the other one: the first of a session has no other before it."""
    feeds = (other, sample, other, sample, sample)
    return Trial("after", what, feeds, lambda made: [(made[2], made[0]), (made[3], made[4])], one=True)


def _batch_trials(
    sample: Values, declared: Declared, axes: Mapping[str, int], rng: np.random.Generator, *, told: bool
) -> list[Trial]:
    """What has to hold of the rows of a batch, if those dimensions of inputs are it."""
    free = bool(axes) and not all(isinstance(declared[name][axis], int) for name, axis in axes.items())
    rows = max([sample[name].shape[axis] for name, axis in axes.items()], default=0)
    what: tuple[str, ...] = (
        "the same row at every place of a batch",
        "the rows of a batch in another order",
        "a batch beside its rows one by one",
    )
    if told:
        where = ", ".join(f"dimension {axis} of '{name}'" for name, axis in axes.items())
        what = tuple(f"{words} ({where})" for words in what)
    kinds = ("rows", "order", "batch")
    if not axes or (rows < 2 and not free):
        why = "no input has a batch dimension that is free or above 1"
        return [Trial(kind, words, skipped=why) for kind, words in zip(kinds, what, strict=True)]
    others = {size for value in sample.values() for size in value.shape}
    number = rows if rows > 1 else next(size for size in count(ROWS) if size not in others)
    batch = {name: _rows(value, number, axes[name], rng) if name in axes else value for name, value in sample.items()}
    turned = np.roll(np.arange(number), 1)

    def pick(places: Sequence[int] | NDArray[np.intp]) -> Values:
        return {name: value.take(places, axes[name]) if name in axes else value for name, value in batch.items()}

    def across(values: Values) -> dict[str, int]:
        return _across(values, [*axes.values(), 0], number)

    def same(made: Sequence[Values]) -> Pairs:
        kept = {name: np.moveaxis(made[0][name], axis, 0) for name, axis in across(made[0]).items()}
        return [(kept, {name: np.broadcast_to(value[:1], value.shape) for name, value in kept.items()})]

    def reordered(made: Sequence[Values]) -> Pairs:
        kept = across(made[0])
        right = {name: made[0][name].take(turned, axis) for name, axis in kept.items()}
        return [({name: made[1][name] for name in kept}, right)]

    def one_by_one(made: Sequence[Values]) -> Pairs:
        whole, rest = made[0], made[1:]
        kept = {n: a for n, a in across(whole).items() if all(each[n].shape[a : a + 1] == (1,) for each in rest)}
        joined = {name: np.concatenate([each[name] for each in rest], axis) for name, axis in kept.items()}
        return [({name: whole[name] for name in kept}, joined)]

    dynamic = axes if free else {}
    found = [
        Trial(kinds[0], what[0], (pick([0] * number),), same, batch=dynamic),
        Trial(kinds[1], what[1], (batch, pick(turned)), reordered, batch=dynamic),
    ]
    if not free:
        return [*found, Trial(kinds[2], what[2], skipped=f"the model takes batches of {number} only")]
    return [*found, Trial(kinds[2], what[2], (batch, *(pick([row]) for row in range(number))), one_by_one, batch=axes)]


def _across(values: Values, axes: Sequence[int], number: int) -> dict[str, int]:
    """Along which dimension each output has so many rows: one of these, else the only one of that size."""
    found: dict[str, int] = {}
    for name, value in values.items():
        long = [axis for axis, size in enumerate(value.shape) if size == number]
        there = [axis for axis in axes if axis in long]
        if there or len(long) == 1:
            found[name] = (there or long)[0]
    return found


def batches(sample: Values, declared: Declared) -> list[dict[str, int]]:
    """What may be the batch: each time the inputs that have it, each with the dimension that it is there; one at least.

    That is the free one whose name says so, wherever it stands; else the first dimensions, if they are free and of one name, with
    the only free one of other inputs where it has none; else these if they are all of one size, and each of the other free ones.
    """
    shapes = {name: declared[name] for name in sample if declared.get(name)}
    named = [dim for shape in shapes.values() for dim in shape if isinstance(dim, str) and "batch" in dim.lower()]
    if named:
        return [{name: shape.index(named[0]) for name, shape in shapes.items() if named[0] in shape}]
    first = {name: shape[0] for name, shape in shapes.items()}
    free = [dim for dim in first.values() if not isinstance(dim, int)]
    if free:
        bare = {name: [axis for axis, dim in enumerate(shape) if dim is None] for name, shape in shapes.items()}
        here = {name: axes[0] for name, axes in bare.items() if free[0] is None and len(axes) == 1}
        return [here | {name: 0 for name, dim in first.items() if dim == free[0]}]
    found = dict.fromkeys(first, 0) if len(set(first.values())) == 1 else {}
    others: dict[str | int, dict[str, int]] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):  # what has no name is the same as what has none at the same place
                others.setdefault(axis if dim is None else dim, {}).setdefault(name, axis)
    return [found, *others.values()] if found else [*others.values()] or [{}]


def _shuffled(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """The same elements in another order."""
    return np.asarray(rng.permutation(value.reshape(-1)).reshape(value.shape))


def _other(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Elements of those that are no larger than most; all of them in another order where these are alike, or no numbers."""
    flat = value.reshape(-1)
    if flat.dtype.kind in "iuf" and flat.size:
        sizes = np.abs(flat.astype(np.float64))
        small = flat[sizes <= np.median(sizes)]
        if small.size and sizes.max() > np.median(sizes):
            return np.asarray(rng.choice(small, value.shape))
    return _shuffled(value, rng)


def _rows(value: NDArray[Any], number: int, axis: int, rng: np.random.Generator) -> NDArray[Any]:
    """As many rows as asked for: those there are, then others of the same elements, every second one of the smaller ones."""
    first = sized(value, [*value.shape[:axis], 1, *value.shape[axis + 1 :]])
    more = [(_other if place % 2 else _shuffled)(first, rng) for place in range(number - value.shape[axis])]
    return np.concatenate([value, *more], axis)
