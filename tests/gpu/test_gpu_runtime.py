"""The adapter on a real GPU: what it builds is what it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_text
from onnx import TensorProto, helper
from support import overflowing

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.trt.network import parse
from bisect_trt.targets.trt.process import tensorrt
from bisect_trt.targets.trt.settings import TrtSettings

FP32 = TargetSettings(runtime="trt")
FP16 = replace(FP32, fp16=True, held=True)  # left to itself TensorRT runs such small models in fp32


def run(path: Path, settings: TargetSettings = FP32, **feed: np.ndarray) -> dict[str, Any]:
    return dict(Runtime(settings).load(path, feed).run(feed))


def test_integers_and_bools_keep_their_onnx_types(tmp_path: Path) -> None:
    ends = "(int64[4] i, float[4] x) => (int64[4] y, bool[4] big)"
    body = "more = Add(i, one) big = Greater(x, zero)"
    path = save_text(
        tmp_path / "m.onnx",
        ends,
        f"{body} y = Where(big, more, i)",
        {"one": np.int64(1), "zero": 0.0},
    )
    out = run(path, i=np.arange(4), x=np.array([1, -1, 2, -2], np.float32))
    assert out["y"].dtype == np.int64
    assert out["big"].dtype == np.bool_
    np.testing.assert_array_equal(out["y"], [1, 1, 3, 3])
    np.testing.assert_array_equal(out["big"], [True, False, True, False])


def test_an_output_whose_size_depends_on_values(tmp_path: Path) -> None:
    path = save_text(tmp_path / "m.onnx", "(float[2, 3] x) => (int64[2, n] y)", "y = NonZero(x)")
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    np.testing.assert_array_equal(run(path, x=x)["y"], np.array(np.nonzero(x)))


def test_a_shape_that_comes_as_an_input_is_built_in(tmp_path: Path) -> None:
    path = save_text(
        tmp_path / "m.onnx",
        "(float[2, 3] x, int64[2] shape) => (float[a, b] y)",
        "y = Reshape(x, shape)",
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(run(path, x=x, shape=np.array([3, 2]))["y"], x.reshape(3, 2))


def test_shape_tensors_are_no_outputs(tmp_path: Path) -> None:
    ends = "(float[2, 3] x) => (float[2, 3] y, int64[2] s)"
    body = "s = Shape(x) r = Reshape(x, s) y = Relu(r)"
    path = save_text(tmp_path / "m.onnx", ends, body)
    x = np.ones((2, 3), np.float32)
    session = Runtime(FP32).load(path, {"x": x})
    assert set(session.run({"x": x})) | set(session.skipped) == {"y", "s"}
    assert "y" not in session.skipped


def test_fp16_overflows_and_kept_layers_do_not(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx")
    marked = onnx.load(str(path))
    marked.graph.output.append(helper.make_tensor_value_info("big_out", TensorProto.FLOAT, [2, 3]))
    onnx.save(marked, str(path))
    x = np.ones((2, 3), np.float32)
    assert np.isinf(run(path, FP16, x=x)["big_out"]).all()
    assert np.isfinite(run(path, x=x)["big_out"]).all()
    kept = run(path, replace(FP16, keep=("big_out", "small_out")), x=x)
    np.testing.assert_allclose(kept["big_out"], 120000, rtol=1e-2)


def test_the_parser_names_the_node_and_why(tmp_path: Path) -> None:
    signatures = set()
    for body in ("r = Relu(x) odd = NoSuchPlugin(r)", "odd = NoSuchPlugin(x)"):
        path = save_text(tmp_path / "m.onnx", "(float[2] x) => (float[2] odd)", body)
        with pytest.raises(BuildError, match="refuses node 'odd'") as refused:
            run(path, x=np.ones(2, np.float32))
        signatures.add(refused.value.sign())
    assert len(signatures) == 1


def test_every_layer_has_its_node(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx")
    target = FP32.target
    process = tensorrt()
    lowered = target.lower(FP32, path, {"lowers_by": "layer"})
    assert lowered is not None
    hints = {
        **target.hints(FP32, lowered, path, {"lowers_by": "layer"}),
        "content": lowered.SerializeToString(),
    }
    parsed = parse(process, target.plain(FP32), path, {}, hints)
    names = [node.name for node in lowered.graph.node]
    for layer, place in zip(parsed.layers(), parsed.places(), strict=True):
        if layer.name in names:
            assert names[place or 0] == layer.name
    assert set(parsed.places()) >= set(range(len(names)))


def test_engines_and_timing_caches_are_saved_and_loaded(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "m.onnx")
    engine = tmp_path / "m.engine"
    cache = tmp_path / "cache"
    x = np.ones((2, 3), np.float32)
    wanted = run(
        path,
        replace(FP32, own=TrtSettings(save_engine=str(engine), save_timing_cache=str(cache))),
        x=x,
    )
    assert engine.stat().st_size > 0
    assert cache.stat().st_size > 0
    again = run(path, replace(FP32, own=TrtSettings(load_engine=str(engine))), x=x)
    for name, value in wanted.items():
        np.testing.assert_array_equal(again[name], value)
    run(path, replace(FP32, own=TrtSettings(load_timing_cache=str(cache))), x=x)


def test_an_optimisation_profile(tmp_path: Path) -> None:
    path = save_text(tmp_path / "m.onnx", "(float[2, 3] x) => (float[n, 3] y)", "y = Relu(x)")
    profile = TrtSettings(min_shapes=(("x", (1, 3)),), max_shapes=(("x", (8, 3)),))
    session = Runtime(replace(FP32, own=profile)).load(path, {})
    for size in (1, 5, 8):
        x = np.full((size, 3), -1.0, np.float32)
        assert session.run({"x": x})["y"].shape == (size, 3)
