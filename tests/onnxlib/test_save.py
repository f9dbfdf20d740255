"""Writing a model where a user wants it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import ort_run, proto_of, tensor_info, text_model
from cutting import activations, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib import save
from bisect_trt.onnxlib.cut import cut
from bisect_trt.onnxlib.load import external_files, load_model, place_of
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import (
    WEIGHTS_FILE,
    check_output,
    data_file,
    inner_bytes,
    make_raw,
    refer_to,
    said_beside,
    save_model,
    share_weights,
)

ONES = {"x": np.ones((1, 30), np.float32)}


@pytest.fixture
def model() -> ModelProto:
    weight = np.random.default_rng(0).normal(size=(30, 30))
    return text_model("(float[1, 30] x) => (float[1, 30] y)", "y = MatMul(x, w)", {"w": weight})


@pytest.fixture
def parted(
    model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModelProto, Path]:
    """The model with its weights in a run's folder, and that folder."""
    monkeypatch.setattr(save, "EMBED_LIMIT_BYTES", 0)
    folder = tmp_path / "run"
    folder.mkdir()
    copy = ModelProto()
    copy.CopyFrom(model)
    share_weights(copy, tmp_path, folder)
    assert external_files(copy)
    return copy, folder


def test_weights_go_into_one_file_again(
    model: ModelProto, parted: tuple[ModelProto, Path], tmp_path: Path
) -> None:
    proto, folder = parted
    before = proto.SerializeToString()
    save_model(proto, folder, tmp_path / "out.onnx")
    written = load_model(tmp_path / "out.onnx")
    assert not external_files(written)
    written.graph.initializer[0].ClearField("data_location")  # ONNX writes the default one out
    assert written == model
    assert proto.SerializeToString() == before
    assert {path.name for path in tmp_path.iterdir()} == {"out.onnx", "run"}


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT8", "INT4"])
def test_large_weights_of_all_types_are_copied_from_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT_BYTES", 1000)
    rng = np.random.default_rng(0)
    element = TensorProto.DataType.Value(kind)
    model = text_model("(float[1] x) => (float[1] y)", "y = Identity(x)")
    size = {"INT4": 2000, "INT8": 4000}.get(kind, 8000)
    (tmp_path / "a.bin").write_bytes(rng.bytes(100 + size))
    (tmp_path / "b.bin").write_bytes(rng.bytes(size + 8))
    expected = {}
    for name, file, offset, says in (
        ("p", "a.bin", 100, True),
        ("q", "b.bin", 0, False),
        ("r", "a.bin", 100, True),
    ):
        tensor = TensorProto(name=name, data_type=element, dims=[40, 100])
        refer_to(tensor, file, offset, size)
        if not says:  # then it is as long as its elements take
            del tensor.external_data[-1]
        model.graph.initializer.append(tensor)
        expected[name] = (tmp_path / file).read_bytes()[offset : offset + size]
    inner = helper.make_tensor("s", TensorProto.FLOAT, [300], np.arange(300.0))
    small = helper.make_tensor("t", TensorProto.INT64, [2], [3, 4])
    model.graph.initializer.extend([inner, small])
    before = model.SerializeToString()
    save_model(model, tmp_path, tmp_path / "out.onnx")
    assert model.SerializeToString() == before
    written = onnx.load(str(tmp_path / "out.onnx"), load_external_data=False)
    assert list(external_files(written)) == ["out.onnx.data"]
    places = {
        tensor.name: place_of(tensor)
        for tensor in written.graph.initializer
        if uses_external_data(tensor)
    }
    assert places.keys() == {"p", "q", "r", "s"}
    assert places["p"] == places["r"]
    data = (tmp_path / "out.onnx.data").read_bytes()
    assert {
        name: data[places[name].offset :][: places[name].length] for name in expected
    } == expected
    onnx.load(str(tmp_path / "out.onnx"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["out.json", "out.textproto", "out", "out.any"])
def test_the_suffix_says_the_format_as_when_it_is_read(
    model: ModelProto, tmp_path: Path, name: str
) -> None:
    save_model(model, tmp_path, tmp_path / name)
    assert_same(ort_run(onnx.load(str(tmp_path / name)), ONES), ort_run(model, ONES))


def test_the_file_of_the_weights_is_not_written_over_either(tmp_path: Path) -> None:
    data_file(tmp_path / "out.onnx").touch()
    with pytest.raises(UsageError, match=r"out\.onnx\.data exists"):
        check_output(tmp_path / "out.onnx", overwrite=False)
    check_output(tmp_path / "out.onnx", overwrite=True)


def large(folder: Path, size: int) -> ModelProto:
    """A model whose two weights of so many bytes lie in one file, the first at byte 100, the second right behind it."""
    model = text_model("(float[1] x) => (float[1] y)", "y = Identity(x)")
    (folder / "w.bin").write_bytes(os.urandom(100 + 2 * size))
    for place, name in enumerate("pq"):
        tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[size])
        refer_to(tensor, "w.bin", 100 + place * size, size)
        model.graph.initializer.append(tensor)
    return model


def test_weights_stay_where_they_are_if_that_is_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT_BYTES", 1000)
    model = large(tmp_path, 5000)
    out = tmp_path / "out.onnx"
    save_model(model, tmp_path, out, beside=True)
    assert load_model(out).graph.initializer == model.graph.initializer
    assert {path.name for path in tmp_path.iterdir()} == {"out.onnx", "w.bin"}
    assert said_beside(out) == "its weights stay in 'w.bin' beside it, which it needs as they are"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    save_model(model, tmp_path, elsewhere / "out.onnx", beside=True)
    assert said_beside(elsewhere / "out.onnx") is None
    (tmp_path / "w.bin").unlink()
    onnx.load(str(elsewhere / "out.onnx"))
    model.graph.initializer.append(
        helper.make_tensor("r", TensorProto.FLOAT, [300], np.arange(300.0))
    )
    (tmp_path / "w.bin").write_bytes(bytes(10_100))
    save_model(model, tmp_path, out, beside=True)  # now there is as much inside
    assert list(external_files(load_model(out))) == ["out.onnx.data"]


def test_a_disk_without_room(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT_BYTES", 1000)
    model = large(tmp_path, 1 << 20)
    with pytest.raises(
        UsageError, match=r"out\.onnx cannot be written: .*; make room or name another file\.$"
    ):
        save_model(model, tmp_path, small_disk / "out.onnx")
    with pytest.raises(
        UsageError,
        match=rf"make room, or name a file in {tmp_path}, where the weights need no copy\.$",
    ):
        save_model(model, tmp_path, small_disk / "out.onnx", beside=True)
    assert not list(small_disk.iterdir())


# Weights outside the model file: stored once, however many candidates name them.


SIZE = 20
ELEMENTS = [
    *(
        "FLOAT",
        "DOUBLE",
        "FLOAT16",
        "INT8",
        "UINT8",
        "INT16",
        "UINT16",
        "INT32",
        "UINT32",
        "INT64",
        "UINT64",
        "BOOL",
    ),
    *("COMPLEX64", "COMPLEX128"),
]


def network() -> ModelProto:
    """Two layers, their weights of more than 1024 bytes each, and a small one."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(SIZE, SIZE)) for name in ("w0", "w1")} | {"b": np.ones(SIZE)}
    ends = f"(float[1, {SIZE}] x) => (float[1, {SIZE}] y)"
    return text_model(ends, "a = MatMul(x, w0) c = Add(a, b) y = MatMul(c, w1)", weights)


FEEDS = {"x": np.linspace(-1, 1, SIZE, dtype=np.float32).reshape(1, SIZE)}


def in_files(folder: Path, layout: str) -> Path:
    """Write the model in one of the ways that exporters know."""
    folder.mkdir()
    model = network()
    path = folder / "model.onnx"
    if layout == "one file":
        onnx.save(
            model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0
        )
    elif layout == "a file each":
        onnx.save(
            model,
            str(path),
            save_as_external_data=True,
            all_tensors_to_one_file=False,
            size_threshold=0,
        )
    elif layout == "a folder":
        for tensor in model.graph.initializer:
            (folder / "weights").mkdir(exist_ok=True)
            (folder / "weights" / tensor.name).write_bytes(tensor.raw_data)
            save.refer_to(tensor, f"weights/{tensor.name}", 0, len(tensor.raw_data))
            tensor.ClearField("raw_data")
        path.write_bytes(model.SerializeToString())
    elif layout == "links":  # as a cache of downloads keeps them
        onnx.save(
            model,
            str(folder / "blob.onnx"),
            save_as_external_data=True,
            location="blob",
            size_threshold=0,
        )
        model = onnx.load(str(folder / "blob.onnx"), load_external_data=False)
        for tensor in model.graph.initializer:
            tensor.external_data[0].value = "model.onnx_data"
        path.write_bytes(model.SerializeToString())
        (folder / "model.onnx_data").symlink_to("blob")
    else:
        onnx.save(model, str(path))
    return path


def shared(source: Path, folder: Path) -> ModelProto:
    folder.mkdir()
    model = load_model(source)
    share_weights(model, source.parent, folder)
    return model


def check_cuts(model: ModelProto, folder: Path) -> None:
    """The whole and a part of a model whose weights lie in the folder compute what they should."""
    whole = Network(model)
    values = activations(network(), FEEDS)
    for number, chosen in enumerate([range(3), [2]]):
        piece = cut(whole, chosen, {}, stored=lambda name: TensorProto(name=name))
        path = folder / f"{number}.onnx"
        path.write_bytes(piece.proto.SerializeToString())
        onnx.checker.check_model(str(path))
        fed = {name: values[name] for name in piece.inputs}
        assert_same(ort_run(path, fed), {name: values[name] for name in piece.outputs})


@pytest.mark.parametrize("layout", ["one file", "a file each", "a folder", "links", "inside"])
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_cuts_find_their_weights(
    tmp_path: Path, layout: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "EMBED_LIMIT_BYTES", limit)
    source = in_files(tmp_path / "source", layout)
    before = {path: path.read_bytes() for path in source.parent.rglob("*") if path.is_file()}
    model = shared(source, tmp_path / "run")
    check_cuts(model, tmp_path / "run")
    assert {
        path: path.read_bytes() for path in source.parent.rglob("*") if path.is_file()
    } == before
    moved = layout != "inside" or limit == 0
    assert (tmp_path / "run" / WEIGHTS_FILE).exists() == moved
    if moved:
        # Small ones stay: a parser may want to see their values.
        outside = [
            tensor.name
            for tensor in model.graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
        ]
        assert outside == ["w0", "w1"]
        assert len(model.SerializeToString()) < 2000
    # ONNX's loader refuses weights that are a link.
    assert not any(
        path.is_symlink() or path.stat().st_nlink > 1 for path in (tmp_path / "run").rglob("*.*")
    )


@settings(deadline=None)
@given(st.sampled_from(ELEMENTS), st.lists(st.integers(0, 255), max_size=8))
def test_bytes_say_what_the_numbers_said(element: str, numbers: list[int]) -> None:
    kind = TensorProto.DataType.Value(element)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = np.array(numbers, np.uint8).astype(dtype)
    if dtype.kind in "if":
        values = values - dtype.type(100)  # negative ones too
    tensor = helper.make_tensor("t", kind, values.shape, values)
    assert not tensor.HasField("raw_data")
    assert inner_bytes(tensor) == values.nbytes
    make_raw(tensor)
    assert numpy_helper.to_array(tensor).tobytes() == values.tobytes()
    if numbers:
        assert tensor == numpy_helper.from_array(values, "t")
    once = tensor.SerializeToString()
    make_raw(tensor)
    assert tensor.SerializeToString() == once


@pytest.mark.parametrize("element", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_types_that_numpy_lacks(element: str) -> None:
    pytest.importorskip("ml_dtypes")  # without, ONNX says float32 or int8 for them
    kind = TensorProto.DataType.Value(element)
    tensor = helper.make_tensor("t", kind, [6], [1, 2, 3, 1, 0, 2])
    assert not tensor.HasField("raw_data")
    wanted = numpy_helper.to_array(tensor)
    size = inner_bytes(tensor)
    make_raw(tensor)
    assert len(tensor.raw_data) == size
    assert numpy_helper.to_array(tensor).tobytes() == wanted.tobytes()


def test_tensors_within_nodes_bodies_and_functions_are_found() -> None:
    def constant(location: str) -> onnx.NodeProto:
        tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[3])
        save.refer_to(tensor, location, 8, 12)
        return helper.make_node("Constant", [], [location], value=tensor)

    body = helper.make_graph(
        [constant("in a body")], "body", [], [tensor_info("in a body", TensorProto.FLOAT, [3])]
    )
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "mine", "F", [], ["in a function"], [constant("in a function")], opsets
    )
    nodes = [
        constant("in a node"),
        helper.make_node("If", ["t"], ["y"], then_branch=body, else_branch=body),
    ]
    model = proto_of(nodes, [], ["y"], {"t": np.array(True)}, functions=[function])
    assert external_files(model) == {"in a node": 20, "in a body": 20, "in a function": 20}


@pytest.mark.parametrize("entry", ["", "x", "-1", "1.5", " "])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_a_weight_that_does_not_say_where_it_is_in_its_file(key: str, entry: str) -> None:
    model = onnx.ModelProto()
    tensor = model.graph.initializer.add(name="w", data_location=TensorProto.EXTERNAL)
    for each, value in (("location", "w.bin"), (key, entry)):
        tensor.external_data.add(key=each, value=value)
    with pytest.raises(
        UnavailableError, match="the external weight 'w' names no valid file and range"
    ):
        external_files(model)
