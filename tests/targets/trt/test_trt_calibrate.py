"""INT8 calibration: the samples go to the GPU one after the other, and the ranges to a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from trt_api import OLD, WEAK
from trt_standin import make_tensorrt, trt_target

from bisect_trt.mixed_precision.ladder import rungs_chosen
from bisect_trt.onnxlib.network import Network
from bisect_trt.targets.trt.config import calibrate

before_11 = pytest.mark.parametrize("version", [OLD, WEAK])


class Memory:
    """GPU memory that is none: what was uploaded, and what is still taken."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}

    def malloc(self, size: int) -> int:
        assert size > 0
        self.held[address := 1000 + len(self.held)] = None
        return address

    def upload(self, address: int, array: np.ndarray, stream: int) -> None:
        assert stream == 0
        self.held[address] = array.copy()

    def synchronize(self, stream: int) -> None:
        assert stream == 0

    def free(self, address: int) -> None:
        del self.held[address]


def calibrator(version: str, memory: Memory, **trt: Any) -> Any:
    tensorrt = replace(make_tensorrt(version), cuda=memory)  # type: ignore[arg-type]  # as much of it as is used
    config = tensorrt.builder.create_builder_config()
    calibrate(config, trt_target("int8", **trt), tensorrt)
    return config.values.get("int8_calibrator")


@before_11
def test_samples_are_handed_out_by_name_and_given_back(version: str, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        np.savez(tmp_path / f"{number}.npz", a=np.full((2, 3), number, np.float32), b=np.arange(4))
        files.append(str(tmp_path / f"{number}.npz"))
    memory = Memory()
    made = calibrator(version, memory, calibration_data=tuple(files))
    assert made.get_batch_size() > 0
    for number in range(3):
        b, a = made.get_batch(["b", "a"])
        assert (memory.held[a] == number).all()
        assert list(memory.held[b]) == [0, 1, 2, 3]
        assert len(memory.held) == 2
    assert made.get_batch(["b", "a"]) is None
    assert not memory.held
    assert made.read_calibration_cache() is None
    made.write_calibration_cache(b"ranges")  # without a file to keep them in they are TensorRT's alone


@before_11
def test_the_cache_is_written_and_read_again(version: str, tmp_path: Path) -> None:
    cache = tmp_path / "ranges.cache"
    made = calibrator(version, Memory(), calibration_cache=str(cache))
    assert made.read_calibration_cache() is None
    made.write_calibration_cache(memoryview(b"ranges"))
    assert cache.read_bytes() == b"ranges"
    assert calibrator(version, Memory(), calibration_cache=str(cache)).read_calibration_cache() == b"ranges"


@before_11
def test_without_data_there_is_no_calibrator(version: str) -> None:
    assert calibrator(version, Memory()) is None


def test_the_rung_that_tensorrt_chose_is_told_as_far_as_its_engine_tells() -> None:
    """Of several types that a layer makes the cheapest; of what is not told the first, which it may be on."""
    nodes = [helper.make_node("Relu", [read], [made], name=made) for read, made in zip("xabc", "abcy", strict=True)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1,)) for name in "xy"]
    network = Network(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])))
    layers = [
        {"name": "one", "kind": "k", "tensors": ["a"], "precisions": ["float16"]},
        {"name": "two", "kind": "k", "tensors": ["b"], "precisions": ["float32", "int8"]},
        {"name": "three", "kind": "k", "tensors": ["c"], "precisions": ["float32"]},
    ]
    ladder = ("int8", "fp16", "fp32")
    assert rungs_chosen(network, range(4), layers, ladder) == {0: "fp16", 1: "int8", 2: "fp32", 3: "int8"}
