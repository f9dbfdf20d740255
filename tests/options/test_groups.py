"""Options: declared once, and the same for the command line and for Python."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from bisect_trt.cli.parser import COMMON, RARE, expand, flags_of, parse
from bisect_trt.commands.table import COMMANDS
from bisect_trt.errors import UsageError
from bisect_trt.options import compare
from bisect_trt.options import reading as values
from bisect_trt.options.compare import CompareOptions, ErrorStat
from bisect_trt.options.searches import multiple, rungs, share, until
from bisect_trt.options.spec import Option, entries, make_group
from bisect_trt.session.checks import tolerance_options
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.onnxrt import level
from bisect_trt.targets.openvino import openvino_property
from bisect_trt.targets.through import command
from bisect_trt.targets.trt.settings import tactic

HEAVY = {"numpy", "onnx", "onnx_graphsurgeon", "matplotlib", "onnxruntime"}
"""What takes longer to import than all that a command line is read with."""
TEXTS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=6)
NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1).filter(
    lambda s: s[0] != "-"
)
SIZES = st.integers(0, 1 << 60)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
READ: dict[Any, st.SearchStrategy[Any]] = {
    values.shape: st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
    values.ranged_shape: st.lists(st.integers(0, 10**6), max_size=4).map(tuple)
    | st.sampled_from(["[1,5..9]", "[0..2,3..3]"]),
    values.value_range: st.tuples(FINITE, FINITE).map(lambda pair: tuple(sorted(pair))),
    values.size: SIZES,
    values.swept_shape: st.sampled_from(["x:[1..64:8,3]", "a:b:[n={1,2..4},2]", "x:[{7}]"]),
    values.pool_limit: st.tuples(TEXTS, SIZES),
    values.pair: st.tuples(TEXTS, TEXTS),
    values.assignment: st.tuples(TEXTS, TEXTS),
    values.compiler_option: st.builds("{}={}".format, TEXTS.map("a{}".format), TEXTS),
    values.absolute: TEXTS.map(Path),
    values.regex: TEXTS | st.sampled_from(["", "a|b", r"err\w+ \d*"]),
    values.existing_file: st.just(__file__),
    tactic: st.builds("{}={}:{}".format, TEXTS, st.integers(-(1 << 31), 1 << 31), SIZES),
    openvino_property: st.tuples(TEXTS, TEXTS),
    command: st.sampled_from(["cp {model} {out}", "cp {model} 'a b' {out}"]),
    share: st.floats(0, 1),
    multiple: st.floats(1e-3, 1e6),
    compare.drop: st.builds(compare.Drop, st.floats(0, 1e300), st.booleans()),
    until: st.sampled_from(["good", "bad", "both"]) | st.integers(1, 1000),
    rungs: st.sampled_from(
        [("int8", "fp16", "fp32"), ("int4", "int8", "bf16", "fp32"), ("fp16", "fp32")]
    ),
    level: st.sampled_from(["off", "all", "ORT_ENABLE_BASIC"]),
}
"""What a reader of words may be given."""
GROUPS = list(dict.fromkeys(group for command in COMMANDS.values() for group in command.groups))
OPTIONS = [(group, entry) for group in GROUPS for entry in entries(group) if not entry.count]


def values_of(entry: Option) -> st.SearchStrategy[Any]:
    """Python values that an option takes."""
    read = entry.read
    low = entry.min
    high = entry.max
    if read is not None:
        one = READ.get(read, st.sampled_from(ErrorStat))
    elif issubclass(entry.kind, Enum):
        one = st.sampled_from(entry.kind)
    elif entry.kind is int:
        least = 0 if entry.positional else None  # -1 would be an option
        one = st.integers(least if low == -inf else int(low), None if high == inf else int(high))
    elif entry.kind is float:
        one = st.floats(
            None if low == -inf else low, None if high == inf else high, allow_nan=False
        )
    else:
        one = {bool: st.booleans(), Path: TEXTS.map(Path), str: TEXTS}[entry.kind]
    if entry.form == "named":
        return st.dictionaries(
            NAMES if entry.need_name else NAMES | st.just(""), one, min_size=1, max_size=3
        )
    unique = (
        (lambda pair: pair[0].upper())
        if entry.read in (values.pair, values.assignment, openvino_property)
        else None
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=unique) if entry.form == "list" else one


def word(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return ":".join(map(str, value))
    return str(list(value) if isinstance(value, tuple) else value)


def words(entry: Option, value: Any) -> list[str]:
    """A value with its option as they are typed."""
    if entry.positional:
        return [*map(word, value)] if isinstance(value, list) else [word(value)]
    if entry.kind is bool and entry.form == "one":
        flag = entry.flags[-1]
        return [entry.flag] * (value is not flag.startswith(" /"))
    if entry.read is rungs:
        return [entry.flags[-1], ",".join(value)]
    if entry.read is values.assignment:
        return [entry.flags[-1], *map("=".join, value)]
    if entry.form == "named":
        return [
            entry.flags[-1],
            *(f"{name}:{word(each)}" if name else word(each) for name, each in value.items()),
        ]
    return [entry.flags[-1], *map(word, value if entry.form == "list" else [value])]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
@given(data=st.data())
@settings(max_examples=examples(6), deadline=None)
def test_a_value_is_the_same_from_python_and_as_it_is_typed(
    group: type, data: st.DataObject
) -> None:
    for entry in entries(group):
        if not entry.count:
            same_as_it_is_typed(group, entry, data.draw(values_of(entry), label=entry.name))


def same_as_it_is_typed(group: type, entry: Option, value: Any) -> None:
    name = next(name for name, command in COMMANDS.items() if group in command.groups)
    needed: dict[str, Any] = {
        other.name: Path("p")
        for own in COMMANDS[name].groups
        for other in entries(own)
        if other.required
    }
    typed = [
        each
        for other in entries(COMMANDS[name].groups[0])
        if other.required
        for each in words(other, Path("p"))
    ]
    if not entry.required:
        # Arguments stand by their place, so those before it are given too.
        before = [other for other in entries(group) if other.positional and not other.required]
        before = before[: before.index(entry)] if entry in before else []
        needed |= {other.name: "p" if other.kind is str else Path("p") for other in before}
        typed += [*("p" for _ in before), *words(entry, value)]
    else:
        value = [Path("p")] if entry.form == "list" else Path("p")
    _, given_words = parse([name, *typed])
    own = {other.name: needed[other.name] for other in entries(group) if other.name in needed}
    words_of_group = {other.name: given_words[other.name] for other in entries(group)}
    assert make_group(group, words_of_group, words=True) == make_group(
        group, {**own, entry.name: value}
    )


def test_several_values_follow_a_flag_and_all_that_follows_check_is_its_command() -> None:
    line = "reduce m.onnx --input-shapes x:[1] y:2x3 --fail-code -11 --on --check cmd --all"
    read = "reduce m.onnx --input-shapes=x:[1] --input-shapes=y:2x3 --fail-code=-11 --on --check=cmd --check=--all"
    assert expand(line.split(), flags_of("reduce", several=True)) == read.split()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_help_are_command_lines_and_its_options_few_and_different(
    name: str,
) -> None:
    examples = COMMANDS[name].examples
    assert len(examples) == 2
    for line in examples:
        assert len(f" bisect-trt {line}") <= 78
        assert parse(shlex.split(line))[0] == name
    own, *others = COMMANDS[name].groups
    shown = [entry for entry in entries(own) if not entry.positional]
    shown += [entry for group in others for entry in entries(group) if entry.name in COMMON]
    # Those that README teaches are among them, the four targets too.
    assert len([entry for entry in shown if entry.name not in RARE]) <= 22
    every = [entry for group in COMMANDS[name].groups for entry in entries(group)]
    assert max(Counter(entry.name for entry in every).values()) == 1
    flags = [flag for entry in every if not entry.positional for flag in entry.flags]
    assert not flags or max(Counter(flag.removeprefix(" /") for flag in flags).values()) == 1
    assert all(entry.help for entry in every)


WRONG: dict[type, tuple[Any, ...]] = {
    bool: ("yes", 2, b"1"),
    int: ("3.5", 1.5, None.__class__, [[1]]),
    float: ("one", True, object()),
    str: (3, b"x", 1.5),
    Path: (3, b"x", 1.5),
}


@pytest.mark.parametrize(
    ("group", "entry"), OPTIONS, ids=[f"{g.__name__}-{e.name}" for g, e in OPTIONS]
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_option(
    group: type, entry: Option
) -> None:
    junk = (object(),) if entry.read or issubclass(entry.kind, Enum) else WRONG[entry.kind]
    for value in junk:
        with pytest.raises(UsageError, match=f"^{entry.name}: "):
            make_group(group, {entry.name: {"name": value} if entry.form == "named" else value})


def test_what_is_not_given_is_not_shared() -> None:
    """A group's lists and dictionaries are its own."""
    for group in GROUPS:
        needed = {entry.name: entry.kind("x") for entry in entries(group) if entry.required}
        first: object = make_group(group, needed)
        second: object = make_group(group, needed)
        for entry in entries(group):
            value = getattr(first, entry.name)
            assert not isinstance(value, list | dict) or value is not getattr(second, entry.name)


PARSE = """
import sys
from bisect_trt.cli.parser import parse
try:
    parse({words!r})
finally:
    print(*sorted({heavy!r} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["reduce", "--help"],
        ["run", "--no-such-option"],
        ["diagnose", "m.onnx", "--trt", "--atol=x:1e-3"],
    ],
    ids=" ".join,
)
def test_a_command_line_is_read_without_what_does_the_work(words: list[str]) -> None:
    code = PARSE.format(words=words, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr.splitlines() or [""])[-1] == ""


@pytest.mark.parametrize(
    ("low", "precision"),
    [
        ("", "fp32"),
        ("tf32", "tf32"),
        ("fp16 tf32", "fp16"),
        ("bf16", "bf16"),
        ("fp16 int8", "bf16"),
    ],
)
def test_tolerances_are_those_of_what_rounds_most(low: str, precision: str) -> None:
    target = TargetSettings.from_json(
        {**TargetSettings("trt").to_json(), **dict.fromkeys(low.split(), True)}
    )
    assert tolerance_options(CompareOptions(), target).precision.value == precision
