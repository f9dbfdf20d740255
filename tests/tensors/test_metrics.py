"""Each built-in metric against its definition, written down plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisect_trt.errors import UsageError
from bisect_trt.tensors.metrics import Evaluation, Metric, find_metric, script_of
from bisect_trt.tensors.npz import save_npz

RNG = np.random.default_rng(4)


def value(metric: Metric, seen: list[Any], reference: list[Any], labels: list[Any] | None = None) -> float:
    """The metric of a whole set."""
    labels = [None] * len(seen) if labels is None else labels
    if metric.of_sample is None:
        assert metric.of_set is not None
        return metric.of_set(seen, reference, labels)
    terms = [metric.of_sample(*each) for each in zip(seen, reference, labels, strict=True)]
    assert all(each.low <= each.total <= each.high for each in terms)
    return metric.value(sum(each.total for each in terms), sum(each.weight for each in terms))


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
    one_hot = [np.eye(7)[each] for each in labels]
    assert value(find_metric(f"top-{k}"), seen, reference, one_hot) == pytest.approx(np.mean(hits))


def test_a_row_with_nan_is_wrong_and_ties_go_to_the_first() -> None:
    same = [{"out": np.zeros((1, 3), np.float32)}]
    assert value(find_metric("top-1"), same, same, [np.array([0])]) == 1.0
    assert value(find_metric("top-1"), same, same, [np.array([1])]) == 0.0
    broken = [{"out": np.array([[np.nan, 0, 1]], np.float32)}]
    assert value(find_metric("top-1"), broken, same, [np.array([2])]) == 0.0
    assert value(find_metric("top-1"), [{}], same) == 0.0


def test_signals() -> None:
    seen, reference = logits(6, 3, 4), logits(6, 3, 4)
    pairs = [
        (s["out"].astype(float).ravel(), r["out"].astype(float).ravel()) for s, r in zip(seen, reference, strict=True)
    ]
    cosines = [s @ r / np.linalg.norm(s) / np.linalg.norm(r) for s, r in pairs]
    assert value(find_metric("cosine"), seen, reference) == pytest.approx(np.mean(cosines))
    snr = [10 * np.log10((r**2).sum() / ((s - r) ** 2).sum()) for s, r in pairs]
    assert value(find_metric("snr"), seen, reference) == pytest.approx(np.mean(snr))
    psnr = [10 * np.log10(r.max() ** 2 / ((s - r) ** 2).mean()) for s, r in pairs]
    assert value(find_metric("psnr"), seen, reference) == pytest.approx(np.mean(psnr))
    assert value(find_metric("psnr"), reference, reference) == 100.0
    broken = [{"out": np.full((3, 4), np.nan, np.float32)} for _ in seen]
    assert value(find_metric("cosine"), broken, reference) == -1.0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("accuracy", "there is no metric of this name"),
        ("top-0", "there is no metric of this name"),
        ("none.py", "does not exist"),
    ],
)
def test_what_is_no_metric(asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_metric(asked)


@pytest.mark.parametrize(
    ("asked", "outputs", "label", "message"),
    [
        ("top-1", {"out": np.zeros((1, 3), np.float32)}, np.array([3]), "a label is no class of 'out', which has 3"),
        ("top-1", {"out": np.zeros((2, 3), np.float32)}, np.array([0]), "2 rows to be labelled"),
        ("top-3", {"out": np.zeros((2, 3), np.float32)}, None, "every label is among its 3 largest"),
        ("top-1:other", {"out": np.zeros((1, 3), np.float32)}, None, "there is no such output"),
        ("cosine", {"out": np.zeros((1, 3), np.int64)}, None, "there is none among 'out'"),
    ],
)
def test_what_does_not_fit(asked: str, outputs: dict[str, Any], label: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        value(find_metric(asked), [outputs], [outputs], [label])


SCRIPT = """
RANGE = (0, 1)
def metric(outputs, reference, labels):
    return [float(o["out"].argmax() == l[0]) for o, l in zip(outputs, labels)]
def whole(outputs, reference, labels):
    return float(sum(o["out"].max() for o in outputs))
def beyond(outputs, reference, labels):
    return [2.0 for _ in outputs]
def relative(outputs, reference, labels):
    return [1.0 / len(outputs) for _ in outputs]
def of_the_worst(outputs, reference):
    errors = [abs(o["out"] - r["out"]).max() for o, r in zip(outputs, reference)]
    return [1 - error / max(max(errors), 1e-9) for error in errors]
def near(outputs, reference):
    return [abs(o["out"] - r["out"]).max() < 0.1 for o, r in zip(outputs, reference)]
def words(outputs, reference, labels):
    return "good"
def broken(outputs, reference, labels):
    raise RuntimeError("no labels")
"""


def test_a_mean_over_texts_of_other_lengths(tmp_path: Path) -> None:
    """Which does not take each other's outputs, is one all the same."""
    path = tmp_path / "my.py"
    path.write_text(
        "def metric(outputs, reference): return [abs(o['out'] - r['out']).sum() for o, r in zip(outputs, reference)]"
    )
    seen = [{"out": np.zeros((1, length))} for length in (3, 4, 5)]
    script = script_of(find_metric(str(path)))
    assert script is not None
    assert script.is_mean(seen, seen, [None] * 3)


def test_a_function_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_text(SCRIPT)
    seen, labels = logits(5, 1, 3), [np.array([1])] * 5
    for name, mean in (
        ("metric", True),
        ("near", True),
        ("whole", False),
        ("relative", False),
        ("of_the_worst", False),  # which shows of outputs with errors alone
    ):
        metric = find_metric(f"{path}:{name}")
        script = script_of(metric)
        assert script is not None
        assert script.is_mean(seen, seen, labels) is mean
        assert metric.name == f"my.py:{name}"
    metric = find_metric(str(path), lower_is_better=True)
    script = script_of(metric)
    assert script is not None
    assert metric.lower_is_better
    assert value(script.by_sample(metric), seen, seen, labels) == value(metric, seen, seen, labels)
    for name, message in (
        ("words", "must return a number, or one for each of the 5 samples"),
        ("broken", "raised RuntimeError: no labels"),
    ):
        with pytest.raises(UsageError, match=message):
            value(find_metric(f"{path}:{name}"), seen, seen, labels)
    beyond = find_metric(f"{path}:beyond")
    script = script_of(beyond)
    assert script is not None
    with pytest.raises(UsageError, match="beyond its RANGE"):
        value(script.by_sample(beyond), seen, seen, labels)
    with pytest.raises(UsageError, match="has no function 'nothing'"):
        find_metric(f"{path}:nothing")
    path.write_text("RANGE = 3\ndef metric(outputs, reference, labels): return 0.0\n")
    with pytest.raises(UsageError, match="must be the lowest and the highest number"):
        find_metric(str(path))


@pytest.mark.parametrize(
    ("takes", "given"),
    [
        ("outputs, reference, labels", "ORL"),
        ("a, b, c", "ORL"),
        ("a, b, c, more=1", "ORL"),
        ("*all", "ORL"),
        ("outputs", "O"),
        ("outputs, labels", "OL"),
        ("labels, outputs", "LO"),
        ("outputs, labels, k=5", "OL"),
        ("outputs, reference, *, labels", "ORL"),
        ("outputs, reference, *, labels=None", "ORL"),
        ("labels, reference, outputs", "LRO"),
        ("outputs, ref, truth", "ORL"),
        ("predictions", None),
        ("predictions, labels", None),
        ("outputs, labels, k", None),
        ("", None),
    ],
)
def test_what_a_function_takes_it_is_given(tmp_path: Path, takes: str, given: str | None) -> None:
    """By its names where these are known, in their order where they are not; what it takes beside that is an error."""
    path, names = (
        tmp_path / "my.py",
        [each.split("=")[0].strip(" *") for each in takes.split(",") if each.strip() != "*"],
    )
    seen = " + ".join(f"what({name})" for name in names if name not in ("more", "k", ""))
    path.write_text(
        f"""
def what(each):
    if isinstance(each, (tuple, dict)):
        return "".join(what(one) for one in (each.values() if isinstance(each, dict) else each))
    return "L" if isinstance(each[0], int) else each[0].runner_name[0].upper().replace("T", "O")
def metric({takes}):
    assert {seen or "''"} == {given!r}
    return 1
"""
    )
    if given is None:
        with pytest.raises(UsageError, match=r"write def metric\(outputs, reference, labels\)"):
            find_metric(str(path))
        return
    outputs = [{"out": np.zeros(1)}]
    assert value(find_metric(str(path)), outputs, outputs, [7]) == 1.0


@pytest.mark.parametrize("made", ["None", "'0.9'", "1j", "(0.9, 1)", "{'acc': 1}", "(1 for _ in outputs)"])
def test_what_is_no_number_is_refused(tmp_path: Path, made: str) -> None:
    path = tmp_path / "my.py"
    path.write_text(f"def metric(outputs, reference, labels): return {made}\n")
    with pytest.raises(UsageError, match="must return a number, or one for each of the 1 samples"):
        value(find_metric(str(path)), [{}], [{}])


@pytest.mark.parametrize("first", [True, False])
def test_all_samples_have_labels_or_none(tmp_path: Path, first: bool) -> None:
    samples = [({"x": np.zeros(1)}, np.zeros(1) if (number == 2) ^ first else None) for number in range(4)]
    has = "no labels, and those before it have some" if first else "labels, and those before it have none"
    with pytest.raises(UsageError, match=f"sample 2 of the set has {has}; give all of them labels, or none"):
        Evaluation.write(tmp_path, samples, seed=0)


def test_more_is_better_of_what_is_built_in() -> None:
    with pytest.raises(UsageError, match="of top-1 more is better"):
        find_metric("top-1", lower_is_better=True)


@pytest.mark.parametrize("asked", ["top-1", "cosine"])
def test_gains_say_what_the_metric_says(asked: str, tmp_path: Path) -> None:
    """The sum of gains reaches what is needed exactly where the metric reaches its bound."""
    reference, labels = logits(30, 1, 5), [RNG.integers(0, 5, 1) for _ in range(30)]
    data = Evaluation.write(tmp_path, [({"x": np.zeros(1)}, label) for label in labels], seed=3)
    for place, outputs in enumerate(reference):
        save_npz(data.golden(place), outputs)
    metric = find_metric(asked)
    assert metric.of_sample is not None
    known = data.known(metric)
    assert sorted(data.order) == list(range(30))
    assert known.value(metric) == pytest.approx(value(metric, reference, reference, labels))
    for scale in (0.0, 0.5, 2.0):
        seen = [{"out": each["out"] + scale * RNG.normal(size=(1, 5))} for each in reference]
        gains = [
            known.gain(metric, place, metric.of_sample(seen[sample], reference[sample], data.labels(sample)))
            for place, sample in enumerate(data.order)
        ]
        low, high = known.gains(metric)
        assert all(low <= gain <= high for gain in gains)
        now = value(metric, seen, reference, labels)
        assert known.estimate(metric, float(np.mean(gains))) == pytest.approx(now)
        for bound in (now * 0.99, now * 1.01):
            better = now <= bound if metric.lower_is_better else now >= bound
            assert (sum(gains) >= known.needed(metric, bound)) == better
