"""Which dimensions depend on those of the inputs, and the ranges that they have over a target's profile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bisect_trt.commands.shapes import free, free_symbols
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.options.shared import Data
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import QuietConsole
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings

PROFILE = TargetSettings(
    "trt",
    own=TrtSettings(min_shapes=(("x", (1, 3, 4)),), opt_shapes=(("x", (2, 3, 4)),), max_shapes=(("x", (8, 3, 4)),)),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x [n, 3, k] to rows [3n, k], to the sum over n, to a slice whose end does not depend on either."""
    nodes = [
        helper.make_node("Reshape", ["x", "pair"], ["rows"], name="rows"),
        helper.make_node("ReduceSum", ["rows", "zero"], ["total"], keepdims=0, name="total"),
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=0, name="twice"),
        helper.make_node("Relu", ["twice"], ["y"], name="relu"),
    ]
    weights = [numpy_helper.from_array(np.array(value), name) for name, value in (("pair", [-1, 4]), ("zero", [0]))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 4])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "total")]
    graph = helper.make_graph(nodes, "g", [x], ends, weights)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    return path


def test_shapes_and_ranges_are_those_of_reference_runs(model: Path, tmp_path: Path) -> None:
    settings = ModelSettings(model, Data({"x": (5, 3, 4)}))
    with Subject(settings, Workspace(tmp_path / "run"), QuietConsole()) as subject:
        symbols = free_symbols(subject, None)
        assert symbols == {"n": [("x", 0)]}
        freed = free(subject, symbols, None)
        shapes = {name: shape for name, shape in freed.shapes.items() if name != "y"}
        assert shapes["x"] == ("n", 3, 4)
        assert [isinstance(dim, str) for dim in shapes["rows"]] == [True, False]
        assert shapes["rows"][0] != "n" != shapes["twice"][0]
        assert "total" not in freed.shapes
        assert free_symbols(subject, PROFILE) == {"n": [("x", 0)]}
        with_profile = free(subject, symbols, PROFILE)
        assert with_profile.ranges["x"] == ((1, 3, 4), (2, 3, 4), (8, 3, 4))
        assert with_profile.ranges["rows"] == ((3, 4), (6, 4), (24, 4))
        subject.free(with_profile)
        relu = next(
            unit for unit in subject.units.searched if subject.network.nodes[subject.network.order[unit]].name == "relu"
        )
        piece = subject.cut(frozenset({relu}))
        assert piece.inputs == ("twice",)
        assert piece.target is not None
        own = piece.target.of(TrtSettings)
        assert (own.min_shapes, own.opt_shapes, own.max_shapes) == (
            (("twice", (2, 3, 4)),),
            (("twice", (4, 3, 4)),),
            (("twice", (16, 3, 4)),),
        )
