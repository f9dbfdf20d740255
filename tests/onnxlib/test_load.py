"""Reading a model, or one sentence on why it cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cutting import model_of, tensor_info
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.load import load_model
from bisect_trt.onnxlib.save import refer_to


def small() -> ModelProto:
    x = tensor_info("x", TensorProto.FLOAT, [2, 3])
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    return model_of(nodes, [x], [tensor_info("y", TensorProto.FLOAT, [2, 3])], {"w": np.ones(3, np.float32)})


def refusal(path: Path) -> str:
    with pytest.raises(UnavailableError) as error:
        load_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_it_reads_what_onnx_writes(tmp_path: Path) -> None:
    # By its suffix ONNX also writes JSON and protobuf's text format.
    for name in ("model.onnx", "model", "model.pb", "model.json", "model.textproto"):
        onnx.save(small(), str(tmp_path / name))
        assert load_model(tmp_path / name) == small()


IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@IN_A_FOLDER
@given(end=st.integers(0, len(small().SerializeToString()) - 1))
def test_a_model_cut_short(tmp_path: Path, end: int) -> None:
    path = tmp_path / "short.onnx"
    path.write_bytes(small().SerializeToString()[:end])
    refusal(path)


@IN_A_FOLDER
@given(
    content=st.binary() | st.text().map(str.encode), suffix=st.sampled_from([".onnx", ".json", ".textproto", ".txt"])
)
def test_another_kind_of_file(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"other{suffix}"
    path.write_bytes(content)
    refusal(path)


def test_no_model(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.onnx")
    assert "folder" in refusal(tmp_path)
    (tmp_path / "empty.onnx").touch()
    assert "is empty" in refusal(tmp_path / "empty.onnx")
    empty = small()
    del empty.graph.node[:]
    onnx.save(empty, str(tmp_path / "nothing.onnx"))
    assert "no nodes" in refusal(tmp_path / "nothing.onnx")


def external(path: Path, location: str = "w.bin", offset: str = "0", length: str = "12") -> Path:
    model = small()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    refer_to(weight, location, 0, 0)
    for entry, value in zip(weight.external_data[1:], (offset, length), strict=True):
        entry.value = value
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    path = external(tmp_path / "model.onnx")
    assert "w.bin, which does not exist" in refusal(path)
    (tmp_path / "w.bin").write_bytes(bytes(11))
    assert "11 bytes where 12 are needed" in refusal(path)
    (tmp_path / "w.bin").write_bytes(bytes(12))
    assert load_model(path).graph.initializer[0].external_data[0].value == "w.bin"
    assert "15 bytes" not in refusal(external(path, offset="4"))


@pytest.mark.parametrize("location", ["/etc/hostname", "../w.bin", "sub/../../w.bin"])
def test_weights_outside_the_folder(tmp_path: Path, location: str) -> None:
    with pytest.raises(UsageError, match="outside its own folder"):
        load_model(external(tmp_path / "model.onnx", location))


@pytest.mark.parametrize("link", ["a link to a file", "a link to a folder", "a link to a link"])
def test_weights_behind_a_link_out_of_the_folder(tmp_path: Path, link: str) -> None:
    folder, secret = tmp_path / "folder", tmp_path / "elsewhere" / "w.bin"
    folder.mkdir()
    secret.parent.mkdir()
    secret.write_bytes(bytes(12))
    if link == "a link to a file":
        (folder / "w.bin").symlink_to(secret)
    elif link == "a link to a folder":
        (folder / "sub").symlink_to(secret.parent)
    else:
        (tmp_path / "w.bin").symlink_to(secret)
        (folder / "w.bin").symlink_to("../w.bin")
    path = external(folder / "model.onnx", "sub/w.bin" if link == "a link to a folder" else "w.bin")
    with pytest.raises(UsageError, match=r"outside its own folder \(.*/elsewhere/w\.bin\)"):
        load_model(path)
    # The user may name another folder; it is that which counts then.
    with pytest.raises(UsageError, match="outside its own folder"):
        load_model(path, folder)
    assert load_model(external(folder / "model.onnx"), secret.parent)


def test_a_model_that_is_a_link_itself_has_its_weights_where_it_leads(tmp_path: Path) -> None:
    """As a cache of downloads keeps both."""
    for name in ("blobs", "snapshot"):
        (tmp_path / name).mkdir()
    (tmp_path / "blobs" / "1234").write_bytes(bytes(12))
    external(tmp_path / "blobs" / "5678")
    (tmp_path / "snapshot" / "model.onnx").symlink_to("../blobs/5678")
    (tmp_path / "snapshot" / "w.bin").symlink_to("../blobs/1234")
    assert load_model(tmp_path / "snapshot" / "model.onnx")


@pytest.mark.parametrize("location", ["w" * 300, "circle", "w.bin\0", "."])
def test_weights_at_no_file_that_can_be(tmp_path: Path, location: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert refusal(external(tmp_path / "model.onnx", location)).endswith(".")
