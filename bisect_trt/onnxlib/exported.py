"""What an exporter says of a node: the module of the program that it comes from, its class, and the line that it was written on.

PyTorch's exporter leaves that in a node's ``metadata_props`` (``pkg.torch.onnx.name_scopes``, ``pkg.torch.onnx.class_hierarchy``,
``pkg.torch.onnx.stack_trace``; in older releases ``namespace`` alone); its TorchScript exporter has the module's path in the
node's name, ``/encoder/layers.0/norm/Pow``. Nothing of PyTorch is needed to read it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

PACKAGE = "pkg.torch.onnx."
"""Before the keys of what PyTorch's exporter says."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_INSIDE = re.compile(
    r"(?:site|dist)-packages[\\/](?:torch|onnxscript)[\\/]|[\\/]torch[\\/](?:nn|onnx|jit|export|_\w+)[\\/]"
)
"""Frames of PyTorch's own layers: whoever looks for a bug wants the line of the model that called them."""
_TEXT_LIMIT = 1 << 16
"""More than this no exporter writes, and a stranger's text is not read to no end."""


@dataclass(frozen=True)
class Module:
    """Where a node comes from.

    Attributes:
        path: Of the module from the model's root, as ``get_submodule`` takes it; empty for the root.
        kind: Its class, where known, as the exporter has it: ``package.module.Class``.
        source: ``file:line`` of the model's code, where known.
    """

    path: str
    kind: str | None = None
    source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, as they stand beside each node of a result."""
        return {"path": self.path, "class": self.kind, "source": self.source}


def module_of(node: onnx.NodeProto) -> Module | None:
    """Where a node comes from, if its file says so."""
    said = {entry.key: entry.value for entry in node.metadata_props if len(entry.value) <= _TEXT_LIMIT}
    scopes = _scopes(said)
    if scopes is not None:
        return Module(*scopes, _innermost(said.get(f"{PACKAGE}stack_trace", "")))
    path = _path_of(node)
    return None if path is None else Module(path)


def describe_module(said: Mapping[str, Any], *, short: bool = False) -> str:
    """A module's plain values in words: ``model.norm (RMSNorm), net.py:7``.

    Args:
        said: What :meth:`Module.to_json` made.
        short: Whether only the name of the file is said, which shows nobody's folders.
    """
    path, kind, source = (said.get(key) or "" for key in ("path", "class", "source"))
    where = _near(source, short=short) if source else ""
    words = path or "the root"
    return f"{words}{f' ({kind.rpartition(chr(46))[2]})' if kind else ''}{f', {where}' if where else ''}"


def in_module(node: Mapping[str, Any]) -> str:
    """What to say behind the name of a result's node: `` in module model.norm (RMSNorm), net.py:7``.

    Nothing where no more is known than the path, which is in the name.
    """
    known = node.get("module") or {}
    return f" in module {describe_module(known)}" if known.get("class") or known.get("source") else ""


def _near(source: str, *, short: bool) -> str:
    file, _, line = source.rpartition(":")
    path = Path(file)
    if short:
        return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{line}"
    try:
        return f"{path.relative_to(Path.cwd())}:{line}"
    except (ValueError, OSError):
        return source


def _scopes(said: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Path and class of the innermost module: the last of the scopes is the node's own operator."""
    scopes = _texts(said.get(f"{PACKAGE}name_scopes"))
    kinds = _texts(said.get(f"{PACKAGE}class_hierarchy"))
    if scopes is None and "namespace" in said:
        pairs = [part.partition(": ") for part in said["namespace"].split("/")]
        scopes, kinds = [name.strip() for name, _, _ in pairs], [kind.strip() for _, _, kind in pairs]
    if not scopes:
        return None
    at = max(len(scopes) - 2, 0)
    if len(scopes) == 1:  # the root's own operator, or a node that an optimiser made
        return "", None
    kind = kinds[at] if kinds is not None and len(kinds) == len(scopes) else None
    return _plain_path(scopes[at]), kind or None


def _texts(said: str | None) -> list[str] | None:
    """A list of texts as Python prints it."""
    try:
        value = ast.literal_eval(said) if said else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return [str(each) for each in value] if isinstance(value, list | tuple) else None


def _plain_path(scope: str) -> str:
    """``L['self'].blocks[0].norm``, as strict export has it, is ``blocks.0.norm``."""
    path = re.sub(r"^L\[['\"]self['\"]\]\.?", "", scope)
    path = re.sub(r"(?:^|\.)_modules\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path)
    return re.sub(r"@\d+$", "", path).strip(".")


def _path_of(node: onnx.NodeProto) -> str | None:
    """The path that the name of a TorchScript exporter's node begins with."""
    for name in (node.name, *node.output[:1]):
        if name.startswith("/"):
            *scopes, _ = name.strip("/").split("/")
            return script_path(scopes) if scopes else None
    return None


def script_path(scopes: Sequence[str]) -> str:
    """A module's path of TorchScript's scopes; what a Sequential calls is named with the Sequential's own name before it."""
    parts: list[str] = []
    for scope in scopes:
        if parts and scope.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(scope)
    return ".".join(parts)


def _innermost(trace: str) -> str | None:
    """The model's line of a stack trace, whose innermost frame stands last."""
    found = [f"{match['file']}:{match['line']}" for match in _FRAME.finditer(trace)][::-1]
    return next((each for each in found if not _INSIDE.search(each)), found[0] if found else None)
