"""How severe a mismatch is, and when a milder one counts as the same failure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tolerances

from bisect_trt.probe.oracles import outcome_of_comparisons
from bisect_trt.probe.outcome import Outcome
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison, required_severity, severity_weight
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.protocol import Compared


def compare(reference: np.ndarray, target: np.ndarray, *, atol: str = "0.1", rtol: str = "0") -> TensorComparison:
    (comparison,) = compare_all({"y": reference}, {"y": target}, tolerances(atol=[atol], rtol=[rtol]))
    return comparison


@given(st.floats(0, 100), st.integers(1, 20))
def test_severity_is_the_error_over_the_tolerance(error: float, size: int) -> None:
    reference = np.zeros(size)
    target = reference.copy()
    target[size // 2] = error
    comparison = compare(reference, target)
    assert comparison.severity == (0 if comparison.passed else pytest.approx(error / 0.1))
    assert comparison.passed or comparison.severity >= 1


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=20))
def test_severity_is_of_the_element_furthest_past_its_tolerance(pairs: list[tuple[float, float]]) -> None:
    """Not of that with the largest error, which among near-equals is one by chance; and it is kept as it was."""
    reference, target = (np.array(values) for values in zip(*pairs, strict=True))
    comparison = compare(reference, target, atol="0.5", rtol="0.1")
    off = np.abs(target - reference)
    past = np.where((off > 0.5) & (off > 0.1 * np.abs(reference)), off / (0.5 + 0.1 * np.abs(reference)), 0)
    assert comparison.severity == pytest.approx(past.max())
    assert TensorComparison.from_json(comparison.to_json()) == comparison


@pytest.mark.parametrize("target", [np.array([np.inf, 0]), np.array([np.nan, 0]), np.zeros(3)])
def test_new_inf_nan_and_another_shape_are_infinitely_severe(target: np.ndarray) -> None:
    assert compare(np.zeros(2), target).severity == math.inf


@given(st.floats(0, 1e300), st.floats(0, 1e300))
def test_what_is_required_lies_between_barely_and_the_original(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert required_severity(low) <= required_severity(high)
    assert 1 <= required_severity(high) <= max(high, 1)
    assert required_severity(math.inf) == 10


@given(st.floats(0.05, 1e6), st.floats(1, 1e6))
def test_a_thousandth_counts_in_fp32_however_much_it_grows(size: float, growth: float) -> None:
    """A layer is off by a thousandth of its root mean square, and the model's outputs by many times as much."""
    reference = np.full(100, size)
    wrong = reference.copy()
    wrong[7] += 1.01e-3 * size
    (layer,) = compare_all({"y": reference}, {"y": wrong}, ToleranceOptions())
    weight = severity_weight(Precision.FP32)
    assert weight * layer.severity >= required_severity(weight * layer.severity * growth)


def outcome(reference: np.ndarray, target: np.ndarray, precision: Precision) -> Outcome:
    options = ToleranceOptions(precision=precision)
    compared = Compared(tuple(compare_all({"y": reference}, {"y": target}, options)))
    return outcome_of_comparisons(compared, 0.0, options)


def test_what_is_milder_than_the_original_in_half_precision_is_not_in_fp32() -> None:
    reference = np.ones(100)
    barely, terribly = reference.copy(), reference.copy()
    terribly[7] = 1e6
    for precision, off, verdict in (
        (Precision.FP32, 1.01e-3, Verdict.FAIL),
        (Precision.FP32, 3e-4, Verdict.PASS),
        (Precision.FP16, 5e-2, Verdict.PASS),
        (Precision.FP16, 2.5e-1, Verdict.FAIL),
    ):
        barely[7] = 1 + off
        original = outcome(reference, terribly, precision)
        assert outcome(reference, barely, precision).judge(original.signature, original.severity) is verdict
