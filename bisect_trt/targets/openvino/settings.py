"""What only OpenVINO has."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.targets.base import OwnSettings

CPU = "CPU"


@dataclass(frozen=True)
class OpenVinoSettings(OwnSettings):
    """What only OpenVINO has.

    Attributes:
        device: Its device, as it calls it: ``CPU``, ``GPU.0``, ``AUTO``, ``HETERO:GPU,CPU``.
        properties: Properties of the device that a model is compiled with, by OpenVINO's names.
    """

    device: str = CPU
    properties: tuple[tuple[str, str], ...] = ()
