"""A model with notes is the same model to everything but viewers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import chain

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.save import check_annotated, write_annotated

NOTES = {0: {"verdict": "right"}, 2: {"verdict": "<wrong>", "error": "max error \u221e"}}


def notes(path: Path) -> dict[int, dict[str, str]]:
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    found = {place: {entry.key: entry.value for entry in node.metadata_props} for place, node in enumerate(nodes)}
    return {place: entries for place, entries in found.items() if entries}


def without_notes(path: Path) -> onnx.ModelProto:
    model = onnx.load(str(path), load_external_data=False)
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
    return model


def with_external_weights(folder: Path) -> Path:
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name=name) for name in ("a",)],
        "external",
        [info("x", TensorProto.FLOAT, [1, 64])],
        [info("y", TensorProto.FLOAT, [1, 64])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("suffix", ["onnx", "textproto"])
def test_only_the_notes_are_new(tmp_path: Path, suffix: str) -> None:
    model, out = chain(tmp_path / "model.onnx"), tmp_path / f"out.{suffix}"
    write_annotated(model, NOTES, out)
    assert notes(out) == NOTES
    assert without_notes(out) == onnx.load(str(model))
    onnx.checker.check_model(onnx.load(str(out)), full_check=True)


def test_external_weights_come_along(tmp_path: Path) -> None:
    model = with_external_weights(tmp_path / "here")
    out = tmp_path / "out.onnx"
    write_annotated(model, {0: {"verdict": "right"}}, out)
    (weight,) = onnx.load(str(out)).graph.initializer
    assert (numpy_helper.to_array(weight) == 1).all()
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.onnx", "weights.bin"]


def test_only_what_was_annotated_is_written_over(tmp_path: Path) -> None:
    model, out = chain(tmp_path / "model.onnx"), tmp_path / "out.onnx"
    check_annotated(out, model)
    write_annotated(model, NOTES, out)
    check_annotated(out, model)
    for path in (model, chain(tmp_path / "mine.onnx")):
        with pytest.raises(UsageError, match="was not written by --annotate"):
            check_annotated(path, model)
    (tmp_path / "text").write_text("mine")
    with pytest.raises(UsageError, match="was not written by --annotate"):
        check_annotated(tmp_path / "text", model)
    for path in (tmp_path, tmp_path / "nowhere" / "out.onnx"):
        with pytest.raises(UsageError, match="is a folder or lies in none"):
            check_annotated(path, model)
