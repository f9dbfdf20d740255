"""Failures that depend on a size, on real engines: a batch whose fp16 sum overflows, and one that needs a dynamic engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper
from support import node_names, read_json, save

WIDTH = 64


def write(path: Path, *, middle: int = 3) -> Path:
    """Rows of [n, 64]: a few layers, a sum over the batch (each row adds 15,000: past fp16's 65,504 from 5 on), scaled back."""
    rng = np.random.default_rng(5)
    nodes = []
    last = "x"
    weights: dict[str, Any] = {"axis": np.array([0]), "one": 0.0, "big": 15000.0, "small": 1e-5}
    for layer in range(middle):
        weights[f"w{layer}"] = (np.eye(WIDTH) + 0.01 * rng.standard_normal((WIDTH, WIDTH))).astype(
            np.float32
        )
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"h{layer}"], name=f"project{layer}"),
            helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"], name=f"relu{layer}"),
        ]
        last = f"r{layer}"
    nodes += [
        helper.make_node("Mul", [last, "one"], ["nothing"], name="nothing"),
        helper.make_node("Add", ["nothing", "big"], ["large"], name="large"),
        helper.make_node("ReduceSum", ["large", "axis"], ["total"], keepdims=1, name="total"),
        helper.make_node("Mul", ["total", "small"], ["scaled"], name="scaled"),
        helper.make_node("Add", [last, "scaled"], ["y"], name="join"),
    ]
    return save(path, nodes, weights, inputs={"x": ["n", WIDTH]}, outputs={"y": ["n", WIDTH]})


@pytest.mark.timeout(900)
def test_the_batch_from_which_an_fp16_sum_overflows_is_found_with_one_engine(
    cli: CommandLine, here: Path
) -> None:
    model = write(here / "model.onnx")
    fp16 = ["--trt", "--fp16", "--builder-flag", "OBEY_PRECISION_CONSTRAINTS"]
    ran = cli("sweep", model, *fp16, "--shapes", f"x:[1..16,{WIDTH}]", "--json", "r.json")
    found = read_json(Path("r.json"))["sweep"]
    assert ran.status == 0, ran.out
    (dimension,) = found["dimensions"]
    assert dimension["fail"] == [*range(5, 17)], ran.out
    assert found["smallest_failing"] == {"n": 5}
    assert "one engine for all sizes" in ran.out


PLANT = """
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder


class Planter(MetaPathFinder):
    # The real engine is built and run; only what it makes is spoiled where it is dynamic and holds the sum.
    def find_spec(self, name, path=None, target=None):
        if name != "bisect_trt.targets.trt.engine":
            return None
        spec = PathFinder.find_spec(name, path, target)
        plain = spec.loader.exec_module

        def exec_module(module):
            plain(module)
            run = module.TrtSession.run

            def spoiled(session, inputs):
                made = run(session, inputs)
                free = any(-1 in tuple(session.engine.get_tensor_shape(each)) for each in session._inputs)
                holds = any("total" in layer["tensors"] for layer in session.layers())
                return {name: value + 1e6 for name, value in made.items()} if free and holds else made

            module.TrtSession.run = spoiled

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Planter())
"""
"""As ``sitecustomize.py``: a failure of engines that have a profile and the layer of the sum, and
of no other."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", ["reduce", "diagnose"])
def test_a_failure_of_a_dynamic_engine_is_still_one_after_the_cut(here: Path, command: str) -> None:
    """With the profile of the deployment; the same model with its shapes fixed passes."""
    model = write(here / "model.onnx", middle=1)
    (here / "plant").mkdir()
    (here / "plant" / "sitecustomize.py").write_text(PLANT)
    paths = os.pathsep.join([str(here / "plant"), *filter(None, [os.environ.get("PYTHONPATH")])])
    ranges = [
        f"--trt-{name}-shapes=x:[{size},{WIDTH}]"
        for name, size in (("min", 1), ("opt", 8), ("max", 16))
    ]
    words = ["--trt", *ranges, "--input-shapes", f"x:[6,{WIDTH}]", "-o", "out", "--json", "r.json"]
    words[words.index("out")] = "out.onnx" if command == "reduce" else "out"
    ran = subprocess.run(
        [sys.executable, "-m", "bisect_trt", command, str(model), *words],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    # The reproducer of `diagnose` does without bisect-trt, and so without what is planted there: it
    # proves nothing.
    assert ran.returncode in ((0,) if command == "reduce" else (0, 3)), ran.stdout + ran.stderr
    result = read_json(Path("r.json"))
    answer = Path("out.onnx") if command == "reduce" else Path("out/model.onnx")
    assert node_names(answer) == ["total"], ran.stdout
    free = [
        dim.dim_param
        for value in onnx.load(str(answer)).graph.input
        for dim in value.type.tensor_type.shape.dim
    ]
    assert any(free)
    assert result["dynamic"]["needed"]
