"""Errors: each has a code of its own, one sentence of cause and one of what to do."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from bisect_trt import errors
from bisect_trt.cli.parser import parse
from bisect_trt.errors import CommandLineError, UnknownNameError, UsageError, kind_of, kinds
from bisect_trt.session.session import RebuiltPasses

_SENTENCE = re.compile(r"[A-Za-z`][^.]*( \.bisect-trt)?\.")


def test_codes_are_stable_and_of_one_class_each() -> None:
    known = {kind.code: kind.__name__ for kind in kinds()}
    assert len(known) == len(kinds())
    assert known["BT3003"] == RebuiltPasses.__name__
    assert known["BT1001"] == CommandLineError.__name__


def test_a_code_has_a_cause_and_a_remedy() -> None:
    for kind in kinds():
        said = kind.describe()
        assert re.fullmatch(r"BT\d{4}", said["code"])
        assert _SENTENCE.fullmatch(said["cause"]), said
        assert said["remedy"].endswith(".")


@pytest.mark.any_version
def test_errors_are_raised_with_the_code_of_their_kind() -> None:
    """The classes that only give an exit status have codes for plug-ins; this package says more."""
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        raised = [
            node.exc
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Raise)
        ]
        names = {
            call.func.id
            for call in raised
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        }
        assert not names & {"BisectError", "UsageError", "UnavailableError"}, path


def test_commands_in_messages_have_all_their_arguments() -> None:
    """A command is named alone, ``precision``; with the name of the program before it, it runs as it is printed."""
    quoted = set[str]()
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts
            )
            if not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            quoted |= {*re.findall(r"(?<!`)`bisect-trt ([a-z][^`]*)`(?!`)", text)}
    assert "doctor --on X" in quoted
    for words in quoted:
        parse(shlex.split(words.replace("{}", "X")))


def test_an_error_of_another_process_keeps_its_code_where_it_is_known_here() -> None:
    class SpecialError(CommandLineError):
        """One of a plug-in's."""

    names = [each.__name__ for each in SpecialError.__mro__]
    assert kind_of(names) is CommandLineError
    assert kind_of(["KeyError"]) is None
    assert issubclass(CommandLineError, UsageError)


def test_an_unknown_name_is_answered_with_those_that_are_spelt_like_it() -> None:
    names = ["layer.1/output", "layer.2/output", "mask"]
    said = str(UnknownNameError("the model has no tensor 'layer1/output'.", "layer1/output", names))
    assert (
        said
        == "the model has no tensor 'layer1/output'. Did you mean 'layer.1/output' or 'layer.2/output'?"
    )
    assert str(UnknownNameError("none.", "z", names)) == "none."
