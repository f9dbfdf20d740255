"""ONNX's own backend tests as a sample of what operators and exports look like: each is read, cut, and computes the same."""

from __future__ import annotations

import importlib
import pkgutil
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as onnx_cases
import pytest
from building import ort_run
from cutting import Cutter, activations, assert_same, check_definition
from onnx import ModelProto, TensorProto, numpy_helper

from bisect_trt.onnxlib.network import Network

SHARDS = 4
MODULES = sorted(module.name for module in pkgutil.iter_modules(onnx_cases.__path__))
IR_VERSION = 9
"""Newer ones ONNX Runtime may not know; they add nothing that these models have."""
SLOW_TO_MAKE = {"averagepool", "lppool", "maxpool"}
EXPORTS = sorted(
    (Path(onnx.__file__).parent / "backend" / "test" / "data").glob("[ps][iy][tm]*/*/model.onnx")
)


def operator_models(shard: int) -> Iterator[tuple[str, ModelProto, list[Any]]]:
    """Two models for each operator: a random one of its tests, and one that a function was expanded in if there is one."""
    rng = random.Random(0)
    for module in [name for name in MODULES if name not in SLOW_TO_MAKE][shard::SHARDS]:
        before = len(onnx_cases._NodeTestCases)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            importlib.import_module(f"{onnx_cases.__name__}.{module}")  # which makes its tests
        cases = onnx_cases._NodeTestCases[before:]
        expanded = [case for case in cases if len(case.model.graph.node) > 1]
        for case in {
            each.name: each for group in (cases, expanded) if group for each in [rng.choice(group)]
        }.values():
            yield case.name, case.model, case.data_sets[0][0]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_operators(shard: int) -> None:
    ran = [check(name, model, values) for name, model, values in operator_models(shard)]
    assert ran.count(True) > 40


@pytest.mark.parametrize("shard", range(SHARDS))
def test_exports(shard: int) -> None:
    ran = []
    for path in EXPORTS[shard::SHARDS]:
        model = onnx.load(str(path))
        files = sorted(
            path.parent.glob("test_data_set_0/input_*.pb"),
            key=lambda file: int(file.stem.split("_")[1]),
        )
        if any(value.type.WhichOneof("value") != "tensor_type" for value in model.graph.input):
            continue  # such values are read in another way, and cannot be fed by bisect-trt
        values = [
            numpy_helper.to_array(TensorProto.FromString(file.read_bytes())) for file in files
        ]
        ran.append(check(path.parent.name, model, values))
    assert ran.count(True) > 20


def check(name: str, model: ModelProto, values: list[Any]) -> bool:
    """Cut all of a model, and its halves; whether ONNX Runtime could say what it computes."""
    model.ir_version = min(model.ir_version, IR_VERSION)
    network = Network(model)
    arrays = [
        value if value is None or isinstance(value, list) else np.asarray(value) for value in values
    ]
    feeds = dict(zip(network.inputs, arrays, strict=False))
    try:
        known = activations(model, feeds)
        again = ort_run(model, feeds)
    except Exception:  # no kernel, too new an operator set, a type that Python cannot see: there is nothing to compare
        known = {}
    whole = Cutter(model, known)
    units = range(len(network.order))
    everything, nodes = whole.cut(units)
    assert len(nodes) == len(model.graph.node), name
    check_definition(model, everything, nodes) if network.inputs else None
    onnx.checker.check_model(everything.proto)
    if not known:
        return False
    if all(
        np.array_equal(known[each], again[each])
        for each in again
        if isinstance(again[each], np.ndarray)
    ):
        given = ort_run(everything.proto, {each: feeds[each] for each in everything.inputs})
        assert_same(given, {each: known[each] for each in everything.outputs})
        if len(units) > 1 and network.inputs:
            whole.check(units[: len(units) // 2])
            whole.check(units[len(units) // 2 :])
    return True
