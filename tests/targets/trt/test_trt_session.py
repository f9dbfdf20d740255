"""An engine on buffers of our own: addresses, types, sizes known late, and what is given back when it fails.

A real engine needs a GPU; this one is a stand-in whose device memory is the host's, and what it computes is read and written
through the addresses that it is given, as TensorRT does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto
from trt_api import OLD, VERSIONS, WEAK
from trt_standin import StandIn, make_tensorrt

from bisect_trt.targets.messages import RunError
from bisect_trt.targets.trt.cuda import Cuda
from bisect_trt.targets.trt.session import TensorRtSession

Arrays = dict[str, NDArray[Any]]
Tensor = tuple[str, str, tuple[int, ...], str]
"""Mode, type, shape (-1 where it is not known before it runs) and location."""


class HostLibrary:
    """The calls of CUDA on the host's memory."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.broken: dict[str, int] = {}

    def call(self, name: str, *values: int) -> tuple[int, tuple[int, ...]]:
        if name in self.broken:
            return self.broken[name], (0,)
        if name == "cudaMalloc":
            buffer = ctypes.create_string_buffer(values[0])
            self.held[ctypes.addressof(buffer)] = buffer
            return 0, (ctypes.addressof(buffer),)
        if name == "cudaFree":
            del self.held[values[0]]
        if name == "cudaMemcpyAsync":
            ctypes.memmove(values[0], values[1], values[2])
        return 0, ()

    def text(self, status: int) -> str:
        return {2: "out of memory", 700: "an illegal memory access was encountered"}[status]


class Engine:
    """An engine that computes with a function of arrays; ``library`` has the memory that it was lent."""

    def __init__(self, version: str, tensors: dict[str, Tensor], compute: Callable[[Arrays], Arrays]) -> None:
        self.library = HostLibrary()
        self.tensorrt = make_tensorrt(version)
        self.tensorrt.cuda = Cuda(self.library, "the host")
        self.says: str | None = None
        self._tensors, self._compute = tensors, compute
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        trt = self.tensorrt.trt
        names = list(tensors)
        self.context = StandIn(
            version,
            "IExecutionContext",
            {
                "set_input_shape": self._set_input_shape,
                "get_tensor_shape": lambda name: tensors[name][2],
                "set_tensor_address": self._addresses.__setitem__,
                "set_output_allocator": self._allocators.__setitem__,
                "execute_async_v3": self._execute,
            },
        )
        self.engine = StandIn(
            version,
            "ICudaEngine",
            {
                "num_io_tensors": len(names),
                "get_tensor_name": names.__getitem__,
                "get_tensor_mode": lambda name: trt.TensorIOMode[tensors[name][0]],
                "get_tensor_dtype": lambda name: trt.DataType[tensors[name][1]],
                "get_tensor_shape": lambda name: tensors[name][2],
                "get_tensor_location": lambda name: trt.TensorLocation[tensors[name][3]],
                "create_execution_context": lambda: self.context,
            },
        )

    def session(self, **wanted: int) -> TensorRtSession:
        return TensorRtSession(self.tensorrt, self.engine, wanted)

    def _set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = shape
        return all(have in (-1, size) for have, size in zip(self._tensors[name][2], shape, strict=True))

    def _dtype(self, name: str) -> Any:
        kinds = {"FLOAT": "f4", "HALF": "f2", "INT32": "i4", "INT64": "i8", "BOOL": "?"}
        return np.dtype(kinds[self._tensors[name][1]])

    def _view(self, address: int, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        size = int(np.prod(shape)) * self._dtype(name).itemsize
        buffer = (ctypes.c_char * size).from_address(address)
        return np.frombuffer(buffer, self._dtype(name)).reshape(shape)

    def _execute(self, stream: int) -> bool:
        assert stream == self.tensorrt.stream
        if self.says is not None:
            self.tensorrt.log.errors.append(self.says)
            return False
        fed = {name: self._view(self._addresses[name], name, shape) for name, shape in self._shapes.items()}
        for name, value in self._compute({name: array.copy() for name, array in fed.items()}).items():
            assert value.dtype == self._dtype(name)
            if name in self._allocators:
                grow = (
                    getattr(self._allocators[name], "reallocate_output_async", None)
                    or self._allocators[name].reallocate_output
                )
                assert grow(name, 0, 1, 256, stream)  # a first guess, then what it really needs
                self._addresses[name] = grow(name, 0, max(value.nbytes, 1), 256, stream)
                self._allocators[name].notify_shape(name, value.shape)
            if value.nbytes:
                ctypes.memmove(self._addresses[name], value.ctypes.data, value.nbytes)
        return True


def doubling(version: str = OLD, kind: str = "FLOAT", shape: tuple[int, ...] = (-1, 3)) -> Engine:
    tensors = {"x": ("INPUT", kind, shape, "DEVICE"), "y": ("OUTPUT", kind, (2, 3), "DEVICE")}
    return Engine(version, tensors, lambda fed: {"y": fed["x"] * fed["x"].dtype.type(2)})


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("given_dtype", ["float32", "float64", "float16", "int64"])
def test_values_are_cast_to_what_the_engine_takes(version: str, given_dtype: str) -> None:
    engine = doubling(version)
    session = engine.session(y=TensorProto.FLOAT)
    assert [(info.name, info.dtype, info.shape) for info in session.inputs] == [("x", np.dtype(np.float32), (None, 3))]
    np.testing.assert_array_equal(session.run({"x": X.astype(given_dtype), "more": X})["y"], 2 * X)
    assert engine.library.held == {}


def test_what_is_not_contiguous_is_made_so() -> None:
    np.testing.assert_array_equal(doubling().session().run({"x": X.T.copy().T})["y"], 2 * X)


def test_outputs_get_the_type_that_the_model_gives_them() -> None:
    """TensorRT before 10 computes int64 as int32."""
    outputs = doubling(OLD, "INT32").session(y=TensorProto.INT64).run({"x": X.astype(np.int64)})
    assert outputs["y"].dtype == np.int64
    np.testing.assert_array_equal(outputs["y"], 2 * X)


@pytest.mark.parametrize("value", [1 << 31, -(1 << 40)])
def test_an_integer_that_does_not_fit_is_said(value: int) -> None:
    with pytest.raises(RunError, match="the input 'x' holds values past int32, which TensorRT takes"):
        doubling(OLD, "INT32").session().run({"x": np.full((2, 3), value, np.int64)})


def test_an_input_that_is_missing_is_said() -> None:
    with pytest.raises(RunError, match="the engine wants an input 'x', and there is none of that name"):
        doubling().session().run({"z": X})


def test_a_shape_that_it_does_not_take_is_said() -> None:
    with pytest.raises(RunError, match=r"the engine does not take the shape \[2, 4\] of 'x'"):
        doubling().session().run({"x": np.zeros((2, 4), np.float32)})


@given(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from([OLD, WEAK]))
def test_an_output_whose_size_is_known_late(shape: tuple[int, ...], version: str) -> None:
    wanted = np.random.default_rng(0).random(shape, np.float32)
    tensors = {
        "x": ("INPUT", "FLOAT", (2, 3), "DEVICE"),
        "late": ("OUTPUT", "FLOAT", (-1, *shape[1:]), "DEVICE"),
        "y": ("OUTPUT", "FLOAT", (2, 3), "DEVICE"),
    }
    engine = Engine(version, tensors, lambda fed: {"late": wanted, "y": fed["x"] + np.float32(1)})
    outputs = engine.session().run({"x": X})
    assert list(outputs) == ["late", "y"]
    np.testing.assert_array_equal(outputs["late"], wanted)
    np.testing.assert_array_equal(outputs["y"], X + 1)
    assert engine.library.held == {}


def test_shapes_are_read_and_written_on_the_host() -> None:
    tensors = {
        "x": ("INPUT", "FLOAT", (2, 3), "DEVICE"),
        "size": ("INPUT", "INT32", (2,), "HOST"),
        "shape": ("OUTPUT", "INT32", (2,), "HOST"),
        "y": ("OUTPUT", "FLOAT", (2, 3), "DEVICE"),
    }
    engine = Engine(OLD, tensors, lambda fed: {"shape": fed["size"] + np.int32(1), "y": fed["x"]})
    outputs = engine.session(shape=TensorProto.INT64).run({"x": X, "size": np.array([3, 2])})
    np.testing.assert_array_equal(outputs["shape"], [4, 3])
    np.testing.assert_array_equal(outputs["y"], X)


def test_every_tensor_is_aligned_and_none_overlaps() -> None:
    seen: dict[str, int] = {}
    tensors: dict[str, Tensor] = {f"x{n}": ("INPUT", "HALF", (n,), "DEVICE") for n in range(1, 6)}
    tensors |= {f"y{n}": ("OUTPUT", "HALF", (n,), "DEVICE") for n in range(1, 6)}
    engine = Engine(OLD, tensors, lambda fed: {name.replace("x", "y"): value for name, value in fed.items()})
    keep = engine.context.values["set_tensor_address"]

    def set_tensor_address(name: str, address: int) -> None:
        seen[name] = address
        keep(name, address)

    engine.context.values["set_tensor_address"] = set_tensor_address
    feed = {f"x{n}": np.full(n, n, np.float16) for n in range(1, 6)}
    outputs = engine.session().run(feed)
    base = min(seen.values())
    assert all((address - base) % 256 == 0 for address in seen.values())
    assert len(set(seen.values())) == 10
    for n in range(1, 6):
        np.testing.assert_array_equal(outputs[f"y{n}"], feed[f"x{n}"])


@pytest.mark.parametrize(
    ("says", "signature", "poisoned"),
    [
        (
            "1: [a.cpp::b::1] Error Code 1: Cuda Runtime (an illegal memory access was encountered)",
            "an illegal memory",
            True,
        ),
        ("2: [a.cpp::b::1] Error Code 2: OutOfMemory (no further information)", "out of memory", False),
        ("3: [a.cpp::b::12] Error Code 3: API Usage Error (bad 77)", "bad #", False),
    ],
)
def test_a_run_that_fails_gives_its_memory_back(says: str, signature: str, *, poisoned: bool) -> None:
    engine = doubling()
    session = engine.session()
    engine.says = says
    with pytest.raises(RunError) as error:
        session.run({"x": X})
    assert error.value.signature.startswith(signature)
    assert error.value.poisoned is poisoned
    assert engine.library.held == {}
    engine.says = None
    np.testing.assert_array_equal(session.run({"x": X})["y"], 2 * X)


@pytest.mark.parametrize(
    ("call", "status", "signature", "poisoned"),
    [
        ("cudaMalloc", 2, "out of memory", False),
        ("cudaMalloc", 700, "CUDA error # in cudaMalloc: an illegal memory access was encountered", True),
        (
            "cudaStreamSynchronize",
            700,
            "CUDA error # in cudaStreamSynchronize: an illegal memory access was encountered",
            True,
        ),
    ],
)
def test_cudas_own_failures(call: str, status: int, signature: str, *, poisoned: bool) -> None:
    engine = doubling()
    engine.library.broken = {call: status}
    if status == 700:  # every later call fails too, which must not hide the first
        engine.library.broken["cudaFree"] = status
    with pytest.raises(RunError) as error:
        engine.session().run({"x": X})
    assert (error.value.signature, error.value.poisoned) == (signature, poisoned)


def test_no_context_can_be_made() -> None:
    engine = doubling()
    engine.engine.values["create_execution_context"] = lambda: engine.tensorrt.log.errors.append("2: OutOfMemory")
    with pytest.raises(RunError) as error:
        engine.session()
    assert error.value.signature == "out of memory"
