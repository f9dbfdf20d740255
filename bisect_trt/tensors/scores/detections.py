"""Mean average precision of detected boxes, over a whole set of images.

The definition is PASCAL VOC's of 2010 (M. Everingham et al., "The PASCAL visual object classes challenge", 2010, section
4.2): of each class, detections are taken by falling score; one is right if it overlaps a true box of its image that none
before it has taken by at least so much (intersection over union); the average precision is the area under the curve of
precision over recall, with precision made falling. The metric is the mean over the classes that have a true box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError, quoted
from bisect_trt.tensors.scores.terms import Labels, Metric, Outputs, to_float

_LEAST_SCORE = 0.5
"""Without labels, what the reference detects with at least this score is the truth."""
_PARTS = {"boxes": ("box", "bbox"), "scores": ("score", "conf"), "labels": ("label", "class", "cls")}


@dataclass(frozen=True)
class Found:
    """The boxes of one image.

    Attributes:
        boxes: Corners x1, y1, x2, y2; shape (n, 4).
        scores: Shape (n,).
        classes: Shape (n,).
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    classes: NDArray[np.int64]


def mean_average_precision(name: str, output: str | None, overlap: float) -> Metric:
    """At one overlap, from 0 to 1. It is no mean over samples, so that it takes the whole set.

    Outputs, and labels, are told apart by what their names hold: ``box``, ``score`` or ``conf``, ``label`` or ``class``. Each
    sample is an image. Labels are a mapping of ``boxes`` and, where there are several, ``labels``.
    """
    if output is not None:
        raise UsageError(
            f"--metric {name}:{output}: it looks at boxes, scores and labels together; leave '{output}' out."
        )
    return Metric(name, lower_is_better=False, of_set=partial(_of_set, name, overlap))


def _of_set(
    name: str, overlap: float, seen: Sequence[Outputs], reference: Sequence[Outputs], labels: Sequence[Labels]
) -> float:
    found = [_found(name, each) for each in seen]
    truth = [
        _certain(_found(name, ours)) if label is None else _found(name, _named(label))
        for ours, label in zip(reference, labels, strict=True)
    ]
    classes = sorted({int(each) for image in truth for each in image.classes})
    if not classes:
        raise UsageError(f"--metric {name}: there is no true box in the whole set; give labels, or other samples.")
    return float(np.mean([average_precision(found, truth, each, overlap) for each in classes]))


def _named(label: Labels) -> Mapping[str, Any]:
    if not isinstance(label, Mapping):
        raise UsageError("--metric map: the labels of a sample must be a dict of boxes and labels; mend the loader.")
    return {str(name): np.asarray(values) for name, values in label.items()}


def _found(name: str, outputs: Mapping[str, Any]) -> Found:
    parts: dict[str, Any] = {}
    for part, words in _PARTS.items():
        parts[part] = next((v for key, v in outputs.items() if any(word in key.lower() for word in words)), None)
    if parts["boxes"] is None:
        raise UsageError(
            f"--metric {name}: none of {quoted(outputs)} has 'box' in its name; name outputs and labels boxes, scores and "
            "labels, or give a function of your own (--metric SCRIPT.py)."
        )
    boxes = to_float(parts["boxes"]).reshape(-1, 4)
    scores = np.ones(len(boxes)) if parts["scores"] is None else to_float(parts["scores"]).reshape(-1)
    classes = np.zeros(len(boxes)) if parts["labels"] is None else to_float(parts["labels"]).reshape(-1)
    if not len(boxes) == len(scores) == len(classes):
        raise UsageError(
            f"--metric {name}: there are {len(boxes)} boxes, {len(scores)} scores and {len(classes)} classes in one sample; "
            "there must be as many of each."
        )
    with np.errstate(invalid="ignore"):
        return Found(boxes, np.where(np.isnan(scores), -np.inf, scores), classes.astype(np.int64))


def _certain(found: Found) -> Found:
    sure = found.scores >= _LEAST_SCORE
    return Found(found.boxes[sure], found.scores[sure], found.classes[sure])


def average_precision(found: Sequence[Found], truth: Sequence[Found], wanted: int, overlap: float) -> float:
    """Of one class."""
    true = [each.boxes[each.classes == wanted] for each in truth]
    total = sum(map(len, true))
    entries = [
        (-float(score), image, place)
        for image, each in enumerate(found)
        for place, score in enumerate(each.scores)
        if each.classes[place] == wanted
    ]
    taken = [np.zeros(len(boxes), bool) for boxes in true]
    right = []
    for _, image, place in sorted(entries):
        overlaps = np.where(taken[image], -1.0, intersection_over_union(found[image].boxes[place], true[image]))
        best = int(overlaps.argmax()) if len(overlaps) else -1
        hit = best >= 0 and bool(overlaps[best] >= overlap)
        if hit:
            taken[image][best] = True
        right.append(hit)
    hits = np.cumsum(right)
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    return float(precision[np.asarray(right, bool)].sum() / total) if total else 0.0


def intersection_over_union(box: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of one box with several, all of corners x1, y1, x2, y2; shape (n,). NaN counts as no overlap."""
    with np.errstate(all="ignore"):
        sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
        common = np.clip(sides, 0, None).prod(axis=1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod()
        return np.asarray(np.nan_to_num(common / (areas - common), nan=0.0))
