"""Tolerances: how they are read, and the automatic ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from support import tolerances

from bisect_trt.errors import UsageError
from bisect_trt.options.compare import ErrorStat
from bisect_trt.tensors.compare import compare_tensor
from bisect_trt.tensors.tolerance import (
    Precision,
    ResolvedTolerance,
    Tolerance,
    ToleranceOptions,
    automatic_tolerance,
)

NAMES = st.text(min_size=1)
TOLERANCES = st.floats(0, allow_nan=False)


@given(st.dictionaries(NAMES | st.just(""), TOLERANCES), st.dictionaries(NAMES, st.sampled_from(ErrorStat)), NAMES)
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


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from(Precision))
def test_given_tolerances_are_kept(atol: float, rtol: float, precision: Precision) -> None:
    reference = np.ones(3)
    for tolerance in (Tolerance(atol, rtol), Tolerance(atol), Tolerance(None, rtol), Tolerance()):
        resolved = tolerance.resolve(reference, precision)
        automatic = automatic_tolerance(reference, precision)
        if precision is Precision.FP32 and tolerance != Tolerance():
            automatic = ResolvedTolerance(
                1e-5, 1e-5
            )  # Polygraphy's, and none that forgives more than what was asked for
        assert resolved.atol == (automatic.atol if tolerance.atol is None else atol)
        assert resolved.rtol == (automatic.rtol if tolerance.rtol is None else rtol)


def has_mask(values: NDArray[Any]) -> bool:
    sizes = np.abs(values.astype(np.float64))
    largest = sizes.max(initial=0)
    return bool(0 < sizes.max(initial=0, where=sizes < largest / 2) < largest * 2.0**-24)


REFERENCES = hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, min_side=0), elements=st.floats(-1e4, 1e4, width=32))


@given(REFERENCES, st.integers(-6, 20))
def test_half_precision_scales_with_the_tensor(reference: NDArray[np.float32], exponent: int) -> None:
    assume(not has_mask(reference))
    once = automatic_tolerance(reference, Precision.FP16)
    scaled = automatic_tolerance(reference * np.float32(2.0**exponent), Precision.FP16)
    assert once.rtol == scaled.rtol == 1e-2
    floor = 2.0**-24
    assert once.atol >= floor
    if min(once.atol, scaled.atol) > floor:
        assert scaled.atol == pytest.approx(once.atol * 2.0**exponent, rel=1e-5)
        assert once.atol == pytest.approx(1e-2 * math.sqrt(np.mean(np.square(reference, dtype=np.float64))), rel=1e-6)


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
    assume(size > 1e-3 and not has_mask(reference))
    reference = (reference * np.float32(scale / size)).astype(np.float32)
    rng = np.random.default_rng(seed)
    noisy = reference + (1e-4 * scale * rng.uniform(-1, 1, reference.size)).astype(np.float32)
    options = ToleranceOptions()
    assert compare_tensor("y", reference, noisy, options).passed
    noisy[seed % reference.size] += np.float32(1.2e-3 * scale)
    assert not compare_tensor("y", reference, noisy, options).passed


def test_non_finite_values_do_not_count() -> None:
    reference = np.array([3, np.inf, -np.inf, np.nan, 4], np.float32)
    assert automatic_tolerance(reference, Precision.FP16) == automatic_tolerance(reference[[0, 4]], Precision.FP16)
    hopeless = automatic_tolerance(reference[1:4], Precision.FP16)
    assert hopeless.atol == automatic_tolerance(np.zeros((0,)), Precision.FP16).atol == 2.0**-24


@given(
    hnp.arrays(np.float32, (4, 9), elements=st.floats(0.125, 50, width=32)),
    st.sampled_from([-1e9, -1e30, float(np.finfo(np.float32).min)]),
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


def test_only_floating_point_in_low_precision_is_forgiven_more() -> None:
    strict = automatic_tolerance(np.full(4, 0.01), Precision.FP32)
    assert (strict.atol, strict.rtol) == (1e-5, 1e-5)
    assert automatic_tolerance(np.full(4, 1000.0), Precision.FP32) == ResolvedTolerance(0.2, 1e-5)
    for dtype in (np.int64, np.uint8, np.bool_):
        assert automatic_tolerance(np.ones(4, dtype), Precision.FP16) == strict
    half, brain = (automatic_tolerance(np.ones(4), precision) for precision in (Precision.FP16, Precision.BF16))
    assert strict.rtol < half.rtol < brain.rtol
    assert automatic_tolerance(np.ones(4, np.float16), Precision("fp16")) == half
