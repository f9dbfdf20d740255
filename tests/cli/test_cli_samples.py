"""Several input samples in the searches: a candidate fails if it fails on any, and the report names which."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandLine
from support import SHAPE, TARGET, arrays, overflowing, read_json, script

OVERFLOWS_AT = 2.0
"""The model of these tests makes (x + 3) * 3e4 somewhere, which is past fp16 from here on, and not at -2.9."""


@pytest.fixture
def model(here: Path) -> Path:
    return overflowing(here / "model.onnx")


@pytest.fixture
def data(here: Path) -> list[str]:
    """Three samples, of which only the second overflows."""
    (here / "data.py").write_text(
        "import numpy\n"
        "def load_data():\n"
        f"    for value in (-2.9, {OVERFLOWS_AT}, -2.8):\n"
        "        yield {'x': numpy.full((2, 3), value, numpy.float32)}\n"
        "def endless():\n"
        "    while True:\n"
        "        yield from load_data()\n"
    )
    return ["--data-loader-script", "data.py"]


def test_reduce_fails_on_any_sample(cli: CommandLine, model: Path, data: list[str]) -> None:
    # The first sample alone does not fail.
    assert cli("reduce", model, "-o", "none.onnx", *TARGET, *data, "--iterations", "1").status == 1
    cli("reduce", model, "-o", "out.onnx", *TARGET, *data, "--json", "r.json", "-v").ended(0)
    assert {culprit["name"] for culprit in read_json(Path("r.json"))["culprits"]} == {"big"}
    # What lies beside the answer is the sample on which it fails: it fails again with that.
    assert np.isclose(arrays("out.inputs.npz")["a2_out"], OVERFLOWS_AT + 3).all()
    assert cli("run", "out.onnx", *TARGET, "--load-inputs", "out.inputs.npz").status == 1
    folder = next(path.parent for path in Path(".bisect-trt").glob("*reduce*/candidates/*/inputs-3.npz"))
    assert {path.name for path in folder.iterdir()} >= {"inputs.npz", "inputs-2.npz", "golden-2.npz", "golden-3.npz"}


def test_a_command_runs_once_a_sample_until_one_fails(
    cli: CommandLine, model: Path, data: list[str], here: Path
) -> None:
    (here / "check.py").write_text(
        "import os, sys, numpy\n"
        "with numpy.load(sys.argv[1]) as file:\n"
        "    values = [file[name] for name in file.files]\n"
        "assert sys.argv[1] == os.environ['BISECT_TRT_INPUTS']\n"
        "with open('seen.txt', 'a') as seen:\n"
        "    seen.write(os.environ['BISECT_TRT_SAMPLE'])\n"
        "with open(sys.argv[2], 'rb') as file:\n"
        "    has_big = b'big_out' in file.read()\n"
        f"sys.exit(has_big and any((value > {OVERFLOWS_AT} - 0.1).any() for value in values))\n"
    )
    check = ["--check", "python", "check.py", "{inputs}", "{model}"]
    ran = cli("reduce", model, "-o", "out.onnx", *data, "--workers", "1", *check).ended(0)
    assert "sample 2: exit status 1" in ran.out
    seen = Path("seen.txt").read_text()
    assert seen.startswith("12")
    assert "123" in seen  # a candidate that passes is seen on all
    assert re.fullmatch("(?:123|12)*1", seen)  # the last, the rest of the model, is fed what is too large on the first
    # One sample sets no variable.
    check = ["--check", script(here / "check.sh", 'test -z "$BISECT_TRT_SAMPLE" && exit 1'), "{model}"]
    cli("reduce", model, "-o", "other.onnx", *check).ended(0)


@pytest.mark.usefixtures("data")
def test_iterations(cli: CommandLine, model: Path) -> None:
    keep = ["--save-inputs", "x.npz"]
    assert cli("run", model, "--onnxrt", "--iterations", "3", *keep).status == 0
    samples = [arrays(f"x-{number}.npz")["x"] for number in (1, 2, 3)]
    assert not any(np.array_equal(samples[one], samples[other]) for one, other in ((0, 1), (0, 2), (1, 2)))
    assert cli("run", model, "--onnxrt", "--save-inputs", "one.npz").status == 0
    np.testing.assert_array_equal(arrays("one.npz")["x"], samples[0])  # the first is what it always was
    endless = ["--data-loader-script", "data.py:endless", "--iterations", "4"]
    ran = cli("run", model, "--onnxrt", *endless, "--json", "r.json")
    assert [entry["sample"] for entry in read_json(Path("r.json"))["comparisons"]] == [1, 2, 3, 4]
    assert ran.status == 0
    # What was saved as several files is loaded by the name that was given.
    assert cli("run", model, "--onnxrt", "--load-inputs", "x.npz", "--save-inputs", "y.npz").status == 0
    np.testing.assert_array_equal(arrays("y-3.npz")["x"], samples[2])
    assert samples[0].shape == SHAPE
