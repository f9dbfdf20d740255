"""Pictures of errors: they are drawn whatever the tensors are, and say so where they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine
from support import TARGET, compared, overflowing, read_json

from bisect_trt.report import plots
from bisect_trt.tensors.tolerance import Tolerance

pytest.importorskip("matplotlib")
FLAGS = ["--save-heatmaps", "heat", "--save-error-metrics-plot", "metrics"]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 2000


def test_run_draws_each_output(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    words = ["--iterations", "2", "--onnx-outputs", "big_out", *FLAGS, "--json", "r.json"]
    drawn = [Path(path) for path in cli("run", model, *TARGET, *words).ended(1).result["pictures"]]
    assert len(drawn) == 2 * 2
    assert all(is_picture(path) for path in drawn)
    names = {path.name for path in Path("heat").iterdir()}
    assert {"big_out-sample1.heatmap.png", "big_out-sample2.heatmap.png"} <= names


def test_saved_results_are_drawn(cli: CommandLine) -> None:
    a: dict[str, Any] = {
        "y/$x_1$:0": np.zeros((2, 3, 4)),
        "s": np.array("text"),
        "z": np.ones(3),
        "e": np.zeros((0, 2)),
        "k": np.array(["t"]),
    }
    np.savez("a.npz", **a)
    np.savez("b.npz", **{**a, "y/$x_1$:0": np.full((2, 3, 4), np.nan), "z": np.ones(4)})
    ran = cli("run", "--load-outputs", "a.npz", "b.npz", *FLAGS, "--json", "r.json").ended(1)
    assert all(f"no plot of '{name}'" in ran.out for name in ("s", "z", "e"))
    assert all(is_picture(Path(path)) for path in read_json(Path("r.json"))["pictures"])
    assert len(list(Path("metrics").iterdir())) == 1


@pytest.mark.parametrize(("shape", "dtype"), [((), "float32"), ((3,), "bool"), ((70, 900), "float32")])
def test_every_shape_and_type_is_drawn(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    reference: Any = (rng.random(shape) * 3).astype(dtype)
    target: Any = (rng.random(shape) * 3).astype(dtype)
    comparison = compared("t", reference, target, Tolerance(1e-5, 1e-5))
    assert plots.can_be_drawn(target, reference)
    for draw in (plots._heatmap, plots._scatter):
        plots.draw_figure(tmp_path / "plot.png", comparison, target, reference, draw)
        assert is_picture(tmp_path / "plot.png")


def test_names_of_files_differ() -> None:
    names = ["a/b", "a_b", "a:b", "a b", "../x", "x" * 300, "x" * 301, "", "日本"]
    files = [plots.file_name(name, None, "k") for name in names]
    assert len(set(files)) == len(names)
    assert all("/" not in file and len(file) < 200 for file in files)


def test_what_stands_in_the_way_is_said_first(cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overflowing(here / "m.onnx")
    ran = cli("run", "m.onnx", *TARGET, "--save-heatmaps", "m.onnx")
    assert (ran.status, "--save-heatmaps m.onnx is a file" in ran.error) == (2, True)
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    ran = cli("run", "m.onnx", *TARGET, "--save-heatmaps", "h")
    assert (ran.status, "pip install matplotlib" in ran.error) == (4, True)
