"""A runner module that runs code in a place, to see what becomes of a place that is in trouble."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


def make(settings: dict[str, Any]) -> Any:
    """Run ``settings["code"]``; a model that is loaded is code too, which sees ``settings`` and reports the files in reach."""

    def load(path: Path, *_: Any) -> Any:
        files = {
            each
            for folder in (path.parent, Path.cwd())
            for each in folder.iterdir()
            if each.is_file()
        }
        read = {each.name: each.read_text() for each in files}
        exec(
            "import os, signal; from pathlib import Path; " + path.read_text(),
            {"settings": settings},
        )
        return SimpleNamespace(inputs=[], skipped=read)

    exec("import os, signal, time; " + settings["code"], {})
    return SimpleNamespace(facts={}, gpu_memory=lambda: 0, load=load)
