"""TensorRT without a GPU: a module with the names of one version, whose engines compute with NumPy on the host's memory.

``api/VERSION.json`` lists the classes of a version that are used here, each with its members or its
enumeration's entries, as read from its own bindings. Objects raise ``AttributeError`` for any other
name, as the real ones do: what the runner uses of a version is what that version has. What a real
builder makes of models is tested with TensorRT-RTX, in ``test_trt_rtx.py``.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt import process, runner
from bisect_trt.targets.trt.process import Cuda
from bisect_trt.targets.trt.settings import TrtSettings

VERSIONS = ("8.6.0", "10.16.1.11", "11.4.0.106")
OLD, WEAK, STRONG = VERSIONS
"""The last without strong typing; one with weak typing beside it; one with nothing but strong
typing."""
VIRTUAL = (
    "ILogger",
    "IOutputAllocator",
    "IAlgorithmSelector",
    "IInt8EntropyCalibrator2",
    "IDebugListener",
)
"""Classes that Python derives its own from."""
Arrays = dict[str, NDArray[Any]]
_KINDS = {"FLOAT": "f4", "HALF": "f2", "INT32": "i4", "INT64": "i8", "BOOL": "?"}
_START = process.tensorrt.__wrapped__
_LAYERS = {
    "Constant": "CONSTANT",
    "Shape": "SHAPE",
    "QuantizeLinear": "QUANTIZE",
    "DequantizeLinear": "DEQUANTIZE",
}


def api(version: str) -> dict[str, Any]:
    """The names of a version."""
    names: dict[str, Any] = json.loads(
        (Path(__file__).parent / "api" / f"{version}.json").read_text()
    )["names"]
    return names


APIS = {version: api(version) for version in VERSIONS}


class StandIn:
    """An object of one of TensorRT's classes.

    Attributes:
        calls: What was called, with the arguments.
        values: What was set, or is given to be read.
    """

    def __init__(self, version: str, kind: str, values: Mapping[str, Any] | None = None) -> None:
        self.__dict__.update(version=version, kind=kind, calls=[], values=dict(values or {}))

    def _known(self, name: str) -> None:
        if name not in APIS[self.version][self.kind].get("members", ()):
            raise AttributeError(f"TensorRT {self.version} has no {self.kind}.{name}")

    def __getattr__(self, name: str) -> Any:
        self._known(name)
        if name in self.values:
            return self.values[name]
        return lambda *words, **named: self.calls.append((name, *words, *named.values()))

    def __setattr__(self, name: str, value: Any) -> None:
        self._known(name)
        self.values[name] = value


def make_module(version: str) -> Any:
    """The module's enumerations, base classes and version."""
    module = SimpleNamespace(
        __name__="tensorrt",
        __version__=version,
        init_libnvinfer_plugins=lambda *_: True,
        INetworkDefinition=type("N", (), {}),
    )
    for member in APIS[version]["INetworkDefinition"]["members"]:
        setattr(module.INetworkDefinition, member, None)
    for name, entry in APIS[version].items():
        if "enum" in entry:
            setattr(
                module,
                name,
                IntEnum(name, {each: place for place, each in enumerate(sorted(entry["enum"]))}),
            )
        elif name in VIRTUAL:
            setattr(module, name, type(name, (), {}))
    for place, level in enumerate(("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")):
        setattr(module.ILogger, level, SimpleNamespace(name=level, place=place))
    return module


class HostCudart:
    """libcudart, on the host's memory; what it is called with are ``ctypes`` values.

    Attributes:
        held: The memory that was taken.
        broken: The status that each broken function returns.
    """

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.broken: dict[str, int] = {}
        self.cudaGetErrorString = lambda status: {2: b"out of memory"}.get(
            status, b"an illegal memory access"
        )

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *values: self.broken.get(name) or self._call(name, *values)

    def _call(self, name: str, *values: Any) -> int:
        if name == "cudaMalloc":
            buffer = ctypes.create_string_buffer(values[1].value)
            values[0]._obj.value = ctypes.addressof(buffer)
            self.held[ctypes.addressof(buffer)] = buffer
        elif name == "cudaFree":
            del self.held[values[0].value]
        elif name == "cudaMemcpyAsync":
            ctypes.memmove(values[0], values[1], values[2].value)
        elif name in ("cudaStreamCreate", "cudaEventCreate", "cudaGetDeviceCount"):
            values[0]._obj.value = 1
        elif name == "cudaEventElapsedTime":
            values[0]._obj.value = 0.5
        return 0


class World:
    """TensorRT of a version, beside a model: ``compute`` is what its engine makes of the inputs.

    Attributes:
        trt: The module.
        cudart: CUDA.
        config: The builder configuration of the last build.
        layers: Those of the last network.
        flags: The bits that the last network was made with.
        refuses: The error with which builds are refused.
        rejects: The error with which engines are.
        fails: The error with which runs end.
        host: Tensors that are on the host.
        late: Outputs whose size is known when the engine has run.
        shapes: Tensors that are shape tensors.
        kept: Inner tensors that the compiler keeps, if they are marked as debug tensors.
    """

    def __init__(self, version: str, compute: Callable[[Arrays], Arrays] | None = None) -> None:
        self.version = version
        self.trt = make_module(version)
        self.cudart = HostCudart()
        self.compute = compute or (lambda fed: {"y": next(iter(fed.values())) * 2})
        self.refuses: str | None = None
        self.rejects: str | None = None
        self.fails: str | None = None
        self.host = set[str]()
        self.late = set[str]()
        self.shapes = set[str]()
        self.kept = Arrays()
        self.flags = 0
        self.layers = list[Any]()
        self.feed = dict[str, Any]()
        self.config = self.network = StandIn(version, "IBuilderConfig")
        self.parsed: list[onnx.ModelProto] = []
        self.addresses: dict[str, int] = {}
        self.trt.Builder = self._builder
        self.trt.Runtime = self._runtime
        self.trt.OnnxParser = self._parser

    def start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be what ``import tensorrt`` gives, with a fresh process's state."""
        monkeypatch.setitem(sys.modules, "tensorrt", self.trt)
        monkeypatch.setattr(process, "load_cuda", lambda: Cuda(self.cudart))
        started = _START()
        monkeypatch.setattr(runner, "tensorrt", lambda _: started)

    @property
    def set_flags(self) -> set[str]:
        """The builder flags that were set."""
        return {call[1].name for call in self.config.calls if call[0] == "set_flag"}

    @property
    def strong(self) -> bool:
        """Whether the network was asked to be strongly typed."""
        names = self.trt.NetworkDefinitionCreationFlag
        return bool(self.flags >> int(getattr(names, "STRONGLY_TYPED", 31)) & 1)

    def make_config(self) -> StandIn:
        """A builder configuration with TensorRT's defaults."""
        enums = (
            "ProfilingVerbosity",
            "HardwareCompatibilityLevel",
            "TilingOptimizationLevel",
            "RuntimePlatform",
        )
        kinds = {
            "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:]: name for name in enums
        }
        known: dict[str, Any] = {
            name: getattr(self.trt, kind, None) for name, kind in kinds.items()
        }
        known = {name: next(iter(kind)) for name, kind in known.items() if kind is not None}
        known |= {"max_aux_streams": -1, "builder_optimization_level": 3, "l2_limit_for_tiling": 0}
        flags = list(self.trt.BuilderFlag)
        config = StandIn(self.version, "IBuilderConfig", known)
        timing = StandIn(self.version, "ITimingCache", {"serialize": lambda: b"timings"})
        config.values.update(
            get_flag=lambda flag: flag in flags and ("set_flag", flag) in config.calls,
            get_tactic_sources=lambda: next(
                (call[1] for call in config.calls[::-1] if call[0] == "set_tactic_sources"), 1
            ),
            get_memory_pool_limit=lambda pool: next(
                (
                    call[2]
                    for call in config.calls[::-1]
                    if call[:2] == ("set_memory_pool_limit", pool)
                ),
                0,
            ),
            create_timing_cache=lambda _: timing,
            get_timing_cache=lambda: timing,
            int8_calibrator=None,
        )
        self.config = config
        return config

    def _builder(self, logger: Any) -> StandIn:
        self._logger = logger

        def create_network(flags: int) -> StandIn:
            self.flags, self.network = flags, StandIn(self.version, "INetworkDefinition")
            return self.network

        def build(*_: Any) -> bytes | None:
            return b"plan" if self._says(self.refuses) else None

        known = {"create_network": create_network, "create_builder_config": self.make_config}
        known["create_optimization_profile"] = lambda: StandIn(self.version, "IOptimizationProfile")
        return StandIn(self.version, "Builder", {**known, "build_serialized_network": build})

    def _says(self, error: str | None) -> bool:
        if error is not None:
            self._logger.log(self.trt.ILogger.ERROR, error)
        return error is None

    def _parser(self, network: StandIn, _: Any) -> StandIn:
        def parse(content: bytes, path: str) -> bool:
            assert Path(path).is_absolute()
            model = onnx.load_from_string(content)
            self.parsed.append(model)
            weights = {each.name for each in model.graph.initializer}
            graph = model.graph
            inputs = [each for each in graph.input if each.name not in weights]
            for end, values in (("input", inputs), ("output", graph.output)):
                found = [self.tensor(each.name, end) for each in values]
                network.values[f"num_{end}s"], network.values[f"get_{end}"] = (
                    len(found),
                    found.__getitem__,
                )
                for tensor, value in zip(found, values, strict=True):
                    dims = value.type.tensor_type.shape.dim
                    tensor.values["shape"] = tuple(
                        d.dim_value if d.HasField("dim_value") else -1 for d in dims
                    )
            self.layers = [
                self.layer(
                    node.name,
                    list(node.output),
                    list(node.input),
                    _LAYERS.get(node.op_type, "ELEMENTWISE"),
                )
                for node in graph.node
            ]
            network.values.update(
                num_layers=len(self.layers), get_layer=lambda index: self.layers[index]
            )
            return not errors

        said = {"node": 0, "desc": " In node 7: UNSUPPORTED ", "local_function_stack": []}
        said |= {"node_name": "", "node_operator": ""}
        error = StandIn(
            self.version,
            "ParserError",
            {name: lambda value=value: value for name, value in said.items()},
        )
        errors = [error] if self.refuses == "the parser" else []
        values = {"parse": parse, "num_errors": len(errors), "get_error": errors.__getitem__}
        return StandIn(self.version, "OnnxParser", values)

    def tensor(self, name: str, end: str = "", kind: str = "FLOAT") -> StandIn:
        """A tensor of a network."""
        values = {
            "name": name,
            "dtype": self.trt.DataType[kind],
            "is_shape_tensor": name in self.shapes,
        }
        return StandIn(self.version, "ITensor", {**values, "is_network_output": end == "output"})

    def layer(
        self, name: str, made: list[str], read: list[str], kind: str = "ELEMENTWISE"
    ) -> StandIn:
        """A layer of a network."""
        outputs = [self.tensor(each) for each in made]
        inputs = [self.tensor(each) for each in read]
        known = {
            "name": name,
            "type": self.trt.LayerType[kind],
            "num_inputs": len(read),
            "num_outputs": len(made),
        }
        ends = {"get_output": outputs.__getitem__, "get_input": inputs.__getitem__}
        return StandIn(self.version, "ILayer", {**known, **ends})

    def _runtime(self, _: Any) -> StandIn:
        def deserialize(plan: bytes) -> StandIn | None:
            return self._engine() if self._says(self.rejects) and plan == b"plan" else None

        return StandIn(self.version, "Runtime", {"deserialize_cuda_engine": deserialize})

    def _engine(self) -> StandIn:
        """An engine of the last model: types and shapes are those of what is fed and computed."""
        made = self.compute({name: value.copy() for name, value in self.feed.items()})
        arrays = {**self.feed, **made}
        names = list(arrays)
        modes = self.trt.TensorIOMode
        places = self.trt.TensorLocation
        inspector = StandIn(
            self.version,
            "EngineInspector",
            {"get_engine_information": lambda _: '{"Layers": ["a"]}'},
        )
        context = self._context(made)
        return StandIn(
            self.version,
            "ICudaEngine",
            {
                "num_io_tensors": len(names),
                "get_tensor_name": names.__getitem__,
                "get_tensor_mode": lambda name: modes.INPUT if name in self.feed else modes.OUTPUT,
                "get_tensor_dtype": lambda name: self.trt.DataType[_kind(arrays[name].dtype)],
                "get_tensor_shape": lambda name: arrays[name].shape,
                "get_tensor_location": lambda name: (
                    places.HOST if name in self.host else places.DEVICE
                ),
                "create_execution_context": lambda: (
                    context if self._says(self.fails if made == {} else None) else None
                ),
                "create_engine_inspector": lambda: inspector,
            },
        )

    def _context(self, made: Arrays) -> StandIn:
        allocators: dict[str, Any] = {}
        listeners: list[Any] = []

        def execute(stream: int) -> bool:
            if not self._says(self.fails):
                return False
            marked = ("mark_unfused_tensors_as_debug_tensors",) in self.network.calls
            if marked and context.values.get("unfused_tensors_debug_state"):
                for name, value in self.kept.items():
                    place = self.trt.TensorLocation["HOST" if name in self.host else "DEVICE"]
                    facts = (place, self.trt.DataType[_kind(value.dtype)], value.shape, name)
                    assert listeners[-1].process_debug_tensor(value.ctypes.data, *facts, stream)
            fed = {
                name: _view(self.addresses[name], value.dtype, value.shape).copy()
                for name, value in self.feed.items()
            }
            for name, value in self.compute(fed).items():
                if name in allocators:
                    allocator = allocators[name]
                    grow = (
                        getattr(allocator, "reallocate_output_async", None)
                        or allocator.reallocate_output
                    )
                    assert grow(name, 0, 1, 256, stream)  # a first guess, then what it really needs
                    self.addresses[name] = grow(name, 0, max(value.nbytes, 1), 256, stream)
                    allocator.notify_shape(name, value.shape)
                ctypes.memmove(
                    self.addresses[name], np.ascontiguousarray(value).ctypes.data, value.nbytes
                )
            return True

        def shape(name: str) -> tuple[int, ...]:
            return tuple(-1 for _ in made[name].shape) if name in self.late else made[name].shape

        known: dict[str, Any] = {
            "set_input_shape": lambda name, given: tuple(given) == self.feed[name].shape,
            "get_tensor_shape": shape,
            "set_tensor_address": self.addresses.__setitem__,
            "set_output_allocator": allocators.__setitem__,
            "execute_async_v3": execute,
        }
        if "set_debug_listener" in APIS[self.version]["IExecutionContext"]["members"]:
            known["set_debug_listener"] = listeners.append
        context = StandIn(self.version, "IExecutionContext", known)
        return context


def _kind(dtype: np.dtype[Any]) -> str:
    return next((name for name, kind in _KINDS.items() if np.dtype(kind) == dtype), "INT4")


def _view(address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(bytearray(ctypes.string_at(address, size)), dtype).reshape(shape)


def trt_target(*precisions: str, keep: tuple[str, ...] = (), **trt: Any) -> TargetSettings:
    """A TensorRT target: names of precisions, and fields of ``TrtSettings``."""
    allowed: dict[str, Any] = dict.fromkeys(precisions, True)
    return TargetSettings("trt", **allowed, keep=keep, own=TrtSettings(**trt))


def plain(settings: TargetSettings) -> dict[str, Any]:
    """Settings as a runner takes them."""
    return settings.target.plain(settings)
