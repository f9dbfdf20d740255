"""The packages of ``examples/``, installed as somebody installs them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from support import Ran, json_file

ROOT = Path(__file__).parents[2]
PIP = (
    "--no-deps",
    "--no-build-isolation",
    "--no-index",
    "--disable-pip-version-check",
    "-q",
    "--target",
)


@cache
def site(name: str) -> Path:
    """Where pip has put one of them; on Python's path it is as if it was installed."""
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = folder / name
    shutil.copytree(ROOT / "examples" / name, source)  # setuptools builds in the folder itself
    command = [sys.executable, "-m", "pip", "install", *PIP, str(folder / "site"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


def python(here: Path, *argv: str, paths: Sequence[Path]) -> Ran:
    """Run Python with these folders on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, *argv]
    done = subprocess.run(
        command, cwd=here, capture_output=True, text=True, check=False, env=environment
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr, json_file(command, here))


def bisect_trt(here: Path, *argv: str, paths: Sequence[Path]) -> Ran:
    """Run the command line so."""
    return python(here, "-m", "bisect_trt", *argv, paths=paths)
