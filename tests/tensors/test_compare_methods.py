"""What else a comparison does and says: Polygraphy's other comparisons, and the further numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from support import compared, examples, read_options, tolerances

from bisect_trt.errors import UsageError
from bisect_trt.options.compare import Algorithm, CompareOptions, ErrorStat
from bisect_trt.options.reading import TopK
from bisect_trt.tensors.compare import compare_all, top_k
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.tensors.tolerance import Tolerance, ToleranceOptions

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)
TIGHT = Tolerance(1e-5, 1e-5)
Array = NDArray[Any]


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    logger = pytest.importorskip("polygraphy.logger").G_LOGGER
    with logger.verbosity(logger.CRITICAL + 1):
        yield


def results(*sides: Array) -> Any:
    from polygraphy.comparator import IterationResult

    return [IterationResult({"x": values.copy()}, runner_name="") for values in sides]


def floats(low: float = -100, high: float = 100) -> st.SearchStrategy[Array]:
    return SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=st.floats(low, high, width=32)))


@st.composite
def near(draw: st.DrawFn) -> tuple[Array, Array]:
    """Reference and target of one shape, of ordinary size."""
    reference = draw(floats())
    noise = draw(hnp.arrays(np.float32, reference.shape, elements=st.floats(-1, 1, width=32)))
    return reference, reference + noise


@st.composite
def coarse(draw: st.DrawFn) -> tuple[Array, Array]:
    """Reference and target of one shape, in sixteenths."""
    values = draw(SHAPES.flatmap(lambda shape: hnp.arrays(np.int16, (2, *shape), elements=st.integers(-99, 99))))
    reference, target = (values / 16).astype(np.float32)
    return reference, target


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")  # NumPy warns of NaN and Inf, Polygraphy of more
@given(st.data(), st.integers(0, 3))
@settings(max_examples=examples(100))
def test_indices_agree_with_polygraphy(data: st.DataObject, places: int) -> None:
    from polygraphy.comparator import CompareFunc

    shape = data.draw(SHAPES)
    rows = [data.draw(st.permutations(range(shape[-1] + 2))) for _ in range(2 * math.prod(shape[:-1]))]
    values = np.array(rows, np.int64)[:, : shape[-1]].reshape((2, *shape))
    reference, target = values if data.draw(st.booleans()) else (values[0], values[0])
    theirs = CompareFunc.indices(index_tolerance=places)(*results(target, reference))["x"]
    ours = compared("x", reference, target, TIGHT, places=places)
    assert ours.passed == bool(theirs)
    if not ours.passed:
        assert ours.worst is not None
        assert target[ours.worst.index] == ours.worst.target != reference[ours.worst.index]
        assert ours.describe()


@pytest.mark.filterwarnings("ignore")  # NumPy warns of NaN and Inf, Polygraphy of more
@given(floats() | SHAPES.flatmap(lambda shape: hnp.arrays(np.int16, shape)), st.integers(1, 6), st.data())
def test_top_k_agrees_with_polygraphy(values: Array, k: int, data: st.DataObject) -> None:
    from polygraphy.comparator import PostprocessFunc

    assume(values.dtype.kind == "f" or values.min() > np.iinfo(np.int16).min)
    axis = data.draw(st.integers(-values.ndim, values.ndim - 1))
    theirs = PostprocessFunc.top_k(k=(k, axis))(results(values)[0])["x"]
    np.testing.assert_array_equal(top_k(values, TopK(k, axis)), theirs)


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
        assert result.required_atol is not None
        passing.append(Tolerance(result.required_atol, 0.0))
    for tolerance in passing:
        assert compared("x", reference, target, tolerance, stat).passed
    if not result.passed:
        for tolerance in (Tolerance(needed[0] * 0.999, rtol), Tolerance(atol, needed[1] * 0.999)):
            assert not compared("x", reference, target, tolerance, stat).passed
        # What people read is rounded up, so it passes as well.
        said = result.details.describe().split(" or ")[0].rpartition(" ")[2]
        assert float(said) >= needed[0]


def test_comparisons_survive_json() -> None:
    values = np.array([1, math.inf, math.nan, -0.0], np.float32)
    for more in ({}, {"validate": True}, {"compare_as": Algorithm.INDICES}):
        options = ToleranceOptions(check_error_stat={"": ErrorStat.QUANTILE}, **more)
        for target in (values, values[::-1], values[:2]):
            (result,) = compare_all({"nan": values}, {"nan": target}, options, details=True)
            again = TensorComparison.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))
            assert repr(again) == repr(result)


def test_validate_fails_whatever_is_not_finite() -> None:
    good, bad = np.ones(4, np.float32), np.array([1, math.nan, -math.inf, math.inf], np.float32)
    for reference, target, said in (
        (good, bad, "the target has 1 NaN and 2 Inf among 4 elements"),
        (bad, good, "the reference has 1 NaN and 2 Inf among 4 elements"),
        (bad[2:], bad[2:], "the target has 2 Inf among 2 elements, the reference has 2 Inf among 2 elements"),
    ):
        options = ToleranceOptions(nonfinite_equal=True, atol={"": math.inf}, validate=True)
        (result,) = compare_all({"x": reference}, {"x": target}, options)
        assert not result.passed
        assert result.describe() == said
        assert result.kind is (ComparisonKind.NAN if "NaN" in said else ComparisonKind.INF)
    assert compare_all({"x": good}, {"x": good}, ToleranceOptions(validate=True))[0].passed


def test_nan_in_the_reference_is_counted() -> None:
    reference = np.array([1, math.nan, math.inf], np.float32)
    assert compared("x", reference, reference, TIGHT).reference_nonfinite == 2
    assert compared("x", reference, np.ones(3, np.float32), TIGHT).reference_nonfinite == 2
    assert compared("x", np.ones(3, np.float32), reference, TIGHT).reference_nonfinite == 0


def test_postprocessing_before_comparison() -> None:
    reference = {"x": np.array([[1.0, 5, 3, 4]]), "s": np.array(1.0), "t": np.array(["a"], object)}
    target = {**reference, "x": np.array([[2.0, 50, 30, 40]])}
    options = tolerances(postprocess=["top-3"])
    assert all(result.passed for result in compare_all(reference, target, options))  # the same order
    assert not compare_all(reference, target, ToleranceOptions())[0].passed
    for named, words in (("s:top-2", "of shape [] has no such axis"), ("t:top-1", "holds strings")):
        options = tolerances(postprocess=[named])
        with pytest.raises(UsageError, match="--postprocess") as raised:
            compare_all(reference, target, options)
        assert words in str(raised.value)
    swapped = {**reference, "x": np.array([[1.0, 4.5, 3, 5]])}
    for places, passed in (("0", False), ("1", True)):
        options = tolerances(compare_as="indices", index_tolerance=[places], postprocess=["x:top-3"])
        assert compare_all({"x": reference["x"]}, swapped, options)[0].passed is passed


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ("postprocess", ["5", "top-", "top-0", "top-2,axis=", "top-2,1", "top-x"]),
        ("index_tolerance", ["-1", "1.5", "many", ""]),
        ("error_quantile", ["-0.1", "1.1", "nan", "x"]),
        ("atol", ["", "x", "out:", "out:-1", "nan", "-1e-3", "1e-3,1e-4"]),
        ("check_error_stat", ["out:worst"]),
    ],
)
def test_malformed_values(option: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}"):
            read_options(CompareOptions, **{option: [text]})


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
    reference, target = {"x": np.zeros(2), "y": np.zeros(2)}, {"x": np.ones(2), "y": np.array([1, 0])}

    def compare(function: str) -> list[TensorComparison]:
        options = ToleranceOptions(compare_func_script=f"{script}{function}")
        return compare_all(reference, target, options)

    assert [(each.name, each.passed) for each in compare("")] == [("x", True), ("y", False)]
    assert "compare.py" in compare("")[1].describe()
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
