"""The packages of ``examples/``, installed as somebody installs them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
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
def site() -> Path:
    """Where pip has put all of them; on Python's path they are as if they were installed."""
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("custom_command", "custom_oracle", "custom_target"):
        shutil.copytree(
            ROOT / "examples" / name, folder / "source" / name
        )  # setuptools builds in the folder itself
    sources = map(str, (folder / "source").iterdir())
    command = [sys.executable, "-m", "pip", "install", *PIP, str(folder / "site"), *sources]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


def python(here: Path, *argv: str, path: Path | None = None) -> Ran:
    """Run Python where these packages are installed, or those of another path."""
    environment = {**os.environ, "PYTHONPATH": str(path or site())}
    command = [sys.executable, *argv]
    done = subprocess.run(
        command, cwd=here, capture_output=True, text=True, check=False, env=environment
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr, json_file(command, here))


def bisect_trt(here: Path, *argv: str, path: Path | None = None) -> Ran:
    """Run the command line there."""
    return python(here, "-m", "bisect_trt", *argv, path=path)
