"""``run --check-average``, and results that are saved under another statistic or threshold: nothing is run for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import CommandLine
from support import chain, read_json


@pytest.fixture
def saved(here: Path) -> list[str]:
    """Three samples of two outputs; of the first one is far off, of the second all are right."""
    rng = np.random.default_rng(5)
    for number in (1, 2, 3):
        right = {"a": rng.normal(size=(2, 8)).astype(np.float32), "b": np.ones(3, np.float32)}
        off = 0.3 if number == 2 else 1e-4
        np.savez(here / f"right-{number}.npz", a=right["a"], b=right["b"])
        np.savez(here / f"ours-{number}.npz", a=right["a"] + np.float32(off), b=right["b"])
    return ["run", "--load-outputs", "ours.npz", "right.npz"]


def verdicts(cli: CommandLine, *words: str) -> tuple[int, list[bool], list[bool] | None]:
    """The exit status, and what each comparison and each average says."""
    ran = cli(*words, "--json", "r.json")
    found = read_json(Path("r.json"))
    averages = found.get("averages")
    each = [comparison["passed"] for comparison in found["comparisons"]]
    return ran.status, each, None if averages is None else [average["passed"] for average in averages]


@pytest.mark.parametrize(
    ("words", "each", "average"),
    [
        (["--check-error-stat", "max", "--atol", "0.2"], [True, True, False, True, True, True], [True, True]),
        (["--check-error-stat", "max", "--atol", "0.05"], [True, True, False, True, True, True], [False, True]),
        (["--compare", "psnr", "--psnr-threshold", "40"], [True, True, False, True, True, True], [True, True]),
        (["--compare", "l2", "--l2-threshold", "0.1"], [True, True, False, True, True, True], [False, True]),
        (
            ["--check-error-stat", "max", "--atol", "0.11", "--rtol", "0"],
            [True, True, False, True, True, True],
            [True, True],
        ),
    ],
)
def test_thresholds_of_saved_results(
    cli: CommandLine, saved: list[str], words: list[str], each: list[bool], average: list[bool]
) -> None:
    assert verdicts(cli, *saved, *words) == (1, each, None)
    status = 0 if all(average) else 1
    assert verdicts(cli, *saved, *words, "--check-average") == (status, each, average)


def test_an_output_without_a_number_fails_the_average(cli: CommandLine, saved: list[str], here: Path) -> None:
    np.savez(here / "ours-3.npz", a=np.zeros((1, 2), np.float32), b=np.ones(3, np.float32))
    status, _, averages = verdicts(cli, *saved, "--check-error-stat", "mean", "--atol", "9", "--check-average")
    assert (status, averages) == (1, [False, True])


def test_a_target_is_averaged_too(cli: CommandLine, here: Path) -> None:
    words = ["run", str(chain(here / "c.onnx")), "--onnxrt", "--iterations", "2", "--compare", "quality_metrics"]
    assert verdicts(cli, *words, "--check-average") == (0, [True, True], [True])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "elemwise looks at each element and has no number to average"),
        (["--check-error-stat", "max", "--fail-fast"], "--fail-fast stops at the first"),
        (["--compare", "indices"], "indices or a script of yours give none"),
    ],
)
def test_what_cannot_be_averaged(cli: CommandLine, saved: list[str], words: list[str], message: str) -> None:
    ran = cli(*saved, *words, "--check-average")
    assert ran.status == 2
    assert message in ran.error
