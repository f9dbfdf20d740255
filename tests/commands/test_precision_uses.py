"""Only what was seen to pass is recommended.

TensorRT is stood in for by what it does with types; tests/gpu has the real one.
"""

from __future__ import annotations

import json
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

from bisect_trt.commands.precision import find_precision
from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.answer import find_fix, recommended
from bisect_trt.mixed_precision.curve import Fix
from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes
from bisect_trt.mixed_precision.search import PrecisionSettings, Task
from bisect_trt.onnxlib.nodes import Node
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Search
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.reproducer import MIXED
from bisect_trt.report.result import Result
from bisect_trt.report.summary import summary
from bisect_trt.session.checks import CheckSettings, make_prober, open_ledger
from bisect_trt.session.session import Session
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.steps.minimal_case import find_suspects
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.files import load_npz
from bisect_trt.worker.protocol import About, BuildEngine, Compare, Compared, Failed

FP16 = TargetSettings("trt", fp16=True)
NEEDED = frozenset({"big_out", "small_out"})


@dataclass
class TensorRt:
    """What a TensorRT does with the types in a graph, and with layer precisions.

    Attributes:
        strong: Whether it has strongly typed networks.
        heeds_casts: Whether a weakly typed build heeds the Casts of a graph.
        loads: Whether an engine that it wrote is right when it is read.
        needed: The outputs of the nodes that it has to run in fp32.
        region: Whether any such node makes it run the whole model in fp32.
        marks: Whether it runs models with every tensor as an output.
        asked: What it was asked to compare.
    """

    strong: bool = False
    heeds_casts: bool = False
    loads: bool = True
    needed: frozenset[str] = NEEDED
    region: bool = False
    marks: bool = True
    asked: list[Compare] = field(default_factory=list)

    def ask(self, request: Any, *rest: Any, **more: Any) -> Any:
        settings = getattr(request, "target", None)
        if settings is None or settings.runtime != "trt":
            return shared_workers().ask(request, *rest, **more)
        if isinstance(request, About):
            return {"lowers_by": "layer"}
        own = settings.of(TrtSettings)
        if isinstance(request, BuildEngine):
            Path(own.save_engine).write_text(json.dumps(set(settings.keep) >= self.needed))
            return None
        assert isinstance(request, Compare)
        self.asked.append(request)
        if not self.marks and len(onnx.load(str(request.model)).graph.output) > 1:
            return Failed("build", "such outputs are not supported", "refused")
        if own.strongly_typed and not self.strong:
            raise UsageError("--strongly-typed needs TensorRT 9 or later")
        if own.load_engine:
            right = self.loads and json.loads(Path(own.load_engine).read_text())
        elif own.strongly_typed:
            right = True
        else:
            model = onnx.load(str(request.model))
            typed = any(node.op_type == "Cast" for node in model.graph.node)
            right = (
                (typed and self.heeds_casts)
                or not settings.fp16
                or set(settings.keep) >= self.needed
            )
            if own.save_engine:
                Path(own.save_engine).write_text(json.dumps(right))
        golden = load_npz(request.samples[0].golden)
        made = {
            name: value if right else np.full_like(value, np.inf) for name, value in golden.items()
        }
        latency = 1.0 + (9 * bool(settings.keep) if self.region else len(settings.keep))
        return Compared(tuple(compare_all(golden, made, request.tolerance)), latency_ms=latency)


@contextmanager
def searching(target: TensorRt, folder: Path, most: int | None = None) -> Iterator[Task]:
    model = overflowing(folder / "model.onnx")
    console = Console(0)
    with Subject(ModelSettings(model), Workspace(folder / "run"), console) as subject:
        subject.workers.ask = target.ask  # type: ignore[method-assign]  # who answers here
        options = PrecisionOptions(model, folder / "mixed.onnx", overwrite=True)
        settings = PrecisionSettings(options, "fp16", FP16, by_layer=True)
        check = built_in_check(CheckSettings(target=FP16, by_layer=True), subject, "fp16")
        search = Search(workers=1, max_probes=most)
        ledger = open_ledger(check, search, subject, console)
        prober = make_prober(check, search, subject, ledger)
        try:
            yield Task(
                subject,
                console,
                Result("precision"),
                prober,
                make_nodes(subject, settings),
                settings,
            )
        finally:
            prober.ledger.close()


@pytest.mark.parametrize("heeds_casts", [False, True])
@pytest.mark.parametrize("strong", [False, True])
def test_the_model_is_recommended_only_as_it_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, strong: bool, heeds_casts: bool
) -> None:
    with searching(TensorRt(strong, heeds_casts), tmp_path) as task:
        find_precision(task, Search(workers=1))
        result = task.result
        assert {node.name for node in result.keep_fp32 or ()} == {"big", "small"}
    said = " ".join(capsys.readouterr().out.split())
    mixed = tmp_path / "mixed.onnx"
    engine = tmp_path / "mixed.engine"
    seen = [(Path(use.what).name, use.passed) for use in result.uses or ()]
    models = [("mixed.onnx", heeds_casts), *([("mixed.onnx", True)] if strong else [])]
    assert seen == [*models, ("mixed.engine", True)]
    best = mixed if strong or heeds_casts else engine
    assert recommended(result) == str(best)
    assert ("does not pass (" in said) is not heeds_casts
    assert f"seen to pass: {engine}: bisect-trt run" in said


def test_the_suspects_are_validated_before_the_search_for_fewer(tmp_path: Path) -> None:
    """The engine of all suspects runs on fresh samples first, where each further build takes minutes."""
    target = TensorRt()
    with searching(target, tmp_path) as task:
        find_precision(task, Search(workers=1))
        suspects = {task.subject.network.order[each.unit] for each in task.space.suspects}
    fresh = [len(request.samples) > 1 for request in target.asked]
    assert fresh.index(True) < 4, fresh
    assert len(suspects) <= 2


def test_a_set_that_makes_the_engine_as_slow_as_fp32_is_not_recommended(tmp_path: Path) -> None:
    with searching(TensorRt(region=True), tmp_path) as task:
        find_precision(task, Search(workers=1))
    result = task.result
    assert result.latency_ms == {"fp32": 10.0, "mixed": 10.0, "lowered": 1.0, "minimal": 10.0}
    assert (result.slow, recommended(result), result.minimality) == (True, None, "unproven")
    assert "as slow as the model in fp32" in (result.why or "")
    result.artifacts["run"] = str(tmp_path)
    (row,) = (text for label, text in summary(result) if label == "Mixed")
    assert "2 of 8 nodes in fp32" in row


@pytest.mark.parametrize("beside", ["a2_out", "b0_out"])
def test_neighbours_of_suspects_are_kept_where_the_engine_needs_them(
    tmp_path: Path, beside: str
) -> None:
    """The engine computes what the first suspect reads, or the last one makes, in fp16: asked at once."""
    target = TensorRt(needed=NEEDED | {beside})
    with searching(target, tmp_path) as task:
        find_precision(task, Search(workers=1))
        result = task.result
        kept = {node.outputs[0]: node for node in result.keep_fp32 or ()}
        assert set(kept) == NEEDED | {beside}
        assert kept[beside].rule == "neighbour"
        assert "beside Mul" in (kept[beside].reason or "")
    sets = [request.target.keep for request in target.asked]
    assert (
        sum(beside in each for each in sets[:4]) == 2
    )  # all nodes, and the suspects with neighbours


def test_operators_that_were_tried_in_vain_do_not_come_first(tmp_path: Path) -> None:
    with searching(TensorRt(needed=frozenset({"none of them"})), tmp_path) as task:
        order = task.space.order([])
        assert Fix(task)._suspect_operators() == frozenset()
        assert task.space.order([]) == order


def test_nodes_that_lose_values_are_suspects_where_marks_are_refused(tmp_path: Path) -> None:
    with searching(TensorRt(marks=False), tmp_path) as task:
        task.prober.probe_original(task.subject.original)
        target = task.prober.check.runtime
        assert target is not None
        suspects = find_suspects(task, lambda layers: pytest.fail(str(layers)))
        network = task.subject.network
        assert {network.nodes[index].output[0] for index in suspects} == NEEDED


@pytest.mark.parametrize("loads", [False, True])
def test_a_diagnosis_recommends_only_what_passes_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, loads: bool
) -> None:
    with searching(TensorRt(loads=loads), tmp_path) as task:
        task.prober.probe_original(task.subject.original)
        found = Session(task.subject, task.console, task.result, task.prober)
        check = CheckSettings(target=FP16)
        find_fix(found, check, Search(workers=1), task.subject.original, tmp_path / MIXED)
        engine = tmp_path / "mixed.engine"
        assert recommended(task.result) == (str(engine) if loads else None)
        # Engines that do not load fail on all fresh samples too, for which the set then grows in
        # vain.
        assert len(task.result.keep_fp32 or ()) == (2 if loads else 3)
    said = " ".join(capsys.readouterr().out.split())
    assert ("nodes in fp32 nothing that was written passes." in said) is not loads
    assert (f"seen to pass: {engine}: bisect-trt run" in said) is loads
    assert ("does not pass (" in said) is not loads  # the model with Casts is not built too


@pytest.mark.parametrize("most", range(2, 24, 3))
def test_the_search_for_a_fix_leaves_the_answer_of_the_diagnosis(tmp_path: Path, most: int) -> None:
    """Whatever budget it has, and wherever in the search that ends."""
    answer: dict[str, Any] = {
        "status": "found",
        "culprits": [Node(name="wrong", op="Add", outputs=("y",))],
        "minimality": "1-minimal",
        "why": "a remark",
    }
    with searching(TensorRt(), tmp_path, most) as task:
        task.prober.probe_original(task.subject.original)
        found = Session(task.subject, task.console, Result("diagnose", **answer), task.prober)
        find_fix(
            found, CheckSettings(target=FP16), Search(workers=1), task.subject.original, tmp_path
        )
        assert {name: getattr(found.result, name) for name in answer} == answer
