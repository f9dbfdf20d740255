"""Do the fixes of ``bisect-trt precision`` hold, and are they small? Twenty architectures with seeds that nothing was tuned on.

    [AUTOCAST=PYTHON] [ZOO='llama yolox'] [ZOO_SEED=202] python -m benchmarks zoo

Each model gets one sample on which fp16 fails; what is written runs on 40 others of the same
distribution, and on 40 shifted ones: twice as large, or offset by half a deviation. Five
architectures also run on 40 inputs that are four times as long. PYTHON is an interpreter with
``nvidia-modelopt[onnx]``: AutoCast then runs on the same models. Everything is judged as in
``benchmarks.safe_sets``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.outliers import KINDS, Arrays, Plant, Planted, decoder, layer_norm
from benchmarks.pictures import PICTURES
from benchmarks.reduce import OUT, markdown
from benchmarks.safe_sets import Measured, measure
from benchmarks.sequences import (
    FLOAT,
    SEQUENCES,
    W,
    cached,
    conformer,
    convolve,
    drawn,
    ffn,
    heads,
    kernel,
    made,
    planted,
    pointwise,
    rms,
    swish,
    tasnet,
)

from _builder import GraphBuilder  # isort: skip - an import before makes it known

SEED = int(os.environ.get("ZOO_SEED", "202"))
SAMPLES = 40
_SEEDS = 10


def llama(seed: int, times: int = 1) -> Planted:
    """RMSNorms, rotary positions, and gated feed-forward parts."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 6)
    tokens = 16 * times
    x = drawn(g, "embedded", "/embed", 24, W)
    angle = np.outer(np.arange(tokens), 1e4 ** -np.linspace(0, 1, W // 8)).astype(np.float32)
    cos, sin = (
        g.weight(f"rotary.{f.__name__}", np.tile(f(angle), 2)[None, None]) for f in (np.cos, np.sin)
    )
    ends = [g.constant([at], np.int64) for at in (0, W // 8, W // 4, 3)]
    for block in range(6):
        s = f"/model/layers.{block}"
        y = rms(g, x, f"{s}/ln1")
        parts = []
        for part in "qkv":
            made_ = heads(g, drawn(g, y, f"{s}/{part}", W, W), f"{s}/{part}", tokens, [0, 2, 1, 3])
            if part != "v":
                low, high = (
                    g.op("Slice", made_, ends[at], ends[at + 1], ends[3], scope=s) for at in (0, 1)
                )
                turned = g.op("Concat", g.op("Neg", high, scope=s), low, scope=s, axis=-1)
                made_ = g.op(
                    "Add",
                    g.op("Mul", made_, cos, scope=s),
                    g.op("Mul", turned, sin, scope=s),
                    scope=s,
                )
            parts.append(made_)
        scores = g.op(
            "MatMul", parts[0], g.op("Transpose", parts[1], scope=s, perm=[0, 1, 3, 2]), scope=s
        )
        mixed = g.op("MatMul", g.op("Softmax", scores, scope=s, axis=-1), parts[2], scope=s)
        mixed = g.op(
            "Reshape",
            g.op("Transpose", mixed, scope=s, perm=[0, 2, 1, 3]),
            g.constant([1, tokens, W], np.int64),
        )
        x = g.op("Add", x, drawn(g, mixed, f"{s}/o", W, W), scope=s)
        x = g.op("Add", x, ffn(g, rms(g, x, f"{s}/ln2"), f"{s}/mlp", plant, block, swish), scope=s)
    drawn(g, rms(g, x, "/model/norm"), "/lm_head", W, 50)
    return made("llama", seed, g, {"embedded": (FLOAT, (1, tokens, 24))}, (1, tokens, 50))


def mamba(seed: int) -> Planted:
    """Gated convolutions and a selective scan, written out step by step."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 3)
    tokens = 8
    x = drawn(g, "embedded", "/embed", 24, W)
    for block in range(3):
        s = f"/layers.{block}"
        y = rms(g, x, f"{s}/norm")
        rate = g.op("Softplus", drawn(g, y, f"{s}/dt", W, W), scope=s)
        decay = g.op("Exp", g.op("Neg", rate, scope=s), scope=s)
        read, gate = (drawn(g, y, f"{s}/{part}", W, W) for part in ("in", "gate"))
        state = g.weight(f"state.{block}", np.zeros((1, W), np.float32))
        states = []
        for step in range(tokens):
            now = g.constant(step, np.int64, s)
            kept = g.op("Mul", state, g.op("Gather", decay, now, scope=s, axis=1), scope=s)
            state = g.op(
                "Add",
                kept,
                g.op("Gather", g.op("Mul", rate, read, scope=s), now, scope=s, axis=1),
                scope=s,
            )
            states.append(g.op("Unsqueeze", state, g.constant([1], np.int64, s), scope=s))
        y = g.op("Mul", g.op("Concat", *states, scope=s, axis=1), swish(g, gate, s), scope=s)
        x = g.op(
            "Add",
            x,
            ffn(g, layer_norm(g, y, f"{s}/ln", W), f"{s}/out", plant, block, swish),
            scope=s,
        )
    drawn(g, rms(g, x, "/norm"), "/head", W, 20)
    return made("mamba", seed, g, {"embedded": (FLOAT, (1, tokens, 24))}, (1, tokens, 20))


def yolox(seed: int) -> Planted:
    """Residual stages that get smaller, pooled at several sizes, with three heads of boxes, objects and classes."""
    g = GraphBuilder(seed)
    plant = Plant(seed, 4)
    ends = []
    x = swish(g, convolve(g, "image", "/stem", kernel(g, W, 3, 3, 3), strides=[2, 2]), "/stem")
    for block in range(4):
        s = f"/dark{block}"
        first, second, bias = planted(g, plant, block, (W, W, W))
        y = swish(g, convolve(g, x, f"{s}/conv1", pointwise(first, 2)), s)
        x = g.op("Add", x, convolve(g, y, f"{s}/conv2", pointwise(second, 2), bias), scope=s)
        pools = [
            g.op("MaxPool", x, scope=s, kernel_shape=[n, n], pads=[n // 2] * 4) for n in (3, 5)
        ]
        x = swish(
            g,
            convolve(
                g, g.op("Concat", x, *pools, scope=s, axis=1), f"{s}/spp", kernel(g, W, 3 * W, 1, 1)
            ),
            s,
        )
        if block:
            box, seen = (
                convolve(g, x, f"{s}/{part}", kernel(g, n, W, 1, 1))
                for part, n in (("box", 4), ("cls", 6))
            )
            size = g.op("Exp", g.op("Tanh", box, scope=s), scope=s)
            head = g.op("Concat", size, g.op("Sigmoid", seen, scope=s), scope=s, axis=1)
            ends.append(g.op("Reshape", head, g.constant([1, 10, -1], np.int64, s), scope=s))
    g.op("Concat", *ends, axis=2)
    return made("yolox", seed, g, {"image": (FLOAT, (1, 3, 16, 16))}, (1, 10, 192))


ZOO: dict[str, Callable[[int], Planted]] = (
    KINDS | SEQUENCES | PICTURES | {"llama": llama, "mamba": mamba, "yolox": yolox}
)
LONGER: dict[str, Callable[[int, int], Planted]] = {
    "decoder": decoder, "conformer": conformer, "cached": cached, "tasnet": tasnet, "llama": llama,
}  # fmt: skip
"""Architectures with weights that do not depend on the length of the input."""


def shifted(plain: Planted) -> Planted:
    """Return the model with inputs twice as large or offset by half a deviation in turns."""

    def draw(rng: np.random.Generator) -> Arrays:
        sample = plain.draw(rng)
        twice = bool(rng.integers(2))
        floats = {
            name: value
            for name, value in sample.items()
            if value.dtype.kind == "f" and len(np.unique(value)) > 2
        }
        moved = {
            name: value * 2 if twice else value + value.std() / 2 for name, value in floats.items()
        }
        return sample | {name: value.astype(np.float32) for name, value in moved.items()}

    return replace(plain, draw=draw)


def judged(kind: str, others: dict[str, str]) -> list[Measured]:
    """Run all tools on one architecture: the first seed from ``SEED`` on with a sample on which fp16 fails."""
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        for seed in range(SEED, SEED + _SEEDS):
            plain = ZOO[kind](seed)
            moved = {" shifted": shifted(plain)} | (
                {" longer": LONGER[kind](seed, 4)} if kind in LONGER else {}
            )
            if found := measure(plain, Path(folder), SAMPLES, others, moved):
                return found
    return []


def table(rows: list[Measured]) -> str:
    """A row for each architecture: nodes in fp32, fresh failures and severe ones, CPU seconds; AutoCast's last."""
    lines = []
    for name in dict.fromkeys(row.model for row in rows):
        of = {row.tool: row for row in rows if row.model == name}
        line: dict[str, str] = {"model": name.rpartition("-")[0], "nodes": str(of["safe"].nodes)}
        for tool, title in {"safe": "", "autocast": "AutoCast: "}.items():
            row, moved, longer = (
                of.get(f"{tool}{suffix}") for suffix in ("", " shifted", " longer")
            )
            line[f"{title}fp32"] = str(row.kept) if row else ""
            line[f"{title}fail (severe)"] = f"{row.failed} ({row.severe})" if row else ""
            line[f"{title}shifted"] = f"{moved.failed} ({moved.severe})" if moved else ""
            line[f"{title}longer"] = f"{longer.failed} ({longer.severe})" if longer else ""
            line[f"{title}CPU s"] = f"{row.cpu_s:.0f}" if row else ""
        lines.append(line)
    return markdown(lines)


def figures() -> Iterator[Figure]:
    """Nodes kept, fresh failures and CPU time of the fixes of twenty architectures, beside AutoCast's."""
    others = {"autocast": os.environ["AUTOCAST"]} if os.environ.get("AUTOCAST") else {}
    rows: list[Measured] = []
    for kind in os.environ["ZOO"].split() if os.environ.get("ZOO") else ZOO:
        found = judged(kind, others)
        rows += found
        OUT.mkdir(exist_ok=True)
        (OUT / "zoo.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        print(
            kind,
            *map(str, found),
            *([] if found else ["no sample fails in fp16"]),
            sep="\n",
            file=sys.stderr,
            flush=True,
        )
    print(table(rows), file=sys.stderr)
    aims = {
        "safe": (45.0, 1.0, 0.0),
        "safe shifted": (45.0, 2.0, None),
        "safe longer": (45.0, 2.0, None),
        **dict.fromkeys(("autocast", "autocast shifted", "autocast longer"), 3 * (None,)),
    }
    for tool, (most, failing, severe) in aims.items():
        seen = [row for row in rows if row.tool == tool]
        if seen:
            nodes = sum(row.nodes for row in seen)
            samples = sum(row.samples for row in seen)
            note = f"{len(seen)} models, {sum(row.kept for row in seen)} of {nodes} nodes"
            yield Figure(
                f"{tool}: nodes in fp32, %",
                100 * sum(row.kept for row in seen) / nodes,
                most,
                note=note,
            )
            yield Figure(
                f"{tool}: samples that fail, %",
                100 * sum(row.failed for row in seen) / samples,
                failing,
            )
            yield Figure(
                f"{tool}: samples that fail severely", sum(row.severe for row in seen), severe
            )
    cpu = {tool: [row.cpu_s for row in rows if row.tool == tool] for tool in ("safe", "autocast")}
    theirs = sum(cpu["autocast"]) / max(len(cpu["autocast"]), 1)
    firsts = [row.first_s for row in rows if row.tool == "safe"]
    yield Figure(
        "CPU time a model, s", sum(cpu["safe"]) / max(len(cpu["safe"]), 1), 10 * theirs or None
    )
    yield Figure(
        "CPU time a model until the first file, s",
        sum(firsts) / max(len(firsts), 1),
        3 * theirs or None,
    )
    yield Figure("autocast: CPU time a model, s", theirs or None)
