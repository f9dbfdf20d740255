"""A command and an oracle of other packages: installed, they are in the command line, Python and the reference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from installed import ROOT, bisect_trt, python, site
from support import node_names, overflowing


def command() -> list[Path]:
    return [site("custom_command")]


def oracle() -> list[Path]:
    return [site("custom_oracle")]


@pytest.mark.slow
def test_a_command_in_one_file(tmp_path: Path) -> None:
    overflowing(tmp_path / "model.onnx")
    result = (
        bisect_trt(
            tmp_path,
            *("prefix", "model.onnx", "--onnxrt", "--fp16", "--json", "r.json"),
            paths=command(),
        )
        .ended(0)
        .result
    )
    assert (result["command"], result["status"], result["minimality"]) == (
        "prefix",
        "found",
        "1-minimal",
    )
    assert node_names(tmp_path / "prefix.onnx")[-1] == result["culprits"][0]["name"]
    call = "bisect_trt.prefix('model.onnx', onnxrt=True, fp16=True).culprits[0].name"
    assert (
        python(tmp_path, "-c", f"import bisect_trt; print({call})", paths=command()).out.strip()
        == result["culprits"][0]["name"]
    )


@pytest.mark.slow
def test_an_oracle_in_one_file(tmp_path: Path) -> None:
    overflowing(tmp_path / "model.onnx")
    words = [
        "reduce",
        "model.onnx",
        "--onnxrt",
        "--workers",
        "1",
        "-o",
        "slow.onnx",
        "--max-latency",
    ]
    bisect_trt(tmp_path, *words, "1e6", paths=oracle()).ended(1)
    bisect_trt(tmp_path, *words, "0", paths=oracle()).ended(
        3
    )  # no model takes no time, so nothing passes and nothing is proven
    assert len(node_names(tmp_path / "slow.onnx")) == 1
    call = "bisect_trt.reduce('model.onnx', target='onnxrt', max_latency=1e6).status"
    assert (
        python(tmp_path, "-c", f"import bisect_trt; print({call})", paths=oracle()).out.strip()
        == "not_reproduced"
    )


@pytest.mark.parametrize("command", ["reduce", "cause"])
def test_an_oracle_beside_another_check_is_refused(tmp_path: Path, command: str) -> None:
    overflowing(tmp_path / "model.onnx")
    output = ["-o", "o.onnx"] if command == "reduce" else []
    words = [command, "model.onnx", *output, "--onnxrt", "--max-latency", "5", "--check", "true"]
    assert "--max-latency" in bisect_trt(tmp_path, *words, paths=oracle()).ended(2).err


def test_an_oracle_is_the_only_judge(tmp_path: Path) -> None:
    overflowing(tmp_path / "model.onnx")
    call = """
import bisect_trt
try:
    bisect_trt.reduce('model.onnx', lambda path: True, max_latency=5)
except bisect_trt.UsageError as error:
    print(error)
"""
    printed = python(tmp_path, "-c", call, paths=oracle()).out
    assert "--max-latency decides whether a candidate fails, so check has no effect" in printed
    words = ["reduce", "model.onnx", "-o", "o.onnx", "--onnxrt", "--max-latency", "5"]
    beside_limit = bisect_trt(tmp_path, *words, "--latency-limit", "1", paths=oracle()).ended(2)
    assert "--latency-limit and --max-latency" in beside_limit.err


def test_an_oracle_without_options_breaks_no_command(tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site("custom_oracle"), broken)
    code = broken / "latency_oracle.py"
    code.write_text(code.read_text().replace("@dataclass\n", ""))
    bisect_trt(tmp_path, "reduce", "--help", paths=[broken]).ended(0)
    assert "latency_oracle" in bisect_trt(tmp_path, "doctor", paths=[broken]).err


def test_both_are_in_the_reference(tmp_path: Path) -> None:
    printed = python(
        tmp_path, str(ROOT / "docs" / "reference.py"), paths=[*command(), *oracle()]
    ).out
    assert "\n## prefix\n" in printed
    assert "`--max-latency MS`" in printed


def test_a_package_that_fails_to_load_breaks_no_command(tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site("custom_oracle"), broken)
    (broken / "latency_oracle.py").write_text("import nothing_of_this_name\n")
    bisect_trt(tmp_path, "log", "--help", paths=[broken]).ended(0)
    assert "latency_oracle" in bisect_trt(tmp_path, "doctor", paths=[broken]).err
