"""Other tolerances on a comparison that was made: what is said of it is what comparing again says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import tolerances

from bisect_trt.options.choices import ErrorStat, Measure
from bisect_trt.tensors.compare import compare_output
from bisect_trt.tensors.compare_numbers import compare_numbers
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.measures import RULES
from bisect_trt.tensors.tolerance import ACCURACY, THRESHOLDS, ResolvedTolerance
from bisect_trt.workflows.rethreshold import would_pass

ARRAYS = hnp.arrays(np.float32, 6, elements=st.floats(-1e3, 1e3, width=32))
ODD = hnp.arrays(np.float32, 6, elements=st.floats(width=32))
TOLERANCES = st.sampled_from([0.0, 1e-5, 1e-3, 0.1, 0.5, 1.0, 10.0, 1e3])


def compared(
    reference: np.ndarray, target: np.ndarray, atol: float, rtol: float, stat: ErrorStat, *, details: bool = False
) -> TensorComparison:
    known = {"name": "y", "stat": stat, "atol": atol, "rtol": rtol, "total": reference.size}
    if stat is ErrorStat.QUANTILE:
        known["quantile"] = 0.9
    with np.errstate(all="ignore"):
        return compare_numbers(
            reference,
            target,
            ResolvedTolerance(atol, rtol),
            known,
            nonfinite_equal=True,
            infinities_equal=True,
            want_details=details,
        )


@given(
    st.one_of(ARRAYS, ODD),
    st.one_of(ARRAYS, ODD),
    st.tuples(TOLERANCES, TOLERANCES),
    st.tuples(TOLERANCES, TOLERANCES),
    st.sampled_from(ErrorStat),
    st.booleans(),
)
def test_what_is_said_is_what_comparing_again_says(
    reference: np.ndarray,
    target: np.ndarray,
    old: tuple[float, float],
    new: tuple[float, float],
    stat: ErrorStat,
    details: bool,
) -> None:
    seen = TensorComparison.from_json(compared(reference, target, *old, stat, details=details).to_json())
    said = would_pass(seen, *new)
    assert said in (None, compared(reference, target, *new, stat).passed)
    assert would_pass(seen, None, None) is seen.passed


@given(ARRAYS, ARRAYS, TOLERANCES, TOLERANCES, TOLERANCES)
def test_where_one_tolerance_stays_and_details_were_kept_all_is_known(
    reference: np.ndarray, target: np.ndarray, atol: float, rtol: float, new: float
) -> None:
    seen = compared(reference, target, atol, rtol, ErrorStat.ELEMWISE, details=True)
    assert would_pass(seen, new, None) is not None
    assert would_pass(seen, None, new) is not None


@pytest.mark.parametrize("stat", [each for each in ErrorStat if each is not ErrorStat.ELEMWISE])
def test_of_a_statistic_all_is_known(stat: ErrorStat) -> None:
    reference, target = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) * 1.1
    for old in (0.0, 0.05, 1.0):
        seen = compared(reference, target, old, 0.0, stat)
        for new in (0.0, 0.1, 0.2, 10.0):
            known = compared(reference, target, new, new, stat).passed
            assert would_pass(seen, new, new) in (
                (known,)
                if seen.median_rel is not None or stat in (ErrorStat.MAX, ErrorStat.MEAN, ErrorStat.QUANTILE)
                else (known, None)
            )


def test_what_no_relative_tolerance_of_the_type_reaches_is_no_pass() -> None:
    reference, target = np.array([2.0**-126, 9], np.float32), np.array([4, 4], np.float32)
    seen = compared(reference, target, 0.0, 0.0, ErrorStat.ELEMWISE, details=True)
    assert would_pass(seen, None, 1.0) is False


@pytest.mark.parametrize("stat", [stat.value for stat in RULES if stat is not Measure.LPIPS])
def test_a_number_for_the_whole_tensor_has_its_own_threshold(stat: str) -> None:
    reference = np.arange(6, dtype=np.float32)

    def measured(factor: float, tolerance: float) -> TensorComparison:
        words = {"check_error_stat": [stat], "atol": [str(tolerance)], "rtol": [str(tolerance)]}
        threshold = {THRESHOLDS.get(stat, ACCURACY).removeprefix("--").replace("-", "_"): ["0.4"]}
        return compare_output("y", reference, reference * factor, tolerances(**words, **threshold))

    for factor in (1.01, -3.0):
        seen = measured(factor, 1e-3)
        assert would_pass(seen, None, None) is seen.passed
        for new in (1e-6, 100.0):
            said = would_pass(seen, new, new)
            assert said is measured(factor, new).passed or (said is None and stat == "l0")
