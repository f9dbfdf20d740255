"""Input samples from a Python script of the user's."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError

DEFAULT_FUNCTION = "load_data"


def run_data_loader(script: str) -> list[dict[str, NDArray[Any]]]:
    """Run a script and collect the samples that it gives.

    The script is imported as a module, with its folder on the import path. The function takes no arguments and returns
    or yields samples, each a mapping of input name to array; a variable that holds them is taken as well.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``; without a function, ``load_data``.

    Returns:
        At least one sample.

    Raises:
        UsageError: If there is no such file or function, the script raises, or what it gives is no sample.
    """
    path, function = _split(script)
    samples: list[dict[str, NDArray[Any]]] = []
    with _user_code(path):
        loader = getattr(_import_script(path), function, None)
        if loader is None:
            raise UsageError(f"{path} has no function '{function}'; add it, or name another as {path}:FUNCTION")
        given = loader() if callable(loader) else loader
        if isinstance(given, Mapping) or not hasattr(given, "__iter__"):
            raise UsageError(
                f"'{function}' of {path} gives a {type(given).__name__}; it must yield or return a list of samples, "
                "each a dict of input name to array"
            )
        for sample in given:
            if not isinstance(sample, Mapping):
                raise UsageError(
                    f"'{function}' of {path} gives a {type(sample).__name__} as sample {len(samples)}; "
                    "each must be a dict of input name to array"
                )
            samples.append({str(name): np.asarray(values) for name, values in sample.items()})
    if not samples:
        raise UsageError(f"'{function}' of {path} gives no sample; it must yield at least one")
    return samples


def _split(script: str) -> tuple[Path, str]:
    """File and function; a file whose name contains a colon is still found."""
    if not Path(script).is_file() and ":" in script:
        file, _, function = script.rpartition(":")
        path = Path(file)
    else:
        path, function = Path(script), DEFAULT_FUNCTION
    if not path.is_file():
        raise UsageError(f"The data-loader script {path} does not exist; give FILE or FILE:FUNCTION")
    return path, function


def _import_script(path: Path) -> ModuleType:
    name = "bisect_trt_data_loader_script"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a spec is None only without a loader"
    module = module_from_spec(spec)
    # Where dataclasses and pickle look for the module of a class.
    sys.modules[name] = module
    loader.exec_module(module)
    return module


@contextmanager
def _user_code(path: Path) -> Iterator[None]:
    """Import path as for ``python FILE``, and any error told as the script's own."""
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
        raise UsageError(
            f"The data-loader script {where} raised {type(err).__name__}: {err}; correct the script"
        ) from err
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
