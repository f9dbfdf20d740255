"""What is looked at of samples to set those that fail apart: numbers that each sample has, and what it has or has not.

None of it knows which samples fail, so that what is found by chance can be counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.tensors.info import is_string

Array = NDArray[Any]
Values = Mapping[str, Array]
MOST_TOKENS = 512
"""So many different whole numbers are looked at one by one."""
_COUNTED, _MOST_SLICES = 64, 16
"""So many of these are counted and placed too; so many slices along a dimension are looked at one by one."""


@dataclass(frozen=True)
class Looked:
    """A number of each sample, or whether it has something.

    Attributes:
        said: What it is; of a number, what stands before "is 3 or more".
        input: Of which input.
        kind: ``max``, ``min``, ``magnitude``, ``zeros``, ``length``, ``nan``, ``inf``, ``negative``, ``token``; looked at beside:
            ``sum``, ``mean``, ``deviation``, ``elements``, ``duplicates``, ``order``, ``extreme``, ``count``, ``place``,
            ``slice``, ``related``.
        values: A number for each sample; of what it has or has not 1 or 0.
        flag: Whether it is that.
        more: Whether it is looked at beside.
    """

    said: str
    input: str
    kind: str
    values: Sequence[float]
    flag: bool = False
    more: bool = True


def look(samples: Sequence[Values]) -> Iterator[Looked]:
    """All of it, of samples of the same inputs."""
    for name in samples[0]:
        values = [sample[name] for sample in samples]
        numeric = values[0].dtype.kind in "fiub"
        if numeric:
            yield from _of_numbers(name, values)
        elif is_string(values[0].dtype):
            yield from _of_strings(name, values)
        for axis in range(min(value.ndim for value in values)):
            sizes = [value.shape[axis] for value in values]
            yield Looked(f"dimension {axis} of '{name}'", name, "length", sizes, more=False)
        yield Looked(f"the number of elements of '{name}'", name, "elements", [value.size for value in values])
        if numeric and all(value.size for value in values):
            yield from _more_of_numbers(name, values)
    for one, other in permutations(samples[0], 2):
        yield from _related(one, other, [(sample[one], sample[other]) for sample in samples])


def _of_numbers(name: str, values: Sequence[Array]) -> Iterator[Looked]:
    measures: dict[str, tuple[str, Callable[[Array], float]]] = {
        "max": ("the largest element", np.max),
        "min": ("the smallest element", np.min),
        "magnitude": ("the largest magnitude", lambda value: np.max(np.abs(value.astype(np.float64)))),
        "zeros": ("the number of zeros", lambda value: np.sum(value == 0)),
    }
    if all(value.size for value in values):
        finite = all(bool(np.isfinite(value).all()) for value in values)
        for kind, (said, measure) in measures.items():
            if finite or kind == "zeros":
                yield Looked(f"{said} of '{name}'", name, kind, [float(measure(value)) for value in values], more=False)
    flags: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "nan": ("a NaN", np.isnan),
        "inf": ("an infinite element", np.isinf),
        "negative": ("a negative element", lambda value: value < 0),
    }
    for kind, (what, test) in flags.items():
        yield _flag(f"{what} in '{name}'", name, kind, [bool(test(value).any()) for value in values], more=False)
    if values[0].dtype.kind in "iu":
        yield from _of_tokens(name, values)


def _flag(said: str, name: str, kind: str, has: Sequence[bool], *, more: bool = True) -> Looked:
    return Looked(said, name, kind, [float(each) for each in has], flag=True, more=more)


def _of_tokens(name: str, values: Sequence[Array]) -> Iterator[Looked]:
    """Each whole number that occurs: in which samples, and of the commonest how often, and where in a row."""
    counts = [dict(zip(*map(np.ndarray.tolist, np.unique(value, return_counts=True)), strict=True)) for value in values]
    common = Counter(token for count in counts for token in count).most_common(MOST_TOKENS)
    for number, (token, _) in enumerate(common):
        yield _flag(f"{token} in '{name}'", name, "token", [token in count for count in counts], more=False)
        if number >= _COUNTED:
            continue
        yield Looked(
            f"how often {token} is in '{name}'", name, "count", [float(count.get(token, 0)) for count in counts]
        )
        if all(value.ndim and value.size for value in values):
            for place, said in ((0, "first"), (-1, "last")):
                has = [bool((value[..., place] == token).any()) for value in values]
                yield _flag(f"{token} {said} in a row of '{name}'", name, "place", has)
            first = [_place(value == token) for value in values]
            yield Looked(
                f"the first place in a row of {token} in '{name}' (the length where it is not)", name, "place", first
            )


def _of_strings(name: str, values: Sequence[Array]) -> Iterator[Looked]:
    """Each string that occurs, as tokens do; and how long they are."""
    words = [set(map(str, value.reshape(-1).tolist())) for value in values]
    for word, _ in Counter(word for each in words for word in sorted(each)).most_common(MOST_TOKENS):
        yield _flag(f"'{word}' in '{name}'", name, "token", [word in each for each in words], more=False)
    longest = [float(max(map(len, each), default=0)) for each in words]
    yield Looked(f"the length of the longest string of '{name}'", name, "length", longest)


def _place(found: Array) -> float:
    """The first place along the last dimension at which something is found."""
    along = found.reshape(-1, found.shape[-1]).any(axis=0)
    return float(along.argmax()) if along.any() else float(found.shape[-1])


def _more_of_numbers(name: str, values: Sequence[Array]) -> Iterator[Looked]:
    finite = all(bool(np.isfinite(value).all()) for value in values)
    if finite:
        sums = [float(np.sum(value, dtype=np.float64)) for value in values]
        means = [total / value.size for total, value in zip(sums, values, strict=True)]
        with np.errstate(over="ignore"):  # squares of doubles past 1e154
            spreads = [float(np.std(value, dtype=np.float64)) for value in values]
        yield Looked(f"the sum of '{name}'", name, "sum", sums)
        yield Looked(f"the mean of '{name}'", name, "mean", means)
        yield Looked(f"the standard deviation of '{name}'", name, "deviation", spreads)
    yield from _extremes(name, values)
    if all(value.ndim and value.shape[-1] > 1 for value in values):
        said = f"the most elements of a row of '{name}' that are there before"
        yield Looked(said, name, "duplicates", [_duplicates(value) for value in values])
        for said, rising in (("ascend", True), ("descend", False)):
            has = [
                bool(np.all(value[..., 1:] >= value[..., :-1] if rising else value[..., 1:] <= value[..., :-1]))
                for value in values
            ]
            yield _flag(f"all rows of '{name}' {said}", name, "order", has)
    if finite:
        yield from _slices(name, values)


def _duplicates(value: Array) -> float:
    ordered = np.sort(value, axis=-1)
    return float(np.max(np.sum(ordered[..., 1:] == ordered[..., :-1], axis=-1)))


def _extremes(name: str, values: Sequence[Array]) -> Iterator[Looked]:
    """Elements at the ends of what the type has."""
    dtype = values[0].dtype
    if dtype.kind == "f":
        tiny, largest = np.finfo(dtype).tiny, np.finfo(dtype).max
        tests: dict[str, Callable[[Array], Array]] = {
            "a denormal": lambda value: (value != 0) & (np.abs(value) < tiny),
            "a negative zero": lambda value: (value == 0) & np.signbit(value),
            "the largest number of its type": lambda value: np.abs(value) == largest,
        }
    elif dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        tests = {
            "the largest number of its type": lambda value: value == high,
            **({"the smallest number of its type": lambda value: value == low} if low else {}),
        }
    else:
        return
    for said, test in tests.items():
        yield _flag(f"{said} in '{name}'", name, "extreme", [bool(test(value).any()) for value in values])


def _slices(name: str, values: Sequence[Array]) -> Iterator[Looked]:
    """Each slice along a dimension that is short and as long in all samples: a channel, a row."""
    dims = min(value.ndim for value in values)
    for axis in range(dims if dims > 1 else 0):
        size = values[0].shape[axis]
        if not 1 < size <= _MOST_SLICES or any(value.shape[axis] != size for value in values):
            continue
        for place in range(size):
            parts = [value.take(place, axis=axis).astype(np.float64) for value in values]
            where = f"of '{name}' at {place} along dimension {axis}"
            yield Looked(f"the largest element {where}", name, "slice", [float(np.max(part)) for part in parts])
            yield Looked(f"the smallest element {where}", name, "slice", [float(np.min(part)) for part in parts])
            yield Looked(f"the mean {where}", name, "slice", [float(np.mean(part)) for part in parts])


def _related(one: str, other: str, pairs: Sequence[tuple[Array, Array]]) -> Iterator[Looked]:
    """Two inputs held against each other: a mask and what it masks, lengths and what they are of."""
    kinds = {value.dtype.kind for pair in pairs for value in pair}
    if not kinds <= set("fiub") or not all(value.size for pair in pairs for value in pair):
        return
    if all(a.shape == b.shape for a, b in pairs):
        counts = [float(np.sum((a != 0) & (b == 0))) for a, b in pairs]
        yield Looked(f"how many elements of '{one}' are not zero where '{other}' is", one, "related", counts)
        if one < other:
            apart = [float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)))) for a, b in pairs]
            if np.isfinite(apart).all():
                yield Looked(f"how far '{one}' and '{other}' are apart at most", one, "related", apart)
    lengths = all(a.dtype.kind in "iu" and a.ndim < 2 and b.ndim > 1 and a.size in (1, len(b)) for a, b in pairs)
    if lengths:
        room = [float(np.max(a)) - b.shape[1] for a, b in pairs]
        yield Looked(f"the largest of '{one}' less dimension 1 of '{other}'", one, "related", room)
        used = [float(np.max(a - np.sum(b.reshape(len(b), b.shape[1], -1).any(axis=-1), axis=1))) for a, b in pairs]
        yield Looked(
            f"the most that '{one}' says more than there are rows of '{other}' with non-zeros", one, "related", used
        )
    if one < other:
        for axis in range(min(value.ndim for pair in pairs for value in pair)):
            less = [float(a.shape[axis] - b.shape[axis]) for a, b in pairs]
            yield Looked(f"dimension {axis} of '{one}' less that of '{other}'", one, "related", less)
