"""The runner on engines of the stand-in: buffers, types, sizes known late, failures, files, and ``reproduce.py``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from building import save_proto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support import case_of, overflowing
from trt_standin import OLD, STRONG, VERSIONS, WEAK, World, plain, trt_target

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.report.reproducer import render_script
from bisect_trt.steps.build_choices import read_choices
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.choices import LAYERS, RECORD, TIMINGS
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.targets.trt.runner import TrtRunner
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison

X = np.arange(6, dtype=np.float32).reshape(2, 3)
on_each = pytest.mark.parametrize("version", VERSIONS)


def doubling(path: Path, element: int = TensorProto.FLOAT) -> Path:
    """A model with an input ``x`` and an output ``y``."""
    x, y = ((name, element, (2, 3)) for name in "xy")
    return save_proto(path, [helper.make_node("Add", ["x", "x"], ["y"], name="double")], [x], [y])


def run(
    world: World, monkeypatch: pytest.MonkeyPatch, path: Path, asked: TargetSettings, **feed: Any
) -> Any:
    """The outputs of a model on the stand-in; all memory is given back."""
    world.feed = feed or {"x": X}
    world.start(monkeypatch)
    session = Runtime(asked).load(path, world.feed)
    try:
        return session.run(world.feed)
    finally:
        assert world.cudart.held == {}


@on_each
def test_a_model_runs(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(version)
    outputs = run(world, monkeypatch, doubling(tmp_path / "m.onnx"), trt_target())
    np.testing.assert_array_equal(outputs["y"], 2 * X)
    assert (world.set_flags, world.strong) == (set(), version == STRONG)


@on_each
def test_tensors_that_the_compiler_keeps_are_returned_too(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU with TensorRT 10.12 or later was at hand: the signature of the listener is that of its bindings."""
    world = World(version)
    world.kept = {"inner": np.arange(3, dtype=np.float16), "size": np.arange(2, dtype=np.int32)}
    world.host = {"size"}
    asked = trt_target(debug_tensors=True)
    if version == OLD:
        with pytest.raises(UsageError, match=r"--debug-tensors needs TensorRT 10\.12"):
            run(world, monkeypatch, doubling(tmp_path / "m.onnx"), asked)
        return
    outputs = run(world, monkeypatch, doubling(tmp_path / "m.onnx"), asked)
    assert list(outputs) == ["inner", "size", "y"]
    for name, value in world.kept.items():
        np.testing.assert_array_equal(outputs[name], value)
        assert outputs[name].dtype == value.dtype


@pytest.mark.parametrize(
    ("version", "asked", "flags", "strong"),
    [
        (OLD, {}, {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, False),
        (WEAK, {}, {"FP16", "OBEY_PRECISION_CONSTRAINTS"}, False),
        (WEAK, {"strongly_typed": True}, set(), True),
        (STRONG, {}, set(), True),
    ],
)
def test_half_precision_is_in_the_model_or_asked_for(
    version: str,
    asked: dict[str, Any],
    flags: set[str],
    strong: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(version, lambda fed: {"b0_out": fed["x"]})
    path = overflowing(tmp_path / "m.onnx", 1, 1)
    run(world, monkeypatch, path, trt_target("fp16", keep=("big_out",), **asked))
    assert (world.set_flags, world.strong) == (flags, strong)
    casts = [node for node in world.parsed[-1].graph.node if node.op_type == "Cast"]
    assert bool(casts) is strong
    told = {
        each.values["name"]: each.values["precision"]
        for each in world.layers
        if "precision" in each.values
    }
    assert told == ({} if strong else {"big": world.trt.DataType.FLOAT})


@on_each
@pytest.mark.parametrize("given_dtype", ["float64", "float16", "int64"])
def test_values_are_cast_to_what_the_engine_takes(
    version: str, given_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(version)
    run(world, monkeypatch, doubling(tmp_path / "m.onnx"), trt_target())
    session = Runtime(trt_target()).load(tmp_path / "m.onnx", {"x": X})
    assert [(info.name, info.dtype, info.shape) for info in session.inputs] == [
        ("x", np.dtype(np.float32), (2, 3))
    ]
    np.testing.assert_array_equal(
        session.run({"x": X.astype(given_dtype).T.copy().T, "more": X})["y"], 2 * X
    )


def test_outputs_get_the_type_that_the_model_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT before 10 computes int64 as int32, and an integer that does not fit is refused."""
    path = doubling(tmp_path / "m.onnx", TensorProto.INT64)
    world = World(OLD)
    outputs = run(world, monkeypatch, path, trt_target(), x=X.astype(np.int32))
    assert outputs["y"].dtype == np.int64
    session = Runtime(trt_target()).load(path, world.feed)
    with pytest.raises(RunError, match="holds values past int32"):
        session.run({"x": np.full((2, 3), 1 << 31, np.int64)})
    with pytest.raises(RunError, match="wants an input 'x'"):
        session.run({"z": X})
    with pytest.raises(RunError, match=r"does not take the shape \[2, 4\] of 'x'"):
        session.run({"x": np.zeros((2, 4), np.int32)})


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    st.sampled_from([OLD, WEAK]),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_sizes_that_are_known_late_and_tensors_on_the_host(
    tmp_path: Path, shape: tuple[int, ...], version: str, on_host: bool
) -> None:
    late = np.random.default_rng(0).random(shape, np.float32)
    world = World(version, lambda fed: {"late": late, "y": fed["x"] + 1, "z": fed["x"] - 1})
    world.late = {"late"}
    world.host = {"x", "z"} if on_host else set()
    with pytest.MonkeyPatch.context() as patch:
        outputs = run(world, patch, doubling(tmp_path / "m.onnx"), trt_target())
    assert list(outputs) == ["late", "y", "z"]
    for name, value in {"late": late, "y": X + 1, "z": X - 1}.items():
        np.testing.assert_array_equal(outputs[name], value)
    places = [
        address
        for name, address in world.addresses.items()
        if name in "xyz" and name not in world.host
    ]
    assert len({place % 256 for place in places}) == 1
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("says", "signature", "poisoned"),
    [
        (
            "1: [a.cpp::b::1] Error Code 1: Cuda Runtime (an illegal access)",
            "an illegal access",
            True,
        ),
        (
            "2: [a.cpp::b::1] Error Code 2: OutOfMemory (no further information)",
            "out of memory",
            False,
        ),
        ("3: [a.cpp::b::12] Error Code 3: API Usage Error (bad 77)", "bad #", False),
    ],
)
def test_a_run_that_fails_gives_its_memory_back(
    says: str, signature: str, *, poisoned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(OLD)
    world.fails = says
    with pytest.raises(RunError) as error:
        run(world, monkeypatch, doubling(tmp_path / "m.onnx"), trt_target())
    assert (error.value.sign(), error.value.poisoned) == (signature, poisoned)


@pytest.mark.parametrize(
    ("call", "status", "signature"),
    [
        ("cudaMalloc", 2, "out of memory"),
        ("cudaMalloc", 700, "CUDA error # in cudaMalloc: an illegal memory access"),
        (
            "cudaStreamSynchronize",
            700,
            "CUDA error # in cudaStreamSynchronize: an illegal memory access",
        ),
    ],
)
def test_failures_of_cuda_itself(
    call: str, status: int, signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(OLD)
    world.feed = {"x": X}
    world.start(monkeypatch)
    session = Runtime(trt_target()).load(doubling(tmp_path / "m.onnx"), world.feed)
    world.cudart.broken = {call: status} | (
        {"cudaFree": status} if status == 700 else {}
    )  # which must not hide the first
    with pytest.raises(RunError) as error:
        session.run(world.feed)
    assert (error.value.sign(), error.value.poisoned) == (signature, status != 2)


@on_each
def test_files_of_a_build(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "record").mkdir()
    engine = tmp_path / "m.engine"
    cache = tmp_path / "cache"
    asked = trt_target(save_engine=str(engine), save_timing_cache=str(cache), record=str(folder))
    world = World(version)
    run(world, monkeypatch, doubling(tmp_path / "m.onnx"), asked)
    assert (engine.read_bytes(), cache.read_bytes()) == (b"plan", b"timings")
    assert {each.name for each in folder.iterdir()} == {RECORD, LAYERS, TIMINGS}
    assert read_choices(json.loads((folder / RECORD).read_text())) == []
    np.testing.assert_array_equal(
        run(world, monkeypatch, tmp_path / "m.onnx", trt_target(load_engine=str(engine)))["y"],
        2 * X,
    )
    assert Runtime(trt_target(load_engine=str(engine))).runner.describe_engine()["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [2, 3]}
    ]


def test_a_prebuilt_engine_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "e.plan"
    world = World(OLD)
    engine.write_bytes(b"plan")
    for says, kind, match in (
        (
            "6: The engine plan file is not compatible",
            UnavailableError,
            "cannot load the engine .*e.plan: The engine",
        ),
        ("2: [a.cpp::b::1] Error Code 2: OutOfMemory (12 bytes)", RunError, "out of memory"),
    ):
        world.rejects = says
        with pytest.raises(kind, match=match):
            run(
                world,
                monkeypatch,
                doubling(tmp_path / "m.onnx"),
                trt_target(load_engine=str(engine)),
            )
    with pytest.raises(UnavailableError, match="cannot be read"):
        run(world, monkeypatch, tmp_path / "m.onnx", trt_target(load_engine="nowhere"))


@on_each
def test_what_a_trace_tells(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(version)
    world.start(monkeypatch)
    trace = Runtime(trt_target()).trace(doubling(tmp_path / "m.onnx"), {"x": X})
    assert trace["flags"] == list(world.trt.BuilderFlag.__members__)
    assert len(trace["sources"]) == 1
    json.dumps(trace)


class Broken:
    """CUDA whose calls all give one status."""

    def __init__(self, status: int) -> None:
        self.cudaGetDeviceCount = lambda _: status
        self.cudaGetErrorString = lambda _: b"why"


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (0, "there is no NVIDIA GPU here"),
        (100, "there is no NVIDIA GPU here"),
        (
            35,
            r"CUDA cannot use the GPU: CUDA error 35 in cudaGetDeviceCount: why; update the driver",
        ),
        (999, "CUDA cannot use the GPU: CUDA error 999"),
    ],
)
def test_without_a_gpu(status: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(OLD)
    world.cudart = Broken(status)  # type: ignore[assignment]  # as much of it as is called
    with pytest.raises(UnavailableError, match=f"^{says}"):
        world.start(monkeypatch)


def test_a_tensorrt_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(OLD)
    world.trt.__version__ = "8.5.3.1"
    with pytest.raises(
        UnavailableError, match=r"^TensorRT 8\.5\.3\.1 is too old; install 8\.6 or later\.$"
    ):
        world.start(monkeypatch)

    def refuse(logger: Any) -> None:
        logger.log(world.trt.ILogger.WARNING, "CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    world.trt.__version__ = OLD
    world.trt.Builder = refuse
    with pytest.raises(
        UnavailableError,
        match="cannot use this GPU: CUDA initialization failure with error: 35; update",
    ):
        world.start(monkeypatch)


def test_a_library_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(WEAK)
    library = tmp_path / "a.so"
    library.write_text("nothing")
    world.start(monkeypatch)
    with pytest.raises(UsageError, match=r"--plugins: .*a\.so cannot be loaded"):
        TrtRunner(plain(trt_target(plugins=(str(library),))))


def rendered(asked: TargetSettings, folder: Path, failure: str) -> str:
    """``reproduce.py`` of a model that doubles, beside it."""
    doubling(folder / "m.onnx")
    np.savez(folder / "inputs.npz", x=X)
    hints = {"inputs": ["x"], "outputs": ["y"], "lowered": False, "nodes": [["double", ["y"]]]}
    how = asked.target.script(asked, hints)
    seen = [TensorComparison("y", False, ComparisonKind.MISMATCH, atol=1e-3, rtol=1e-3)]
    return render_script(how, seen, case_of(failure, names=["x", "y", "double"], target="TensorRT"))


def judged(
    world: World, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Any
) -> int:
    """The exit status of a script's inner process, in this one, on the stand-in."""
    np.savez(folder / "golden.npz", y=golden)
    world.feed = {"x": X}
    world.start(monkeypatch)
    module = ModuleType("reproduced")
    module.__file__ = str(folder / "reproduce.py")
    monkeypatch.setitem(sys.modules, "reproduced", module)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(compile(source, "reproduce.py", "exec"), module.__dict__)
    found = vars(module)
    monkeypatch.setattr(module, "load_cuda", lambda: found["Cuda"](world.cudart))
    status: int = found["_judge"](found["CASE"], found["make"])
    return status


@on_each
def test_a_script_shows_the_failure(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = 1
    gone = 0
    unknown = 2
    source = rendered(trt_target("fp16", keep=("y",)), tmp_path, "inf")
    assert judged(World(version), source, tmp_path, monkeypatch, X * 2) == gone
    assert judged(World(version), source, tmp_path, monkeypatch, X * 3) == there
    source = rendered(
        trt_target(), tmp_path, "build: Could not find any implementation for node #."
    )
    for says, status in (
        ("Could not find any implementation for node double.", there),
        ("another", unknown),
    ):
        world = World(version)
        world.refuses = says
        assert judged(world, source, tmp_path, monkeypatch, X) == status
    world = World(version)  # a reproducer does not know the names of nodes
    world.refuses = "the parser"
    source = rendered(trt_target(), tmp_path, "build: the ONNX parser: In node #: UNSUPPORTED")
    assert judged(world, source, tmp_path, monkeypatch, X) == there
