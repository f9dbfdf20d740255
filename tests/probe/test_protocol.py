"""What is asked of a worker, and what it answers, comes over as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.errors import UnavailableError
from bisect_trt.options.choices import ErrorStat
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, WorstElement
from bisect_trt.tensors.npz import save_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker import codec as lines
from bisect_trt.worker.channel import HEAD, frame
from bisect_trt.worker.codec import decode_answer, decode_order, encode
from bisect_trt.worker.protocol import (
    About,
    Answer,
    Build,
    Collect,
    Compare,
    Compared,
    Describe,
    Described,
    Done,
    Failed,
    Lower,
    Lowered,
    Misuse,
    Order,
    Sample,
    Started,
    Trace,
    Traced,
)
from bisect_trt.worker.sessions import TIMED_RUNS, median_ms, median_of

NAMES = st.one_of(st.text(), st.sampled_from(["kind_of", "version", "nan", "a\nb", '"', "\ud800"]))
PATHS = NAMES.map(lambda text: Path("/x") / text.replace("/", "_").replace("\0", "_"))
MAYBE_PATHS = st.none() | PATHS
TARGETS = st.builds(
    TargetSettings,
    st.just("trt"),
    fp16=st.booleans(),
    keep=st.lists(NAMES).map(tuple),
    own=st.builds(TrtSettings, tactic_sources=st.none() | st.lists(NAMES).map(tuple), strongly_typed=st.booleans()),
)
TOLERANCES = st.builds(
    ToleranceOptions,
    atol=st.dictionaries(NAMES, st.floats(0, 1)),
    stat=st.dictionaries(NAMES, st.sampled_from(ErrorStat)),
)
FLOATS = st.floats(allow_nan=False)
COMPARISONS = st.builds(
    TensorComparison,
    NAMES,
    st.booleans(),
    st.sampled_from(ComparisonKind),
    max_abs=st.none() | FLOATS,
    worst=st.none() | st.builds(WorstElement, st.lists(st.integers(0)).map(tuple), FLOATS, FLOATS, FLOATS),
    sample=st.none() | st.integers(1),
)
REQUESTS = st.one_of(
    st.builds(About, TARGETS),
    st.builds(Describe, TARGETS),
    st.builds(Build, TARGETS, PATHS, PATHS, PATHS),
    st.builds(Lower, TARGETS, PATHS, PATHS),
    st.builds(Trace, TARGETS, PATHS, PATHS),
    st.builds(Collect, TARGETS, PATHS, PATHS, PATHS, MAYBE_PATHS, st.booleans()),
    st.builds(
        Compare,
        TARGETS,
        PATHS,
        st.lists(st.builds(Sample, PATHS, PATHS), min_size=1).map(tuple),
        TOLERANCES,
        st.lists(NAMES).map(tuple),
        warm_up=st.none() | st.integers(0, 9),
        timed_for=st.none() | FLOATS,
        fed=st.dictionaries(NAMES, NAMES),
        feeds=MAYBE_PATHS,
        keep=st.lists(NAMES).map(tuple),
        keep_in=MAYBE_PATHS,
        save_outputs=st.lists(PATHS).map(tuple),
    ),
)
LAYERS = st.lists(st.dictionaries(NAMES, st.lists(NAMES))).map(tuple)
REPLIES = st.one_of(
    st.just(Done()),
    st.builds(Started, st.sampled_from(["cast", "layer"])),
    st.builds(Lowered, st.booleans()),
    st.builds(Described, st.dictionaries(NAMES, st.none() | st.integers() | NAMES)),
    st.builds(Traced, st.dictionaries(NAMES, st.lists(NAMES))),
    st.builds(Misuse, st.integers(0, 130), NAMES),
    st.builds(Failed, st.sampled_from(["build", "run"]), NAMES, NAMES, st.booleans()),
    st.builds(
        Compared,
        st.lists(COMPARISONS).map(tuple),
        st.dictionaries(NAMES, NAMES),
        LAYERS,
        st.none() | FLOATS,
        st.booleans(),
    ),
)


def over(header: dict[str, Any]) -> dict[str, Any]:
    """A header at the other end of a pipe."""
    content = frame(header)
    assert HEAD.unpack(content[: HEAD.size]) == (len(content) - HEAD.size, 0)
    return dict(json.loads(content[HEAD.size :]))


@given(st.builds(Order, REQUESTS, PATHS, PATHS))
def test_an_order_comes_over_as_it_was(order: Order) -> None:
    assert decode_order(over(encode(order))) == order


@given(st.builds(Answer, REPLIES, st.integers(0), st.integers(0), st.integers(0)))
def test_an_answer_comes_over_as_it_was(answer: Answer) -> None:
    assert decode_answer(over(encode(answer))) == answer


@pytest.mark.parametrize("decode", [decode_order, decode_answer])
def test_a_worker_of_another_release_is_told_from_one_that_misreads(
    monkeypatch: pytest.MonkeyPatch, decode: object
) -> None:
    line = encode(Answer(Done()))
    monkeypatch.setattr(lines, "VERSION", 7)
    assert callable(decode)
    with pytest.raises(UnavailableError, match=r"version 2 where 7 is expected.*install the same release"):
        decode(line)


@pytest.mark.parametrize(
    ("module", "without"),
    [
        # A worker in an interpreter of its own has NumPy and the runtime's package, and what it does not use takes time.
        ("bisect_trt.worker.serve", ["onnx", "onnxruntime", "onnx_graphsurgeon", "typer", "rich"]),
        # What runs models as they lie in their files.
        ("bisect_trt.targets.onnxrt.runner", ["onnx", "onnx_graphsurgeon", "ml_dtypes"]),
        # What a search with a check of the user's begins with.
        ("bisect_trt.commands.reduce", ["onnxruntime", "onnx_graphsurgeon", "xml.etree", "rich"]),
        # The driver starts its first worker before it imports what takes long.
        ("bisect_trt.worker.worker", ["numpy", "onnx", "typer", "rich"]),
    ],
)
def test_either_side_imports_little(module: str, without: list[str]) -> None:
    code = f"import sys, {module}; print(*(set({without}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("timed_for", "runs"), [(0.0, 1), (None, TIMED_RUNS)])
def test_a_slow_model_is_timed_by_as_many_runs_as_there_is_time_for(timed_for: float | None, runs: int) -> None:
    ran: list[int] = []
    session = SimpleNamespace(inputs=[], run=lambda _: ran.append(1))
    assert median_of(session, {}, 2, timed_for) > 0
    assert len(ran) == 2 + runs


def test_a_candidate_that_does_not_run_again_was_judged_all_the_same(tmp_path: Path) -> None:
    save_npz(tmp_path / "x.npz", {})
    sample = Sample(tmp_path / "x.npz", tmp_path / "x.npz")
    request = Compare(TargetSettings(), Path("m.onnx"), (sample,), ToleranceOptions(), warm_up=1, timed_for=5.0)
    ends = RunError("no memory left")

    def run(_: object) -> None:
        raise ends

    session = SimpleNamespace(inputs=[], run=run)
    assert median_ms(session, request) is None
    with pytest.raises(RunError):
        median_ms(session, replace(request, timed_for=None))
    ends = RunError("an illegal memory access", poisoned=True)
    with pytest.raises(RunError):
        median_ms(session, request)
