"""Who may be asked for all failures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import chain, read_json

from bisect_trt.commands.reduce import reduce_model
from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import ModelSettings, Subject
from bisect_trt.errors import UsageError
from bisect_trt.options.searches import Reduce
from bisect_trt.options.shared import Search
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.prober import Prober, Runner
from bisect_trt.probe.user_checks import PromptCheck
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.report.result import Result


def test_nobody_is_asked_for_all_failures_at_a_prompt(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx")
    console = Console(-1)
    with Subject(ModelSettings(path), Workspace(tmp_path / "run"), console) as subject:
        ledger = Ledger(tmp_path)
        prober = Prober(Runner(PromptCheck(), subject.workspace, subject.reference), ledger)
        settings = Reduce(tmp_path / "model.onnx", tmp_path / "out.onnx", find_all=True)
        with pytest.raises(UsageError, match="too many questions for a prompt; give a --check command"):
            reduce_model(Session(subject, console, Result("reduce"), prober), settings, Search())
        ledger.close()


def tied_and_past_the_largest(path: Path) -> Path:
    """First a comparison of what is rounded in fp16 with its own value: a tie. Then a product that fp16 cannot hold."""
    nodes = [
        helper.make_node("Mul", ["x", "third"], ["m"], name="third"),
        helper.make_node("Greater", ["m", "edge"], ["above"], name="choice"),
        helper.make_node("Mul", ["x", "large"], ["l"], name="overflow"),
        helper.make_node("Div", ["l", "large"], ["y"], name="back"),
    ]
    value = np.linspace(1, 2, 8, dtype=np.float32)
    third = np.float32(1 / 3)
    weights = {"third": third, "edge": value * third * np.float32(1 + 1e-6), "large": np.float32(6e4)}
    tensors = [numpy_helper.from_array(np.asarray(each, np.float32), name) for name, each in weights.items()]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [8]),
        helper.make_tensor_value_info("above", TensorProto.BOOL, [8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [8]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))
    np.savez(path.with_suffix(".npz"), x=value)
    return path


def test_where_nobody_is_wrong_nothing_is_searched_further(cli: CommandLine) -> None:
    """That the rest fails too is said, and ``--all`` finds it."""
    model = tied_and_past_the_largest(Path("model.onnx"))
    words = ("diagnose", model, "--onnxrt", "--fp16", "--load-inputs", "model.npz", "--json", "r.json", "-o", "out")
    ran = cli(*words)
    assert ran.status == 0, ran.err
    result = read_json(Path("r.json"))
    assert (result["fault"]["whose"], result["more_failures"]) == ("tie", True)
    assert (result["cause"], result["workarounds"]) == ([], [])
    assert not Path("out/mixed.onnx").exists()
    cli(*words, "--overwrite", "--all")
    result = read_json(Path("r.json"))
    assert "overflow" in [node["name"] for each in result["failures"] for node in each["culprits"]]
    assert "precision" in [each["fault"]["whose"] for each in result["failures"][1:]]
