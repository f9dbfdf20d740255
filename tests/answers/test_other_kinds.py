"""A model that fails in several ways: each failure is found, whichever is seen first, and none hides that another is left."""

from __future__ import annotations

import json
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from support import rest_slow

from answers import models
from answers.record import run_row
from answers.rows import Row
from bisect_trt.report.result import read_result
from bisect_trt.report.summary import summary

PAIRS = rest_slow(permutations(("refuse", "wrong", "nan", "crash"), 2), now=4)


def diagnosed(folder: Path, names: str, *options: str) -> dict[str, Any]:
    """The answer about a chain whose nodes have these names; the value in its middle is an output too."""
    row = Row(
        "kinds",
        partial(models.two_outputs, names=names),
        (" ".join(("diagnose m.onnx --onnxrt", *options)),),
    )
    run_row(row, folder)
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_kind_is_followed(tmp_path: Path, first: str, second: str) -> None:
    answer = diagnosed(tmp_path, f"a {first}.b c d {second}.e f", "--all")
    culprits = [[each["name"] for each in failure["culprits"]] for failure in answer["failures"]]
    assert sorted(culprits) == sorted([[f"{first}.b"], [f"{second}.e"]])
    assert {failure["minimality"] for failure in answer["failures"]} == {"1-minimal"}
    assert answer["more_failures"] is False


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_what_is_left_is_never_denied(tmp_path: Path, first: str, second: str) -> None:
    assert diagnosed(tmp_path, f"a {first}.b c d {second}.e f")["more_failures"] is True


def test_all_kinds_at_once(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path, "wrong.a crash.b c nan.d refuse.e f", "--all")
    culprits = {each["name"] for failure in answer["failures"] for each in failure["culprits"]}
    assert culprits == {"wrong.a", "crash.b", "nan.d", "refuse.e"}
    folders = [Path(failure["reduced"]).parent for failure in answer["failures"]]
    assert len({*folders}) == 4
    (report,) = tmp_path.glob(".bisect-trt/*/result.json")
    result = read_result(report)
    rows = summary(result)
    assert ("Wrote", ", ".join(f"{folder}/" for folder in folders)) in rows
    proofs = [text for label, text in rows if label == "Proof"]
    assert [
        f"{folder}/reproduce.py" in text for folder, text in zip(folders, proofs, strict=True)
    ] == [True] * 4
    assert answer["more_failures"] is False
