"""Each layer's own error is that of the layer cut out alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from answers.models import cancelling
from layered import Ask, Shown, looking, outputs_of
from onnx import TensorProto, helper, numpy_helper
from support import overflowing

from bisect_trt.commands.layerwise import Marking, compare_own
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import Runner
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.worker.protocol import Compare, Failed


def alone(look: Marking, name: str) -> Outcome:
    """The outcome of a probe of one node, cut out and fed the reference's values."""
    subject = look.subject
    unit = subject.network.rank[subject.network.producer[name]]
    runner = Runner(BuiltinCheck(subject.workers, look.target, look.tolerance), subject.workspace, subject.reference)
    return runner.run(subject.cut(subject.units.with_weights({unit})))


def numbers(comparison: TensorComparison) -> dict[str, Any]:
    return {key: value for key, value in comparison.to_json().items() if key != "details"}


def transformer(path: Path) -> Path:
    """A LayerNorm, a softmax over integers' places, a Reshape and a Where: floats, integers and bools between layers."""
    model = onnx.load(str(cancelling(path, mean=3.0)))
    steps: list[tuple[str, str, str, dict[str, Any]]] = [
        ("Shape", "z", "shape", {}),
        ("Reshape", "z shape", "same", {}),
        ("ArgMax", "same", "place", {"axis": -1}),
        ("Cast", "place", "where", {"to": TensorProto.FLOAT}),
        ("Greater", "same where", "after", {}),
        ("Where", "after same zero", "kept", {}),
        ("Exp", "kept", "exp", {}),
        ("Softmax", "exp", "out", {"axis": -1}),
    ]
    nodes = [helper.make_node(op, reads.split(), [made], name=made, **more) for op, reads, made, more in steps]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("make", [overflowing, transformer])
def test_own_errors_are_those_of_nodes_cut_out_alone(tmp_path: Path, make: Any) -> None:
    with looking(make(tmp_path / "model.onnx"), fp16=True) as look:
        own = compare_own(look)
        assert (own.builds, own.refused) == (1, None)
        assert list(own.tensors) == [name for name in look.wanted if name not in own.unseen]
        assert own.unseen.keys() <= {"shape"}
        for name, comparison in own.tensors.items():
            (cut,) = alone(look, name).comparisons
            assert numbers(comparison) == numbers(cut), name


def test_where_the_target_refuses_some_layers_alone_the_others_are_seen(tmp_path: Path) -> None:
    def target(request: Compare, ask: Ask) -> Shown:
        if request.fed and "big_out" in outputs_of(request):
            return Failed("build", "no", "build: no")
        return ask(request)

    with looking(overflowing(tmp_path / "model.onnx"), target, fp16=True) as look:
        own = compare_own(look)
        assert own.tensors.keys() == set(look.wanted) - {"big_out"}
    assert own.unseen.keys() == {"big_out"}
    assert own.builds > 1


def test_with_several_samples_the_one_that_fails_is_told(tmp_path: Path) -> None:
    """The second sample alone overflows."""
    model = overflowing(tmp_path / "model.onnx", before=0, after=0)
    files = []
    for number, value in enumerate((1.0, 3.0)):
        files.append(tmp_path / f"{number}.npz")
        np.savez(files[-1], x=np.full((2, 3), value, np.float32))
    with looking(model, fp16=True, load_inputs=tuple(files)) as look:
        own = compare_own(look)
    assert own.tensors["big_out"].sample == 2
    assert not own.tensors["big_out"].passed
