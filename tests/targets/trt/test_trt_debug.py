"""Debug tensors: what a listener does with what TensorRT tells it.

Written against TensorRT's documentation, as 10.12 and later need another GPU machine than there was; so the module is a
stand-in with the names of its API list, and memory is the host's. Capsules are real.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from support import overflowing
from trt_api import OLD, STRONG, WEAK
from trt_standin import StandIn, make_tensorrt, trt_target

from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.trt import build, builder
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.build import TensorRtRuntime
from bisect_trt.targets.trt.debug import UnfusedSession, make_listener
from bisect_trt.targets.trt.parse import Parsed
from bisect_trt.tensors.info import dtype_from_name

STREAM = 7
MARK = ("mark_unfused_tensors_as_debug_tensors",)


class HostCuda:
    """CUDA whose device memory is the host's; it knows in what order it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def peek(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...], stream: int) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        self.asked.append(("peek", stream))
        return array

    def synchronize(self, stream: int) -> None:
        self.asked.append(("synchronize", stream))


def capsule(array: NDArray[Any], name: bytes | None = None) -> Any:
    """The address of an array as TensorRT's bindings hand it over."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(array.ctypes.data, name, None)


@pytest.fixture(params=[WEAK, STRONG])
def tensorrt(request: pytest.FixtureRequest) -> TensorRt:
    found = make_tensorrt(request.param)
    found.cuda = HostCuda()  # type: ignore[assignment]  # as much of it as is used
    return found


def tell(listener: Any, tensorrt: TensorRt, name: str, array: NDArray[Any], kind: str, where: str = "DEVICE") -> bool:
    """What TensorRT does for each debug tensor: by position, as the documentation lists them."""
    location, types = getattr(tensorrt.trt.TensorLocation, where), tensorrt.trt.DataType
    told: bool = listener.process_debug_tensor(
        capsule(array), location, getattr(types, kind), array.shape, name, STREAM
    )
    return told


@pytest.mark.parametrize("where", ["DEVICE", "HOST"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("FLOAT", "float32"), ("HALF", "float16"), ("BF16", "bfloat16"), ("INT64", "int64"), ("BOOL", "bool")],
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)])
def test_a_tensor_is_copied_while_its_memory_is_good(
    tensorrt: TensorRt, where: str, kind: str, dtype: str, shape: tuple[int, ...]
) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype_from_name(dtype))
    wanted = array.copy()
    listener = make_listener(tensorrt)
    assert tell(listener, tensorrt, "t", array, kind, where)
    array[...] = array == 0  # it is TensorRT's again
    seen = listener.tensors["t"]
    assert (seen.dtype, seen.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(seen, wanted)
    assert all(stream == STREAM for _, stream in tensorrt.cuda.asked)  # type: ignore[attr-defined]  # the stand-in's


def test_a_capsule_with_a_name_and_a_plain_number_are_addresses_too(tensorrt: TensorRt) -> None:
    array = np.arange(3, dtype=np.float32)
    listener = make_listener(tensorrt)
    where, kind = tensorrt.trt.TensorLocation.DEVICE, tensorrt.trt.DataType.FLOAT
    for name, address in (("named", capsule(array, b"void*")), ("number", array.ctypes.data)):
        assert listener.process_debug_tensor(address, where, kind, array.shape, name, STREAM)
        assert np.array_equal(listener.tensors[name], array)


def test_what_cannot_be_read_is_noted_and_never_raised(tensorrt: TensorRt) -> None:
    """An exception that leaves a callback of TensorRT's ends the process."""
    listener = make_listener(tensorrt)
    assert tell(listener, tensorrt, "t", np.zeros(2, np.uint8), "INT4")
    assert listener.tensors == {}
    assert "cannot be read" in listener.unread["t"]


class Context:
    """An execution context that tells a listener of tensors when it runs."""

    def __init__(self, version: str) -> None:
        self.given = StandIn(version, "IExecutionContext")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["given"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "given":
            self.__dict__[name] = value
        else:
            setattr(self.given, name, value)


def test_a_session_gives_back_outputs_and_what_was_seen(tensorrt: TensorRt, monkeypatch: pytest.MonkeyPatch) -> None:
    version = tensorrt.trt.__version__
    context = Context(version)
    engine = SimpleNamespace(create_execution_context=lambda: context, num_io_tensors=0)
    session = UnfusedSession(tensorrt, engine, {}, {"shape": "a shape tensor"}, None)  # type: ignore[arg-type]  # as much of it as is used
    ((call, listener),) = context.given.calls
    assert call == "set_debug_listener"
    assert context.given.values == {"unfused_tensors_debug_state": True}
    seen = np.arange(4, dtype=np.float32)

    def execute(*_: Any) -> dict[str, NDArray[Any]]:
        tell(listener, tensorrt, "inner", seen, "FLOAT")
        tell(listener, tensorrt, "__myln_k_arg__bb1_3", seen, "FLOAT")
        tell(listener, tensorrt, "small", np.zeros(2, np.uint8), "INT4")
        return {"out": seen * 2}

    monkeypatch.setattr(session, "_execute", execute)
    monkeypatch.setattr("bisect_trt.targets.trt.session._memory", lambda *_: _nothing())
    outputs = session.run({})
    assert outputs.keys() == {"out", "inner", "__myln_k_arg__bb1_3"}
    assert np.array_equal(outputs["inner"], seen)
    assert session.skipped.keys() == {"shape", "small"}
    listener.tensors["old"] = seen
    assert "old" not in session.run({})


class _nothing:  # noqa: N801 - a context manager
    def __enter__(self) -> dict[str, int]:
        return {}

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("version", "marks"), [(OLD, False), (WEAK, True), (STRONG, True)])
def test_tensors_are_marked_before_the_build_where_the_version_can(
    version: str, marks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in builder builds nothing, so that is where it ends."""
    tensorrt = make_tensorrt(version)
    networks: list[StandIn] = []

    def parse(model: ModelProto, *_: Any) -> Parsed:
        counts = {"num_inputs": 0, "num_outputs": 0, "num_layers": 0}
        networks.append(StandIn(version, "INetworkDefinition", counts))
        return Parsed(networks[-1], model)

    monkeypatch.setattr(build, "tensorrt", lambda: tensorrt)
    monkeypatch.setattr(builder, "parse", parse)
    runtime, model = TensorRtRuntime(trt_target()), overflowing(tmp_path / "model.onnx")
    with pytest.raises(BuildError):
        runtime.load(model)
    assert MARK not in networks.pop().calls
    if marks:
        with pytest.raises(BuildError):
            runtime.load_unfused(model)
        assert MARK in networks.pop().calls
    else:
        assert runtime.load_unfused(model) is None
        assert not networks


def test_a_prebuilt_engine_is_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "tensorrt", lambda: make_tensorrt(WEAK))
    runtime = TensorRtRuntime(trt_target(load_engine=str(tmp_path / "a.engine")))
    assert runtime.load_unfused(tmp_path / "model.onnx") is None
