"""The runner of a target without a module of its own: ``reproduce.py`` gets it from bisect-trt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def make(settings: Mapping[str, Any]) -> Any:
    """Return the runner; ``settings`` has the whole of ``TargetSettings`` as ``target``."""
    from bisect_trt.targets.base import TargetSettings

    target_settings = TargetSettings.from_json(settings["target"])
    return target_settings.target.make_runner(target_settings)
