"""The same through the command line, where models meet the reference and real checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from cutting import model_of, tensor_info
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support import has, script

from bisect_trt.onnxlib import save
from bisect_trt.onnxlib.load import external_files
from bisect_trt.onnxlib.save import WEIGHTS_FILE

FLOAT = TensorProto.FLOAT


def node(op: str, reads: str, makes: str) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), [makes], name=f"<{makes}>")


def reduce(cli: CommandLine, model: ModelProto, tag: str, *options: str) -> tuple[ModelProto, str]:
    """What a check leaves that fails while a node is there, and the warnings."""
    onnx.save(model, "model.onnx")
    check = "./" + script(Path("check"), f"{has(f'<{tag}>')} && exit 1; exit 0")
    ran = cli("reduce", "model.onnx", "-o", "out.onnx", "--overwrite", *options, "--check", check, "{model}")
    assert ran.status == 0, ran
    onnx.checker.check_model("out.onnx", full_check=True)
    return onnx.load("out.onnx"), ran.err


def tags(model: ModelProto) -> list[str]:
    return [each.name.strip("<>") for each in model.graph.node]


def free() -> ModelProto:
    inputs = [tensor_info("x", FLOAT, ["batch", 3]), tensor_info("z", FLOAT, ["batch", None])]
    return model_of([node("Relu", "x", "a"), node("Add", "a z", "y")], inputs, [tensor_info("y", FLOAT, None)])


def input_shapes(model: ModelProto) -> dict[str, list[int]]:
    return {v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.input}


def test_free_dimensions_without_values(cli: CommandLine) -> None:
    reduced, warnings = reduce(cli, free(), "a", "--no-shrink")
    assert input_shapes(reduced) == {"x": [1, 3]}
    assert "'x' has free dimensions; [1, 3] is used" in warnings
    assert "'z' has free dimensions; [1, 1] is used" in warnings
    # A name stands for one size, so it is given once.
    reduced, warnings = reduce(cli, free(), "a", "--no-shrink", "--input-shapes", "z:[4,3]")
    assert input_shapes(reduced) == {"x": [4, 3]}
    assert warnings == ""


@pytest.mark.parametrize("kept", ["a", "b", "y"])
def test_large_weights_are_shared_by_all_candidates(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setattr(save, "EMBED_LIMIT_BYTES", 0)
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(30, 30)).astype(np.float32) for name in ("v", "w")}
    nodes = [node("MatMul", "x v", "a"), node("Relu", "a", "b"), node("MatMul", "b w", "y")]
    ends = [tensor_info(name, FLOAT, [1, 30]) for name in ("x", "y")]
    reduced, _ = reduce(cli, model_of(nodes, ends[:1], ends[1:], weights), kept, "--no-shrink")
    assert tags(reduced) == [kept]
    assert not external_files(reduced)
    used = {"a": "v", "y": "w"}.get(kept)
    assert [tensor.name for tensor in reduced.graph.initializer] == ([used] if used else [])
    for tensor in reduced.graph.initializer:
        assert numpy_helper.to_array(tensor).tobytes() == weights[tensor.name].tobytes()
    (stored,) = here.rglob(WEIGHTS_FILE)
    assert stored.parent.name == "candidates"


def test_nodes_that_only_make_weights_end_as_initializers(cli: CommandLine) -> None:
    half = np.array([0.5, 1.5], np.float32)
    nodes = [
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(half)),
        node("Exp", "half", "e"),
        node("ConstantOfShape", "two", "zeros"),
        node("Add", "e zeros", "w"),
        node("Add", "x w", "a"),
        node("Neg", "a", "y"),
    ]
    ends = [tensor_info(name, FLOAT, [2]) for name in ("x", "y")]
    model = model_of(nodes, ends[:1], ends[1:], {"two": np.array([2])})
    reduced, _ = reduce(cli, model, "a", "--no-shrink")
    assert tags(reduced) == ["a"]
    (weight,) = reduced.graph.initializer
    assert weight.name == "w"
    np.testing.assert_allclose(numpy_helper.to_array(weight), np.exp(half), rtol=1e-6)
    # Where the failure needs one of them, that is what is left.
    assert tags(reduce(cli, model, "e", "--no-shrink")[0]) == ["e"]
