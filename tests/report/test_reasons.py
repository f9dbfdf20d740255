"""Reasons are values, and become words in ``report/``: no sentence of an answer in the modules that decide."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import ROOT

from bisect_trt.probe.outcome import Ending, Finding, MetricScore, Outcome, Reason
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.proofs import describe
from bisect_trt.search.oracle import Note, Remark
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, to_plain

ROOMS = ("commands", "mixed_precision", "probe", "search", "session", "steps", "tensors")
LEFT_OUT = {
    *("commands/table.py", "session/binding.py", "tensors/files.py", "tensors/metrics.py"),
    *("probe/metric_check.py", "search/oracle.py"),
}
"""Modules that put messages of errors together of parts, or have names or a type in one text."""
DIALOGUE = {"say", "step", "warn", "print", "input"}
"""What prints progress, methods of a console for example, or asks at a prompt."""
ERRORS = {"DoesNotReproduce", "refuse_options"}
"""What makes or raises an error, and is not named so."""
WORDS = 6
"""A text of so many words is a sentence; a shorter one is a name or a title."""


def has_other_words(node: ast.AST) -> bool:
    """Tell whether a node makes or raises an error, talks to the user, compiles a pattern, or is a docstring."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Raise | ast.Assert)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name.endswith("Error") or name.lstrip("_") in ERRORS | DIALOGUE | {"compile"}


def names_read(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a piece of code reads, except for errors and progress."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    if not has_other_words(node):
        for child in ast.iter_child_nodes(node):
            yield from names_read(child)


def sentences(node: ast.AST, read: Collection[str] | None = None) -> Iterator[str]:
    """Yield the texts of a module that are sentences, except docstrings, messages of errors and progress.

    Args:
        node: The module, or a part of it.
        read: The variables that the function around it reads, except for errors and progress.
    """
    if isinstance(node, ast.FunctionDef):
        read = {*names_read(node)}
    if has_other_words(node):
        return
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        if name == "remedy" or (read is not None and name not in read):
            return
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(
        each.value
        for each in parts
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    if len(re.findall(r"[A-Za-z][A-Za-z']+", text)) >= WORDS:
        yield text
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from sentences(child, read)


def modules() -> Iterator[str]:
    """Yield the modules that decide or measure."""
    package = ROOT / "bisect_trt"
    for room in ROOMS:
        for path in sorted((package / room).glob("*.py")):
            if (name := path.relative_to(package).as_posix()) not in LEFT_OUT:
                yield name


@pytest.mark.any_version
@pytest.mark.parametrize("module", list(modules()))
def test_a_module_that_decides_makes_no_sentences(module: str) -> None:
    tree = ast.parse((ROOT / "bisect_trt" / module).read_text(encoding="utf-8"))
    assert list(sentences(tree)) == []


def test_each_note_of_a_search_has_a_sentence() -> None:
    sentences_of_notes = [describe(Remark(note, (1, 2, 3, 4, 5))) for note in Note]
    assert len(set(sentences_of_notes)) == len(Note)


FIGURES: dict[Reason, tuple[str | int | float, ...]] = {
    Reason.MATCH: (1,),
    Reason.NOT_COMPARED: ("y", "it is missing"),
    Reason.SAMPLES_MATCH: (4, 0.5),
    Reason.SCORE: ("dB",),
    Reason.WORST: ("y", 0),
}


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_of_an_outcome_has_words(reason: Reason) -> None:
    worst = TensorComparison("y", passed=False, kind=ComparisonKind.MISSING)
    score = MetricScore("psnr", 40.0, 20.0, 30.0, False, False, 4, 4)
    outcome = Outcome(Ending.MISMATCHED, "mismatch", comparisons=(worst,), metric=score)
    if reason is Reason.NOT_COMPARED:
        outcome = outcome.seeing(Reason.MATCH, 1)
    seen = outcome.seeing(reason, *FIGURES.get(reason, (1, 2, 3, 4)))
    words = describe_outcome(seen)
    assert words != describe_outcome(outcome)
    assert not set("{}") & set(words)


def test_circumstances_stand_around_the_reasons_of_an_outcome() -> None:
    outcome = Outcome(Ending.OTHER, "other", "words of a plug-in").seeing(
        Reason.PIECE_REFUSED, "no"
    )
    outcome = outcome.seeing(Reason.RUN, 3).seeing(Reason.SAMPLE, 2).seeing(Reason.AKIN)
    assert describe_outcome(outcome) == (
        "breaks where the original does, but not on the same: sample 2: words of a plug-in; "
        "the reference does not run this piece either: no (run 3)"
    )


@given(
    st.lists(
        st.one_of(
            st.text(),
            st.integers(-(2**53), 2**53),
            st.floats(allow_nan=False, allow_infinity=False),
        )
    )
)
def test_findings_are_the_same_once_a_journal_was_read(figures: list[str | int | float]) -> None:
    finding = Finding(Reason.EXIT, tuple(figures))
    plain = json.loads(json.dumps(to_plain(finding)))
    read = msgspec.convert(plain, Finding, strict=False)
    assert read == finding
    assert list(map(type, read.figures)) == list(map(type, figures))


def test_a_sentence_is_seen() -> None:
    why = 'why = f"it fails in {n} of the {m} builds"'
    code = f'def f(x):\n    "A docstring of some more words."\n    {why}\n    raise ValueError(f"it fails: {{why}}")\n'
    assert not list(sentences(ast.parse(code)))
    assert list(sentences(ast.parse(why)))
    assert list(sentences(ast.parse(f"{code}    return why\n")))
