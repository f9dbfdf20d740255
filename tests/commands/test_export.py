"""The PyTorch module that a model was exported from is the reference: is the export wrong, the runtime, or neither?"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import save_text
from conftest import CommandLine
from support import chain, rest_slow

import bisect_trt

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
    ),
    pytest.mark.any_version,
]
BODY = """\
h = self.emb(x)
q = h.view(2, 4, 2, 8).transpose(1, 2)
a = torch.softmax(q @ q.transpose(-1, -2), -1)
h = h + (a @ q).transpose(1, 2).reshape(2, 4, 16)
m = (h.mean(-1, keepdim=True) > 0).float()
n = self.norm(h) * m
n[:, 0] += 1.0
g = torch.relu_(self.up(n))
h = h + self.down(g)
return self.head(h.max(1).values)
"""


def write_net(path: Path, body: str = BODY) -> Any:
    """Write a module of this ``forward``, and return it; ``make`` in the file returns it too."""
    lines = body.replace("\n", "\n        ")
    text = f"""import numpy as np
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, 32))
        self.down = torch.nn.Linear(32, 16)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x):
        {lines}

    def by(self, x, factor):
        return x * factor

def make():
    torch.manual_seed(0)
    return Net()

nothing = 3
empty = dict
"""
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, path, "exec"), names)
    return names["make"]().eval()


def export(net: Any, path: Path) -> Any:
    """Trace a module with random values, and return them."""
    import torch

    torch.manual_seed(1)
    x = torch.randn(2, 4, 8).to(next(net.parameters()).dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), path, dynamo=False, input_names=["x"], output_names=["y"])
    return x.numpy()


def line_of(path: Path, words: str) -> str:
    lines = path.read_text().splitlines()
    return f"{path}:{next(n for n, line in enumerate(lines, 1) if words in line)}"


MISTAKES = {
    "self.emb(x)": "self.emb(x * 0.7)",
    "q @ q.transpose(-1, -2)": "q @ q.transpose(-1, -2) * 0.7",
    "(a @ q)": "(a @ q.flip(-1))",
    "self.norm(h) * m": "self.norm(h) + m",
    "relu_": "tanh_",
    "self.down(g)": "self.down(g) * 0.7",
    "h.max(1)": "h.min(1)",
}
"""What is right in the module, and what an export makes of it."""


@pytest.mark.parametrize(
    ("right", "wrong"), rest_slow([("+= 1.0", "+= 2.0"), ("> 0)", "> 0.3)"), *MISTAKES.items()], 2)
)
def test_each_wrong_line_is_named(here: Path, right: str, wrong: str) -> None:
    net = here / "net.py"
    write_net(net)
    x = export(write_net(here / "wrong.py", BODY.replace(right, wrong)), here / "model.onnx")
    answer = bisect_trt.compare(here / "model.onnx", {"x": x}, reference=f"{net}:make")
    assert answer.fault is not None
    assert answer.fault.whose == "export", answer.fault
    assert answer.fault.source == line_of(net, right), answer.fault


@pytest.mark.parametrize(
    ("number", "use"),
    rest_slow(
        [
            ("float(h.abs().max()) * 0.02 + 0.001", "h.clamp(min=-limit)"),
            ("np.median(h.detach().abs())", "k / limit"),
            ("float(h.abs().max())", "k / limit"),
            ("int(h.abs().max() * 9) // 2", "self.by(k, limit)"),
            ("h.detach().abs().flatten().tolist()[0]", "k / limit"),
            ("h.detach().abs().numpy()\nlimit = limit.max() * 0.3", "k / limit"),
            ("torch.tensor(np.median(h.detach().abs().numpy()))", "k / limit"),
            ("(lambda number: number / 3)(h.abs().max().item())", "k / limit"),
        ],
        2,
    ),
)
def test_a_number_that_tracing_froze(cli: CommandLine, here: Path, number: str, use: str) -> None:
    """Not the line that reads it, which is right; a constant of the module is no such number."""
    constant = "h = h / (h.shape[-1] ** 0.5 + 0.25)"
    lines = f"limit = {number}\nk = h + 1\nh = {use}\n{constant}\nm = (h"
    net = write_net(here / "net.py", BODY.replace("m = (h", lines))
    x = export(net, here / "model.onnx")
    np.savez("x.npz", x=3 * x)
    words = ("model.onnx", "--onnxrt", "--load-inputs", "x.npz", "--reference", "net.py:make")
    ran = cli("run", *words, "--json", "r.json").ended(1)
    assert ran.result["fault"]["source"] == line_of(Path("net.py"), "limit = ")
    said = f"{line_of(Path('net.py'), 'limit = ')} takes values out of a tensor"
    assert said in " ".join(ran.out.split())


def test_a_scalar_does_not_take_the_vote_away(here: Path) -> None:
    net = here / "net.py"
    body = "return self.emb(x) * 0.7 / x.abs().sum()"
    write_net(net, body)
    x = export(write_net(here / "wrong.py", body.replace("0.7", "0.8")), here / "model.onnx")
    answer = bisect_trt.compare(here / "model.onnx", {"x": x}, reference=f"{net}:make")
    assert answer.fault is not None
    assert answer.fault.whose == "export", answer.fault


def test_a_branch_that_tracing_froze(cli: CommandLine, here: Path) -> None:
    """The command that `does not reproduce` suggests finds it, as do the next lines after a right one."""
    frozen = "if h.abs().max() > 9:"
    body = BODY.replace("m = (h", f"{frozen}\n    h = h / 9\nm = (h")
    net = write_net(here / "net.py", body)
    x = export(net, here / "model.onnx")
    words = ["model.onnx", "--onnxrt", "--load-inputs", "x.npz"]
    np.savez("x.npz", x=x)
    assert "All 1 match" in cli("run", *words, "--reference", "net.py", "-v").ended(0).out
    np.savez("x.npz", x=30 * x)
    ran = cli("diagnose", *words).ended(1)
    (command,) = re.findall(
        r"`bisect-trt (run [^`]* --reference MODULE.py:make[^`]*)`", " ".join(ran.out.split())
    )
    words = command.replace("MODULE.py", "net.py").split()
    ran = cli(*words, "--json", "r.json").ended(1)
    fault = ran.result["fault"]
    assert fault["source"] == line_of(Path("net.py"), "h = h / 9")
    assert "First line with values that it lacks: net.py:19: h = h / 9." in " ".join(
        ran.out.split()
    )
    said = f"Before it, {line_of(Path('net.py'), frozen)} branches on a tensor"
    assert said in " ".join(ran.out.split())
    (culprit,) = ran.result["culprits"]
    assert culprit["op"] == "Add"  # what reads h before it normalizes it


def test_the_target_is_wrong(cli: CommandLine, here: Path) -> None:
    x = export(write_net(here / "net.py", "return self.emb(x) * 3e5"), here / "model.onnx")
    np.savez("x.npz", x=x)
    words = ["model.onnx", "--onnxrt", "--fp16", "--load-inputs", "x.npz", "--reference", "net.py"]
    assert "The export is right, so the target is wrong" in cli("run", *words).ended(1).out


def test_half_precision_of_the_module_itself(cli: CommandLine, here: Path) -> None:
    """Where the target is wrong in one output, another is compared with the tolerance of fp16."""
    half = "h = self.emb(x).half() * 30\n"
    body = f"{half}return (h @ h.transpose(-1, -2)).float().sum(-1), self.emb(x) * 3e5"
    x = export(write_net(here / "net.py", body), here / "model.onnx")
    np.savez("x.npz", x=x)
    words = ["model.onnx", "--onnxrt", "--fp16", "--load-inputs", "x.npz", "--reference", "net.py"]
    assert "The export is right, so the target is wrong" in cli("run", *words).ended(1).out


def test_neither_is_wrong(cli: CommandLine, here: Path) -> None:
    body = "return torch.sin(self.down(self.up(self.emb(x))) * 1e6)"
    x = export(write_net(here / "net.py", body), here / "model.onnx")
    np.savez("x.npz", x=x)
    words = ["model.onnx", "--onnxrt", "--load-inputs", "x.npz", "--reference", "net.py:make"]
    fault = cli("run", *words, "--json", "r.json").ended(1).result["fault"]
    assert fault["whose"] == "rounding", fault


@pytest.mark.parametrize(
    ("reference", "message", "code"),
    [
        ("missing.py", "does not exist", "BT1008"),
        ("net.py:nothing", "not callable", "BT1008"),
        ("net.py:empty", "neither is nor returns a torch.nn.Module", "BT1008"),
        ("two.py", "returns 2 tensors, and the exported model 1", "BT1007"),
        ("bad.py", "bad.py:make raised AttributeError", "BT1008"),
    ],
)
def test_a_reference_that_is_no_module(
    cli: CommandLine, here: Path, reference: str, message: str, code: str
) -> None:
    write_net(here / "bad.py", "return x.no_such_method()")
    write_net(here / "two.py", "return x, x")
    export(write_net(here / "net.py", "return self.emb(x)"), here / "model.onnx")
    ran = cli("run", "model.onnx", "--onnxrt", "--reference", reference)
    assert message in ran.error
    assert ran.code == code


@pytest.mark.parametrize(
    "words",
    [
        "run net.onnx --onnxrt --metric cosine",
        "run net.onnx --onnxrt --latency-limit 9",
        "run net.onnx --trt-rtx --build-only",
        "run --load-outputs a.npz b.npz",
    ],
)
def test_where_no_module_can_be_compared(cli: CommandLine, here: Path, words: str) -> None:
    write_net(here / "net.py", "return self.emb(x)")
    np.savez("a.npz", x=np.ones(1))
    np.savez("b.npz", x=np.ones(1))
    chain(here / "net.onnx", 2)
    ran = cli(*words.split(), "--reference", "net.py")
    assert ran.code == "BT1003", ran.err
    assert "--reference" in ran.error


def test_a_branch_that_a_later_step_takes(cli: CommandLine, here: Path) -> None:
    body = "hn = h0 + x\n        y = hn\n        if hn.sum() > 13:\n            y = hn / 2\n"
    text = (
        f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x, h0):\n        {body}"
    )
    Path("net.py").write_text(f"{text}        return y, hn\nmake = Net()\n")
    ends = "(float[1, 4] x, float[1, 4] h0) => (float[1, 4] y, float[1, 4] hn)"
    save_text(here / "m.onnx", ends, "hn = Add(h0, x) y = Identity(hn)")
    np.savez("x.npz", x=np.ones((6, 4), np.float32))
    words = ("diagnose", "m.onnx", "--onnxrt", "--load-inputs", "x.npz", "--reference", "net.py")
    ran = cli(*words, "--steps", "6", "--json", "r.json").ended(0)
    assert (ran.result["steps"]["step"], ran.result["fault"]["source"]) == (4, "net.py:7")


def test_a_state_that_the_module_takes_by_no_name(cli: CommandLine, here: Path) -> None:
    """A view in the module is a node of the export, and is right."""
    text = """import torch

class Net(torch.nn.Module):
    def forward(self, x, *past):
        h = x + past[0] * past[1]
        return h[:, :2] * 2, h

make = Net
"""
    (here / "net.py").write_text(text)
    save_text(
        here / "m.onnx",
        "(float[1, 4] x, float[1, 4] h0, float[1, 4] c0) => (float[1, 2] y, float[1, 4] hn)",
        "p = Mul(h0, c0) hn = Add(x, p) low = Slice(hn, zero, two, one) y = Mul(low, three)",
        {"zero": np.array([0]), "two": np.array([2]), "one": np.array([1]), "three": 3.0},
    )
    ran = cli("run", "m.onnx", "--onnxrt", "--reference", "net.py", "--json", "r.json").ended(1)
    assert ran.result["fault"]["source"] == "net.py:6"
    assert [node["outputs"] for node in ran.result["culprits"]] == [["y"]]


def test_an_input_of_which_the_exporter_made_a_constant(cli: CommandLine, here: Path) -> None:
    text = """import torch

class Net(torch.nn.Module):
    def forward(self, x, lengths):
        return x[:, : int(lengths.max())].sum(1)

make = Net
"""
    (here / "net.py").write_text(text)
    save_text(
        here / "net.onnx",
        "(float[2, 4] x) => (float[2] y)",
        "y = ReduceSum<keepdims=0>(x, axis)",
        {"axis": np.array([1])},
    )
    words = ("run", "net.onnx", "--onnxrt", "--reference", "net.py")
    ran = cli(*words).ended(2)
    assert "missing a required argument: 'lengths'" in ran.error
    assert ran.code == "BT1007"
    for longest, status in ((4, 0), (2, 1)):
        np.savez("x.npz", lengths=np.array([longest, 1]), x=np.ones((2, 4), np.float32))
        ran = cli(*words, "--load-inputs", "x.npz", "--json", "r.json").ended(status)
        assert "the model has no input 'lengths'" in " ".join(ran.err.split())
    assert ran.result["fault"]["whose"] == "export"
    assert "The export ignores the input 'lengths'." in ran.result["fault"]["sentence"]


@pytest.mark.parametrize("half", ["export", "module"])
def test_an_export_of_other_floats_than_its_module(cli: CommandLine, here: Path, half: str) -> None:
    net = write_net(here / "net.py", "return self.emb(x)")
    export(net.half() if half == "export" else net, here / "model.onnx")
    if half == "module":
        text = (here / "net.py").read_text()
        (here / "net.py").write_text(text.replace("return Net()", "return Net().half()"))
    cli("run", "model.onnx", "--onnxrt", "--reference", "net.py:make").ended(0)
