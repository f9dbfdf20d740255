"""Plug-ins that do not keep their contracts: each is named in one sentence, and nothing else stops."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from installed import ROOT, bisect_trt, python
from support import overflowing

ORACLE = """
from dataclasses import dataclass
from typing import Annotated

from bisect_trt.options.spec import option
from bisect_trt.probe.check import Check
from bisect_trt.probe.outcome import Ending, Outcome
from bisect_trt.session.oracle import Oracle


@dataclass
class Odd(Oracle):
    \"\"\"An oracle that returns what its option says.\"\"\"

    says: Annotated[str | None, option(help="What is returned.")] = None

    def check(self, builtin):
        if self.says == "raise":
            raise KeyError("lost")
        return {} if self.says == "dict" else OddCheck(self.says)


@dataclass
class OddCheck(Check):
    says: str

    def run(self, files, cancel=None):
        if self.says == "run":
            raise KeyError("lost")
        verdict = {"word": "FAIL", "name": "passed"}.get(self.says)
        return {"list": [], "text": Outcome(Ending.FAILED, None, "it fails")}.get(
            self.says, Outcome(verdict, "odd", "it is odd")
        )
"""
TARGET = """
from dataclasses import dataclass
from typing import Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnSettings, Target


@dataclass(frozen=True)
class Settings(OwnSettings):
    made: Annotated[str, option(help="What is returned.")] = ""


class Odd(Target):
    name = "odd"
    own = Settings

    def make_runner(self, settings):
        return Runner(settings.of(Settings).made)


@dataclass
class Runner:
    made: str

    def load(self, path, feed, hints):
        return 5 if self.made == "load" else self

    def run(self, inputs):
        return {"raise": lambda: inputs["lost"], "true": lambda: True}[self.made]()
"""
REST = """
from dataclasses import dataclass
from typing import Annotated

from bisect_trt.options.spec import option
from bisect_trt.session.oracle import Oracle
from bisect_trt.targets.base import Target


@dataclass
class Redefining(Oracle):
    \"\"\"An oracle with an option of bisect-trt.\"\"\"

    atol: Annotated[float | None, option(help="Another one.")] = None


class Bare(Target):
    name = "bare"


class Wrong:
    name = "wrong"
"""
COMMAND = """
from dataclasses import dataclass

from bisect_trt.commands.table import Command
from bisect_trt.options.shared import Model


@dataclass
class Seven:
    \"\"\"Return 7.\"\"\"

    model: Model


def run(call):
    return 7


COMMAND = Command((Seven,), "odd_command:run")
"""
ENTRY_POINTS = """
[bisect_trt.oracles]
odd = odd_oracle:Odd
latency = latency_oracle:Latency
redefining = odd_rest:Redefining
[bisect_trt.targets]
odd = odd_target:Odd
bare = odd_rest:Bare
wrong = odd_rest:Wrong
openvino = odd_taken:Odd
[bisect_trt.commands]
seven = odd_command:COMMAND
reduce = odd_taken:COMMAND
"""
LEFT_OUT = (
    "warning: the plug-in 'redefining' cannot be used: odd_rest:Redefining redefines --atol.",
    "the plug-in 'bare' cannot be used: odd_rest:Bare has neither make_runner nor sent.",
    "the plug-in 'wrong' cannot be used: odd_rest:Wrong is no target of that name.",
    "warning: the plug-in 'openvino' cannot be used: odd_taken:Odd has the name of one of bisect-trt.",
    "warning: the plug-in 'reduce' cannot be used: odd_taken:COMMAND has the name of one of bisect-trt.",
)
CLASHING = """
from dataclasses import dataclass
from typing import Annotated

from bisect_trt.commands.table import Command
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.shared import CheckOptions, Model
from bisect_trt.options.spec import option, switch
from bisect_trt.session.oracle import Oracle


@dataclass
class One(Oracle):
    most: Annotated[float | None, option("--max-size", help="A limit.")] = None


@dataclass
class Other(Oracle):
    max_size: Annotated[str | None, option(help="A limit too.")] = None


@dataclass
class Third(Oracle):
    third: Annotated[str | None, option(help="Of no other.")] = None


@dataclass
class Odd:
    model: Model
    rtol: Annotated[bool, switch("Another one.")] = False


@dataclass
class Even:
    model: Model


ODD = Command((Odd, CheckOptions, CompareOptions), "clashing:run")
EVEN = Command((Even, CheckOptions), "clashing:run")
"""
CLASHING_TARGETS = """
from dataclasses import dataclass
from typing import Annotated

from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnSettings, Target


@dataclass(frozen=True)
class Curved(OwnSettings):
    curve: Annotated[float, option(help="Of two targets.")] = 0.0


@dataclass(frozen=True)
class Bent(OwnSettings):
    curve: Annotated[float, option(help="Of two targets.")] = 0.0


@dataclass(frozen=True)
class Tolerant(OwnSettings):
    atol: Annotated[float, option(help="Another one.")] = 0.0


class First(Target):
    name = "first"
    own = Curved
    sent = ("clashing_targets",)


class Second(First):
    name = "second"
    own = Bent


class Tol(First):
    name = "tol"
    own = Tolerant


class Output(First):
    name = "output"
    own = OwnSettings
"""
CLASHING_POINTS = """
[bisect_trt.oracles]
one = clashing:One
other = clashing:Other
third = clashing:Third
[bisect_trt.targets]
first = clashing_targets:First
second = clashing_targets:Second
tol = clashing_targets:Tol
output = clashing_targets:Output
numpy = clashing:First
[bisect_trt.commands]
odd = clashing:ODD
even = clashing:EVEN
"""
CLASHES = (
    "'one' cannot be used: clashing:One redefines --max-size, as the plug-in 'other' does.",
    "'other' cannot be used: clashing:Other redefines --max-size, as the plug-in 'one' does.",
    "'second' cannot be used: clashing_targets:Second redefines the option curve.",
    "'tol' cannot be used: clashing_targets:Tol redefines the option atol.",
    "'output' cannot be used: clashing_targets:Output redefines the option output.",
    "'numpy' cannot be used: clashing:First and elsewhere:Numpy have the same name.",
    "'odd' cannot be used: clashing:ODD redefines --rtol.",
)
CALLED = """
import bisect_trt
for odd in WORDS:
    try:
        print(f"{odd}: {bisect_trt.CALL.status}")
    except bisect_trt.BisectError as error:
        print(f"{odd}: {error.code}: {error}")
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where the broken package is installed."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copy(ROOT / "examples" / "custom_oracle" / "latency_oracle.py", folder)
    for name, text in (
        ("oracle", ORACLE),
        ("target", TARGET),
        ("rest", REST),
        ("command", COMMAND),
    ):
        (folder / f"odd_{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def clashing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages with options and names of others."""
    folder = tmp_path_factory.mktemp("site")
    rival = "[bisect_trt.targets]\nnumpy = elsewhere:Numpy\n"
    for name, points in (("clashing", CLASHING_POINTS), ("rival", rival)):
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    (folder / "clashing.py").write_text(CLASHING)
    (folder / "clashing_targets.py").write_text(CLASHING_TARGETS)
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    overflowing(tmp_path / "model.onnx")
    return tmp_path


def called(here: Path, broken: Path, call: str, words: str) -> dict[str, str]:
    """The ends of a Python call with each of some words."""
    code = CALLED.replace("CALL", call).replace("WORDS", repr(words.split()))
    lines = python(here, "-W", "error", "-c", code, paths=[broken]).out.splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_an_oracle_is_named_with_what_it_returns(here: Path, broken: Path) -> None:
    call = "reduce('model.onnx', target='onnxrt', says=odd)"
    said = called(here, broken, call, "dict raise run list word text name")
    named = "BT2009: the plug-in odd_oracle: "
    assert said == {
        "dict": f"{named}Odd.check returned {{}}, which is no Check.",
        "raise": f"{named}Odd.check raised KeyError('lost').",
        "run": f"{named}OddCheck.run raised KeyError('lost').",
        "list": f"{named}OddCheck.run returned [], which is no Outcome.",
        "word": said["word"],
        "text": said["text"],
        # The value of a member is as good as the member.
        "name": "not_reproduced",
    }
    assert said["word"].startswith(f"{named}OddCheck.run returned Outcome(ending='FAIL'")
    assert "which is no Outcome: Invalid enum value 'FAIL' - at `$.ending`" in said["word"]
    assert "got `null` - at `$.signature`" in said["text"]


def test_a_target_is_named_with_what_it_returns(here: Path, broken: Path) -> None:
    said = called(here, broken, "compare('model.onnx', target='odd', made=odd)", "load true raise")
    named = "the plug-in odd_target: "
    assert said["true"] == f"BT2009: {named}Runner.run returned True, which is no dict."
    # What a runtime raises may be its failure on this model.
    refused = "BT2004: the target cannot run model.onnx: "
    assert said["raise"].startswith(f"{refused}{named}Odd raised KeyError('lost')")
    assert said["load"].startswith(f"{refused}{named}Odd raised AttributeError(")


def test_a_command_is_named_with_what_it_returns(here: Path, broken: Path) -> None:
    ran = bisect_trt(here, "seven", "model.onnx", paths=[broken]).ended(4)
    said = "the plug-in odd_command: run returned 7, which is no Result."
    assert ran.err.splitlines()[-1] == f"error[BT2009]: {said}"


def test_what_is_left_out_is_said(here: Path, broken: Path) -> None:
    doctor = bisect_trt(here, "doctor", paths=[broken]).ended(0)
    assert all(line in doctor.out + doctor.err for line in LEFT_OUT), doctor.err
    unknown = bisect_trt(here, "run", "model.onnx", "--wrong", paths=[broken]).ended(2)
    assert all(line in unknown.err for line in LEFT_OUT[1:3])
    ran = bisect_trt(here, "run", "model.onnx", "--onnxrt", "--atol", "1", paths=[broken]).ended(0)
    assert LEFT_OUT[0] in ran.err


def test_an_option_that_an_oracle_does_not_use_is_refused(here: Path, broken: Path) -> None:
    values = "{'fail_regex': ['x'], 'fail_code': [3], 'atol': 1.0, 'candidate': 'c.onnx'}"
    call = f"cause('model.onnx', target='onnxrt', max_latency=5, **{{odd: {values}[odd]}})"
    said = called(here, broken, call, "fail_regex fail_code atol candidate")
    for word, line in said.items():
        flag = f"--{word.replace('_', '-')}"
        assert line.startswith("BT1003: --max-latency decides whether a candidate fails, so ")
        assert line.endswith(f"so {flag} has no effect; drop one.")


def test_a_probe_of_an_oracle_is_run_again_by_hand(here: Path, broken: Path) -> None:
    paths = [broken]
    words = ["model.onnx", "--onnxrt", "--max-latency", "0"]
    bisect_trt(here, "repeat", *words, "-n", "1", "--until", "bad", paths=paths).ended(0)
    shown = bisect_trt(here, "log", "1", paths=paths).ended(0).out
    (line,) = (line for line in shown.splitlines() if line.startswith("again by hand: bisect-trt "))
    assert line.endswith("inputs.npz --max-latency 0.0")
    again = bisect_trt(here, *shlex.split(line)[4:], paths=paths).ended(0)
    assert "Fails " in again.out
    releases = bisect_trt(here, "releases", *words, paths=paths)
    releases.refused("BT1004", "this one runs here", "a target such as --onnxrt alone")


def test_an_option_or_a_name_of_another_is_refused(here: Path, clashing: Path) -> None:
    words = ["reduce", "model.onnx", "--onnxrt", "-o", "o.onnx", "--max-size", "5"]
    refused = bisect_trt(here, *words, paths=[clashing]).ended(2)
    assert "No such option: --max-size" in refused.err
    missing = [
        clash for clash in CLASHES if f"error[BT2008]: the plug-in {clash}" not in refused.err
    ]
    assert not missing, refused.err
    named = bisect_trt(here, "run", "model.onnx", "--numpy", paths=[clashing]).ended(2)
    assert f"error[BT2008]: the plug-in {CLASHES[5]}" in named.err
    # One that defines what no other has is added, to commands of other packages too.
    shown = bisect_trt(here, "even", "--help-all", paths=[clashing]).ended(0).out
    assert "--third" in shown
    assert "--max-size" not in shown
