"""Bad options, files and models: a code and one sentence that names the thing, before anything is probed."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import save_text
from conftest import CommandLine
from onnx import helper
from support import (
    COMMANDS,
    SHAPE,
    TARGET,
    arrays,
    bisect_trt,
    chain,
    command_lines,
    has,
    line,
    node_names,
    overflowing,
    read_json,
    save,
    script,
)

from bisect_trt.errors import BisectError, PackageError, ResourceError, kinds
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.report.result import Result
from bisect_trt.session.ending import system_errors
from bisect_trt.targets.base import find
from bisect_trt.tensors.files import save_samples


def write_files(folder: Path) -> None:
    """What the command lines below name."""
    overflowing(folder / "m.onnx")
    chain(folder / "chain.onnx", 8)
    chain(folder / "there.onnx", 1)
    onnx.save(lower_fp16(onnx.load(folder / "m.onnx")), folder / "half.onnx")
    quantize = "quantize = QuantizeLinear(x, scale) y = DequantizeLinear(quantize, scale)"
    save_text(
        folder / "quantized.onnx", "(float[2, 3] x) => (float[2, 3] y)", quantize, {"scale": 0.5}
    )
    for name, kind in (("integers", "int64[2, 3]"), ("free", "float[n, m]")):
        save_text(folder / f"{name}.onnx", f"({kind} x) => ({kind} y)", "y = Add(x, x)")
    x = np.ones(SHAPE, np.float32)
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "y.npz", y=x)
    np.savez(folder / "xy.npz", x=x, y=x)
    np.savez(folder / "wide.npz", x=np.ones((2, 4), np.float32))
    np.savez(folder / "double.npz", x=x.astype(np.float64))
    np.savez(folder / "none.npz")
    np.savez(folder / "a.npz", y=np.ones(2))
    save_samples(folder / "two.json", [{"y": np.ones(2)}, {"y": np.ones(2)}])
    save_samples(folder / "shapes.json", [{"x": x}, {"x": np.zeros((5, 3), np.float32)}])
    save_samples(folder / "types.json", [{"x": x.astype(np.int32)}])
    torch = json.dumps([{"y": {"tensor": "", "polygraphy_class": "Tensor"}}])
    texts = {
        "bad.json": "{",
        "odd.json": '{"y": [1, 2]}',
        "torch.json": torch,
        "text.npz": "no archive",
        "notes": "to do",
    }
    texts |= {
        "taken.zip": "mine",
        "later.json": '{"schema": 99}',
        "part.json": '{"schema": 1, "status": "found"}',
    }
    texts |= {
        "raises.py": "def load_data(): return 1 / 0",
        "lacks.py": "import no_such_package",
        "void.py": "",
        "whole.py": "def metric(outputs): return 1.0",
    }
    texts |= {
        "no_sample.py": "def load_data():\n    return []",
        "other.py": "def load_data():\n    yield {'y': 1.0}",
    }
    texts |= {
        f"{number}.py": f"def metric(outputs): return float('{number}')"
        for number in ("nan", "inf")
    }
    texts["labels.py"] = (
        "import numpy as np\ndef load_data():\n    yield {'x': np.ones((2, 3), 'f4')}, np.full(2, -100)\n"
    )
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name in ("folder", "empty", "there"):
        (folder / name).mkdir()
    (folder / "there" / "mine.txt").write_text("precious")


REFUSALS = """
1001 --no-such-option | diagnose m.onnx T --no-such-option
1008 float.onnx does not exist | diagnose m.onnx T --reference float.onnx
1001 no-such-command | no-such-command
1001 MODEL | reduce
1001 -o | reduce m.onnx T
1001 another.onnx | run m.onnx another.onnx T
1004 --onnxrt | run m.onnx --providers cpu
1004 --onnxrt | diagnose m.onnx
1004 --check | reduce m.onnx -o o.onnx
1004 check | repeat m.onnx
1004 --fp16 | reduce m.onnx -o o.onnx --fp16 --check false {model}
2003 NoSuchProvider | run m.onnx T --providers NoSuchProvider

# values
1002 --atol | run m.onnx T --atol x
1002 --atol | run m.onnx T --atol -1
1005 nobody | run m.onnx T --atol nobody:1
1001 --seed | run m.onnx T --seed x
1002 seed | run m.onnx T --seed -1
1005 'y' | run m.onnx T --val-range y:[0,1]
1004 --input-shapes | run m.onnx T --input-shapes x
1002 'x' | run m.onnx T --input-shapes x:[2]
1005 'y' | run m.onnx T --input-shapes y:[2]
1002 --timeout | run m.onnx T --timeout 0
1002 --timeout | reduce m.onnx -o o.onnx T --timeout nan
1001 --workers | reduce m.onnx -o o.onnx T --workers 0
1002 --confidence | reduce m.onnx -o o.onnx T --confidence 1
1001 --mode | reduce m.onnx -o o.onnx T --mode quick
1003 --no-reduce-inputs | reduce m.onnx -o o.onnx T --no-reduce-inputs --no-reduce-outputs
1003 --no-reduce-inputs | reduce m.onnx -o o.onnx T --all --no-reduce-inputs
1003 --repeat | sweep free.onnx T --repeat 5 --shapes x:[1..4,8]
1003 --repeat | samples m.onnx T --repeat 5 --iterations 2
1002 --fail-regex | reduce m.onnx -o o.onnx --fail-regex ( --check false
1004 --fail-regex | reduce m.onnx -o o.onnx T --fail-regex x
1011 --check | reduce m.onnx -o o.onnx --check
1011 --check | reduce m.onnx -o o.onnx --check "'an open quote"
1011 no-such | reduce m.onnx -o o.onnx --check no-such {model}
1011 ./m.onnx | reduce m.onnx -o o.onnx --check ./m.onnx {model}
1006 nowhere | reduce m.onnx -o o.onnx --candidate nowhere/m.onnx --check false
1012 m.onnx | reduce m.onnx -o o.onnx --candidate m.onnx --check false
1004 releases | releases m.onnx
1002 --from | releases m.onnx --onnxrt --from new
1003 --from --to | releases m.onnx --onnxrt --from 1.2 --to 1.1
1004 --package | releases m.onnx --package brittle
1004 {python} | releases m.onnx --onnxrt --check true {model}
1003 --until | repeat m.onnx -n 3 --until 4
1002 --until | repeat m.onnx --until soon
1003 -n | repeat m.onnx --repeat 3
1003 `diagnose` | diagnose m.onnx T --compare-func-script c.py

# names of tensors, nodes and samples
1005 't22' | extract chain.onnx -o o.onnx --inputs t22
1005 '<2>' 't2' | extract chain.onnx -o o.onnx --outputs <2>
1005 'nobody' inspect | extract chain.onnx -o o.onnx --inputs nobody
1005 t0:auto:float32 | extract chain.onnx -o o.onnx --inputs t0:auto:float32
1005 --inputs big_out | extract m.onnx -o o.onnx --inputs big_out --outputs a0_out
1005 x | extract m.onnx -o o.onnx --outputs x
1005 't22' 't2' | run chain.onnx --onnxrt --onnx-outputs t22
1005 'op:add' 'op:Add' | run chain.onnx --onnxrt --onnx-outputs op:add
1005 'nope*' | run chain.onnx --onnxrt --onnx-outputs nope*
1005 t0 | run chain.onnx --onnxrt --onnx-exclude-outputs t0
1004 --onnx-exclude | run chain.onnx --onnxrt --onnx-exclude-outputs *
1004 sweep | sweep free.onnx --onnxrt
1002 x:[9..1,8] | sweep free.onnx --onnxrt --shapes x:[9..1,8]
1005 'z' | sweep free.onnx --onnxrt --shapes z:[1..4,8]
1002 'x' | sweep free.onnx --onnxrt --shapes x:[1..4]
1003 twice | sweep free.onnx --onnxrt --shapes x:[1..4,8] --input-shapes x:[1,8]
1002 'n' | sweep free.onnx --onnxrt --shapes x:[n=1..4,n=7..8]

# what a command cannot work on
1009 quantized.onnx 'quantize' | precision quantized.onnx -o o.onnx T
1009 half.onnx | precision half.onnx -o o.onnx T
1009 integers.onnx | precision integers.onnx -o o.onnx T
1005 nothing* | precision m.onnx -o o.onnx T --include nothing*
1005 'op:Conv' | precision m.onnx -o o.onnx T --exclude op:Conv
1009 none | precision m.onnx -o o.onnx T --exclude *
1004 --fp16 --bf16 | precision m.onnx -o o.onnx --onnxrt
1003 one | precision m.onnx -o o.onnx --onnxrt --fp16 --bf16
1003 --ladder | precision m.onnx -o o.onnx --onnxrt --fp16 --int8
1003 --validation-data | precision m.onnx -o o.onnx --fp16 --validation-data x.npz --check false {model}
1007 'x' 'y' | precision m.onnx -o o.onnx T --validation-data y.npz
1008 no.py | precision m.onnx -o o.onnx T --validation-data no.py
1004 --fp16 --bf16 | convert m.onnx -o o.onnx
1004 --fp16 --bf16 | convert m.onnx -o o.onnx --fp16 --bf16
1003 ONNX | convert m.onnx -o o.onnx --fp16 --trt
1003 engines | convert m.onnx -o o.engine --onnxrt
1004 --int8 | convert m.onnx -o o.engine --calibration-cache c
2001 a.npz | inspect model a.npz
1007 m.onnx | inspect data m.onnx
2002 engine | inspect engine nope.engine
1003 --show | inspect model m.onnx --show values
1003 --show | inspect data a.npz --show layers
1004 model, engine | inspect modle m.onnx
1004 file | inspect
1004 model | inspect model
1004 notes | inspect notes
1004 nope | inspect nope

# metrics
1004 --max-drop | reduce m.onnx -o o.onnx T --max-drop 1%
1004 --metric | reduce m.onnx -o o.onnx T --metric top-1
1003 --min | reduce m.onnx -o o.onnx T --metric top-1 --min 0.5 --max-drop 1%
1003 --min | reduce m.onnx -o o.onnx T --metric top-1 --max 0.5
1003 --max | reduce m.onnx -o o.onnx T --metric whole.py --lower-is-better --min 0.5
1009 2 | reduce m.onnx -o o.onnx T --metric top-1 --min 2
1003 one | reduce m.onnx -o o.onnx T --metric top-1 --max-drop 1% --atol 1
1005 metric | reduce m.onnx -o o.onnx T --metric nobody --min 1
1003 --save-outputs | run m.onnx T --metric top-1 --data-loader-script labels.py --save-outputs o.npz
1009 NaN | run m.onnx T --metric nan.py
1009 inf | run m.onnx T --metric inf.py --max-drop 1%
1009 label | run m.onnx T --metric top-1 --data-loader-script labels.py

# values from files
1007 'x' 'y' | run m.onnx T --load-inputs y.npz
1007 xy.npz 'y' | layerwise m.onnx T --load-inputs xy.npz
1007 wide.npz 'x' [2,_4] [2,_3] | reduce m.onnx -o o.onnx T --load-inputs wide.npz
1007 double.npz float64 float32 | extract m.onnx -o o.onnx --load-inputs double.npz
1007 none.npz 'x' | diagnose m.onnx T --load-inputs none.npz
1007 missing.npz | run m.onnx T --load-inputs missing.npz
1007 text.npz | run m.onnx T --load-inputs text.npz
1007 bad.json | run m.onnx T --load-inputs bad.json
1007 shapes.json 'x' [5,_3] | run m.onnx T --load-inputs shapes.json
1007 int32 float32 | run m.onnx T --load-inputs types.json
1003 --iterations | run m.onnx T --load-inputs x.npz --iterations 2
1008 lacks.py 1 pip install no_such_package | run m.onnx T --data-loader-script lacks.py
1008 raises.py 1 ZeroDivision | run m.onnx T --data-loader-script raises.py
1008 void.py load_data | run m.onnx T --data-loader-script void.py
1008 no_sample.py | run m.onnx T --data-loader-script no_sample.py
1007 other.py 'y' | run m.onnx T --data-loader-script other.py
1004 model | run
1004 model | run --onnxrt
1004 model | run --onnxrt --load-outputs a.npz a.npz
1004 a.npz | run --load-outputs a.npz
1007 gone.npz | run --load-outputs a.npz gone.npz
1007 'y' | run --load-outputs a.npz x.npz
1007 two.json 2 | run --load-outputs a.npz two.json
1007 bad.json | run --load-outputs a.npz bad.json
1007 PyTorch | run --load-outputs a.npz torch.json
1007 empty | run --load-outputs a.npz empty
1005 'q' | run --load-outputs a.npz a.npz --atol q:1
1007 'q' | run --load-outputs a.npz a.npz --onnx-outputs q
1008 no.py | run --load-outputs a.npz a.npz --compare-func-script no.py

# where an answer cannot be written, and what is not written over
1006 nowhere/o.json | run m.onnx T --json nowhere/o.json
1006 folder | extract m.onnx -o o.onnx --json folder
1006 nowhere/o.onnx | reduce m.onnx T -o nowhere/o.onnx
1006 folder | extract m.onnx -o folder
1006 folder | run m.onnx T --save-outputs folder
1006 nowhere | run m.onnx T --report nowhere/r.html
1006 nowhere | run m.onnx T --save-onnx nowhere/o.onnx
1003 --save-onnx | run --load-outputs a.npz a.npz --save-onnx o.onnx
1012 m.onnx | diagnose m.onnx T -o m.onnx
1006 m.onnx | convert chain.onnx -o m.onnx --fp16
1006 there.onnx --overwrite | reduce m.onnx T -o there.onnx
1006 there.onnx --overwrite | reduce m.onnx T -o o.onnx --min-good there.onnx
1006 there.onnx --overwrite | extract m.onnx -o there.onnx
1006 there --overwrite | diagnose m.onnx T -o there
1006 taken.zip | diagnose m.onnx T -o taken --zip
1012 x.npz | samples m.onnx T --load-inputs x.npz -o x.npz

# targets
1003 --trt | run m.onnx --onnxrt --tf32
1003 --trt | run m.onnx --onnxrt --int8
1004 --pool-limit | run m.onnx --pool-limit a:1
1003 --providers | run m.onnx --trt --providers cuda
1002 --session-option | run m.onnx --onnxrt --session-option a
1003 --session-option | run m.onnx --onnxrt --session-option a:1 a:2
1002 no.so | run m.onnx --onnxrt --custom-op-library no.so
1002 most basic | run m.onnx --onnxrt --graph-optimization-level most
1002 --pool-limit | run m.onnx --trt --pool-limit workspace:lots
1002 no.so | layerwise m.onnx --trt --plugins no.so
1002 --load-timing-cache | run m.onnx --trt --load-timing-cache no
1005 --trt-max-shapes | run m.onnx --trt --trt-min-shapes x:[1]
1005 --trt-opt-shapes | run m.onnx --trt --trt-min-shapes x:[1] --trt-max-shapes x:[1] --trt-opt-shapes y:[1]
1004 --trt-min-shapes | run m.onnx --trt --trt-min-shapes [1]
1001 --layer-precisions | run m.onnx --trt --layer-precisions fp32
1005 'y' 'x' | layerwise m.onnx --trt --trt-min-shapes y:[1] --trt-max-shapes y:[2]
1002 [2,_3] [3,_3] | reduce m.onnx -o o.onnx --trt --trt-min-shapes x:[3,3] --trt-max-shapes x:[8,3]
1001 --builder-optimization-level | run m.onnx --trt --builder-optimization-level 6
1003 --load-engine | reduce m.onnx -o o.onnx --trt --load-engine notes
1003 --save-engine | diagnose m.onnx -o o --trt --save-engine notes
1002 no.plan | run m.onnx --trt --load-engine no.plan
1003 --strongly-typed | run m.onnx --trt --fp16 --load-engine notes --strongly-typed
1003 --save-engine | run m.onnx --trt --fp16 --load-engine notes --save-engine e
1003 --builder-optimization-level | run m.onnx --trt --load-engine notes --builder-optimization-level 3
1002 --load-timing-cache nowhere | run m.onnx --trt --load-timing-cache nowhere
1003 --builder-set 'a' | run m.onnx --trt --builder-set a=1 a=2
1003 --tactic-sources | run m.onnx --trt --builder-set tactic_sources=1
1003 'A' | run m.onnx --openvino --openvino-property A:1 a:2
1003 --fp16 INFERENCE_PRECISION_HINT | run m.onnx --openvino --fp16 --openvino-property inference_precision_hint:f32
1003 --fp16 --bf16 | run m.onnx --openvino --fp16 --bf16
1003 --int8 | run m.onnx --openvino --int8
1003 --fp16 --onnxrt | precision m.onnx -o o.onnx --openvino --fp16
1003 --fp16 --onnxrt | run m.onnx --openvino --fp16 --keep-fp32 y
1004 --slower-than | run m.onnx --onnxrt --baseline onnxrt
1004 --measure-time | run m.onnx --onnxrt --measure-time 3
1003 --slower-than | run m.onnx --onnxrt --slower-than 2 --atol 1
1002 build | run m.onnx --onnxrt --memory-limit-of ran:3
1003 --engine-size-limit | run m.onnx --onnxrt --engine-size-limit 3
1005 nothing | run m.onnx --onnxrt --slower-than 2 --baseline nothing
1004 --through {out} | run m.onnx --through "cp {model}"
1004 --through {model} | run m.onnx --through ""
1002 nosuchtool | run m.onnx --through "nosuchtool {model} {out}"

# places
1002 --on | run m.onnx T --on nowhere
1002 --on | run m.onnx T --on python=
1002 --on | run m.onnx T --on env=
1002 --on | run m.onnx T --on ssh=-x
1002 --on | run m.onnx T --on ssh=host,path=x
1002 --on | run m.onnx T --on "command='"
1002 --on ray=ADDRESS | run m.onnx T --on ray=auto,gpu
1002 --on ray=ADDRESS | run m.onnx T --on ray=,cpus
2005 /no/such/python | run m.onnx T --on python=/no/such/python
2005 no-such-program | run m.onnx T --on "command=no-such-program -"
2005 image | run m.onnx T --on "command=sh -c 'echo no such image >&2'"

# runs and builds
2006 .bisect-trt | log
2006 .bisect-trt | resume
2006 .bisect-trt | report
2006 notes | report notes
2006 odd.json | report odd.json
2006 99 | report later.json
2006 damaged | report part.json
2006 gone | resume gone
2002 folder | diff folder empty
1004 builds | diff
2002 odd.json | diff odd.json
2002 odd.json | diff odd.json bad.json
"""
"""The code of an error, words that name the thing (``,_`` is a comma and a space), and the command
line; ``T`` is a target."""


def rows() -> Iterator[Any]:
    """The rows, read."""
    for row in filter(None, REFUSALS.splitlines()):
        if not row.startswith("#"):
            said, _, typed = row.partition(" | ")
            code, *words = said.split()
            names = [word.replace("_", " ") if "," in word else word for word in words]
            yield pytest.param(f"BT{code}", names, typed, id=typed)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files that are named."""
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


@pytest.mark.parametrize(("code", "words", "line"), list(rows()))
def test_it_is_refused(
    cli: CommandLine, files: Path, code: str, words: list[str], line: str
) -> None:
    shutil.copytree(files, ".", dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    argv = [each for word in shlex.split(line) for each in (TARGET if word == "T" else [word])]
    assert "probe 1 " not in cli(*argv).refused(code, *words).out
    mine = ("__pycache__", *[".bisect-trt"][: code[2] == "2"])  # a usage error leaves no run
    left = {path for path in Path().rglob("*") if path.is_file() and path.parts[0] not in mine}
    assert left == set(before), "nothing is left behind"
    assert all(path.read_bytes() == content for path, content in before.items())


def test_no_command_starts_without_a_folder_for_its_runs(cli: CommandLine, here: Path) -> None:
    (here / ".bisect-trt").write_text("in the way")
    for words in command_lines(overflowing(here / "m.onnx")).values():
        cli(*words).refused("BT1006", ".bisect-trt")


@pytest.mark.parametrize(
    "line",
    [
        "reduce m.onnx T --no-shrink -o there.onnx",
        "reduce m.onnx T --no-shrink -o o.onnx --min-good there.onnx",
        "extract m.onnx --load-inputs x.npz -o there.onnx",
        "extract m.onnx --load-inputs x.npz -o values.onnx",
        "diagnose m.onnx T -o there",
    ],
)
def test_what_exists_is_written_over_if_that_is_asked_for(
    cli: CommandLine, files: Path, line: str
) -> None:
    shutil.copytree(files, ".", dirs_exist_ok=True)
    Path("values.inputs.npz").write_text("precious")
    argv = [each for word in line.split() for each in (TARGET if word == "T" else [word])]
    cli(*argv).refused("BT1006", argv[-1].partition(".")[0])
    assert not Path("values.onnx").exists()
    assert cli(*argv, "--overwrite").status == 0
    assert Path("there/reproduce.py" if argv[-1] == "there" else argv[-1]).exists()
    assert "values" not in line or arrays("values.inputs.npz")["x"].all()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_is_truncated(cli: CommandLine, command: str) -> None:
    whole = overflowing(Path("whole.onnx")).read_bytes()
    Path("bad.onnx").write_bytes(whole[: len(whole) * 2 // 3])
    ran = cli(*command_lines("bad.onnx")[command], "--json", "r.json").refused("BT2001", "bad.onnx")
    result = ran.result
    assert (result["command"], result["status"], result["probes"]["run"]) == (command, "error", 0)
    assert (result["error"]["code"], result["why"] in ran.error) == (ran.code, True)
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize(
    ("command", "options"), [("reduce", ["-o", "out"]), ("precision", ["--fp16", "-o", "out.onnx"])]
)
def test_no_check_is_said_before_anything_runs(
    cli: CommandLine, here: Path, command: str, options: list[str]
) -> None:
    """The reference may take minutes for a large model; without a terminal nobody can answer a prompt."""
    chain(Path("model.onnx"))
    cli(command, "model.onnx", *options).refused("BT1004", "--check")
    assert not (here / ".bisect-trt").exists()


def test_an_unknown_operator(cli: CommandLine) -> None:
    save(
        Path("model.onnx"),
        line([("Relu", "", "t0"), ("NoSuchOperator", "", "make t1"), ("Relu", "", "t2")]),
    )
    for command in ("diagnose", "run", "layerwise", "reduce"):
        ran = cli(*command_lines("model.onnx")[command]).refused(
            "BT2004", "NoSuchOperator", "make t1"
        )
        assert ".onnx failed" not in ran.err  # which would be a file of ours
        assert not list(Path().glob("out*"))


def test_nodes_that_share_a_name_are_told_apart_as_advised(cli: CommandLine) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["t0"], name="twin"),
        helper.make_node("Neg", ["t0"], ["t1"], name="twin"),
    ]
    refused = cli("diagnose", save(Path("model.onnx"), nodes), *TARGET).refused("BT2004")
    advised = refused.error.split("`")[1]
    assert (
        cli(*shlex.split(advised)[1:], "--json", "s.json")
        .ended(0)
        .result["changes"]["renamed_nodes"]
        == 1
    )
    assert node_names(Path("model-named.onnx")) == ["twin", "twin_2"]
    assert cli("run", "model-named.onnx", "--onnxrt").status == 0


def test_a_check_that_is_broken_itself(cli: CommandLine) -> None:
    line = [
        "precision",
        chain(Path("m.onnx")),
        "-o",
        "mixed.onnx",
        "--json",
        "r.json",
        "--onnxrt",
        "--fp16",
    ]
    ran = cli(*line, "--check", "python3", "nocheck.py", "{model}").ended(1)
    assert "--onnxrt has no effect" in ran.out
    why = read_json(Path("r.json"))["why"]
    assert "No such file or directory" in why
    name, *words = why.split("`")[1].split()
    assert name == "bisect-trt"
    assert "can't open file" in cli(*words).out


def test_verbose_shows_the_traceback(here: Path) -> None:
    ran = bisect_trt("run", "nobody.onnx", *TARGET, "-vv", cwd=here).ended(4)
    assert all(word in ran.err for word in ("Traceback", "nobody.onnx: no such file"))


# Each kind of error has its code; ``test_cli_refusals.py`` tests the codes of wrong options and
# files.


ENDINGS = {
    "BT1010": "resume",
    "BT2004": "run unknown.onnx --onnxrt",
    "BT2005": "run model.onnx --onnxrt --on python=nowhere",
    "BT3001": "reduce model.onnx -o r.onnx --check true",
    "BT3005": "reduce model.onnx -o r.onnx --onnxrt --slower-than 1.3 --baseline onnxrt --measure-time 0.01",
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
        cli(*ENDINGS["BT3002"].split())
        model.write_bytes(model.read_bytes() + b"\n")
        assert cli("resume").code == code
        return
    error = cli(*words[:2], "--json", "r.json", *words[2:]).result["error"]
    assert error["code"] == code
    assert error["cause"].endswith(".")
    assert error["remedy"].endswith(".")


@pytest.mark.parametrize(
    ("number", "file", "said"),
    [
        (errno.ENOSPC, (), r"a file cannot be used: No space left on device; check its path"),
        (errno.ENOSPC, ("r.onnx",), r"r\.onnx.*No space left on device"),
        (errno.EMFILE, (), r"Too many open files; raise the limit \(ulimit -n\)"),
    ],
)
def test_what_the_system_refuses_is_named(number: int, file: tuple[str, ...], said: str) -> None:
    with pytest.raises(ResourceError, match=said) as refused, system_errors():
        raise OSError(number, os.strerror(number), *file)
    assert refused.value.code == "BT2007"


def test_a_missing_package_and_a_bug_have_their_codes() -> None:
    with pytest.raises(PackageError) as missing:
        find("nowhere")
    result = Result("reduce")
    result.end_early(RuntimeError("unexpected"))
    assert result.error
    assert (missing.value.code, result.error.code) == ("BT2008", "BT9000")


def test_every_code_of_the_package_is_tested() -> None:
    tested = (
        {f"BT{row[:4]}" for row in REFUSALS.splitlines() if row[:4].isdigit()}
        | set(ENDINGS)
        | BASES
    )
    tested |= {
        "BT1001",
        "BT2006",
        "BT2007",
        "BT2008",
        "BT2009",
        "BT3003",
        "BT3004",
        "BT3006",
        "BT9000",
    }
    own: list[type[BisectError]] = [
        kind for kind in kinds() if kind.__module__.startswith("bisect_trt.")
    ]
    assert {kind.code for kind in own} - tested == set()
