"""``reproduce.py`` on TensorRT: rendered, and run against the stand-in of each version, on the host's memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trt_api import OLD, STRONG, VERSIONS, WEAK
from trt_standin import StandIn, make_module, trt_target

from bisect_trt.report.script import render_script
from bisect_trt.targets.base import Minimal
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison

THERE, GONE, UNKNOWN = 1, 0, 2
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Memory:
    """CUDA's runtime, on the host's memory; what it is called with are ``ctypes`` values."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.streams = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *values: self._call(name, *values)

    def _call(self, name: str, *values: Any) -> int:
        if name == "cudaMalloc":
            buffer = ctypes.create_string_buffer(values[1].value)
            values[0]._obj.value = ctypes.addressof(buffer)
            self.held[ctypes.addressof(buffer)] = buffer
        elif name == "cudaFree":
            del self.held[values[0].value]
        elif name == "cudaMemcpy":
            ctypes.memmove(values[0], values[1], values[2].value)
        elif name in ("cudaStreamCreate", "cudaGetDeviceCount"):
            values[0]._obj.value = 1
            self.streams += name == "cudaStreamCreate"
        elif name == "cudaStreamDestroy":
            self.streams -= 1
        return 0


class Script:
    """A rendered script beside a model that doubles ``x``, in a module of its own, with TensorRT's stand-in.

    Attributes:
        flags: The bits that the network was made with.
        config: The builder configuration of the build.
    """

    def __init__(self, version: str, settings: TargetSettings, folder: Path, *, lowered: bool, failure: str) -> None:
        self.version, self.flags, self.config = version, 0, StandIn(version, "IBuilderConfig")
        self.refuses: str | None = None
        self.memory = Memory()
        self.trt: Any = make_module(version)
        levels = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
        for level in levels:
            setattr(self.trt.ILogger, level, SimpleNamespace(name=level))
        self.trt.nptype = lambda _: np.float32
        self.trt.Builder, self.trt.Runtime, self.trt.OnnxParser = self._builder, self._runtime, self._parser
        seen = [TensorComparison("y", False, ComparisonKind.MISMATCH, atol=1e-3, rtol=1e-3)]
        nodes = (("double", ("y",)),)
        how = settings.target.script(settings, Minimal("m.onnx", lowered, ("x",), ("y",), nodes))
        self.source = render_script(
            how, "m.onnx", ["x", "y", "double"], seen, answer="", described="TensorRT", failure=failure
        )
        (folder / "m.onnx").write_bytes(b"a model")
        np.savez(folder / "inputs.npz", x=X)
        self.path = folder / "reproduce.py"

    def _builder(self, logger: Any) -> StandIn:
        def create_network(flags: int) -> StandIn:
            self.flags = flags
            kind = self.trt.DataType.FLOAT
            ends = {
                name: StandIn(
                    self.version,
                    "ITensor",
                    {
                        "name": name,
                        "shape": (2, 3),
                        "is_shape_tensor": False,
                        "dtype": kind,
                        "is_network_output": name == "y",
                    },
                )
                for name in "xy"
            }
            layer = StandIn(
                self.version,
                "ILayer",
                {"name": "double", "num_inputs": 1, "num_outputs": 1, "type": self.trt.LayerType.ELEMENTWISE},
            )
            layer.values.update(get_input=lambda _: ends["x"], get_output=lambda _: ends["y"])
            known = {"num_inputs": 1, "num_outputs": 1, "num_layers": 1, "get_layer": lambda _: layer}
            known |= {"get_input": lambda _: ends["x"], "get_output": lambda _: ends["y"]}
            return StandIn(self.version, "INetworkDefinition", known)

        def build(*_: Any) -> bytes | None:
            if self.refuses is not None:
                logger.log(self.trt.ILogger.ERROR, self.refuses)
                return None
            return b"plan"

        known = {"create_network": create_network, "create_builder_config": lambda: self.config}
        return StandIn(self.version, "Builder", {**known, "build_serialized_network": build})

    def _parser(self, *_: Any) -> StandIn:
        return StandIn(self.version, "OnnxParser", {"parse_from_file": lambda path: Path(path).is_file()})

    def _runtime(self, _: Any) -> StandIn:
        return StandIn(self.version, "Runtime", {"deserialize_cuda_engine": self._engine})

    def _engine(self, plan: bytes) -> StandIn:
        assert plan == b"plan"
        addresses: dict[str, int] = {}

        def execute(_: int) -> bool:
            size = X.size
            x, y = ((ctypes.c_float * size).from_address(addresses[name]) for name in "xy")
            y[:] = [2 * value for value in x]
            return True

        known = {"set_input_shape": lambda *_: True, "get_tensor_shape": lambda _: (2, 3)}
        known |= {"set_tensor_address": addresses.__setitem__, "execute_async_v3": execute}
        context = StandIn(self.version, "IExecutionContext", known)
        modes, places = self.trt.TensorIOMode, self.trt.TensorLocation
        values = {
            "num_io_tensors": 2,
            "num_optimization_profiles": 1,
            "get_tensor_name": "xy".__getitem__,
            "get_tensor_mode": lambda name: modes.INPUT if name == "x" else modes.OUTPUT,
            "get_tensor_dtype": lambda _: self.trt.DataType.FLOAT,
            "get_tensor_shape": lambda _: (2, 3),
            "get_tensor_location": lambda _: places.DEVICE,
            "create_execution_context": lambda *_: context,
        }
        return StandIn(self.version, "ICudaEngine", values)

    def run(self, golden: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> int:
        """Return the script's exit status: what its inner process comes to, in this process."""
        np.savez(self.path.with_name("golden.npz"), y=golden)
        module = ModuleType("reproduced")
        module.__file__ = str(self.path)
        monkeypatch.setitem(sys.modules, "reproduced", module)
        monkeypatch.setitem(sys.modules, "tensorrt", self.trt)
        monkeypatch.chdir(self.path.parent)
        monkeypatch.setattr(sys, "path", list(sys.path))
        exec(compile(self.source, "reproduce.py", "exec"), module.__dict__)
        monkeypatch.setattr(module, "load_cudart", lambda: self.memory)
        found = vars(module)
        status: int = found["_judge"](found["CASE"], found["make"])
        assert (self.memory.held, self.memory.streams) == ({}, 0)
        return status

    @property
    def set_flags(self) -> set[str]:
        """The builder flags that were set."""
        return {call[1].name for call in self.config.calls if call[0] == "set_flag"}

    @property
    def strong(self) -> bool:
        """Whether the network was asked to be strongly typed."""
        names = self.trt.NetworkDefinitionCreationFlag
        return bool(self.flags >> int(getattr(names, "STRONGLY_TYPED", 31)) & 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("factor", "status"), [(2, GONE), (3, THERE)])
def test_a_plain_model(version: str, factor: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(version, trt_target(), tmp_path, lowered=False, failure="inf")
    assert script.run(X * factor, monkeypatch) == status
    assert (script.set_flags, script.strong) == (set(), version == STRONG)


@pytest.mark.parametrize(
    ("version", "lowered", "flags", "strong"),
    [
        (OLD, False, {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, False),
        (WEAK, False, {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, False),
        (OLD, True, {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, False),
        (WEAK, True, set(), True),
        (STRONG, True, set(), True),
    ],
)
def test_half_precision_is_in_the_model_or_asked_for(
    version: str, lowered: bool, flags: set[str], strong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = trt_target("fp16", keep=("y",), lowering="cast" if lowered else None)
    script = Script(version, settings, tmp_path, lowered=lowered, failure="inf")
    assert script.run(X * 3, monkeypatch) == THERE
    assert (script.set_flags, script.strong) == (flags, strong)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("said", "status"), [("Could not find any implementation for node double.", THERE), ("it is another one", UNKNOWN)]
)
def test_a_model_that_is_refused(
    version: str, said: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = "build: Could not find any implementation for node #."
    script = Script(version, trt_target(), tmp_path, lowered=False, failure=failure)
    script.refuses = said
    assert script.run(X, monkeypatch) == status
