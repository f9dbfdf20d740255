"""The comparison: Polygraphy's verdicts, and what it says of the worst element."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from support import compared, examples, tolerances

from bisect_trt.errors import UsageError
from bisect_trt.options.compare import ErrorStat
from bisect_trt.report.outcomes import describe_comparison, describe_details
from bisect_trt.tensors.compare import compare_all, compare_tensor
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, to_plain
from bisect_trt.tensors.tolerance import Tolerance, ToleranceOptions

TIGHT = Tolerance(1e-5, 1e-5)
TOLERANCES = st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 0.1, 0.5, 1.0, 3.0, 1e4, math.inf])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=5)
FLOATS = [np.float16, np.float32, np.float64]


# Not so far apart that Polygraphy's signed difference wraps around.
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]


@pytest.fixture(scope="module")
def quiet_polygraphy() -> Iterator[None]:
    logger = pytest.importorskip("polygraphy.logger").G_LOGGER
    with logger.verbosity(logger.CRITICAL), pytest.MonkeyPatch.context() as patch:
        # It would import PyTorch to see that no value is a tensor of it.
        patch.setitem(sys.modules, "torch", None)
        yield


def polygraphy_result(target: NDArray[Any], reference: NDArray[Any], **options: Any) -> Any:
    from polygraphy.comparator import CompareFunc, IterationResult

    # It writes into what it is given where that is 0.
    results = [
        IterationResult({"x": values.copy()}, runner_name="") for values in (target, reference)
    ]
    return CompareFunc.simple(**options)(*results)["x"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[Any]]:
    """Target and reference of one shape, often nearly equal, with NaN, Inf and 0 among them."""
    shape = draw(SHAPES)
    dtype = np.dtype(draw(st.sampled_from([*FLOATS, *INTEGERS, np.bool_])))
    if dtype.kind == "b":
        elements: st.SearchStrategy[Any] = st.booleans()
    elif dtype.kind == "f":
        width: Any = dtype.itemsize * 8
        special = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])
        elements = st.one_of(st.floats(-4, 4, width=width), st.floats(width=width), special)
    else:
        limits: Any = np.iinfo(dtype)
        elements = st.integers(max(limits.min, -(2**29)), min(limits.max, 2**29))
    reference = draw(hnp.arrays(dtype, shape, elements=elements))
    if draw(st.booleans()):
        target = reference.copy()
        for index in draw(st.lists(st.integers(0, max(reference.size - 1, 0)), max_size=3)):
            target.reshape(-1)[index] = draw(elements)
    else:
        target = draw(hnp.arrays(dtype, shape, elements=elements))
    if dtype.kind in "iu" and draw(st.booleans()):
        target = target.astype(draw(st.sampled_from([np.float32, np.int64])))
    if dtype.kind == "f" and draw(st.booleans()):
        with np.errstate(all="ignore"):
            target = target.astype(draw(st.sampled_from(FLOATS)))
    return target, reference


@pytest.mark.filterwarnings("ignore")  # NumPy warns of NaN and Inf, Polygraphy of more
@pytest.mark.usefixtures("quiet_polygraphy")
@given(pairs(), TOLERANCES, TOLERANCES, st.sampled_from(ErrorStat), st.booleans(), st.floats(0, 1))
@settings(max_examples=examples(300), deadline=None)
def test_agrees_with_polygraphy(
    pair: tuple[NDArray[Any], NDArray[Any]],
    atol: float,
    rtol: float,
    stat: ErrorStat,
    infinities_equal: bool,
    quantile: float,
) -> None:
    target, reference = pair
    if stat is ErrorStat.QUANTILE and target.dtype.kind == reference.dtype.kind == "b":
        return  # NumPy's quantile, which it calls, refuses bools
    if infinities_equal:
        # It compares in float64 then, and still fails where both are NaN.
        target = np.where(np.isnan(target) & np.isnan(reference), 1, target)
        if target.dtype.kind == "f":
            target = target.astype(np.float64)
            reference = reference.astype(np.float64)
    theirs = polygraphy_result(
        target,
        reference,
        atol=atol,
        rtol=rtol,
        check_error_stat=stat.value,
        error_quantile=quantile,
        infinities_compare_equal=infinities_equal,
    )
    ours = compared(
        "x",
        reference,
        target,
        Tolerance(atol, rtol),
        stat,
        infinities_compare_equal=infinities_equal,
        quantile=quantile,
    )
    assert ours.passed == bool(theirs)
    assert (ours.kind is ComparisonKind.MATCH) == ours.passed
    numbers = {
        "max_abs": theirs.max_absdiff,
        "mean_abs": theirs.mean_absdiff,
        "median_abs": theirs.median_absdiff,
    }
    numbers["max_rel"] = theirs.max_reldiff
    if stat in (ErrorStat.MEAN, ErrorStat.MEDIAN, ErrorStat.QUANTILE):
        numbers[f"{stat.value}_abs"] = getattr(theirs, f"{stat.value}_absdiff")
        numbers[f"{stat.value}_rel"] = getattr(theirs, f"{stat.value}_reldiff")
    for name, value in numbers.items():
        assert str(getattr(ours, name)) == str(value), name


@given(pairs())
@settings(max_examples=examples(100), deadline=None)
def test_channels_do_not_change_the_verdict(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
    """A tensor of any shape has it, a scalar too."""
    target, reference = pair
    with np.errstate(all="ignore"):
        verdicts = {
            compare_tensor("x", reference, target, ToleranceOptions(by_channel=each)).passed
            for each in (False, True)
        }
    assert len(verdicts) == 1


@given(pairs(), TOLERANCES, TOLERANCES, st.sampled_from(ErrorStat), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_what_it_says_is_consistent(
    pair: tuple[NDArray[Any], NDArray[Any]],
    atol: float,
    rtol: float,
    stat: ErrorStat,
    nonfinite_equal: bool,
) -> None:
    target, reference = pair
    before = target.tobytes(), reference.tobytes()
    result = compared(
        "x", reference, target, Tolerance(atol, rtol), stat, nonfinite_equal=nonfinite_equal
    )
    assert before == (target.tobytes(), reference.tobytes())
    assert result.worst is not None
    assert str(target[result.worst.index].item()) == str(result.worst.target)
    assert str(reference[result.worst.index].item()) == str(result.worst.reference)
    assert result.total == reference.size
    if stat is ErrorStat.ELEMWISE:
        assert result.passed == (result.mismatching == 0)
    if result.mismatching:
        # The worst element is one of those that mismatch, and alone fails too.
        one, other = (values[result.worst.index].reshape(1) for values in (reference, target))
        again = compared("x", one, other, Tolerance(atol, rtol), nonfinite_equal=nonfinite_equal)
        assert not again.passed
        if not result.passed:
            assert again.kind is result.kind
    elif result.passed and not math.isnan(result.max_abs or 0):
        assert result.worst.error == result.max_abs
    one_nan = (np.isnan(target) != np.isnan(reference)).any()
    # An error of Inf is within a tolerance of Inf; what Inf became has no relative error.
    made_inf = (np.isinf(target) & ~np.isinf(reference)).any() and math.inf not in (atol, rtol)
    one_inf = made_inf or ((np.isinf(reference) & ~np.isinf(target)).any() and atol != math.inf)
    if not result.passed:
        wanted = (
            ComparisonKind.NAN
            if one_nan
            else ComparisonKind.INF
            if one_inf
            else ComparisonKind.MISMATCH
        )
        assert result.kind is wanted
    assert "\n" not in describe_comparison(result)
    assert json.loads(json.dumps(to_plain(result), allow_nan=False))["kind"] == result.kind.value


@given(st.sampled_from([*INTEGERS, np.uint64]), st.data())
@settings(deadline=None)
def test_integer_errors_are_exact_however_far_apart(
    dtype: type[np.integer[Any]], data: st.DataObject
) -> None:
    limits = np.iinfo(dtype)
    numbers = st.integers(int(limits.min), int(limits.max)) | st.sampled_from(
        [int(limits.min), int(limits.max)]
    )
    target = data.draw(numbers)
    reference = data.draw(numbers)
    result = compared(
        "x", np.array([reference], dtype), np.array([target], dtype), Tolerance(0.0, 0.0)
    )
    error = abs(target - reference)
    assert result.max_abs == float(error)
    assert result.passed == (error == 0)
    if reference:
        assert result.max_rel == pytest.approx(error / abs(reference))


@given(st.sampled_from([np.int32, np.uint32, np.int64]), st.integers(1, 999_999))
def test_no_index_below_a_million_is_off_by_one(dtype: type[np.integer[Any]], index: int) -> None:
    """A vocabulary has some 200,000 tokens."""
    reference = np.array([index], dtype)
    assert compared("x", reference, reference, Tolerance()).passed
    assert not compared("x", reference, reference - dtype(1), Tolerance()).passed


@pytest.mark.parametrize("stat", ErrorStat)
@pytest.mark.parametrize(("lost", "kind"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")])
def test_what_the_target_loses_is_the_worst_and_no_rounding(
    lost: float, kind: str, stat: ErrorStat
) -> None:
    """Beside errors of rounding, and beside one that is past the tolerance."""
    reference = np.linspace(1, 2, 99, dtype=np.float32)
    target = reference + np.float32(8e-6)
    reference[40], target[70] = lost, 9
    result = compared("x", reference, target, TIGHT, stat)
    if stat in (ErrorStat.MEDIAN, ErrorStat.QUANTILE) and kind == "inf":
        return  # these are meant to look away from a few
    assert not result.passed
    assert (result.kind.value, result.worst and result.worst.index) == (kind, (40,))
    assert result.severity == math.inf
    assert f"at (40,): expected {lost}, got" in describe_comparison(result)


@given(SHAPES)
def test_the_same_inf_and_nan_match_only_when_asked(shape: tuple[int, ...]) -> None:
    for value in (math.inf, -math.inf, math.nan):
        values: NDArray[Any] = np.full(shape, value)
        assert not compared("x", values, values, TIGHT).passed
        for stat in ErrorStat:
            result = compared("x", values, values.copy(), TIGHT, stat, nonfinite_equal=True)
            assert result.passed
            assert result.max_abs == 0
            assert not compared("x", values, -values + 1, TIGHT, stat).passed


def test_what_cannot_be_compared_fails_with_its_reason() -> None:
    numbers = np.zeros((1, 3), np.float32)
    for target, kind, text in (
        (None, ComparisonKind.MISSING, "the target does not have this output"),
        (numbers[0], ComparisonKind.SHAPE, "expected shape [1, 3], got [3]"),
    ):
        result = compared("x", numbers, target, TIGHT)
        assert not result.passed
        assert result.kind is kind
        assert (describe_comparison(result), result.severity) == (text, math.inf)
        json.dumps(to_plain(result), allow_nan=False)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_extension_types_are_compared_by_value(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    reference = np.array([1, 2, 3], np.float32)
    target = np.array([1, 2, 5]).astype(dtype)
    result = compared("x", reference, target, TIGHT)
    assert result.max_abs == 2
    assert result.worst is not None
    assert (result.worst.index, result.worst.target, result.target_dtype) == ((2,), 5, name)
    assert compared("x", target, target, TIGHT).passed


def test_compare_all_keeps_the_references_order() -> None:
    reference = {name: np.zeros(3, np.float32) for name in ("c", "a", "b", "d")}
    target = {"d": np.ones(3), "b": np.full(3, 0.5), "c": np.zeros(3), "other": np.zeros(1)}
    options = tolerances(atol=["1e-3", "b:1"], rtol=["0"])
    results = compare_all(reference, target, options)
    assert [f"{each.name} {each.kind.value}" for each in results] == [
        "c match",
        "a missing",
        "b match",
        "d mismatch",
    ]


# What else a comparison does and says: Polygraphy's other comparisons, and the further numbers.


SMALL_SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)
Array = NDArray[Any]


@st.composite
def coarse(draw: st.DrawFn) -> tuple[Array, Array]:
    """Reference and target of one shape, in sixteenths."""
    values = draw(
        SMALL_SHAPES.flatmap(
            lambda shape: hnp.arrays(np.int16, (2, *shape), elements=st.integers(-99, 99))
        )
    )
    reference, target = (values / 16).astype(np.float32)
    return reference, target


@given(coarse(), st.sampled_from(ErrorStat), st.floats(0, 2), st.floats(0, 2))
def test_the_tolerance_that_would_have_passed_does(
    pair: tuple[Array, Array], stat: ErrorStat, atol: float, rtol: float
) -> None:
    reference, target = pair
    result = compared("x", reference, target, Tolerance(atol, rtol), stat, details=True)
    assert result.details is not None
    needed = result.details.atol_needed, result.details.rtol_needed
    passing = [Tolerance(needed[0], rtol), Tolerance(atol, needed[1])]
    if stat is ErrorStat.ELEMWISE:
        assert result.max_abs is not None
        passing.append(Tolerance(result.max_abs, 0.0))
    for tolerance in passing:
        assert compared("x", reference, target, tolerance, stat).passed
    if not result.passed:
        for tolerance in (Tolerance(needed[0] * 0.999, rtol), Tolerance(atol, needed[1] * 0.999)):
            assert not compared("x", reference, target, tolerance, stat).passed
        # What people read is rounded up, so it passes as well.
        said = describe_details(result.details).split(" or ")[0].rpartition(" ")[2]
        assert float(said) >= needed[0]


def test_comparisons_survive_json() -> None:
    values = np.array([1, math.inf, math.nan, -0.0], np.float32)
    for validate in (False, True):
        options = ToleranceOptions(check_error_stat={"": ErrorStat.QUANTILE}, validate=validate)
        for target in (values, values[::-1], values[:2]):
            (result,) = compare_all({"nan": values}, {"nan": target}, options, details=True)
            plain = json.loads(json.dumps(to_plain(result), allow_nan=False))
            again = msgspec.convert(plain, TensorComparison, strict=False)
            assert repr(again) == repr(result)


def test_validate_fails_whatever_is_not_finite() -> None:
    good = np.ones(4, np.float32)
    bad = np.array([1, math.nan, -math.inf, math.inf], np.float32)
    for reference, target, said in (
        (good, bad, "the target has 1 NaN and 2 Inf among 4 elements"),
        (bad, good, "the reference has 1 NaN and 2 Inf among 4 elements"),
        (
            bad[2:],
            bad[2:],
            "the target has 2 Inf among 2 elements, the reference has 2 Inf among 2 elements",
        ),
    ):
        options = ToleranceOptions(nonfinite_equal=True, atol={"": math.inf}, validate=True)
        (result,) = compare_all({"x": reference}, {"x": target}, options)
        assert not result.passed
        assert describe_comparison(result) == said
        assert result.kind is (ComparisonKind.NAN if "NaN" in said else ComparisonKind.INF)
    assert compare_all({"x": good}, {"x": good}, ToleranceOptions(validate=True))[0].passed


SCRIPT = """
def compare_outputs(target, reference):
    assert (target.runner_name, reference.runner_name) == ("target", "reference")
    return {name: bool((target[name] > values).all()) for name, values in reference.items()}

def raises(target, reference):
    return {"x": 1 / 0}

def nothing(target, reference):
    return {}

def other(target, reference):
    return {"z": True}

answer = lambda target, reference: True
"""


def test_a_script_compares(tmp_path: Path) -> None:
    script = tmp_path / "compare.py"
    script.write_text(SCRIPT)
    reference = {"x": np.zeros(2), "y": np.zeros(2)}
    target = {"x": np.ones(2), "y": np.array([1, 0])}

    def compare(function: str) -> list[TensorComparison]:
        options = ToleranceOptions(compare_func_script=f"{script}{function}")
        return compare_all(reference, target, options)

    assert [(each.name, each.passed) for each in compare("")] == [("x", True), ("y", False)]
    assert "compare.py" in describe_comparison(compare("")[1])
    for function, words in {
        ":raises": f"The comparison script {script}, line 7 raised ZeroDivisionError",
        ":nothing": "'nothing' of",
        ":answer": "'answer' of",
        ":other": "judges 'z'; the outputs are 'x', 'y'",
        ":missing": "has no function 'missing'",
        "x": "does not exist",
    }.items():
        with pytest.raises(UsageError) as raised:
            compare(function)
        assert words in str(raised.value)
