"""How well the scale and zero point of a quantized tensor fit the values that it has, and what is wrong where they do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.graph.network import Network
from bisect_trt.graph.qdq import Pair
from bisect_trt.tensors.grid import Array, Grid, ranges
from bisect_trt.workflows.bits.stored import constant_of
from bisect_trt.workflows.subject import Subject

BIT = 6.0206
"""Decibels of noise that a bit is worth."""
BAD = 1.5
"""What costs so many bits more than usual is suspected."""
_UNEVEN = 8.0
"""Channels whose largest value is so many times the middle one's are outliers."""
_LARGE, _SMALL, _MANY = 2.0, 0.6, 0.05
"""A scale so many times what fits is wrong; so few times; and one, or a zero point, that clips this share of the values."""
_LOST_DB, _BELOW_DB = 12.0, 18.0
"""A channel of less signal to noise is lost: two bits; and it is for the others' sake if all together have so much more."""
_DISPLACED = 0.15
"""Of all steps: a zero point that is so many away from where it should be is wrong."""
_MOST = 1 << 22
"""Elements of a tensor that are looked at."""
Problem = tuple[str, str]


@dataclass(frozen=True)
class Misfit:
    """A quantized tensor, and how its values fit.

    Attributes:
        pair: Its nodes.
        scale: The scale; ``None`` where it is computed as the model runs.
        zero: The zero point, of the same shape.
        fitted_scale: A scale that has room for the values that were seen, and no more; ``None`` where they are not known.
        fitted_zero: Its zero point.
        low: The least value seen.
        high: The largest.
        clipped: The share of values for which there is no room.
        bits_lost: By how many bits the rounding is coarser than it would be with the fitted scale.
        snr_db: Signal to noise of the tensor as it is quantized.
        fitted_db: The same with the fitted scale.
        problems: What is wrong: a rule and a sentence, each.
        drowned: Whether no scale fits: with room for the largest channel most of the others are lost.
    """

    pair: Pair
    scale: Array | None = None
    zero: Array | None = None
    fitted_scale: Array | None = None
    fitted_zero: Array | None = None
    low: float = 0.0
    high: float = 0.0
    clipped: float = 0.0
    bits_lost: float = 0.0
    snr_db: float | None = None
    fitted_db: float | None = None
    problems: tuple[Problem, ...] = ()
    drowned: bool = False

    @property
    def bad(self) -> bool:
        """Whether it is wrong, and not just calibrated on other values: a few of these past its range cost bits too."""
        if any(rule in ("scale", "weight scale") for rule, _ in self.problems):
            return True
        ratios = self.ratios
        if ratios is None or self.bits_lost <= 1:
            return self.drowned
        wide = bool((ratios > _LARGE).any() or (ratios < _SMALL).any())
        return self.drowned or wide or self.clipped > _MANY or self._displaced

    @property
    def _displaced(self) -> bool:
        """Whether a zero point is far from where it should be."""
        grid = Grid.of(self.pair.type_name)
        if grid is None or self.zero is None or self.fitted_zero is None or self.zero.shape != self.fitted_zero.shape:
            return False
        return bool((np.abs(self.zero - self.fitted_zero) > _DISPLACED * (grid.high - grid.low)).any())

    @property
    def ratios(self) -> Array | None:
        """Each scale over the fitted one."""
        if self.scale is None or self.fitted_scale is None or self.scale.shape != self.fitted_scale.shape:
            return None
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.scale) / self.fitted_scale)

    @property
    def ratio(self) -> float | None:
        """The scale over the fitted one; the middle one of several."""
        return None if self.ratios is None else float(np.median(self.ratios))


def lost_among(network: Network, pair: Pair, value: NDArray[Any], rounded: Array) -> float:
    """By how many bits the middle channel of a tensor is worse than all of it, where one scale for all drowns most channels.

    Args:
        network: The model.
        pair: Where it is quantized.
        value: Its values.
        rounded: The same rounded with a scale that fits.

    Returns:
        0.0 where they are not lost. A Softmax's small values are meant to be small.
    """
    maker = network.producer.get(pair.tensor)
    if value.ndim <= 1 or value.size > _MOST or (maker is not None and network.nodes[maker].op_type == "Softmax"):
        return 0.0
    channels = _channels(network, pair, value)
    others = tuple(place for place in range(value.ndim) if place != channels)
    exact = value.astype(np.float64)
    signal, noise = (np.mean(np.square(each), axis=others) for each in (exact, rounded - exact))
    live = signal > 0
    if live.sum() <= 2:
        return 0.0
    whole = 10 * math.log10(float(signal.sum()) / max(float(noise.sum()), 1e-42))
    middle = float(np.median(10 * np.log10(signal[live] / np.maximum(noise[live], 1e-42))))
    return (whole - middle) / BIT if middle < _LOST_DB and whole - middle > _BELOW_DB else 0.0


def problems(
    network: Network, seen: Misfit, grid: Grid, values: Sequence[NDArray[Any]], *, symmetric: bool
) -> Iterator[Problem]:
    """What is wrong with a tensor, the worst first."""
    scale, zero, fitted = seen.scale, seen.zero, seen.fitted_scale
    assert scale is not None
    assert zero is not None
    assert fitted is not None
    assert seen.fitted_zero is not None
    if not np.isfinite(scale).all() or (scale <= 0).any():
        yield "scale", f"the scale {_some(scale)} is none: it has to be above 0"
        return
    bottom, top = grid.ends(scale, zero)
    room = f"[{float(bottom.min()):.4g}, {float(top.max()):.4g}]"
    had = f"[{seen.low:.4g}, {seen.high:.4g}]"
    worst = int(np.argmax(np.abs(np.log2(scale.reshape(-1) / fitted.reshape(-1)))))
    ratio = float(scale.reshape(-1)[worst] / fitted.reshape(-1)[worst])
    where = "" if scale.size == 1 else f" of slice {worst}"
    if seen.bits_lost > 1 and not (seen.drowned and 1 / 2 < ratio < 2):
        if 1 / 2 < ratio < 2 and seen.clipped and (zero != seen.fitted_zero).any():
            yield (
                "zero point",
                (
                    f"the zero point {_some(zero)} leaves room for {room} where values are in {had}, so that "
                    f"{seen.clipped:.1%} are clipped; {_some(seen.fitted_zero)} would fit"
                ),
            )
        elif ratio >= 1:
            used = max(1, round((grid.high - grid.low + 1) / ratio)) if grid.fraction is None else None
            steps = "" if used is None else f", which leaves about {used} of {int(grid.high - grid.low + 1)} steps"
            yield (
                "scale too large",
                f"the scale{where} ({scale.reshape(-1)[worst]:.4g}) is {ratio:.3g} times what values in {had} need{steps}",
            )
        else:
            yield (
                "clipping",
                (
                    f"{seen.clipped:.1%} of the values are clipped: the scale{where} ({scale.reshape(-1)[worst]:.4g}) is "
                    f"{1 / ratio:.3g} times too small, with room for {room} where they are in {had}"
                ),
            )
    elif seen.clipped > 1e-3:
        yield "clipping", f"{seen.clipped:.1%} of the values are clipped: there is room for {room}, they are in {had}"
    yield from _shape_problems(network, seen, grid, values, symmetric=symmetric)


def _shape_problems(
    network: Network, seen: Misfit, grid: Grid, values: Sequence[NDArray[Any]], *, symmetric: bool
) -> Iterator[Problem]:
    """What no single scale mends."""
    pair = seen.pair
    value = values[0]
    if seen.scale is not None and seen.scale.size == 1 and value.ndim > 1 and value.size <= _MOST:
        axis = _channels(network, pair, value)
        low, high = ranges(value, axis)
        largest = np.maximum(np.abs(low), np.abs(high))
        middle, place = float(np.median(largest)), int(largest.argmax())
        if middle > 0 and largest[place] / middle > _UNEVEN:
            times = f"channel {place} is {largest[place] / middle:.0f} times as large as the middle one"
            times += ", of which little is left by any scale that has room for both" if seen.drowned else ""
            if pair.kind == "weight":
                yield "per-tensor", f"one scale for all: {times}; a scale for each channel would do"
            else:
                yield "outlier channels", f"one scale for all: {times}"
    maker = network.producer.get(pair.tensor)
    if symmetric and seen.low >= 0 and seen.high > 0 and pair.kind == "activation":
        softmax = maker is not None and network.nodes[maker].op_type == "Softmax"
        what = "a signed Softmax: " if softmax else ""
        yield ("signed", f"{what}values are never negative, so that half of the steps of {grid.name} are not used")


def _channels(network: Network, pair: Pair, value: NDArray[Any]) -> int:
    """The axis of a tensor that has its channels."""
    if pair.kind == "activation":
        return 1 if value.ndim in (4, 5) else value.ndim - 1
    readers = [
        network.nodes[i].op_type for name in pair_outputs(network, pair) for i in network.consumers.get(name, ())
    ]
    return value.ndim - 1 if "MatMul" in readers else 0


def stored_problems(subject: Subject, pair: Pair, scale: Array) -> Iterator[Problem]:
    """What can be told of a weight that is stored quantized, where nothing is known of what it was made of."""
    if not np.isfinite(scale).all() or (scale <= 0).any():
        yield "scale", f"the scale {_some(scale)} is none: it has to be above 0"
        return
    if pair.kind == "bias":
        wanted = _of_products(subject, pair)
        if wanted is not None and wanted.size in (1, scale.size):
            off = float(np.max(np.abs(np.log2(scale / wanted))))
            if off > 1e-2:
                yield (
                    "bias",
                    (
                        f"the scale of the bias ({_some(scale)}) is not the input's times the weight's ({_some(wanted)}), which "
                        "integer kernels take it to be: one of the three was changed"
                    ),
                )
        return
    if scale.size > 2 and (uneven := float(scale.max() / np.median(scale))) > 4 * _UNEVEN:
        yield "weight scale", f"the scale of slice {int(scale.argmax())} is {uneven:.0f} times the middle one"


def _of_products(subject: Subject, pair: Pair) -> Array | None:
    """The product of the scales of what a bias is added to."""
    network = subject.network
    for name in pair_outputs(network, pair):
        for index in network.consumers.get(name, ()):
            node = network.nodes[index]
            if node.op_type not in ("Conv", "Gemm", "ConvTranspose") or len(node.input) < 3 or node.input[2] != name:
                continue
            scales = []
            for each in node.input[:2]:
                maker = network.producer.get(each)
                if maker is None or network.nodes[maker].op_type != "DequantizeLinear":
                    return None
                scales.append(constant_of(subject, network.nodes[maker].input[1]))
            first, second = scales
            if first is None or second is None or first.size != 1:
                return None
            return np.atleast_1d(first.astype(np.float64).reshape(()) * second.astype(np.float64))
    return None


def _some(values: Array) -> str:
    """A number, or the ends of many."""
    flat = np.asarray(values, np.float64).reshape(-1)
    return f"{flat[0]:.4g}" if flat.size == 1 or (flat == flat[0]).all() else f"{flat.min():.4g} to {flat.max():.4g}"


def usual_ratio(misfits: Sequence[Misfit]) -> float:
    """How many times the fitted scale the scales of a model usually are, at least 1: calibrated on other data they differ.

    The lower third counts, so that it is usual even where most of what is left is bad.
    """
    ratios = [each.ratio for each in misfits if each.pair.kind == "activation" and each.ratio is not None]
    known = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    return min(max(float(np.quantile(known, 1 / 3)), 1.0), 8.0) if known else 1.0


def pair_outputs(network: Network, pair: Pair) -> list[str]:
    """The float tensors that a pair makes."""
    return [network.nodes[index].output[0] for index in pair.dequantize]
