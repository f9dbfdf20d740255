from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from building import BARE, overflowed, save_text, text_model
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from bisect_trt.steps.second_opinion import installed_versions
from bisect_trt.targets.base import Looked, TargetSettings, reference_settings
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.onnxrt import ALL, FIXED, OFF, OPTIMIZER, OnnxRuntimeSettings, runner
from bisect_trt.targets.onnxrt.runner import OrtSession, find_providers, heard, listen
from bisect_trt.targets.runtime import Runtime, RuntimeSession

FP16 = TargetSettings(fp16=True)
X = np.full((2, 3), 900, np.float32)


def load(path: Path, settings: TargetSettings | None = None) -> RuntimeSession:
    return Runtime(settings or reference_settings()).load(path)


def square_root_of_square(path: Path) -> Path:
    return save_text(
        path, "(float[2, 3] x) => (float[2, 3] y)", "p = Pow(x, two) y = Sqrt(p)", {"two": 2.0}
    )


def of(path: Path, body: str, outputs: Sequence[str]) -> Path:
    """A model whose outputs are known by name alone."""
    model = text_model("(float[2, 3] x) => ()", body, {"two": 2.0}, opset=15)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.output.extend(BARE(name=name) for name in outputs)
    onnx.save(model, path)
    return path


def test_the_reference_has_the_same_bits_without_spinning() -> None:
    light = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    ready, waiting = (
        Runtime(reference_settings(spinning=spinning)).load(light) for spinning in (True, False)
    )
    image = np.linspace(-1, 1, 3 * 224 * 224, dtype=np.float32).reshape(1, 3, 224, 224)
    feed = {info.name: image for info in ready.inputs}
    for name, value in ready.run(feed).items():
        assert value.tobytes() == waiting.run(feed)[name].tobytes()


@pytest.mark.parametrize("optimize", [False, True])
def test_fp16_overflows_where_a_gpu_would(tmp_path: Path, optimize: bool) -> None:
    model = square_root_of_square(tmp_path / "m.onnx")
    own = OnnxRuntimeSettings(graph_optimization_level=ALL if optimize else OFF)
    full, half = (
        load(model, TargetSettings(fp16=fp16, own=own)).run({"x": X}) for fp16 in (False, True)
    )
    assert list(full) == list(half) == ["y"]
    assert np.array_equal(full["y"], X)
    assert overflowed(half["y"])


def test_members_of_sequences_and_optionals_have_names(tmp_path: Path) -> None:
    body = "parts = SplitToSequence<axis = 0>(x) y = ConcatFromSequence<axis = 0>(parts) maybe = Optional(x)"
    session = load(of(tmp_path / "m.onnx", body, ["parts", "y", "maybe"]))
    assert isinstance(session, OrtSession)
    made = session.run({"x": X})
    rows = [f"parts[{place}]" for place in range(len(X))]
    assert [*made] == [*rows, "y", "maybe[value]"]
    assert np.array_equal(made["y"], X)
    assert np.array_equal(made["maybe[value]"], X)
    assert np.array_equal(np.concatenate([np.atleast_2d(made[row]) for row in rows]), X)
    assert not session.skipped


# Weights outside the model
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [TargetSettings(), FP16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("relative", [False, True])
def test_external_data(
    tmp_path: Path, settings: TargetSettings, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    inner = text_model("(float[2, 3] x) => (float[2, 3] y)", "y = Add(x, w)", {"w": X / 3})
    path = folder / "m.onnx"
    onnx.save(inner, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    before = sorted(folder.iterdir())
    if relative:
        monkeypatch.chdir(tmp_path)
        path = path.relative_to(tmp_path)
    expected = (X / 3).astype(np.float16).astype(np.float32) if settings.fp16 else X / 3
    assert np.array_equal(load(path, settings).run({"x": np.zeros_like(X)})["y"], expected)
    assert sorted(folder.iterdir()) == before, "nothing is left beside the model"


# Operators that ONNX does not know
# ------------------------------------------------------------------------------------


def test_types_behind_a_contributed_operator_are_found(tmp_path: Path) -> None:
    """Gelu(900) is 900; its square overflows, though ONNX cannot say that Gelu's output is float32."""
    path = of(tmp_path / "m.onnx", "g = com.microsoft.Gelu(x) p = Pow(g, two) y = Sqrt(p)", ["y"])
    assert np.array_equal(load(path).run({"x": X})["y"], X)
    assert overflowed(load(path, FP16).run({"x": X})["y"])


# Errors ---------------------------------------------------------------------------------------------------------------


def reshape(path: Path, columns: int) -> Path:
    weights = {"shape": np.array([columns, columns])}
    return save_text(
        path, "(float[a, b] x) => (float[] resh)", "r = Relu(x) resh = Reshape(r, shape)", weights
    )


def test_a_failure_while_running_says_where_and_is_the_same_for_other_sizes(tmp_path: Path) -> None:
    errors = []
    for columns in (4, 17):
        session = load(reshape(tmp_path / "m.onnx", columns))
        with pytest.raises(RunError) as caught:
            session.run({"x": X})
        errors.append(caught.value)
    assert errors[0].message.startswith("Reshape node 'resh': ")
    assert "{4,4}" in errors[0].message
    assert "{17,17}" in errors[1].message
    assert errors[0].sign() == errors[1].sign()
    assert not any(letter.isdigit() for letter in errors[0].sign())
    assert_clean(errors[0].message)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "x"),
        ({"x": X, "z": X}, "z"),
        ({"x": X.astype(np.float64)}, "double"),
        ({"x": X[:, :2]}, "Expected: 3"),
    ],
    ids=["none", "unknown", "type", "shape"],
)
def test_wrong_inputs_fail_the_run(
    tmp_path: Path, inputs: dict[str, np.ndarray], said: str
) -> None:
    session = load(square_root_of_square(tmp_path / "m.onnx"))
    with pytest.raises(RunError, match=said) as caught:
        session.run(inputs)
    assert_clean(caught.value.message)


def assert_clean(message: str) -> None:
    assert message
    for noise in (
        "ONNXRuntimeError",
        "\n",
        ".cc:",
        ".h:",
        "onnxruntime::",
        "Status Message",
        "Encountered",
    ):
        assert noise not in message, message


# Providers ------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.sampled_from(("cpu", "CPU", "CPUExecutionProvider", "cpuexecutionprovider")), max_size=3
    )
)
def test_providers_by_long_and_short_names(names: list[str]) -> None:
    assert find_providers(names or ["cpu"]) == ["CPUExecutionProvider"]


CUDA_HERE = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def test_a_gpu_gets_real_fp16_nodes(tmp_path: Path) -> None:
    settings = TargetSettings(fp16=True, own=OnnxRuntimeSettings(("cuda", "cpu")))
    facts = {"providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    lowered = settings.target.lower(settings, square_root_of_square(tmp_path / "m.onnx"), facts)
    assert lowered is not None
    assert [node.op_type for node in lowered.graph.node] == ["Cast", "Pow", "Sqrt", "Cast"]
    assert [tensor.data_type for tensor in lowered.graph.initializer] == [TensorProto.FLOAT16]


@pytest.mark.skipif(
    not CUDA_HERE or Path("/dev/nvidia0").exists(), reason="needs a GPU build and no GPU"
)
@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_gpu_that_is_not_there_is_no_finding_about_the_model(
    tmp_path: Path, provider: str
) -> None:
    """In a process of its own, so that what libraries print is seen."""
    model = square_root_of_square(tmp_path / "m.onnx")
    code = (
        "import sys, pathlib\n"
        "from bisect_trt.errors import UnavailableError\n"
        "from bisect_trt.targets.runtime import Runtime\n"
        "from bisect_trt.targets.onnxrt import ALL, OFF, OnnxRuntimeSettings\n"
        "from bisect_trt.targets.base import TargetSettings\n"
        "try:\n"
        "    Runtime(TargetSettings(own=OnnxRuntimeSettings((sys.argv[2],)))).load(pathlib.Path(sys.argv[1]))\n"
        "except UnavailableError as error:\n"
        "    print(f'unavailable: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model, provider], capture_output=True, text=True, check=True
    )
    lines = done.stdout.lower().splitlines()
    assert lines[-1].startswith(
        f"unavailable: onnx runtime cannot use {provider}executionprovider here"
    )
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (
        1,
        20,
    ):  # 1.18 prints of it too: into a worker's log
        assert len(lines) == 1
        assert done.stderr == ""


def test_an_older_release_gets_a_model_beside_links_and_the_folder_of_its_weights_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(b"weights")
    monkeypatch.setattr(onnxruntime, "__version__", "1.20.1")
    opened: list[Path] = []

    def kill(_: object, model: str) -> None:
        opened.append(Path(model))
        assert opened[0].read_bytes() == b"model"
        assert (opened[0].parent / "w.bin").read_bytes() == b"weights"
        assert [path.name for path in tmp_path.iterdir()] == ["w.bin"]
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.OrtRunner, "_open", kill)
    target = TargetSettings("onnxrt")
    with pytest.raises(KeyboardInterrupt):
        runner.make(target.target.plain(target)).load(
            tmp_path / "m.onnx", {}, {"content": b"model", "weights": str(tmp_path)}
        )
    assert not opened[0].parent.exists()


@pytest.mark.parametrize("refused", [False, True])
def test_all_optimizers_are_switches_where_a_session_is_refused(refused: bool) -> None:
    """The one that throws has logged nothing."""

    def load() -> bool:
        os.write(2, b"GraphTransformer ConstantSharing modified: 1 with status: OK\n")
        os.write(2, b"GraphTransformer GeluFusion modified: 0 with status: OK\n")
        if refused:
            raise BuildError("Exception during initialization")
        return True

    settings = TargetSettings()
    log, opened = listen(load)
    trace = {**heard(log), "refused": opened is None}
    switches = settings.target.switches(settings, Looked(trace, frozenset({"Add"})))
    names = {
        each.name.removeprefix(OPTIMIZER + ":")
        for each in switches
        if each.name.startswith(OPTIMIZER)
    }
    assert "ConstantSharing" in names
    assert (
        {"ConstantFolding", "SimplifiedLayerNormFusion", "TransposeOptimizer"} <= names
    ) is refused
    assert not names & set(FIXED)


@pytest.mark.parametrize(("providers", "expected"), [((), "1.31.1"), (("qnn",), "2.7.0")])
def test_the_version_of_a_provider_is_not_that_of_the_runtime(
    monkeypatch: pytest.MonkeyPatch, providers: Sequence[str], expected: str
) -> None:
    """The newest version here is recommended: ONNX Runtime 2.7.0 does not exist."""
    installed = {"onnxruntime-gpu": "1.31.1", "onnxruntime-qnn": "2.7.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    target = reference_settings().with_own(providers=tuple(providers))
    assert [*installed_versions(target)] == [expected]
