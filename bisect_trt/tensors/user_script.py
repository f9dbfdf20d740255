"""Functions from Python scripts of the user's."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from bisect_trt.errors import UsageError


def split_script(script: str, default_function: str, kind: str) -> tuple[Path, str]:
    """File and function of ``FILE`` or ``FILE:FUNCTION``; a file whose name contains a colon is still found.

    Args:
        script: What the user gave.
        default_function: The function where none is named.
        kind: What the script is for, for messages (``data-loader``).

    Raises:
        UsageError: There is no such file.
    """
    if not Path(script).is_file() and ":" in script:
        file, _, function = script.rpartition(":")
        path = Path(file)
    else:
        path, function = Path(script), default_function
    if not path.is_file():
        raise UsageError(f"The {kind} script {path} does not exist; give FILE or FILE:FUNCTION")
    return path, function


def import_script(path: Path, kind: str) -> ModuleType:
    """Run a script as a module."""
    name = f"bisect_trt_{kind.replace('-', '_')}_script"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a spec is None only without a loader"
    module = module_from_spec(spec)
    # Where dataclasses and pickle look for the module of a class.
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def script_attribute(path: Path, name: str, kind: str) -> Any:  # noqa: ANN401 - whatever the script has
    """What a script calls by a name; call it within :func:`user_code`.

    Raises:
        UsageError: The script has nothing of this name.
    """
    value = getattr(import_script(path, kind), name, None)
    if value is None:
        raise UsageError(f"{path} has no function '{name}'; add it, or name another as {path}:FUNCTION")
    return value


@contextmanager
def user_code(path: Path, kind: str) -> Iterator[None]:
    """Import path as for ``python FILE``, and any error told as the script's own.

    Raises:
        UsageError: What runs in it raised something.
    """
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except UsageError:
        raise
    # A script that calls sys.exit() must not end the driver.
    except (Exception, SystemExit) as err:
        frames = [frame for frame in traceback.extract_tb(err.__traceback__) if frame.filename == str(path)]
        line = err.lineno if isinstance(err, SyntaxError) else frames[-1].lineno if frames else None
        where = f"{path}, line {line}" if line else str(path)
        raise UsageError(f"The {kind} script {where} raised {type(err).__name__}: {err}; correct the script") from err
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
