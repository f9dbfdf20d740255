"""Virtual environments with other releases of runtimes, made when first needed and kept.

They are kept in the folder that ``BISECT_TRT_TRUTH_ENVS`` names, else in the user's cache.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

_ROOT = Path(__file__).parents[2]


def onnxruntime(version: str) -> tuple[str, ...]:
    """The requirements of a release of ONNX Runtime; those before 1.19 were built for NumPy 1, and do not say so."""
    return (f"onnxruntime=={version}", *(("numpy<2",) if Version(version) < Version("1.19") else ()))


@functools.cache
def interpreter(*requirements: str, tool: bool = False) -> Path:
    """The Python of an environment with some packages.

    Args:
        requirements: As pip takes them.
        tool: Whether this checkout of bisect-trt is to be there too, with all that it needs but its own choice of ONNX Runtime.

    Raises:
        subprocess.CalledProcessError: if they cannot be installed.
    """
    wanted = [*requirements, *(_needed() if tool else ())]
    key = hashlib.sha256(repr((wanted, tool and str(_ROOT), sys.version_info[:2], sys.prefix)).encode()).hexdigest()[
        :12
    ]
    folder = _cache() / f"{requirements[0].replace('==', '-')}-{key}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=shutil.which("uv") is None)
            _install(python, *wanted)
            if tool:
                _install(python, "--no-deps", "--editable", str(_ROOT))
            (folder / "complete").touch()
    return python


def _needed() -> list[str]:
    """What bisect-trt needs at run time, without the runtime."""
    requirements = [Requirement(text) for text in metadata.requires("bisect-trt") or ()]
    return [
        str(each)
        for each in requirements
        if not each.name.startswith("onnxruntime") and (each.marker is None or each.marker.evaluate({"extra": ""}))
    ]


def _install(python: Path, *what: str) -> None:
    uv = shutil.which("uv")
    tool = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    subprocess.run([*tool, "--quiet", *what], check=True)


def _cache() -> Path:
    named = os.environ.get("BISECT_TRT_TRUTH_ENVS")
    return (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "bisect-trt" / "truth"
    )
