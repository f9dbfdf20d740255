"""What options with a choice take."""

from __future__ import annotations

from enum import Enum


class ErrorStat(str, Enum):
    """Which number is held against the tolerances (Polygraphy's ``--check-error-stat``)."""

    ELEMWISE = "elemwise"
    """Fails where an element exceeds both tolerances."""
    MAX = "max"
    """Fails where the largest absolute and the largest relative error each exceed their tolerance."""
    MEAN = "mean"
    MEDIAN = "median"
    QUANTILE = "quantile"
    """As ``max``, but of the errors without the largest few: their quantile, 0.99 unless said otherwise."""


class OutputStat(str, Enum):
    """One number for a whole output, with a threshold of its own; ``--check-error-stat`` takes these too."""

    L2 = "l2"
    """The L2 norm of the error, at most --l2-threshold."""
    COSINE = "cosine"
    """Cosine similarity, at least --cosine-similarity-threshold."""
    PSNR = "psnr"
    """Peak signal-to-noise ratio in dB, at least --psnr-threshold."""
    SNR = "snr"
    """Signal-to-noise ratio in dB, at least --snr-threshold."""


class Algorithm(str, Enum):
    """How two tensors are compared (Polygraphy's ``--compare``)."""

    SIMPLE = "simple"
    """By how far each element is off."""
    INDICES = "indices"
    """As lists of indices, such as TopK makes: by how many places each is away from where it should be."""
    L2 = "l2"
    COSINE_SIMILARITY = "cosine_similarity"
    DISTANCE_METRICS = "distance_metrics"
    """``l2`` and ``cosine_similarity``."""
    PSNR = "psnr"
    SNR = "snr"
    QUALITY_METRICS = "quality_metrics"
    """``psnr`` and ``snr``."""

    @property
    def measures(self) -> tuple[OutputStat, ...]:
        """The measures that it is made of; none for numbers and indices."""
        names = {
            self.L2: (OutputStat.L2,),
            self.COSINE_SIMILARITY: (OutputStat.COSINE,),
            self.DISTANCE_METRICS: (OutputStat.L2, OutputStat.COSINE),
            self.PSNR: (OutputStat.PSNR,),
            self.SNR: (OutputStat.SNR,),
            self.QUALITY_METRICS: (OutputStat.PSNR, OutputStat.SNR),
        }
        return names.get(self, ())


class Mode(str, Enum):
    """How to search."""

    AUTO = "auto"
    """Bisection; delta debugging once most candidates break in other ways."""
    BISECT = "bisect"
    """Bisection only."""
    LINEAR = "linear"
    """One unit at a time."""
    DDMIN = "ddmin"
    """Delta debugging only."""


class Show(str, Enum):
    """What ``inspect`` shows beside the summary."""

    LAYERS = "layers"
    ATTRS = "attrs"
    WEIGHTS = "weights"
    VALUES = "values"
