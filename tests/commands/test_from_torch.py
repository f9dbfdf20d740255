"""From PyTorch, which is no dependency: what needs it is skipped where it is missing."""

# mypy: disable-error-code="misc"
# ruff: noqa: ARG001, ARG002 - PyTorch may be missing, and modules take what forward is given

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import overflowing

import bisect_trt

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


def test_an_onnx_model_is_fed_by_name(here: Path) -> None:
    model = overflowing(here / "model.onnx")
    for inputs in (np.ones((2, 3)), (np.ones((2, 3)),), [np.ones((2, 3))]):
        with pytest.raises(bisect_trt.UsageError, match="give a dict of arrays by the names"):
            bisect_trt.compare(model, inputs=inputs)


def make_net() -> Any:
    """Blocks whose norm squares what fp16 has not the square of; one part is in training mode."""
    import torch

    class Norm(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            mean = x.pow(2).mean(-1, keepdim=True)
            return x / torch.sqrt(mean + 1e-6)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()
            self.fc = torch.nn.Linear(8, 8)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            return self.drop(self.fc(self.norm(x)))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.Sequential(torch.nn.Identity(), Block())

        def forward(self, image: Any, unused: Any = None, branch: bool = False) -> Any:
            return self.blocks(image)

    torch.manual_seed(0)
    net = Net()
    net.blocks[1].norm.eval()
    return net


def line_of(words: str) -> int:
    return next(
        n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if words in line
    )


@needs_torch
def test_the_module_of_the_culprit_is_named(here: Path) -> None:
    import torch

    net = make_net()
    image = torch.full((2, 8), 600.0)
    modes = [module.training for module in net.modules()]
    result = bisect_trt.diagnose(
        net, (image, torch.ones(1)), target="onnxrt", fp16=True, shrink=False
    )
    assert result.status == "found"
    (culprit,) = result.culprits
    module = culprit.module
    assert module is not None
    assert module.path == "blocks.1.norm"
    assert str(module.cls).endswith("Norm")
    assert module.source == f"{__file__}:{line_of('x.pow(2).mean')}"
    export_said = result.export
    assert export_said["by"] == "dynamo"
    assert export_said["torch"] == torch.__version__
    assert [
        module.training for module in net.modules()
    ] == modes  # and no dropout was exported, or it would be random


@needs_torch
def test_inputs_of_a_module(here: Path) -> None:
    import torch

    net = make_net()
    image = np.full((2, 8), 3, np.float32)
    # Each way to give a sample; a tensor that is no list is what other tests give.
    each = [image, (image,), {"image": image}, {"image": torch.from_numpy(image)}]
    assert bisect_trt.compare(net, each).status == "found"
    np.savez(here / "values.npz", image=image)
    assert bisect_trt.compare(net, inputs=here / "values.npz").status == "found"
    for wrong, words in (
        (None, "at least one sample"),
        ({"y": image}, "forward; give"),
        ([], "at least one sample"),
    ):
        with pytest.raises(bisect_trt.UsageError, match=words):
            bisect_trt.compare(net, inputs=wrong)


@needs_torch
def test_a_module_that_the_exporter_refuses(here: Path) -> None:
    import torch

    class Broken(torch.nn.Module):
        def forward(self, x: Any, *, scale: Any) -> Any:
            raise RuntimeError("broken on purpose")

    with pytest.raises(
        bisect_trt.UnavailableError, match=r"broken on purpose\. Export it to ONNX yourself"
    ):
        bisect_trt.compare(Broken(), inputs={"x": torch.ones(2), "scale": torch.ones(1)})


@needs_torch
def test_an_exported_program(here: Path) -> None:
    import torch

    image = torch.full((2, 8), 600.0)
    program = torch.export.export(make_net().eval(), (image,))
    result = bisect_trt.diagnose(program, image, target="onnxrt", fp16=True, shrink=False)
    module = result.culprits[0].module
    assert module is not None
    assert module.path == "blocks.1.norm"
    assert module.source == f"{__file__}:{line_of('x.pow(2).mean')}"


@needs_torch
def test_an_export_that_computes_something_else(here: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            h = self.fc(x)
            if not torch.compiler.is_exporting():
                h = torch.tanh(h)
            return h.softmax(-1)

    result = bisect_trt.diagnose(Net(), torch.ones(2, 8), target="onnxrt", fp16=True)
    assert result.status == "found"
    assert result.fault is not None
    assert result.fault.whose == "export"
    assert result.fault.source == f"{__file__}:{line_of('h = torch.tanh(h)')}"
    assert "fails alone" not in result.summary()
    assert "First line with values that it lacks: " in " ".join(result.summary().split())
    (culprit,) = result.culprits
    assert culprit.op == "Softmax"
    assert culprit.module is not None
    assert culprit.module.source == f"{__file__}:{line_of('return h.softmax')}"
