"""Input values: the command line's texts, random values, files and scripts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from support import read_options

from bisect_trt.errors import UsageError
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.shared import Data
from bisect_trt.report.mixed import describe_fresh
from bisect_trt.tensors.files import save_npz
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import Sample, make_inputs, of_width, validate_sample
from bisect_trt.tensors.kernel import free_bytes
from bisect_trt.tensors.metrics import Evaluation, Metric, find_metric

DTYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "uint64", "int64", "bool"]


def info(name: str, dtype: Any = "float32", shape: Any = (2, 3)) -> TensorInfo:
    return TensorInfo(name, np.dtype(dtype), shape)


@pytest.mark.parametrize(
    ("group", "option", "texts"),
    [
        (
            Data,
            "input_shapes",
            ["x", "x:", "x:1,2", "x:[1,a]", "x:[1,-2]", "x:[1.5]", "x:[1,,2]", "[1,2]", "x:[1,2"],
        ),
        (
            Data,
            "val_range",
            ["", "x", "1", "[1]", "[1,2,3]", "[2,1]", "[0,inf]", "[nan,1]", "x:[]", "x:[a,b]"],
        ),
        (CompareOptions, "error_quantile", ["-0.1", "1.1", "nan", "x"]),
        (CompareOptions, "atol", ["", "x", "out:", "out:-1", "nan", "-1e-3", "1e-3,1e-4"]),
        (CompareOptions, "check_error_stat", ["out:worst"]),
    ],
)
def test_malformed_values_are_refused(group: type, option: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}"):
            read_options(group, **{option: [text]})


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
    low = bounds[0]
    high = bounds[0] + bounds[1]
    infos = [info("x", dtype, shape), info("y", dtype, shape)]
    options = Data(seed=seed, val_range={"": (low, high), "y": (0, 1)})
    limits = {"bool": (0, 1), "uint8": (0, 255), "int8": (-128, 127), "uint64": (0, 2**64)}.get(
        dtype, (low, high)
    )
    low = max(low, limits[0])
    high = min(high, limits[1])
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
    [
        ("float64", "float32"),
        ("float32", "float64"),
        ("float16", "float32"),
        ("int64", "int32"),
        ("uint8", "int64"),
    ],
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


def test_raw_bytes_of_extension_types_are_taken(tmp_path: Path) -> None:
    values = np.arange(6).reshape(2, 3).astype(dtype := pytest.importorskip("ml_dtypes").bfloat16)
    np.savez(tmp_path / "raw.npz", x=values.view("V2"))
    [sample] = make_inputs([info("x", dtype)], Data(load_inputs=(tmp_path / "raw.npz",)))
    assert (sample["x"].dtype, sample["x"].tobytes()) == (dtype, values.tobytes())


def test_files_merge_if_disjoint_and_are_samples_otherwise(tmp_path: Path) -> None:
    infos = [info("x"), info("y")]
    one = np.ones((2, 3), np.float32)
    two = np.full((2, 3), 2, np.float32)
    files = {
        "x": {"x": one},
        "y": {"y": two},
        "both": {"y": one, "x": two},
        "other": {"x": one, "y": one},
    }
    paths = {name: tmp_path / f"{name}.npz" for name in files}
    for name, values in files.items():
        save_npz(paths[name], values)

    def load(*names: str) -> list[dict[str, Any]]:
        samples = make_inputs(infos, Data(load_inputs=tuple(paths[name] for name in names)))
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
    for function, values in (
        ("", [5, 6]),
        (":load_data", [5, 6]),
        (":as_list", [5, 6]),
        (":variable", [0]),
    ):
        samples = make_inputs([info("x")], Data(data_loader_script=f"{script}{function}"))
        assert [sample["x"][0, 0] for sample in samples] == values
    with pytest.raises(
        UsageError, match=r"Sample 1 of .*load:not_fitting does not fit the model: 'x' missing"
    ):
        make_inputs([info("x")], Data(data_loader_script=f"{script}:not_fitting"))
    assert sys.path == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"does not exist"),
        ("def load_data(:", r"line 1 raised SyntaxError"),
        ("\n\n1 / 0", r"line 3 raised ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", r"raised SystemExit: 3"),
        ("import no_such_module_anywhere", r"No module named 'no_such_module_anywhere'"),
        ("", r"has no function 'load_data'"),
        ("def load_data(required): yield {}", r"raised TypeError"),
        (
            "def load_data():\n  yield {}\n  raise RuntimeError('half way')",
            r"line 3 raised RuntimeError: half way",
        ),
        ("def load_data(): return []", r"gives no sample"),
        ("def load_data(): return {'x': 1}", r"gives a dict"),
        ("def load_data(): return None", r"gives a NoneType"),
        ("def load_data(): yield [1, 2]", r"gives a list as sample 0"),
        ("def load_data(): yield {'x': [[1], [1, 2]]}", r"raised ValueError"),
    ],
)
def test_bad_scripts_are_named_with_the_reason(
    text: str | None, message: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    if text is not None:
        script.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        make_inputs([info("x")], Data(data_loader_script=str(script)))
    assert str(script) in str(caught.value)


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
    with pytest.raises(
        UsageError,
        match=r"samples of random values for 'x' \[.*\] take .* GiB, and .* GiB are free",
    ):
        make_inputs([info("x", shape=shape)], Data(iterations=samples))


# Fresh samples are of the kind of those given: types, shapes, bounds, tables, masks, and the law of
# floats.


IDS = np.array([[5, 17, 3, 3, 99, 0, 1, 2]], np.int64)
RNG = np.random.default_rng(3)
IMAGE = RNG.random((1, 3, 16, 16), np.float32)
NORMAL = RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)
PADDED = np.array([[1, 1, 1, 1, 1, 0, 0, 0]], np.int64)


def drawn(
    samples: list[Sample], sizes: dict[str, int] | None = None, count: int = 24
) -> list[Sample]:
    law = FreshSamples.like(samples, sizes or {})
    return [law.draw(number) for number in range(count)]


def test_edges_of_a_graph_are_drawn_anew_and_masks_with_an_order_are_not() -> None:
    """With the given rows alone no node has more neighbours than in the given graph, and fp16 overflows there first."""
    edges = (np.random.default_rng(3).random((40, 40)) < 0.1).astype(np.float32)
    graphs = [sample["x"] for sample in drawn([{"x": edges}])]
    assert {value for graph in graphs for value in np.unique(graph)} == {0.0, 1.0}
    assert np.mean(graphs) == pytest.approx(edges.mean(), rel=0.1)
    most = [graph.sum(axis=1).max() for graph in graphs]
    assert edges.sum(axis=1).max() < max(most)
    assert len({graph.sum() for graph in graphs}) > 10
    blocks = np.kron(np.eye(4), np.ones((6, 6)))
    for mask in (
        np.triu(np.ones((24, 24)), 1),
        blocks,
        np.eye(24),
        np.repeat(edges[:2], 12, axis=0),
    ):
        rows = {tuple(row) for row in mask}
        assert {tuple(row) for sample in drawn([{"x": mask}]) for row in sample["x"]} == rows


@given(st.integers(0, 10**6))
def test_a_number_is_a_sample(number: int) -> None:
    law = FreshSamples.like([{"image": IMAGE, "ids": IDS}], {"ids": 100})
    one = law.draw(number)
    again = law.draw(number)
    other = law.draw(number + 1)
    for name, value in one.items():
        assert np.array_equal(value, again[name])
        assert (
            (value.dtype, value.shape) == (IMAGE.dtype, IMAGE.shape)
            if name == "image"
            else (IDS.dtype, IDS.shape)
        )
    if number % len(law.ways) != law.ways.index(
        "permuted"
    ):  # else both are, and three channels have few orders
        assert not np.array_equal(one["image"], other["image"])
    assert not np.array_equal(one["image"], IMAGE)


KINDS = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint64", "bool")


@given(
    st.sampled_from(KINDS).flatmap(
        lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=3, max_side=6))
    ),
    st.one_of(st.none(), st.integers(1, 50)),
    st.integers(0, 15),
)
def test_any_input_keeps_its_type_and_shape(
    value: np.ndarray, size: int | None, number: int
) -> None:
    made = FreshSamples.like([{"x": value}], {} if size is None else {"x": size}).draw(number)["x"]
    assert (made.dtype, made.shape) == (value.dtype, value.shape)


def test_images_within_0_and_1_stay_there_but_for_those_that_were_normalised() -> None:
    samples = [sample["image"] for sample in drawn([{"image": IMAGE}])]
    inside = [sample for sample in samples if sample.min() >= 0 and sample.max() <= 1]
    outside = [sample for sample in samples if sample.min() < 0]
    assert len(inside) == 22
    assert len(outside) == 2
    for sample in outside:
        assert sample.std() == pytest.approx(1, abs=0.1)


def test_a_normal_law_stays_one() -> None:
    alike = drawn([{"x": NORMAL}], count=4)  # the first ways are others of the same law
    for sample in alike:
        assert sample["x"].mean() == pytest.approx(NORMAL.mean(), abs=0.15)
        assert sample["x"].std() == pytest.approx(NORMAL.std(), rel=0.1)


@given(st.sets(st.integers(0, 6), min_size=2, max_size=4), st.sampled_from([1, 2, 16]))
def test_sizes_between_those_of_the_samples_are_drawn(lengths: set[int], unit: int) -> None:
    """A mask stays as long as the text and the past together, sizes multiples of their common divisor, positions in order."""
    values = np.random.default_rng(0)
    samples: list[Sample] = [
        {
            "ids": values.integers(0, 50, (1, length * unit)),
            "positions": np.arange(length * unit)[None],
            "past": values.standard_normal((1, 2, (9 - length) * unit, 4)).astype(np.float32),
            "mask": np.ones((1, 9 * unit), np.int64),
        }
        for length in lengths
    ]
    for sample in drawn(samples, {"ids": 50}):
        size = sample["ids"].shape[1]
        assert size % unit == 0
        assert min(lengths) * unit <= size <= max(lengths) * unit
        assert size + sample["past"].shape[2] == sample["mask"].shape[1]
        assert np.array_equal(sample["positions"], np.arange(size)[None])


def test_a_count_of_tokens_stays_right() -> None:
    samples: list[Sample] = [
        {"x": np.ones((1, size), np.float32) * size, "tokens": np.array([size])} for size in (6, 12)
    ]
    assert all(sample["x"].shape == (1, sample["tokens"][0]) for sample in drawn(samples))


def test_every_size_between_two_is_drawn() -> None:
    samples: list[Sample] = [{"x": np.eye(size, 3, dtype=np.float32)} for size in (2, 5)]
    assert {len(sample["x"]) for sample in drawn(samples, count=60)} == {2, 3, 4, 5}


def test_ids_are_those_of_the_table() -> None:
    samples = [sample["ids"] for sample in drawn([{"ids": IDS}], {"ids": 100}, count=200)]
    everything = np.concatenate([sample.reshape(-1) for sample in samples])
    assert everything.min() >= 0
    assert everything.max() == 99
    assert len(np.unique(everything)) > 90
    unknown = np.concatenate([sample["ids"].reshape(-1) for sample in drawn([{"ids": IDS}])])
    assert (unknown.min(), unknown.max()) == (
        0,
        99,
    )  # those that were seen, where no table says more


def test_masks_of_padding_get_other_lengths() -> None:
    lengths = set()
    for mask in (PADDED, np.ones_like(PADDED), PADDED.astype(np.float32), PADDED.astype(bool)):
        for sample in drawn([{"mask": mask}]):
            made = sample["mask"].astype(np.int64)
            assert sample["mask"].dtype == mask.dtype
            assert set(np.unique(made)) <= {0, 1}
            assert (np.diff(made, axis=-1) <= 0).all()
            lengths.add(int(made.sum()))
    assert lengths == {4, 5, 6, 7, 8}


@pytest.mark.parametrize(
    "value",
    [
        np.arange(8, dtype=np.int64)[None],  # positions
        np.zeros((1, 8), np.int64),
        np.full((2, 2), 0.5, np.float32),
        np.array(7, np.int64),
        np.array([np.nan, 1.0], np.float32),
        np.array(["a", "b"], object),
        np.zeros((0, 3), np.float32),
    ],
    ids=str,
)
def test_what_may_be_no_other_stays(value: np.ndarray) -> None:
    law = FreshSamples.like([{"x": value}], {})
    assert not law.varies
    assert law.draw(3)["x"] is value
    assert describe_fresh(law) == "'x': as given"


def test_numbers_whose_squares_overflow() -> None:
    huge = np.array([1.0, 1.60893695e154, *[0.0] * 30])
    assert all(np.isfinite(sample["x"]).all() for sample in drawn([{"x": huge}]))


# Each built-in metric against its definition, written down plainly; functions of the user; the set
# on the disk.


DRAWN = np.random.default_rng(4)


def value(
    metric: Metric, seen: list[Any], reference: list[Any], labels: list[Any] | None = None
) -> float:
    """The metric of a whole set."""
    labels = [None] * len(seen) if labels is None else labels
    if metric.of_sample is None:
        assert metric.of_set is not None
        return metric.of_set(seen, reference, labels)
    terms = [metric.of_sample(*each) for each in zip(seen, reference, labels, strict=True)]
    return sum(total for total, _ in terms) / sum(weight for _, weight in terms)


def logits(count: int, *shape: int) -> list[dict[str, Any]]:
    """Outputs of samples."""
    return [{"out": DRAWN.normal(size=shape).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("k", [1, 3])
def test_top_k(k: int) -> None:
    seen = logits(40, 2, 7)
    reference = logits(40, 2, 7)
    labels = [DRAWN.integers(0, 7, 2) for _ in seen]
    hits = [
        label in np.argsort(-row, kind="stable")[:k]
        for sample, each in zip(seen, labels, strict=True)
        for row, label in zip(sample["out"], each, strict=True)
    ]
    assert value(find_metric(f"top-{k}"), seen, reference, labels) == pytest.approx(np.mean(hits))
    assert value(find_metric("top-1"), reference, reference) == 1.0


def test_a_row_with_nan_is_wrong_and_ties_go_to_the_first() -> None:
    same = [{"out": np.zeros((1, 3), np.float32)}]
    assert value(find_metric("top-1"), same, same, [np.array([0])]) == 1.0
    assert value(find_metric("top-1"), same, same, [{"out": np.array([1])}]) == 0.0
    broken = [{"out": np.array([[np.nan, 0, 1]], np.float32)}]
    assert value(find_metric("top-1"), broken, same, [np.array([2])]) == 0.0
    assert value(find_metric("top-1"), [{}], same) == 0.0
    classes = [{"out": np.array([2, 1])}]
    assert value(find_metric("top-1"), [{"out": np.array([2, 0])}], classes) == 0.5


def test_signals() -> None:
    seen = logits(6, 3, 4)
    reference = logits(6, 3, 4)
    pairs = [
        (s["out"].astype(float).ravel(), r["out"].astype(float).ravel())
        for s, r in zip(seen, reference, strict=True)
    ]
    expected = {
        "cosine": [s @ r / np.linalg.norm(s) / np.linalg.norm(r) for s, r in pairs],
        "psnr": [10 * np.log10(r.max() ** 2 / ((s - r) ** 2).mean()) for s, r in pairs],
    }
    for name, numbers in expected.items():
        assert value(find_metric(name), seen, reference) == pytest.approx(np.mean(numbers))
    assert value(find_metric("psnr"), reference, reference) == 100.0
    broken = [{"out": np.full((3, 4), np.nan, np.float32)} for _ in seen]
    assert value(find_metric("cosine"), broken, reference) == -1.0


def test_divergence_of_the_choice_of_a_token() -> None:
    reference = [{"out": np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], np.float32)) + 700}]
    seen = [{"out": np.log(np.array([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]], np.float32)) - 3}]
    assert value(find_metric("kl"), seen, reference) == pytest.approx(
        0.25 * np.log(2) / 2, rel=1e-4
    )
    assert value(find_metric("kl"), reference, reference) == 0.0
    assert value(find_metric("kl"), [{}], reference) == np.inf


ROW = {"out": np.zeros((1, 3), np.float32)}


@pytest.mark.parametrize(
    ("asked", "outputs", "label", "message"),
    [
        ("accuracy", ROW, None, "there is no metric of this name"),
        ("top-0", ROW, None, "there is no metric of this name"),
        ("none.py", ROW, None, "does not exist"),
        ("top-1", ROW, np.array([3]), "a label is no class of 'out', which has 3"),
        ("top-1", {"out": np.zeros((2, 3), np.float32)}, np.array([0]), "2 rows to be labelled"),
        ("top-1", ROW, np.array(["cat"]), "give a class for each row"),
        (
            "top-3",
            {"out": np.zeros((2, 3), np.float32)},
            None,
            "every label is among its 3 largest",
        ),
        *(
            (metric, {"out": np.zeros((2, 1), np.float32)}, np.zeros(2), "has 1 classes a row")
            for metric in ("top-1", "kl", "perplexity")
        ),
        ("kl:out", {"out": np.float32(1)}, None, "has 1 classes a row"),
        ("top-1:other", ROW, None, "there is no such output"),
        ("cosine", {"out": np.zeros((1, 3), np.int64)}, None, "there is none among 'out'"),
    ],
)
def test_what_does_not_fit(
    asked: str, outputs: dict[str, Any], label: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        value(find_metric(asked), [outputs], [outputs], [label])
    with pytest.raises(UsageError, match="for top-1 more is better"):
        find_metric("top-1", lower_is_better=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def metric(outputs): return len(outputs)", 5.0),
        (
            "def metric(labels, outputs, k=5): return [float(o['out'].size + l[0]) for o, l in zip(outputs, labels)]",
            4.0,
        ),
        (
            "def metric(outputs, reference, *, labels): return outputs[0].runner_name != reference[0].runner_name",
            1.0,
        ),
        ("def metric(outputs): raise RuntimeError('no labels')", "raised RuntimeError: no labels"),
        ("def score(outputs): return 0.5", "has no function 'metric'"),
        ("def metric(predictions): return 0.5", "must take lists"),
        ("def metric(outputs, k): return 0.5", "must take lists"),
        ("def metric(outputs): return '0.9'", "must return a number"),
        ("def metric(outputs): return (0.9, 1)", "must return a number"),
        ("def metric(outputs): return {'acc': 1}", "must return a number"),
    ],
)
def test_a_function_of_the_user(tmp_path: Path, source: str, expected: float | str) -> None:
    path = tmp_path / "my.py"
    path.write_text(source)
    seen = logits(5, 1, 3)
    labels = [np.array([1])] * 5
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            value(find_metric(str(path)), seen, seen, labels)
        return
    metric = find_metric(str(path), lower_is_better=True)
    assert (metric.name, metric.lower_is_better) == ("my.py:metric", True)
    assert value(metric, seen, seen, labels) == expected


@pytest.mark.parametrize("first", [True, False])
def test_all_samples_have_labels_or_none(tmp_path: Path, first: bool) -> None:
    samples = [
        ({"x": np.zeros(1)}, np.zeros(1) if (number == 2) ^ first else None) for number in range(4)
    ]
    with pytest.raises(UsageError, match="sample 2 "):
        Evaluation.write(tmp_path, samples)


@pytest.mark.parametrize("asked", ["top-1", "cosine"])
def test_a_set_on_the_disk_scores_what_its_samples_score(asked: str, tmp_path: Path) -> None:
    reference = logits(30, 1, 5)
    labels = [DRAWN.integers(0, 5, 1) for _ in range(30)]
    data = Evaluation.write(tmp_path, [({"x": np.zeros(1)}, label) for label in labels])
    metric = find_metric(asked)
    for place, outputs in enumerate(reference):
        save_npz(data.golden(place), outputs)
    for seen in (
        reference,
        [{"out": each["out"] + DRAWN.normal(size=(1, 5))} for each in reference],
    ):
        found = data.score(metric, seen)
        assert found == pytest.approx(value(metric, seen, reference, labels))


def test_fresh_samples_of_a_cache_that_is_empty_in_one() -> None:
    full = np.random.default_rng(0).normal(size=(1, 2, 9, 8)).astype(np.float32)
    law = FreshSamples.like([{"past": full[:, :, :0]}, {"past": full}], {})
    assert {law.draw(number)["past"].shape[2] for number in range(14)} == {0, 9}
