"""Models with free dimensions: the first probe is about the user's file, and samples may differ in size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from building import save_text
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import QUICK_MODEL

SIZES = (6, 7)


@pytest.fixture
def samples(here: Path) -> list[str]:
    """Texts of two lengths, a mask beside each."""
    values = np.random.default_rng(0)
    names = []
    for size in SIZES:
        names.append(f"{size}.npz")
        np.savez(
            here / names[-1],
            x=values.standard_normal((1, size, 4)).astype(np.float32),
            keep=np.ones((1, size), bool),
        )
    return names


def write_text_model(path: Path, *, middle: str = "big = Mul(h, k) back = Div(big, k)") -> Path:
    """A network over [1, n, 4] with a mask, in the middle of which fp16 overflows."""
    body = f"""h = Relu(x) {middle} rows = Shape(back) axis = Constant<value_ints=[-1]>()
        gone = Unsqueeze(keep, axis) zero = Constant<value_float=0.0>() masked = Where(gone, back, zero) y = Tanh(masked)"""
    return save_text(
        path,
        "(float[1, n, 4] x, bool[1, n] keep) => (float[1, n, 4] y)",
        body,
        {"k": np.float32(1e5)},
    )


LENGTHS = (6, 7, 12)
LOW = ("--onnxrt", "--fp16")
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("--onnxrt",),
    "layerwise": LOW,
    "diagnose": (*LOW, "-o", "case", "--no-other-release"),
    "reduce": (*LOW, "-o", "small.onnx"),
    "cause": LOW,
    "workaround": (*LOW, "-o", "patched.onnx"),
    "precision": (*LOW, "-o", "mixed.onnx", "--fresh-samples", "4"),
    "repeat": (*LOW, "-n", "2"),
    "samples": LOW,
    "sweep": (*LOW, "--shapes", "ids:[1,n=6..8]", "mask:[1,n=6..8]"),
    "extract": ("--inputs", "b:auto:auto", "--outputs", "c:auto", "-o", "piece.onnx"),
    "sanitize": ("-o", "clean.onnx"),
    "convert": ("--fp16", "-o", "low.onnx"),
}
"""The commands that take samples, with their options; `releases` has tests of its own."""
QUICK = ("run", "layerwise", "reduce", "precision", "samples", "extract", "sanitize", "convert")


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in COMMANDS],
)
def test_texts_of_several_lengths_go_through_every_command(
    cli: CommandLine, here: Path, command: str
) -> None:
    """The dimension stays free in the models that are written, and the node where fp16 overflows is named."""
    body = """e = Gather(table, ids) k = Mul(e, big) b = Div(k, big) t = Transpose<perm = [0, 2, 1]>(b) s = MatMul(b, t)
        one = Constant<value_ints = [1]>() m = Unsqueeze(mask, one) low = Constant<value_float = -10000.0>()
        w = Where(m, s, low) p = Softmax(w) c = MatMul(p, b) y = Tanh(c)"""
    values = np.random.default_rng(0)
    table = values.standard_normal((50, 4)).astype(np.float32)
    ends = "(int64[1, n] ids, bool[1, n] mask) => (float[1, n, 4] y)"
    model = save_text(here / "m.onnx", ends, body, {"table": table, "big": np.float32(1e5)})
    for size in LENGTHS:
        ids = values.integers(0, 50, (1, size))
        np.savez(f"{size}.npz", ids=ids, mask=np.ones((1, size), bool))
    files = [f"{size}.npz" for size in LENGTHS]
    ran = cli(command, model, *COMMANDS[command], "--load-inputs", *files, "--json", "r.json")
    result = ran.ended(0).result
    nodes = [*result.get("culprits", ()), *result.get("keep_fp32", ())]
    assert {node["op"] for node in nodes} <= {"Mul", "Div"}
    for written in here.glob("*.onnx"):
        dims = onnx.load(str(written)).graph.input[0].type.tensor_type.shape.dim
        assert dims[1].dim_value == 0, written


def test_a_metric_is_searched_over_samples_of_several_lengths(
    cli: CommandLine, here: Path, samples: list[str]
) -> None:
    """Only the first sample is kept for candidates, and the metric reads all of them."""
    model = write_text_model(here / "m.onnx")
    metric = ("--metric", "cosine", "--max-drop", "0.01", "--load-inputs", *samples)
    words = ("--onnxrt", "--fp16", *metric, "--json", "r.json")
    reduced = cli("reduce", model, "-o", "small.onnx", *words).ended(0).result
    assert {entry["op"] for entry in reduced["culprits"]} <= {"Mul", "Div"}
    small = onnx.load("small.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in small] == [1, 0, 4]


def test_the_check_sees_the_file_first(cli: CommandLine, here: Path) -> None:
    """A candidate of the search has fixed shapes; the first probe has the file's own dimensions."""
    model = write_text_model(here / "m.onnx")
    script = here / "check.py"
    script.write_text(
        f"{QUICK_MODEL}graph = model.graph\n"
        "names = [dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param]\n"
        "open('seen.txt', 'a').write(','.join(names) + '\\n')\n"
        "sys.exit(any(node.op_type == 'Div' for node in graph.node))\n"
    )
    cli(
        "reduce",
        model,
        "-o",
        "r.onnx",
        "--input-shapes",
        "x:[1,6,4]",
        "--workers",
        "1",
        "--check",
        sys.executable,
        script,
        "{model}",
    ).ended(0)
    first, *others = (here / "seen.txt").read_text().splitlines()
    assert first == "n,n"
    assert set(others) == {""}


def unsorted(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def same_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "same"


CHANGES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "free dimensions": lambda _: None,
    "a newer IR version": lambda model: setattr(model, "ir_version", 11),
    "unsorted nodes": unsorted,
    "nodes of one name": same_names,
    "unused weights": lambda model: model.graph.initializer.append(
        numpy_helper.from_array(np.ones(3), "unused")
    ),
    "metadata": lambda model: model.metadata_props.add(key="author", value="me"),
    "documentation": lambda model: setattr(model.graph, "doc_string", "what it is"),
    "a producer": lambda model: setattr(model, "producer_name", "exporter"),
    "inner types": lambda model: model.graph.value_info.append(
        helper.make_tensor_value_info("h", 1, [1, None, 4])
    ),
}
"""What a tool that rewrites models before it tests them would drop, by name."""


@pytest.mark.parametrize("change", CHANGES)
def test_the_first_probe_is_about_the_file(cli: CommandLine, here: Path, change: str) -> None:
    proto = onnx.load(str(write_text_model(here / "m.onnx")))
    CHANGES[change](proto)
    onnx.save(proto, "m.onnx")
    (here / "check.py").write_text(
        "import os, shutil, sys\n"
        "os.path.exists('first.onnx') or shutil.copyfile(sys.argv[1], 'first.onnx')\n"
        "sys.exit(b'Div' in open(sys.argv[1], 'rb').read())\n"
    )
    words = ("reduce", "m.onnx", "-o", "r.onnx", "--workers", "1", "--max-probes", "1")
    cli(*words, "--check", sys.executable, "check.py", "{model}")
    assert onnx.load("first.onnx") == proto


def test_a_copy_with_fixed_shapes_that_is_invalid_is_not_tested(
    cli: CommandLine, here: Path
) -> None:
    """Both branches are right for some length, so the file is right, and neither is with the length fixed to the other's."""
    body = """n = Shape<start=1, end=2>(x) six = Constant<value_ints=[6]>() is_six = Equal(n, six) cond = Squeeze(is_six)
        y = If(cond) <
            then_branch = then() => (float[one, c] t) { w6 = Constant<value = float[6, 2] {1,2,3,4,5,6,7,8,9,1,2,3}>()
                t = MatMul(x, w6) },
            else_branch = other() => (float[one, d] e) { e = ReduceSum<keepdims = 1>(x) }
        >"""
    model = save_text(here / "m.onnx", "(float[1, n] x) => (float[one, m] y)", body, {}, opset=15)
    for size in (6, 7):
        np.savez(f"{size}.npz", x=np.ones((1, size), np.float32))
        cli("run", model, "--onnxrt", "--load-inputs", f"{size}.npz").ended(0)
    cli("run", model, "--onnxrt", "--load-inputs", "6.npz", "7.npz").ended(0)
    fixed = onnx.load(str(model))
    fixed.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    onnx.save(fixed, "fixed.onnx")
    cli("run", "fixed.onnx", "--onnxrt", "--load-inputs", "7.npz").refused("BT2004", "MatMul")


def test_two_sizes_of_one_name_are_named(cli: CommandLine, here: Path) -> None:
    save_text(
        here / "m.onnx",
        "(float[n, 2] x, float[n, 2] z) => (float[p, 2] y)",
        "y = Concat<axis = 0>(x, z)",
        {},
    )
    np.savez("two.npz", x=np.ones((2, 2), np.float32), z=np.ones((3, 2), np.float32))
    ran = cli("run", "m.onnx", "--onnxrt", "--load-inputs", "two.npz").ended(0)
    assert "the dimension 'n' is 2 in 'x' and 3 in 'z' of sample 1" in ran.err


def test_one_engine_has_a_profile_of_all_samples(cli: CommandLine, here: Path) -> None:
    """A builder for which one dimension has two sizes refuses the file, which a copy with fixed shapes would hide."""
    pytest.importorskip("tensorrt_rtx_bindings")
    save_text(
        here / "m.onnx",
        "(float[n, 2] x, float[n, 2] z) => (float[p, 2] y)",
        "y = Concat<axis = 0>(x, z)",
        {},
    )
    for number, (one, two) in enumerate([(2, 2), (4, 4), (2, 3)]):
        np.savez(f"{number}.npz", x=np.ones((one, 2), np.float32), z=np.ones((two, 2), np.float32))
    words = ("run", "m.onnx", "--trt-rtx", "--build-only", "--load-inputs")
    cli(*words, "0.npz", "1.npz").ended(0)
    refused = cli(*words, "2.npz").ended(1)
    assert "Input dimensions with this name" in refused.out + refused.err


def test_sizes_that_run_are_named_where_assumed_ones_do_not_build(
    cli: CommandLine, here: Path
) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    weights = {"w": np.ones((2, 3, 3, 3), np.float32)}
    ends = "(float[n, 3, h, k] x) => (float[n, 2, p, q] y)"
    save_text(here / "m.onnx", ends, "y = Conv(x, w)", weights)
    ran = cli("run", "m.onnx", "--trt-rtx", "--build-only").ended(1)
    assert "It runs with --input-shapes x:[1,3,8,8]." in " ".join(ran.out.split())


def test_a_range_of_sizes_is_drawn(cli: CommandLine, here: Path) -> None:
    """The mask has a dimension of the same name, and the file one size where the second range stands."""
    ends = "(float[n, 4] x, float[n, 1] keep) => (float[n, 4] y)"
    model = save_text(here / "m.onnx", ends, "z = Mul(x, keep) y = Exp(z)")
    words = ("run", model, "--onnxrt", "--save-inputs", "x.npz", "--input-shapes")
    cli(*words, "x:[5..9,2..4]", "--iterations", "3").ended(0)
    shapes = [[value.shape for value in np.load(f"x-{n}.npz").values()] for n in (1, 2, 3)]
    assert shapes == [[(5, 2), (5, 1)], [(7, 3), (7, 1)], [(9, 4), (9, 1)]]
    cli(*words, "x:[9..5,4]").refused("BT1002", "a range such as 5..9 goes up")


def test_fresh_samples_have_sizes_of_the_range(cli: CommandLine, here: Path) -> None:
    """A sum over the range exceeds fp16, and one over the given sample does not."""
    ends = "(float[1, n] x) => (float[1, 1] y)"
    axes = {"k": np.float32(2000), "axes": np.array([1])}
    save_text(here / "m.onnx", ends, "b = Mul(x, k) s = ReduceSum(b, axes) y = Div(s, k)", axes)
    np.savez("x.npz", x=np.linspace(0.5, 1, 6, dtype=np.float32)[None])
    words = ("precision", "m.onnx", "--onnxrt", "--fp16", "--load-inputs", "x.npz", "-o", "p.onnx")
    options = ("--fresh-samples", "20", "--json", "r.json")
    assert not cli(*words, *options).ended(0).result["keep_fp32"]
    result = cli(*words, *options, "--overwrite", "--input-shapes", "x:[1,6..60]").ended(0).result
    assert "ReduceSum" in [node["op"] for node in result["keep_fp32"]]
