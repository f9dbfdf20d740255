"""What only ONNX Runtime has."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.targets.base import OwnSettings


@dataclass(frozen=True)
class OnnxRuntimeSettings(OwnSettings):
    """What only ONNX Runtime has.

    Attributes:
        providers: Its execution providers, by long or short name (``cuda``); its CPU provider where empty.
        optimize: Whether it may optimise the graph.
    """

    providers: tuple[str, ...] = ()
    optimize: bool = True
