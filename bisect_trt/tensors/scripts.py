"""Python scripts of the user: they load inputs, compare outputs, or compute a metric."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from bisect_trt.errors import ScriptError, UsageError


def split_script(script: str, default_function: str, kind: str) -> tuple[Path, str]:
    """File and function of ``FILE`` or ``FILE:FUNCTION``; a file with a colon in its name is still found.

    Args:
        script: The option's value.
        default_function: The function where none is named.
        kind: The script's purpose, for messages (``data-loader``).

    Raises:
        UsageError: There is no such file.
    """
    if not os.path.isfile(script) and ":" in script:  # noqa: PTH113 - Path.is_file raises for too long a name
        file, _, function = script.rpartition(":")
        path = Path(file)
    else:
        path, function = Path(script), default_function
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        raise ScriptError(f"The {kind} script {path} does not exist; give FILE or FILE:FUNCTION")
    return path, function


def is_script(entry: str) -> bool:
    """Whether an option's value is a Python script, with or without ``:FUNCTION``, and not a file of data."""
    return Path(entry).suffix == ".py" or Path(entry.rpartition(":")[0]).suffix == ".py"


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
    """The function or variable of this name in a script; call it within :func:`user_code`.

    Raises:
        UsageError: The script has nothing of this name.
    """
    value = getattr(import_script(path, kind), name, None)
    if value is None:
        raise ScriptError(f"{path} has no function '{name}'; add it, or name another as {path}:FUNCTION")
    return value


@contextmanager
def user_code(path: Path, kind: str) -> Iterator[None]:
    """Run code of a script with its folder on the import path; any error is reported as the script's own.

    Raises:
        UsageError: The code raised something.
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
        raise ScriptError(f"The {kind} script {where} raised {type(err).__name__}: {err}; correct the script") from err
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


class Outputs(dict[str, NDArray[Any]]):
    """The outputs of one run by name, with the fields of Polygraphy's ``IterationResult``.

    Attributes:
        runner_name: Which side they are of: ``target`` or ``reference``.
        runtime: Seconds the run took; not known.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], runner_name: str) -> None:
        super().__init__(outputs)
        self.runner_name = runner_name
        self.runtime = None
