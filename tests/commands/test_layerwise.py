"""Every tensor of a real model on ONNX Runtime, with a target in between that refuses, hides or fuses on command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from answers.models import cancelling
from building import text_model
from conftest import CommandLine
from hypothesis import given
from hypothesis import strategies as st
from layered import Ask, Shown, Target, looking, outputs_of
from msgspec import structs
from onnx import TensorProto, helper, numpy_helper
from support import overflowing

from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.network import Network
from bisect_trt.probe.candidate import Probe
from bisect_trt.probe.ledger import Ledger
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import Prober
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.result import Result, result_of
from bisect_trt.report.summary import summary
from bisect_trt.steps.layers import (
    Gathered,
    LayerComparison,
    Marking,
    compare_layers,
    compare_own,
    fill_in,
    find_origins,
    gather,
)
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison, to_plain
from bisect_trt.tensors.tolerance import automatic_tolerance
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
    more = "larger = Greater(a2_out, one) whole = Cast<to = 6>(larger) second = Cast<to = 1>(whole)"
    model.graph.node.extend(text_model("() => ()", more).graph.node)
    model.graph.output.append(
        helper.make_tensor_value_info("second", onnx.TensorProto.FLOAT, [2, 3])
    )
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
        right = (
            structs.replace(each, passed=True, kind=ComparisonKind.MATCH)
            for each in reply.comparisons
        )
        return structs.replace(reply, comparisons=tuple(right))

    with looking(model, target, fp16=True) as look:
        original = look.unmarked()
        layers = compare_layers(look, original)
    assert not layers.hidden
    assert layers.outputs_fail
    assert inner <= layers.unseen.keys()
    assert "hides the failure" in layers.unseen["big_out"]


@pytest.mark.parametrize("words", [(), ("--latency",)])
def test_debug_tensors_are_for_values_on_tensorrt(
    cli: CommandLine, here: Path, words: tuple[str, ...]
) -> None:
    model = overflowing(here / "model.onnx")
    ran = cli("layerwise", model, "--onnxrt", "--debug-tensors", *words)
    ran.refused("BT1003", "--debug-tensors")


def test_tensors_that_the_compiler_fuses_away_are_not_wrong(tmp_path: Path) -> None:
    """A target with debug tensors runs the model without marks, and hands out the tensors that it keeps."""
    path = overflowing(tmp_path / "model.onnx")
    kept = ["a1_out", "big_out"]

    def target(request: Compare, ask: Ask) -> Shown:
        outputs = outputs_of(request)
        assert outputs.isdisjoint(kept)
        proto = mark_outputs(Network(onnx.load(str(path))), [*outputs, *kept], {})
        model = tmp_path / "kept.onnx"
        onnx.save(proto, str(model))
        return ask(structs.replace(request, target=TargetSettings(fp16=True), model=model))

    with looking(path, target, fp16=True) as look:
        settings = TargetSettings("trt", fp16=True, own=TrtSettings(debug_tensors=True))
        layers = compare_layers(structs.replace(look, target=settings))
    assert origins(layers, path) == ["big"]
    assert layers.builds == 1
    assert layers.unseen["a0_out"] == "the compiler does not keep it"
    assert layers.tensors.keys() >= {*kept}


@given(st.lists(st.booleans(), min_size=3, max_size=8))
def test_an_origin_has_no_wrong_ancestor(wrong: list[bool]) -> None:
    """A mask may hide that a tensor between two wrong ones is wrong; what comes after it computes from wrong inputs."""
    names = [f"t{place}" for place in range(len(wrong))]
    read = ["x", *names]
    body = " ".join(f"{name} = Relu({read[place]})" for place, name in enumerate(names))
    network = Network(text_model(f"(float[2] x) => (float[2] {names[-1]})", body))
    kinds = {True: ComparisonKind.MISMATCH, False: ComparisonKind.MATCH}
    seen = {
        name: TensorComparison(name, not bad, kinds[bad])
        for name, bad in zip(names, wrong, strict=True)
    }
    assert find_origins(network, seen) == ([wrong.index(True)] if any(wrong) else [])


MASKED = {
    "a mask is added": "masked = Add(scaled, mask)",
    "a mask is made of ones and zeros": "inverted = Sub(one, ones) added = Mul(inverted, constant) masked = Add(scaled, added)",
    "values are replaced": "masked = Where(padding, constant, scaled)",
}


def off_by(
    name: str, error: float, shape: Sequence[int] = (1, 2, 4, 4), element: int = 0
) -> Target:
    """A target with an error in one element of one tensor."""

    def target(request: Compare, ask: Ask) -> Shown:
        model = onnx.load(str(request.model))
        makers = [node for node in model.graph.node if name in node.output]
        if not makers:
            return ask(request)
        (maker,) = makers
        place = list(model.graph.node).index(maker)
        maker.output[0] = f"{name}/right"
        model.graph.node.insert(
            place + 1, helper.make_node("Add", [f"{name}/right", f"{name}/error"], [name])
        )
        errors = np.zeros(shape, np.float32)
        errors.flat[element] = error
        model.graph.initializer.append(numpy_helper.from_array(errors, f"{name}/error"))
        wrong = request.model.with_name("wrong.onnx")
        onnx.save(model, str(wrong))
        return ask(structs.replace(request, model=wrong))

    return target


@pytest.mark.parametrize(
    ("constant", "fp16"),
    [(-1e4, False), (-1e4, True), (-65504.0, False), (float(np.finfo(np.float32).min), False)],
)
@pytest.mark.parametrize("masking", MASKED)
def test_a_mask_hides_no_wrong_tensor(
    masking: str, constant: float, fp16: bool, tmp_path: Path
) -> None:
    padding = np.triu(np.ones((4, 4), bool), 1)
    mask = np.where(padding, np.float32(constant), np.float32(0))
    weights = {"one": np.float32(1), "constant": np.float32(constant), "ones": (~padding).astype(np.float32),
               "padding": padding, "mask": mask, "scale": np.float32(0.5)}  # fmt: skip
    body = f"""turned = Transpose<perm = [0, 1, 3, 2]>(k) scores = MatMul(q, turned) scaled = Mul(scores, scale)
        {MASKED[masking]} weights = Softmax<axis = -1>(masked) mixed = MatMul(weights, v) y = Tanh(mixed)"""
    ends = f"({', '.join(f'float[1, 2, 4, 8] {name}' for name in 'qkv')}) => (float[1, 2, 4, 8] y)"
    onnx.save(text_model(ends, body, weights), str(tmp_path / "model.onnx"))
    with looking(tmp_path / "model.onnx", off_by("masked", 2.5), fp16=fp16) as look:
        assert origins(compare_layers(look), tmp_path / "model.onnx") == ["masked"]


@pytest.mark.parametrize("between", ["", "turned = Neg(masked) masked2 = Neg(turned)"])
def test_an_inf_that_no_later_tensor_shows_hides_no_origin(between: str, tmp_path: Path) -> None:
    """A causal mask of the smallest float is -Inf in fp16 and harmless; the squares after it overflow."""
    mask = np.triu(np.full((4, 4), np.finfo(np.float32).min, np.float32), 1)
    weights = {"mask": mask, "thousand": np.float32(1000), "one": np.float32(1)}
    body = f"""masked = Add(x, mask) {between} weights = Softmax({"masked2" if between else "masked"})
        scaled = Mul(weights, thousand) squares = Mul(scaled, scaled) more = Add(squares, one) y = Div(scaled, more)"""
    model = tmp_path / "model.onnx"
    onnx.save(text_model("(float[1, 4, 4] x) => (float[1, 4, 4] y)", body, weights), str(model))
    with looking(model, fp16=True) as look:
        assert origins(compare_layers(look), model) == ["squares"]


MIXING = np.random.default_rng(0).normal(0, 0.2, (16, 16)).astype(np.float32)


def large_channel(path: Path) -> None:
    """A norm with an outlier channel, which its gain scales down again, and a Linear."""
    large = np.ones(16, np.float32)
    large[3] = 200
    gain = np.full(16, 25, np.float32)
    gain[3] = 0.01
    weights = {"large": large, "gain": gain, "half": np.float32(0.5), "one": np.ones(16, np.float32),
               "w": MIXING}  # fmt: skip
    body = """centred = Sub(x, half) high = Mul(centred, large) scaled = Mul(high, one) kept = Identity(scaled)
        squares = Mul(kept, kept) mean = ReduceMean<axes = [-1]>(squares) root = Sqrt(mean) normal = Div(kept, root)
        norm = Mul(normal, gain) linear = MatMul(norm, w) y = Relu(linear)"""
    onnx.save(text_model("(float[1, 8, 16] x) => (float[1, 8, 16] y)", body, weights), str(path))


def sink(path: Path) -> None:
    """Attention to a first token that has a large key and hardly a value."""
    large = np.zeros((1, 8, 1), np.float32)
    large[0, 0] = 4
    small = np.ones((1, 8, 1), np.float32)
    small[0, 0] = 1e-4
    weights = {"large": np.concatenate([large, np.zeros((1, 8, 15), np.float32)], -1), "small": small,
               "first": np.eye(1, 16, dtype=np.float32) * 2}  # fmt: skip
    body = """keys = Add(x, large) turned = Transpose<perm = [0, 2, 1]>(keys) asked = Add(x, first)
        scores = MatMul(first, turned) weights = Softmax<axis = -1>(scores) scaled = Identity(weights)
        kept = Identity(scaled) values = Mul(x, small) linear = MatMul(kept, values) y = Tanh(linear)"""
    onnx.save(text_model("(float[1, 8, 16] x) => (float[1, 1, 16] y)", body, weights), str(path))


def mask(path: Path) -> None:
    """Scores of a large first column under a mask; the large column is dropped."""
    large = np.zeros(8, np.float32)
    large[0] = 300
    weights = {"large": large, "mask": np.triu(np.full((8, 8), -1e4, np.float32), 2), "half": np.float32(0.5),
               "starts": np.array([1]), "ends": np.array([8]), "axes": np.array([2])}  # fmt: skip
    body = """high = Add(x, large) scaled = Mul(high, half) kept = Add(scaled, mask)
        linear = Slice(kept, starts, ends, axes) y = Softmax<axis = -1>(linear)"""
    onnx.save(text_model("(float[1, 8, 8] x) => (float[1, 8, 7] y)", body, weights), str(path))


def dead(path: Path) -> None:
    """Channels that a Relu and a sigmoid close, all but a few."""
    closed = np.full(16, -12, np.float32)
    closed[3:5] = 100
    weights = {"closed": closed, "one": np.ones(16, np.float32),
               "w": MIXING}  # fmt: skip
    body = """low = Add(x, closed) gate = Sigmoid(low) silu = Mul(low, gate) open = Relu(low) high = Add(silu, open)
        scaled = Mul(high, one) kept = Identity(scaled) linear = MatMul(kept, w) y = Tanh(linear)"""
    onnx.save(text_model("(float[1, 8, 16] x) => (float[1, 8, 16] y)", body, weights), str(path))


UNEVEN = {
    large_channel: ((1, 8, 16), 5, (1, 8, 16)),
    sink: ((1, 1, 8), 5, (1, 1, 16)),
    mask: ((1, 8, 8), 57, (1, 8, 7)),
}
"""Models with slices of very different size, with the shape of ``scaled``, an element of a small
slice, and the shape of ``linear``."""


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("make", UNEVEN)
def test_an_origin_is_where_the_error_is_and_not_where_it_shows(
    make: Any, fp16: bool, tmp_path: Path
) -> None:
    """The error is half of what the whole tensor is allowed, so it shows where the large slice has gone."""
    path = tmp_path / "model.onnx"
    make(path)
    shape, element, _ = UNEVEN[make]
    with looking(path, fp16=fp16) as look:
        reference = look.subject.reference.select(["scaled"])["scaled"]
        error = automatic_tolerance(reference, look.tolerance.precision).atol / 2
    with looking(path, off_by("scaled", error, shape, element), fp16=fp16) as look:
        layers = compare_layers(look)
    assert origins(layers, path) == ["scaled"]
    assert [layers.tensors[name].passed for name in ("scaled", "kept")] == [False, False]


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize(
    ("make", "last"), [*((m, UNEVEN[m][2]) for m in UNEVEN), (dead, (1, 8, 16))]
)
def test_small_slices_and_closed_channels_are_no_origins(
    make: Any, last: tuple[int, ...], fp16: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    make(path)
    with looking(path, fp16=fp16) as look:
        assert origins(compare_layers(look), path) == []
    with looking(path, off_by("linear", 30.0, last), fp16=fp16) as look:
        assert origins(compare_layers(look), path) == ["linear"]


@pytest.mark.parametrize("refused", ["a2_out", "a1_out"])
def test_an_origin_with_an_input_that_was_not_seen_says_so(refused: str, tmp_path: Path) -> None:
    path = overflowing(tmp_path / "model.onnx")
    with looking(path, refusing(refused), fp16=True) as look:
        result = Result("layerwise", "found", artifacts={"run": "folder"})
        fill_in(result, look.subject, compare_layers(look))
    said = "Its input 'a2_out' could not be seen, so the error may begin before it"
    assert (said in [text for _, text in summary(result)]) is (refused == "a2_out")


def test_the_summary_says_which_inputs_of_origins_were_not_seen(
    cli: CommandLine, here: Path
) -> None:
    result = cli(
        "layerwise", overflowing(here / "model.onnx"), "--onnxrt", "--fp16", "--json", "r.json"
    ).result
    (origin,) = result["origins"]
    again = {**origin, "node": {**origin["node"], "name": "again"}, "inputs": ["x"]}
    result["origins"].append(again)
    texts = [text for _, text in summary(result_of(result))]
    assert "1 more node with correct inputs and wrong outputs: Mul 'again'" in texts
    again["right_alone"] = True
    texts = [text for _, text in summary(result_of(result))]
    text = "correct inputs and wrong outputs, but right alone: Mul 'again'"
    assert f"1 more node with {text}" in texts
    del again["right_alone"]
    result["unseen"] = {"x": "refused", "a2_out": "refused"}
    texts = [text for _, text in summary(result_of(result))]
    assert "Its input 'a2_out' could not be seen, so the error may begin before it" in texts
    text = "inputs that are slightly wrong or were not seen and wrong outputs: Mul 'again'"
    assert f"1 more node with {text}" in texts


def test_the_first_line_says_whether_the_outputs_match(cli: CommandLine, here: Path) -> None:
    ran = cli(
        "layerwise", overflowing(here / "model.onnx"), "--onnxrt", "--fp16", "--json", "r.json"
    )
    assert ran.result["own_outputs"]["match"] is False
    first, text = summary(result_of(ran.result))[0]
    assert (first, text.startswith("the model's own outputs: ")) == ("Fails", True)


# Each layer's own error is that of the layer cut out alone.


def alone(look: Marking, name: str) -> Outcome:
    """The outcome of a probe of one node, cut out and fed the reference's values."""
    subject = look.subject
    unit = subject.network.rank[subject.network.producer[name]]
    check = BuiltinCheck(subject.workers, look.target, look.tolerance)
    with closing(Ledger(subject.workspace.folder, describe_outcome)) as ledger:
        prober = Prober(check, subject.workspace, subject.reference, ledger)
    return prober.run_check(Probe(subject.cut(subject.units.with_weights({unit}))))


def numbers(comparison: TensorComparison) -> dict[str, Any]:
    return {key: value for key, value in to_plain(comparison).items() if key != "details"}


def transformer(path: Path) -> Path:
    """A LayerNorm, a softmax over integers' places, a Reshape and a Where: floats, integers and bools between layers."""
    model = onnx.load(str(cancelling(path, mean=3.0)))
    more = """shape = Shape(z) same = Reshape(z, shape) place = ArgMax<axis = -1>(same) where = Cast<to = 1>(place)
        after = Greater(same, where) kept = Where(after, same, zero) exp = Exp(kept) out = Softmax<axis = -1>(exp)"""
    model.graph.node.extend(text_model("() => ()", more).graph.node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("make", [overflowing, transformer])
def test_own_errors_are_those_of_nodes_cut_out_alone(tmp_path: Path, make: Any) -> None:
    with looking(make(tmp_path / "model.onnx"), fp16=True) as look:
        own = compare_own(look)
        assert (own.builds, own.refused) == (1, None)
        assert list(own.tensors) == [name for name in look.wanted if name not in own.unseen]
        assert own.unseen.keys() <= {"shape"}
        for name, comparison in own.tensors.items():
            (cut,) = alone(look, name).comparisons
            assert numbers(comparison) == numbers(cut), name


# Marks that break a build are found and left out; the search for them knows nothing of models.


NAMES = [f"t{place}" for place in range(24)]
some = st.frozensets(st.sampled_from(NAMES), max_size=5)


class Refusing:
    """Refuses a model that shows some tensors.

    Attributes:
        asked: The groups that it was given.
    """

    def __init__(self, breaking: frozenset[str]) -> None:
        self.asked: list[list[str]] = []
        self._breaking = breaking

    def __call__(self, names: Sequence[str]) -> Compared | Failed:
        self.asked.append(list(names))
        if not self._breaking.isdisjoint(names):
            return Failed("build", "no", "build: no")
        return Compared(tuple(TensorComparison(name, True, ComparisonKind.MATCH) for name in names))


def shown(found: Gathered) -> set[str]:
    return {comparison.name for seen in found.runs for comparison in seen.comparisons}


@given(some, some, st.integers(1, 40))
def test_every_tensor_is_seen_or_it_is_said_why_not(
    breaking: frozenset[str], fragile: frozenset[str], most: int
) -> None:
    target = Refusing(breaking)
    found = gather(NAMES, fragile, target, limit=most)
    assert found.builds == len(target.asked) <= most
    assert shown(found) | found.unseen.keys() == set(NAMES) or found.builds == 1
    assert shown(found).isdisjoint(breaking)
    assert shown(found).isdisjoint(found.unseen)
    assert all("no" in why for why in found.unseen.values())


@given(some)
def test_with_builds_enough_only_what_breaks_them_is_not_seen(breaking: frozenset[str]) -> None:
    found = gather(NAMES, (), Refusing(breaking), limit=1000)
    assert shown(found) == set(NAMES) - breaking
    assert found.unseen.keys() == breaking


@given(some.filter(bool), some)
def test_what_targets_like_least_is_left_out_first(
    fragile: frozenset[str], breaking: frozenset[str]
) -> None:
    target = Refusing(fragile)
    found = gather(NAMES, fragile | breaking, target)
    assert found.builds == 2
    assert shown(found) == set(NAMES) - fragile - breaking
