"""Models built by a real TensorRT builder, which needs no GPU: that of TensorRT-RTX, whose API is TensorRT's.

It is not installed by default: ``pip install tensorrt-rtx-cu12-libs tensorrt-rtx-cu12-bindings``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import overflowing
from trt_standin import plain, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.config import check_settings, network_inputs
from bisect_trt.targets.trt.engine import Origins
from bisect_trt.targets.trt.log import Log
from bisect_trt.targets.trt.runner import Built, TensorRt, build_engine

rtx = pytest.importorskip("tensorrt_rtx_bindings")
pytestmark = pytest.mark.filterwarnings("ignore:.*TensorRT-RTX:DeprecationWarning")
X = {"x": np.ones((2, 6), np.float32)}
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class RtxBuilder:
    """A builder for one kind of GPU, as no GPU is here to be asked."""

    def __init__(self, logger: Any) -> None:
        self._builder = rtx.Builder(logger)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def create_builder_config(self) -> Any:
        config = self._builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(rtx.ComputeCapability.SM89, 0)
        return config


@pytest.fixture(scope="module")
def process() -> TensorRt:
    rtx.__version__ = "11.4.0"  # its API is of that version
    log = Log()
    logger = log.make_logger(rtx)
    no_gpu: Any = None
    return TensorRt(rtx, log, logger, RtxBuilder(logger), None, no_gpu)


def build(process: TensorRt, path: Path, settings: TargetSettings, feed: Any = None) -> Built:
    target, facts = settings.target, {"lowers_by": "cast"}
    lowered = target.lower(settings, path, facts)
    assert lowered is not None
    hints = {**target.hints(settings, lowered, path, facts), "content": lowered.SerializeToString()}
    check_settings(process.trt, plain(settings))
    built = build_engine(process, plain(settings), path, feed or {}, hints)
    assert len(memoryview(built.plan)) > 1000
    return built


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *weights: Any) -> Path:
    given, made = ([helper.make_tensor_value_info(*each) for each in some] for some in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", given, made, list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_shape_input_is_built_in(process: TensorRt, tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "size"], ["r"], name="r"), helper.make_node("Softmax", ["r"], ["y"])]
    ends = [("x", FLOAT, [2, 6]), ("size", INT64, [2])], [("y", FLOAT, ["a", "b"])]
    path = save(tmp_path / "m.onnx", nodes, *ends)
    built = build(process, path, trt_target(), {**X, "size": np.array([3, 4])})
    network = built.parsed.network
    assert [(each.name, tuple(each.shape)) for each in network_inputs(network)] == [("x", (2, 6))]
    assert tuple(network.get_output(0).shape) == (3, 4)
    assert set(built.parsed.places()) == {0, 1}


def test_a_lowered_model_is_built_and_traced_back(process: TensorRt, tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx", 1, 1)
    built = build(process, path, trt_target("fp16", keep=("big_out",)))
    origins, original = Origins.of(built.parsed), onnx.load(path)
    made = {name for place in range(len(built.parsed.nodes)) for name in origins.tensors(place)}
    assert made == {name for node in original.graph.node for name in node.output}
    assert {place for place in built.parsed.places() if place is not None} == set(range(len(built.parsed.nodes)))


@pytest.mark.parametrize(
    "own",
    [
        {"builder_flags": ("STRICT_NANS", "native_instancenorm"), "tactic_sources": ()},
        {"builder_settings": (("max_aux_streams", "0"), ("tiling_optimization_level", "fast"))},
        {"builder_settings": (("preview_features", "none"),), "pool_limits": (("workspace", 1 << 26),)},
        {"builder_optimization_level": 0, "record": "nowhere"},
        {"min_shapes": (("x", (1, 6)),), "max_shapes": (("x", (4, 6)),)},
    ],
    ids=str,
)
def test_what_is_asked_for_is_built(process: TensorRt, own: dict[str, Any], tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    path = save(tmp_path / "m.onnx", [relu], [("x", FLOAT, ["n", 6])], [("y", FLOAT, ["n", 6])])
    build(process, path, trt_target(**own), X)


def test_quantized_models_are_built(process: TensorRt, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.ones((6, 4), np.int8), "w"),
    ]
    build(
        process,
        save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [2, 6])], [("y", FLOAT, [2, 4])], *weights),
        trt_target(),
    )


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"builder_flags": ("NO_SUCH",)}, "--builder-flag: .* has no 'NO_SUCH'; it has: .*STRICT_NANS"),
        (
            {"builder_settings": (("max_aux_streams", "x"),)},
            "--builder-set max_aux_streams: it takes a whole number, not 'x'",
        ),
        ({"builder_settings": (("tiling_optimization_level", "x"),)}, "it takes .*FULL, not 'x'"),
        ({"builder_settings": (("progress_monitor", "x"),)}, "has no such attribute"),
        ({"pool_limits": (("x", 1),)}, "--pool-limit: .* has no 'x'"),
    ],
)
def test_what_it_does_not_have_is_refused(process: TensorRt, own: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        build(process, overflowing(tmp_path / "m.onnx", 1, 1), trt_target(**own))


def test_a_refused_model_names_its_node(process: TensorRt, tmp_path: Path) -> None:
    signatures = set()
    for before in (0, 3):
        nodes = [helper.make_node("Relu", ["x" if not n else f"r{n}"], [f"r{n + 1}"]) for n in range(before)]
        nodes.append(helper.make_node("NonZero", [f"r{before}" if before else "x"], ["y"], name=f"odd {before}"))
        path = save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [2, 6])], [("y", INT64, [2, "n"])])
        with pytest.raises(BuildError, match=f"the ONNX parser refuses node 'odd {before}': ") as error:
            build(process, path, trt_target())
        signatures.add(error.value.signature)
    assert len(signatures) == 1
