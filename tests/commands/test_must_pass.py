"""An answer is proven only if the check and the runtime pass something: the model without the answer, or Identity nodes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from support import OVERFLOWS, chain, has, model_of, overflowing_line, rest_slow, script

import bisect_trt

pytestmark = pytest.mark.any_version
UNABLE = {
    "import": f"{sys.executable} -S -c 'import no_such_module'",
    "segfault": "kill -SEGV $$",
    "status": "exit 3",
    "statuses": "exit $(( $(date +%N | tr -d 0) % 99 + 1 ))",
}


@pytest.mark.parametrize("command", ["reduce", "samples"])
@pytest.mark.parametrize("how", UNABLE)
def test_a_check_that_fails_whatever_it_gets_proves_nothing(
    cli: CommandLine, here: Path, command: str, how: str
) -> None:
    model = chain(here / "m.onnx", 5)
    check = script(Path("check"), UNABLE[how])
    output = {"reduce": "r.onnx", "samples": "s.npz"}[command]
    ran = cli(
        command, model, "-o", output, "--json", "r.json", "--check", f"./{check}", "{model}"
    ).ended(3)
    assert ran.result["minimality"] == "unproven"
    assert "Identity" in ran.result["why"]


@pytest.mark.parametrize("code", [126, 127])
@pytest.mark.parametrize("conditions", [(), ("--fail-code", "3"), ("--fail-regex", "wrong")])
@pytest.mark.parametrize("tag", ["<0>", "<2>"])
def test_a_program_that_cannot_be_run_ends_the_search(
    cli: CommandLine, here: Path, code: int, conditions: tuple[str, ...], tag: str
) -> None:
    """On the first probe, or on a later one; as in ``git bisect run``."""
    model = chain(here / "m.onnx", 5)
    check = script(Path("check"), f"{has(tag)} || exit {code}; echo wrong; exit 3")
    words = ["reduce", model, "-o", "r.onnx", *conditions, "--check", f"./{check}", "{model}"]
    assert f"status {code}" in cli(*words).ended(2).err


def test_a_program_that_cannot_be_run_may_be_the_failure(cli: CommandLine, here: Path) -> None:
    model = chain(here / "m.onnx", 5)
    check = script(Path("check"), f"{has('<2>')} && exit 127; exit 0")
    words = [
        "reduce",
        model,
        "-o",
        "r.onnx",
        "--fail-code",
        "127",
        "--check",
        f"./{check}",
        "{model}",
    ]
    assert "1-minimal" in cli(*words).ended(0).out


@pytest.mark.parametrize("length", [1, 3])
def test_identity_nodes_pass_where_every_part_of_the_model_fails(here: Path, length: int) -> None:
    def judge(path: Path) -> bool:
        return any(node.op_type == "Add" for node in onnx.load(str(path)).graph.node)

    result = bisect_trt.reduce(chain(here / "m.onnx", length), judge, output=here / "r.onnx")
    assert (result.minimality, len(result.culprits)) == ("1-minimal", 1)


@pytest.mark.parametrize(("seeds", "most"), rest_slow([(15, 1), (60, 4)]))
def test_a_check_that_fails_now_and_then_whatever_it_gets_is_not_believed(
    here: Path, seeds: int, most: int
) -> None:
    """At the rate that deceives most, one in forty is: r^3 (1 - r)^3, of the answer, read back, and of what must pass."""
    model = chain(here / "m.onnx", 12)
    proven = 0
    for seed in range(seeds):
        luck = random.Random(seed)
        try:
            run = here / f"run{seed}"
            result = bisect_trt.reduce(
                model,
                lambda _, luck=luck: luck.random() < 0.5,
                output=here / f"{seed}.onnx",
                run=run,
            )
        except bisect_trt.BisectError:
            continue
        proven += result.minimality == "1-minimal"
    assert proven <= most


@pytest.mark.parametrize("command", ["diagnose", "reduce", "workaround"])
def test_a_runtime_that_refuses_every_such_model_blames_no_node(
    cli: CommandLine, here: Path, command: str
) -> None:
    model = model_of(overflowing_line(), OVERFLOWS)
    model.ir_version = 99
    onnx.save(model, here / "m.onnx")
    output = {"diagnose": "d", "reduce": "r.onnx", "workaround": "p.onnx"}[command]
    ran = cli(command, "m.onnx", "--onnxrt", "-o", output, "--json", "r.json").ended(3)
    assert ran.result["minimality"] == "unproven"
    if command == "diagnose":
        assert ran.result["fault"]["whose"] == "unknown"
        assert "Identity nodes alone too: IR version " in ran.result["fault"]["sentence"]
    for file in Path("d").glob("*.md"):
        assert "The answer is unproven." in file.read_text()
