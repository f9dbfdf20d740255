"""The worker as a zip application: what is sent to another interpreter, where nothing of the package is installed."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bisect_trt.targets import find, names
from bisect_trt.targets.base import Target

_ROOTS = ("bisect_trt.worker.away", "bisect_trt.worker.host", "bisect_trt.tensors.npz")
_SECOND = """
import hashlib, json, os, sys, tempfile
if sys.path and sys.path[0] in ("", os.getcwd()): del sys.path[0]
def take(size):
    content = b""
    while len(content) < size:
        piece = f.read(size - len(content))
        if not piece: os._exit(0)
        content += piece
    return content
options = json.loads(f.readline())
content = take(options["size"])
own = tempfile.mkdtemp(prefix="bisect-trt-worker-")
path = os.path.join(own, "worker.pyz")
with open(path, "wb") as file: file.write(content)
sys.path.insert(0, path)
for name in [name for name in sys.modules if name.partition(".")[0] == "bisect_trt"]: del sys.modules[name]
from bisect_trt.worker.away import main
main(own, options)
"""
"""Runs after ``channel.FIRST_LINE``: writes the zip file into a folder of its own and starts what is in it."""


def start(options: Mapping[str, Any]) -> bytes:
    """What is written to an interpreter that has run ``channel.FIRST_LINE``; for ``options`` see ``away.main``."""
    content = application()
    return f"{_SECOND!r}\n{json.dumps({**options, 'size': len(content)})}\n".encode() + content


@cache
def application() -> bytes:
    """The worker with the runner modules of all targets that have one, as a zip file."""
    sent = [name for each in names() for name in _target(each)]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        packages = set()
        for name, source in sources([*_ROOTS, *sent]).items():
            path = name.replace(".", "/")
            archive.writestr(f"{path}.py", source)
            packages |= {parent.as_posix() for parent in Path(path).parents} - {"."}
        for package in sorted(packages):  # empty: the package's own would import what is not sent
            archive.writestr(f"{package}/__init__.py", "")
    return buffer.getvalue()


def _target(name: str) -> tuple[str, ...]:
    try:
        plugin: Target = find(name)
    except Exception:  # a plug-in of another package that cannot be loaded
        return ()
    return () if plugin.stays else plugin.sent


def sources(roots: Iterable[str]) -> dict[str, str]:
    """The text of modules and of all that they import at their top level from the same packages, by name."""
    pending = list(roots)
    tops = {name.partition(".")[0] for name in pending}
    found: dict[str, str] = {}
    while pending:
        name = pending.pop()
        if name in found or (source := _source(name)) is None:
            continue
        found[name] = source
        pending += [each for each in _imported(source) if each.partition(".")[0] in tops]
    return found


def _source(name: str) -> str | None:
    """The text of a module; ``None`` for a package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is sent to workers elsewhere, and does not exist"
    assert spec.origin is not None, f"{name} is sent to workers elsewhere, and has no source"
    return None if spec.submodule_search_locations is not None else Path(spec.origin).read_text(encoding="utf-8")


def _imported(source: str) -> Iterator[str]:
    """The modules that a module imports at its top level; those for type checkers are not among them."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if _is_package(node.module) and importlib.util.find_spec(name) is not None:
                    yield name


def _is_package(name: str) -> bool:
    if name.partition(".")[0] in ("__future__", "typing", "collections"):
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None
