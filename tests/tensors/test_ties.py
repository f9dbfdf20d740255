"""One step of a quantized tensor: a tie in rounding where it is rare, an error where it is systematic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.onnxlib.roundings import steps_of
from bisect_trt.targets.reproduce import differs
from bisect_trt.tensors.compare import compare_tensor
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import save_npz
from bisect_trt.tensors.tolerance import Step, ToleranceOptions

SIZE = 8192
make = helper.make_node


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


GRIDS = st.one_of(st.just(("int8", 1.0)), st.just(("int32", 1.0)), st.floats(1e-4, 10).map(lambda s: ("float32", s)))


@given(GRIDS, st.integers(1, SIZE // 100), st.integers(0, 99), st.booleans())
def test_a_few_elements_one_step_off_are_ties_and_that_is_said(
    grid: tuple[str, float], count: int, seed: int, after: bool
) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    step = Step(np.full(1, scale), after=after)
    result = compare_tensor("q", values, off(values, count, scale, seed), ToleranceOptions(), step=step)
    assert result.passed
    assert (result.ties, result.mismatching) == (count, 0)
    assert f"{count} element" in result.describe()
    assert "one quantization step off" in result.describe()
    assert TensorComparison.from_json(result.to_json()).ties == count


@given(GRIDS, st.integers(0, 99))
def test_two_steps_are_no_tie_and_are_shown_before_the_ties(grid: tuple[str, float], seed: int) -> None:
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
def test_a_wrong_zero_point_and_numbers_cut_off_are_systematic(grid: tuple[str, float], seed: int, after: bool) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    step = Step(np.full(1, scale), after=after)
    one = np.asarray(scale).astype(dtype)
    for wrong in (values + one, off(values, SIZE // 2, scale, seed)):
        result = compare_tensor("q", values, wrong, ToleranceOptions(), step=step)
        assert not result.passed
        assert not result.ties


def test_of_few_elements_more_are_ties_by_chance_but_not_all() -> None:
    """Where a quarter may be, four of ten are nothing; of thousands it would be. All of them are a zero point."""
    step = Step(np.ones(1), after=True)
    for size, count, passed in (
        (10, 4, True),
        (10, 8, False),
        (SIZE, SIZE * 4 // 10, False),
        (3, 3, False),
        (2, 2, False),
    ):
        values = reference("int8", 1, 0)[:size]
        assert compare_tensor("q", values, off(values, count, 1), ToleranceOptions(), step=step).passed is passed


@given(GRIDS, st.integers(1, SIZE), st.sampled_from([1, 2]), st.integers(0, 99), st.booleans())
def test_a_reproducers_script_says_the_same(
    grid: tuple[str, float], count: int, by: int, seed: int, after: bool
) -> None:
    dtype, scale = grid
    values = reference(dtype, scale, seed)
    target = off(values, count, by * scale, seed)
    seen = compare_tensor("q", values, target, ToleranceOptions(), step=Step(np.full(1, scale), after=after))
    assert seen.atol is not None
    assert seen.rtol is not None
    failed, _ = differs(target, values, seen.atol, seen.rtol, "elemwise", seen.step or 0, seen.most_ties)
    assert failed is not seen.passed


@pytest.mark.parametrize("options", [ToleranceOptions(atol={"": 1e-5}), ToleranceOptions(rtol={"q": 0.0})])
def test_a_tolerance_of_the_users_is_meant_to_the_letter(options: ToleranceOptions) -> None:
    values = reference("int8", 1, 0)
    assert not compare_tensor("q", values, off(values, 3, 1), options, step=Step(np.ones(1))).passed


def test_without_a_grid_one_off_is_wrong() -> None:
    """An index, a count, a label."""
    values = reference("int32", 1, 0)
    assert not compare_tensor("q", values, off(values, 3, 1), ToleranceOptions()).passed


def test_a_ripple_passes_and_seven_hundredths_do_not() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 3, SIZE).astype(np.float32)
    for share, passed in ((0.01, True), (0.07, False)):
        wrong = off(values, 1, share * 3)
        assert compare_tensor("y", values, wrong, ToleranceOptions(), step=Step(None, after=True)).passed is passed


def test_each_channel_has_a_step_of_its_own() -> None:
    values = np.zeros((2, 3, 400), np.float32)
    scales = np.array([0.1, 1, 10])
    for axis in (1, -2):
        step = Step(scales, axis=axis)
        tied, wrong = values.copy(), values.copy()
        tied[0, :, 7] = scales
        wrong[0, 0, 7] = 1
        assert compare_tensor("y", values, tied, ToleranceOptions(), step=step).ties == 3
        assert not compare_tensor("y", values, wrong, ToleranceOptions(), step=step).passed


def quantized() -> onnx.GraphProto:
    """x, quantized, moved, dequantized, computed with, quantized again; and integers that no rounding made."""
    nodes = [
        make("Constant", [], ["coarse"], value=numpy_helper.from_array(np.array(0.5, np.float32))),
        make("Conv", ["x", "w"], ["before"]),
        make("QuantizeLinear", ["before", "fine", "zero"], ["q"]),
        make("Transpose", ["q"], ["moved"]),
        make("DequantizeLinear", ["moved", "fine", "zero"], ["d"]),
        make("MaxPool", ["d"], ["pooled"], kernel_shape=[2]),
        make("Conv", ["pooled", "w"], ["float"]),
        make("QuantizeLinear", ["float", "coarse"], ["q2"]),
        make("DequantizeLinear", ["q2", "coarse"], ["d2"]),
        make("QLinearConv", ["q2", "a", "b", "w8", "a", "b", "a", "b"], ["q3"]),
        make("Concat", ["d", "d2"], ["two grids"], axis=0),
        make("ArgMax", ["d2"], ["index"]),
        make("DequantizeLinear", ["w8", "fine"], ["weight"]),
        make("DequantizeLinear", ["q", "measured"], ["d3"]),
        make("DynamicQuantizeLinear", ["x"], ["q4", "scale", "zero point"]),
    ]
    weights = [
        numpy_helper.from_array(np.array(0.25, np.float32), "fine"),
        numpy_helper.from_array(np.zeros(4, np.int8), "w8"),
    ]
    return helper.make_graph(nodes, "g", [], [], weights)


def test_what_one_step_of_each_tensor_is() -> None:
    scale = {"measured": np.array([3.0], np.float32)}
    steps = steps_of(quantized(), scale.get)
    sizes = {name: None if step.size is None else step.size.tolist() for name, step in steps.items()}
    assert sizes == {
        "q": [1],
        "moved": [1],
        "d": [0.25],
        "pooled": [0.25],
        "float": None,
        "q2": [1],
        "d2": [0.5],
        "q3": [1],
        "two grids": None,
        "d3": [3.0],
        "q4": [1],
    }
    assert {name for name, step in steps.items() if step.after} == {"float", "q2", "d2", "q3", "two grids"}


@pytest.mark.usefixtures("here")
def test_ties_do_not_hide_a_real_failure(cli: CommandLine) -> None:
    """Two quantized branches, the target's values beside those of a reference: one with ties, one with a failure."""
    rng = np.random.default_rng(0)
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "s")
    nodes = []
    for side in "ab":
        nodes.append(make("QuantizeLinear", [side, "s"], [f"q{side}"]))
        nodes.append(make("DequantizeLinear", [f"q{side}", "s"], [f"d{side}"]))
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (8, 1024)) for name in "ab"]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("qa", "da", "db")]
    graph = helper.make_graph(nodes, "g", info, outputs, [scale])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    save_npz(Path("in.npz"), {name: rng.uniform(2, 20, (8, 1024)).astype(np.float32) for name in "ab"})
    assert cli("run", "m.onnx", "--onnxrt", "--load-inputs", "in.npz", "--save-outputs", "out.npz").status == 0
    saved = dict(np.load("out.npz"))
    saved["qa"].reshape(-1)[[5, 99, 4000]] += 1
    saved["da"].reshape(-1)[[5, 99, 4000]] += np.float32(0.1)
    save_npz(Path("tied.npz"), saved)
    compare = ("run", "m.onnx", "--onnxrt", "--load-inputs", "in.npz", "--load-outputs")
    ran = cli(*compare, "tied.npz", "-v")
    assert (ran.status, ran.out.count("3 elements are one quantization step off")) == (0, 2), ran.out
    saved["db"].reshape(-1)[7] += np.float32(0.25)
    save_npz(Path("wrong.npz"), saved)
    ran = cli(*compare, "wrong.npz")
    assert ran.status == 1
    assert "1 of 3 do not match" in ran.out
    assert cli(*compare, "tied.npz", "--atol", "1e-5").status == 1
