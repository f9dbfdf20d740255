"""Only what was seen to pass is recommended. TensorRT is stood in for by what it does with types; tests/gpu has the real one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from layered import shared_workers
from support import overflowing

from bisect_trt.commands.checks import make_prober
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import CheckSettings, ModelSettings, SearchSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes
from bisect_trt.mixed_precision.parameters import PrecisionSettings
from bisect_trt.mixed_precision.precision import find_fix, find_precision
from bisect_trt.mixed_precision.task import Task
from bisect_trt.probe.ledger import Budget, BudgetSpent
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Verdict
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.npz import load_npz
from bisect_trt.worker.protocol import About, Build, Compare, Compared, Done, Started

FP16 = TargetSettings("trt", fp16=True)
NEEDED = {"big_out", "small_out"}


@dataclass
class TensorRt:
    """What a TensorRT does with the types in a graph, and with layer precisions.

    Attributes:
        strong: Whether it has strongly typed networks.
        heeds_casts: Whether a weakly typed build heeds the Casts of a graph.
        loads: Whether an engine that it wrote is right when it is read.
        fused: What each layer of its engines makes.
        asked: What it was asked to compare.
    """

    strong: bool = False
    heeds_casts: bool = False
    loads: bool = True
    fused: tuple[tuple[str, ...], ...] = ()
    asked: list[Compare] = field(default_factory=list)

    def ask(self, request: Any, *rest: Any, **more: Any) -> Any:
        settings = getattr(request, "target", None)
        if settings is None or settings.runtime != "trt":
            return shared_workers().ask(request, *rest, **more)
        if isinstance(request, About):
            return Started("layer")
        own = settings.of(TrtSettings)
        if isinstance(request, Build):
            request.to.write_text(json.dumps(set(settings.keep) >= NEEDED))
            return Done()
        assert isinstance(request, Compare)
        self.asked.append(request)
        if own.strongly_typed and not self.strong:
            raise UsageError("--strongly-typed needs TensorRT 9 or later")
        if own.load_engine:
            right = self.loads and json.loads(Path(own.load_engine).read_text())
        elif own.strongly_typed:
            right = True
        else:
            model = onnx.load(str(request.model))
            typed = any(node.op_type == "Cast" for node in model.graph.node)
            right = (typed and self.heeds_casts) or not settings.fp16 or set(settings.keep) >= NEEDED
            if own.save_engine:
                Path(own.save_engine).write_text(json.dumps(right))
        golden = load_npz(request.samples[0].golden)
        made = {name: value if right else np.full_like(value, np.inf) for name, value in golden.items()}
        latency = 1.0 + len(settings.keep)
        layers = tuple({"name": " + ".join(f), "kind": "", "tensors": list(f), "precisions": []} for f in self.fused)
        return Compared(tuple(compare_all(golden, made, request.tolerance)), layers=layers, latency_ms=latency)


@contextmanager
def searching(
    target: TensorRt, folder: Path, budget: Budget | None = None, *, divide_regions: bool = False
) -> Iterator[Task]:
    model = overflowing(folder / "model.onnx")
    console = Console(0)
    with Subject(ModelSettings(model), Workspace(folder / "run"), console) as subject:
        subject.workers.ask = target.ask  # type: ignore[method-assign]  # who answers here
        settings = PrecisionSettings(
            folder / "mixed.onnx", "fp16", FP16, by_layer=True, overwrite=True, divide_regions=divide_regions
        )
        check = built_in_check(CheckSettings(target=FP16, by_layer=True), subject, "fp16")
        prober = make_prober(check, SearchSettings(workers=1, budget=budget or Budget()), subject, console)
        try:
            yield Task(subject, console, Result("precision"), prober, make_nodes(subject, settings), settings)
        finally:
            prober.ledger.close()


def uses(task: Task) -> dict[str, bool | None]:
    """Each way by the end of its command."""
    return {Path(use["command"].split()[-1]).name or use["what"]: use["passed"] for use in task.result.extra["uses"]}


@pytest.mark.parametrize("heeds_casts", [False, True])
@pytest.mark.parametrize("strong", [False, True])
def test_the_model_is_recommended_only_as_it_passes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    strong: bool,
    heeds_casts: bool,
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    with searching(TensorRt(strong, heeds_casts), tmp_path) as task:
        find_precision(task, SearchSettings(workers=1))
        result = task.result
        assert {node["name"] for node in result.extra["keep_fp32"]} == {"big", "small"}
    said = " ".join(capsys.readouterr().out.split())
    mixed, engine = tmp_path / "mixed.onnx", tmp_path / "mixed.engine"
    seen = [(Path(use["what"]).name, use["passed"]) for use in result.extra["uses"]]
    models = [("mixed.onnx", heeds_casts), *([("mixed.onnx", True)] if strong else [])]
    assert seen == [*models, ("mixed.engine", True), ("the options of trtexec", None)]
    best = mixed if strong or heeds_casts else engine
    assert f"{best}: 2 nodes in fp32" in said
    assert ("does not pass: " in said) is not heeds_casts
    assert f"seen to pass: {engine}: bisect-trt run" in said
    assert "not tried (there is no trtexec on the PATH): the options of trtexec: trtexec" in said
    assert "--layerPrecisions=" in said


def test_what_is_fused_is_asked_about_as_a_whole_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = TensorRt(fused=(("a0_out", "a1_out"), ("big_out", "small_out"), ("b0_out", "b1_out", "b2_out")))
    with searching(target, tmp_path) as task:
        find_precision(task, SearchSettings(workers=1))
        assert {node["name"] for node in task.result.extra["keep_fp32"]} == {"big", "small"}
    said = " ".join(capsys.readouterr().out.split())
    assert "2 regions that the engine fuses are asked about as a whole first" in said
    assert "3 nodes are in regions too large to ask about as a whole, so patterns of the graph are" in said


@pytest.mark.parametrize("divide", [False, True])
def test_a_region_whose_parts_tell_nothing_is_one_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, divide: bool
) -> None:
    """The stand-in runs it as one layer whatever is asked for, and is wrong with either half of it in fp16."""
    target = TensorRt(fused=(("a0_out", "a1_out"), ("big_out", "small_out")))
    with searching(target, tmp_path, divide_regions=divide) as task:
        find_precision(task, SearchSettings(workers=1))
        result = task.result
    assert {node["name"] for node in result.extra["keep_fp32"]} == {"big", "small"}
    assert result.minimality == "1-minimal"
    assert result.extra.get("regions", []) == ([] if divide else [["big", "small"]])
    said = " ".join(capsys.readouterr().out.split())
    assert ("(1-minimal by regions)" in said) is not divide


def test_a_region_of_which_a_part_is_enough_is_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with searching(TensorRt(fused=(("a1_out", "big_out"), ("small_out", "b0_out"))), tmp_path) as task:
        find_precision(task, SearchSettings(workers=1))
        assert {node["name"] for node in task.result.extra["minimal"]} == {"big", "small"}
        assert task.result.extra["regions"] == []
    assert "by regions" not in capsys.readouterr().out


def test_the_original_is_not_built_again_with_everything_lowered(tmp_path: Path) -> None:
    target = TensorRt()
    with searching(target, tmp_path) as task:
        task.prober.probe_original(task.subject.original)
        built = len(target.asked)
        assert task.prober.probe(task.lowering.candidate(frozenset())).verdict is Verdict.FAIL
        assert len(target.asked) == built


def test_what_was_written_and_does_not_pass_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with searching(TensorRt(loads=False), tmp_path) as task:
        find_precision(task, SearchSettings(workers=1))
        assert task.result.minimality == "unproven"
    said = " ".join(capsys.readouterr().out.split())
    assert "seen to pass" not in said
    assert said.count("does not pass") == 2


def test_a_search_that_was_ended_names_the_engine_and_the_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = TensorRt()
    with searching(target, tmp_path, Budget(probes=5)) as task:
        with pytest.raises(BudgetSpent):
            find_precision(task, SearchSettings(workers=1))
        passed = {Path(use["what"]).name: use["passed"] for use in task.result.extra["uses"]}
    assert passed == {"mixed.onnx": None, "mixed.engine": True, "the options of trtexec": None}
    said = " ".join(capsys.readouterr().out.split())
    assert f"{tmp_path / 'mixed.engine'}: the best so far" in said
    assert "not tried (the search did not come to its end): the options of trtexec: trtexec --onnx=" in said


@pytest.mark.parametrize("loads", [False, True])
def test_a_diagnosis_recommends_only_what_passes_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, loads: bool
) -> None:
    with searching(TensorRt(loads=loads), tmp_path) as task:
        task.prober.probe_original(task.subject.original)
        found = Session(task.subject, task.console, task.result, task.prober)
        check = CheckSettings(target=FP16)
        find_fix(found, check, SearchSettings(workers=1), task.subject.original, tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    engine = tmp_path / "mixed.engine"
    assert (f"Fix: keep 2 of 8 nodes in fp32, as {engine} does." in said) is loads
    assert ("nodes in fp32 nothing that was written passes." in said) is not loads
    assert (f"seen to pass: {engine}: bisect-trt run" in said) is loads
    assert ("does not pass: " in said) is not loads  # the model with Casts is not built too
    assert f"as {tmp_path / 'mixed.onnx'} does" not in said


TRTEXEC = """#!/bin/sh
for word; do case "$word" in
  --saveEngine=*) engine="${{word#--saveEngine=}}";;
  --layerPrecisions=*) case "$word" in *big:fp32*) right={right};; esac;;
esac; done
test {status} = 0 && echo "${{right:-false}}" > "$engine"
exit {status}
"""


@pytest.mark.parametrize(("right", "status", "passed"), [("true", 0, True), ("false", 0, False), ("true", 1, False)])
def test_trtexec_is_run_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, status: int, *, passed: bool
) -> None:
    tool = tmp_path / "bin" / "trtexec"
    tool.parent.mkdir()
    tool.write_text(TRTEXEC.format(right=right, status=status))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.defpath}")
    with searching(TensorRt(), tmp_path) as task:
        find_precision(task, SearchSettings(workers=1))
        (use,) = [use for use in task.result.extra["uses"] if use["what"].startswith("the options")]
    assert use["passed"] is passed
    assert use["command"].startswith(f"trtexec --onnx={tmp_path / 'model.onnx'} --fp16 --noTF32")
    assert "big:fp32,small:fp32" in use["command"]
    assert ("builds no engine" in use["reason"]) is (status != 0)
