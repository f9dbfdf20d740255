"""``reproduce.py`` sets TensorRT up as the adapter does: on the stand-in, both are asked for the same."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_trt_network import norm
from trt_api import VERSIONS
from trt_standin import StandIn, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.graph.lower import first_output
from bisect_trt.targets.base import Minimal
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.standalone import Refused
from bisect_trt.targets.trt import standalone
from bisect_trt.targets.trt.config import check_settings, lowers_by_cast, make_config, network_flags
from bisect_trt.targets.trt.layers import constrain
from bisect_trt.targets.trt.settings import TrtSettings

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "precision_constraints": st.sampled_from(["none", "prefer", "obey"]),
    "lowering": st.sampled_from([None, "cast", "layer"]),
    "layer_precisions": st.sampled_from([(), (("/n/Pow", "fp16"), ("gone", "int8")), (("two", "bf16"),)]),
    "pool_limits": st.sampled_from([(), (("workspace", 1 << 30), ("TACTIC_DRAM", 7))]),
    "tactic_sources": st.sampled_from([None, (), ("cublas", "CUDNN")]),
    "builder_optimization_level": st.sampled_from([None, 0, 5]),
    "strongly_typed": st.booleans(),
    "version_compatible": st.booleans(),
    "hardware_compatibility_level": st.sampled_from([None, "none", "ampere_plus"]),
}


@st.composite
def targets(draw: st.DrawFn) -> TargetSettings:
    low = draw(st.lists(st.sampled_from(["tf32", "fp16", "bf16", "fp8", "int8"]), unique=True))
    changed = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=4))
    target = trt_target(
        *low, keep=draw(st.sampled_from([(), ("p",), ("p", "s")])), **{n: draw(FIELDS[n]) for n in changed}
    )
    return TargetSettings(**{**vars(target), "held": draw(st.booleans())})


def told(thing: StandIn) -> tuple[Any, ...]:
    """What an object was told, in no order: some of it is said one after the other there, and at once here."""
    return sorted(map(repr, thing.calls)), {name: value for name, value in thing.values.items() if not callable(value)}


@given(targets(), st.sampled_from(VERSIONS))
def test_the_same_settings_make_the_same_build(settings: TargetSettings, version: str) -> None:
    tensorrt = make_tensorrt(version)
    trt = tensorrt.trt
    try:
        check_settings(settings, tensorrt)
        wanted = make_config(settings, tensorrt)
    except UsageError:
        assume(False)
    model, network, layers = norm(version)
    constrain(network, model, settings, tensorrt)
    nodes = tuple((node.name, tuple(node.output)) for node in model.graph.node)
    lowered = lowers_by_cast(settings, tensorrt.version)
    assert all(first_output(node) for node in model.graph.node)
    said = settings.target.script(settings, Minimal("m.onnx", lowered=lowered, nodes=nodes)).settings

    config = StandIn(version, "IBuilderConfig")
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    bits, strong, by_reading = standalone.typing_of(trt, said)
    standalone.set_precision(trt, config, said, strong, by_reading)
    standalone.set_limits(trt, config, said)
    _, again, told_layers = norm(version)
    if not strong or by_reading:
        standalone.constrain(trt, again, said, by_reading)
    assert bits == network_flags(settings, tensorrt)
    assert told(config) == told(wanted)
    assert [told(each) for each in told_layers] == [told(each) for each in layers]


class Memory:
    """CUDA's runtime, on the host's memory."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.streams = 0

    def cudaMalloc(self, to: Any, size: ctypes.c_size_t) -> int:  # noqa: N802 - a reference to a pointer; CUDA's name
        buffer = ctypes.create_string_buffer(size.value)
        to._obj.value = ctypes.addressof(buffer)
        self.held[ctypes.addressof(buffer)] = buffer
        return 0

    def cudaFree(self, address: ctypes.c_void_p) -> int:  # noqa: N802 - as above
        del self.held[address.value or 0]
        return 0

    def cudaMemcpy(self, to: Any, source: Any, size: ctypes.c_size_t, _: object) -> int:  # noqa: N802 - as above
        ctypes.memmove(to, source, size.value)
        return 0

    def cudaStreamCreate(self, to: Any) -> int:  # noqa: N802 - as above
        to._obj.value = 1
        self.streams += 1
        return 0

    def cudaStreamDestroy(self, _: object) -> int:  # noqa: N802 - as above
        self.streams -= 1
        return 0

    def cudaStreamSynchronize(self, _: object) -> int:  # noqa: N802 - as above
        return 0


@pytest.mark.parametrize("runs", [True, False])
def test_what_a_run_takes_is_given_back(monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    """A place runs an engine many times in one process."""
    memory, addresses = Memory(), dict[str, int]()
    monkeypatch.setattr(standalone, "load_cudart", lambda: memory)

    def execute(_: int) -> bool:
        ctypes.memmove(addresses["y"], addresses["x"], 8)
        return runs

    context = SimpleNamespace(
        set_input_shape=lambda *_: True,
        get_tensor_shape=lambda _: (2,),
        set_tensor_address=addresses.__setitem__,
        execute_async_v3=execute,
        update_device_memory_size_for_shapes=lambda: 512,
        set_device_memory=lambda *_: None,
    )
    ends = ["x", "y"]
    trt = SimpleNamespace(
        nptype=lambda _: np.float32,
        TensorIOMode=SimpleNamespace(INPUT="x"),
        TensorLocation=SimpleNamespace(HOST="host"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED=2),
    )
    engine = SimpleNamespace(
        num_io_tensors=2,
        get_tensor_name=ends.__getitem__,
        get_tensor_mode=str,
        get_tensor_dtype=str,
        get_tensor_location=str,
        create_execution_context=lambda *_: context,
    )
    settings = vars(TrtSettings(allocation_strategy="runtime"))
    x = np.array([1, 2], np.float32)
    if runs:
        assert standalone.execute(trt, engine, {"x": x}, [], settings)["y"].tolist() == [1, 2]
    else:
        with pytest.raises(Refused, match="the engine does not run"):
            standalone.execute(trt, engine, {"x": x}, [], settings)
    assert addresses.keys() == {"x", "y"}
    assert (memory.held, memory.streams) == ({}, 0)
