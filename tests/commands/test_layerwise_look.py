"""Every tensor of a real model on ONNX Runtime, with a target in between that refuses, hides or fuses on command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from layered import Ask, Shown, Target, looking, outputs_of
from onnx import helper, numpy_helper
from support import overflowing, save

from bisect_trt.commands.layerwise import LayerComparison, compare_layers
from bisect_trt.probe.outcome import Ending
from bisect_trt.tensors.comparison import ComparisonKind, WorstElement
from bisect_trt.worker.protocol import Compare, Compared, Failed

REFUSAL = Failed("build", "no such marks", "build: no such marks")


CRASH = Failed("crash", "no such marks: it crashed (SIGSEGV)", "signal SIGSEGV")


def refusing(*names: str, reply: Failed = REFUSAL) -> Target:
    """A target that refuses models with these tensors among their outputs."""

    def target(request: Compare, ask: Ask) -> Shown:
        return reply if not outputs_of(request).isdisjoint(names) else ask(request)

    return target


def origins(layers: LayerComparison, model: Path) -> list[str]:
    nodes = onnx.load(str(model)).graph.node
    return [nodes[index].name for index in layers.origins]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A chain that overflows, with tensors of other types on the way to its second output."""
    path = overflowing(tmp_path / "mixed.onnx")
    model = onnx.load(str(path))
    model.graph.node.extend(
        [
            helper.make_node("Greater", ["a2_out", "one"], ["larger"]),
            helper.make_node("Cast", ["larger"], ["whole"], to=onnx.TensorProto.INT32),
            helper.make_node("Cast", ["whole"], ["second"], to=onnx.TensorProto.FLOAT),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, [2, 3]))
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(("reply", "why"), [(REFUSAL, "no such marks"), (CRASH, "SIGSEGV")])
def test_bools_and_integers_are_left_out_first(mixed: Path, reply: Failed, why: str) -> None:
    with looking(mixed, refusing("larger", reply=reply), fp16=True) as look:
        layers = compare_layers(look)
    assert (layers.builds, origins(layers, mixed), layers.refused) == (2, ["big"], None)
    assert layers.unseen.keys() == {"larger", "whole"}
    assert all(why in each for each in layers.unseen.values())


def test_a_mark_that_breaks_the_build_is_found_and_the_origin_all_the_same(mixed: Path) -> None:
    name = "small_out"
    with looking(mixed, refusing(name), fp16=True) as look:
        layers = compare_layers(look)
    assert origins(layers, mixed) == ["big"]
    assert name in layers.unseen
    assert layers.outputs_fail
    assert layers.builds <= 8


def test_an_original_that_is_refused_the_same_way_is_refused_after_one_build(mixed: Path) -> None:
    asked = []

    def target(request: Compare, _: Ask) -> Shown:
        asked.append(request)
        return REFUSAL

    with looking(mixed, target, fp16=True) as look:
        original = look.unmarked()
        assert (original.ending, original.signature) == (Ending.BROKEN, "build: no such marks")
        asked.clear()
        layers = compare_layers(look, original)
    assert (layers.refused, layers.builds, len(asked)) == ("no such marks", 1, 1)


def test_marks_that_leave_a_milder_failure_hide_it_too(tmp_path: Path) -> None:
    """Without marks NaN, with them rounding: what they show is not what was looked for."""
    path = tmp_path / "two.onnx"
    nodes = [helper.make_node("Mul", ["x", "third"], ["a"], name="a"), helper.make_node("Exp", ["a"], ["b"], name="b")]
    save(path, nodes, [numpy_helper.from_array(np.array(1 / 3, np.float32), "third")])

    def target(request: Compare, ask: Ask) -> Shown:
        reply = ask(request)
        assert isinstance(reply, Compared)
        changed: dict[str, Any] = {"passed": False, "kind": ComparisonKind.NAN}
        if outputs_of(request) != {"b"}:
            worst = WorstElement((0, 0), target=1.0001, reference=1.0, error=1e-4)
            changed = {"passed": False, "kind": ComparisonKind.MISMATCH, "worst": worst, "past_tolerance": 1.5}
        return replace(reply, comparisons=tuple(replace(each, **changed) for each in reply.comparisons))

    with looking(path, target) as look:
        original = look.unmarked()
        layers = compare_layers(look, original)
    assert layers.hidden
    assert layers.origins == []
    assert len(layers.mild) == 1


def test_groups_that_hide_it_say_nothing_of_it(tmp_path: Path) -> None:
    """One group of marks hides the failure, the other does not: only the other's tensors were seen failing."""
    model = overflowing(tmp_path / "model.onnx")
    inner = {"a0_out", "a1_out", "a2_out", "big_out"}

    def target(request: Compare, ask: Ask) -> Shown:
        outputs = outputs_of(request)
        if "a0_out" in outputs and "b0_out" in outputs:
            return REFUSAL
        reply = ask(request)
        if outputs.isdisjoint(inner):
            return reply
        assert isinstance(reply, Compared)
        right = (replace(each, passed=True, kind=ComparisonKind.MATCH) for each in reply.comparisons)
        return replace(reply, comparisons=tuple(right))

    with looking(model, target, fp16=True) as look:
        original = look.unmarked()
        layers = compare_layers(look, original)
    assert not layers.hidden
    assert layers.outputs_fail
    assert inner <= layers.unseen.keys()
    assert "hides the failure" in layers.unseen["big_out"]
