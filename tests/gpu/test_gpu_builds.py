"""Builds on a real GPU: a network that is parsed once, engines that are built once, builds that are held."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import save_text
from selector import NO_LIBRARY, PLAIN, needs_selector
from support import chained_convolutions

from bisect_trt.errors import UsageError
from bisect_trt.steps.build_choices import read_choices
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.choices import RECORD, TACTIC, Choice
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.trt.config import is_strongly_typed
from bisect_trt.targets.trt.process import tensorrt

FP16 = replace(PLAIN, fp16=True, held=True)
SHAPE = [2, 16, 24, 24]


def convolutions(path: Path) -> Path:
    """Six convolutions, each with a Tanh behind it."""
    return chained_convolutions(path, [(16, 3)] * 6, SHAPE)


def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)}


def needs_layers() -> None:
    if is_strongly_typed(tensorrt().trt, {"runtime": "trt", "strongly_typed": False}):
        pytest.skip("this TensorRT takes no precisions of layers")


def overflowing(path: Path) -> Path:
    """The squares of one node are past fp16, and their root is not."""
    body = "m = Mul(x, s) big = Mul(m, m) root = Sqrt(big) y = Mul(root, one)"
    return save_text(
        path, "(float[2, 3] x) => (float[2, 3] y, float[2, 3] big)", body, {"s": 900.0, "one": 1.0}
    )


def test_a_network_takes_other_orders_again_and_again(tmp_path: Path) -> None:
    needs_layers()
    path = overflowing(tmp_path / "m.onnx")
    x = np.ones((2, 3), np.float32)

    def big(keep: tuple[str, ...]) -> float:
        return float(
            Runtime(replace(FP16, keep=keep)).load(path, {"x": x}).run({"x": x})["big"][0, 0]
        )

    assert np.isinf(big(()))
    assert big(("m", "big", "root")) == pytest.approx(810000)
    assert np.isinf(big(("y",)))
    assert big(("m", "big", "root", "y")) == pytest.approx(810000)
    assert np.isinf(big(()))


def recorded(path: Path, settings: TargetSettings, folder: Path) -> list[Choice]:
    folder.mkdir()
    Runtime(settings.target.recording(settings, folder)).load(path, feed())
    found = read_choices(json.loads((folder / RECORD).read_text()))
    assert found is not None
    return found


def tactics(choices: Sequence[Choice]) -> dict[str, str]:
    return {each.layer: each.value for each in choices if each.kind == TACTIC and each.pins}


def test_a_build_that_is_held_chooses_what_the_other_one_did(tmp_path: Path) -> None:
    needs_selector()
    path = convolutions(tmp_path / "m.onnx")
    first = recorded(path, PLAIN, tmp_path / "first")
    assert len(tactics(first)) >= 4
    held = PLAIN.target.pinned(PLAIN, [choice for choice in first if choice.pins])
    assert tactics(recorded(path, held, tmp_path / "again")) == tactics(first)
    # Held to another tactic for one of them, it takes that.
    layer, other = next(
        (name, tactic)
        for name, tactic in tactics(recorded(path, _avoiding(first), tmp_path / "other")).items()
        if tactic != tactics(first).get(name, tactic)
    )
    moved = PLAIN.target.pinned(PLAIN, [Choice(layer, TACTIC, other, pins=True)])
    assert tactics(recorded(path, moved, tmp_path / "moved"))[layer] == other


def _avoiding(choices: Sequence[Choice]) -> TargetSettings:
    convs = [
        each for each in choices if each.kind == TACTIC and each.pins and "conv3" in each.layer
    ]
    return PLAIN.target.pinned(PLAIN, [], convs)


def test_a_build_that_cannot_be_held_is_refused(tmp_path: Path) -> None:
    needs_selector()
    path = convolutions(tmp_path / "m.onnx")
    layer = next(
        name for name in tactics(recorded(path, PLAIN, tmp_path / "first")) if "conv" in name
    )
    held = PLAIN.target.pinned(PLAIN, [Choice(layer, TACTIC, "1:1", pins=True)])
    with pytest.raises(BuildError, match="does not take the pinned tactic") as refused:
        Runtime(held).load(path, feed())
    assert refused.value.sign() == "pin"


OPTIONS: dict[str, tuple[TargetSettings, dict[str, Any]]] = {
    "a calibrator": (replace(PLAIN, int8=True), {}),
    "no aux streams": (PLAIN, {"builder_settings": (("max_aux_streams", "0"),)}),
    "sparse weights": (PLAIN, {"builder_flags": ("SPARSE_WEIGHTS",)}),
    "refittable": (PLAIN, {"builder_flags": ("REFIT",)}),
    "direct io": (PLAIN, {"builder_flags": ("DIRECT_IO",)}),
    "no lean runtime": (PLAIN, {"builder_flags": ("VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME")}),
    "strict timing cache": (PLAIN, {"builder_flags": ("DISABLE_COMPILATION_CACHE",)}),
    "weights streamed": (PLAIN, {"strongly_typed": True, "builder_flags": ("WEIGHT_STREAMING",)}),
    "no tactic sources": (PLAIN, {"tactic_sources": ()}),
    "the lowest level": (PLAIN, {"builder_optimization_level": 0}),
    "little memory": (PLAIN, {"pool_limits": (("workspace", 1 << 20),)}),
    "other hardware": (
        PLAIN,
        {"builder_settings": (("hardware_compatibility_level", "ampere_plus"),)},
    ),
    "a flag of the parser": (PLAIN, {"builder_flags": ("NATIVE_INSTANCENORM",)}),
}
"""What is asked for beside precisions: built and run, or refused in a sentence that names the
option and this version."""


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_builds_and_runs_or_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    settings, own = OPTIONS[name]
    if settings.int8:
        np.savez(tmp_path / "sample.npz", x=feed()["x"])
        own = {**own, "calibration_data": (str(tmp_path / "sample.npz"),)}
    path = convolutions(tmp_path / "m.onnx")
    values = feed()
    made = {}
    refused = ""
    try:
        made = dict(Runtime(settings.with_own(**own)).load(path, values).run(values))
    except UsageError as error:
        refused = str(error)
    except BuildError as error:
        if NO_LIBRARY not in error.message:
            raise
        pytest.skip(f"TensorRT finds no cuBLAS here: {error.message}")
    if not made:
        assert re.match(r"--[a-z-]+.*TensorRT \d+\.\d+", refused)
        return
    right = dict(Runtime(PLAIN).load(path, values).run(values))
    for tensor, value in right.items():
        np.testing.assert_allclose(made[tensor], value, atol=0.3 if settings.int8 else 1e-3)
