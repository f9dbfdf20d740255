"""Inputs at the edge of what is allowed: defaults, raw bytes, few and many descriptors, failing plug-ins, dropped options."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import SHAPE, arrays, chain, rest_slow, save

from bisect_trt.steps.layers import gather
from bisect_trt.worker.protocol import Failed

PROGRAM = (sys.executable, "-m", "bisect_trt")


def defaulted(path: Path) -> Path:
    """Adds an input whose default is 1."""
    weight = numpy_helper.from_array(np.ones(SHAPE, np.float32), "w")
    ends = {"x": SHAPE, "w": SHAPE}
    return save(path, [helper.make_node("Add", ["x", "w"], ["y"])], [weight], inputs=ends)


def test_nothing_is_compared_where_the_target_alone_runs_the_model(
    cli: CommandLine, here: Path
) -> None:
    """Lowering inlines the function, and with it the opset that no runtime knows."""
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        agraph (float[2, 3] x) => (float[2, 3] y) { a = local.twice(x)  y = Relu(a) }
        <domain: "local", opset_import: ["": 99]> twice (p) => (q) { q = Add(p, p) }"""
    onnx.save(onnx.parser.parse_model(text), here / "m.onnx")
    words = ["m.onnx", "--onnxrt", "--fp16", "-o", "out"]
    cli("diagnose", *words).refused("BT2004", "nothing to compare with", "Opset 99")


def test_inputs_with_a_default_may_be_given(cli: CommandLine, here: Path) -> None:
    defaulted(here / "m.onnx")
    x = np.zeros(SHAPE, np.float32)
    np.savez("x.npz", x=x)
    np.savez("xw.npz", x=x, w=np.full(SHAPE, 5, np.float32))
    for name, value in (("x", 1), ("xw", 5)):
        cli(
            "run", "m.onnx", "--onnxrt", "--load-inputs", f"{name}.npz", "--save-outputs", "y.npz"
        ).ended(0)
        assert np.all(arrays("y.npz")["y"] == value), name
    np.savez("z.npz", x=x, z=x)
    cli("run", "m.onnx", "--onnxrt", "--load-inputs", "z.npz").refused("BT1007", "'z' unknown")


@pytest.mark.parametrize("kind", ["V1", "V3", "V4"])
def test_raw_bytes_have_no_type(cli: CommandLine, here: Path, kind: str) -> None:
    chain(here / "m.onnx", 2)
    np.savez("v.npz", x=np.zeros(SHAPE, kind))
    np.savez("f.npz", x=np.zeros(SHAPE, "f8"))
    cli("inspect", "data", "v.npz", "--show", "values").ended(0)
    cli("run", "m.onnx", "--onnxrt", "--load-inputs", "v.npz").refused("BT1007", "'x'")
    cli("run", "--load-outputs", "v.npz", "v.npz").refused("BT1007", "raw bytes")
    cli("run", "--load-outputs", "v.npz", "f.npz").refused("BT1007", "raw bytes")


def test_raw_bytes_get_the_type_that_they_are_compared_with(cli: CommandLine, here: Path) -> None:
    bfloat16 = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))
    values = np.arange(6).reshape(SHAPE).astype(bfloat16)
    np.savez("plain.npz", x=values)  # as raw bytes
    from bisect_trt.tensors.files import save_npz

    save_npz("typed.npz", {"x": values})
    assert here.exists()
    cli("run", "--load-outputs", "plain.npz", "typed.npz").ended(0)


def test_many_open_files_are_no_trouble(here: Path) -> None:
    """``select(2)`` takes no descriptor of 1024 and more."""
    chain(here / "m.onnx", 2)
    code = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
for _ in range(1100):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
os.execv(sys.executable, [sys.executable, "-m", "bisect_trt", *sys.argv[1:]])
"""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048:
        pytest.skip("not so many files may be open")
    for words in (
        ("run", "m.onnx", "--onnxrt"),
        ("run", "m.onnx", "--onnxrt", "--on", f"python={sys.executable}"),
    ):
        ran = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("most", rest_slow([8, 14, 10, 12, 16], 2))
def test_few_descriptors_end_with_a_sentence(here: Path, most: int) -> None:
    chain(here / "m.onnx", 2)
    line = f'ulimit -n {most}; exec "$@"'
    command = ["sh", "-c", line, "sh", *PROGRAM, "run", "m.onnx", "--onnxrt"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert ran.returncode in (0, 4), ran.stderr
    assert ran.returncode == 0 or "ulimit -n" in ran.stderr, ran.stderr


BAD = {
    "ends": "import sys\nsys.exit('bye')\nplugin = None",
    "ends_late": "import sys\nclass plugin:\n    def __init__(self): sys.exit(7)",
    "number": "plugin = 5",
    "function": "def plugin(): return 5",
    "kind": "class plugin: pass",
}


def test_plug_ins_that_fail_are_left_out(here: Path) -> None:
    groups = ("targets", "commands", "oracles")
    for name, code in BAD.items():
        (here / f"bad_{name}.py").write_text(code)
    metadata = here / "bad-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    entries = [
        f"[bisect_trt.{group}]\n"
        + "".join(f"bad-{name}-{group} = bad_{name}:plugin\n" for name in BAD)
        for group in groups
    ]
    (metadata / "entry_points.txt").write_text("\n".join(entries))
    chain(here / "m.onnx", 2)
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    for words in (("doctor",), ("run", "m.onnx", "--onnxrt"), ("reduce", "--help")):
        ran = subprocess.run(
            [*PROGRAM, *words], capture_output=True, text=True, check=False, env=environment
        )
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said, said
        assert "internal error" not in said, said
        assert ran.returncode in (0, 4), said
        if words[0] == "doctor":
            assert all(f"bad-{name}-{group}" in said for name in BAD for group in groups), said
        else:
            assert ran.returncode == 0, said


def test_a_message_with_braces_is_quoted() -> None:
    """The messages of runtimes hold shapes, ``{2,3}``."""
    message = "Got: {2,3} Expected: {} {name!r} {0}"
    seen = gather(["a", "b"], {"b"}, lambda _: Failed("run", message, "run: it"))
    assert {*seen.unseen} == {"a", "b"}
    assert all(message in why for why in seen.unseen.values())


def test_outputs_that_are_marked_have_types(cli: CommandLine, here: Path) -> None:
    integers = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=1),
    ]
    save(
        here / "m.onnx",
        [*integers, helper.make_node("ReduceSum", ["f"], ["y"])],
        outputs={"y": [1]},
    )
    for target in (("--onnxrt",), ("--onnxrt", "--fp16")):
        cli("run", "m.onnx", *target, "--onnx-outputs", "mark", "all", "--save-onnx", "all.onnx")
        outputs = {
            value.name: value.type.tensor_type.elem_type
            for value in onnx.load("all.onnx").graph.output
        }
        assert {*outputs} == {"s", "f", "y"}
        assert all(outputs.values()), outputs
    assert outputs["s"] == onnx.TensorProto.INT64


def test_build_only_builds_the_marked_outputs(cli: CommandLine, here: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    chain(here / "m.onnx", 3)
    line = ("run", "m.onnx", "--trt-rtx", "--build-only")
    cli(*line, "--onnx-outputs", "t1", "--save-onnx", "built.onnx").ended(0)
    assert [value.name for value in onnx.load("built.onnx").graph.output] == ["t1"]
    cli(*line, "--onnx-outputs", "nowhere").refused("BT1005", "nowhere")
    cli(*line, "--save-outputs", "y.npz").refused("BT1003", "--save-outputs")


@pytest.mark.parametrize(
    "words",
    [
        "--builder-set build_route=x",
        "--builder-set max_num_tactics=0",
        "--builder-set hardware_compatibility_level=AMPERE_PLUS",
        "--builder-optimization-level 7",
        "--pool-limit TACTIC_DRAM:123456789",
        "--builder-flag SAFETY_SCOPE --builder-flag GPU_FALLBACK",
        "--pin-tactic layer",
        "--pin-tactic layer=1",
        "--avoid-tactic layer=1:x",
        "--avoid-tactic =1:2",
    ],
)
def test_options_that_a_runtime_drops_are_refused(cli: CommandLine, here: Path, words: str) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    chain(here / "m.onnx", 2)
    ran = cli("run", "m.onnx", "--trt-rtx", "--build-only", *words.split())
    assert ran.status == 2, ran.out + ran.err
    assert words.split(maxsplit=1)[0] in ran.error or words.split()[2] in ran.error


def test_options_that_a_runtime_keeps_are_taken(cli: CommandLine, here: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    chain(here / "m.onnx", 2)
    kept = (
        "--builder-set max_aux_streams=2 --builder-optimization-level 1 --pool-limit WORKSPACE:64M"
    )
    cli("run", "m.onnx", "--trt-rtx", "--build-only", *kept.split()).ended(0)
