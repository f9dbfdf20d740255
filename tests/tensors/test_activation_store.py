"""The reference's tensors on disk: what is written comes back, and nothing half-written does."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from support import examples

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.tensors.info import TensorStats, tensor_stats
from bisect_trt.tensors.store import ActivationStore, StoreWriter

SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4)
NUMBERS = hnp.arrays(
    st.one_of(hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.boolean_dtypes()), SHAPES
)
STRINGS = hnp.arrays(object, SHAPES, elements=st.text(st.characters(exclude_characters="\0")))


def write(folder: Path, arrays: dict[str, Any]) -> ActivationStore:
    with StoreWriter(folder) as writer:
        for name, values in arrays.items():
            writer.add(name, values)
    return ActivationStore.open(folder)


@given(st.dictionaries(st.text(), NUMBERS | STRINGS, max_size=4))
@settings(deadline=None, max_examples=examples(60))
def test_everything_comes_back(arrays: dict[str, NDArray[Any]]) -> None:
    with TemporaryDirectory() as folder:
        store = write(Path(folder), arrays)
        assert tuple(store) == tuple(arrays)
        assert len(store) == len(arrays)
        assert store.skipped == {}
        for name, values in arrays.items():
            native = values.dtype.newbyteorder("=")
            loaded, info = store[name], store.info(name)
            assert name in store
            assert (info.name, info.shape, info.dtype) == (name, values.shape, native)
            assert (loaded.shape, loaded.dtype) == (values.shape, native)
            np.testing.assert_array_equal(loaded, values)
            assert type(loaded) is np.ndarray


def test_numbers_are_aligned_read_only_views_of_the_file(tmp_path: Path) -> None:
    arrays = {"byte": np.ones(3, np.int8), "wide": np.arange(5.0), "scalar": np.array(2.5)}
    store = write(tmp_path, arrays)
    for name in arrays:
        values = store[name]
        assert values.ctypes.data % 64 == 0
        assert np.shares_memory(values, store.get(name)), "a second read must not copy"
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_extension_types_come_back(name: str, tmp_path: Path) -> None:
    dtype = getattr(pytest.importorskip("ml_dtypes"), name)
    values = np.arange(6).reshape(2, 3).astype(dtype)
    store = write(tmp_path, {"x": values, "t": values.T, "scalar": values[1, 1:2].reshape(()), "empty": values[:0]})
    assert store.info("x").dtype == dtype
    for key, wanted in (("x", values), ("t", values.T), ("empty", values[:0])):
        assert store[key].dtype == dtype
        assert store[key].tolist() == wanted.tolist()
    assert store["scalar"] == values[1, 1]


def test_what_is_no_tensor_is_skipped_with_the_reason(tmp_path: Path) -> None:
    things = {"x": np.zeros(1), "none": None, "sequence": [np.zeros(1)], "objects": np.array([{}, 1], object)}
    store = write(tmp_path, {**things, "date": np.array(["2020"], "datetime64[D]")})
    assert tuple(store) == ("x",)
    assert set(store.skipped) == {"none", "sequence", "objects", "date"}
    assert "NoneType" in store.skipped["none"]
    assert "none" not in store
    for name in ("none", "unheard of"):
        for read in (store.__getitem__, store.info):
            with pytest.raises(KeyError, match=name):
                read(name)


@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int32, np.uint64, np.bool_]),
        hnp.array_shapes(min_dims=0, min_side=0),
    )
)
@settings(deadline=None)
def test_stats_are_of_the_finite_values(values: NDArray[Any]) -> None:
    numbers = [float(value) for value in values.ravel().tolist()]
    finite = [value for value in numbers if math.isfinite(value)]
    stats = tensor_stats(values)
    assert stats.nan == sum(map(math.isnan, numbers))
    assert stats.inf == sum(map(math.isinf, numbers))
    if finite:
        assert (stats.min, stats.max) == (min(finite), max(finite))
        assert stats.absmax == max(map(abs, finite))
    else:
        assert all(map(math.isnan, (stats.min, stats.max, stats.absmax)))


def test_stats_take_in_every_block_of_a_large_tensor() -> None:
    values = np.arange(3_000_000, dtype=np.float32) - 10
    assert tensor_stats(values) == TensorStats(-10, 2_999_989, 2_999_989)
    values[-1] = np.nan
    assert tensor_stats(values) == TensorStats(-10, 2_999_988, 2_999_988, nan=1)


def test_an_unfinished_store_is_none(tmp_path: Path) -> None:
    write(tmp_path, {"old": np.zeros(3)})
    writer = StoreWriter(tmp_path)
    writer.add("new", np.zeros(1000))
    writer.__exit__(RuntimeError, RuntimeError("stopped"), None)
    with pytest.raises(UnavailableError, match="no finished activations"):
        ActivationStore.open(tmp_path)


def test_who_has_the_old_store_open_keeps_reading_it(tmp_path: Path) -> None:
    old = write(tmp_path, {"x": np.arange(100_000)})
    new = write(tmp_path, {"x": np.zeros(3)})
    np.testing.assert_array_equal(old["x"], np.arange(100_000))
    np.testing.assert_array_equal(new["x"], np.zeros(3))


def test_values_outlive_a_check_that_cuts_the_file_off(tmp_path: Path) -> None:
    """To touch what is mapped and gone would end the process."""
    store = write(tmp_path, {"x": np.arange(1000.0)})
    values = store.take("x")
    (tmp_path / "tensors.bin").write_bytes(b"")
    assert values.tolist() == list(range(1000))
    with pytest.raises(UnavailableError, match="changed while they were in use"):
        store.take("x")


@pytest.mark.parametrize("damage", ["no folder", "no index", "no data", "short data", "junk", "other schema", "list"])
def test_damage_is_told(damage: str, tmp_path: Path) -> None:
    write(tmp_path, {"x": np.zeros(100)})
    index, data = tmp_path / "index.json", tmp_path / "tensors.bin"
    match damage:
        case "no index":
            index.unlink()
        case "no data":
            data.unlink()
        case "short data":
            data.write_bytes(data.read_bytes()[:-1])
        case "junk":
            index.write_text("{")
        case "list":
            index.write_text("[]")
        case "other schema":
            index.write_text(json.dumps({"schema": 0}))
    with pytest.raises(UnavailableError, match=str(tmp_path)):
        ActivationStore.open(tmp_path / "none" if damage == "no folder" else tmp_path)


def test_a_full_disk_is_told_and_leaves_no_store(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UsageError, match="File too large"):
            write(tmp_path / "store", {"a": np.zeros(10), "x": np.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(UnavailableError):
        ActivationStore.open(tmp_path / "store")


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Cannot write"):
        StoreWriter(tmp_path / "file")
