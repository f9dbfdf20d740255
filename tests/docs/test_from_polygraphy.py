"""The options that docs/from-polygraphy.md promises for data, outputs and comparison are there, and do something."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandLine
from support import chain

PAGE = Path(__file__).parents[2] / "docs" / "from-polygraphy.md"
SECTIONS = ("Input data", "Outputs", "Comparison")
PLOTS = "--save-heatmaps h --save-error-metrics-plot m --save-histograms g"
COMMANDS = {
    "run model.onnx --onnxrt --iterations 2 --seed 3 --val-range [0,1] x:[2,3] --save-inputs x.json --save-outputs y.json": 0,
    "run model.onnx --onnxrt --load-inputs x.json --load-outputs y.json --atol 0 --rtol out:0 --fail-fast": 2,
    "run model.onnx --onnxrt --load-inputs x.json --load-outputs y.json --atol 0 --rtol t1:0 --fail-fast": 0,
    "run model.onnx --onnxrt --data-loader-script data.py --data-loader-func-name mine --array-swap-mb 0": 0,
    "layerwise model.onnx --onnxrt --array-swap-mb 0": 1,
    "run --load-outputs a.npz b.npz --check-error-stat elemwise": 1,
    "run --load-outputs a.npz b.npz --check-error-stat mean --atol 0.9": 0,
    "run --load-outputs a.npz b.npz --check-error-stat quantile --error-quantile 0.5 t1:0": 0,
    "run --load-outputs a.npz b.npz --check-error-stat max t1:median": 1,
    "run --load-outputs inf.npz inf.npz": 1,
    "run --load-outputs inf.npz inf.npz --infinities-compare-equal": 0,
    "run --load-outputs inf.npz inf.npz --infinities-compare-equal --validate": 1,
    "run --load-outputs a.npz b.npz --postprocess top-5 --compare indices --index-tolerance 2": 0,
    "run --load-outputs a.npz b.npz --postprocess top-5 --compare indices": 1,
    "run --load-outputs a.npz flat.npz --no-shape-check": 0,
    "run --load-outputs a.npz flat.npz": 1,
    "run --load-outputs a.npz b.npz --compare-func-script compare.py": 0,
}
"""Command lines, and the status that each ends with."""
PICTURES = {
    f"run --load-outputs a.npz b.npz {PLOTS}": 1,
    "layerwise model.onnx --onnxrt --save-error-plot e.png": 1,
}


def promised() -> set[str]:
    """The options in the second column of these sections' tables."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = [section for section in sections if section.splitlines()[0] in SECTIONS]
    assert len(chosen) == len(SECTIONS)
    cells = [line.split("|")[2] for section in chosen for line in section.splitlines() if line.startswith("| ")]
    return {option for cell in cells for option in re.findall(r"--[a-z][a-z-]*", cell)}


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    chain(here / "model.onnx", 2)
    values = np.array([[1.0, 5.0, 3.0]], np.float32)
    np.savez("a.npz", t1=values)
    np.savez("b.npz", t1=np.array([[1.0, 4.0, 4.5]], np.float32))
    np.savez("flat.npz", t1=values.ravel())
    np.savez("inf.npz", t1=np.array([np.inf]))
    Path("data.py").write_text("import numpy\ndef mine():\n    yield {'x': numpy.ones((2, 3), numpy.float32)}\n")
    Path("compare.py").write_text(
        "def compare_outputs(a, b):\n    return {name: a[name].shape == b[name].shape for name in a}\n"
    )


def test_every_command_ends_as_it_should(cli: CommandLine) -> None:
    for words, status in COMMANDS.items():
        ran = cli(*words.split())
        assert ran.status == status, f"{words}\n{ran.out}{ran.err}"


def test_pictures(cli: CommandLine) -> None:
    pytest.importorskip("matplotlib")
    for words, status in PICTURES.items():
        assert cli(*words.split()).status == status, words


def test_every_option_that_the_page_promises_is_in_a_command() -> None:
    used = {word for words in (*COMMANDS, *PICTURES) for word in words.split() if word.startswith("--")}
    assert promised() - used == set()
