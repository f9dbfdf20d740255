"""One number for how far two tensors are apart, held against one threshold: what Polygraphy and ``trtexec`` compare by.

``l2``, ``cosine``, ``psnr``, ``snr`` and ``lpips`` are Polygraphy 0.53.6's ``--compare`` functions (``polygraphy/comparator/
compare.py``, Apache-2.0), with the reference for what it calls the first array, and with its default thresholds. ``l0``,
``l1``, ``mse``, ``linf`` and ``cos`` are what ``trtexec`` 11.2 calls l0, l1, l2, lInf and cos (``--accuracyAlgorithm``): 0 is a
perfect match. All are computed in float64. NaN is beyond any threshold.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.options.choices import Measure
from bisect_trt.tensors.comparison import ComparisonKind, Measured, TensorComparison
from bisect_trt.tensors.scores.signals import cosine_similarity, peak_signal_to_noise, signal_to_noise
from bisect_trt.tensors.scores.terms import to_float

Vector = NDArray[np.float64]
_EIGHT_BITS = 2.0
"""Past this an image is one of 0 to 255, of which none is so dark."""
_SMALLEST = 31
"""Of an image that is less high or wide AlexNet's last layers have nothing left."""
_WEIGHTS = "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"
_UNJUDGED = (ComparisonKind.MISSING, ComparisonKind.SHAPE, ComparisonKind.DTYPE)


@dataclass(frozen=True)
class Rule:
    """A number for two tensors.

    Attributes:
        label: What it is called in words.
        at_least: Whether it has to be at least its threshold; else at most.
        threshold: Where none is given; ``None`` if one has to be.
        of: The number, of the reference and the target as flat vectors.
        unit: What follows the number.
    """

    label: str
    at_least: bool
    threshold: float | None
    of: Callable[[Vector, Vector], float]
    unit: str = ""

    def judge(self, stat: Measure, value: float, threshold: float) -> Measured:
        """A number beside its threshold."""
        passed = value >= threshold if self.at_least else value <= threshold
        return Measured(stat.value, value, threshold, passed, self.describe(value, threshold, passed=passed))

    def describe(self, value: float, threshold: float, *, passed: bool) -> str:
        """A number beside its threshold, in words; with so many digits that they differ where they do."""
        digits = next((n for n in range(5, 17) if value == threshold or f"{value:.{n}g}" != f"{threshold:.{n}g}"), 17)
        side = "at least" if self.at_least else "at most"
        must = "" if passed else "and must be "
        return f"{self.label} {value:.{digits}g}{self.unit}, {must}{side} {threshold:.{digits}g}{self.unit}"


def _norm(reference: Vector, seen: Vector) -> float:
    return float(np.sqrt(np.square(seen - reference).sum()))


def _cosine_distance(reference: Vector, seen: Vector) -> float:
    return float(np.maximum(1 - cosine_similarity(reference, seen), 0))  # rounding may leave it below


RULES: Mapping[Measure, Rule] = {
    Measure.L2: Rule("L2 norm of the error", at_least=False, threshold=1e-5, of=_norm),
    Measure.COSINE: Rule("cosine similarity", at_least=True, threshold=0.997, of=cosine_similarity),
    Measure.PSNR: Rule("PSNR", at_least=True, threshold=30.0, of=peak_signal_to_noise, unit=" dB"),
    Measure.SNR: Rule("SNR", at_least=True, threshold=20.0, of=signal_to_noise, unit=" dB"),
    Measure.LPIPS: Rule("LPIPS", at_least=False, threshold=0.1, of=lambda *_: math.nan),  # of images, see below
    Measure.L0: Rule("share of elements that are off", at_least=False, threshold=None, of=lambda *_: math.nan),
    Measure.L1: Rule(
        "mean absolute error", at_least=False, threshold=None, of=lambda r, s: float(np.abs(s - r).mean())
    ),
    Measure.MSE: Rule(
        "mean squared error", at_least=False, threshold=None, of=lambda r, s: float(np.square(s - r).mean())
    ),
    Measure.LINF: Rule(
        "largest absolute error", at_least=False, threshold=None, of=lambda r, s: float(np.abs(s - r).max())
    ),
    Measure.COS: Rule("1 - cosine similarity", at_least=False, threshold=None, of=_cosine_distance),
}


def judge(
    comparison: TensorComparison,
    reference: NDArray[Any],
    target: NDArray[Any] | None,
    wanted: Mapping[Measure, float],
) -> TensorComparison:
    """An elementwise comparison, with the verdict of measures in place of its own.

    Args:
        comparison: The comparison; one of strings, of complex numbers, of unlike shapes or without elements stays as it is.
        reference: What the tensor should be.
        target: What it is.
        wanted: The measures and their thresholds; all have to be met.

    Raises:
        UnavailableError: LPIPS is asked for and not installed.
    """
    unmeasured = target is None or comparison.kind in _UNJUDGED or not reference.size
    if not wanted or unmeasured or "c" in reference.dtype.kind or reference.dtype.kind in "USOT":
        return comparison
    assert target is not None
    found = []
    ours, theirs = to_float(reference), to_float(target)
    for stat, threshold in wanted.items():
        with np.errstate(all="ignore"):
            if stat is Measure.L0:
                value = comparison.mismatching / comparison.total
            elif stat is Measure.LPIPS:
                value = lpips_distance(ours, theirs)
            else:
                value = RULES[stat].of(ours.reshape(-1), theirs.reshape(-1))
        found.append(RULES[stat].judge(stat, float(value), threshold))
    return rejudged(comparison, tuple(found))


def rejudged(comparison: TensorComparison, measured: tuple[Measured, ...]) -> TensorComparison:
    """A comparison with the verdict of measures."""
    passed = all(each.passed for each in measured)
    broken = comparison.kind in (ComparisonKind.NAN, ComparisonKind.INF)
    kind = ComparisonKind.MATCH if passed else comparison.kind if broken else ComparisonKind.MISMATCH
    return replace(comparison, passed=passed, kind=kind, measured=measured)


def require_lpips() -> Any:  # noqa: ANN401 - a module that need not be there
    """The package ``lpips``.

    Raises:
        UnavailableError: It is not installed, or torch is not.
    """
    try:
        return importlib.import_module("lpips")
    except ImportError as error:
        raise UnavailableError(
            f"LPIPS is not installed here ({error}), and it needs torch; install it: pip install 'bisect-trt[lpips]'."
        ) from error
    except Exception as error:  # torchvision raises what it likes beside a torch of another build
        raise UnavailableError(
            f"LPIPS cannot be imported here ({error}); its torchvision has to be of the same build as torch: install both from "
            "one index."
        ) from error


def lpips_distance(reference: Vector, seen: Vector) -> float:
    """The learned perceptual distance of images (R. Zhang et al., 2018), with AlexNet, prepared as Polygraphy does.

    Values past 1 are taken for those of 0 to 255, values from 0 to 1 are stretched to -1 to 1. What the reference has says
    that of both images; by itself, one that is a little past 1 would be of another scale. Nor is the reference's own scale
    another where it is itself a little past 1, as what a network makes of a picture may be: as one of 0 to 255 it would be
    black, and every picture like it.

    Args:
        reference: Of shape (H, W, C), (C, H, W), (N, C, H, W) or (N, H, W, C); at most three channels are looked at.
        seen: Of the same shape.

    Raises:
        UnavailableError: It is not installed, its weights cannot be had, or these are no images.
    """
    scale = 1 / 255 if reference.max() > _EIGHT_BITS else 1.0
    centred = bool(reference.min() < 0)
    images = [_image(values * scale, centred=centred) for values in (reference, seen)]
    network, torch = _network(), importlib.import_module("torch")
    with torch.no_grad():
        return float(network(*map(torch.from_numpy, images)).mean())


@functools.cache
def _network() -> Any:  # noqa: ANN401 - a module of torch's
    """AlexNet with LPIPS's weights on it, which takes seconds to load.

    Raises:
        UnavailableError: It is not installed, or its weights cannot be had.
    """
    package = require_lpips()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision's, of how lpips calls it
            return package.LPIPS(net="alex", version="0.1", verbose=False).eval()
    except Exception as error:  # its weights come from the internet
        cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        folder = Path(os.environ.get("TORCH_HOME", str(Path(cache, "torch"))), "hub", "checkpoints")
        raise UnavailableError(
            f"LPIPS cannot load its network: {error}; put {_WEIGHTS} into {folder}, or compare otherwise."
        ) from error


def _image(values: Vector, *, centred: bool) -> NDArray[np.float32]:
    """As (N, 3, H, W), from -1 to 1; from 0 to 1 unless ``centred``.

    Raises:
        UnavailableError: It is no image that the network can look at.
    """
    shape = list(values.shape)
    if values.ndim == 3:
        values = (values.transpose(2, 0, 1) if values.shape[2] <= 3 else values)[None]
    elif values.ndim == 4 and values.shape[3] <= 3:
        values = values.transpose(0, 3, 1, 2)
    if values.ndim != 4 or min(values.shape[2:]) < _SMALLEST:
        raise UnavailableError(
            f"LPIPS compares images, of 3 or 4 dimensions and at least {_SMALLEST} by {_SMALLEST}, and an output has shape "
            f"{shape}; name those it is for (--check-error-stat OUT:lpips)."
        )
    image = values if centred else values * 2 - 1
    channels = [min(channel, image.shape[1] - 1) for channel in range(3)]
    return np.ascontiguousarray(image[:, channels], dtype=np.float32)
