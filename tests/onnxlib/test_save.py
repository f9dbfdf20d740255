"""Writing a model where a user wants it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from cutting import assert_same, model_of, run, tensor_info
from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib import save
from bisect_trt.onnxlib.load import external_files, load_model, place_of
from bisect_trt.onnxlib.save import check_output, data_file, refer_to, said_beside, save_model, share_weights

FEEDS = {"x": np.ones((1, 30), np.float32)}


@pytest.fixture
def model() -> ModelProto:
    weight = np.random.default_rng(0).normal(size=(30, 30)).astype(np.float32)
    x, y = (tensor_info(name, TensorProto.FLOAT, [1, 30]) for name in "xy")
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [x], [y], {"w": weight})


@pytest.fixture
def parted(model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelProto, Path]:
    """The model with its weights in a run's folder, and that folder."""
    monkeypatch.setattr(save, "EMBED_LIMIT_BYTES", 0)
    folder = tmp_path / "run"
    folder.mkdir()
    copy = ModelProto()
    copy.CopyFrom(model)
    share_weights(copy, tmp_path / "none.onnx", folder)
    assert external_files(copy)
    return copy, folder


def test_weights_go_into_one_file_again(model: ModelProto, parted: tuple[ModelProto, Path], tmp_path: Path) -> None:
    proto, folder = parted
    before = proto.SerializeToString()
    save_model(proto, folder, tmp_path / "out.onnx")
    written = load_model(tmp_path / "out.onnx")
    assert not external_files(written)
    written.graph.initializer[0].ClearField("data_location")  # ONNX writes the default one out
    assert written == model
    assert proto.SerializeToString() == before
    assert {path.name for path in tmp_path.iterdir()} == {"out.onnx", "run"}


def test_large_weights_lie_beside_it(
    model: ModelProto, parted: tuple[ModelProto, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT_BYTES", 1000)
    proto, folder = parted
    out = tmp_path / "out.onnx"
    for _ in range(2):  # the second time over the first
        save_model(proto, folder, out)
        assert {path.name for path in tmp_path.iterdir()} == {"out.onnx", "out.onnx.data", "run"}
        assert data_file(out).stat().st_size == 3600
        assert list(external_files(load_model(out))) == ["out.onnx.data"]
        onnx.checker.check_model(str(out))
        assert_same(run(out, FEEDS), run(model, FEEDS))


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT8", "INT4"])
def test_large_weights_of_all_types_are_copied_from_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT_BYTES", 1000)
    rng, element = np.random.default_rng(0), TensorProto.DataType.Value(kind)
    model = model_of(
        [helper.make_node("Identity", ["x"], ["y"])], [tensor_info("x", 1, [1])], [tensor_info("y", 1, [1])], {}
    )
    size = {"INT4": 2000, "INT8": 4000}.get(kind, 8000)
    (tmp_path / "a.bin").write_bytes(rng.bytes(100 + size))
    (tmp_path / "b.bin").write_bytes(rng.bytes(size + 8))
    expected = {}
    for name, file, offset, says in (("p", "a.bin", 100, True), ("q", "b.bin", 0, False), ("r", "a.bin", 100, True)):
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
    places = {tensor.name: place_of(tensor) for tensor in written.graph.initializer if uses_external_data(tensor)}
    assert places.keys() == {"p", "q", "r", "s"}
    assert places["p"] == places["r"]
    data = (tmp_path / "out.onnx.data").read_bytes()
    assert {name: data[places[name].offset :][: places[name].length] for name in expected} == expected
    onnx.load(str(tmp_path / "out.onnx"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["out.json", "out.textproto", "out", "out.any"])
def test_the_suffix_says_the_format_as_when_it_is_read(model: ModelProto, tmp_path: Path, name: str) -> None:
    save_model(model, tmp_path, tmp_path / name)
    assert_same(run(onnx.load(str(tmp_path / name)), FEEDS), run(model, FEEDS))


def test_files_that_exist(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    check_output(out, overwrite=False)
    for file in (out, data_file(out)):
        file.touch()
        with pytest.raises(UsageError, match=f"{file} exists"):
            check_output(out, overwrite=False)
        check_output(out, overwrite=True)
        file.unlink()
    with pytest.raises(UsageError, match="is a folder"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(UsageError, match="there is no folder"):
        check_output(tmp_path / "none" / "out.onnx", overwrite=True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="permission denied"):
        check_output(tmp_path / "out.onnx", overwrite=False)


def large(folder: Path, size: int) -> ModelProto:
    """A model whose two weights of so many bytes lie in one file, the first at byte 100, the second right behind it."""
    x, y = (tensor_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], [x], [y], {})
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
    model, out = large(tmp_path, 5000), tmp_path / "out.onnx"
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
    model.graph.initializer.append(helper.make_tensor("r", TensorProto.FLOAT, [300], np.arange(300.0)))
    (tmp_path / "w.bin").write_bytes(bytes(10_100))
    save_model(model, tmp_path, out, beside=True)  # now there is as much inside
    assert list(external_files(load_model(out))) == ["out.onnx.data"]


def test_a_disk_without_room(tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT_BYTES", 1000)
    model = large(tmp_path, 1 << 20)
    with pytest.raises(UsageError, match=r"out\.onnx cannot be written: .*; make room or name another file\.$"):
        save_model(model, tmp_path, small_disk / "out.onnx")
    with pytest.raises(
        UsageError, match=rf"make room, or name a file in {tmp_path}, where the weights need no copy\.$"
    ):
        save_model(model, tmp_path, small_disk / "out.onnx", beside=True)
    assert not list(small_disk.iterdir())
