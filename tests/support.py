"""What several tests need: small models, check scripts, a way to run the command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
from building import proto_of, save_text
from hypothesis import settings
from onnx import TensorProto, helper

from bisect_trt.commands.table import COMMANDS as COMMAND_TABLE
from bisect_trt.options.compare import CompareOptions, ErrorStat
from bisect_trt.options.shared import General
from bisect_trt.options.spec import make_group
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.workspace import CandidateFiles
from bisect_trt.session.checks import tolerance_options
from bisect_trt.tensors.compare import compare_tensor
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.tolerance import Tolerance, ToleranceOptions
from bisect_trt.worker.protocol import Sample

Group = TypeVar("Group")
SHAPE = (2, 3)
Shape = Sequence[int | str | None] | None
TARGET = ["--onnxrt", "--fp16"]


@dataclass(frozen=True)
class Ran:
    """How a command line ended, and the file that its ``--json`` names."""

    status: int
    out: str
    err: str
    json: Path | None = None

    def ended(self, status: int) -> Ran:
        """The same, which ended with that exit status."""
        assert self.status == status, self.out + self.err
        return self

    @property
    def result(self) -> dict[str, Any]:
        """What it wrote there."""
        assert self.json is not None
        return read_json(self.json)

    @property
    def error(self) -> str:
        """The one line that says why it ended; no traceback, nothing else but warnings and progress."""
        lines = [
            line
            for line in self.err.splitlines()
            if not re.match(r"warning:|\d+( min \d+)? s  ", line)
        ]
        assert "Traceback" not in self.out + self.err, self.err
        assert len(lines) == 1, self.err
        assert re.match(r"error(\[BT\d{4}\])?: .", lines[0]), self.err
        return lines[0]

    @property
    def code(self) -> str:
        """The code of that error."""
        return self.error.partition("[")[2].partition("]")[0]

    def refused(self, code: str, *words: str) -> Ran:
        """The same, which ended with the error of that code and its exit status; its sentence has these words."""
        assert (self.code, self.status) == (code, {"1": 2, "2": 4, "3": 3}[code[2]]), (
            self.out + self.err
        )
        assert all(word in self.error for word in words), self.error
        return self


def examples(count: int) -> int:
    """So many examples of a property where depth is asked for, else as much fewer as the default is then."""
    return max(5, count * settings().max_examples // settings.get_profile("deep").max_examples)


def rest_slow(values: Iterable[Any], now: int = 1) -> list[Any]:
    """Parameters of a test, of which only the first few are for `make test`; a tuple is of several arguments."""
    listed = list(values)
    rest = [each if isinstance(each, tuple) else (each,) for each in listed[now:]]
    return [*listed[:now], *(pytest.param(*each, marks=pytest.mark.slow) for each in rest)]


def read_options(group: type[Group], **words: Any) -> Group:
    """A group of options from words of a command line."""
    return make_group(group, words, words=True)


def tolerances(**words: Any) -> ToleranceOptions:
    """Tolerances from words of a command line."""
    return tolerance_options(read_options(CompareOptions, **words), None, nonfinite_equal=False)


def compared(
    name: str,
    reference: Any,
    target: Any,
    tolerance: Tolerance,
    stat: ErrorStat = ErrorStat.ELEMWISE,
    **more: Any,
) -> TensorComparison:
    """The comparison of one tensor; ``details`` and ``precision`` as for it, others of the options."""
    given = {key: more.pop(key) for key in ("details", "precision") if key in more}
    if "quantile" in more:
        more["error_quantile"] = {"": more.pop("quantile")}
    known: dict[str, Any] = {
        key: {"": value}
        for key in ("atol", "rtol")
        if (value := getattr(tolerance, key)) is not None
    }
    options = ToleranceOptions(**known, check_error_stat={"": stat}, **more)
    return compare_tensor(name, reference, target, options, **given)


def endless(path: Path, *, constant: bool = False) -> Path:
    """A Loop that goes on for as long as a constant is true, over the input or over a constant."""
    turn = "turn (int64 i, bool c, float[2, 3] v) => (bool d, float[2, 3] w) { d = Identity(c) w = Identity(v) }"
    body = f"a = Neg(x) b = Loop<body = {turn}>(, true, {'k' if constant else 'a'}) y = Add(a, b)"
    weights = {"true": np.array(True), "k": np.ones(SHAPE)}
    return save_text(path, "(float[2, 3] x) => (float[2, 3] y)", body, weights, opset=17)


def case_of(failure: str, **values: Any) -> dict[str, Any]:
    """The values of ``reproduce.py`` for a failure, without a time-out."""
    plain: dict[str, Any] = {
        "model": "m.onnx",
        "names": [],
        "answer": "",
        "target": "",
        "timeout": None,
        "validate": False,
    }
    return {**plain, "failure": failure, **values}


def arrays(path: str | Path) -> dict[str, np.ndarray]:
    """What an npz file holds, by NumPy alone; the file is closed again."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


QUICK_MODEL = f"""
import sys
sys.path.insert(0, {str(Path(onnx.__file__).parent)!r})
from onnx_ml_pb2 import ModelProto
with open(sys.argv[1], "rb") as file:
    model = ModelProto.FromString(file.read())
"""
"""Reads a script's ``model`` with the messages of ONNX alone: ``onnx`` and NumPy take half a second of each candidate."""


def onnx_tool(change: str) -> str:
    """The command of a tool from ONNX to ONNX, ``tool.py``, in which some lines change ``model``."""
    write = 'with open(sys.argv[2], "wb") as file:\n    file.write(model.SerializeToString())\n'
    Path("tool.py").write_text(f"{QUICK_MODEL}{change}\n{write}")
    return f"{shlex.quote(sys.executable)} tool.py {{model}} {{out}}"


LEVELS = frozenset({"-v", "-vv", "--verbose", "-q", "--quiet"})


def json_file(argv: Sequence[str], cwd: Path | None = None) -> Path | None:
    """The file that a command line writes its answer to; it is there though the working directory changes."""
    own = argv[: argv.index("--check")] if "--check" in argv else argv
    return ((cwd or Path.cwd()) / own[own.index("--json") + 1]) if "--json" in own else None


def verbose(argv: Sequence[str | Path]) -> list[str]:
    """Words of a command line, with ``-v`` where no level is given, so that it prints every step, probe and reason."""
    words = [*map(str, argv)]
    known = bool(words) and words[0] in COMMAND_TABLE and General in COMMAND_TABLE[words[0]].groups
    return [words[0], "-v", *words[1:]] if known and not LEVELS.intersection(words) else words


def bisect_trt(*argv: str | Path, cwd: Path, detailed: bool = True) -> Ran:
    """Run the command line as a process, ``detailed`` with ``-v``; the test's own limit ends what hangs."""
    command = [sys.executable, "-m", "bisect_trt", *(verbose(argv) if detailed else map(str, argv))]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr, json_file(command, cwd))


def command_lines(model: str | Path) -> dict[str, list[str | Path]]:
    """Each command with what it needs, on a model."""
    return {
        "diagnose": ["diagnose", model, *TARGET, "-o", "out"],
        "reduce": ["reduce", model, "-o", "out.onnx", *TARGET],
        "precision": ["precision", model, "-o", "out.onnx", *TARGET],
        "layerwise": ["layerwise", model, *TARGET],
        "extract": ["extract", model, "-o", "out.onnx"],
        "run": ["run", model, *TARGET],
    }


COMMANDS = list(command_lines(""))


def node_tag(place: int) -> str:
    """A node's name in the models of these tests; none is a part of another's, so ``grep`` finds the node."""
    return f"<{place}>"


def model_of(
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[TensorProto] | Mapping[str, Any] = (),
    *,
    inputs: Mapping[str, Shape] | None = None,
    outputs: Mapping[str, Shape] | Sequence[str] = (),
    types: Mapping[str, int] | None = None,
    opset: int = 13,
) -> onnx.ModelProto:
    """A model that versions of long ago read too, with one input ``x`` of [2, 3] unless others are given.

    Numbers and lists among the weights, as all ends that ``types`` does not name, are of float32.
    """
    stored = (
        weights if isinstance(weights, Mapping) else {tensor.name: tensor for tensor in weights}
    )
    stored = {
        name: value if isinstance(value, np.ndarray | TensorProto) else np.array(value, np.float32)
        for name, value in stored.items()
    }
    ends = (
        outputs
        if isinstance(outputs, Mapping)
        else dict.fromkeys(outputs or nodes[-1].output[:1], SHAPE)
    )
    known = types or {}
    fed, returned = (
        [(name, known.get(name, TensorProto.FLOAT), shape) for name, shape in each.items()]
        for each in (inputs or {"x": SHAPE}, ends)
    )
    return proto_of(nodes, fed, returned, stored, opset=opset)


def save(path: Path, *model: Any, **more: Any) -> Path:
    """Write :func:`model_of` these."""
    onnx.save(model_of(*model, **more), str(path))
    return path


def chain(path: Path, length: int = 4) -> Path:
    """A chain of Adds, named ``<0>``, ``<1>``, ..., from ``x`` over ``t0``, ``t1``, ...; each adds 1."""
    names = ["x", *(f"t{place}" for place in range(length))]
    nodes = [
        helper.make_node("Add", [names[n], "one"], [names[n + 1]], name=node_tag(n))
        for n in range(length)
    ]
    return save(path, nodes, {"one": np.ones(SHAPE[-1], np.float32)})


def line(steps: Iterable[tuple[str, str, str]]) -> list[onnx.NodeProto]:
    """Nodes one behind the other, from ``x``: of each its operator, what else it reads, and its name."""
    last = "x"
    nodes = []
    for op, reads, name in steps:
        nodes.append(helper.make_node(op, [last, *reads.split()], [f"{name}_out"], name=name))
        last = f"{name}_out"
    return nodes


OVERFLOWS = {"big": 3e4, "small": 1e-5, "one": 1.0}


def overflowing_line(before: int = 3, after: int = 3) -> list[onnx.NodeProto]:
    """A chain whose ``Mul`` named ``big`` makes 90000, more than fp16 has, and whose next node makes that 0.9 again."""
    steps = [
        *(("Add", "one", f"a{i}") for i in range(before)),
        ("Mul", "big", "big"),
        ("Mul", "small", "small"),
    ]
    return line([*steps, *(("Add", "one", f"b{i}") for i in range(after))])


def overflowing(path: Path, before: int = 3, after: int = 3) -> Path:
    """Write a model of :func:`overflowing_line`."""
    return save(path, overflowing_line(before, after), OVERFLOWS)


def overflowing_products(path: Path) -> Path:
    """The same in matrix products, which no GPU fuses into one kernel with wider numbers inside; ``x`` is [16, 64]."""
    weights = {"one": 1, "much": [[4000.0] * 64] * 64, "little": [[1e-6] * 64] * 64}
    steps = [
        ("Add", "one", "before"),
        ("MatMul", "much", "big"),
        ("MatMul", "little", "small"),
        ("Add", "one", "after"),
    ]
    return save(path, line(steps), weights, inputs={"x": (16, 64)}, outputs={"after_out": (16, 64)})


def chained_convolutions(
    path: Path, layers: Sequence[tuple[int, int]], shape: Sequence[int], *, bare: bool = False
) -> Path:
    """Convolutions of so many channels and such kernels, each with a Tanh behind it unless they are ``bare``.

    ``x`` and the output are of ``shape``.
    """
    values = np.random.default_rng(0)
    nodes = []
    weights = dict[str, Any]()
    tensor = "x"
    channels = shape[1]
    for place, (width, kernel) in enumerate(layers):
        weight = values.normal(
            0, 1 / np.sqrt(channels * kernel * kernel), (width, channels, kernel, kernel)
        )
        weights[f"w{place}"] = weight.astype(np.float32)
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node(
                "Conv", [tensor, f"w{place}"], [f"c{place}"], f"conv{place}", pads=pads
            )
        )
        tensor = f"c{place}"
        channels = width
        if not bare:
            nodes.append(helper.make_node("Tanh", [tensor], [f"t{place}"], f"tanh{place}"))
            tensor = f"t{place}"
    return save(path, nodes, weights, inputs={"x": shape}, outputs={tensor: shape})


def squares_between_convolutions(path: Path) -> Path:
    """What a convolution makes is squared by a layer that fuses with neither neighbour, and the squares are past fp16."""
    values = np.random.default_rng(0)
    sizes = {"w0": 900, "w1": 1e-3, "w2": 1.0}
    weights = {
        name: values.normal(0, size / 12, (16, 16, 3, 3)).astype(np.float32)
        for name, size in sizes.items()
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "conv0", pads=[1] * 4),
        helper.make_node("Mul", ["c0", "c0"], ["big"], "square"),
        helper.make_node("Conv", ["big", "w1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Tanh", ["c1"], ["t1"], "tanh1"),
        helper.make_node("Conv", ["t1", "w2"], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node("Tanh", ["c2"], ["y"], "tanh2"),
    ]
    return save(path, nodes, weights, inputs={"x": [2, 16, 24, 24]}, outputs={"y": [2, 16, 24, 24]})


def labelled_data(folder: Path, count: int) -> None:
    """Write ``data.py``, samples with labels for :func:`overflowing`: every fourth overflows in fp16, in its first row."""
    (folder / "data.py").write_text(f"""
import numpy
def load_data():
    rng = numpy.random.default_rng(3)
    for number in range({count}):
        x = rng.uniform(-2.9, -1.5, (2, 3)).astype(numpy.float32)
        if number % 4 == 0:
            x[0, :2] = 2.0, 3.0
        yield {{"x": x}}, x.argmax(axis=1)
def labels_beside():
    for sample, labels in load_data():
        yield {{**sample, "labels": labels}}
""")


def script(path: Path, body: str) -> str:
    """Write an executable shell script; its path, to be run from anywhere."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


READ_NPZ = """
import array, ast, sys, zipfile
def read(path):
    found = {}
    with zipfile.ZipFile(path) as file:
        for name in file.namelist():
            header, body = file.read(name)[10:].split(b"\\n", 1)
            about = ast.literal_eval(header.decode())
            found[name[:-4]] = about["shape"], array.array({"<f4": "f", "<i8": "q"}[about["descr"]], body)
    return found
"""
"""For a check of these tests: shape and values of each array of an npz, in a third of the time that
importing NumPy takes."""


def run_check(folder: Path, body: str, **options: Any) -> Outcome:
    """How a check of these words of the shell ends on some candidate."""
    return CommandCheck((script(folder / "check", body), "{model}"), **options).run(
        candidate_files(folder)
    )


def candidate_files(folder: Path) -> CandidateFiles:
    """The files of a candidate in a folder, none of which is there."""
    return CandidateFiles(
        folder, folder / "m.onnx", (Sample(folder / "i.npz", folder / "g.npz"),), folder / "log"
    )


def reproduced(folder: str | Path, *options: str, **how: Any) -> Ran:
    """Run the reproducer of a folder, which shows the failure."""
    command = [sys.executable, *options, str(Path(folder).absolute() / "reproduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    return Ran(done.returncode, done.stdout, done.stderr).ended(1)


def pids(folder: Path) -> list[int]:
    """The processes that checks have started, which write their numbers there."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def wait_for(happened: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something has happened; a machine that is busy takes its time."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_gone(started: Iterable[int]) -> None:
    """Processes end, if not at once: a signal takes effect when its process runs next, and a guard outlives its driver."""
    listed = list(started)
    wait_for(lambda: all(map(gone, listed)))


def marked(entry: str) -> dict[int, bytes]:
    """The command lines of all processes but this one whose environment has an entry that begins like this."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"\0" + entry.encode() in b"\0" + (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ")
    return {pid: words for pid, words in found.items() if words and pid != os.getpid()}


def has(*tags: str, model: str = '"$1"') -> str:
    """A shell condition: the model holds each of these nodes."""
    return " && ".join(f"grep -qaF '{tag}' {model}" for tag in tags)


def read_json(path: Path) -> dict[str, Any]:
    """A result."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def node_names(path: Path) -> list[str]:
    """The names of the nodes of a model."""
    return [node.name for node in onnx.load(str(path)).graph.node]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet counts as ended."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"
