"""Reasons are values, and become words in ``report/``: no sentence of an answer in the modules that decide."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

import pytest
from pages import ROOT

from bisect_trt.report.proofs import describe
from bisect_trt.search.oracle import Note, Remark

CLEAN = (
    "commands/cause.py",
    "commands/diagnose.py",
    "commands/doctor.py",
    "commands/extract.py",
    "commands/inspect.py",
    "commands/matrix.py",
    "commands/precision.py",
    "commands/reduce.py",
    "commands/releases.py",
    "commands/repeat.py",
    "commands/report.py",
    "commands/resume.py",
    "commands/samples.py",
    "commands/sweep.py",
    "mixed_precision/answer.py",
    "mixed_precision/curve.py",
    "mixed_precision/groups.py",
    "mixed_precision/ladder.py",
    "mixed_precision/lowering.py",
    "mixed_precision/misfit.py",
    "mixed_precision/nodes.py",
    "mixed_precision/plain.py",
    "mixed_precision/search.py",
    "mixed_precision/validation.py",
    "search/confirm.py",
    "search/density.py",
    "search/groups.py",
    "search/keep.py",
    "search/ordered.py",
    "search/statistics.py",
    "search/strategy.py",
    "session/call.py",
    "session/places.py",
    "steps/arbiter.py",
    "steps/arbitration.py",
    "steps/diagnosis.py",
    "steps/dynamic_dims.py",
    "steps/export.py",
    "steps/layers.py",
    "steps/panel.py",
    "steps/placement.py",
    "steps/reduced_model.py",
    "steps/release_boundary.py",
    "steps/rounding.py",
    "steps/second_opinion.py",
    "steps/shrink.py",
    "steps/standing.py",
)
PROGRESS = {"say", "step", "warn"}
"""Methods of a console that print progress."""
ERRORS = {"DoesNotReproduce", "refuse_options"}
"""What makes or raises an error, and is not named so."""
WORDS = 6
"""A text of so many words is a sentence; a shorter one is a name or a title."""


def is_error(node: ast.AST) -> bool:
    """Tell whether a node makes or raises an error."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Raise | ast.Assert)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name.endswith("Error") or name in ERRORS


def names_read(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a piece of code reads, except for errors."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    if not is_error(node):
        for child in ast.iter_child_nodes(node):
            yield from names_read(child)


def sentences(node: ast.AST, read: Collection[str] | None = None) -> Iterator[str]:
    """Yield the texts of a module that are sentences, except docstrings, messages of errors and progress.

    Args:
        node: The module, or a part of it.
        read: The variables that the function around it reads, except for errors.
    """
    if isinstance(node, ast.FunctionDef):
        read = {*names_read(node)}
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in PROGRESS:
        return
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        if name == "remedy" or (read is not None and name not in read):
            return
    if is_error(node):
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


@pytest.mark.parametrize("module", CLEAN)
def test_a_module_that_decides_makes_no_sentences(module: str) -> None:
    tree = ast.parse((ROOT / "bisect_trt" / module).read_text(encoding="utf-8"))
    assert list(sentences(tree)) == []


def test_each_note_of_a_search_has_a_sentence() -> None:
    sentences_of_notes = [describe(Remark(note, (1, 2, 3, 4, 5))) for note in Note]
    assert len(set(sentences_of_notes)) == len(Note)


def test_a_sentence_is_seen() -> None:
    why = 'why = f"it fails in {n} of the {m} builds"'
    code = f'def f(x):\n    "A docstring of some more words."\n    {why}\n    raise ValueError(f"it fails: {{why}}")\n'
    assert not list(sentences(ast.parse(code)))
    assert list(sentences(ast.parse(why)))
    assert list(sentences(ast.parse(f"{code}    return why\n")))
