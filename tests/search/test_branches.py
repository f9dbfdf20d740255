"""Culprits in parallel branches: exactly those nodes, where "all before one node" holds neither or everything.

Whole models, through the workflow: read, run on the reference, cut, written, probed, written out and read back. Only the
check is a function in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from fakes import scratch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support import node_names

from bisect_trt.commands.reduce import reduce_model
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.ledger import Ledger, Record, Watcher
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober, Runner
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.worker.process import Cancel

pytestmark = pytest.mark.any_version

SHAPE = [1, 4]


class Graph:
    """Collects nodes, each named like the one tensor that it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def add(self, name: str, *inputs: str) -> str:
        self.nodes.append(helper.make_node("Add" if len(inputs) == 2 else "Relu", list(inputs), [name], name=name))
        return name

    def chain(self, name: str, start: str, length: int) -> str:
        """Adds of a weight, ``name0``, ``name1``, ...; the last one's tensor."""
        for place in range(length):
            start = self.add(f"{name}{place}", start, "one")
        return start

    def save(self, path: Path, *outputs: str) -> Path:
        def value(name: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)

        weights = [numpy_helper.from_array(np.ones(SHAPE, np.float32), "one")]
        graph = helper.make_graph(self.nodes, "branches", [value("x")], [value(name) for name in outputs], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
        return path


def residual_blocks(path: Path) -> tuple[Path, list[list[str]]]:
    """16 residual blocks: two branches of three nodes and of one, a join, a Relu."""
    graph, last, branches = Graph(), "x", []
    for block in range(16):
        name = f"block{block:02}."
        ends = graph.chain(f"{name}conv", last, 3), graph.chain(f"{name}skip", last, 1)
        branches += [[f"{name}conv{place}" for place in range(3)], [f"{name}skip0"]]
        last = graph.add(f"{name}relu", graph.add(f"{name}join", *ends))
    graph.save(path, last)
    return path, branches


class ProducesAll:
    """Fails while each of the tensors is made by some node."""

    parallel = True

    def __init__(self, tensors: Sequence[str]) -> None:
        self._tensors = set(tensors)

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:  # noqa: ARG002 - too quick
        made = {name for node in onnx.load(str(files.model)).graph.node for name in node.output}
        if self._tensors <= made:
            return Outcome(Ending.FAILED, "wrong", "they are all made")
        return Outcome(Ending.PASSED, "pass", "one is missing")


class Keeping(Watcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def probed(self, record: Record) -> None:
        self.records.append(record)


class Model:
    """A model that is read and run once, and reduced many times."""

    def __init__(self, folder: Path) -> None:
        path, self.branches = residual_blocks(folder / "model.onnx")
        self.console = Console(-1)
        self.subject = Subject(ModelSettings(path), Workspace(folder / "run"), self.console)

    def reduce(self, culprits: Sequence[str], workers: int) -> tuple[Result, list[str], list[tuple[str, str]]]:
        """The result, the nodes that are left, and all decisions."""
        with scratch() as folder:
            told = Keeping()
            ledger = Ledger(Path(folder), [told])
            runner = Runner(ProducesAll(culprits), self.subject.workspace, self.subject.reference)
            prober = Prober(runner, ledger, workers)
            output = Path(folder, "out.onnx")
            settings = Reduce(Path("model.onnx"), output)
            investigation = Session(self.subject, self.console, Result("reduce"), prober)
            result = reduce_model(investigation, settings, Search())
            ledger.close()
            return result, node_names(output), [(record.key, record.verdict.value) for record in told.records]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    made = Model(tmp_path_factory.mktemp("branches"))
    with made.subject:
        yield made


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_one_culprit_in_each_of_two_branches(model: Model, data: st.DataObject) -> None:
    branches = data.draw(st.lists(st.sampled_from(model.branches), min_size=2, max_size=2, unique_by=tuple))
    culprits = [data.draw(st.sampled_from(branch)) for branch in branches]
    result, nodes, decisions = model.reduce(culprits, 1)
    assert sorted(nodes) == sorted(culprits)
    assert result.minimality == "1-minimal"
    assert sorted(node["name"] for node in result.culprits) == sorted(culprits)
    # The original, two bisections with a question each, the proof, the shrinking of two nodes, the re-check.
    units = len(model.subject.units)
    assert len(decisions) <= 2 * (np.log2(units) + 4) + 20
    for workers in (2, data.draw(st.integers(3, 8))):
        again = model.reduce(culprits, workers)
        assert again[1:] == (nodes, decisions)
