"""The steps of the action, and the fixture of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from support import chain, overflowing

ROOT = Path(__file__).parents[2]


class Action:
    """The action, its steps run as the runner runs them."""

    def __init__(self, folder: Path, **given: str) -> None:
        plain: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
        self.folder, self.plain = folder, plain
        self.inputs = {name: str(each.get("default", "")) for name, each in plain["inputs"].items()} | given
        self.outputs: dict[str, dict[str, str]] = {}
        self.said = ""

    def fill(self, text: str) -> str:
        for name, value in self.inputs.items():
            text = text.replace(f"${{{{ inputs.{name} }}}}", value)
        for step, said in self.outputs.items():
            for name, value in said.items():
                text = text.replace(f"${{{{ steps.{step}.outputs.{name} }}}}", value)
        return text

    def wanted(self, step: dict[str, Any]) -> bool:
        status = self.outputs.get("compare", {}).get("status")
        known = {
            "inputs.install != ''": self.inputs["install"] != "",
            "steps.compare.outputs.status == '1'": status == "1",
        }
        return known[step["if"]] if "if" in step else True

    def run(self) -> int:
        """All steps that are commands; the status of the last."""
        status = 0
        for step in self.plain["runs"]["steps"]:
            if "run" not in step or not self.wanted(step):
                continue
            assert "${{" not in step["run"], "an input that is pasted into a script is run"
            (self.folder / "output").write_text("")
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            known = {name: self.fill(value) for name, value in step.get("env", {}).items()}
            (self.folder / "step.sh").write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"],
                cwd=self.folder,
                env={**os.environ, "PATH": path, "GITHUB_OUTPUT": str(self.folder / "output"), **known},
                capture_output=True,
                text=True,
                check=False,
            )
            self.said += done.stdout + done.stderr
            lines = (self.folder / "output").read_text().splitlines()
            self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in lines)
            status = done.returncode
            if status:
                break
        return status


def test_the_action_leaves_a_reproducer_and_ends_as_the_comparison(here: Path) -> None:
    overflowing(here / "my model.onnx")
    action = Action(here, model="my model.onnx", options="--onnxrt --fp16 --seed 3", install="")
    assert action.run() == 1, action.said
    assert action.outputs["compare"] == {"status": "1"}
    assert action.outputs["diagnose"] == {"reproducer": "bisect-trt-results/reproducer.zip"}
    left = {path.name for path in (here / action.inputs["folder"]).iterdir()}
    files = {f"{command}.{kind}" for command in ("run", "diagnose") for kind in ("json", "html")}
    assert left >= files | {"reproducer.zip", "reproducer"}


def test_the_action_passes_where_everything_matches(here: Path) -> None:
    chain(here / "model.onnx")
    action = Action(here, model="model.onnx", install="")
    assert action.run() == 0, action.said
    assert "diagnose" not in action.outputs


def test_the_action_does_not_run_what_its_inputs_say(here: Path) -> None:
    chain(here / "model.onnx")
    action = Action(here, model="model.onnx", options="--onnxrt $(touch run-1) `touch run-2` ; touch run-3", install="")
    assert action.run() == 2
    assert not list(here.glob("run-*"))


def test_pytest_has_the_fixture(here: Path) -> None:
    overflowing(here / "model.onnx")
    lines = ["def test_right(assert_matches):", "    assert_matches('model.onnx')"]
    lines += ["def test_wrong(assert_matches):", "    assert_matches('model.onnx', fp16=True)"]
    (here / "test_model.py").write_text("\n".join(lines))
    words = ["-p", "bisect_trt.pytest_plugin", "-q", "test_model.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=here, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
