"""The origin of a node in the exported program: its module, the module's class, and the source line.

PyTorch's exporter leaves that in a node's ``metadata_props`` (``pkg.torch.onnx.name_scopes``, ``pkg.torch.onnx.class_hierarchy``,
``pkg.torch.onnx.stack_trace``; in older releases ``namespace`` alone); its TorchScript exporter has the module's path in the
node's name, ``/encoder/layers.0/norm/Pow``. Nothing of PyTorch is needed to read it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

PACKAGE = "pkg.torch.onnx."
"""The prefix of the keys of PyTorch's exporter."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_INSIDE = re.compile(
    r"(?:site|dist)-packages[\\/](?:torch|onnxscript)[\\/]|[\\/]torch[\\/](?:nn|onnx|jit|export|_\w+)[\\/]"
)
"""Frames of PyTorch's own layers; the line of the model that called them helps more."""
_TEXT_LIMIT = 1 << 16
"""The most text of an entry; no exporter writes more."""


@dataclass(frozen=True)
class Module:
    """The origin of a node.

    Attributes:
        path: Of the module from the model's root, as ``get_submodule`` takes it; empty for the root.
        kind: Its class, where known, as the exporter has it: ``package.module.Class``.
        source: ``file:line`` of the model's code, where known.
    """

    path: str
    kind: str | None = None
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for a node of a result."""
        return {"path": self.path, "class": self.kind, "source": self.source}


def module_of(node: onnx.NodeProto) -> Module | None:
    """Return the origin of a node, if its file names it."""
    said = {entry.key: entry.value for entry in node.metadata_props if len(entry.value) <= _TEXT_LIMIT}
    scopes = _scopes(said)
    if scopes is not None:
        return Module(*scopes, _innermost(said.get(f"{PACKAGE}stack_trace", "")))
    path = _path_of(node)
    return None if path is None else Module(path)


def describe_module(said: Mapping[str, Any]) -> str:
    """Return the plain values of :meth:`Module.to_json` in words: ``model.norm (RMSNorm), net.py:7``."""
    path, kind, source = (said.get(key) or "" for key in ("path", "class", "source"))
    words = path or "the root"
    if kind:
        words += f" ({kind.rpartition('.')[2]})"
    if source and Path(source).is_relative_to(Path.cwd()):
        source = str(Path(source).relative_to(Path.cwd()))
    return f"{words}, {source}" if source else words


def in_module(node: Mapping[str, Any]) -> str:
    """Return the words behind the name of a result's node: `` in module model.norm (RMSNorm), net.py:7``.

    Empty where no more is known than the path, which is in the name.
    """
    known = node.get("module") or {}
    return f" in module {describe_module(known)}" if known.get("class") or known.get("source") else ""


def _scopes(said: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Return path and class of the innermost module: the last of the scopes is the node's own operator."""
    scopes = _texts(said.get(f"{PACKAGE}name_scopes"))
    kinds = _texts(said.get(f"{PACKAGE}class_hierarchy"))
    if scopes is None and "namespace" in said:
        pairs = [part.partition(": ") for part in said["namespace"].split("/")]
        scopes, kinds = [name.strip() for name, _, _ in pairs], [kind.strip() for _, _, kind in pairs]
    if not scopes:
        return None
    if len(scopes) == 1:  # the root's own operator, or a node that an optimiser made
        return "", None
    kind = kinds[-2] if kinds is not None and len(kinds) == len(scopes) else None
    # ``L['self'].blocks[0].norm``, as strict export writes it, is ``blocks.0.norm``.
    path = re.sub(r"^L\[['\"]self['\"]\]\.?", "", scopes[-2])
    path = re.sub(r"(?:^|\.)_modules\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path)
    return re.sub(r"@\d+$", "", path).strip("."), kind or None


def _texts(said: str | None) -> list[str] | None:
    """Return a list of texts that Python printed."""
    try:
        value = ast.literal_eval(said) if said else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return [str(each) for each in value] if isinstance(value, list | tuple) else None


def _path_of(node: onnx.NodeProto) -> str | None:
    """Return the path at the start of the name of a TorchScript exporter's node."""
    name = next((name for name in (node.name, *node.output[:1]) if name.startswith("/")), "")
    parts: list[str] = []
    for scope in name.strip("/").split("/")[:-1]:
        if parts and scope.startswith(
            f"{parts[-1]}."
        ):  # a child of a Sequential has the Sequential's name before its own
            parts.pop()
        parts.append(scope)
    return ".".join(parts) or None


def _innermost(trace: str) -> str | None:
    """Return the model's line of a stack trace with its innermost frame last."""
    found = [f"{match['file']}:{match['line']}" for match in _FRAME.finditer(trace)][::-1]
    return next((each for each in found if not _INSIDE.search(each)), found[0] if found else None)
