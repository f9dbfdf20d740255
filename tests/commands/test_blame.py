"""The guilty come first: nodes that go wrong by themselves, of which a message speaks, or that fail held to a precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import save_text
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from support import SHAPE, chain, model_of, onnx_tool, overflowing, script

from bisect_trt.commands.reduce import reduce_model
from bisect_trt.onnxlib.network import Network
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.check import Check
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.probe.workspace import CandidateFiles, Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Comparison, Origin
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.search.strategy import minimise
from bisect_trt.session.session import Session, unless_lost
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.minimal_case import by_blame, extract_suspect, find_suspects, named_nodes
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.worker.process import Cancel

GUARD = 3
"""Probes that any proof of two nodes ends with, against checks that are flaky: a failure and both
passes asked again."""


@contextmanager
def investigating(
    model: Path, check: Callable[[Subject], Check], folder: Path | None = None
) -> Iterator[Session]:
    console = Console(-1)
    with Subject(
        ModelSettings(model), Workspace(folder or model.with_suffix(".run")), console
    ) as subject:
        ledger = Ledger(subject.workspace.folder, describe_outcome, [console])
        prober = Prober(check(subject), subject.workspace, subject.reference, ledger)
        try:
            yield Session(subject, console, Result("diagnose"), prober)
        finally:
            ledger.close()


@dataclass(frozen=True)
class Needs(Check):
    """Fails while the model has all of some nodes; held to a low precision others are enough.

    Attributes:
        names: The nodes.
        held: Those that are enough held to the precision.
        says: The message, where the model breaks; without all of them it breaks as ``otherwise``
            says while it has the first.
        otherwise: The signature of that.
    """

    names: tuple[str, ...]
    held: tuple[str, ...] | None = None
    says: str = ""
    otherwise: str = ""
    runs_user_code: bool = False

    def run(self, files: CandidateFiles, cancel: Cancel | None = None) -> Outcome:
        del cancel
        needed = self.held if files.held and self.held is not None else self.names
        has = {node.name for node in onnx.load(str(files.model)).graph.node}
        if not has.issuperset(needed):
            first = self.otherwise and needed[0] in has
            return (
                Outcome(Ending.BROKEN, self.otherwise, "")
                if first
                else Outcome(Ending.PASSED, "good", "")
            )
        broken = "run: Conv node #: no kernel for tensor(int8)"
        return (
            Outcome(Ending.BROKEN, broken, self.says)
            if self.says
            else Outcome(Ending.FAILED, "bad", "")
        )


def in_fp16(subject: Subject) -> BuiltinCheck:
    return BuiltinCheck(
        subject.workers, TargetSettings(fp16=True), ToleranceOptions(precision=Precision.FP16)
    )


def name_of(investigation: Session, node: int) -> str:
    return investigation.subject.network.nodes[node].name


def test_what_is_wrong_by_itself_comes_first(tmp_path: Path) -> None:
    with investigating(overflowing(tmp_path / "m.onnx", 2), in_fp16) as investigation:
        subject = investigation.subject
        answer = subject.cut(frozenset(subject.units.searched))
        names = [name_of(investigation, node) for node in by_blame(investigation, answer)]
        assert names[0] == "big"
        assert sorted(names) == sorted(node.name for node in subject.network.nodes)
        right = [name for name in names if name not in ("big", "small")]
        assert right == [node.name for node in subject.network.nodes if node.name in right], (
            "as in the graph"
        )
        assert set(names[:2]) <= {"big", "small", right[0]}, (
            "what reads a number that fp16 has not is next"
        )


NAMED = model_of(
    [
        helper.make_node("Relu", ["x"], ["/blocks.0/Relu_output_0"], name="/blocks.0/Relu"),
        helper.make_node("Reshape", ["/blocks.0/Relu_output_0", "s"], ["r"], name="resh"),
        helper.make_node("Add", ["r", "r"], ["token"], name="Add"),
        helper.make_node("Relu", ["token"], ["y"], name=""),
    ],
    {"s": np.array(SHAPE)},
)


@pytest.mark.parametrize(
    ("message", "nodes"),
    [
        ("the ONNX parser refuses Reshape node 'resh': In node 7: UNSUPPORTED", [1]),
        ("In node 0 with name: /blocks.0/Relu and operator: Relu (parseNode): INVALID_NODE", [0]),
        (
            "Non-zero status code returned while running Reshape node. Name:'resh' Status Message: no",
            [1],
        ),
        ("Could not find an implementation for Relu(14) node with name '/blocks.0/Relu'", [0]),
        (
            "Node (r_q) Op (QuantizeLinear) [TypeInferenceError] output_dtype INT8 does not match",
            [1],
        ),
        ('This is an invalid model. In Node, ("token_token_220", Cast), Error', [2]),
        ("Load model failed: type of tensor 'y' is wrong", [3]),
        ("cuInit failed with error 35", []),
        ("out of memory", []),
    ],
)
def test_the_node_of_which_a_message_speaks(message: str, nodes: list[int]) -> None:
    assert named_nodes(Network(NAMED), message) == nodes


@given(st.text(), st.sampled_from(["/blocks.0/Relu", "resh", "Add"]), st.text())
def test_a_quoted_name_is_found_in_any_message(before: str, name: str, after: str) -> None:
    network = Network(NAMED)
    plain = [text.translate({ord(quote): " " for quote in "'\""}) for text in (before, after)]
    place = next(index for index, node in enumerate(network.nodes) if node.name == name)
    assert place in named_nodes(network, f"{plain[0]} '{name}' {plain[1]}")


@pytest.mark.parametrize(("needed", "probes"), [(("<5>",), 2), (("<4>", "<5>"), 4)])
def test_the_node_that_a_refusal_names_is_tried_first(
    needed: tuple[str, ...], probes: int, tmp_path: Path
) -> None:
    check = Needs(needed, says="the parser refuses Add node '<5>': In node 5")
    with investigating(chain(tmp_path / "m.onnx", 12), lambda _: check) as investigation:
        investigation.prober.probe_original(investigation.subject.original)
        suspects = find_suspects(investigation, print)
        assert [name_of(investigation, node) for node in suspects] == ["<5>"]
        network = investigation.subject.network
        seen = Comparison.of(TensorComparison("t", False, ComparisonKind.MISMATCH))
        investigation.result.origins = [
            Origin(name, network.plain(index), (), {}, seen)
            for name, index in network.producer.items()
        ]
        case = extract_suspect(investigation, None, suspects)
        assert case is not None
        right = [each.node.name for each in investigation.result.origins if each.right_alone]
        assert right == (["<5>"] if len(needed) > 1 else [])
        order = investigation.subject.network.order
        assert {name_of(investigation, order[unit]) for unit in case.minimum.units} == set(needed)
        assert case.minimum.proven
        assert len(investigation.prober.ledger.records) <= probes + GUARD


@pytest.mark.parametrize(
    "otherwise", ["run: Relu node #: no kernel for tensor(float)", "run: the shapes do not fit"]
)
def test_a_part_that_breaks_in_another_way_leaves_the_answer_unproven(
    tmp_path: Path, otherwise: str
) -> None:
    check = Needs(("<3>", "<7>"), says="no kernel", otherwise=otherwise)
    with investigating(chain(tmp_path / "m.onnx", 12), lambda _: check) as session:
        reduce_model(
            session, Reduce(tmp_path / "model.onnx", tmp_path / "out.onnx"), Search(shrink=False)
        )
    assert sorted(culprit.name for culprit in session.result.culprits) == ["<3>", "<7>"]
    assert session.result.minimality == "unproven"


TOOL = """
import array
for node in model.graph.node:
    if node.name == "m":
        node.op_type = "Div"
for weight in model.graph.initializer:
    if weight.name == "third":
        weight.raw_data = array.array("f", [1 / array.array("f", weight.raw_data)[0]]).tobytes()
    if weight.name == "large":
        weight.raw_data = array.array("f", [2 * array.array("f", weight.raw_data)[0]]).tobytes()
"""
"""Divides where the model multiplies by the reciprocal, which is off by a rounding, and doubles a
weight, which is wrong."""


def tied_and_wrong(path: Path) -> Path:
    """First a comparison of a product with its own value, which the tool's division turns: a tie.

    Then a wrong weight.
    """
    value = np.linspace(1, 2, 64, dtype=np.float32)
    third = np.float32(1 / 3)
    np.savez(path.with_suffix(".npz"), x=value)
    body = "m = Mul(x, third) below = Less(m, edge) scaled = Mul(x, large) y = Sqrt(scaled)"
    weights = {"third": third, "edge": value * third, "large": 6e4}
    return save_text(path, "(float[64] x) => (bool[64] below, float[64] y)", body, weights)


@pytest.mark.slow
def test_where_nobody_is_wrong_nothing_is_searched_further(cli: CommandLine) -> None:
    """That the rest fails too is said, and ``--all`` finds it."""
    model = tied_and_wrong(Path("model.onnx"))
    words = (
        "diagnose",
        model,
        "--through",
        onnx_tool(TOOL),
        "--load-inputs",
        "model.npz",
        "--json",
        "r.json",
        "-o",
        "out",
    )
    result = cli(*words).ended(0).result
    assert (result["fault"]["whose"], result["more_failures"]) == ("tie", True)
    assert (result["cause"], result["workarounds"]) == ([], [])
    assert not Path("out/mixed.onnx").exists()
    result = cli(*words, "--overwrite", "--all").result
    # It stays the proof of the first, which the answer is about.
    assert result["report"]["proof"]["command"].endswith("out/reproduce.py")
    assert "scaled" in [node["name"] for each in result["failures"] for node in each["culprits"]]
    assert "target" in [each["fault"]["whose"] for each in result["failures"][1:]]


# A failure that rebuilding the model takes away is said to be that, and never searched for to the
# end.


LENGTH = 40


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("otherwise", [0, 125])
def test_a_failure_that_is_lost_at_once_is_not_searched_for(
    cli: CommandLine, here: Path, workers: str, otherwise: int
) -> None:
    """The check fails for a weight that no node reads, which no piece has."""
    model = onnx.load(str(chain(Path("model.onnx"), LENGTH)))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "poison"))
    onnx.save(model, "model.onnx")
    # Pieces pass, or break in other ways; all units together pass.
    whole = f'[ "$(grep -oaE "<[0-9]+>" "$1" | wc -l)" -ge {LENGTH} ]'
    script(here / "check", f'grep -qa poison "$1" && exit 1\n{whole} && exit 0\nexit {otherwise}')
    line = ["reduce", "model.onnx", "-o", "out.onnx", "--workers", workers, "--json", "r.json"]
    result = (
        cli(*line, "--check", "./check", "{model}").refused("BT3003", "so it cannot be cut").result
    )
    assert result["status"] == "inconclusive"
    assert result["probes"]["run"] <= 2 + LENGTH.bit_length() + 1
    assert not Path("out.onnx").exists()


@given(st.integers(1, 200), st.data())
def test_a_failure_that_survives_is_found_as_before(count: int, data: st.DataObject) -> None:
    """With one question more at most, where nothing fails until the end."""
    units = range(count)
    needed = frozenset(data.draw(st.sets(st.sampled_from(units), min_size=1, max_size=4)))
    asked: list[Subset] = []

    def ask(chosen: Subset) -> Verdict:
        asked.append(chosen)
        return Verdict.FAIL if needed <= chosen else Verdict.PASS

    plain = minimise(units, ask)
    before, asked[:] = list(asked), []
    watched = unless_lost(lambda oracle: minimise(units, oracle), ask, frozenset(units))
    assert (watched.units, watched.proven) == (plain.units, plain.proven)
    extra = [chosen for chosen in asked if chosen not in before]
    assert len(extra) <= 1
    assert extra in ([], [frozenset(units)])
