"""Targets, commands and oracles that other packages add through entry points.

Importing this costs nothing, and a command line without plug-ins pays a directory listing:
``importlib.metadata`` is imported only where a package mentions one of the groups.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bisect_trt.aliases import Fields
from bisect_trt.errors import BisectError, PackageError, PluginError, UnavailableError

TARGETS = "bisect_trt.targets"
COMMANDS = "bisect_trt.commands"
ORACLES = "bisect_trt.oracles"
"""The groups of entry points."""
Value = TypeVar("Value")
TAKEN = "has the name of one of bisect-trt"
FAILED: list[str] = []
"""Why plug-ins were left out, a sentence each; ``bisect-trt doctor`` prints them."""


@cache
def installed(group: str) -> dict[str, str]:
    """The entry points of a group, as ``module:attribute`` by name."""
    if f"[{group}]" not in _texts():
        return {}
    # It takes as long to import as half of a command line takes to parse.
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    places: dict[str, set[str]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        places.setdefault(entry.name, set()).add(entry.value)
    for name, values in places.items():
        if len(values) > 1:
            FAILED.append(refused(name, " and ".join(sorted(values)), "have the same name"))
    return {name: min(values) for name, values in places.items() if len(values) == 1}


def load(place: str, name: str) -> Any:  # noqa: ANN401 - whatever it names
    """Import the object of an entry point.

    Raises:
        UnavailableError: Its package cannot be imported.
    """
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        # The code of another package may raise anything.
        reason = f"fails to load: {error!r}"
        # CPython marks a module that is still being imported by this.
        source = error.name if isinstance(error, ImportError) else None
        spec = getattr(sys.modules.get(source or ""), "__spec__", None)
        if getattr(spec, "_initializing", False):
            reason += "; commands have the options of targets, so these need a module of their own"
        raise PackageError(refused(name, place, reason)) from error


def loaded(
    group: str, objection: Callable[[Any], str | None], taken: Collection[str] = ()
) -> Fields:
    """Load the entry points of a group, by name; :data:`FAILED` lists why some are missing.

    Args:
        group: The group.
        objection: Returns why a loaded object cannot be used, if so.
        taken: The names of what this package has itself.
    """
    plugins: Fields = {}
    for name, place in installed(group).items():
        try:
            plugin = None if name in taken else load(place, name)
            reason = TAKEN if name in taken else objection(plugin)
            if reason is not None:
                raise PackageError(refused(name, place, reason))
            plugins[name] = plugin
        except UnavailableError as error:
            FAILED.append(str(error))
    return plugins


def refused(name: str, place: str, reason: str) -> str:
    """Return why a plug-in cannot be used, in a sentence; ``place`` is its entry point."""
    return f"the plug-in '{name}' cannot be used: {place} {reason}."


def plugin_of(code: Any) -> str | None:  # noqa: ANN401 - a function or an object
    """Return a function, a method or an object of a plug-in in words; ``None`` if this package has it."""
    module = getattr(getattr(code, "__self__", code), "__module__", "")
    name = getattr(code, "__qualname__", type(code).__name__)
    return None if module.startswith("bisect_trt.") else f"the plug-in {module}: {name}"


def contained(function: Callable[..., Value], kind: Any, *arguments: object) -> Value:  # noqa: ANN401 - a protocol is no type
    """Call a function that may be a plug-in's, and return its value as :func:`checked` does.

    Raises:
        PluginError: A plug-in raises an error that is none of this package's, or returns something else.
    """
    try:
        return checked(function, function(*arguments), kind)
    except (BisectError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        plugin = plugin_of(function)
        if plugin is None:
            raise
        raise PluginError(f"{plugin} raised {error!r:.200}.") from error


def checked(function: Callable[..., Value], value: Value, kind: Any) -> Value:  # noqa: ANN401 - as above
    """Return a value that a function returned; a plug-in's dataclass with its fields converted to their types.

    Args:
        function: The function, or a method.
        value: What it returned.
        kind: The class that a plug-in has to return.

    Raises:
        PluginError: It is of another class, or has a field of another type.
    """
    plugin = plugin_of(function)
    if plugin is None:
        return value
    from msgspec import ValidationError, convert  # noqa: PLC0415 - of plug-ins alone

    reason = ""
    try:
        if isinstance(value, kind):
            return convert(vars(value), kind) if is_dataclass(kind) else value  # type: ignore[return-value]  # of its class
    except ValidationError as error:
        reason = f": {error}"
    raise PluginError(f"{plugin} returned {value!r:.200}, which is no {kind.__name__}{reason}.")


def conflicting_builds() -> str | None:
    """Return a sentence if several builds of ONNX Runtime are installed: they share the folder ``onnxruntime``."""
    folders: dict[Path, set[str]] = {}
    for path in map(Path, _metadata()):
        name = path.name.split("-")[0]
        if name.startswith("onnxruntime") and _holds_runtime(path):
            folders.setdefault(path.parent, set()).add(name.replace("_", "-"))
    builds = sorted(next((names for names in folders.values() if len(names) > 1), ()))
    if not builds:
        return None
    return (
        f"{' and '.join(builds)} are installed in one folder, so the runtime under test is a mix of them. Remove them and "
        f"install one: pip uninstall -y {' '.join(builds)} && pip install {builds[-1]}"
    )


def _holds_runtime(metadata: Path) -> bool:
    """Return whether a distribution installs the module ``onnxruntime``; providers of ONNX Runtime's plug-in ABI do not."""
    try:
        return "onnxruntime/" in (metadata / "RECORD").read_text("utf-8", "replace")
    except OSError:
        # The package was not installed by pip.
        return True


@cache
def _metadata() -> list[str]:
    """Return the folders of package metadata on Python's path."""
    folders: list[str] = []
    for folder in sys.path:
        try:
            folders += [
                entry.path
                for entry in os.scandir(folder or ".")
                if entry.name.endswith((".dist-info", ".egg-info"))
            ]
        except OSError:
            # The entry is an archive, or is not there.
            continue
    return folders


@cache
def _texts() -> str:
    """Return the entry points of all packages on Python's path."""
    texts: list[str] = []
    for path in _metadata():
        try:
            texts.append(
                Path(path, "entry_points.txt").read_text(encoding="utf-8", errors="replace")
            )
        except OSError:
            continue
    return "\n".join(texts)
