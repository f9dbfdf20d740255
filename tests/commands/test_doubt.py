"""Whether the reference may be wrong is asked where the target matches; the answer does not depend on it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from building import save_text

import bisect_trt
from bisect_trt.steps import arbiter, second_opinion
from bisect_trt.steps.layers import Marking
from bisect_trt.steps.second_opinion import Disagreement, Vote
from bisect_trt.worker.deadline import BudgetSpent


@pytest.fixture
def pooled(here: Path) -> Path:
    """A model that ONNX's evaluator computes in Python, element by element, and ONNX Runtime at once."""
    ends = "(float[1, 1, 200, 200] x) => (float[1, 1, 198, 198] y)"
    body = "a = Add(x, one) b = MaxPool<kernel_shape = [3, 3]>(a) c = Relu(b) y = Neg(c)"
    return save_text(here / "m.onnx", ends, body, {"one": np.float32(1)})


def test_an_evaluator_without_an_answer_in_time_is_asked_once(
    pooled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs one node after the other, so fewer marks make it no faster."""
    asked = []
    votes: list[Disagreement | Vote] = []
    run = Marking.run

    def count(look: Marking, *words: object) -> object:
        asked.append(look.target.runtime)
        return run(look, *words)  # type: ignore[arg-type]  # of one method

    def vote(*words: object) -> Disagreement | Vote:
        votes.append(second_opinion.ask_evaluator(*words))  # type: ignore[arg-type]  # as above
        return votes[-1]

    monkeypatch.setattr(second_opinion, "EVALUATOR_SECONDS", 0.01)
    monkeypatch.setattr(Marking, "run", count)
    monkeypatch.setattr(arbiter, "ask_evaluator", vote)
    answer = bisect_trt.diagnose(pooled, target="onnxrt", output="out", no_other_release=True)
    assert (answer.status, asked, votes) == ("not_reproduced", ["onnx"], [Vote.NONE])


def test_an_answer_is_kept_where_no_time_is_left_to_doubt_it(
    pooled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def end(*_: object) -> None:
        raise BudgetSpent("the budget is spent (--max-time 60).")

    monkeypatch.setattr(arbiter, "ask_evaluator", end)
    with caplog.at_level(logging.INFO, "bisect_trt"):
        answer = bisect_trt.diagnose(pooled, target="onnxrt", output="out")
    assert answer.status == "not_reproduced"
    assert "no time is left to ask whether the reference may be wrong" in caplog.text
