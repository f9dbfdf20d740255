"""Any node of any real network, and any two, are found exactly; the check runs in this process to afford many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from light import Light, tag_light

from benchmarks.cases import LIGHT_MODELS
from bisect_trt.commands.reduce import find_minimum
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import ModelSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.options.choices import Mode
from bisect_trt.probe.journal import Journal, Record
from bisect_trt.probe.ledger import Budget, Ledger
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober, Runner
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum
from bisect_trt.worker.process import Cancel

SEEDS = range(2)


@dataclass(frozen=True)
class Needs:
    """Fails while the model has all of some nodes."""

    names: frozenset[str]
    parallel: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        del cancel
        has = {node.name for node in onnx.load(str(files.model)).graph.node}
        return Outcome(Ending.FAILED, "bad", "") if self.names <= has else Outcome(Ending.PASSED, "good", "")


class Deaf:
    """Nobody needs to be told."""

    def probed(self, record: Record) -> None:
        pass


def search(subject: Subject, names: list[str], folder: Path) -> Minimum:
    folder.mkdir()
    runner = Runner(Needs(frozenset(names)), subject.workspace, subject.reference)
    ledger = Ledger(Journal(folder), Deaf(), Budget())
    prober = Prober(runner, ledger)
    try:
        prober.probe_original(subject.original)
        investigation = Session(subject, Console(-1), Result("reduce"), prober)
        return find_minimum(investigation, Mode.AUTO)
    finally:
        ledger.close()


def joins(light: Light) -> list[str]:
    """Where branches meet, and the last nodes of the branches."""
    graph = onnx.load(str(light.path)).graph
    maker = {name: node.name for node in graph.node for name in node.output}
    computing = set(light.computing)
    found = []
    for node in graph.node:
        branches = [maker[name] for name in node.input if maker.get(name) in computing]
        if len(branches) > 1:
            found += [node.name, *branches]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_exactly_the_required_nodes_are_left(name: str, tmp_path: Path) -> None:
    light = tag_light(name, tmp_path)
    cases = [light.choose(count, seed) for count in (1, 2) for seed in SEEDS]
    cases += [[light.computing[0]], [light.computing[-1]], [light.computing[0], light.computing[-1]]]
    met = joins(light)
    if met:
        cases += [[met[0]], [met[1]], [met[-1]], met[:2], [met[1], met[-1]]]
    workspace = Workspace(tmp_path / "run")
    with Subject(ModelSettings(light.path), workspace, Console(-1)) as subject:
        for number, names in enumerate(cases):
            minimum = search(subject, names, tmp_path / str(number))
            assert minimum.proven
            assert sorted(culprit["name"] for culprit in subject.describe_searched(minimum.units)) == sorted(names)
            # As a model of its own it is those nodes and makers of weights.
            kept = [node.name for node in subject.cut(minimum.units).proto.graph.node]
            assert not (set(kept) - set(names)) & set(light.computing)
