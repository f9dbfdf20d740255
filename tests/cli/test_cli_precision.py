"""``precision`` from the outside: what has to stay in fp32, and the model that it writes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import SHAPE, TARGET, bisect_trt, chain, overflowing, read_json, save, script

from bisect_trt.onnxlib.network import Network
from bisect_trt.options.shared import Data
from bisect_trt.options.spec import written

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
LINE = ("precision", "model.onnx", "-o", "mixed.onnx", "--json", "r.json")


def kept(result: dict[str, Any]) -> list[str]:
    return [node["name"] or node["outputs"][0] for node in result["keep_fp32"]]


def check_mixed(path: Path, keep: list[str], low: int = FLOAT16) -> onnx.ModelProto:
    """A written model is valid, and typed as it was said to be."""
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    types = Network(model).element_types
    for node in model.graph.node:
        # What a node makes, or else reads: Resize reads scales in fp32 whatever it resizes.
        made, read = ({types[name] for name in names if name} & {FLOAT, low} for names in (node.output, node.input))
        floats = made or read
        if node.op_type not in ("Cast", "Constant") and floats:
            assert floats == ({FLOAT} if (node.name or node.output[0]) in keep else {low}), node.name
    return model


def planted(folder: Path, length: int, *needed: int) -> list[str]:
    """A chain, and a check that fails if one of these of its nodes writes a low-precision tensor.

    Such a tensor is written, declared and read; one that is cast from what a kept node writes is not declared.
    """
    chain(folder / "model.onnx", length)
    count = """[ "$(grep -oaE 't{}_(fp|bf)16' "$1" | wc -l)" -lt 3 ] || exit 1"""
    script(folder / "check", "\n".join([*(count.format(place) for place in needed), "exit 0"]))
    return ["--check", "./check", "{model}"]


def test_only_boundaries_get_casts(cli: CommandLine) -> None:
    source = onnx.load(str(overflowing(Path("model.onnx"))))
    ran = cli(*LINE, *TARGET)
    assert ran.status == 0
    result = read_json(Path("r.json"))
    assert kept(result) == ["big", "small"]
    assert [node["name"] for node in result["culprits"]] == ["big", "small"]
    assert (result["lowered"], result["not_lowered"]) == (6, 0)
    assert result["artifacts"]["mixed"] == "mixed.onnx"
    mixed = check_mixed(Path("mixed.onnx"), ["big", "small"])
    assert sum(node.op_type == "Cast" for node in mixed.graph.node) == 4  # at both ends, and around the two nodes
    assert [(v.name, v.type) for v in (*mixed.graph.input, *mixed.graph.output)] == [
        (v.name, v.type) for v in (*source.graph.input, *source.graph.output)
    ]
    types = {tensor.name: tensor.data_type for tensor in mixed.graph.initializer}
    assert types == {"big": FLOAT, "small": FLOAT, "one_fp16": FLOAT16}
    x = np.ones(SHAPE, np.float32)
    (got,) = onnxruntime.InferenceSession("mixed.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (exact,) = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(got, exact, rtol=1e-2)


def test_weights_in_a_file_of_their_own_are_lowered_into_one(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [numpy_helper.from_array(np.full(SHAPE, value, np.float32), name) for name, value in
               (("big", 6e4), ("small", 1e-5), ("one", 1.0))]  # fmt: skip
    steps = ["one", "big", "small", "one"]
    names = ["x", "a", "b", "c", "d"]
    nodes = [
        helper.make_node(
            "Add" if weight == "one" else "Mul", [names[i], weight], [names[i + 1]], name=f"<{names[i + 1]}>"
        )
        for i, weight in enumerate(steps)
    ]
    model = onnx.load(str(save(Path("model.onnx"), nodes, weights)))
    onnx.save_model(model, "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    monkeypatch.setattr("bisect_trt.onnxlib.save.SINGLE_FILE_LIMIT_BYTES", 1)
    monkeypatch.setattr("bisect_trt.onnxlib.save.SHARED_TENSOR_BYTES", 0)  # these are scalars
    ran = cli(*LINE, *TARGET)
    assert ran.status == 0, ran.out
    assert kept(read_json(Path("r.json"))) == ["<b>", "<c>"]
    bare = onnx.load("mixed.onnx", load_external_data=False)
    assert {t.name: t.data_type for t in bare.graph.initializer} == {"big": FLOAT, "small": FLOAT, "one_fp16": FLOAT16}
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in bare.graph.initializer)
    assert Path("mixed.onnx.data").exists()
    check_mixed(Path("mixed.onnx"), ["<b>", "<c>"])


def test_free_dimensions_stay_free(cli: CommandLine) -> None:
    model = onnx.load(str(overflowing(Path("model.onnx"))))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, "model.onnx")
    assert cli(*LINE, *TARGET, "--input-shapes", "x:[4,3]").status == 0
    mixed = onnx.load("mixed.onnx")
    assert mixed.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_what_holds_no_values_stays_out(cli: CommandLine) -> None:
    """Shapes, integers and their arithmetic are no units."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], name="<shape>"),
        helper.make_node("Cast", ["shape"], ["sizes"], name="<sizes>", to=FLOAT),
        helper.make_node("Mul", ["sizes", "two"], ["double"], name="<double>"),
        helper.make_node("Cast", ["double"], ["wanted"], name="<wanted>", to=TensorProto.INT64),
        helper.make_node("Mul", ["x", "big"], ["y"], name="<y>"),
        helper.make_node("Mul", ["y", "small"], ["z"], name="<z>"),
        helper.make_node("Reshape", ["z", "flat"], ["r"], name="<r>"),
        helper.make_node("Tile", ["r", "once"], ["t"], name="<t>"),
    ]
    weights = {"two": np.array(2, np.float32), "big": np.array(1e5, np.float32), "small": np.array(1e-4, np.float32)}
    weights |= {"flat": np.array(SHAPE), "once": np.array([1, 1])}
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    path = save(Path("model.onnx"), nodes, tensors)
    model = onnx.load(str(path))
    model.graph.output.append(helper.make_tensor_value_info("wanted", TensorProto.INT64, [2]))
    onnx.save(model, str(path))
    assert cli(*LINE, *TARGET).status == 0
    result = read_json(Path("r.json"))
    assert kept(result) == ["<y>", "<z>"]
    assert (result["lowered"], result["not_lowered"]) == (2, 4)


def test_an_interrupted_search_goes_on(here: Path) -> None:
    check = planted(here, 30, 7, 21)
    body = (here / "check").read_text().removeprefix("#!/bin/sh\n")
    interrupt = 'echo . >> seen; [ "$(wc -l < seen)" -eq 6 ] && kill -INT $PPID && sleep 9'
    script(here / "check", f"{interrupt}\n{body}")
    ran = bisect_trt(*LINE, "--fp16", "--workers", "1", *check, cwd=here)
    assert ran.status == 130, ran.err
    assert "the best so far" in ran.out
    ran = bisect_trt("resume", read_json(here / "r.json")["artifacts"]["run"], cwd=here)
    assert ran.status == 0, ran.err
    result = read_json(here / "r.json")
    assert kept(result) == ["<7>", "<21>"]
    # Each candidate as often as its answer needs, but for the one that was interrupted; only the ends were run again.
    journal = here / result["artifacts"]["run"] / "journal.jsonl"
    decided = [json.loads(line) for line in journal.read_text().splitlines()]
    runs = {each["key"]: each["runs"] for each in decided if each["event"] == "verdict"}
    assert len((here / "seen").read_text().splitlines()) == sum(runs.values()) + 1
    assert (len(runs), sum(each > 1 for each in runs.values())) == (result["probes"]["run"], 2)


def test_a_diagnosis_leaves_the_fix_where_the_budget_ends(cli: CommandLine) -> None:
    """All that is asked before the minimal case is delivered, and one probe more."""
    overflowing(Path("model.onnx"))
    assert cli("diagnose", "model.onnx", *TARGET, "-o", "all", "--json", "r.json").status == 0
    log = cli("log", read_json(Path("r.json"))["artifacts"]["run"]).out
    delivered = next(line for line in log.splitlines() if "the reproducer, read back" in line).split()[0]
    ran = cli(
        "diagnose", "model.onnx", *TARGET, "-o", "out", "--json", "r.json", "--max-probes", str(int(delivered) + 1)
    )
    assert ran.status == 0, "what fails is proven all the same"
    assert "This goes on: bisect-trt precision model.onnx --onnxrt --fp16 -o mixed.onnx" in ran.out
    assert not Path("out/mixed.onnx").exists()
    assert Path("out/reproduce.py").exists()


def test_the_command_that_goes_on_asks_about_the_same(cli: CommandLine) -> None:
    overflowing(Path("model.onnx"))
    for number in range(2):
        np.savez(f"{number}.npz", x=np.full(SHAPE, number, np.float32))
    given = ["--load-inputs", "0.npz", "1.npz", "--atol", "b2_out:0.25", "--rtol", "b2_out:0.125"]
    line = ["diagnose", "model.onnx", *TARGET, "-o", "out", *given, "--workers", "1", "--overwrite", "--json", "r.json"]
    assert cli(*line).status == 0
    ran = cli(*line, "--max-probes", str(read_json(Path("r.json"))["probes"]["run"] - 2))
    (said,) = (line for line in ran.out.splitlines() if "This goes on: " in line)
    command = shlex.split(said.partition("This goes on: ")[2])
    assert set(given) <= set(command)
    ran = cli(*command[1:])
    assert ran.status == 0, ran.err
    assert "on 2 input samples" in ran.out
    random = [
        "--input-shapes",
        "x:[2,3]",
        "--val-range",
        "[0.5,2.0]",
        "x:[1.0,3.0]",
        "--seed",
        "7",
        "--iterations",
        "2",
    ]
    data = Data({"x": (2, 3)}, {"": (0.5, 2.0), "x": (1.0, 3.0)}, 7, iterations=2)
    assert written(data) == random
    assert cli("run", "model.onnx", "--onnxrt", *random).status == 0
