"""Which dimension of the inputs is the batch, where nothing says so, and what has to hold of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bisect_trt.commands.self_consistency import Declared, batch_axes, trials

Array = NDArray[Any]


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ({"x": ("n", 8), "mask": ("n",)}, {"x": 0, "mask": 0}),
        ({"x": (5, "batch_size", 4), "state": ("batch_size", 4)}, {"x": 1, "state": 0}),
        ({"x": (None, None), "mask": (None,)}, {"x": 0, "mask": 0}),
        ({"x": (5, None, 4)}, {"x": 1}),
        ({"x": (5, None, 4), "mask": (None, 5)}, {"x": 1, "mask": 0}),
        ({"x": (5, "n", 4), "h": (1, "n", 3), "c": (1, "m", 3)}, {"x": 1, "h": 1}),
        ({"x": (5, 4), "y": (5, 4)}, {"x": 0, "y": 0}),
        ({"x": (5, 4), "y": (3, 4)}, {}),
    ],
)
def test_which_dimension_is_the_batch(declared: Declared, found: dict[str, int]) -> None:
    sample = {name: np.zeros([dim if isinstance(dim, int) else 1 for dim in dims]) for name, dims in declared.items()}
    assert batch_axes(sample, declared) == found


def recurrent(value: Array) -> Array:
    """Of sequences that come first, as ONNX's LSTM gives them back: the batch is the third dimension, and 5 a size too."""
    return np.cumsum(value, axis=0)[:, np.newaxis]


def odd(value: Array) -> Array:
    made = recurrent(value)
    made[:, :, 1::2] *= 1.1
    return made


def large(value: Array) -> Array:
    return recurrent(value) * (1.1 if value.shape[1] > 2 else 1.0)


@pytest.mark.parametrize(
    ("target", "wrong"), [(recurrent, set()), (odd, {"rows", "order", "batch"}), (large, {"batch"})]
)
def test_an_unnamed_batch_that_is_no_first_dimension(target: Callable[[Array], Array], wrong: set[str]) -> None:
    """Along the first one the model itself mixes rows; along the other one only what is wrong differs."""
    sample = {"x": np.random.default_rng(3).standard_normal((5, 1, 4))}
    found = {}
    for trial in trials([sample], {"x": (5, None, 4)}, seed=3):
        pairs = trial.pairs([{"y": target(feed["x"])} for feed in trial.feeds])
        assert pairs
        found[trial.name] = all(np.allclose(made["y"], right["y"]) for made, right in pairs)
        assert (trial.batch == {"x": 1}) is (trial.name in ("rows", "order", "batch"))
    assert {name for name, same in found.items() if not same} == wrong


@pytest.mark.parametrize(
    ("bad", "wrong"),
    [
        (lambda past, rows: rows > 3 and len(past) > 1, {"again", "after"}),
        (lambda past, rows: bool(past) and past[-1] != rows, {"after"}),
        (lambda past, rows: bool(past) and past[-1] > rows, {"after"}),
        (lambda past, rows: False, set()),  # noqa: ARG005 - the others read them
    ],
)
def test_what_is_wrong_of_a_size_in_a_session_that_ran_before_is_seen(
    bad: Callable[[list[int], int], bool], wrong: set[str]
) -> None:
    found: dict[str, bool] = {}
    for trial in trials([{"x": np.ones((1, 8))}], {"x": ("n", 8)}, seed=3, resized=True):
        past: list[int] = []
        made = []
        for feed in trial.feeds:
            rows = feed["x"].shape[0]
            made.append({"y": feed["x"] * (1.1 if bad(past, rows) else 1.0)})
            past = [*past, rows] if trial.one else []
        assert trial.batch or len({feed["x"].shape for feed in trial.feeds}) == 1
        same = all(np.allclose(ours["y"], right["y"]) for ours, right in trial.pairs(made))
        found[trial.name] = found.get(trial.name, True) and same
    assert {name for name, same in found.items() if not same} == wrong
