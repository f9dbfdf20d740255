"""Properties of the searches: the result fails, is 1-minimal, and cost no more probes than stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from fakes import Case, Listening, cases, scratch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support import node_names, save

from bisect_trt.commands.reduce import reduce_model
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober, Runner
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Mode, Subset, Units, Verdict
from bisect_trt.search.strategy import minimise, shrink_end, shrink_start
from bisect_trt.worker.process import Cancel

pytestmark = pytest.mark.any_version
Predicate = Callable[[Subset], Verdict]


@given(st.sets(st.integers(0, 9000)), st.integers(0, 9000), st.booleans())
def test_a_question_about_many_units_is_the_one_about_the_same_units(some: set[int], unit: int, many: bool) -> None:
    units = frozenset(some).symmetric_difference(range(9000)) if many else frozenset(some)
    question = Units(units)
    assert (question.units, len(question), bool(question)) == (units, len(units), True)
    assert question == Units(frozenset(sorted(units)))
    assert hash(question) == hash(Units(frozenset(sorted(units))))
    assert question != Units(units ^ {unit})


class Oracle:
    """Answers from a predicate and counts the different questions."""

    def __init__(self, predicate: Predicate) -> None:
        self._predicate = predicate
        self.asked: dict[Subset, Verdict] = {}

    def __call__(self, units: Subset) -> Verdict:
        assert units, "the empty set is no model"
        return self.asked.setdefault(units, self._predicate(units))


def needs(*culprits: int) -> Predicate:
    wanted = frozenset(culprits)
    return lambda units: Verdict.FAIL if wanted <= units else Verdict.PASS


@st.composite
def culprits_among(draw: st.DrawFn, most: int = 6) -> tuple[int, frozenset[int]]:
    count = draw(st.integers(1, 300))
    culprits = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(most, count)))
    return count, frozenset(culprits)


@given(culprits_among(), st.sampled_from(Mode), st.data())
def test_monotone_failures_end_at_exactly_the_culprits(
    case: tuple[int, frozenset[int]], mode: Mode, data: st.DataObject
) -> None:
    """Whatever belongs together; by bisection at about the information bound."""
    count, culprits = case
    oracle, size = Oracle(needs(*culprits)), data.draw(st.integers(1, 12))
    minimum = minimise(range(count), oracle, mode)
    assert minimum.units == culprits
    assert minimum.proven
    # Each culprit: a bisection, a question whether that was all, and one for the proof.
    if mode is Mode.AUTO:
        assert len(oracle.asked) <= len(culprits) * (math.ceil(math.log2(max(count, 2))) + 3)
    patterns = Oracle(needs(*culprits))
    grouped = minimise(range(count), patterns, mode, pattern=lambda u: frozenset(range(u // size * size, u + size)))
    assert (grouped.units, grouped.proven) == (culprits, True)


@given(st.integers(2, 1000), st.data())
def test_one_culprit_costs_one_bisection_and_one_question(count: int, data: st.DataObject) -> None:
    oracle = Oracle(needs(data.draw(st.integers(0, count - 1))))
    minimise(range(count), oracle)
    assert len(oracle.asked) <= math.ceil(math.log2(count)) + 1


@given(culprits_among(), st.data())
def test_a_suspect_changes_the_cost_and_not_the_answer(case: tuple[int, frozenset[int]], data: st.DataObject) -> None:
    count, culprits = case
    plain, guided = Oracle(needs(*culprits)), Oracle(needs(*culprits))
    suspect = data.draw(st.integers(0, count - 1))
    assert minimise(range(count), guided, suspect=suspect).units == minimise(range(count), plain).units
    assert len(guided.asked) <= len(plain.asked) + math.ceil(math.log2(max(count, 2))) + 2
    if suspect == max(culprits) and len(culprits) == 1:  # the prefix that ends with it, the one before, and it alone
        assert len(guided.asked) <= 3


@given(cases(), st.sampled_from(Mode), st.data())
def test_any_failure_ends_one_minimal(case: Case, mode: Mode, data: st.DataObject) -> None:
    """Sets that broke in another way are named.

    What is wrongly thought to pass is no wrong answer.
    """
    count, predicate = case.count, case.predicate
    oracle, again, passing = Oracle(predicate), Oracle(predicate), data.draw(st.integers(0, count - 1))
    minimum = minimise(range(count), oracle, mode, passing=passing)
    assert predicate(minimum.units) is Verdict.FAIL
    assert minimum.proven
    smaller = [minimum.units - {unit} for unit in minimum.units if len(minimum.units) > 1]
    assert all(predicate(rest) is not Verdict.FAIL for rest in smaller)
    broken = [sorted(rest) for rest in smaller if predicate(rest) is Verdict.UNRESOLVED]
    assert sorted(map(sorted, minimum.refused)) == sorted(broken)
    assert (minimum.why is not None) == bool(broken)
    assert minimise(range(count), again, mode, passing=passing) == minimum
    assert list(again.asked) == list(oracle.asked)


@given(culprits_among(3), st.data())
def test_units_that_come_along_are_left_out_in_the_end(case: tuple[int, frozenset[int]], data: st.DataObject) -> None:
    """Even numbers are searched; the odd one after each comes along with it, and some are needed."""
    count, culprits = case
    needed = data.draw(st.frozensets(st.sampled_from(sorted(2 * c + 1 for c in culprits))))
    wanted = frozenset(2 * culprit for culprit in culprits) | needed

    def along(units: Subset) -> Subset:
        return units | {unit + 1 for unit in units if unit % 2 == 0}

    minimum = minimise(range(0, 2 * count, 2), Oracle(needs(*wanted)), weights=along)
    assert minimum.units == wanted
    assert minimum.proven


@given(culprits_among(3))
def test_inseparable_units_stay_together(case: tuple[int, frozenset[int]]) -> None:
    count, culprits = case

    def pairs(units: Subset) -> Subset:
        return units | {unit - 1 for unit in units if unit % 2}

    minimum = minimise(range(count), Oracle(lambda s: needs(*culprits)(pairs(s))), inseparable=pairs)
    assert culprits <= pairs(minimum.units)
    assert pairs(minimum.units) == pairs(culprits)


@given(culprits_among(3), st.sampled_from([Mode.AUTO, Mode.LINEAR]))
def test_one_end_at_a_time_stops_at_the_last_and_the_first_culprit(
    case: tuple[int, frozenset[int]], mode: Mode
) -> None:
    count, culprits = case
    assert shrink_end(range(count), Oracle(needs(*culprits)), mode).units == frozenset(range(max(culprits) + 1))
    assert shrink_start(range(count), Oracle(needs(*culprits)), mode).units == frozenset(range(min(culprits), count))


@given(culprits_among(), st.data())
def test_what_is_known_to_pass_is_not_searched_again(case: tuple[int, frozenset[int]], data: st.DataObject) -> None:
    """As after another failure was found: no prefix that ends before its last culprit fails."""
    count, culprits = case
    oracle = Oracle(needs(*culprits))
    passing = data.draw(st.integers(0, max(culprits)))
    assert minimise(range(count), oracle, passing=passing).units == culprits
    if len(culprits) == 1:
        assert len(oracle.asked) <= math.ceil(math.log2(count - passing)) + 1


# Culprits in parallel branches: exactly those nodes, where "all before one node" holds neither or everything.


def residual_blocks(path: Path) -> tuple[Path, list[list[str]]]:
    """Residual blocks: two branches of three nodes and of one, a join, a Relu; each node is named like what it makes."""
    nodes: list[onnx.NodeProto] = []
    last, branches = "x", []

    def add(name: str, *reads: str) -> str:
        nodes.append(helper.make_node("Add" if len(reads) == 2 else "Relu", reads, [name], name=name))
        return name

    for block in range(8):
        name = f"block{block}."
        branch, skip = last, add(f"{name}skip", last, "one")
        for place in range(3):
            branch = add(f"{name}conv{place}", branch, "one")
        branches += [[f"{name}conv{place}" for place in range(3)], [skip]]
        last = add(f"{name}relu", add(f"{name}join", branch, skip))
    return save(path, nodes, [numpy_helper.from_array(np.array(1, np.float32), "one")]), branches


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


class Model:
    """A model that is read and run once, and reduced many times."""

    def __init__(self, folder: Path) -> None:
        path, self.branches = residual_blocks(folder / "model.onnx")
        self.console = Console(-1)
        self.subject = Subject(ModelSettings(path), Workspace(folder / "run"), self.console)

    def reduce(self, culprits: Sequence[str], workers: int) -> tuple[Result, list[str], list[tuple[str, str]]]:
        """The result, the nodes that are left, and all decisions."""
        with scratch() as folder:
            told = Listening()
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
    assert model.reduce(culprits, data.draw(st.integers(2, 8)))[1:] == (nodes, decisions)
