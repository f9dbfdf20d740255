"""Each kind of error has its code; ``test_cli_refusals.py`` tests the codes of wrong options and files."""

from __future__ import annotations

import errno
from pathlib import Path

import onnx
import pytest
from conftest import CommandLine
from support import chain, has, read_json, script
from test_cli_refusals import REFUSALS

from bisect_trt.commands.record import system_errors
from bisect_trt.errors import BisectError, PackageError, ResourceError, kinds
from bisect_trt.report.result import Result
from bisect_trt.targets import find

ENDINGS = {
    "BT1010": "resume",
    "BT2004": "run unknown.onnx --onnxrt",
    "BT2005": "run model.onnx --onnxrt --on python=nowhere",
    "BT3001": "reduce model.onnx -o r.onnx --check true",
    "BT3002": "reduce model.onnx -o r.onnx --max-probes 1 --workers 1 --check ./check {model}",
}
"""Command lines by the code that each ends with."""
BASES = {"BT1000", "BT2000", "BT3000"}
"""Codes of classes that only plug-ins raise."""


@pytest.mark.parametrize("code", ENDINGS)
def test_a_command_ends_with_the_code(cli: CommandLine, here: Path, code: str) -> None:
    model = here / "model.onnx"
    chain(model, 4)
    unknown = onnx.load(model)
    unknown.graph.node[1].domain = "nowhere"
    unknown.opset_import.append(onnx.helper.make_opsetid("nowhere", 1))
    onnx.save(unknown, "unknown.onnx")
    script(here / "check", f"{has('<2>')} && exit 1; exit 0")
    words = ENDINGS[code].split()
    if words == ["resume"]:
        cli(
            "reduce",
            "model.onnx",
            "-o",
            "r.onnx",
            "--max-probes",
            "1",
            "--workers",
            "1",
            "--check",
            "./check",
            "{model}",
        )
        model.write_bytes(model.read_bytes() + b"\n")
        assert cli("resume").code == code
        return
    cli(*words[:2], "--json", "r.json", *words[2:])
    error = read_json(here / "r.json")["error"]
    assert error["code"] == code
    assert error["cause"].endswith(".")
    assert error["remedy"].endswith(".")


def test_a_missing_package_a_full_disk_and_a_bug_have_their_codes() -> None:
    with pytest.raises(PackageError) as missing:
        find("nowhere")
    with pytest.raises(ResourceError) as full, system_errors():
        raise OSError(errno.ENOSPC, "No space left on device", "r.onnx")
    result = Result("reduce")
    result.end_early(RuntimeError("unexpected"))
    codes = {missing.value.code, full.value.code, result.extra["error"]["code"]}
    assert codes == {"BT2008", "BT2007", "BT9000"}


def test_every_code_of_the_package_is_tested() -> None:
    tested = {f"BT{row[:4]}" for row in REFUSALS.splitlines() if row[:4].isdigit()} | set(ENDINGS) | BASES
    tested |= {"BT1001", "BT2006", "BT2007", "BT2008", "BT3003", "BT3004", "BT9000"}
    own: list[type[BisectError]] = [kind for kind in kinds() if kind.__module__.startswith("bisect_trt.")]
    assert {kind.code for kind in own} - tested == set()
