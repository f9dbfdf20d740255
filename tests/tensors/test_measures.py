"""Numbers for a whole output: held against Polygraphy's own where that has them, and against their definitions."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from polygraphy.comparator import (
    CosineSimilarityCompareFunc,
    L2CompareFunc,
    PsnrCompareFunc,
    SnrCompareFunc,
)
from polygraphy.comparator.struct import IterationResult
from support import tolerances

from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.groups import is_default
from bisect_trt.options.compare import THRESHOLDS, OutputStat
from bisect_trt.options.spec import written
from bisect_trt.probe.oracles import error_of
from bisect_trt.tensors.compare import compare_tensor
from bisect_trt.tensors.comparison import RULES, TensorComparison

RNG = np.random.default_rng(11)
PAIRS: dict[str, tuple[Any, float]] = {
    "near": (RNG.normal(size=(3, 4)).astype(np.float32), 1e-4),
    "far": (RNG.normal(size=(3, 4)).astype(np.float32), 1.0),
    "half": (RNG.normal(size=(5,)).astype(np.float16), 1e-2),
    "whole": (RNG.integers(-9, 9, (4, 4)).astype(np.int32), 0),
    "zero": (np.zeros((2, 2), np.float32), 0.5),
    "negative": (-np.ones((2, 3), np.float32) - RNG.random((2, 3), np.float32), 0.1),
    "nan": (RNG.normal(size=(3,)).astype(np.float32), math.nan),
}
POLYGRAPHY = {
    "l2": L2CompareFunc,
    "cosine": CosineSimilarityCompareFunc,
    "psnr": PsnrCompareFunc,
    "snr": SnrCompareFunc,
}


def pair(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A reference and a target."""
    reference, noise = PAIRS[name]
    return reference, (reference + noise * RNG.normal(size=reference.shape)).astype(reference.dtype)


def compared(stat: str, reference: Any, target: Any, **words: Any) -> TensorComparison:
    return compare_tensor("out", reference, target, tolerances(check_error_stat=[stat], **words))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("stat", POLYGRAPHY)
def test_the_verdict_is_polygraphys(stat: str, name: str) -> None:
    reference, target = pair(name)
    found = compared(stat, reference, target)
    theirs = POLYGRAPHY[stat]()(
        IterationResult({"out": reference}, runner_name="reference"),
        IterationResult({"out": target}, runner_name="target"),
    )["out"]
    (field,) = type(theirs).metric_fields()
    (measured,) = found.measured
    assert bool(theirs) == found.passed == measured.passed
    assert measured.value == pytest.approx(getattr(theirs, field), rel=1e-4, nan_ok=True)
    assert measured.threshold == theirs.thresholds.threshold


@pytest.mark.parametrize("name", ["far", "zero", "negative", "half"])
def test_the_threshold_that_is_said_to_pass_does(name: str) -> None:
    """As an option, which is not that of another number; where several fail, all of them."""
    reference, target = PAIRS[name][0], -1.01 * PAIRS[name][0] + 0.3
    strict: dict[str, dict[str, Any]] = {
        "psnr": {"psnr_threshold": ["300"]},
        "snr": {"snr_threshold": ["300"]},
        "l2": {},
        "cosine": {},
    }
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"check_error_stat": [stat]}, words) for stat, words in strict.items()
    ]
    for how, words in cases:
        found = compare_tensor("out", reference, target, tolerances(**how, **words), details=True)
        assert found.details is not None
        if found.passed:  # all is wrong in one direction
            continue
        said = re.fullmatch(r"(passes with .*?|no threshold passes it);.*", found.details.describe(found.measured))
        assert said is not None
        if not all(math.isfinite(each.value) for each in found.measured):
            assert said[1] == "no threshold passes it"
            continue
        named = {key.replace("-", "_"): [value] for key, value in re.findall(r"--([\w-]+) (\S+)", said[1])}
        assert named
        assert compare_tensor("out", reference, target, tolerances(**how, **(words | named))).passed


def test_each_output_has_its_threshold() -> None:
    reference, target = pair("near")
    options = tolerances(check_error_stat=["cosine", "b:elemwise"], cosine_similarity_threshold=["0.5", "c:0.99999999"])
    assert compare_tensor("a", reference, target, options).measured[0].threshold == 0.5
    assert not compare_tensor("b", reference, target, options).measured
    assert compare_tensor("c", reference, target, options).measured[0].threshold == 0.99999999


def test_options_are_words_again() -> None:
    options = tolerances(check_error_stat=["psnr", "o:snr"], psnr_threshold=["inf"], snr_threshold=["o:0.5"])
    assert written(options) == [
        *("--check-error-stat", "psnr", "o:snr"),
        *("--psnr-threshold", "inf", "--snr-threshold", "o:0.5"),
    ]
    reference, target = pair("far")
    for seen in (target, reference, np.full_like(target, np.nan)):
        found = compared("psnr", reference, seen)
        assert TensorComparison.from_json(found.to_json()).to_json() == found.to_json()


def test_what_cannot_be_measured_is_compared_as_ever() -> None:
    texts = np.array(["a", "b"], dtype=object)
    assert compared("psnr", texts, texts).passed
    assert not compared("psnr", texts, np.array(["a", "c"], dtype=object)).passed
    assert not compared("psnr", np.zeros(3, np.float32), np.zeros(4, np.float32)).passed
    assert not compared("psnr", np.zeros(3, np.float32), None).passed
    assert compared("psnr", np.zeros(0, np.float32), np.zeros(0, np.float32)).passed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"psnr_threshold": ["3"]}, "--psnr-threshold is of a statistic that is not asked for"),
    ],
)
def test_what_does_not_fit(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tolerances(**words)


@pytest.mark.parametrize("stat", [stat.value for stat in RULES])
def test_how_far_a_number_is_off_is_in_units_of_what_it_may_be(stat: str) -> None:
    """Past 1 what fails, up to 1 what passes, and more for what is further off."""
    reference = PAIRS["far"][0]
    option = THRESHOLDS[OutputStat(stat)].removeprefix("--").replace("-", "_")
    seen = [compared(stat, reference, reference + noise, **{option: ["0.5"]}) for noise in (0.01, 0.3, 3, 100)]
    errors = [error_of(each) for each in seen]
    assert [error > 1 for error in errors] == [not each.passed for each in seen]
    assert errors == sorted(errors)
    assert error_of(compared(stat, reference, np.full_like(reference, np.nan), **{option: ["0.5"]})) > 1
    assert not is_default(tolerances(check_error_stat=[f"out:{stat}"], **{option: ["0.5"]}))
