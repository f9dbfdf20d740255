"""What ONNX Runtime is told beside its providers: each setting does something, and what it does not take is a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_proto, save_text
from conftest import CommandLine
from onnx import TensorProto, helper
from support import reproduced

from bisect_trt.errors import BisectError
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.onnxrt import OnnxRuntimeSettings
from bisect_trt.targets.runtime import Runtime

X = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)


def model(path: Path) -> Path:
    """A Transpose into a Gemm, which GemmTransposeFusion makes one node of, and a Relu, which extended ones fuse too."""
    body = "t = Transpose<perm = [1, 0]>(x) g = Gemm(t, w) y = Relu(g)"
    return save_text(path, "(float[3, 3] x) => (float[3, 3] y)", body, {"w": np.eye(3)}, opset=17)


def runs(path: Path, **own: Any) -> list[str]:
    """The operators that ONNX Runtime runs instead of the model's, by way of a session option that writes them."""
    written = path.with_suffix(".optimised.onnx")
    own["session_options"] = (
        *own.get("session_options", ()),
        ("optimized_model_filepath", str(written)),
    )
    session = Runtime(TargetSettings(own=OnnxRuntimeSettings(**own))).load(path)
    assert np.array_equal(session.run({"x": X})["y"], np.maximum(X.T, 0))
    return [node.op_type for node in onnx.load(written).graph.node]


def test_an_optimizer_is_left_out(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx")
    assert "Transpose" not in runs(path)
    assert "Transpose" in runs(path, disabled_optimizers=("GemmTransposeFusion",))


def test_attributes_and_entries_of_a_session(tmp_path: Path) -> None:
    options = [
        ("session.disable_prepacking", "1"),
        ("enable_mem_pattern", "off"),
        ("intra_op_num_threads", "1"),
    ]
    options += [
        ("execution_mode", "parallel"),
        ("execution_mode", "ORT_PARALLEL"),
        ("logid", "some: text"),
    ]
    assert runs(model(tmp_path / "m.onnx"), session_options=tuple(options)) == ["FusedGemm"]


@pytest.mark.parametrize(
    ("code", "own", "complaint"),
    [
        (
            "BT1005",
            {"session_options": {"nothing": "1"}},
            "option nothing: .* no such attribute; it has: .*enable_cpu_mem_arena, ",
        ),
        (
            "BT1005",
            {"session_options": {"add_initializer": "1"}},
            "option add_initializer: .* no such attribute",
        ),
        (
            "BT1002",
            {"session_options": {"enable_mem_pattern": "maybe"}},
            "enable_mem_pattern: it takes 1 or 0, not 'maybe'",
        ),
        ("BT1002", {"session_options": {"inter_op_num_threads": "x"}}, "it takes a whole number"),
        (
            "BT1002",
            {"session_options": {"execution_mode": "x"}},
            "it takes ORT_SEQUENTIAL or ORT_PARALLEL",
        ),
        (
            "BT1003",
            {
                "session_options": {
                    "session.intra_op_thread_affinities": "x",
                    "intra_op_num_threads": "2",
                }
            },
            "does not take session.intra_op_thread_affinities:x, intra_op_num_threads:2: .*; correct or drop it",
        ),
        ("BT1005", {"provider_options": {"device_id": "0"}}, "--provider-option device_id: "),
        (
            "BT2003",
            {"custom_op_libraries": ["/nowhere/a.so"]},
            "cannot load the custom-op library /nowhere/a.so: ",
        ),
        (
            "BT2003",
            {"custom_op_libraries": [__file__]},
            "cannot load the custom-op library .*test_ort_settings.py: ",
        ),
    ],
)
def test_what_it_does_not_take_is_no_failure_of_the_model(
    code: str, own: dict[str, Any], complaint: str
) -> None:
    given: Any = {
        name: tuple(each.items() if isinstance(each, dict) else each) for name, each in own.items()
    }
    with pytest.raises(BisectError, match=complaint) as refused:
        Runtime(TargetSettings(own=OnnxRuntimeSettings(**given)))
    assert refused.value.code == code


@pytest.mark.slow
def test_the_reference_has_the_custom_operators_too(cli: CommandLine) -> None:
    library = pytest.importorskip("onnxruntime_extensions").get_library_path()
    nodes = [
        helper.make_node("Inverse", ["x"], ["i"], domain="ai.onnx.contrib"),
        helper.make_node("Exp", ["i"], ["e"], name="big"),
        helper.make_node("Log", ["e"], ["y"]),
    ]
    x, y = ((name, TensorProto.FLOAT, (3, 3)) for name in "xy")
    path = save_proto("m.onnx", nodes, [x], [y], domains=["ai.onnx.contrib"])
    np.savez(
        "x.npz", x=np.diag([0.05, 0.5, 0.5]).astype(np.float32)
    )  # exp(20) is past fp16's range
    words = ("--onnxrt", "--fp16", "--load-inputs", "x.npz")
    assert "Inverse(-1) is not a registered function/op" in cli("diagnose", path, *words).err
    options = (
        "--custom-op-library",
        library,
        "--session-option",
        "session.disable_prepacking:1",
        "-o",
        "out",
    )
    ran = cli("diagnose", path, *words, *options).ended(0)
    assert "'big' fails alone (1-minimal)" in ran.out
    assert [each.name for each in Path("out/files").iterdir()] == [f"1-{Path(library).name}"]
    assert "MISMATCH e" in reproduced("out").out
