"""The .npz files: every name and element type comes back, and plain NumPy reads them."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import resource
import zipfile
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

from bisect_trt.errors import RunFolderError, UnavailableError, UsageError
from bisect_trt.tensors.files import NpzFile, load_npz, load_runs, save_npz
from bisect_trt.tensors.info import tensor_stats
from bisect_trt.tensors.store import ActivationStore, write_store

NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
) | st.sampled_from(
    ["file", "/a/b", "a/b:0", "", " ", ".npy", "x", "x.npy", "../up", "allow_pickle", "args"]
)
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4)
PLAIN = hnp.arrays(
    st.one_of(
        hnp.floating_dtypes(endianness="="),
        hnp.integer_dtypes(endianness="="),
        hnp.boolean_dtypes(),
    ),
    SHAPES,
)
EXTENSION_TYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]


def assert_same(loaded: NDArray[Any], saved: NDArray[Any]) -> None:
    assert loaded.dtype == saved.dtype
    assert loaded.shape == saved.shape
    # Bit for bit, which NaN is equal to itself in as well.
    assert loaded.tobytes() == saved.tobytes()


@given(st.dictionaries(NAMES, PLAIN, max_size=5))
@settings(deadline=None)
def test_any_name_and_array_comes_back_in_order_and_plain_numpy_reads_them(
    arrays: dict[str, NDArray[Any]],
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.npz"
        save_npz(path, arrays)
        loaded = load_npz(path)
        assert list(loaded) == list(arrays)
        for name, values in arrays.items():
            assert_same(loaded[name], values)
        assert [file.name for file in Path(folder).iterdir()] == ["t.npz"]
        if not any(
            name.endswith(".npy") for name in arrays
        ):  # which NumPy takes for its own ending
            with np.load(path, allow_pickle=False) as plain:
                assert set(plain.files) == set(arrays)
                for name, values in arrays.items():
                    assert_same(plain[name], values)


@pytest.mark.parametrize("name", EXTENSION_TYPES)
def test_extension_types_come_back_and_read_as_integers_elsewhere(
    name: str, tmp_path: Path
) -> None:
    values = np.arange(6).reshape(2, 3).astype(getattr(pytest.importorskip("ml_dtypes"), name))
    arrays: dict[str, NDArray[Any]] = {
        "matrix": values,
        "transposed": values.T,
        "scalar": values[1, 1:2].reshape(()),
        "empty": values[:0],
        "other": np.ones(1),
    }
    save_npz(tmp_path / "t.npz", arrays)
    store = write(tmp_path / "store", arrays)
    for key, loaded in load_npz(tmp_path / "t.npz").items():
        assert_same(loaded, arrays[key])
        assert_same(store[key], arrays[key])
    with np.load(tmp_path / "t.npz", allow_pickle=False) as plain:
        assert plain["matrix"].dtype == f"u{values.itemsize}"
        assert plain["matrix"].tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a\0b", np.zeros(1)),
        ("\ud800", np.zeros(1)),
        ("x" * 70_000, np.zeros(1)),
        ("x", np.array(["a", None])),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(
    name: str, values: NDArray[Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="Cannot write "):
        save_npz(tmp_path / "t.npz", {name: values})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_file_that_was_there_and_leaves_no_store(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    arrays = {"a": np.zeros(10), "x": np.zeros(1_000_000)}
    save_npz(path, {"x": np.arange(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The nearest to a full disk that needs no disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UsageError, match=r"Cannot write .*t\.npz: File too large"):
            save_npz(path, arrays)
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(UsageError, match="File too large"):
            write(tmp_path / "store", arrays)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_npz(path)["x"].tolist() == [0, 1, 2]
    with pytest.raises(UnavailableError):
        ActivationStore(tmp_path / "store")


def _zip(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for entry in entries.items():
            archive.writestr(*entry)
    return buffer.getvalue()


def _pickled() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{}], object))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.npz", None),
        ("", None),
        ("t.npz", b""),
        ("t.npz", b"text"),
        ("t.npz", _zip({"readme.txt": b"hi"})),
        ("t.npz", _zip({"x.npy": b""})),
        ("t.npz", _zip({"x.npy": b"\x93NUMPY junk"})),
        ("t.npz", _pickled()),
        ("t.json", b'{"lst": 3, "polygraphy_class": "RunResults"}'),
        ("t.json", b'{"lst": [["r", 3]], "polygraphy_class": "RunResults"}'),
        ("t.json", b"[" * 10**5),
        ("t.json", b'{"x": {"array": 3, "polygraphy_class": "ndarray"}}'),
        ("t.json", b'[{"\\ud800": 3}]'),
        ("t.json", b"[3]"),
        ("t.json", b"1e999"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_holds_no_values_is_refused(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        (load_runs if name.endswith(".json") else load_npz)(path)


@given(st.data())
@settings(deadline=None, max_examples=examples(40))
def test_a_truncated_file_is_refused(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.npz"
        save_npz(path, {"x": np.arange(20)})
        content = bytearray(path.read_bytes())
        cut = data.draw(st.integers(1, len(content)))
        path.write_bytes(content[: len(content) - cut])
        with pytest.raises(UsageError, match="Cannot read"):
            load_npz(path)


@pytest.mark.parametrize("entries", [1, 30])
def test_a_small_file_that_becomes_large_is_refused_by_its_directory(
    tmp_path: Path, entries: int
) -> None:
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(entries):
            archive.writestr(f"x{number}.npy", bytes(0x123456))
    said = 0x123456.to_bytes(4, "little")
    promised = (0x80000000 // entries).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(said, promised))
    for read in (load_npz, load_runs):
        with pytest.raises(UsageError, match="bytes of compressed arrays become"):
            read(path)


BROKEN = [
    "'|V0', 'fortran_order': False, 'shape': (2, 3)",
    "'<U0', 'fortran_order': False, 'shape': (2,)",
    "[('a', '<f4')], 'fortran_order': False, 'shape': (6,)",
    "('<f4', (3,)), 'fortran_order': False, 'shape': (2,)",
    "'<M8[D]', 'fortran_order': False, 'shape': (3,)",
    "'|O', 'fortran_order': False, 'shape': (3,)",
    f"'<f4', 'fortran_order': False, 'shape': ({2**43},)",
    f"'<f4', 'fortran_order': False, 'shape': ({2**70}, 1)",
    f"'<f4', 'fortran_order': False, 'shape': ({2**40}, {2**40}, 0)",
    "'<f4', 'fortran_order': False, 'shape': (-6,)",
    "'<f4', 'fortran_order': False, 'shape': (2.0, 3)",
    "'<f99', 'fortran_order': False, 'shape': (6,)",
    "(" * 2000,
]


def npy(header: str) -> bytes:
    """Six numbers under a header that says what it likes."""
    text = f"{{'descr': {header}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 24


@pytest.mark.parametrize("header", BROKEN)
def test_a_header_that_promises_what_is_not_there(tmp_path: Path, header: str) -> None:
    """It is refused in both formats."""
    archive = tmp_path / "x.npz"
    text = tmp_path / "x.json"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.npy", npy(header))
    array = {"array": base64.b64encode(npy(header)).decode(), "polygraphy_class": "ndarray"}
    text.write_text(json.dumps([{"x": array}]))
    for path in (archive, text):
        with pytest.raises(UsageError, match=f"Cannot read {path}: "):
            [run.samples[0]["x"] for run in load_runs(path)]


# The reference's tensors on disk: what is written comes back, and nothing half-written does.


NUMBERS = hnp.arrays(
    st.one_of(
        hnp.floating_dtypes(),
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.boolean_dtypes(),
    ),
    SHAPES,
)


def write(folder: Path, arrays: dict[str, Any]) -> ActivationStore:
    write_store(folder, arrays)
    return ActivationStore(folder)


@given(st.dictionaries(st.text(), NUMBERS, max_size=4))
@settings(deadline=None, max_examples=examples(60))
def test_everything_comes_back(arrays: dict[str, NDArray[Any]]) -> None:
    with TemporaryDirectory() as folder:
        store = write(Path(folder), arrays)
        assert tuple(store) == tuple(arrays)
        assert len(store) == len(arrays)
        for name, values in arrays.items():
            native = values.dtype.newbyteorder("=")
            loaded = store[name]
            info = store.infos[name]
            assert name in store
            assert (info.name, info.shape, info.dtype) == (name, values.shape, native)
            assert (loaded.shape, loaded.dtype) == (values.shape, native)
            np.testing.assert_array_equal(loaded, values)
            assert type(loaded) is np.ndarray


def test_a_store_that_a_check_truncates_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path, {"x": np.arange(8.0)})
    os.truncate(tmp_path / "tensors.bin", 8)
    with pytest.raises(UnavailableError, match="truncated while they were in use"):
        store["x"]


def test_what_is_no_tensor_is_left_out(tmp_path: Path) -> None:
    things = {
        "x": np.zeros(1),
        "none": None,
        "sequence": [np.zeros(1)],
        "texts": np.array(["a"], object),
    }
    store = write(tmp_path, {**things, "date": np.array(["2020"], "datetime64[D]")})
    assert tuple(store) == ("x",)


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
    assert stats["nan"] == sum(map(math.isnan, numbers))
    assert stats["inf"] == sum(map(math.isinf, numbers))
    if finite:
        assert (stats["min"], stats["max"]) == (min(finite), max(finite))
        assert stats["absmax"] == max(map(abs, finite))
    else:
        assert all(math.isnan(stats[name]) for name in ("min", "max", "absmax"))


def test_stats_take_in_every_block_of_a_large_tensor() -> None:
    values = np.arange(3_000_000, dtype=np.float32) - 10
    assert tensor_stats(values) == {
        "min": -10,
        "max": 2_999_989,
        "absmax": 2_999_989,
        "nan": 0,
        "inf": 0,
    }
    values[-1] = np.nan
    assert tensor_stats(values) == {
        "min": -10,
        "max": 2_999_988,
        "absmax": 2_999_988,
        "nan": 1,
        "inf": 0,
    }


def test_an_unfinished_store_is_none(tmp_path: Path) -> None:
    write(tmp_path, {"old": np.zeros(3)})
    save_npz(tmp_path / "values.npz", {"new": np.zeros(1000)})
    values = NpzFile(tmp_path / "values.npz")
    (tmp_path / "values.npz").unlink()
    with pytest.raises(UsageError):
        write_store(tmp_path, values)
    with pytest.raises(UnavailableError, match="damaged"):
        ActivationStore(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("index.json", None),
        ("tensors.bin", None),
        ("tensors.bin", b"\0" * 799),
        *(("index.json", text) for text in (b"{", b"[]")),
    ],
)
def test_damage_is_told(name: str, content: bytes | None, tmp_path: Path) -> None:
    write(tmp_path, {"x": np.zeros(100)})
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunFolderError, match="damaged") as caught:
            ActivationStore(folder)
        assert str(folder) in str(caught.value)
