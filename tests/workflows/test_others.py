"""Who may be asked for all failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import chain

from bisect_trt.errors import UsageError
from bisect_trt.probing.journal import Journal, Record
from bisect_trt.probing.ledger import Budget, Ledger
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.prompt import PromptCheck
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.workspace import Workspace
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.reduce import reduce_model
from bisect_trt.workflows.settings import ModelSettings, ReduceSettings, SearchSettings
from bisect_trt.workflows.subject import Subject


class Deaf:
    """Nobody needs to be told."""

    def probed(self, record: Record) -> None:
        pass


def test_nobody_is_asked_for_all_failures_at_a_prompt(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx")
    console = Console(-1)
    with Subject(ModelSettings(path), Workspace(tmp_path / "run"), console) as subject:
        ledger = Ledger(Journal(tmp_path), Deaf(), Budget())
        prober = Prober(Runner(PromptCheck(), subject.workspace, subject.reference), ledger)
        settings = ReduceSettings(tmp_path / "out.onnx", find_all=True)
        with pytest.raises(UsageError, match="too much to answer at a prompt; give a --check command"):
            reduce_model(Investigation(subject, console, Result("reduce"), prober), settings, SearchSettings())
        ledger.close()
