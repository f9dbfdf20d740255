"""Targets, commands and oracles that other packages add through entry points.

Importing this costs nothing, and a command line without plug-ins pays a directory listing:
``importlib.metadata`` is imported only where a package mentions one of the groups.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bisect_trt.aliases import Fields
from bisect_trt.errors import PackageError, UnavailableError

TARGETS = "bisect_trt.targets"
COMMANDS = "bisect_trt.commands"
ORACLES = "bisect_trt.oracles"
"""The groups of entry points."""
FAILED: list[str] = []
"""Why plug-ins were left out, a sentence each; ``bisect-trt doctor`` prints them."""
_BUILDS = {
    "onnxruntime",
    *(
        f"onnxruntime_{name}"
        for name in ("directml", "gpu", "migraphx", "openvino", "qnn", "rocm", "training")
    ),
}
"""Distributions that install the module ``onnxruntime``, in some releases or all."""


@cache
def installed(group: str) -> dict[str, str]:
    """The entry points of a group, as ``module:attribute`` by name."""
    if f"[{group}]" not in _texts():
        return {}
    # It takes as long to import as half of a command line takes to parse.
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return {
        entry.name: entry.value
        for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)
    }


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
        raise PackageError(f"'{name}' cannot be used: {place} fails to load: {error!r}.") from error


@cache
def loaded(group: str, fits: Callable[[Any], bool] = bool) -> Fields:
    """Load the entry points of a group, by name; :data:`FAILED` lists why some are missing.

    ``fits`` tells whether a loaded object is what the group is for; it has to be the same for every
    call of a group.
    """
    plugins: Fields = {}
    for name, place in installed(group).items():
        try:
            plugin = load(place, name)
        except UnavailableError as error:
            FAILED.append(str(error))
            continue
        if fits(plugin):
            plugins[name] = plugin
        else:
            FAILED.append(
                f"'{name}' cannot be used: {place} is a {type(plugin).__name__}, which is no plug-in of {group}."
            )
    return plugins


def conflicting_builds() -> str | None:
    """Return a sentence if several builds of ONNX Runtime are installed: they share the folder ``onnxruntime``."""
    folders: dict[Path, set[str]] = {}
    for path in map(Path, _metadata()):
        name = path.name.split("-")[0]
        if name in _BUILDS and _holds_runtime(path):
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
