"""The step and the node of each fault planted in a model with a state; drift is said to be drift. Run by ``make truth``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support import Ran, bisect_trt, read_json

from bisect_trt.onnxlib.cut import mark_outputs
from bisect_trt.onnxlib.inputs import table_sizes
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.state import find_state, make_steps
from bisect_trt.options.shared import Data
from bisect_trt.tensors.state import state_after
from truth.decoders import FAMILIES, INT, SIZES, VOCABULARY, Graph

pytestmark = pytest.mark.timeout(1200)
STEPS = 40
TOOL = Path(__file__).with_name("spoil.py")


@dataclass(frozen=True)
class Planted:
    """A fault in a node of a generated model.

    Attributes:
        family: The kind of model.
        size: Its size.
        fault: What is wrong; see ``spoil.py``.
        node: The node.
        step: The first step that is wrong.
        number: The fault's number; ``None`` for one that makes that step the first.
    """

    family: str
    size: str
    fault: str
    node: str
    step: int
    number: float | None = 0

    def __str__(self) -> str:
        """For the names of tests."""
        return f"{self.family}-{self.size}-{self.fault}-{self.node.replace('/', '-')}-{self.step}"


PLANTED = [
    Planted("llama", "small", "short", "sin", 22, 21),
    Planted("llama", "middle", "short", "cos", 32, 31),
    Planted("llama", "large", "short", "sin", 13, 12),
    Planted("llama", "small", "mask", "layers.0/mask", 32, 32),
    Planted("llama", "middle", "mask", "layers.2/mask", 20, 20),
    Planted("llama", "small", "swapped", "layers.0/cache_key", 2),
    Planted("llama", "middle", "swapped", "layers.1/cache_value", 2),
    Planted("llama", "middle", "scale", "layers.2/cache_value", 1, 0.05),
    Planted("whisper", "small", "blind", "later", 33, 32),
    Planted("whisper", "middle", "blind", "later", 18, 17),
    Planted("whisper", "small", "shifted", "layers.0/cache_key", 1),
    Planted("whisper", "middle", "shifted", "layers.1/cache_value", 1),
    Planted("whisper", "large", "short", "positions", 26, 25),
    Planted("mamba", "small", "reset", "alive", 17, 16),
    Planted("mamba", "middle", "swapped", "layers.1/window", 1),
    Planted("mamba", "large", "overflow", "layers.2/state", 10, None),
    Planted("convolutions", "small", "reset", "alive", 17, 16),
    Planted("convolutions", "middle", "overflow", "sum", 21, None),
    Planted("transducer", "small", "reset", "alive", 25, 24),
    Planted("transducer", "large", "reset", "alive", 11, 10),
    Planted("window", "small", "wrap", "ring", 16, 15),
    Planted("window", "middle", "early", "layers.1/cache_key", 1, 1),
    Planted("crossed", "middle", "held", "bucket", 16, 14),
    Planted("crossed", "small", "gain", "layers.0/cross/kept_value", 1, 1.05),
    Planted("scattered", "small", "held", "place", 32, 30),
    Planted("scattered", "middle", "short", "sin", 22, 21),
    Planted("eight_bits", "middle", "rescale", "layers.1/dequantize_value", 1, 0.036),
    Planted("eight_bits", "small", "swapped", "layers.0/cache_value", 2),
    Planted("eight_bits", "large", "rescale", "layers.5/dequantize_key", 2, 0.036),
    Planted("linear_attention", "middle", "gain", "layers.1/faded", 2, 1.05),
    Planted("linear_attention", "small", "overflow", "layers.0/memory", 26, None),
    Planted("recurrent_filter", "middle", "before_reset", "layers.1/gru", 2),
    Planted("recurrent_filter", "large", "early", "layers.2/kept", 1, 1),
    Planted("conformer", "small", "held", "count", 3, 16),
    Planted("conformer", "middle", "strict", "empty", 1),
    Planted("conformer", "large", "early", "layers.3/kept_time", 1, 1),
    Planted("tracker", "small", "gain", "spread", 2, 1.02),
]
DRIFTING = [
    ("transducer", "large", "--bf16"),
    ("reservoir", "small", "--bf16"),
    ("reservoir", "middle", "--bf16"),
    ("reservoir", "small", "--fp16"),
    ("reservoir", "middle", "--fp16"),
    ("transducer", "middle", "--bf16"),
    ("linear_attention", "middle", "--bf16"),
    ("recurrent_filter", "large", "--bf16"),
    ("tracker", "small", "--fp16"),
]


def largest(model: onnx.ModelProto, node: str) -> list[float]:
    """The largest magnitude of a node's output in each step."""
    network = Network(model)
    state = find_state(network, [])
    marked = mark_outputs(network, [*network.outputs, f"{node}:0"], {})
    session = onnxruntime.InferenceSession(marked.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    made = None
    sizes: list[float] = []
    # The same tokens as the tool draws.
    ranges = {name: (0.0, size - 1.0) for name, size in table_sizes(network).items()}
    for fed in make_steps(network, state, Data(val_range=ranges), STEPS):
        made = dict(
            zip(names, session.run(None, fed | state_after(state.taken, made)), strict=True)
        )
        sizes.append(float(np.abs(made[f"{node}:0"]).max()))
    return sizes


def limit_of(model: onnx.ModelProto, planted: Planted) -> float:
    """The limit that the node passes at that step first; later steps raise the state until it does."""
    sizes = largest(model, planted.node)
    before = max(sizes[: planted.step - 1])
    if sizes[planted.step - 1] <= before:
        pytest.skip(f"{planted.node} has been larger before")
    return (before + sizes[planted.step - 1]) / 2


def diagnosed(folder: Path, *words: str, steps: int = STEPS) -> Ran:
    """The answer about ``model.onnx``."""
    options = ("--steps", str(steps), "--no-other-release", "--json", "r.json")
    return bisect_trt("diagnose", "model.onnx", *words, *options, cwd=folder)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_step_and_the_node_are_exact(planted: Planted, tmp_path: Path) -> None:
    model = FAMILIES[planted.family](*SIZES[planted.size])
    onnx.save(model, str(tmp_path / "model.onnx"))
    number = limit_of(model, planted) if planted.number is None else planted.number
    tool = f"{sys.executable} {TOOL} {planted.fault} {planted.node} {number} {{model}} {{out}}"
    diagnosed(tmp_path, "--through", tool)
    result = read_json(tmp_path / "r.json")
    assert result["steps"]["step"] == planted.step
    assert result["steps"]["kind"] == ("start" if planted.step == 1 else "step")
    assert [node["name"] for node in result["culprits"]] == [planted.node]
    assert result["minimality"] == "1-minimal"


@pytest.mark.parametrize("case", DRIFTING, ids="-".join)
def test_harmless_drift_is_said_to_be_drift(case: tuple[str, str, str], tmp_path: Path) -> None:
    family, size, precision = case
    onnx.save(FAMILIES[family](*SIZES[size]), str(tmp_path / "model.onnx"))
    diagnosed(tmp_path, "--onnxrt", precision, steps=100)
    steps = read_json(tmp_path / "r.json")["steps"]
    assert (steps["kind"], steps["step"]) == ("drift", None)


def capped_attention() -> onnx.ModelProto:
    """Attention with a cache, a causal mask and a cap, which ONNX Runtime 1.24.4 computes wrongly for two tokens and more."""
    graph = Graph(0)
    cache: list[int | str] = [1, 2, "past", 8]
    ids = graph.fed("input_ids", [1, "tokens"], INT)
    hidden = graph.op("Gather", graph.weight(VOCABULARY, 16, scale=1.0), ids, name="embed")
    q, k, v = (graph.linear(hidden, 16, 16, name) for name in "qkv")
    past = [graph.fed(f"past_key_values.0.{kind}", cache) for kind in ("key", "value")]
    made = ["mixed", "key", "value"]
    options: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": 1, "softcap": 2.0}
    node = helper.make_node("Attention", [q, k, v, "", *past], made, "attention", **options)
    graph.nodes.append(node)
    for kind in made[1:]:
        graph.returned(f"present.0.{kind}", kind, [1, 2, "past + tokens", 8])
    graph.returned("logits", graph.linear("mixed", 16, 16, "o"), [1, "tokens", 16])
    return graph.model(opset=23)


def causal_attention() -> onnx.ModelProto:
    """Attention over a cache that the graph joins: ONNX Runtime 1.23.0 to 1.27.0 does not mask it for one token."""
    graph = Graph(0)
    ids = graph.fed("input_ids", [1, "tokens"], INT)
    hidden = graph.op("Gather", graph.weight(VOCABULARY, 16, scale=1.0), ids, name="embed")
    q, k, v = (graph.heads(graph.linear(hidden, 16, 16, name), 2, 8) for name in "qkv")
    joined = []
    for kind, new in (("key", k), ("value", v)):
        past = graph.fed(f"past_key_values.0.{kind}", [1, 2, "past", 8])
        joined.append(graph.op("Concat", past, new, name=kind, axis=2))
        graph.returned(f"present.0.{kind}", joined[-1], [1, 2, "past + tokens", 8])
    mixed = graph.op("Attention", q, *joined, name="attention", is_causal=1)
    flat = graph.op(
        "Reshape", graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), graph.ints(1, -1, 16)
    )
    graph.returned("logits", graph.linear(flat, 16, 16, "o"), [1, "tokens", 16])
    return graph.model(opset=23)


@pytest.mark.parametrize(
    ("model", "version", "tokens", "wrong"),
    [
        (capped_attention, "1.24.4", [1, 1, 1, 1, 3, 1, 1, 2, 1, 1], [5, 8]),
        (causal_attention, "1.23.0", [3, 2, 2, 1, 2, 3], [4]),
        (causal_attention, "1.27.0", [1, 2, 2, 2, 3, 1, 2, 1], [6, 8]),
    ],
)
def test_a_release_that_is_wrong_for_one_length(
    model: Callable[[], onnx.ModelProto],
    version: str,
    tokens: list[int],
    wrong: list[int],
    tmp_path: Path,
) -> None:
    onnx.save(model(), str(tmp_path / "model.onnx"))
    for step, count in enumerate(tokens, 1):
        np.savez(tmp_path / f"tokens-{step}.npz", input_ids=np.arange(count)[None] * 7 + step)
    place = f"env=onnxruntime=={version} numpy"
    words = ("--onnxrt", "--on", place, "--load-inputs", "tokens.npz")
    diagnosed(tmp_path, *words, steps=len(tokens))
    result = read_json(tmp_path / "r.json")
    assert result["steps"]["step"] == wrong[0]
    assert result["steps"]["failing"] == [[step, step] for step in wrong]
    assert [node["name"] for node in result["culprits"]] == ["attention"]
    assert result["fault"]["whose"] == "target"


def test_openvino_is_wrong_from_sixteen_places_on_behind_fewer(tmp_path: Path) -> None:
    """A step is right alone: the kernel of attention without a mask keeps something of a shorter cache."""
    onnx.save(FAMILIES["eight_bits"](*SIZES["small"], seed=7), str(tmp_path / "model.onnx"))
    diagnosed(tmp_path, "--openvino", "--on", "env=openvino==2026.4.1 numpy")
    result = read_json(tmp_path / "r.json")
    assert result["steps"]["failing"] == [[16, STEPS]]
    names = [node["name"] for node in result["culprits"]]
    assert names == [f"layers.0/{name}" for name in ("scores", "scale", "softmax", "mix")]
    assert result["minimality"] == "1-minimal"
    assert result["fault"]["whose"] == "target"
    assert result["cause"] == [["option:SNIPPETS_MODE=DISABLE"]]
    assert (tmp_path / "model-reproducer" / "earlier-1.npz").exists()


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_two_exports_part_in_that_step(planted: Planted, tmp_path: Path) -> None:
    """The fault is in the file, and the model without it is the reference."""
    model = FAMILIES[planted.family](*SIZES[planted.size])
    onnx.save(model, str(tmp_path / "right.onnx"))
    number = limit_of(model, planted) if planted.number is None else planted.number
    files = ("right.onnx", "model.onnx")
    words = [sys.executable, str(TOOL), planted.fault, planted.node, str(number), *files]
    subprocess.run(words, cwd=tmp_path, check=True)
    diagnosed(tmp_path, "--onnxrt", "--reference", "right.onnx")
    result = read_json(tmp_path / "r.json")
    assert result["steps"]["step"] == planted.step
    assert result["fault"]["whose"] == "export"
    (culprit,) = result["culprits"]
    assert culprit["name"] == planted.node or culprit["name"].startswith("spoilt")
