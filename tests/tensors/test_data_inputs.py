"""Input values: the command line's texts, random values, files and scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import read_options

from bisect_trt.errors import UsageError
from bisect_trt.options.shared import Data
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import make_inputs, of_width, validate_sample
from bisect_trt.tensors.kernel import free_bytes
from bisect_trt.tensors.npz import save_npz

NAMES = st.text(min_size=1) | st.sampled_from(["a:b", "x[0]", "[1,2]", "serving_default:0"])
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "uint64", "int64", "bool", "object"]


def info(name: str, dtype: Any = "float32", shape: Any = (2, 3)) -> TensorInfo:
    return TensorInfo(name, np.dtype(dtype), shape)


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 10**6)), max_size=4))
def test_shapes_come_back(shapes: dict[str, list[int]]) -> None:
    assert read_options(Data, input_shapes=[f"{name}:{shape}" for name, shape in shapes.items()]).input_shapes == {
        name: tuple(shape) for name, shape in shapes.items()
    }


@given(st.dictionaries(NAMES | st.just(""), st.tuples(NUMBERS, NUMBERS).map(sorted), max_size=4))
def test_ranges_come_back(ranges: dict[str, list[float]]) -> None:
    texts = [f"{name}:{bounds}" if name else str(bounds) for name, bounds in ranges.items()]
    assert read_options(Data, val_range=texts).val_range == {name: tuple(bounds) for name, bounds in ranges.items()}


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ("input_shapes", ["x", "x:", "x:1,2", "x:[1,a]", "x:[1,-2]", "x:[1.5]", "x:[1,,2]", "[1,2]", "x:[1,2"]),
        ("val_range", ["", "x", "1", "[1]", "[1,2,3]", "[2,1]", "[0,inf]", "[nan,1]", "x:[]", "x:[a,b]"]),
    ],
)
def test_malformed_values_are_refused(option: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}"):
            read_options(Data, **{option: [text]})


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.tuples(st.integers(-300, 300), st.integers(0, 500)),
    st.integers(0, 2**40),
)
@settings(deadline=None)
def test_random_values_lie_in_the_range_and_repeat(
    dtype: str, shape: tuple[int, ...], bounds: tuple[int, int], seed: int
) -> None:
    low, high = bounds[0], bounds[0] + bounds[1]
    infos = [info("x", dtype, shape), info("y", dtype, shape)]
    options = Data(seed=seed, val_range={"": (low, high), "y": (0, 1)})
    limits = {"bool": (0, 1), "uint8": (0, 255), "int8": (-128, 127), "uint64": (0, 2**64)}.get(dtype, (low, high))
    low, high = max(low, limits[0]), min(high, limits[1])
    if low > high:
        with pytest.raises(UsageError, match="'x'"):
            make_inputs(infos, options)
        return
    [sample], [again] = make_inputs(infos, options), make_inputs(infos, options)
    assert list(sample) == ["x", "y"]
    for (name, values), (first, last) in zip(sample.items(), ((low, high), (0, 1)), strict=True):
        assert values.dtype == np.dtype(dtype)
        assert values.shape == shape
        assert all(first <= float(value) <= last for value in values.ravel().tolist())
        np.testing.assert_array_equal(values, again[name])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_extension_types_get_random_values(name: str) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    [sample] = make_inputs([info("x", dtype, (1000,))], Data(val_range={"": (-1e39, 1e39)}))
    assert sample["x"].dtype == dtype
    numbers = sample["x"].astype(np.float64)
    assert np.isfinite(numbers).all()
    assert len(np.unique(numbers)) > 10


def test_random_values_cover_the_range() -> None:
    infos = [info("f", "float32", (1000,)), info("i", "int64", (1000,)), info("b", "bool", (1000,))]
    [sample] = make_inputs(infos, Data(val_range={"f": (-2.0, 5.0), "i": (-2.0, 3.0)}))
    assert sample["f"].min() < -1.9
    assert sample["f"].max() > 4.9
    assert set(sample["i"].tolist()) == {-2, -1, 0, 1, 2, 3}
    assert set(sample["b"].tolist()) == {False, True}
    [other] = make_inputs(infos, Data(seed=2))
    assert not np.array_equal(other["f"], make_inputs(infos, Data())[0]["f"])
    [widest] = make_inputs([info("d", "float64", (9,))], Data(val_range={"": (-1.7e308, 1.7e308)}))
    assert np.isfinite(widest["d"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Data(val_range={"z": (0, 1)}), "'z'; the model's inputs are 'x'"),
        (Data(seed=-1), "seed -1 is negative"),
        (Data(load_inputs=[Path("a.npz")], data_loader_script="b.py"), "use one of them"),
    ],
)
def test_bad_options_are_refused(options: Data, message: str) -> None:
    with pytest.raises(UsageError, match=r"'x' .*give --input-shapes"):
        make_inputs([info("x", shape=(None, 3))], Data())
    with pytest.raises(UsageError, match=message):
        make_inputs([info("x")], options)


def test_every_problem_of_a_sample_is_named() -> None:
    infos = [info("a"), info("b", "int64"), info("c", shape=("n", 3)), info("d")]
    sample: dict[str, NDArray[Any]] = {
        "b": np.zeros((2, 3)),
        "c": np.zeros((7, 4), np.float32),
        "d": np.zeros((2, 3), np.float32),
        "e": np.eye(1),
    }
    with pytest.raises(UsageError) as caught:
        validate_sample(infos, sample, "f.npz")
    assert str(caught.value) == (
        "f.npz does not fit the model: 'a' missing; 'e' unknown; the model's inputs are 'a', 'b', 'c', 'd'; "
        "'b' is float64 and must be int64; 'c' has shape [7, 4] and must have [n, 3]"
    )


@given(st.lists(st.integers(0, 3), max_size=3), st.data())
def test_free_dimensions_take_any_size(sizes: list[int], data: st.DataObject) -> None:
    values = np.zeros(sizes, np.float32)
    shape = tuple(data.draw(st.sampled_from([size, "n", None])) for size in sizes)
    validate_sample([info("x", shape=shape)], {"x": values}, "here")
    validate_sample([info("x", shape=None)], {"x": values}, "here")
    for wrong in ((*shape, 1), tuple(size + 1 for size in sizes)):
        if wrong != shape:
            with pytest.raises(UsageError, match="has shape"):
                validate_sample([info("x", shape=wrong)], {"x": values}, "here")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("float64", "float32"), ("float32", "float64"), ("float16", "float32"), ("int64", "int32"), ("uint8", "int64")],
)
def test_numbers_of_another_width_become_what_the_model_takes(given: str, wanted: str) -> None:
    values = np.array([0, 1, 127], given)
    made = of_width([info("x", wanted, (3,))], {"x": values})["x"]
    assert made.dtype == wanted
    assert np.array_equal(made, values)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([1e300]), "float32"),
        (np.array([1 << 40]), "int32"),
        (np.array([-1], np.int64), "uint64"),
        (np.array([(1 << 64) - 1], np.uint64), "int64"),
        (np.array([1]), "float32"),
        (np.array([True]), "int64"),
    ],
)
def test_numbers_that_a_type_does_not_have_are_refused(values: NDArray[Any], wanted: str) -> None:
    infos = [info("x", wanted, (1,))]
    with pytest.raises(UsageError, match=f"'x' is {values.dtype} and must be {wanted}"):
        validate_sample(infos, of_width(infos, {"x": values}), "here")


def test_strings_of_any_kind_are_strings() -> None:
    for values in (np.array(["a"]), np.array(["a"], object), np.array([b"a"])):
        validate_sample([info("x", object, (1,))], {"x": values}, "here")
    with pytest.raises(UsageError, match="'x' is float64 and must be string"):
        validate_sample([info("x", object, (1,))], {"x": np.zeros(1)}, "here")


def test_raw_bytes_of_extension_types_are_taken(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.arange(6).reshape(2, 3).astype(bfloat16)
    np.savez(tmp_path / "raw.npz", x=values.view("V2"))
    [sample] = make_inputs([info("x", bfloat16)], Data(load_inputs=[tmp_path / "raw.npz"]))
    assert sample["x"].dtype == bfloat16
    assert sample["x"].tobytes() == values.tobytes()


def test_files_merge_if_disjoint_and_are_samples_otherwise(tmp_path: Path) -> None:
    infos = [info("x"), info("y")]
    one, two = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    files = {"x": {"x": one}, "y": {"y": two}, "both": {"y": one, "x": two}, "other": {"x": one, "y": one}}
    paths = {name: tmp_path / f"{name}.npz" for name in files}
    for name, arrays in files.items():
        save_npz(paths[name], arrays)

    def load(*names: str) -> list[dict[str, Any]]:
        samples = make_inputs(infos, Data(load_inputs=[paths[name] for name in names]))
        assert all(list(sample) == ["x", "y"] for sample in samples)
        return [{name: values[0, 0] for name, values in sample.items()} for sample in samples]

    assert load("y", "x") == [{"x": 1, "y": 2}]
    assert load("both") == [{"x": 2, "y": 1}]
    assert load("both", "other") == [{"x": 2, "y": 1}, {"x": 1, "y": 1}]
    with pytest.raises(UsageError, match=r"x\.npz does not fit the model: 'y' missing"):
        load("x")
    with pytest.raises(UsageError, match=r"x\.npz does not fit the model: 'y' missing"):
        load("both", "x")


GOOD_SCRIPT = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from helper_beside_the_script import VALUE

@dataclass
class Settings:
    count: int = 2

def load_data():
    import helper_imported_late
    for i in range(Settings().count):
        yield {"x": np.full((2, 3), VALUE + i, np.float32)}

def as_list():
    return list(load_data())

variable = [{"x": np.zeros((2, 3), np.float32)}]
not_fitting = [{"x": np.zeros((2, 3), np.float32)}, {"y": np.zeros(1)}]
"""


def test_scripts_give_samples(tmp_path: Path) -> None:
    folder = tmp_path / "with:colon"
    folder.mkdir()
    (folder / "helper_beside_the_script.py").write_text("VALUE = 5")
    (folder / "helper_imported_late.py").write_text("")
    script = folder / "load"
    script.write_text(GOOD_SCRIPT)
    path = list(sys.path)
    for function, values in (("", [5, 6]), (":load_data", [5, 6]), (":as_list", [5, 6]), (":variable", [0])):
        samples = make_inputs([info("x")], Data(data_loader_script=f"{script}{function}"))
        assert [sample["x"][0, 0] for sample in samples] == values
    with pytest.raises(UsageError, match=r"Sample 1 of .*load:not_fitting does not fit the model: 'x' missing"):
        make_inputs([info("x")], Data(data_loader_script=f"{script}:not_fitting"))
    assert sys.path == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def load_data(:", r"line 1 raised SyntaxError"),
        ("\n\n1 / 0", r"line 3 raised ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", r"raised SystemExit: 3"),
        ("import no_such_module_anywhere", r"No module named 'no_such_module_anywhere'"),
        ("", r"has no function 'load_data'"),
        ("def load_data(required): yield {}", r"raised TypeError"),
        ("def load_data():\n  yield {}\n  raise RuntimeError('half way')", r"line 3 raised RuntimeError: half way"),
        ("def load_data(): return []", r"gives no sample"),
        ("def load_data(): return {'x': 1}", r"gives a dict"),
        ("def load_data(): return None", r"gives a NoneType"),
        ("def load_data(): yield [1, 2]", r"gives a list as sample 0"),
        ("def load_data(): yield {'x': [[1], [1, 2]]}", r"raised ValueError"),
    ],
)
def test_bad_scripts_are_named_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        make_inputs([info("x")], Data(data_loader_script=str(script)))
    assert str(script) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.py", "missing.py:function", ".", ""])
def test_missing_scripts_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        make_inputs([info("x")], Data(data_loader_script=str(tmp_path / name) if name else ""))


@pytest.mark.parametrize(
    ("shape", "samples"),
    [
        ((10**11, 10**11), None),
        ((2**40,), 2),
        ((2, 3), 10**12),
        ((), 10**12),
        (((free_bytes() or 8 << 30) // 16,), None),
    ],
)
def test_random_values_that_no_memory_holds(shape: tuple[int, ...], samples: int | None) -> None:
    """Said before they are asked for."""
    with pytest.raises(UsageError, match=r"samples of random values for 'x' \[.*\] take .* GiB, and .* GiB are free"):
        make_inputs([info("x", shape=shape)], Data(iterations=samples))
