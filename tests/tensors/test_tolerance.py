"""Tolerances: how they are read, and the automatic ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from building import text_model
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec import convert
from numpy.typing import NDArray
from support import tolerances

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.roundings import steps_of
from bisect_trt.options.compare import ErrorStat
from bisect_trt.probe.oracles import outcome_of_comparisons
from bisect_trt.probe.outcome import Outcome
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.reproduce import differs
from bisect_trt.tensors.compare import compare_all, compare_tensor
from bisect_trt.tensors.comparison import (
    TensorComparison,
    required_severity,
    severity_weight,
    to_plain,
)
from bisect_trt.tensors.tolerance import (
    Precision,
    ResolvedTolerance,
    Step,
    Tolerance,
    ToleranceOptions,
    automatic_tolerance,
)
from bisect_trt.worker.protocol import Compared

NAMES = st.text(min_size=1)
TOLERANCES = st.floats(0, allow_nan=False)


@given(
    st.dictionaries(NAMES | st.just(""), TOLERANCES),
    st.dictionaries(NAMES, st.sampled_from(ErrorStat)),
    NAMES,
)
def test_named_values_come_back_and_the_rest_get_the_default(
    atol: dict[str, float], stat: dict[str, ErrorStat], other: str
) -> None:
    options = tolerances(
        atol=[f"{name}:{value}" if name else str(value) for name, value in atol.items()],
        check_error_stat=[f"{name}:{value.value}" for name, value in stat.items()],
    )
    assert options.atol == atol
    assert options.check_error_stat == stat
    for name in {*atol, *stat, other} - {""}:
        assert options.for_output(name) == (
            Tolerance(atol.get(name, atol.get("")), None),
            stat.get(name, ErrorStat.ELEMWISE),
        )


@pytest.mark.parametrize(
    "options",
    [
        ToleranceOptions(atol={"": 1, "y": 1}),
        ToleranceOptions(rtol={"y": 1}),
        ToleranceOptions(check_error_stat={"y": ErrorStat.MAX}),
    ],
)
def test_unknown_outputs_are_named_with_the_known_ones(options: ToleranceOptions) -> None:
    options.check_names(["y", "z"])
    with pytest.raises(UsageError, match=r"'y', which is not compared; the outputs are 'x', 'z'"):
        options.check_names(["x", "z"])


def may_have_mask(values: NDArray[Any]) -> bool:
    """Return whether the largest values are 8 times larger than others, and of one sign."""
    sizes = np.abs(values.astype(np.float64))
    largest = sizes.max(initial=0)
    smaller = sizes.max(initial=0, where=sizes < largest / 8)
    return bool(smaller > 0 and np.unique(np.sign(values[sizes >= largest / 8])).size == 1)


REFERENCES = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=0, min_side=0), elements=st.floats(-1e4, 1e4, width=32)
)


@given(REFERENCES, st.integers(-6, 20))
def test_half_precision_scales_with_the_tensor(
    reference: NDArray[np.float32], exponent: int
) -> None:
    assume(not may_have_mask(reference))
    once = automatic_tolerance(reference, Precision.FP16)
    scaled = automatic_tolerance(reference * np.float32(2.0**exponent), Precision.FP16)
    assert once.rtol == scaled.rtol == 1e-2
    floor = 2.0**-24
    assert once.atol >= floor
    if min(once.atol, scaled.atol) > floor:
        assert scaled.atol == pytest.approx(once.atol * 2.0**exponent, rel=1e-5)
        assert once.atol == pytest.approx(
            1e-2 * math.sqrt(np.mean(np.square(reference, dtype=np.float64))), rel=1e-6
        )


@given(
    hnp.arrays(np.float32, st.integers(2, 2000), elements=st.floats(-1, 1, width=32)),
    st.floats(1e-2, 1e12),
    st.integers(0, 2**32 - 1),
)
def test_noise_of_fp32_sums_passes_and_a_thousandth_in_one_element_does_not(
    reference: NDArray[np.float32], scale: float, seed: int
) -> None:
    """Whatever the scale, from where Polygraphy's 1e-5 is under a thousandth."""
    size = math.sqrt(np.mean(np.square(reference, dtype=np.float64)))
    assume(size > 1e-3 and not may_have_mask(reference))
    reference = (reference * np.float32(scale / size)).astype(np.float32)
    rng = np.random.default_rng(seed)
    noisy = reference + (1e-4 * scale * rng.uniform(-1, 1, reference.size)).astype(np.float32)
    options = ToleranceOptions()
    assert compare_tensor("y", reference, noisy, options).passed
    noisy[seed % reference.size] += np.float32(1.2e-3 * scale)
    assert not compare_tensor("y", reference, noisy, options).passed


def test_non_finite_values_do_not_count() -> None:
    reference = np.array([3, np.inf, -np.inf, np.nan, 4], np.float32)
    assert automatic_tolerance(reference, Precision.FP16) == automatic_tolerance(
        reference[[0, 4]], Precision.FP16
    )
    hopeless = automatic_tolerance(reference[1:4], Precision.FP16)
    assert hopeless.atol == automatic_tolerance(np.zeros((0,)), Precision.FP16).atol == 2.0**-24


@given(
    hnp.arrays(np.float32, (4, 9), elements=st.floats(0.125, 50, width=32)),
    st.sampled_from([-1e4, -2e4, -65504.0, 1e4, -1e9, -1e30, float(np.finfo(np.float32).min)]),
    st.sampled_from(Precision),
    st.integers(0, 2**32 - 1),
)
def test_a_mask_hides_no_error_of_the_elements_beside_it(
    scores: NDArray[np.float32], constant: float, precision: Precision, seed: int
) -> None:
    mask = np.random.default_rng(seed).random(scores.shape) < 0.3
    mask[0, 0], mask[0, 1] = False, True
    masked = scores + np.where(mask, np.float32(constant), np.float32(0))
    alone = automatic_tolerance(scores[~mask], precision)
    assert automatic_tolerance(masked, precision).atol == pytest.approx(alone.atol)
    wrong = masked.copy()
    wrong[0, 0] += np.float32(20)
    assert compare_tensor("y", masked, masked, ToleranceOptions(precision=precision)).passed
    assert not compare_tensor("y", masked, wrong, ToleranceOptions(precision=precision)).passed


@given(
    hnp.arrays(np.float32, (4, 9), elements=st.floats(-50, 50, width=32)),
    st.integers(0, 35),
    st.sampled_from([np.abs, np.negative, np.sign, lambda scores: np.exp(scores - scores.max())]),
)
def test_what_is_no_mask_counts(
    scores: NDArray[np.float32],
    outlier: int,
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> None:
    """Sparse and one-hot tensors, probabilities, activations, and one with outliers of both signs."""
    values = change(scores)
    doubled = np.stack([values, values])
    doubled[:, outlier // 9, outlier % 9] = 1000, -1000
    for tensor in (values, doubled):
        rms = math.sqrt(np.mean(np.square(tensor, dtype=np.float64)))
        assert automatic_tolerance(tensor, Precision.FP16).atol == pytest.approx(
            max(1e-2 * rms, 2.0**-24)
        )


def test_only_floating_point_in_low_precision_is_forgiven_more() -> None:
    strict = automatic_tolerance(np.full(4, 0.01), Precision.FP32)
    assert (strict.atol, strict.rtol) == (1e-5, 1e-5)
    assert automatic_tolerance(np.full(4, 1000.0), Precision.FP32) == ResolvedTolerance(0.2, 1e-5)
    for dtype in (np.int64, np.uint8, np.bool_):
        assert automatic_tolerance(np.ones(4, dtype), Precision.FP16) == (1e-5, 1e-6)
    half, brain = (
        automatic_tolerance(np.ones(4), precision) for precision in (Precision.FP16, Precision.BF16)
    )
    assert strict.rtol < half.rtol < brain.rtol
    assert automatic_tolerance(np.ones(4, np.float16), Precision("fp16")) == half


# How severe a mismatch is, and when a milder one counts as the same failure.


def compare(
    reference: np.ndarray, target: np.ndarray, *, atol: str = "0.1", rtol: str = "0"
) -> TensorComparison:
    (comparison,) = compare_all(
        {"y": reference}, {"y": target}, tolerances(atol=[atol], rtol=[rtol])
    )
    return comparison


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=20))
def test_severity_is_of_the_element_furthest_past_its_tolerance(
    pairs: list[tuple[float, float]],
) -> None:
    """Not of that with the largest error, which among near-equals is one by chance; and it is kept as it was."""
    reference, target = (np.array(values) for values in zip(*pairs, strict=True))
    comparison = compare(reference, target, atol="0.5", rtol="0.1")
    off = np.abs(target - reference)
    past = np.where(
        (off > 0.5) & (off > 0.1 * np.abs(reference)), off / (0.5 + 0.1 * np.abs(reference)), 0
    )
    assert comparison.severity == pytest.approx(past.max())
    assert convert(to_plain(comparison), TensorComparison, strict=False) == comparison


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
    return outcome_of_comparisons(compared, options)


def test_what_is_milder_than_the_original_in_half_precision_is_not_in_fp32() -> None:
    reference = np.ones(100)
    barely = reference.copy()
    terribly = reference.copy()
    terribly[7] = 1e6
    for precision, off, verdict in (
        (Precision.FP32, 1.01e-3, Verdict.FAIL),
        (Precision.FP32, 3e-4, Verdict.PASS),
        (Precision.FP16, 5e-2, Verdict.PASS),
        (Precision.FP16, 2.5e-1, Verdict.FAIL),
    ):
        barely[7] = 1 + off
        original = outcome(reference, terribly, precision)
        assert (
            outcome(reference, barely, precision).judge(original.signature, original.severity)
            is verdict
        )


# One step of a quantized tensor: a tie in rounding where it is rare, an error where it is
# systematic.


SIZE = 8192


def reference(dtype: str, scale: float, seed: int) -> NDArray[Any]:
    """Integers, or such multiples of a scale."""
    steps = np.random.default_rng(seed).integers(-100, 100, SIZE)
    return (steps * scale).astype(dtype) if dtype == "float32" else steps.astype(dtype)


def off(values: NDArray[Any], count: int, by: float, seed: int = 1) -> NDArray[Any]:
    """The same with some elements off, up or down."""
    rng = np.random.default_rng(seed)
    wrong = values.copy()
    chosen = rng.choice(values.size, count, replace=False)
    wrong[chosen] += (rng.choice([-1, 1], count) * by).astype(values.dtype)
    return wrong


GRIDS = st.one_of(
    st.just(("int8", 1.0)),
    st.just(("int32", 1.0)),
    st.floats(1e-4, 10).map(lambda s: ("float32", s)),
)


@given(GRIDS, st.integers(1, SIZE // 100), st.integers(0, 99), st.booleans())
def test_a_few_elements_one_step_off_are_ties_and_that_is_said(
    grid: tuple[str, float], count: int, seed: int, after: bool
) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    step = Step(np.full(1, scale), after=after)
    result = compare_tensor(
        "q", values, off(values, count, scale, seed), ToleranceOptions(), step=step
    )
    assert result.passed
    assert (result.ties, result.mismatching) == (count, 0)
    assert f"{count} element" in describe_comparison(result)
    assert "one quantization step off" in describe_comparison(result)
    assert convert(to_plain(result), TensorComparison, strict=False).ties == count


@given(GRIDS, st.integers(0, 99))
def test_two_steps_are_no_tie_and_are_shown_before_the_ties(
    grid: tuple[str, float], seed: int
) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    tied = off(values, 20, scale, seed)
    place = int(np.flatnonzero(tied == values)[seed])
    tied[place] += np.asarray(2 * scale).astype(dtype)
    result = compare_tensor("q", values, tied, ToleranceOptions(), step=Step(np.full(1, scale)))
    assert not result.passed
    assert (result.mismatching, result.ties) == (1, 20)
    assert result.worst is not None
    assert result.worst.index == (place,)


@given(GRIDS, st.integers(0, 99), st.booleans())
def test_a_wrong_zero_point_and_numbers_cut_off_are_systematic(
    grid: tuple[str, float], seed: int, after: bool
) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    step = Step(np.full(1, scale), after=after)
    one = np.asarray(scale).astype(dtype)
    for wrong in (values + one, off(values, SIZE // 2, scale, seed)):
        result = compare_tensor("q", values, wrong, ToleranceOptions(), step=step)
        assert not result.passed
        assert not result.ties


def test_of_few_elements_more_are_ties_by_chance_but_not_all() -> None:
    """Where a quarter may be, four of ten are nothing; of thousands it would be.

    All of them are a zero point.
    """
    step = Step(np.ones(1), after=True)
    for size, count, passed in (
        (10, 4, True),
        (10, 8, False),
        (SIZE, SIZE * 4 // 10, False),
        (3, 3, False),
        (2, 2, False),
    ):
        values = reference("int8", 1, 0)[:size]
        assert (
            compare_tensor("q", values, off(values, count, 1), ToleranceOptions(), step=step).passed
            is passed
        )


@given(GRIDS, st.integers(1, SIZE), st.sampled_from([1, 2]), st.integers(0, 99), st.booleans())
def test_a_reproducers_script_says_the_same(
    grid: tuple[str, float], count: int, by: int, seed: int, after: bool
) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    target = off(values, count, by * scale, seed)
    seen = compare_tensor(
        "q", values, target, ToleranceOptions(), step=Step(np.full(1, scale), after=after)
    )
    assert seen.atol is not None
    assert seen.rtol is not None
    failed, _ = differs(
        target, values, seen.atol, seen.rtol, "elemwise", seen.step or 0, seen.most_ties
    )
    assert failed is not seen.passed


@pytest.mark.parametrize(
    "options", [ToleranceOptions(atol={"": 1e-5}), ToleranceOptions(rtol={"q": 0.0})]
)
def test_a_tolerance_of_the_users_is_meant_to_the_letter(options: ToleranceOptions) -> None:
    values = reference("int8", 1, 0)
    assert not compare_tensor("q", values, off(values, 3, 1), options, step=Step(np.ones(1))).passed


def test_without_a_grid_one_off_is_wrong() -> None:
    """An index, a count, a label."""
    values = reference("int32", 1, 0)
    assert not compare_tensor("q", values, off(values, 3, 1), ToleranceOptions()).passed


def test_a_ripple_passes_and_seven_hundredths_do_not() -> None:
    values = np.random.default_rng(0).normal(0, 3, SIZE).astype(np.float32)
    for share, passed in ((0.01, True), (0.07, False)):
        wrong = off(values, 1, share * 3)
        assert (
            compare_tensor(
                "y", values, wrong, ToleranceOptions(), step=Step(None, after=True)
            ).passed
            is passed
        )


@given(st.floats(0, 1e300), st.floats(0, 1e300))
def test_what_is_required_lies_between_barely_and_the_original(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 1 <= required_severity(low) <= required_severity(high) <= max(high, 1)
    assert required_severity(math.inf) == 10


def test_each_channel_has_a_step_of_its_own() -> None:
    values = np.zeros((2, 3, 400), np.float32)
    scales = np.array([0.1, 1, 10])
    for axis in (1, -2):
        step = Step(scales, axis=axis)
        tied = values.copy()
        wrong = values.copy()
        tied[0, :, 7] = scales
        wrong[0, 0, 7] = 1
        assert compare_tensor("y", values, tied, ToleranceOptions(), step=step).ties == 3
        assert not compare_tensor("y", values, wrong, ToleranceOptions(), step=step).passed


def quantized() -> onnx.GraphProto:
    """x, quantized, moved, dequantized, computed with, quantized again; and integers that no rounding made."""
    body = """coarse = Constant<value = float {0.5}>() before = Conv(x, w) q = QuantizeLinear(before, fine, zero)
        moved = Transpose(q) d = DequantizeLinear(moved, fine, zero) pooled = MaxPool<kernel_shape = [2]>(d)
        float_ = Conv(pooled, w) q2 = QuantizeLinear(float_, coarse) d2 = DequantizeLinear(q2, coarse)
        q3 = QLinearConv(q2, a, b, w8, a, b, a, b) two_grids = Concat<axis = 0>(d, d2) index = ArgMax(d2)
        weight = DequantizeLinear(w8, fine) d3 = DequantizeLinear(q, measured) q4, scale, point = DynamicQuantizeLinear(x)"""
    return text_model("() => ()", body, {"fine": 0.25, "w8": np.zeros(4, np.int8)}).graph


def test_what_one_step_of_each_tensor_is() -> None:
    scale = {"measured": np.array([3.0], np.float32)}
    steps = steps_of(quantized(), scale.get)
    sizes = {
        name: None if step.size is None else step.size.tolist() for name, step in steps.items()
    }
    wanted = {"d": 0.25, "pooled": 0.25, "d2": 0.5, "d3": 3.0} | dict.fromkeys(
        ("q", "moved", "q2", "q3", "q4"), 1
    )
    assert sizes == {
        **{name: [size] for name, size in wanted.items()},
        "float_": None,
        "two_grids": None,
    }
    assert {name for name, step in steps.items() if step.after} == {
        "float_",
        "q2",
        "d2",
        "q3",
        "two_grids",
    }


@given(st.integers(0, 99))
def test_steps_of_16_bits_are_rounded_as_the_target_computes_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 60000, SIZE).astype(np.uint16)
    off_by_13 = values + rng.integers(0, 13, SIZE).astype(np.uint16)
    wrong = values.copy()
    wrong[seed] += 5000
    step = Step(np.ones(1), after=True)
    half = ToleranceOptions(precision=Precision.FP16)
    assert compare_tensor("q", values, off_by_13, half, step=step).passed
    assert not compare_tensor("q", values, off_by_13, ToleranceOptions(), step=step).passed
    assert compare_tensor("q", values, wrong, half, step=step).mismatching == 1
