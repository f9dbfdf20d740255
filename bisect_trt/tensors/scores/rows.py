"""Metrics of rows of numbers, such as logits: top-K, perplexity, Kullback-Leibler divergence.

A row is what lies along an output's last axis.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.tensors.scores.terms import (
    Array,
    Labels,
    Metric,
    Outputs,
    Terms,
    chosen_output,
    is_floating,
    of_label,
    to_float,
)

MOST_NATS = 20.0
"""What one token or row costs at most, in perplexity and divergence: a probability of 2e-9. Without such a limit one sample
that nobody looked at could outweigh all others."""
_IGNORED = -100
"""The label of a position that is not looked at, as PyTorch's ``cross_entropy`` has it."""


def top(name: str, output: str | None, k: int) -> Metric:
    """The share of rows whose label is among their K largest values; of equal ones the first comes first.

    Without labels, the label is the place of the reference's largest value. An output of integers is taken for classes
    already. A row with a NaN is wrong.
    """
    return Metric(name, lower_is_better=False, of_sample=partial(_top, name, output, k))


def _top(what: str, output: str | None, k: int, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:
    name = chosen_output(output, reference, what, floating=False)
    ours = reference[name]
    if not is_floating(ours):
        truth = _classes(of_label(labels, name), ours.size, ours)
        looked_at = truth != _IGNORED
        hits = _same_shape(seen.get(name), ours)
        right = np.zeros(truth.shape, bool) if hits is None else hits.reshape(-1) == truth
        return _share(right & looked_at, looked_at)
    wide = _rows(ours)
    if k >= wide.shape[1]:
        raise UsageError(
            f"--metric {what}: '{name}' has {wide.shape[1]} classes a row, so that every label is among its {k} largest; name "
            "another output, or fewer."
        )
    truth = _classes(of_label(labels, name), len(wide), wide)
    looked_at = truth != _IGNORED
    there = _same_shape(seen.get(name), ours)
    if there is None:
        return _share(np.zeros(truth.shape, bool), looked_at)
    rows = _rows(there)
    if ((truth[looked_at] < 0) | (truth[looked_at] >= rows.shape[1])).any():
        raise UsageError(
            f"--metric {what}: a label is no class of '{name}', which has {rows.shape[1]}; mend the loader."
        )
    own = rows[np.arange(len(rows)), np.where(looked_at, truth, 0)][:, None]
    earlier = np.arange(rows.shape[1])[None, :] < np.where(looked_at, truth, 0)[:, None]
    ahead = np.count_nonzero((rows > own) | ((rows == own) & earlier), axis=1)
    right = (ahead < k) & ~np.isnan(rows).any(axis=1)
    return _share(right & looked_at, looked_at)


def _share(right: NDArray[np.bool_], looked_at: NDArray[np.bool_]) -> Terms:
    weight = float(np.count_nonzero(looked_at))
    return Terms(float(np.count_nonzero(right)), weight, 0.0, weight)


def perplexity(name: str, output: str | None) -> Metric:
    """``exp`` of the mean negative log-likelihood of the labels, over all positions of all samples.

    The label of a position is the token that its row predicts, so a loader shifts them; -100 is not looked at. Rows that
    are probabilities already, not logits, are taken as such. Without labels, the reference's likeliest tokens are the truth.
    """
    return Metric(
        name,
        lower_is_better=True,
        of_sample=partial(_perplexity, name, output),
        spread=lambda mean: float(np.exp(mean)),
        gather=lambda bound: float(np.log(bound)) if bound > 0 else -np.inf,
    )


def _perplexity(what: str, output: str | None, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:
    name = chosen_output(output, reference, what)
    wide = _rows(reference[name])
    truth = _classes(of_label(labels, name), len(wide), wide)
    looked_at = truth != _IGNORED
    count = float(np.count_nonzero(looked_at))
    if ((truth[looked_at] < 0) | (truth[looked_at] >= wide.shape[1])).any():
        raise UsageError(
            f"--metric {what}: a label is no token of '{name}', which has {wide.shape[1]}; mend the loader."
        )
    there = _same_shape(seen.get(name), reference[name])
    if there is None:
        return Terms(count * MOST_NATS, count, 0.0, count * MOST_NATS)
    logs = log_probabilities(_rows(there), like=wide)
    cost = -logs[np.arange(len(logs)), np.where(looked_at, truth, 0)][looked_at]
    return Terms(float(_limited(cost).sum()), count, 0.0, count * MOST_NATS)


def divergence(name: str, output: str | None) -> Metric:
    """The Kullback-Leibler divergence of the candidate's probabilities from the reference's, in nats, the mean over rows.

    Of logits the softmax is taken. S. Kullback and R. Leibler, "On information and sufficiency", 1951.
    """
    return Metric(name, lower_is_better=True, of_sample=partial(_divergence, name, output), unit=" nats")


def _divergence(what: str, output: str | None, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:  # noqa: ARG001 - as all
    name = chosen_output(output, reference, what)
    wide = _rows(reference[name])
    count = float(len(wide))
    there = _same_shape(seen.get(name), reference[name])
    if there is None:
        return Terms(count * MOST_NATS, count, 0.0, count * MOST_NATS)
    ours, theirs = log_probabilities(wide, like=wide), log_probabilities(_rows(there), like=wide)
    with np.errstate(all="ignore"):
        parts = np.where(np.isneginf(ours), 0.0, np.exp(ours) * (ours - theirs))
    return Terms(float(_limited(parts.sum(axis=1)).sum()), count, 0.0, count * MOST_NATS)


def log_probabilities(rows: NDArray[np.float64], like: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithms of what rows say: of their softmax, or of themselves where ``like`` holds probabilities."""
    with np.errstate(all="ignore"):
        if bool((like >= 0).all()) and np.allclose(like.sum(axis=1), 1.0, atol=1e-2):
            return np.asarray(np.log(rows))
        shifted = rows - rows.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _limited(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Costs between 0 and the most there is; NaN is the most."""
    return np.clip(np.where(np.isnan(costs), MOST_NATS, costs), 0.0, MOST_NATS)


def _rows(values: Array) -> NDArray[np.float64]:
    return to_float(values).reshape(-1, values.shape[-1] if values.ndim else 1)


def _same_shape(seen: Array | None, reference: Array) -> Array | None:
    """What a candidate made, if it can be compared with the reference's at all."""
    return seen if seen is not None and seen.shape == reference.shape else None


def _classes(labels: Array | None, count: int, reference: Array) -> NDArray[np.int64]:
    """A class for each row: of labels that hold them, or one number for each class; without labels the reference's."""
    if labels is None:
        rows = is_floating(reference) and reference.ndim > 1
        return np.asarray(reference.argmax(axis=1) if rows else reference).reshape(-1).astype(np.int64)
    if labels.size == count and labels.dtype.kind in "biuf":
        return labels.reshape(-1).astype(np.int64)
    if is_floating(reference) and labels.size == reference.size and labels.dtype.kind in "biuf":
        return np.asarray(labels.reshape(reference.shape).argmax(axis=1))
    raise UsageError(
        f"a sample has labels of shape {list(labels.shape)} and type {labels.dtype.name}, and {count} rows to be labelled; "
        "give a class for each row."
    )
