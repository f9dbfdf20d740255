"""The IR version that a model needs: lowered where nothing in it is newer, never below what brought one of its parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from cutting import model_of, tensor_info
from onnx import ModelProto, TensorProto, helper

from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.onnxlib.load import needed_ir_version
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import QuietConsole

NEWER: dict[str, Callable[[ModelProto], object]] = {
    "quantization": lambda model: model.graph.quantization_annotation.add(tensor_name="x"),
    "sparse weight": lambda model: model.graph.sparse_initializer.add(),
    "training": lambda model: model.training_info.add(),
    "function": lambda model: model.functions.add(name="f", domain="mine"),
    "float8 in a body": lambda model: within(model).initializer.add(data_type=TensorProto.FLOAT8E5M2),
    "int4": lambda model: model.graph.initializer.add(data_type=TensorProto.INT4),
}


def within(model: ModelProto) -> onnx.GraphProto:
    """The body of a node that is itself in a body."""
    inner = helper.make_node("If", ["c"], [], then_branch=onnx.GraphProto())
    model.graph.node.append(helper.make_node("If", ["c"], [], then_branch=onnx.GraphProto(node=[inner])))
    body: onnx.GraphProto = model.graph.node[-1].attribute[0].g.node[0].attribute[0].g
    return body


@pytest.mark.parametrize("newer", NEWER)
def test_what_a_version_brought_keeps_the_models_own(newer: str) -> None:
    model = small(**{"": 13})
    NEWER[newer](model)
    assert needed_ir_version(model) == 10


def small(**opsets: int) -> ModelProto:
    ends = [tensor_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], ends[:1], ends[1:], ir_version=10)
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(domain.replace("_", "."), v) for domain, v in opsets.items())
    return model


@pytest.mark.parametrize(
    ("opsets", "needed"),
    [
        ({"": 13}, 7),
        ({"": 8}, 4),
        ({"": 18}, 8),
        ({"": 13, "com_microsoft": 1}, 7),
        ({"": 13, "ai_onnx_ml": 4}, 9),
        ({"": 13, "ai_onnx_ml": 99}, 10),
        ({"": 999}, 10),
        ({"": 21}, 10),
    ],
)
def test_an_operator_set_needs_what_it_came_with(opsets: dict[str, int], needed: int) -> None:
    """Of a set of ONNX's that is not known, nothing is; others say nothing."""
    assert needed_ir_version(small(**opsets)) == needed


def test_notes_of_nodes_and_a_version_of_tomorrow() -> None:
    """Runtimes pass over notes, which say nothing of what is computed."""
    model = small(**{"": 13})
    model.graph.node[0].metadata_props.add(key="namespace", value="net.layer")
    assert needed_ir_version(model) == 7
    model.ir_version = onnx.IR_VERSION + 1
    assert needed_ir_version(model) == onnx.IR_VERSION + 1


def test_before_version_4_an_initializer_means_something_else() -> None:
    model = small(**{"": 8})
    model.ir_version = 3
    assert needed_ir_version(model) == 3


@pytest.mark.skipif(onnx.IR_VERSION <= 10, reason="every ONNX Runtime takes what this onnx writes")
def test_a_version_that_the_reference_may_refuse_is_lowered(tmp_path: Path) -> None:
    model = small(**{"": 13})
    model.ir_version = onnx.IR_VERSION
    onnx.save(model, tmp_path / "model.onnx")
    with Subject(ModelSettings(tmp_path / "model.onnx"), Workspace(tmp_path / "run"), QuietConsole()) as subject:
        assert subject.reference.refused is None
        assert subject.original.proto.ir_version == subject.settings.load().ir_version == 7
        assert subject.network.proto.graph == model.graph
        assert "model.ir_version = 7" in subject.lower_ir


def test_a_version_that_older_releases_refuse_is_lowered(tmp_path: Path) -> None:
    model = small(**{"": 13})
    model.ir_version = onnx.IR_VERSION
    onnx.save(model, tmp_path / "model.onnx")
    older = ModelSettings(tmp_path / "model.onnx", older=True)
    with Subject(older, Workspace(tmp_path / "older"), QuietConsole()) as subject:
        assert f"run with IR version 7; older releases refuse the file's {onnx.IR_VERSION}" in (subject.lower_ir)
