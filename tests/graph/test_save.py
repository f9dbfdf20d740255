"""Writing a model where a user wants it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from cutting import assert_same, model_of, run, tensor_info
from onnx import ModelProto, TensorProto, helper

from bisect_trt.errors import UsageError
from bisect_trt.graph import externals, save
from bisect_trt.graph.externals import external_files, share_weights
from bisect_trt.graph.load import load_model
from bisect_trt.graph.save import check_output, data_file, save_model

FEEDS = {"x": np.ones((1, 30), np.float32)}


@pytest.fixture
def model() -> ModelProto:
    weight = np.random.default_rng(0).normal(size=(30, 30)).astype(np.float32)
    x, y = (tensor_info(name, TensorProto.FLOAT, [1, 30]) for name in "xy")
    return model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [x], [y], {"w": weight})


@pytest.fixture
def parted(model: ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelProto, Path]:
    """The model with its weights in a run's folder, and that folder."""
    monkeypatch.setattr(externals, "EMBED_LIMIT_BYTES", 0)
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


def test_it_cannot_be_written_after_all(model: ModelProto, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        save_model(model, tmp_path, tmp_path / "gone" / "out.onnx")
    (tmp_path / "way").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        save_model(model, tmp_path, tmp_path / "way")
    assert {path.name for path in tmp_path.iterdir()} == {"way"}
