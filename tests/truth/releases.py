"""Environments with other releases of runtimes, made when first needed and kept.

They are kept where those of places are, or in the folder that ``BISECT_TRT_TRUTH_ENVS`` names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from bisect_trt.worker import environments
from bisect_trt.worker.environments import Environment

_ROOT = Path(__file__).parents[2]
TOOL: Mapping[str, str] = {"PYTHONPATH": str(_ROOT)}
"""What an interpreter's environment needs to run this checkout: ``python -m bisect_trt``."""

if named := os.environ.get("BISECT_TRT_TRUTH_ENVS"):
    os.environ.setdefault(environments.FOLDER, named)


def onnxruntime(version: str) -> Environment:
    """An environment with a release of ONNX Runtime."""
    return Environment.parse(f"onnxruntime=={version}")


def interpreter(wanted: Environment, *, tool: bool = False) -> Path:
    """The Python of an environment.

    Args:
        wanted: The packages.
        tool: Whether all that bisect-trt needs is to be there too, but its own choice of ONNX
            Runtime; see :data:`TOOL`.

    Raises:
        UnavailableError: They cannot be installed.
    """
    if not tool:
        return environments.interpreter(wanted)
    version = ".".join(map(str, sys.version_info[:2]))
    return environments.interpreter(Environment((*wanted.requirements, *_needed()), version))


def _needed() -> list[str]:
    """What bisect-trt needs at run time and to make environments, without the runtime."""
    requirements = [Requirement(text) for text in metadata.requires("bisect-trt") or ()]
    return [
        "uv",
        *(
            str(each)
            for each in requirements
            if not each.name.startswith("onnxruntime")
            and (each.marker is None or each.marker.evaluate({"extra": ""}))
        ),
    ]
