"""A runner module that runs code in a place, to see what becomes of a place that is in trouble."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def make(settings: dict[str, Any]) -> Any:
    """Run ``settings["code"]``."""
    exec("import os, signal, time; " + settings["code"], {})
    return SimpleNamespace(facts={}, gpu_memory=lambda: 0)
