"""A model with a state, run step after step: which step is wrong, of which kind that is, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import save_text, text_model
from conftest import CommandLine
from resident import unsteady
from support import arrays, onnx_tool

import bisect_trt
from bisect_trt.cli.app import perform
from bisect_trt.cli.parser import parse
from bisect_trt.errors import BisectError, InputValuesError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.state import find_state, make_steps
from bisect_trt.options.shared import Data
from bisect_trt.report import console
from bisect_trt.report.summary import describe_steps
from bisect_trt.session.loop import judge
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.tensors.files import load_runs, save_samples
from bisect_trt.tensors.info import dtype_from_name

FP16 = ("--onnxrt", "--fp16")
ONE = "float[1, 4]"
SUMS = (
    f"({ONE} x, {ONE} h0) => ({ONE} y, {ONE} hn)",
    "s = Add(h0, x) big = Mul(s, ten_thousand) y = Mul(big, small) hn = Identity(s)",
    {"ten_thousand": 1e4, "small": 1e-4},
)
"""A sum that is past fp16 within ``big`` once it is past 6.5."""
MAP = (
    f"({ONE} x, {ONE} h0, {ONE} c0) => ({ONE} hn, {ONE} cn)",
    "k = Sub(one, h0) m = Mul(h0, k) g = Mul(m, rate) hn = Add(g, x) cn = Identity(c0)",
    {"one": 1.0, "rate": 3.99},
)
"""The logistic map, which doubles an error in each step."""


def ones(steps: int) -> None:
    np.savez("x.npz", x=np.ones((steps, 4), np.float32))


def test_an_overflow_is_found_at_its_step_and_node(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    ones(9)
    words = ("diagnose", "m.onnx", *FP16, "--steps", "9", "--load-inputs", "x.npz")
    ran = cli(*words, "--json", "r.json", "-o", "out", "--report", "r.html").ended(0)
    steps = ran.result["steps"]
    assert (steps["kind"], steps["step"], steps["failing"]) == ("step", 7, [[7, 9]])
    assert steps["taken"] == {"h0": "hn"}
    assert steps["own"]["first"] == steps["right"]["first"] == 7
    assert steps["tensors"] == ["y"]
    assert "Step 7 of 9 is the first that is wrong" in ran.out
    assert [node["outputs"] for node in ran.result["culprits"]] == [["big"]]
    assert arrays(steps["inputs"])["h0"].tolist() == [[6.0] * 4]
    (page,) = [file for name in ("ISSUE.md", "NOTES.md") if (file := Path("out", name)).exists()]
    assert "step 7 of 9, the state too" in page.read_text()
    assert "Error over steps" in Path("r.html").read_text()
    again = cli("diagnose", "m.onnx", *FP16, "--load-inputs", steps["inputs"], "--json", "s.json")
    assert again.ended(0).result["culprits"] == ran.result["culprits"]


def test_a_fix_of_one_step_holds_in_the_others(cli: CommandLine, here: Path) -> None:
    """Another node is past fp16 from step 9 on; step 7 is the first that is wrong."""
    ends, body, weights = SUMS
    ends = f"{ends[:-1]}, {ONE} z)"
    body = f"{body} late = Mul(s, many) z = Mul(late, small)"
    save_text(here / "m.onnx", ends, body, {**weights, "many": 7700.0})
    ones(12)
    words = (*FP16, "--steps", "12", "--load-inputs", "x.npz", "--json", "r.json")
    result = cli("diagnose", "m.onnx", *words, "-o", "out").ended(0).result
    assert result["steps"]["step"] == 7
    assert "late" in {name for node in result["keep_fp32"] for name in node["outputs"]}
    assert "; 5 other wrong steps" in result["validation"]["drawn"]
    session = onnxruntime.InferenceSession("out/mixed.onnx")
    state = np.zeros((1, 4), np.float32)
    for step in range(1, 13):
        y, state, z = session.run(None, {"x": np.ones((1, 4), np.float32), "h0": state})
        np.testing.assert_allclose([y, z], [np.full((1, 4), step), 0.77 * state], rtol=0.01)


def test_a_fix_of_one_step_holds_in_the_step_with_the_largest_values(
    cli: CommandLine, here: Path
) -> None:
    """Another node is past fp16 in step 33 alone."""
    ends, body, weights = SUMS
    ends = f"({ONE} u, {ends[1:-1]}, {ONE} z)"
    save_text(here / "m.onnx", ends, f"{body} square = Mul(u, u) z = Sqrt(square)", weights)
    rows = np.ones((40, 4), np.float32)
    rows[32] = 300
    np.savez("x.npz", x=np.ones((40, 4), np.float32), u=rows)
    words = (*FP16, "--steps", "40", "--load-inputs", "x.npz", "--json", "r.json")
    result = cli("diagnose", "m.onnx", *words, "-o", "out").ended(0).result
    assert result["steps"]["step"] == 7
    assert "square" in {name for node in result["keep_fp32"] for name in node["outputs"]}


def test_a_fix_of_which_the_own_state_is_wrong_is_none(cli: CommandLine, here: Path) -> None:
    """A count in fp16 stays at 2048: each step is right with the state of the reference."""
    body = """hn = Add(h0, u) angle = Mul(hn, slow) wave = Sin(angle)
    big = Mul(x, many) back = Mul(big, few) y = Add(back, wave)"""
    ends = f"({ONE} u, {ONE} x, {ONE} h0) => ({ONE} y, {ONE} hn)"
    save_text(here / "m.onnx", ends, body, {"slow": 0.003, "many": 7e4, "few": 1 / 7e4})
    rows = np.ones((40, 4), np.float32)
    rows[0] = 2040
    np.savez("x.npz", x=np.ones((40, 4), np.float32), u=rows)
    words = (*FP16, "--steps", "40", "--load-inputs", "x.npz", "--json", "r.json")
    ran = cli("precision", "m.onnx", *words, "-o", "mixed.onnx").ended(3)
    assert {name for node in ran.result["keep_fp32"] for name in node["outputs"]} == {"big", "back"}
    assert ran.result["why"].startswith("With its own state the loop is off from step ")
    assert [use["passed"] for use in ran.result["uses"]] == [False]
    assert "Fix " not in ran.out
    rows[0] = 0
    np.savez("x.npz", x=np.ones((40, 4), np.float32), u=rows)
    ran = cli("precision", "m.onnx", *words, "-o", "mixed.onnx", "--overwrite").ended(0)
    assert ran.result["rounding"] == "With its own state the loop passes in each step."


@pytest.mark.slow
def test_progress_names_the_step_that_is_searched(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.02)
    save_text(here / "m.onnx", *SUMS)
    ones(9)
    words = ("diagnose", "m.onnx", *FP16, "--steps", "9", "--load-inputs", "x.npz")
    with pytest.raises(SystemExit):
        perform(*parse(words), words)
    lines = capfd.readouterr().err
    assert "steps 1 to 9 of 9 on the target" in lines
    assert "Write a reproducer to m-reproducer, and run it (step 7 of 9)" in lines
    assert re.search(r" \(step 7 of 9\): up to Mul 'big'$", lines, re.MULTILINE)


def test_feedback_that_magnifies_rounding_is_drift(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *MAP)
    np.savez("x.npz", x=np.zeros((40, 4), np.float32), h0=np.full((1, 4), 0.3, np.float32))
    words = (
        "diagnose",
        "m.onnx",
        *FP16,
        "--load-inputs",
        "x.npz",
        "--atol",
        "0.01",
        "--json",
        "r.json",
    )
    ran = cli(*words, "--steps", "40").ended(1)
    steps = ran.result["steps"]
    assert (steps["kind"], steps["step"], steps["right"]["first"]) == ("drift", None, None)
    assert steps["own"]["first"] > 3
    assert steps["carriers"] == ["h0"]
    assert "Drift: no step of 40 is wrong with the state of the reference" in ran.out
    assert cli(*words, "--steps", "3").ended(1).result["steps"]["kind"] == "none"


TABLE = (
    f"(int64[1] ids, {ONE} h0) => ({ONE} hn)",
    "e = Gather(table, ids) hn = Add(h0, e)",
    {"table": np.ones((5, 4), np.float32)},
)
SHORTER = """
for tensor in model.graph.initializer:
    if tensor.name == "table":
        tensor.dims[0] = 4
        tensor.raw_data = tensor.raw_data[:64]
"""


def test_a_step_that_the_target_does_not_run(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *TABLE)
    np.savez("x.npz", ids=np.array([0, 1, 3, 2, 4, 1, 0]))
    words = ("diagnose", "m.onnx", "--through", onnx_tool(SHORTER), "--load-inputs", "x.npz")
    ran = cli(*words, "--steps", "7", "--max-probes", "1", "--json", "r.json").ended(3)
    steps = ran.result["steps"]
    assert (steps["kind"], steps["step"], len(steps["own"]["errors"])) == ("step", 5, 5)
    assert "Step 5 of 7 is the first" in ran.out
    assert "indices element out of data bounds" in steps["right"]["errors"][4]["reason"]


def test_a_step_that_the_reference_does_not_run(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *TABLE)
    np.savez("x.npz", ids=np.array([0, 1, 9]))
    ran = cli("diagnose", "m.onnx", *FP16, "--steps", "3", "--load-inputs", "x.npz").ended(4)
    assert "error[BT2004]: the reference cannot run step 3: " in ran.err


def test_a_score_next_to_zero_in_one_step_is_not_wrong(cli: CommandLine, here: Path) -> None:
    body = "hn = Add(h0, x) y = Sub(hn, near)"
    save_text(here / "m.onnx", SUMS[0], body, {"near": 1.0003})
    np.savez("x.npz", x=np.full((12, 4), 0.1, np.float32))
    words = ("diagnose", "m.onnx", *FP16, "--steps", "12", "--load-inputs", "x.npz")
    steps = cli(*words, "--json", "r.json").ended(1).result["steps"]
    assert (steps["kind"], steps["own"]["first"]) == ("none", None)


def test_a_state_that_is_wrong_from_the_beginning(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    np.savez("x.npz", x=np.full((3, 4), 9, np.float32))
    words = (
        "diagnose",
        "m.onnx",
        *FP16,
        "--steps",
        "3",
        "--load-inputs",
        "x.npz",
        "--max-probes",
        "1",
    )
    steps = cli(*words, "--json", "r.json").ended(3).result["steps"]
    assert (steps["kind"], steps["step"], steps["failing"]) == ("start", 1, [[1, 3]])


@pytest.mark.slow
def test_other_commands_take_the_step_too(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    for step in range(8):
        np.savez(f"x-{step + 1}.npz", x=np.ones((1, 4), np.float32))
    ran = cli(
        "reduce",
        "m.onnx",
        *FP16,
        "--steps",
        "8",
        "--load-inputs",
        "x.npz",
        "-o",
        "s.onnx",
        "--json",
        "r.json",
    )
    assert ran.ended(0).result["steps"]["step"] == 7
    assert [node["outputs"] for node in ran.result["culprits"]] == [["big"]]


def test_a_cache_that_grows_is_run_at_once_too(here: Path) -> None:
    ends = (
        "(int64[1, s] input_ids, float[1, p, 2] past) => (float[1, s, 2] y, float[1, t, 2] present)"
    )
    body = (
        "k = Gather(table, input_ids) present = Concat<axis = 1>(past, k) "
        "big = Mul(k, ten_thousand) y = Mul(big, small)"
    )
    weights = {"table": [[1.0, 1], [2, 2], [9, 9]], "ten_thousand": 1e4, "small": 1e-4}
    model = text_model(ends, body, weights, opset=17)
    ids = {"input_ids": np.array([[0, 1, 0, 1, 2, 0]])}
    answer = bisect_trt.diagnose(
        model, ids, target="onnxrt", fp16=True, steps=6, max_probes=1, output=here / "out"
    )
    assert answer.steps is not None
    assert answer.steps.whole is not None
    assert (answer.steps.step, answer.steps.failing, answer.steps.whole.first) == (5, ((5, 5),), 5)
    step = arrays(str(answer.steps.inputs))
    assert (step["past"].shape, step["input_ids"].tolist()) == ((1, 4, 2), [[2]])


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_greedy_decoding_feeds_the_token_back(here: Path, kind: str) -> None:
    ends = f"({kind}[1, 1] ids, float[1, 1, 3] h0) => (float[1, 1, 3] logits, float[1, 1, 3] hn)"
    body = "e = Gather(table, ids) hn = Add(h0, e) big = Mul(hn, ten_thousand) logits = Mul(big, small)"
    table = [[0.0, 2, 1], [1, 0, 3], [3, 1, 0]]
    weights = {"table": table, "ten_thousand": 1e4, "small": 1e-4}
    model = text_model(ends, body, weights, opset=17)
    state = ["ids=argmax(logits)", "h0=hn"]
    answer = bisect_trt.diagnose(
        model, target="onnxrt", fp16=True, steps=8, state=state, max_probes=1, output=here / "out"
    )
    assert answer.steps is not None
    assert dict(answer.steps.taken) == {"ids": "argmax(logits)", "h0": "hn"}
    folder = Path(str(answer.steps.inputs)).parent
    fed = [arrays(folder / f"golden-{step}.npz") for step in (1, 2)]
    token = fed[0]["logits"].argmax()
    assert (fed[1]["hn"] - fed[0]["hn"]).tolist() == [[table[token]]]


def test_a_prompt_is_the_first_step_of_greedy_decoding(here: Path) -> None:
    """It is one sample; what an encoder made is fed in each step, and masks follow from the step."""
    ends = (
        "(int64[1, s] input_ids, int64[1, t] attention_mask, float[1, 2] encoder_states, float[1, p, 2] past) "
        "=> (float[1, s, 2] y, float[1, q, 2] present)"
    )
    body = "y = Gather(table, input_ids) present = Concat<axis = 1>(past, y)"
    network = Network(text_model(ends, body, {"table": np.ones((5, 2))}))
    given = {"input_ids": np.array([[1, 2, 3]]), "attention_mask": np.ones((1, 3), np.int64)}
    np.savez(here / "x.npz", **given, encoder_states=np.ones((1, 2), np.float32))  # type: ignore[arg-type]
    state = find_state(network, ["input_ids=argmax(y)", "past=present"])
    first, *later = make_steps(network, state, Data(load_inputs=(here / "x.npz",)), 4)
    assert first["input_ids"].tolist() == [[1, 2, 3]]
    assert [step["attention_mask"].shape for step in (first, *later)] == [
        (1, 3),
        (1, 4),
        (1, 5),
        (1, 6),
    ]
    assert all("encoder_states" in step and "input_ids" not in step for step in later)


@pytest.mark.parametrize(
    "pairs",
    [
        ["past_key_values.0.key present.0.key"],
        ["past_key_self_0 present_key_self_0", "past_value_cross_3 present_value_cross_3"],
        ["state stateN"],
        ["h0 hn", "c0 cn"],
        ["h hn", "c cn"],
        ["input_states_1 output_states_1"],
        ["cached_key_0 new_cached_key_0", "embed_states new_embed_states"],
        ["cache_last_channel cache_last_channel_next", "cache_len cache_next_len"],
        ["conv_cache conv_cache_out", "r1i r1o"],
        ["past_conv.0 present_conv.0"],
        ["att_cache r_att_cache", "cnn_cache r_cnn_cache"],
        ["state_in.0 state_out.0", "k_cache.1 k_cache_out.1", "instate0 outstate0"],
    ],
)
def test_pairs_are_found_by_the_names_of_exporters(pairs: list[str]) -> None:
    names = [pair.split() for pair in pairs]
    network = Network(stateful(names))
    assert dict(find_state(network, []).taken) == dict(names)


def stateful(names: list[list[str]]) -> Any:
    """A model in which each of some inputs is returned under another name."""
    from onnx import TensorProto, helper

    fed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name, _ in names]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for _, name in names]
    nodes = [helper.make_node("Neg", [name], [output]) for name, output in names]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])
    nodes.append(helper.make_node("Abs", ["x"], ["y"]))
    graph = helper.make_graph(nodes, "g", [x, *fed], [y, *made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_what_is_given_in_each_step_beside_the_state_is_no_state(here: Path) -> None:
    """Else the values of all steps but the first would be dropped."""
    pairs = [["audio_in", "audio_out"], ["h_in", "h_out"]]
    network = Network(stateful([["cross.encoder", "cross_out.encoder"], *pairs]))
    row = np.ones((1, 2), np.float32)
    for step in (1, 2):
        np.savez(here / f"x-{step}.npz", x=row, audio_in=row * step)
    data = Data(load_inputs=(here / "x.npz",))
    with pytest.raises(InputValuesError, match="hold 'audio_in', which would take an output"):
        make_steps(network, find_state(network, []), data, 2)
    (_, second) = make_steps(
        network, find_state(network, ["h_in=h_out", "cross*=cross_out*"]), data, 2
    )
    assert second["audio_in"].tolist() == [[2, 2]]


def test_a_glob_stands_for_the_same_text_on_both_sides() -> None:
    network = Network(stateful([["a.0.k", "z.0.k"], ["a.1.k", "z.1.k"]]))
    assert dict(find_state(network, ["a.*=z.*"]).taken) == {"a.0.k": "z.0.k", "a.1.k": "z.1.k"}


SHORT = "(int64[1, 1] ids, int64[1, 4] attention_mask, float[1, 2] h0) => (float[1, 2] hn)"
MASKED = (
    "e = Gather(table, ids) r = Squeeze(e, axis) m = Cast<to = 1>(attention_mask) "
    "z = ReduceSum(m) q = Mul(r, z) hn = Add(h0, q)"
)
OTHER = f"({ONE} x, {ONE} h0) => (float[4, 1] hn)"
LISTED = f"({ONE} x, {ONE} h0) => (seq({ONE}) hn)"
TYPES = f"({ONE} x, float[1] h0) => (int64[1] hn)"


@pytest.mark.parametrize(
    ("ends", "body", "words", "code", "said"),
    [
        (f"({ONE} x) => ({ONE} y)", "y = Neg(x)", [], "BT1004", "no input takes an output"),
        (OTHER, "s = Add(x, h0) hn = Transpose(s)", [], "BT1009", "'h0' is float32[1, 4], and 'hn'"),
        (TYPES, "hn = Shape(x)", [], "BT1009", "'h0' is float32[1], and 'hn'"),
        (LISTED, "s = Add(x, h0) hn = SequenceConstruct(s)", [], "BT1007", "does not return 'hn'"),
        (SUMS[0], SUMS[1], ["--load-inputs", "h.npz"], "BT1007", "'h0' has shape [2, 4]"),
        (SUMS[0], SUMS[1], ["--state", "h=hn"], "BT1005", "there is no input 'h'"),
        (SUMS[0], SUMS[1], ["--state", "h0=z"], "BT1005", "there is no output 'z'"),
        (SUMS[0], SUMS[1], ["--load-inputs", "x.npz"], "BT1007", "the inputs hold 2 steps"),
        (SUMS[0], SUMS[1], ["--load-inputs", "z.npz"], "BT1007", "'x' missing; 'z' unknown"),
        (SUMS[0], SUMS[1], ["--state", "*0=hn"], "BT1002", "each needs as many"),
        (SHORT, MASKED, [], "BT1002", "holds 4 tokens, and a step needs 5"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_sentence(
    cli: CommandLine, here: Path, ends: str, body: str, words: list[str], code: str, said: str
) -> None:
    weights = {**SUMS[2], "table": [[1, 1], [2, 2]], "axis": np.array([1])}
    save_text(here / "m.onnx", ends, body, weights, opset=17)
    ones(2)
    np.savez("z.npz", z=np.ones((8, 4), np.float32))
    np.savez("h.npz", x=np.ones((8, 4), np.float32), h0=np.ones((2, 4), np.float32))
    ran = cli("diagnose", "m.onnx", *FP16, "--steps", "8", *words).ended(2)
    assert f"error[{code}]" in ran.err
    assert said in ran.err


def test_a_state_without_steps_is_refused(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    ran = cli("diagnose", "m.onnx", *FP16, "--state", "h0=hn")
    ran.refused("BT1003", "--state has no effect without --steps")


def test_a_mask_of_the_past_is_cut_into_the_steps_after_it(cli: CommandLine, here: Path) -> None:
    ends = "(float[1, n] x, int64[1, t] attention_mask, float[1, p] past) => (float[1, q] present)"
    body = "m = Cast<to = 1>(attention_mask) s = Concat<axis = 1>(past, x) present = Mul(s, m)"
    save_text(here / "m.onnx", ends, body)
    past = np.ones((1, 6), np.float32)
    words = ("diagnose", "m.onnx", "--onnxrt", "--load-inputs", "x.npz", "--steps", "3")
    for held in (3, 1):
        mask = np.ones((1, 6 + held), np.int64)
        np.savez("x.npz", x=past[:, :held], attention_mask=mask, past=past)
        ran = cli(*words)
        assert ("No step of 3 is wrong" in " ".join(ran.out.split())) is (held == 3)
    ran.refused("BT1007", "the inputs hold 1 step;")


def test_a_loop_needs_a_target(here: Path) -> None:
    model = text_model(*SUMS)
    with pytest.raises(BisectError, match="--steps compares a target that runs"):
        bisect_trt.reduce(model, check=bool, steps=2, output=here / "s.onnx")


def test_steps_that_were_run_stay(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    ones(9)
    words = ("diagnose", "m.onnx", *FP16, "--steps", "9", "--load-inputs", "x.npz")
    cli(*words, "--max-probes", "1").ended(3)
    (folder,) = Path(".bisect-trt").iterdir()
    kept = [folder / "steps" / name for name in ("golden-8.npz", "own-errors-1.msgpack")]
    before = [file.stat().st_mtime_ns for file in kept]
    (folder / "steps/golden-9.npz").unlink()
    cli("resume", folder).ended(3)
    assert [file.stat().st_mtime_ns for file in kept] == before
    assert (folder / "steps/golden-9.npz").exists()


def test_dumps_of_a_step_each_are_compared(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", f"({ONE} x) => ({ONE} y)", "y = Neg(x)")
    save_samples(
        Path("x.safetensors"), [{"x": np.full((1, 4), step, np.float32)} for step in range(11)]
    )
    Path("dumps").mkdir()
    words = ("run", "m.onnx", "--onnxrt", "--load-inputs", "x.safetensors")
    cli(*words, "--save-outputs", "dumps/step.safetensors").ended(0)
    assert len(list(Path("dumps").iterdir())) == 11
    cli(*words, "--load-outputs", "dumps").ended(0)


@pytest.mark.parametrize("name", ["round_{}.", "step{}/"])
def test_a_dump_of_all_steps_is_a_sample_a_step(cli: CommandLine, here: Path, name: str) -> None:
    save_text(here / "m.onnx", f"({ONE} x) => ({ONE} y)", "y = Neg(x)")
    values = np.arange(44, dtype=np.float32).reshape(11, 1, 4)
    np.savez("x.npz", **{f"{name.format(step)}x": values[step] for step in range(11)})
    words = ("--load-inputs", "x.npz", "--load-outputs")
    for dump, wrong in (("right", -1), ("wrong", 9)):
        steps = {name.format(step): -values[step] - (step == wrong) for step in range(11)}
        steps |= {f"{key}layer_0.kv": value for key, value in steps.items()}
        tensors = {key if "layer" in key else f"{key}y": value for key, value in steps.items()}
        save_samples(Path(f"{dump}.safetensors"), [tensors])
    ran = cli("run", "m.onnx", "--onnxrt", *words, "right.safetensors").ended(0)
    ran = cli("run", "--load-outputs", "wrong.safetensors", "right.safetensors").ended(1)
    assert "sample 10: 'layer_0.kv'" in ran.out
    assert "Match    20 of 22 outputs" in ran.out
    ran = cli("run", "m.onnx", "--onnxrt", *words, "wrong.safetensors").ended(1)
    assert "sample 10: 'y'" in ran.out


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.usefixtures("here")
def test_safetensors_keep_types_and_shapes(dtype: str) -> None:
    kind = dtype_from_name(dtype)
    samples = [{"a": np.arange(6).reshape(2, 3).astype(kind), "b": np.ones((), kind)}]
    save_samples(Path("x.safetensors"), samples)
    (run,) = load_runs(Path("x.safetensors"))
    for name, value in samples[0].items():
        assert run.samples[0][name].dtype == kind
        assert np.array_equal(run.samples[0][name], value)
    module = pytest.importorskip("safetensors.numpy")
    if dtype != "bfloat16":  # which it does not read
        assert module.load_file("x.safetensors")["a"].tolist() == samples[0]["a"].tolist()


def test_a_damaged_or_unsuitable_safetensors_is_refused(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", f"({ONE} x) => ({ONE} y)", "y = Neg(x)")
    Path("x.safetensors").write_bytes(b"12345678{")
    ran = cli("run", "m.onnx", "--onnxrt", "--load-inputs", "x.safetensors").ended(2)
    assert "error[BT1007]: Cannot read x.safetensors" in ran.err
    with pytest.raises(BisectError, match=r"write an \.npz file"):
        save_samples(Path("y.safetensors"), [{"x": np.array(["text"])}])


TEXT = np.array([[0, 1, 2, 1]])
SCORES = np.array([[1.0, 3, 2], [2, 1, 3], [3, 2, 1]], np.float32)
TOKENS = (
    f"(int64[1, 1] ids, {ONE} h0) => ({ONE} hn, float[1, 1, 3] logits)",
    "hn = Add(h0, one) logits = Gather(table, ids)",
    {"one": 1.0, "table": SCORES},
)
TWICE = """
from onnx import numpy_helper
for tensor in model.graph.initializer:
    if tensor.name == "table":
        tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), "table"))
"""


def surprises(scores: Any) -> Any:
    """The negative logarithms of the softmax of each row."""
    return np.log(np.exp(scores).sum(-1, keepdims=True)) - scores


def test_metrics_are_measured_over_steps(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *TOKENS, opset=17)
    np.savez("x.npz", ids=TEXT)
    rows = SCORES[TEXT[0]].astype(np.float64)
    right, ours = surprises(rows), surprises(2 * rows)
    wanted = {
        "top-1": 1.0,
        "common-prefix": 4.0,
        "kl": (np.exp(-right) * (ours - right)).sum(-1).mean(),
        "perplexity": np.exp(ours[range(3), TEXT[0, 1:]].mean()),
        "cosine": 1.0,
        "scale": 0.5,
    }
    words = ("run", "m.onnx", "--through", onnx_tool(TWICE), "--load-inputs", "x.npz")
    for name, value in wanted.items():
        ran = cli(*words, "--steps", "4", "--metric", name, "--json", "r.json").ended(0)
        assert ran.result["metric"]["candidate"] == pytest.approx(value, abs=1e-6)


def test_a_search_by_a_metric_feeds_each_candidate_its_own_state(
    cli: CommandLine, here: Path
) -> None:
    save_text(here / "m.onnx", *SUMS)
    ones(9)
    words = ["reduce", "m.onnx", *FP16, "--load-inputs", "x.npz", "-o", "s.onnx", "--overwrite"]
    words += ["--max-drop", "0.1", "--json", "r.json"]
    ran = cli(*words, "--metric", "cosine", "--steps", "9")
    assert [node["outputs"] for node in ran.ended(0).result["culprits"]] == [["big"]]
    cli(*words, "--metric", "scale", "--steps", "6").ended(1)


def test_a_perplexity_needs_tokens(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    words = ("run", "m.onnx", *FP16, "--steps", "4", "--metric", "perplexity")
    assert "error[BT1007]: --metric perplexity needs the right token" in cli(*words).ended(2).err
    ran = cli("run", "m.onnx", *FP16, "--steps", "4").ended(2)
    assert "error[BT1004]: run --steps scores all steps; add a --metric" in ran.err


def test_two_exports_that_part_in_a_step(cli: CommandLine, here: Path) -> None:
    wrong = TABLE[2]["table"].copy()
    wrong[3] = 2
    save_text(here / "old.onnx", *TABLE)
    save_text(here / "new.onnx", TABLE[0], TABLE[1], {"table": wrong})
    np.savez("x.npz", ids=np.array([0, 1, 3, 2, 4, 3]))
    words = ("diagnose", "new.onnx", "--onnxrt", "--steps", "6", "--load-inputs", "x.npz")
    ran = cli(*words, "--reference", "old.onnx", "--json", "r.json").ended(0)
    steps = ran.result["steps"]
    assert (steps["step"], steps["failing"], steps["own"]["first"]) == (3, [[3, 3], [6, 6]], 3)
    assert ran.result["fault"]["whose"] == "export"
    assert [node["outputs"] for node in ran.result["culprits"]] == [["e"]]
    assert "First node of old.onnx with values that it lacks: " in ran.out
    save_text(here / "other.onnx", *SUMS)
    ran = cli(*words, "--reference", "other.onnx").ended(2)
    assert "error[BT1009]: --reference: other.onnx takes 'x' beside the inputs" in ran.err
    save_text(
        here / "stateless.onnx",
        f"(int64[1] ids) => ({ONE} hn)",
        "hn = Gather(table, ids)",
        TABLE[2],
    )
    cli(*words, "--reference", "stateless.onnx").refused(
        "BT1009", "lacks 'h0' of its outputs and its state"
    )


@pytest.mark.parametrize("command", ["diagnose", "run"])
def test_a_metric_is_not_of_another_export(cli: CommandLine, here: Path, command: str) -> None:
    save_text(here / "m.onnx", *SUMS)
    words = (command, "m.onnx", "--onnxrt", "--reference", "m.onnx", "--steps", "4")
    ran = cli(*words, "--metric", "cosine", "--min", "0.9")
    ran.refused("BT1003", "--metric and --reference each decide whether a candidate fails")


def test_two_exports_part_in_one_run_too(cli: CommandLine, here: Path) -> None:
    ends = (
        "(int64[1, s] input_ids, float[1, p, 2] past) => (float[1, s, 2] y, float[1, t, 2] present)"
    )
    body = "y = Gather(table, input_ids) present = Concat<axis = 1>(past, y)"
    table = np.ones((5, 2), np.float32)
    for name in ("old", "new"):
        save_text(here / f"{name}.onnx", ends, body, {"table": table}, opset=17)
        table[3] = 2
    np.savez("x.npz", input_ids=np.array([[0, 1, 4, 3, 2]]))
    words = ("diagnose", "new.onnx", "--onnxrt", "--load-inputs", "x.npz", "--json", "r.json")
    steps = cli(*words, "--steps", "5", "--reference", "old.onnx").ended(0).result["steps"]
    assert (steps["step"], steps["whole"]["first"]) == (4, 4)


HALF = "float16[1, 4]"
CASTS = SUMS[1].replace("h0", "w").replace("Identity(s)", "Cast<to = {kind}>(s)")


@pytest.mark.parametrize(
    ("before", "after", "cast"),
    [(HALF, ONE, "float32 to float16"), (ONE, HALF, "float16 to float32"), (HALF, HALF, "")],
)
def test_a_state_of_other_floats_is_cast_between_steps(
    cli: CommandLine, here: Path, before: str, after: str, cast: str
) -> None:
    """One end of a state in 16 bits, or both: the step is the same, and its inputs are the model's."""
    body = f"w = Cast<to = 1>(h0) {CASTS.format(kind=10 if after == HALF else 1)}"
    save_text(here / "m.onnx", f"({ONE} x, {before} h0) => ({ONE} y, {after} hn)", body, SUMS[2])
    ones(9)
    words = ("diagnose", "m.onnx", *FP16, "--steps", "9", "--load-inputs", "x.npz")
    ran = cli(*words, "--max-probes", "1", "--json", "r.json").ended(3)
    assert ran.result["steps"]["step"] == 7
    assert (f"the state is cast between steps: 'h0' from {cast}" in ran.err) is bool(cast)
    cli("run", "m.onnx", "--onnxrt", "--load-inputs", ran.result["steps"]["inputs"]).ended(0)


def test_an_export_in_sixteen_bits_parts_from_one_in_floats(cli: CommandLine, here: Path) -> None:
    """Its weights and its state are rounded, which is no fault; a row of its table is one."""
    table = np.linspace(1, 20, 20, dtype=np.float32).reshape(5, 4) / 7
    body = f"{TABLE[1]} y = Relu(hn)"
    ends = f"{TABLE[0].rstrip(')')}, {ONE} y)"
    save_text(here / "old.onnx", ends, body, {"table": table})
    half = table.astype(np.float16)
    half[3] += 1
    save_text(here / "new.onnx", ends.replace("float", "float16"), body, {"table": half})
    np.savez("x.npz", ids=np.array([0, 1, 2, 4, 3, 1]))
    words = ("diagnose", "new.onnx", "--onnxrt", "--reference", "old.onnx", "--load-inputs")
    for steps, status in ((4, 1), (6, 0)):
        ran = cli(*words, "x.npz", "--steps", steps, "--json", "r.json").ended(status)
        assert ran.result["steps"]["step"] == (5 if steps == 6 else None)
        assert "the state is cast between steps: 'h0' from float32 to float16" in ran.err
    assert [node["outputs"] for node in ran.result["culprits"]] == [["e"]]


def test_a_failure_that_lasts_is_found_by_halving(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    np.savez("x.npz", x=np.full((200, 4), 0.0625, np.float32))
    words = ("diagnose", "m.onnx", *FP16, "--steps", "200", "--load-inputs", "x.npz")
    ran = cli(*words, "--max-probes", "1", "--json", "r.json").ended(3)
    steps = ran.result["steps"]
    assert (steps["step"], steps["failing"]) == (105, [[105, 200]])
    assert len(steps["own"]["errors"]) == 200
    assert len(steps["right"]["errors"]) <= 12
    assert f"Wrong steps: 105 to 200 ({len(steps['right']['errors'])} of 200 were run)" in ran.out


CACHE = "float[1, 8, 2]"
WRITES = (
    f"(float[1, 8, 1] place, float[1, 1, 2] x, float[1] gain, {CACHE} cache) => (float[1] y, {CACHE} cache_out)",
    (
        "m = Mul(place, x) s = Mul(place, slip) cache_out = Sum(cache, m, s) "
        "flat = Reshape(cache_out, all) r = ReduceSum(flat) y = Mul(r, gain)"
    ),
    {"slip": np.zeros((1, 8, 1)), "all": np.array([-1])},
)
SLIPS = """
import numpy
for tensor in model.graph.initializer:
    if tensor.name == "slip":
        values = numpy.zeros((1, 8, 1), numpy.float32)
        values[0, 3] = 0.005
        tensor.raw_data = values.tobytes()
"""


def test_the_position_of_a_cache_that_is_to_blame(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *WRITES, opset=17)
    for step in range(8):
        place = np.eye(8, dtype=np.float32)[step].reshape(1, 8, 1)
        values = {"x": np.ones((1, 1, 2), np.float32), "gain": np.full(1, 100 * (step == 7))}
        np.savez(f"x-{step + 1}.npz", place=place, x=values["x"], gain=np.float32(values["gain"]))
    words = ("diagnose", "m.onnx", "--through", onnx_tool(SLIPS), "--load-inputs", "x.npz")
    ran = cli(*words, "--steps", "8", "--atol", "0.01", "--json", "r.json").ended(1)
    steps = ran.result["steps"]
    assert (steps["kind"], steps["own"]["first"]) == ("drift", 8)
    assert steps["positions"] == {"cache": [3]}
    assert "Feedback of 'cache' at 3 magnifies" in " ".join(ran.out.split())


def test_precision_holds_over_other_random_steps(cli: CommandLine, here: Path) -> None:
    save_text(here / "m.onnx", *SUMS)
    words = ["precision", "m.onnx", *FP16, "--steps", "24", "--metric", "scale", "-o", "s.onnx"]
    ran = cli(*words, "--max-drop", "0.01", "--json", "r.json").ended(0)
    assert "big" in [name for node in ran.result["minimal"] for name in node["outputs"]]
    streams = ran.result["metric"]["streams"]
    assert len(streams) == 4
    assert not {probe["candidate"] for probe in ran.result["metric"]["probes"]} & {*streams}
    assert min(streams) >= 0.99
    assert "On other random steps: " in ran.out
    assert ran.err.count("warning: 24 samples are few for a metric; give more (--steps)") == 1
    assert "Not run on fresh samples" not in ran.out


def test_a_cache_in_integers_is_a_group(cli: CommandLine, here: Path) -> None:
    """Of two, one has a scale that is too coarse; one is joined, the other is written in place."""
    ends = (
        "(float[1, 1, 4] x, int64[1, 1, 4] at, int8[1, p, 4] past_a, uint8[1, 8, 4] past_b) => "
        "(float[1, 4] y, int8[1, q, 4] present_a, uint8[1, 8, 4] present_b)"
    )
    body = (
        "u = Relu(x) a = QuantizeLinear(u, fine, zero) present_a = Concat<axis = 1>(past_a, a) "
        "b = QuantizeLinear(u, coarse, middle) "
        "present_b = ScatterElements<axis = 1>(past_b, at, b) "
        "da = DequantizeLinear(present_a, fine, zero) "
        "db = DequantizeLinear(present_b, coarse, middle) "
        "ma = ReduceMax<axes = [1], keepdims = 0>(da) mb = ReduceMax<axes = [1], keepdims = 0>(db) "
        "y = Add(ma, mb)"
    )
    weights = {
        "fine": 0.01,
        "coarse": 3.0,
        "zero": np.array(0, np.int8),
        "middle": np.array(128, np.uint8),
    }
    save_text(here / "m.onnx", ends, body, weights, opset=17)
    words = ["precision", "m.onnx", "--onnxrt", "--int8", "--steps", "3", "-o", "s.onnx"]
    assert "BT1004" in cli(*words).ended(2).err
    words += ["--metric", "scale", "--max-drop", "0.2", "--val-range", "x:[0,1]"]
    words += ["--val-range", "at:[5,5]", "--no-sensitivity", "--json", "r.json"]
    ran = cli(*words).ended(0)
    assert [group["scales"] for group in ran.result["minimal"]] == [["coarse"]]
    assert ran.result["minimal"][0]["tensors"] == ["u"]
    kinds = {value.type.tensor_type.elem_type for value in onnx.load("s.onnx").graph.output}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_a_state_in_fp8_is_run_and_is_a_group(cli: CommandLine, here: Path) -> None:
    """ONNX Runtime joins no fp8 on the CPU, so a state of a fixed size is taken."""
    fp8 = "float8e4m3fn[1, 4]"
    body = (
        "fa = DequantizeLinear(a0, fine, zero) sa = Add(fa, x) an = QuantizeLinear(sa, fine, zero) "
        "fb = DequantizeLinear(b0, coarse, zero) sb = Add(fb, x) "
        "bn = QuantizeLinear(sb, coarse, zero) da = DequantizeLinear(an, fine, zero) "
        "db = DequantizeLinear(bn, coarse, zero) y = Relu(da) z = Relu(db)"
    )
    zero = np.zeros((), dtype_from_name("float8_e4m3fn"))
    ends = f"({ONE} x, {fp8} a0, {fp8} b0) => ({ONE} y, {ONE} z, {fp8} an, {fp8} bn)"
    save_text(here / "m.onnx", ends, body, {"fine": 0.1, "coarse": 3e3, "zero": zero}, opset=19)
    words = ("m.onnx", "--onnxrt", "--steps", "6", "--json", "r.json")
    assert cli("diagnose", *words).ended(1).result["steps"]["kind"] == "none"
    low = ("--fp8", "--metric", "scale", "--max-drop", "0.2", "--no-sensitivity", "-o", "s.onnx")
    ran = cli("precision", *words, *low).ended(0)
    scales = [scale for group in ran.result["minimal"] for scale in group["scales"]]
    assert {*scales} == {"coarse"}
    kinds = {value.type.tensor_type.elem_type for value in onnx.load("s.onnx").graph.output}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_values_that_are_the_same_by_chance_are_not_taken_for_right(
    cli: CommandLine, here: Path
) -> None:
    """Without its state the sum is the other term, and the state is the other zeros."""
    body = "z = Mul(x, zero) r = Mul(h0, alive) m = Add(x, z) s = Add(r, m) hn = Identity(s)"
    for name, alive in (("old", 1.0), ("new", 0.0)):
        save_text(
            here / f"{name}.onnx",
            f"({ONE} x, {ONE} h0) => ({ONE} hn)",
            body,
            {"zero": 0.0, "alive": alive},
        )
    ones(4)
    words = ("diagnose", "new.onnx", "--onnxrt", "--steps", "4", "--load-inputs", "x.npz")
    ran = cli(*words, "--reference", "old.onnx", "--json", "r.json").ended(0)
    assert ran.result["steps"]["step"] == 2, ran.out + ran.err
    assert [node["outputs"] for node in ran.result["culprits"]] == [["r"]]


def test_errors_that_add_up_in_many_positions_are_not_searched_for_long(
    cli: CommandLine, here: Path
) -> None:
    cache = "float[1, 256, 1]"
    ends = f"({cache} place, float[1] gain, {cache} cache) => (float[1] y, {cache} cache_out)"
    body = WRITES[1].replace("Mul(place, x)", "Identity(place)")
    save_text(here / "m.onnx", ends, body, {**WRITES[2], "slip": np.zeros((1, 1, 1))}, opset=17)
    for step in range(2):
        place = np.full((1, 256, 1), 1 - step, np.float32)
        np.savez(f"x-{step + 1}.npz", place=place, gain=np.full(1, step, np.float32))
    tool = SLIPS.replace("(1, 8, 1)", "(1, 1, 1)").replace("values[0, 3]", "values[0, 0]")
    words = ("diagnose", "m.onnx", "--through", onnx_tool(tool), "--load-inputs", "x.npz")
    ran = cli(*words, "--steps", "2", "--atol", "1", "--json", "r.json").ended(1)
    steps = ran.result["steps"]
    assert (steps["kind"], steps["carriers"], steps["positions"]) == (
        "drift",
        ["cache"],
        {"cache": []},
    )
    assert "Feedback of 'cache' magnifies" in " ".join(ran.out.split())


def of_ratios(*ratios: float) -> dict[int, list[TensorComparison]]:
    """Steps that are off by so many tolerances."""
    kinds = (ComparisonKind.MISMATCH, ComparisonKind.MATCH)
    return {
        step: [
            TensorComparison(
                "y",
                passed=ratio <= 1,
                kind=kinds[ratio <= 1],
                atol=1.0,
                max_abs=ratio,
                of_tolerance=ratio,
            )
        ]
        for step, ratio in enumerate(ratios, 1)
    }


@pytest.mark.parametrize(
    ("ratios", "kind"), [((0.9, 1.9), "drift"), ((0.5, 2.1), "drift"), ((0.1, 1.9), "step")]
)
def test_the_worst_of_the_usual_rounding_is_no_faulty_step(
    ratios: tuple[float, float], kind: str
) -> None:
    usual, worst = ratios
    steps = of_ratios(*[usual] * 8, worst, usual)
    assert judge({"h": "hn"}, steps, steps, {}, strict=False).kind == kind
    answer = judge({"h": "hn"}, of_ratios(*[usual] * 10), steps, {}, strict=False)
    assert answer.kind == ("step" if kind == "step" else "none")
    said = f"error at most {worst} of the tolerance, past it first in step 9"
    assert (said in describe_steps(answer)) == (kind == "drift")


def test_errors_that_shrink_have_no_rate() -> None:
    own = of_ratios(*np.geomspace(0.9, 0.1, 10).tolist(), 1.5)
    answer = judge({"h": "hn"}, own, of_ratios(*[0.1] * 11), {}, strict=False)
    assert (answer.kind, answer.rate) == ("drift", None)


@pytest.mark.parametrize(
    ("ratios", "step"), [((0.01, 0.01, 1.2, 40), 3), ((0.5, 0.5, 2.1, 40), 4), ((1.2, 1.4, 40), 3)]
)
def test_the_first_faulty_step_may_be_off_by_less_than_the_worst(
    ratios: tuple[float, ...], step: int
) -> None:
    """Where the other steps match by far; else it is their rounding."""
    steps = of_ratios(*ratios)
    assert judge({"h": "hn"}, steps, steps, {}, strict=False).step == step


def test_the_cache_of_an_encoder_is_not_zeros() -> None:
    names = ["past.0.encoder.key present.0.encoder.key", "past.0.key present.0.key"]
    network = Network(stateful([pair.split() for pair in names]))
    (first, _) = make_steps(network, find_state(network, []), Data(), 2)
    assert np.all(first["past.0.encoder.key"])
    assert not np.any(first["past.0.key"])


def test_a_position_that_one_export_holds_back(cli: CommandLine, here: Path) -> None:
    """Its values follow from a length alone, as those of shapes do, which have no counterpart."""
    ends = "(float[1, 1, 2] x, float[1, p, 2] past) => (float[1, 1, 2] y, float[1, t, 2] present)"
    body = (
        "present = Concat<axis = 1>(past, x) length = Shape<start = 1, end = 2>(past) "
        "place = Min(length, last) row = Gather(table, place) sum = Add(x, row) "
        "masked = Where(never, x, infinite) zero = Exp(masked) y = Add(sum, zero)"
    )
    weights = {"table": np.arange(64.0).reshape(32, 2), "infinite": -np.inf, "never": False}
    for name, last in (("old", 31), ("new", 4)):
        save_text(
            here / f"{name}.onnx", ends, body, {**weights, "last": np.array([last])}, opset=17
        )
    words = ("diagnose", "new.onnx", "--onnxrt", "--reference", "old.onnx", "--json", "r.json")
    ran = cli(*words, "--steps", "9").ended(0)
    assert ran.result["steps"]["failing"] == [[6, 9]]
    assert [node["outputs"] for node in ran.result["culprits"]] == [["place"]]


def test_a_count_at_its_limit_is_no_rounding(cli: CommandLine, here: Path) -> None:
    """A Cast of an integer and the larger of two are exact, so no rounding moves them past a limit."""
    ends = f"({ONE} x, int64[1] position_ids, {ONE} h0) => ({ONE} y, {ONE} hn)"
    body = (
        "hn = Add(h0, x) c = Cast<to = 1>(position_ids) m = Max(c, none) "
        "late = GreaterOrEqual(m, limit) f = Cast<to = 1>(late) g = Add(f, one) y = Mul(x, g)"
    )
    weights = {"none": np.zeros(4), "one": 1.0}
    for name, limit in (("old", 99.0), ("new", 4.0)):
        save_text(here / f"{name}.onnx", ends, body, weights | {"limit": limit}, opset=17)
    words = ("diagnose", "new.onnx", "--onnxrt", "--reference", "old.onnx", "--json", "r.json")
    ran = cli(*words, "--steps", "6").ended(0)
    assert ran.result["steps"]["failing"] == [[5, 6]]
    assert ran.result["fault"]["whose"] == "export"
    assert [node["outputs"] for node in ran.result["culprits"]] == [["late"]]


@pytest.mark.parametrize("batch", ["2", "batch"])
def test_what_follows_from_a_step_is_of_its_batch(here: Path, batch: str) -> None:
    ends = (
        f"(int64[{batch}, s] input_ids, int64[{batch}, t] attention_mask, int32[{batch}] seqlens_k, "
        f"float[{batch}, p, 2] past) => (float[{batch}, q, 2] present)"
    )
    body = "k = Gather(table, input_ids) present = Concat<axis = 1>(past, k)"
    network = Network(text_model(ends, body, {"table": np.ones((9, 2))}))
    np.savez(here / "x.npz", input_ids=np.ones((2, 3), np.int64))
    data = Data(load_inputs=(here / "x.npz",))
    first, *_, last = make_steps(network, find_state(network, []), data, 3)
    assert first["past"].shape == (2, 0, 2)
    assert last["attention_mask"].tolist() == [[1, 1, 1]] * 2
    assert last["seqlens_k"].tolist() == [2, 2]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "ends_and_body",
    [
        (f"({ONE} x, {ONE} h0) => ({ONE} hn)", "hn = Add(h0, x)"),
        (
            "(float[1, 4] x, float[p, 4] past) => (float[q, 4] present)",
            "present = Concat<axis = 0>(past, x)",
        ),
    ],
)
def test_two_runs_of_a_step_that_differ_are_no_drift(ends_and_body: tuple[str, str]) -> None:
    model = text_model(*ends_and_body)
    model.graph.node[0].name = "bad"
    onnx.save(model, "m.onnx")
    ones(5)
    words = ("diagnose", "m.onnx", "--unsteady", "--fault", "second", "--steps", "5")
    ran = unsteady(*words, "--load-inputs", "x.npz", "--json", "r.json").ended(1)
    steps = ran.result["steps"]
    assert (steps["kind"], steps["rate"], steps.get("carriers")) == ("flaky", None, None)
    said = " ".join(ran.out.split())
    assert "Flaky: no step of 5 is wrong" in said
    assert "with the same state again, step 2 gives other values" in said
    assert "magnifies" not in said


@pytest.fixture
def keeps(here: Path) -> tuple[str, ...]:
    """A model and a target that is wrong on four rows and more behind fewer."""
    ends = "(float[p, 64] past, float[1, 64] x) => (float[q, 64] present)"
    body = "c = Concat<axis = 0>(past, x) present = Sqrt(c)"
    model = text_model(ends, body, opset=17)
    model.graph.node[1].name = "bad"
    onnx.save(model, str(here / "m.onnx"))
    return ("m.onnx", "--unsteady", "--fault", "grown:4", "--steps", "7", "--json", "r.json")


def test_a_target_that_keeps_something_of_a_run(keeps: tuple[str, ...]) -> None:
    """The step alone is right, so the steps before it are run first, by whatever judges it."""
    ran = unsteady("diagnose", *keeps, "-o", "out").ended(0)
    assert ran.result["steps"]["failing"] == [[5, 7]]
    assert [node["name"] for node in ran.result["culprits"]] == ["bad"]
    assert ran.result["minimality"] == "1-minimal"
    assert ran.result["fault"]["whose"] == "target"
    assert "warning: step 5 alone is right" in ran.err
    assert "it runs `earlier-1.npz` first" in Path("out/README.md").read_text()
    assert Path("out/earlier-1.npz").exists()


@pytest.mark.slow
def test_a_reduced_model_that_fails_after_others_says_so(keeps: tuple[str, ...]) -> None:
    ran = unsteady("reduce", *keeps, "-o", "small.onnx").ended(0)
    assert "it fails only after other samples in the same session" in ran.err
    inputs = ran.result["steps"]["inputs"]
    words = ("run", "m.onnx", *keeps[1:4])
    assert unsteady(*words, "--load-inputs", inputs).ended(1)
    assert unsteady(*words, "--load-inputs", f"{Path(inputs).with_suffix('')}-3.npz").ended(0)


@pytest.mark.parametrize(("metric", "first"), [("cosine", [7, -1.0]), ("psnr:y", [7, -100.0])])
def test_a_metric_names_the_first_step_past_its_bound(
    cli: CommandLine, here: Path, metric: str, first: list[float]
) -> None:
    save_text(here / "m.onnx", *SUMS)
    ones(9)
    words = ["run", "m.onnx", *FP16, "--load-inputs", "x.npz", "--steps", "9", "--metric", metric]
    ran = cli(*words, "--max-drop", "40%", "--json", "r.json").ended(1)
    assert ran.result["metric"]["first"] == first
    assert f"past it first in step 7: {first[1]:g}" in " ".join(ran.out.split())
    assert "first" not in cli(*words, "--max-drop", "300%", "--json", "r.json").result["metric"]
