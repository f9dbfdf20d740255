"""The live line, whatever its texts; what a terminal and a file print; and the summary of any result."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from support import examples

from bisect_trt.mixed_precision.curve import Point
from bisect_trt.onnxlib.nodes import Node
from bisect_trt.probe.ledger import Record
from bisect_trt.report import console
from bisect_trt.report.parts import (
    Comparison,
    Failure,
    FailureRate,
    FreshCount,
    ProbeLine,
    Status,
    Story,
    Unit,
    Validation,
    WorkaroundTried,
    WrongSide,
)
from bisect_trt.report.result import Result
from bisect_trt.report.summary import MOST_LINES, WIDTH, grouped, summary, summary_lines
from bisect_trt.report.text import plain
from bisect_trt.search.oracle import Verdict
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.worker.process import gate

TEXTS = st.text(st.characters(codec="utf-8"), max_size=80)
"""Anything a model, a check or a path may be called, wide and control characters too."""


def record(number: int, verdict: Verdict, title: str, reason: str = "") -> Record:
    return Record(number, str(number), title, 3, verdict, "exit 1", reason, "", 0.1, 1)


@settings(max_examples=examples(60))
@given(
    TEXTS,
    st.lists(st.tuples(st.sampled_from(Verdict), TEXTS), max_size=4),
    st.booleans(),
    st.integers(4, 240),
    st.sampled_from(["utf-8", "ascii"]),
)
def test_progress_is_lines_no_wider_than_the_terminal(
    title: str, probes: list[tuple[Verdict, str]], stopping: bool, columns: int, encoding: str
) -> None:
    line = console.ProgressLine()
    line.title = title
    line.stopping = stopping
    for number, (verdict, name) in enumerate(probes, 1):
        line.probed(record(number, verdict, name))
    written = io.TextIOWrapper(io.BytesIO(), encoding)
    screen = Console(width=columns, file=written, color_system=None)
    screen.print(line._rows(screen))
    written.flush()
    lines = written.buffer.getvalue().decode(encoding).split("\n")
    assert all(cell_len(row.rstrip()) < columns for row in lines)
    assert "\x1b" not in "".join(lines)
    assert stopping == line.text().startswith("stopping")


def test_off_a_terminal_progress_is_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.05)
    told = console.Console(live=True)
    told.step("Which units?", 5)
    for number in (1, 2, 3):
        told.probed(record(number, Verdict.FAIL, "3 of 5 nodes"))
    time.sleep(0.5)
    told.close()
    out, err = capsys.readouterr()
    assert not out
    assert re.search(
        r"3 of about 7 probes, about \d+ s left in this step, Which units\?, best so far: 3 of 5 nodes fail$",
        err.splitlines()[-1],
    )
    before = len(err)
    time.sleep(0.2)
    assert len(err + capsys.readouterr().err) == before


def test_the_time_left_is_not_that_of_the_first_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    line = console.ProgressLine(enabled=False)
    line.step("Which units?", 5)
    for number, took in enumerate((60.0, 1.0, 1.0, 1.0), 1):
        assert "left" not in line.text() or number > 3
        clock[0] += took
        line.probed(record(number, Verdict.PASS, "3 of 5 nodes"))
    assert "4 of about 7 probes, about 3 s left in this step" in line.text()


def test_the_first_of_many_runs_say_when_the_rest_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    line = console.ProgressLine(enabled=False)
    with gate.turn() as turn:
        turn.begin("running", 1, 64)
        clock[0] += 4
        assert "rest" not in line.text()
        turn.begin("running", 5, 64)
        clock[0] += 4
        assert "running 5 of 64 for 8 s, the rest in about 2 min 0 s" in line.text()


def test_no_time_is_left_where_the_number_of_probes_is_not_known() -> None:
    """Expected are those for one node; more nodes take more, and how many there are is not known."""
    line = console.ProgressLine(enabled=False)
    line.step("Which units?", 5)
    for number in range(1, 20):
        line.probed(record(number, Verdict.PASS, "3 of 5 nodes"))
        assert ("left" in line.text()) is (3 <= number < 7)
        assert ("of about 7" in line.text()) is (number <= 7)
    assert "19 probes" in line.text()


def test_only_nodes_have_a_best_so_far() -> None:
    """A search over releases or switches is for no smallest set of these."""
    line = console.ProgressLine(enabled=False)
    line.step("Which releases?")
    line.expect(9)
    line.probed(record(1, Verdict.FAIL, "1.2.0"))
    assert "of about 9 probes" in line.text()
    assert "best" not in line.text()
    line.step("Which nodes?", 9)
    line.probed(record(2, Verdict.FAIL, "3 of 9 nodes"))
    assert "best so far: " in line.text()


def test_probes_are_counted_anew_where_an_answer_is_taken_back() -> None:
    line = console.ProgressLine(enabled=False)
    for number in (1, 2):
        line.step("Which units?", 5)
        line.probed(record(number, Verdict.PASS, "3 of 5 nodes"))
    line.step("Which units?", 5)  # after `undo`
    line.probed(record(1, Verdict.PASS, "3 of 5 nodes"))
    assert "1 of about 7 probes" in line.text()


@given(
    st.lists(TEXTS | st.sampled_from([":bug:", "[bold]x[/bold]", "\\[x]", "a " * 100]), max_size=4)
)
def test_a_terminal_and_a_file_get_the_same_lines(texts: list[str]) -> None:
    """A name is what it is, whatever rich would make of it."""
    written = []
    for forced in ("", "1"):
        out = io.StringIO()
        variables = {"FORCE_COLOR": forced, "TTY_COMPATIBLE": ""}
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            mock.patch.dict(os.environ, variables),
        ):
            told = console.Console(1)
            for text in texts:
                for say in (told.say, told.step, told.answer, told.warn, told.error):
                    say(text)
        written.append(re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()))
    plainly, by_rich = ([line.rstrip() for line in each.split("\n")] for each in written)
    assert (
        plainly == by_rich
    )  # but for blanks at a line's end, which older releases of rich leave out
    assert written[0].split("\n")[:-1:5] == [plain(text) for text in texts]


def node(op: str, name: str) -> Node:
    return Node(op=op, name=name, outputs=(f"{name}_output",))


def test_nodes_are_grouped_by_operators_and_modules() -> None:
    norms = [
        node(op, f"/blocks.{place}/norm/{op}")
        for place in range(13)
        for op in ("Pow", "ReduceMean", "Sqrt")
    ]
    assert (
        grouped(norms)
        == "Pow, ReduceMean, Sqrt in 13 LayerNorms, /blocks.0/norm to /blocks.12/norm"
    )
    assert grouped(norms[:1]) == "Pow '/blocks.0/norm/Pow'"
    assert grouped([node("Add", f"n{place}") for place in range(9)]) == "Add"
    assert grouped(norms[:4]) == ", ".join(f"{each.op} '{each.name}'" for each in norms[:4])


@pytest.mark.parametrize(
    ("verdicts", "failing", "row"),
    [
        ("PPFFP", [("1.2", "1.3")], "passes in 1.1, fails in 1.2 to 1.3, passes in 1.4 (foo)"),
        (
            "PUF",
            [("1.2", "1.2")],
            "passes in 1.0, fails in 1.2, the newest that was probed (foo)",
        ),
        (
            "PFU",
            [("1.1", "1.1")],
            "passes in 1.0, fails in 1.1, no verdict in 1.2 (unknown opset) (foo)",
        ),
        (
            "UUFP",
            [("1.2", "1.2")],
            "no verdict in 1.0 to 1.1 (unknown opset), fails in 1.2, passes in 1.3 (foo)",
        ),
        (
            "FP",
            [("1.0", "1.0")],
            "no older release was probed, fails in 1.0, passes in 1.1 (foo)",
        ),
        (
            "FPF",
            [("1.0", "1.0"), ("1.2", "1.2")],
            "no older release was probed, fails in 1.0, 1.2, the newest that was probed (foo)",
        ),
    ],
)
def test_the_releases_on_both_sides_of_each_boundary_are_named(
    verdicts: str, failing: list[tuple[str, str]], row: str
) -> None:
    words = {"P": "PASS", "F": "FAIL", "U": "UNRESOLVED"}
    result = Result("releases", "found", package="foo", failing=failing)
    result.artifacts["run"] = "run"
    result.releases = {f"1.{place}": words[each] for place, each in enumerate(verdicts)}
    result.reasons = dict.fromkeys(result.releases, "unknown opset")
    result.first_failing = failing[0][0] if verdicts[0] == "P" else None
    result.first_passing = f"1.{len(verdicts) - 1}" if verdicts[-1] == "P" else None
    assert ("Since", row) in summary(result)


def test_a_set_on_which_samples_fail_says_how_many_may() -> None:
    point = Point(frozenset({1}), (0.5,) * 199 + (1.1,), allowed=0.01)
    assert "199 of 200 fresh samples (1% may fail, failure rate" in point.to_part().sentence
    assert "may fail" not in Point(frozenset({1}), (0.5,) * 60, allowed=0.01).to_part().sentence


@settings(max_examples=examples(60))
@given(
    st.sampled_from(["diagnose", "reduce", "cause", "precision", "run", "sweep"]),
    st.sampled_from(["found", "inconclusive", "interrupted", "not_reproduced"]),
    st.lists(TEXTS, max_size=60),
    st.none() | TEXTS,
)
def test_a_summary_is_at_most_25_lines_of_80_columns(
    command: str, status: Status, names: list[str], why: str | None
) -> None:
    result = Result(command, status, culprits=[node("Add", name) for name in names], why=why)
    result.artifacts["run"] = "run"
    result.reported().story = Story([], names)
    result.fault = WrongSide("target", "a sentence. " * 40)
    failure = Failure(
        culprits=tuple(result.culprits), minimality="unproven", why=None, reduced=None
    )
    result.failures = [failure] * 9
    lines = [f"{label}{text}" for label, text in summary_lines(result)]
    assert len(lines) <= MOST_LINES
    words = max((len(word) for line in lines for word in line.split()), default=0)
    assert all(len(line) <= max(WIDTH, words + 9) for line in lines)
    assert json.dumps(lines)


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(0, 30))
def test_a_summary_leaves_out_whole_sentences_and_fixes(lengths: list[int], failures: int) -> None:
    sentences = [
        f"Sentence {place} {'word ' * length}ends." for place, length in enumerate(lengths)
    ]
    limits = {file: f"{file} passes {'word ' * 60}of all" for file in ("A.onnx", "B.onnx")}
    result = Result("diagnose", "found", culprits=[node("Add", "a")])
    result.artifacts["run"] = "run"
    result.fault = WrongSide("target", " ".join(sentences))
    failure = Failure(
        culprits=tuple(result.culprits), minimality="unproven", why=None, reduced=None
    )
    result.failures = [failure] * failures
    result.workarounds = [
        WorkaroundTried("rewrite", "a rewrite", True, file, why=why) for file, why in limits.items()
    ]
    lines = [*summary_lines(result)]
    shown = " ".join(text for _, text in lines)
    kept = [place for place, sentence in enumerate(sentences) if sentence in shown]
    assert len(lines) <= MOST_LINES
    assert "..." not in shown
    assert kept == list(range(shown.count("Sentence ")))
    assert kept
    for file, why in limits.items():
        assert (f"{file}: a rewrite" in shown) is (why in shown)


def test_proven_and_unproven_do_not_stand_together(tmp_path: Path) -> None:
    from bisect_trt.report.page import write_report

    result = Result("diagnose", "found", culprits=[node("Add", "a")], minimality="unproven")
    result.artifacts["run"] = str(tmp_path)
    write_report(result, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "(unproven)" in page
    assert "Proven" not in page


def test_a_workaround_without_a_patched_model_says_what_was_tried() -> None:
    result = Result("workaround", "found", culprits=[node("Add", "a")])
    result.artifacts["run"] = "run"
    why = "3 of 20 fresh inputs fail"
    switch = WorkaroundTried("switch", "s off", True, fresh=FreshCount(20, 20))
    barrier = WorkaroundTried("barrier", "a barrier after 'a'", False, None, why=why)
    result.workarounds = [switch, barrier, WorkaroundTried("rewrite", "a form", None)]
    row = ("Fix", f"no model is written; tried: {barrier.what}: {why}")
    assert row in summary(result)
    result.workarounds[2] = WorkaroundTried("rewrite", "a form", True, "p.onnx")
    assert row not in summary(result)


def test_a_model_that_passes_by_a_wider_tolerance_says_so() -> None:
    """The failure was judged by 1% of the values; the mixed model by a share of the largest, where no node is needed."""

    def compared(atol: float) -> Comparison:
        return Comparison.of(
            TensorComparison("probabilities", True, ComparisonKind.MATCH, atol=atol, rtol=0.01)
        )

    result = Result("diagnose", "found", culprits=[node("Softmax", "a")], lowered=14)
    result.artifacts |= {"run": "run", "mixed": "mixed.onnx"}
    result.tensors, result.accuracy = [compared(6e-4)], [compared(0.05)]
    result.keep_fp32, result.minimal, result.minimal_proven = [], [], True
    wider = "'probabilities' may be off by 0.05, as probabilities and heatmaps may"
    assert wider in " ".join(text for _, text in summary(result))
    result.keep_fp32 = [Unit(name="b", op="Pow", outputs=("b",))]
    said = f"none of these nodes is needed, where {wider}; they break the outputs alone, or would with larger values"
    assert said in " ".join(text for _, text in summary(result))
    result.accuracy = result.tensors
    assert "heatmaps" not in " ".join(text for _, text in summary(result))


def test_the_reason_of_a_set_is_that_of_a_node_which_the_given_inputs_need() -> None:
    """Nodes before it in the graph may be in the set for fresh samples alone."""
    first, needed = (
        Unit(name=name, op="Exp", outputs=(name,), rule="overflow", reason=f"{name} overflows")
        for name in ("first", "needed")
    )
    result = Result("precision", "found")
    result.artifacts["run"] = "r"
    result.keep_fp32, result.minimal = [first, needed], [needed]
    (why,) = (text for label, text in summary(result) if label == "Why")
    assert why == "Exp 'needed': needed overflows (1 more node in the report)"


def test_a_set_of_all_nodes_is_no_fix() -> None:
    """Nothing is lowered then, in a small model too."""
    result = Result("precision", "found", lowered=0, minimal_proven=True, large=True)
    result.artifacts |= {"run": "r", "mixed": "mixed.onnx"}
    result.keep_fp32 = result.minimal = [Unit(name="b", op="Pow", outputs=("b",))]
    said = summary(result)
    assert ("", "All nodes stay in fp32, so this set is no fix") in said
    assert [label for label, _ in said if label in ("Fix", "Mixed")] == ["Mixed"]
    result.lowered, result.large = 1, None
    assert "Mixed" not in [label for label, _ in summary(result)]


def test_a_command_is_not_broken_over_lines() -> None:
    command = f"`bisect-trt samples {'long/' * 20}model.onnx --onnxrt --iterations 50`"
    result = Result("diagnose").end("not_reproduced", f"it passes.\n  - many samples: {command}")
    result.artifacts["run"] = "r"
    assert command in [line for _, line in summary_lines(result)]


def test_a_reason_is_printed_although_its_words_are_in_another_row() -> None:
    result = Result("reduce").end("inconclusive", "the rest of the model fails")
    result.artifacts["run"] = "r"
    result.more_failures = True
    assert ("Result", "the rest of the model fails") in summary(result)


def test_each_file_is_listed_once() -> None:
    result = Result("workaround", "found", culprits=[node("Add", "a")])
    result.artifacts |= {"run": "run", "patched": "p.onnx", "mixed": "p-mixed.onnx"}
    files = ("p.onnx", "p-rewrite.onnx", "p-mixed.onnx", None)
    result.workarounds = [WorkaroundTried("barrier", "a", True, file) for file in files]
    assert ("Wrote", "p.onnx, p-mixed.onnx, p-rewrite.onnx") in summary(result)
    cut = [Failure((), "1-minimal", None, name) for name in ("o.onnx", "o-2.onnx")]
    result = Result("reduce", "found", failures=cut)
    result.artifacts |= {"run": "run", "reduced": "o.onnx"}
    assert ("Wrote", "o.onnx, o-2.onnx") in summary(result)


def test_the_words_of_an_answer_agree() -> None:
    result = Result("diagnose", "found", culprits=[node("Pow", "a")], minimality="unproven")
    result.flaky = FailureRate(20, 17, 0.85, 0.95, 4, 0.6, 0.999)
    result.artifacts |= {"run": "run", "mixed": "mixed.onnx"}
    result.keep_fp32 = [Unit(name=name, op="Pow", outputs=(name,)) for name in "bc"]
    result.minimal = result.keep_fp32[:1]
    result.reported().probes = [
        ProbeLine(1, "1", "all", 3, Verdict.FAIL, "slow", "", "", 0.1, 1, step="")
    ]
    shown = " ".join(text for _, text in summary_lines(result))
    assert "Pow 'a' fails alone " in shown
    assert "fails alone (" not in shown
    assert "1 of these nodes is enough" in shown
    result.minimal = []
    without = " ".join(text for _, text in summary_lines(result))
    assert "For the given inputs none of these nodes is needed; they " in without
    assert "It passes without Pow 'a' in fp32" in shown
    assert "load on this machine can change them" in shown


def test_many_kept_nodes_are_grouped_and_two_sets_make_no_curve(tmp_path: Path) -> None:
    from bisect_trt.report.page import write_report

    result = Result("precision", "found")
    result.keep_fp32 = [
        Unit(name=f"/blocks.{place}/norm/{op}", op=op, outputs=(f"{op}{place}",))
        for place in range(13)
        for op in ("Pow", "ReduceMean")
    ]
    sets = [
        Validation(60, 60 - nodes, 0, 0.5, 0.95, 0.05, 0, "passes", nodes, True, (), None, False)
        for nodes in (1, 2, 3)
    ]
    for number, drawn in ((2, False), (3, True)):
        result.curve = sets[:number]
        write_report(result, tmp_path / "report.html")
        page = (tmp_path / "report.html").read_text().replace("<wbr>", "")
        assert "<p>Pow, ReduceMean in 13 LayerNorms, /blocks.0/norm to /blocks.12/norm.</p>" in page
        assert ("by nodes kept" in page) is drawn


def test_the_other_sets_name_each_number_of_nodes_once() -> None:
    """``--keep-set N`` writes the first set of N nodes."""
    result = Result("precision", "found")
    result.artifacts |= {"run": "run", "mixed": "mixed.onnx"}
    result.keep_fp32 = [Unit(name="a", op="Pow", outputs=("a",))]
    result.curve = [
        Validation(60, passed, 0, 0.5, 0.95, 0.05, 0, "", nodes, True, (), None, nodes == 1)
        for nodes, passed in ((1, 50), (2, 58), (2, 59), (3, 60))
    ]
    shown = " ".join(text for _, text in summary_lines(result))
    assert "--keep-set N: 2 (58 of 60 samples pass), 3 (60 of 60 samples pass)" in shown
