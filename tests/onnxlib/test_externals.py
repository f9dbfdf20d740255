"""Weights outside the model file: stored once, however many candidates name them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from cutting import assert_same, model_of, run, tensor_info
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bisect_trt.errors import UnavailableError
from bisect_trt.onnxlib import save
from bisect_trt.onnxlib.cut import cut
from bisect_trt.onnxlib.load import external_files, load_all_inside, load_model, read_weight
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import (
    WEIGHTS_FILE,
    inner_bytes,
    make_raw,
    save_model,
    share_weights,
)

SIZE = 20
ELEMENTS = [
    *("FLOAT", "DOUBLE", "FLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL"),
    *("COMPLEX64", "COMPLEX128"),
]


def network() -> ModelProto:
    """Two layers, their weights of more than 1024 bytes each, and a small one."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(SIZE, SIZE)).astype(np.float32) for name in ("w0", "w1")}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("MatMul", ["c", "w1"], ["y"]),
    ]
    x = tensor_info("x", TensorProto.FLOAT, [1, SIZE])
    y = tensor_info("y", TensorProto.FLOAT, [1, SIZE])
    return model_of(nodes, [x], [y], {**weights, "b": np.ones(SIZE, np.float32)})


FEEDS = {"x": np.linspace(-1, 1, SIZE, dtype=np.float32).reshape(1, SIZE)}


def in_files(folder: Path, layout: str) -> Path:
    """Write the model in one of the ways that exporters know."""
    folder.mkdir()
    model, path = network(), folder / "model.onnx"
    if layout == "one file":
        onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    elif layout == "a file each":
        onnx.save(model, str(path), save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    elif layout == "a folder":
        for tensor in model.graph.initializer:
            (folder / "weights").mkdir(exist_ok=True)
            (folder / "weights" / tensor.name).write_bytes(tensor.raw_data)
            save.refer_to(tensor, f"weights/{tensor.name}", 0, len(tensor.raw_data))
            tensor.ClearField("raw_data")
        path.write_bytes(model.SerializeToString())
    elif layout == "links":  # as a cache of downloads keeps them
        onnx.save(model, str(folder / "blob.onnx"), save_as_external_data=True, location="blob", size_threshold=0)
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
    share_weights(model, source, folder)
    return model


def check_cuts(model: ModelProto, folder: Path) -> None:
    """The whole and a part of a model whose weights lie in the folder compute what they should."""
    whole = Network(model)
    for number, chosen in enumerate([range(3), [2]]):
        piece = cut(whole, chosen, {}, stored=lambda name: TensorProto(name=name))
        path = folder / f"{number}.onnx"
        path.write_bytes(piece.proto.SerializeToString())
        onnx.checker.check_model(str(path))
        assert_same(run(path, dict.fromkeys(piece.inputs, FEEDS["x"])), run_inside(chosen))


def run_inside(chosen: object) -> dict[str, object]:
    """The same from the model with its weights inside."""
    model = network()
    if chosen == [2]:
        del model.graph.node[:2]
        model.graph.input[0].name = "c"
        return run(model, {"c": FEEDS["x"]})
    return run(model, FEEDS)


@pytest.mark.parametrize("layout", ["one file", "a file each", "a folder", "links", "inside"])
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_cuts_find_their_weights(tmp_path: Path, layout: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "EMBED_LIMIT_BYTES", limit)
    source = in_files(tmp_path / "source", layout)
    before = {path: path.read_bytes() for path in source.parent.rglob("*") if path.is_file()}
    model = shared(source, tmp_path / "run")
    check_cuts(model, tmp_path / "run")
    assert {path: path.read_bytes() for path in source.parent.rglob("*") if path.is_file()} == before
    moved = layout == "inside" and limit == 0
    assert (tmp_path / "run" / WEIGHTS_FILE).exists() == moved
    if moved:
        # Small ones stay: a parser may want to see their values.
        outside = [tensor.name for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
        assert outside == ["w0", "w1"]
        assert len(model.SerializeToString()) < 2000
    # ONNX's loader refuses weights that are a link.
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in (tmp_path / "run").rglob("*.*"))


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

    body = helper.make_graph([constant("in a body")], "body", [], [tensor_info("in a body", TensorProto.FLOAT, [3])])
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "F", [], ["in a function"], [constant("in a function")], opsets)
    nodes = [constant("in a node"), helper.make_node("If", ["t"], ["y"], then_branch=body, else_branch=body)]
    model = model_of(nodes, [], ["y"], {"t": np.array(True)}, functions=[function])
    assert external_files(model) == {"in a node": 20, "in a body": 20, "in a function": 20}


@pytest.mark.parametrize("states_length", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_a_weight_is_read_the_same_however_its_file_lies(tmp_path: Path, states_length: bool, linked: bool) -> None:
    values = np.arange(3, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"before" + values.tobytes() + b"after")
    if linked:
        os.link(tmp_path / "w.bin", tmp_path / "second name")
    model = ModelProto()
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[3])
    save.refer_to(tensor, "w.bin", 6, 12)
    if not states_length:
        del tensor.external_data[2]
    assert external_files(model) == {"w.bin": 18}
    assert read_weight(tensor, tmp_path).tolist() == [0, 1, 2]
    save_model(model, tmp_path, tmp_path / "out.onnx")
    assert numpy_helper.to_array(onnx.load(str(tmp_path / "out.onnx")).graph.initializer[0]).tolist() == [0, 1, 2]
    load_all_inside(model, tmp_path)
    assert numpy_helper.to_array(tensor).tolist() == [0, 1, 2]


@pytest.mark.parametrize("entry", ["", "x", "-1", "1.5", " "])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_a_weight_that_does_not_say_where_it_is_in_its_file(key: str, entry: str) -> None:
    model = onnx.ModelProto()
    tensor = model.graph.initializer.add(name="w", data_location=TensorProto.EXTERNAL)
    for each, value in (("location", "w.bin"), (key, entry)):
        tensor.external_data.add(key=each, value=value)
    with pytest.raises(UnavailableError, match="the external weight 'w' names no valid file and range"):
        external_files(model)
