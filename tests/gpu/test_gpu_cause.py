"""Switches on a real GPU: tactics that are planted as bad, sources, levels and flags for real."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from selector import NO_LIBRARY, PLAIN, needs_selector
from support import chained_convolutions, overflowing_products

import bisect_trt
from bisect_trt.targets.base import Looked
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime

SHAPE = (2, 16, 40, 40)
CHECK = '''
"""Bad if a layer's tactic is the one that it was seen with first: python check.py ENGINE LAYER STATE."""
import json, pathlib, sys
import tensorrt as trt

runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
engine = runtime.deserialize_cuda_engine(pathlib.Path(sys.argv[1]).read_bytes())
inspector = engine.create_engine_inspector()
layers = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON), strict=False)["Layers"]
found = [str(layer.get("TacticValue")) for layer in layers if layer["Name"] == sys.argv[2]]
state = pathlib.Path(sys.argv[3])
if not state.exists():
    state.write_text(json.dumps(found))
sys.exit(7 if found and found == json.loads(state.read_text()) else 0)
'''


def convolutions(path: Path) -> Path:
    """Eight convolutions that are unlike each other, so that each has tactics of its own to choose of."""
    return chained_convolutions(
        path, [(32, 3), (48, 1), (64, 3), (32, 5), (96, 1), (64, 3), (40, 3), (16, 1)], SHAPE
    )


def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)}


def test_a_trace_has_what_each_layer_took_and_what_there_is_to_turn(tmp_path: Path) -> None:
    found = Runtime(PLAIN).trace(convolutions(tmp_path / "m.onnx"), feed())
    assert "REFIT" in found["flags"]
    assert found["sources"]
    needs_selector()
    assert sum(offered > 1 for _, _, offered in found["tactics"]) >= 4


def test_a_layer_that_avoids_a_tactic_takes_another_and_computes_the_same(tmp_path: Path) -> None:
    needs_selector()
    path = convolutions(tmp_path / "m.onnx")
    values = feed()
    took = Runtime(PLAIN).trace(path, values)["tactics"]
    layer, avoided, _ = next(each for each in took if each[2] > 1 and "conv" in each[0])
    settings = PLAIN.with_own(avoid_tactics=(avoided,))
    now = {name: tactic for name, tactic, _ in Runtime(settings).trace(path, values)["tactics"]}
    assert now[layer] != avoided
    before, after = (
        dict(Runtime(each).load(path, values).run(values)) for each in (PLAIN, settings)
    )
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-3, atol=1e-3)


def test_a_tactic_of_one_layer_that_a_check_calls_bad_is_named(tmp_path: Path) -> None:
    needs_selector()
    path = convolutions(tmp_path / "m.onnx")
    values = feed()
    took = Runtime(PLAIN).trace(path, values)["tactics"]
    layer = next(name for name, _, offered in took if offered > 1 and "conv3" in name)
    script = tmp_path / "check.py"
    script.write_text(CHECK, encoding="utf-8")
    check = [sys.executable, str(script), "{engine}", layer, str(tmp_path / "state.json")]
    result = bisect_trt.cause(
        path,
        target="trt",
        inputs=values,
        check=check,
        fail_code=[7],
        run=tmp_path / "run",
        workers=1,
    )
    assert (f"tactic:{layer}",) in result.cause


def test_every_switch_builds(tmp_path: Path) -> None:
    path = convolutions(tmp_path / "m.onnx")
    values = feed()
    trace = Runtime(PLAIN).trace(path, values)
    switches = [
        each for each in PLAIN.target.switches(PLAIN, Looked(trace)) if each.kind != "tactic"
    ]
    built = 0
    for switch in switches:
        try:
            Runtime(switch.turn(PLAIN)).load(path, values)
            built += 1
        except BuildError as error:
            if NO_LIBRARY not in error.message:
                raise
    assert built >= len(switches) - 2


def test_an_overflow_is_the_precisions_doing(tmp_path: Path) -> None:
    path = overflowing_products(tmp_path / "overflow.onnx")
    inputs = {"x": np.ones((16, 64), np.float32)}
    result = bisect_trt.cause(
        path, target="trt", inputs=inputs, fp16=True, hold_precision=True, run=tmp_path / "run"
    )
    assert ("precision:fp16",) in result.cause
