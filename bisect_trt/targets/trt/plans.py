"""What a process keeps of its builds, networks and engines, and what names them.

A network is parsed once a model: a search for precision asks for the same one with other layers in fp32 each time, so what
its layers were told is taken back and told anew. Two sets of nodes that come to the same orders for the same layers are one
engine, which is built once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from bisect_trt.onnxlib.external_data import has_external_data
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.config import is_strongly_typed, network_flags
from bisect_trt.targets.trt.parse import Feed, Parsed
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.standalone import layers_of

_MOST_PLANS = 8
_MOST_BYTES = 1 << 30
"""Of all engines that are kept for another set of nodes that comes to the same."""


@dataclass
class Plan:
    """A serialised engine.

    Attributes:
        content: Its bytes.
        served: The sets of kept nodes that it was given for. One that comes again is built anew: builds differ.
    """

    content: bytes
    served: set[tuple[str, ...]]


@dataclass
class Memory:
    """What a process keeps of its builds.

    Attributes:
        parsed: The last model's network, under what it was parsed of.
        plans: The last engines, under all that their builds were told.
    """

    parsed: tuple[bytes, Parsed] | None = None
    plans: dict[bytes, Plan] = field(default_factory=dict)

    def network(self, key: bytes) -> Parsed | None:
        """The network of a model, if it is the last one that was parsed."""
        return self.parsed[1] if self.parsed is not None and self.parsed[0] == key else None

    def plan(self, key: bytes, keep: tuple[str, ...]) -> bytes | None:
        """The engine that another set of kept nodes came to."""
        plan = self.plans.get(key)
        if plan is None or keep in plan.served:
            return None
        plan.served.add(keep)
        return plan.content

    def keep(self, key: bytes, plan: Plan) -> None:
        """Remember an engine; the oldest ones go."""
        self.plans.pop(key, None)
        self.plans[key] = plan
        while len(self.plans) > _MOST_PLANS or sum(len(each.content) for each in self.plans.values()) > _MOST_BYTES:
            self.plans.pop(next(iter(self.plans)))


def network_key(
    model: ModelProto, path: Path, settings: TargetSettings, feed: Feed | None, trt: TensorRt, *, show_unfused: bool
) -> bytes:
    """Names a network by all that goes into it.

    What a model is fed is a part of it where that says shapes (see :func:`parse`): integers, that is.
    """
    own = settings.of(TrtSettings)
    digest = hashlib.sha256(model.SerializeToString(deterministic=True))
    if has_external_data(model):
        digest.update(str(path.parent.resolve()).encode())
    digest.update(
        repr(
            (network_flags(settings, trt), own.onnx_flags, own.plugin_instancenorm, own.plugins, show_unfused)
        ).encode()
    )
    for name, value in sorted((feed or {}).items()):
        if value.dtype.kind in "iub":
            digest.update(repr((name, value.dtype.str, value.shape)).encode() + value.tobytes())
    return digest.digest()


def orders(network: Any, settings: TargetSettings, trt: TensorRt) -> bytes:
    """All that a build is told beside its network: the settings, and in what types layers are to run."""
    told = [
        repr(replace(settings, keep=bool(settings.keep) * ("some",)).with_own(save_engine=None, save_timing_cache=None))
    ]
    if not is_strongly_typed(settings, trt.version):
        for index, layer in enumerate(layers_of(network)):
            if layer.precision_is_set:
                outputs = [
                    layer.get_output_type(each) for each in range(layer.num_outputs) if layer.output_type_is_set(each)
                ]
                told.append(repr((index, layer.precision, outputs)))
    return "\n".join(told).encode()
