"""What runs models for the unsteady target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import unsteady_builds

from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.network import Network
from bisect_trt.targets.messages import BuildError

if TYPE_CHECKING:
    from unsteady_target import UnsteadySettings

    from bisect_trt.targets.choices import Choice


def spoiled(model: onnx.ModelProto, which: frozenset[str] | None = None) -> onnx.ModelProto:
    """With a tenth more behind each bad node, or behind those."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    nodes = list(wrong.graph.node)
    del wrong.graph.node[:]
    for node in nodes:
        if node.name.startswith("bad") and (which is None or node.name in which):
            out = node.output[0]
            node.output[0] = f"{out}.right"
            wrong.graph.initializer.append(
                onnx.numpy_helper.from_array(np.array(1.1, np.float32), f"{out}.factor")
            )
            more = onnx.helper.make_node("Mul", [f"{out}.right", f"{out}.factor"], [out])
            wrong.graph.node.extend([node, more])
        else:
            wrong.graph.node.append(node)
    return wrong


def _first_of(mark: Path) -> bool:
    """Whether nobody has left this file yet, in any process; it is left now."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Session:
    skipped: Mapping[str, str] = {}

    def __init__(self, model: onnx.ModelProto, fault: str, choices: Sequence[Choice] = ()) -> None:
        self._fault = fault
        self._choices = choices
        self.inputs = input_infos(Network(model))
        self._free = not all(info.is_static for info in self.inputs)
        self._outputs = [value.name for value in model.graph.output]
        try:
            self._right, self._wrong = (
                onnxruntime.InferenceSession(
                    each.SerializeToString(), providers=["CPUExecutionProvider"]
                )
                for each in (
                    model,
                    spoiled(model, unsteady_builds.wrong_nodes(choices) if choices else None),
                )
            )
        except Exception as error:
            raise BuildError(str(error)) from error
        self._runs = 0
        self._fewest = 1 << 40
        kind = fault.partition(":")[0]
        read = {name: node.op_type for node in model.graph.node for name in node.input}
        self._fused = any(
            read.get(n.output[0]) == "Tanh" for n in model.graph.node if n.name.startswith("bad")
        )
        self._unlucky = kind == "tactic" and bool(unsteady_builds.wrong_nodes(choices))

    def layers(self) -> list[dict[str, Any]]:
        kernels = {each.layer: each.value for each in self._choices if each.kind == "tactic"}
        return [
            {"name": name, "kind": "kernel", "precisions": [], "tensors": [], "tactic": k}
            for name, k in kernels.items()
        ]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self._runs += 1
        feed = {info.name: inputs[info.name] for info in self.inputs}
        right = dict(zip(self._outputs, self._right.run(None, feed), strict=True))
        wrong = dict(zip(self._outputs, self._wrong.run(None, feed), strict=True))
        rows = next(iter(feed.values())).shape[0]
        kind, _, number = self._fault.partition(":")
        self._fewest = min(self._fewest, rows)
        bad = (
            (kind == "second" and self._runs == 2)
            or (kind == "batch" and rows >= int(number))
            or (kind == "free" and self._free and rows >= int(number))
            or (kind == "fused" and self._free and self._fused and rows >= int(number))
            or (kind == "grown" and self._fewest < int(number) <= rows)
            or (kind == "only" and rows == int(number))
            or (kind == "not_multiple" and rows % int(number) != 0)
            or self._unlucky
            or (kind == "unless" and not Path(number).exists())
            or (kind == "once" and _first_of(Path(number)))
        )
        return wrong if bad else right


class UnsteadyRunner:
    """Makes sessions with a fault."""

    facts: Mapping[str, Any] = {"version": "1"}

    def __init__(self, settings: UnsteadySettings) -> None:
        self._settings = settings

    def _built(self, model: Path) -> tuple[onnx.ModelProto, list[Choice]]:
        own = self._settings
        if own.load_engine is not None:
            return unsteady_builds.load_engine(Path(own.load_engine))
        proto = onnx.load(str(model))
        kind, _, chance = own.fault.partition(":")
        choices: list[Choice] = []
        if kind == "tactic":
            choices = unsteady_builds.build(proto, float(chance), own.pins, own.bans)
            unsteady_builds.record(own.record, choices)
        if own.save_engine is not None:
            unsteady_builds.save_engine(Path(own.save_engine), proto, choices)
        return proto, choices

    def load(self, model: Path, feed: object, hints: object) -> Session:  # noqa: ARG002 - not needed
        """Prepare a model."""
        proto, choices = self._built(model)
        if self._settings.fault == "refuses":
            raise BuildError("it has no kernel")
        return Session(proto, self._settings.fault, choices)
