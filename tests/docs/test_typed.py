"""What is generated is the declarations', and a type checker finds what a user misspells."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from jsonschema.validators import validator_for
from pages import ROOT

from bisect_trt.report.answers import ANSWERS, answer_of
from bisect_trt.report.parts import WrongSide
from bisect_trt.report.result import Result, result_of
from bisect_trt.report.text import SCHEMA

SCRIPT = """
import bisect_trt

answer = bisect_trt.diagnose("model.onnx", fp16=True, atol=1e-3, input_shapes={"x": (1, 3)})
if answer.fault is not None:
    print(answer.fault.whose, answer.culprits[0].op, answer.keep_fp32, answer.proven)
bisect_trt.reduce("model.onnx", lambda path: True, output="small.onnx", max_probes=9, verbose=1)
bisect_trt.reduce("model.onnx", check="python check.py {model}", workers=2)
bisect_trt.precision("model.onnx", target="onnxrt", low="bf16", max_drop="1%")
bisect_trt.compare("model.onnx", fp61=True)
print(answer.falt)
print(answer.culprits[0].opp)
bisect_trt.cause("model.onnx", workers="many")
"""
WRONG = {10: "call-arg", 11: "attr-defined", 12: "attr-defined", 13: "arg-type"}


def test_a_type_checker_finds_misspelt_options_and_fields(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ["--strict", str(script)]  # with the cache of `make lint`
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    found = re.findall(r"script\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert {int(line): code for line, code in found} == WRONG, done.stdout + done.stderr


def generated(module: str) -> str:
    words = [sys.executable, f"docs/{module}.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    return str(done.stdout)


def test_the_schema_is_that_of_the_types() -> None:
    text = (ROOT / "docs" / "answer.schema.json").read_text(encoding="utf-8")
    assert text == generated("schema"), "run `make docs`"
    plain = json.loads(text)
    validator_for(plain).check_schema(plain)


@pytest.mark.parametrize("stub", ["keywords", "report/draft"])
def test_the_stubs_are_those_of_the_declarations(stub: str) -> None:
    def words(text: str) -> str:
        return re.sub(r"[\s,()]+", "", text)  # the formatter breaks lines

    text = (ROOT / "bisect_trt" / f"{stub}.pyi").read_text(encoding="utf-8")
    assert words(text) == words(generated(Path(stub).name)), "run `make docs`"


def test_a_run_can_fill_every_field_of_every_answer() -> None:
    fields = {each.encode_name for each in msgspec.structs.fields(Result)}
    for kind in ANSWERS.values():
        assert {each.encode_name for each in msgspec.structs.fields(kind)} - {
            "schema",
            "lines",
        } <= fields


def test_what_was_not_sought_is_absent_and_numbers_come_back() -> None:
    result = Result("diagnose", fault=WrongSide("target", "why", severity=math.inf))
    plain = json.loads(result.content())
    assert plain["fault"]["severity"] == "inf"
    assert "cause" not in plain
    assert result_of(plain) == result
    result.cause = []
    assert json.loads(result.content())["cause"] == []


def test_an_answer_of_another_package_keeps_its_fields() -> None:
    common = {"status": "found", "model": {}, "probes": {}, "wall_s": 1.0, "artifacts": {}}
    plain = {
        "schema": SCHEMA,
        "command": "prefix",
        "minimality": "1-minimal",
        **common,
        "length": 3,
    }
    answer = answer_of(plain)
    assert answer.other == {"length": 3}
    assert answer.to_json()["length"] == 3
    assert answer.proven
    assert "<pre style=" in answer._repr_html_()
