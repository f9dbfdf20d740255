"""A package index of a test's own: wheels in a folder, which pip and uv are told of and nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

NUMPY = {"numpy_of_the_tests.pth": sysconfig.get_path("purelib") + "\n"}
"""A NumPy that is the tests' own: all that is installed beside them can be imported too, after the
environment's."""


class Index:
    """Wheels in a folder.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        """Empty, but for NumPy."""
        self.folder = folder
        folder.mkdir(parents=True)
        for version in ("1.26", "2.0"):
            self.add("numpy", version, NUMPY)

    def add(
        self, name: str, version: str, files: Mapping[str, str], tag: str = "py3", needs: str = ""
    ) -> None:
        """A release of a package.

        Args:
            name: Its name.
            version: The release.
            files: What is installed, by its path.
            tag: The interpreters that it is for, as ``cp38``.
            needs: The interpreters that its metadata allow, as ``>=3.8``.
        """
        info = f"{name}-{version}.dist-info"
        allowed = f"Requires-Python: {needs}\n" if needs else ""
        told = {
            **files,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{allowed}",
            f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}-none-any\n",
        }
        lines = []
        with zipfile.ZipFile(self.folder / f"{name}-{version}-{tag}-none-any.whl", "w") as wheel:
            for path, text in told.items():
                digest = (
                    base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
                    .rstrip(b"=")
                    .decode()
                )
                lines.append(f"{path},sha256={digest},{len(text.encode())}")
                wheel.writestr(path, text)
            wheel.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")

    def tell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have pip, and with that uv, look here and nowhere else."""
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)

    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder),
            "PIP_EXTRA_INDEX_URL": "",
            "BISECT_TRT_ENVS": str(self.folder.parent / "envs"),
            "UV_CACHE_DIR": str(self.folder.parent / "uv"),
            "PATH": os.pathsep.join(
                [sysconfig.get_path("scripts"), os.environ["PATH"]]
            ),  # a uv is installed with the tests
        }
