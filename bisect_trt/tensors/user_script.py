"""Functions from Python scripts of the user's: one makes inputs, another compares outputs."""

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

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError, quoted
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison


def split_script(script: str, default_function: str, kind: str) -> tuple[Path, str]:
    """File and function of ``FILE`` or ``FILE:FUNCTION``; a file whose name contains a colon is still found.

    Args:
        script: What the user gave.
        default_function: The function where none is named.
        kind: What the script is for, for messages (``data-loader``).

    Raises:
        UsageError: There is no such file.
    """
    if not os.path.isfile(script) and ":" in script:  # noqa: PTH113 - Path.is_file raises for too long a name
        file, _, function = script.rpartition(":")
        path = Path(file)
    else:
        path, function = Path(script), default_function
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        raise UsageError(f"The {kind} script {path} does not exist; give FILE or FILE:FUNCTION")
    return path, function


def is_script(entry: str) -> bool:
    """Whether what the user names is a Python script, with or without the name of a function, rather than a file of data."""
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


DEFAULT_FUNCTION = "load_data"
_LOADER_KIND = "data-loader"


def each_sample(script: str, most: int | None = None) -> Iterator[tuple[dict[str, NDArray[Any]], Any]]:
    """Run a script and give the samples that it gives, as they come, at least one, each with its labels.

    The script is imported as a module, with its folder on the import path. The function takes no arguments and returns
    or yields samples, each a mapping of input name to array, or a pair of that and the labels; a variable that holds them is
    taken as well.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``; without a function, ``load_data``.
        most: How many samples to take at most; a function may go on yielding for ever then.

    Yields:
        A sample, and its labels: an array, or a dict of name to array; ``None`` where it has none.

    Raises:
        UsageError: If there is no such file or function, the script raises, or what it gives is no sample.
    """
    path, function = split_script(script, DEFAULT_FUNCTION, _LOADER_KIND)
    number = 0
    with user_code(path, _LOADER_KIND):
        loader = script_attribute(path, function, _LOADER_KIND)
        given = loader() if callable(loader) else loader
        if isinstance(given, Mapping) or not hasattr(given, "__iter__"):
            raise UsageError(
                f"'{function}' of {path} gives a {type(given).__name__}; it must yield or return a list of samples, "
                "each a dict of input name to array"
            )
        for entry in given:
            pair = isinstance(entry, (tuple, list)) and len(entry) == 2 and isinstance(entry[0], Mapping)
            sample, labels = entry if pair else (entry, None)
            if not isinstance(sample, Mapping):
                raise UsageError(
                    f"'{function}' of {path} gives a {type(sample).__name__} as sample {number}; "
                    "each must be a dict of input name to array"
                )
            yield {str(name): np.asarray(values) for name, values in sample.items()}, _as_labels(labels)
            number += 1
            if number == most:
                break
    if not number:
        raise UsageError(f"'{function}' of {path} gives no sample; it must yield at least one")


def _as_labels(labels: Any) -> Any:  # noqa: ANN401 - whatever the script gives
    if labels is None:
        return None
    if isinstance(labels, Mapping):
        return {str(name): np.asarray(values) for name, values in labels.items()}
    return np.asarray(labels)


COMPARE_FUNCTION = "compare_outputs"
_COMPARE_KIND = "comparison"


class Outputs(dict[str, NDArray[Any]]):
    """The outputs of one run by name, with what Polygraphy's ``IterationResult`` has beside them.

    Attributes:
        runner_name: Which side they are of: ``target`` or ``reference``.
        runtime: Seconds the run took; not known.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], runner_name: str) -> None:
        super().__init__(outputs)
        self.runner_name = runner_name
        self.runtime = None


def check_script(script: str) -> Path:
    """The file of a script, found before anything else is done.

    Raises:
        UsageError: There is none.
    """
    return split_script(script, COMPARE_FUNCTION, _COMPARE_KIND)[0]


def compare_by_script(
    script: str, reference: Mapping[str, NDArray[Any]], target: Mapping[str, NDArray[Any]]
) -> list[TensorComparison]:
    """Have a function of the user's compare the outputs.

    It is called with the target's and the reference's outputs (Polygraphy's ``--compare-func-script``: two mappings of
    name to array, with a ``runner_name``), and gives a mapping of output name to whether it matches.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``; without a function, ``compare_outputs``.
        reference: Name to values.
        target: Name to values.

    Returns:
        A comparison for each output that the function judges.

    Raises:
        UsageError: There is no such file or function, it raises, or what it gives is no such mapping.
    """
    path, function = split_script(script, COMPARE_FUNCTION, _COMPARE_KIND)
    with user_code(path, _COMPARE_KIND):
        compare = script_attribute(path, function, _COMPARE_KIND)
        verdicts = compare(Outputs(target, "target"), Outputs(reference, "reference"))
        if not isinstance(verdicts, Mapping) or not verdicts:
            raise UsageError(
                f"'{function}' of {path} gives {verdicts!r:.60}; it must return a dict of output name to whether it matches"
            )
        judged = {str(name): bool(verdict) for name, verdict in verdicts.items()}
    if unknown := [name for name in judged if name not in reference]:
        raise UsageError(f"'{function}' of {path} judges {quoted(unknown)}; the outputs are {quoted(reference)}")
    return [
        TensorComparison(
            name=name,
            passed=passed,
            kind=ComparisonKind.MATCH if passed else ComparisonKind.MISMATCH,
            reason=f"{path.name} says that it {'matches' if passed else 'does not match'}",
            total=int(np.size(reference[name])),
        )
        for name, passed in judged.items()
    ]
