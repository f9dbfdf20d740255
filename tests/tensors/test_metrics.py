"""Each built-in metric against its definition, written down plainly; functions of the user; the set on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisect_trt.errors import UsageError
from bisect_trt.tensors.metrics import Evaluation, Metric, find_metric
from bisect_trt.tensors.npz import save_npz

RNG = np.random.default_rng(4)


def value(metric: Metric, seen: list[Any], reference: list[Any], labels: list[Any] | None = None) -> float:
    """The metric of a whole set."""
    labels = [None] * len(seen) if labels is None else labels
    if metric.of_sample is None:
        assert metric.of_set is not None
        return metric.of_set(seen, reference, labels)
    terms = [metric.of_sample(*each) for each in zip(seen, reference, labels, strict=True)]
    return sum(each.total for each in terms) / sum(each.weight for each in terms)


def logits(count: int, *shape: int) -> list[dict[str, Any]]:
    """Outputs of samples."""
    return [{"out": RNG.normal(size=shape).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("k", [1, 3])
def test_top_k(k: int) -> None:
    seen, reference = logits(40, 2, 7), logits(40, 2, 7)
    labels = [RNG.integers(0, 7, 2) for _ in seen]
    hits = [
        label in np.argsort(-row, kind="stable")[:k]
        for sample, each in zip(seen, labels, strict=True)
        for row, label in zip(sample["out"], each, strict=True)
    ]
    assert value(find_metric(f"top-{k}"), seen, reference, labels) == pytest.approx(np.mean(hits))
    assert value(find_metric("top-1"), reference, reference) == 1.0


def test_a_row_with_nan_is_wrong_and_ties_go_to_the_first() -> None:
    same = [{"out": np.zeros((1, 3), np.float32)}]
    assert value(find_metric("top-1"), same, same, [np.array([0])]) == 1.0
    assert value(find_metric("top-1"), same, same, [{"out": np.array([1])}]) == 0.0
    broken = [{"out": np.array([[np.nan, 0, 1]], np.float32)}]
    assert value(find_metric("top-1"), broken, same, [np.array([2])]) == 0.0
    assert value(find_metric("top-1"), [{}], same) == 0.0
    classes = [{"out": np.array([2, 1])}]
    assert value(find_metric("top-1"), [{"out": np.array([2, 0])}], classes) == 0.5


def test_signals() -> None:
    seen, reference = logits(6, 3, 4), logits(6, 3, 4)
    pairs = [
        (s["out"].astype(float).ravel(), r["out"].astype(float).ravel()) for s, r in zip(seen, reference, strict=True)
    ]
    expected = {
        "cosine": [s @ r / np.linalg.norm(s) / np.linalg.norm(r) for s, r in pairs],
        "psnr": [10 * np.log10(r.max() ** 2 / ((s - r) ** 2).mean()) for s, r in pairs],
    }
    for name, numbers in expected.items():
        assert value(find_metric(name), seen, reference) == pytest.approx(np.mean(numbers))
    assert value(find_metric("psnr"), reference, reference) == 100.0
    broken = [{"out": np.full((3, 4), np.nan, np.float32)} for _ in seen]
    assert value(find_metric("cosine"), broken, reference) == -1.0


ROW = {"out": np.zeros((1, 3), np.float32)}


@pytest.mark.parametrize(
    ("asked", "outputs", "label", "message"),
    [
        ("accuracy", ROW, None, "there is no metric of this name"),
        ("top-0", ROW, None, "there is no metric of this name"),
        ("none.py", ROW, None, "does not exist"),
        ("top-1", ROW, np.array([3]), "a label is no class of 'out', which has 3"),
        ("top-1", {"out": np.zeros((2, 3), np.float32)}, np.array([0]), "2 rows to be labelled"),
        ("top-1", ROW, np.array(["cat"]), "give a class for each row"),
        ("top-3", {"out": np.zeros((2, 3), np.float32)}, None, "every label is among its 3 largest"),
        ("top-1:other", ROW, None, "there is no such output"),
        ("cosine", {"out": np.zeros((1, 3), np.int64)}, None, "there is none among 'out'"),
    ],
)
def test_what_does_not_fit(asked: str, outputs: dict[str, Any], label: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        value(find_metric(asked), [outputs], [outputs], [label])
    with pytest.raises(UsageError, match="for top-1 more is better"):
        find_metric("top-1", lower_is_better=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def metric(outputs): return len(outputs)", 5.0),
        (
            "def metric(labels, outputs, k=5): return [float(o['out'].size + l[0]) for o, l in zip(outputs, labels)]",
            4.0,
        ),
        ("def metric(outputs, reference, *, labels): return outputs[0].runner_name != reference[0].runner_name", 1.0),
        ("def metric(outputs): raise RuntimeError('no labels')", "raised RuntimeError: no labels"),
        ("def score(outputs): return 0.5", "has no function 'metric'"),
        ("def metric(predictions): return 0.5", "must take lists"),
        ("def metric(outputs, k): return 0.5", "must take lists"),
        ("def metric(outputs): return '0.9'", "must return a number"),
        ("def metric(outputs): return (0.9, 1)", "must return a number"),
        ("def metric(outputs): return {'acc': 1}", "must return a number"),
    ],
)
def test_a_function_of_the_user(tmp_path: Path, source: str, expected: float | str) -> None:
    path = tmp_path / "my.py"
    path.write_text(source)
    seen, labels = logits(5, 1, 3), [np.array([1])] * 5
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            value(find_metric(str(path)), seen, seen, labels)
        return
    metric = find_metric(str(path), lower_is_better=True)
    assert (metric.name, metric.lower_is_better) == ("my.py:metric", True)
    assert value(metric, seen, seen, labels) == expected


@pytest.mark.parametrize("first", [True, False])
def test_all_samples_have_labels_or_none(tmp_path: Path, first: bool) -> None:
    samples = [({"x": np.zeros(1)}, np.zeros(1) if (number == 2) ^ first else None) for number in range(4)]
    with pytest.raises(UsageError, match="sample 2 "):
        Evaluation.write(tmp_path, samples)


@pytest.mark.parametrize("asked", ["top-1", "cosine"])
def test_a_set_on_the_disk_scores_what_its_samples_score(asked: str, tmp_path: Path) -> None:
    reference, labels = logits(30, 1, 5), [RNG.integers(0, 5, 1) for _ in range(30)]
    Evaluation.write(tmp_path, [({"x": np.zeros(1)}, label) for label in labels])
    data, metric = Evaluation.open(tmp_path), find_metric(asked)
    for place, outputs in enumerate(reference):
        save_npz(data.golden(place), outputs)
    for seen in (reference, [{"out": each["out"] + RNG.normal(size=(1, 5))} for each in reference]):
        found = data.score(metric, lambda place, seen=seen: seen[place])  # type: ignore[misc]
        assert found == pytest.approx(value(metric, seen, reference, labels))
