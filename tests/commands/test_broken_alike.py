"""Where a part of the answer breaks in the function in which the original does, "1-minimal" is not said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from support import chain

from bisect_trt.commands.reduce import reduce_model
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import ModelSettings, ReduceSettings, SearchSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.probe.journal import Journal, Record
from bisect_trt.probe.ledger import Budget, Ledger
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober, Runner
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.worker.process import Cancel


@dataclass(frozen=True)
class Refuses:
    """Breaks while the model has two nodes, and in another way while it has one of them."""

    pair: tuple[str, str]
    other: str
    parallel: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        del cancel
        has = {name for node in onnx.load(str(files.model)).graph.node for name in node.output}
        if has.issuperset(self.pair):
            return Outcome(Ending.BROKEN, "run: Conv node #: no kernel for tensor(int8)", "no kernel")
        if self.pair[0] in has:
            return Outcome(Ending.BROKEN, self.other, "it breaks")
        return Outcome(Ending.PASSED, "pass", "it runs")


class Deaf:
    """Nobody needs to be told."""

    def probed(self, record: Record) -> None:
        pass


@pytest.mark.parametrize(
    ("other", "minimality", "why"),
    [
        ("run: Relu node #: no kernel for tensor(float)", "unproven", "whether it is the same failure is not known"),
        ("run: the shapes do not fit", "1-minimal", "the model breaks in another way"),
    ],
)
def test_a_part_that_breaks_in_the_same_function(tmp_path: Path, other: str, minimality: str, why: str) -> None:
    path = chain(tmp_path / "model.onnx", 12)
    console, result = Console(-1), Result("reduce")
    with Subject(ModelSettings(path), Workspace(tmp_path / "run"), console) as subject:
        ledger = Ledger(Journal(tmp_path), Deaf(), Budget())
        prober = Prober(Runner(Refuses(("t3", "t7"), other), subject.workspace, subject.reference), ledger)
        investigation = Session(subject, console, result, prober)
        settings = ReduceSettings(tmp_path / "out.onnx")
        reduce_model(investigation, settings, SearchSettings(shrink=False))
        ledger.close()
    assert sorted(culprit["outputs"][0] for culprit in result.culprits) == ["t3", "t7"]
    assert result.minimality == minimality
    assert result.why is not None
    assert why in result.why
