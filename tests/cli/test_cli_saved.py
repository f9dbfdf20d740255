"""Saved values: formats, Polygraphy's files in both directions, results compared without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine
from support import chain, read_json

from bisect_trt.tensors import saved

ZERO = ["--atol", "0", "--rtol", "0"]


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 2)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_several_samples_are_saved_and_loaded(cli: CommandLine, model: Path, suffix: str) -> None:
    Path("data.py").write_text(
        "import numpy\n"
        "def load_data():\n"
        "    for value in (1, 2, 3):\n"
        "        yield {'x': numpy.full((2, 3), value, numpy.float32)}\n"
    )
    keep = ["--save-inputs", f"x{suffix}", "--save-outputs", f"y{suffix}"]
    assert cli("run", model, "--onnxrt", "--data-loader-script", "data.py", *keep).status == 0
    values = ["--load-inputs", f"x{suffix}", "--load-outputs", f"y{suffix}"]
    cli("run", model, "--onnxrt", *values, *ZERO, "--json", "r.json").ended(0)
    assert [entry["sample"] for entry in read_json(Path("r.json"))["comparisons"]] == [1, 2, 3]
    assert cli("run", "--load-outputs", f"y{suffix}", f"y{suffix}").status == 0
    ran = cli("run", model, "--onnxrt", "--load-outputs", f"y{suffix}")
    assert (ran.status, f"y{suffix} holds 3 sample(s)" in ran.error) == (2, True)


def test_saved_results_alone(cli: CommandLine, here: Path) -> None:
    np.savez("a.npz", y=np.zeros(3, np.float32), z=np.ones(2), only=np.ones(1))
    np.savez("b.npz", y=np.array([0, 0, 0.5], np.float32), z=np.ones(2, np.float32))
    ran = cli("run", "--load-outputs", "a.npz", "b.npz", "--json", "r.json").ended(1)
    first, second = ran.result["comparisons"]
    # As in Polygraphy, the last is what is right.
    assert (first["worst"]["target"], first["worst"]["reference"]) == (0, 0.5)
    assert first["details"]["atol_needed"] == 0.5
    assert (second["name"], second["passed"]) == ("z", True)
    assert "float64 is compared with float32" in ran.out
    assert "passes with --atol 0.5" in ran.out
    assert cli("run", "--load-outputs", "a.npz", "b.npz", "--atol", "0.5").status == 0
    assert cli("run", "--load-outputs", "a.npz", "b.npz", "--onnx-outputs", "z").status == 0
    ran = cli("run", "--load-outputs", "b.npz", "a.npz", "a.npz")
    assert (ran.status, "b.npz has no 'only'" in ran.err) == (1, True)
    assert not list(here.glob(".bisect-trt"))


def test_nan_in_what_is_compared_with(cli: CommandLine) -> None:
    np.savez("a.npz", y=np.array([np.inf, 1.0]))
    np.savez("b.npz", y=np.array([np.nan, 1.0]))
    table = (("a b", 1), ("a a", 1), ("a a equal", 0), ("b b equal", 1), ("a a equal valid", 1))
    options = {"equal": "--infinities-compare-equal", "valid": "--validate"}
    for words, status in table:
        assert (
            cli("run", "--load-outputs", *(options.get(each, f"{each}.npz") for each in words.split())).status == status
        )


def test_other_comparisons(cli: CommandLine) -> None:
    np.savez("a.npz", y=np.array([[0.1, 0.9, 0.5]]), e=np.zeros((0, 4)))
    np.savez("b.npz", y=np.array([[0.2, 0.6, 0.7]]), e=np.zeros((0, 4)))
    common = ["run", "--load-outputs", "a.npz", "b.npz"]
    assert cli(*common).status == 1
    assert cli(*common, "--postprocess", "y:top-3").status == 1
    assert cli(*common, "--postprocess", "y:top-3", "--compare", "indices", "--index-tolerance", "1").status == 0
    assert cli(*common, "--postprocess", "y:top-3", "--compare", "indices").status == 1
    assert cli(*common, "--check-error-stat", "quantile", "--error-quantile", "y:0", "--atol", "0.11").status == 0
    assert cli(*common, "--check-error-stat", "quantile", "--atol", "0.11").status == 1
    np.savez("c.npz", y=np.array([0.2, 0.6, 0.7]), e=np.zeros((4, 0)))
    assert cli("run", "--load-outputs", "c.npz", "b.npz").status == 1
    Path("mine.py").write_text("def near(a, b):\n    return {'y': abs(a['y'] - b['y']).max() < 0.5}\n")
    assert cli(*common, "--compare-func-script", "mine.py:near").status == 0
    Path("mine.py").write_text("def near(a, b):\n    raise KeyError('y')\n")
    assert "mine.py, line 2" in cli(*common, "--compare-func-script", "mine.py:near").error


def polygraphy(capfd: pytest.CaptureFixture[str], *words: str) -> None:
    """Polygraphy's own command line, in this process."""
    from polygraphy.tools._main import main as run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["polygraphy", *words])
        status = run()
    assert not status, capfd.readouterr().err


@pytest.mark.filterwarnings("ignore")  # Polygraphy's own
def test_polygraphys_files_load_here_and_ours_there(
    cli: CommandLine, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("polygraphy")
    theirs = ["--save-inputs", "px.json", "--save-outputs", "py.json", "--iterations", "2", "--seed", "5"]
    polygraphy(capfd, "run", str(model), "--onnxrt", *theirs)
    loaded = ["--load-inputs", "px.json", "--load-outputs", "py.json", *ZERO, "--json", "r"]
    assert len(cli("run", model, "--onnxrt", *loaded).ended(0).result["comparisons"]) == 2
    assert cli("run", model, "--onnxrt", "--load-inputs", "px.json", "--save-outputs", "y.json").status == 0
    assert cli("run", "--load-outputs", "y.json", "py.json", *ZERO).status == 0
    ours = ["--save-inputs", "x.json", "--save-outputs", "z.json", "--seed", "9"]
    assert cli("run", model, "--onnxrt", *ours).status == 0
    polygraphy(capfd, "run", str(model), "--onnxrt", "--load-inputs", "x.json", "--load-outputs", "z.json", *ZERO)
    polygraphy(capfd, "run", "--load-outputs", "z.json", "z.json")


@pytest.mark.filterwarnings("ignore")  # Polygraphy's own
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "str", "bfloat16"])
def test_every_type_goes_through_json(tmp_path: Path, dtype: str) -> None:
    if dtype == "bfloat16":
        values: Any = np.arange(4).astype(pytest.importorskip("ml_dtypes").bfloat16)
    else:
        values = np.array(["a", "bc", "", "d"], object) if dtype == "str" else np.arange(4).astype(dtype)
    for shape in ((4,), (2, 2), (1, 4, 1)):
        path = tmp_path / "v.json"
        for runner in (None, "me"):
            saved.save_samples(path, [{"a/b:0": values.reshape(shape)}], runner)
            again = saved.load_runs(path)[0].samples[0]["a/b:0"]
            assert again.dtype == values.dtype
            assert again.shape == shape
            np.testing.assert_array_equal(again, values.reshape(shape))
            from polygraphy.json import load_json

            load_json(str(path))
