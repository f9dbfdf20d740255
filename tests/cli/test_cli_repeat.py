"""``repeat`` and ``diff``: builds that choose by chance, on a target that says what it chose and can be held to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import save_text
from conftest import CommandLine
from resident import unsteady
from support import line, save, script


def network(path: Path, *names: str) -> Path:
    """A chain of products with these names, each with a Tanh behind it."""
    rng = np.random.default_rng(5)
    weights = {f"w_{name}": rng.normal(0, 0.3, (8, 8)).astype(np.float32) for name in names}
    nodes = line(
        step
        for name in names
        for step in (("MatMul", f"w_{name}", name), ("Tanh", "", f"tanh_{name}"))
    )
    return save(path, nodes, weights, inputs={"x": [4, 8]}, outputs={nodes[-1].output[0]: [4, 8]})


def proven(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["layer"], each["choice"]) for each in found["choices"] if each["proven"]}


def test_a_wrong_kernel_is_named_and_turned(cli: CommandLine, here: Path) -> None:
    model = network(here / "model.onnx", "a", "bad", "c", "d")
    words = ("--unsteady", "--fault", "tactic:0.5", "--until", "both", "--json", "r.json")
    found = unsteady("repeat", model, *words).ended(0).result
    assert proven(found) == {("bad", "tactic wrong_kernel")}
    choice = {
        "layer": "bad",
        "choice": "tactic wrong_kernel",
        "kind": "tactic",
        "value": "wrong_kernel",
    }
    assert found["reasons"] == [{"choices": [choice], "proven": True, "why": None}]
    first = found["choices"][0]
    assert (first["good"], first["bad"]) == (0, found["bad"])
    assert found["avoid"]["bad"] == 0
    again = unsteady(
        "repeat", model, *found["avoid"]["options"], "-n", "4", "--json", "again.json"
    ).ended(1)  # it is good
    assert again.result["bad"] == 0
    # Each build was kept and lies where its verdict says.
    assert found["runs"] == found["good"] + found["bad"] == len(found["builds"])
    for build in found["builds"]:
        side = {"PASS": "good", "FAIL": "bad"}[build["verdict"]]
        assert Path(build["files"]["choices"]).parent == Path(found["artifacts"][side])
        assert Path(build["files"]["model"]).name == f"{build['number']:04d}_model.engine"
    run = found["artifacts"]["run"]
    page = (Path(run) / "report.html").read_text(encoding="utf-8")
    assert "bad: tactic wrong_kernel" in page
    assert f"{found['bad']} of {found['runs']} fail" in page
    compared = cli("diff", run, "--json", "diff.json").ended(0).result
    assert {(each["layer"], each["choice"]) for each in compared["choices"]} == {
        (each["layer"], each["choice"]) for each in found["choices"]
    }
    assert cli("diff", f"{run}/good", f"{run}/bad").status == 0
    for record in Path(run).glob("candidates/*/choices.json"):
        record.write_text('{"bisect_trt_build": 1, "choices": [{"layer": 1}]}', encoding="utf-8")
    unsteady("resume", run).refused("BT2006", "choices.json is damaged")


def test_a_check_command_judges_the_engines_that_were_built(here: Path) -> None:
    model = network(here / "model.onnx", "a", "b", "c")
    check = here / "check.py"
    check.write_text(
        "import json, sys\n"
        "chosen = json.load(open(sys.argv[1]))['choices']\n"
        "sys.exit(any(each['layer'] == 'b' and each['value'] == 'split_k' for each in chosen))\n",
        encoding="utf-8",
    )
    words = ("--unsteady", "--fault", "tactic:0", "--until", "both", "--json", "r.json")
    ran = unsteady("repeat", model, *words, "--check", sys.executable, check, "{engine}").ended(0)
    assert proven(ran.result) == {("b", "tactic split_k")}


@pytest.mark.parametrize(
    ("words", "check", "status", "counts"),
    [
        ("--until bad", "[ -e second ] && exit 1; touch second", 0, (1, 1)),
        ("--until 3", "exit 0", 1, (3, 0)),
        ("-n 2", "exit 1", 0, (0, 2)),
        ("-n 2 --until both", "exit 1", 3, (0, 2)),
    ],
)
def test_a_check_that_is_repeated(
    cli: CommandLine, here: Path, words: str, check: str, status: int, counts: tuple[int, int]
) -> None:
    model = network(here / "model.onnx", "a")
    ran = cli(
        "repeat",
        model,
        *words.split(),
        "--json",
        "r.json",
        "--check",
        script(here / "check", check),
    ).ended(status)
    assert (ran.result["good"], ran.result["bad"]) == counts


def replays(folder: Path) -> tuple[Path, Path]:
    """Tactic replays that Polygraphy itself writes, of two good builds and of two bad ones, one of whose tactics is bad."""
    (folder / "tensorrt.py").write_text(
        "import enum\n__version__ = '8.6.0'\nclass DataType(enum.Enum):\n    FLOAT = 0\n    HALF = 1\n"
        "    def __str__(self):\n        return f'DataType.{self.name}'\n",
        encoding="utf-8",
    )
    source = (
        "import os, tensorrt as trt\n"
        "from polygraphy.backend.trt.algorithm_selector import Algorithm, TacticReplayData, TensorInfo\n"
        "for side, number, bad in (('good', 0, 1), ('good', 1, 2), ('bad', 0, -7), ('bad', 1, -7)):\n"
        "    os.makedirs(side, exist_ok=True)\n"
        "    full = TensorInfo(trt.DataType.FLOAT, (64, 8, 1), -1, 1)\n"
        "    half = TensorInfo(trt.DataType.HALF, (64, 8, 1), 1, 8)\n"
        "    data = TacticReplayData()\n"
        "    data.add('conv0 + tanh0', Algorithm(2147483657, bad, (full,), (half if bad < 0 else full,)))\n"
        "    data.add('conv1', Algorithm(2147483657, number, (full,), (full,)))\n"
        "    if bad < 0:\n"
        "        data.add('shape_call', Algorithm(0, 0, (), ()))\n"
        "    data.save(f'{side}/replay_{number}.json')\n"
    )
    command = [sys.executable, "-c", source]
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=True,
        capture_output=True,
    )
    return folder / "good", folder / "bad"


def test_replays_of_polygraphy_are_compared(cli: CommandLine, here: Path) -> None:
    good, bad = replays(here)
    ran = cli("diff", good, bad, "--json", "d.json").ended(0)
    found = ran.result
    only = {
        (each["layer"], each["choice"])
        for each in found["choices"]
        if each["bad"] and not each["good"]
    }
    assert only == {("conv0 + tanh0", "tactic 2147483657:-7"), ("shape_call", "tactic 0:0")}
    assert (found["good"], found["bad"]) == (2, 2)
    assert cli("diff", here).out == ran.out
    # A build that is half written is left out, and that is said.
    (bad / "0007_choices.json").write_text('{"bisect_trt_build": 1, "choi', encoding="utf-8")
    twice = cli("diff", good, bad, "--json", "t.json")
    assert (twice.out, twice.result["runs"]) == (ran.out, 4)
    assert "0007_choices.json is skipped" in twice.err
    same = cli("diff", good / "replay_0.json", good / "replay_0.json").ended(1)
    assert "No choice is in bad builds only." in same.out


def test_layers_that_trtexec_exports_are_compared(cli: CommandLine) -> None:
    layouts = ("Row major linear FP32", "Row major linear FP16 format")
    for side, tactic, layout in zip(("good", "bad"), ("0x1", "0x2"), layouts, strict=True):
        outputs = [{"Name": "t0", "Format/Datatype": layout}]
        layer = {
            "Name": "conv0 + tanh0",
            "LayerType": "Cask",
            "TacticValue": tactic,
            "Outputs": outputs,
        }
        Path(f"{side}.json").write_text(
            json.dumps({"Layers": [layer], "Bindings": []}), encoding="utf-8"
        )
    choices = cli("diff", "good.json", "bad.json", "--json", "d.json").result["choices"]
    only = {each["choice"] for each in choices if not each["good"]}
    assert only == {"tactic 0x2", "precision float16", "format Row major linear FP16 format"}
    Path("other.json").write_text(
        Path("bad.json").read_text().replace("conv0", "fc").replace("tanh0", "relu")
    )
    assert "no layer in common" in cli("diff", "good.json", "other.json").err


def test_a_model_that_draws_numbers_is_not_called_deterministic(cli: CommandLine) -> None:
    save_text(
        Path("m.onnx"), "(float[4] x) => (float[4] y)", "n = RandomNormalLike(x) y = Add(x, n)"
    )
    ran = cli("repeat", "m.onnx", "--onnxrt", "-n", "3", "--same-engine", "--seed", "1").ended(0)
    assert "draws random numbers, so two runs need not agree" in " ".join(ran.out.split())
    assert "deterministic" not in ran.out
