"""Values for a model's inputs, from the user's script, from files, or random; and the import of users' scripts."""

from __future__ import annotations

import importlib
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.aliases import Plain
from bisect_trt.errors import (
    ConflictError,
    InputValuesError,
    ScriptError,
    UnknownNameError,
    UsageError,
    ValueRefusedError,
    quoted,
)
from bisect_trt.options.shared import Data
from bisect_trt.tensors.files import Arrays, Values, load_runs
from bisect_trt.tensors.info import Array, TensorInfo, is_extension, is_raw, storage_dtype
from bisect_trt.tensors.kernel import free_bytes

Sample = Arrays
LABELS = "labels"
_DEFAULT_FUNCTION = "load_data"
_LOADER_KIND = "data-loader"
_SAMPLE_BYTES = 1000
"""Memory of a sample beside its values."""
_ASSUMED_FREE = 8 << 30
"""The free memory that is assumed where it is not known."""


def split_script(script: str, default_function: str, kind: str) -> tuple[Path, str]:
    """Return file and function of ``FILE`` or ``FILE:FUNCTION``; a file with a colon in its name is found too.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``.
        default_function: The name of the function if the option names none.
        kind: The kind of script, for messages: ``data-loader``, for example.

    Raises:
        UsageError: There is no such file.
    """
    file = script
    function = default_function
    if not os.path.isfile(script) and ":" in script:  # noqa: PTH113 - Path.is_file raises for too long a name
        file, _, function = script.rpartition(":")
    if not os.path.isfile(file):  # noqa: PTH113 - as above
        raise ScriptError(
            f"The {kind} script {Path(file)} does not exist; give FILE or FILE:FUNCTION"
        )
    return Path(file), function


def is_script(entry: str) -> bool:
    """Return whether an option's value is a Python script, with or without ``:FUNCTION``, and not a file of data."""
    return Path(entry).suffix == ".py" or Path(entry.rpartition(":")[0]).suffix == ".py"


def script_attribute(path: Path, name: str, kind: str) -> Any:  # noqa: ANN401 - whatever the script has
    """Import a script and return its function or variable of this name; call it within :func:`user_code`.

    Args:
        path: The Python file.
        name: The name of the function or variable.
        kind: The kind of script; it is part of the name of the module.

    Raises:
        UsageError: The script has nothing of this name.
    """
    # The module is named after its kind: a script `model.py` must not shadow a package.
    module_name = f"bisect_trt_{kind.replace('-', '_')}_script"
    loader = SourceFileLoader(module_name, str(path))
    spec = spec_from_loader(module_name, loader)
    assert spec is not None, "a spec is None only without a loader"
    module = module_from_spec(spec)
    # Where dataclasses and pickle look for the module of a class.
    sys.modules[module_name] = module
    loader.exec_module(module)
    value = getattr(module, name, None)
    if value is None:
        raise ScriptError(
            f"{path} has no function '{name}'; add it, or name another as {path}:FUNCTION"
        )
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
        frames = [
            frame
            for frame in traceback.extract_tb(err.__traceback__)
            if frame.filename == str(path)
        ]
        line = err.lineno if isinstance(err, SyntaxError) else frames[-1].lineno if frames else None
        position = f"{path}, line {line}" if line else str(path)
        package = isinstance(err, ModuleNotFoundError) and err.name
        remedy = f"install it: pip install {package}" if package else "correct the script"
        raise ScriptError(
            f"The {kind} script {position} raised {type(err).__name__}: {err}; {remedy}"
        ) from err
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


class NamedOutputs(Arrays):
    """The outputs of one run by name, with the fields of Polygraphy's ``IterationResult``; the ``runtime`` is not known."""

    def __init__(self, outputs: Values, runner_name: str) -> None:
        super().__init__(outputs)
        self.runner_name = runner_name
        self.runtime = None


def make_inputs(
    infos: Sequence[TensorInfo], data: Data, max_samples: int | None = None
) -> list[Sample]:
    """Return the samples of a model's inputs, at least one, each with every input in the order of ``infos``.

    Args:
        infos: The model's inputs. For random values each must have a static shape.
        data: The source: a script, files as :func:`bisect_trt.tensors.files.load_runs` reads them
            (several make one sample if no two hold the same input), else random values.
        max_samples: The most samples to return; ``None`` for all.

    Raises:
        UsageError: A sample does not fit the model, a file or script is invalid, or random values
            are impossible because their range holds none or a shape is not known.
    """
    return [
        sample
        for sample, _ in islice(
            labelled_inputs(infos, data, exhaust=max_samples is None), max_samples
        )
    ]


def labelled_inputs(
    infos: Sequence[TensorInfo], data: Data, *, exhaust: bool = False
) -> Iterator[tuple[Sample, Any]]:
    """Yield the samples of :func:`make_inputs`, each with its labels: an array, a dict of name to array, or ``None``.

    Labels are what a script yields beside the inputs; or an entry called ``labels`` that is no
    input.

    Args:
        infos: The model's inputs. For random values each must have a static shape.
        data: The source of the values.
        exhaust: Whether a script is run to its end before the first sample is checked.
    """
    script = data.data_loader_script
    if script is not None:
        if data.load_inputs:
            raise ConflictError(
                "--data-loader-script and --load-inputs both give the inputs; use one of them"
            )
        pairs = each_sample(script, data.iterations)
        for number, (sample, labels) in enumerate(list(pairs) if exhaust else pairs):
            inputs, entry_labels = _without_labels(infos, sample)
            checked = validate_sample(
                infos, of_width(infos, inputs), f"Sample {number} of {script}"
            )
            yield checked, entry_labels if labels is None else labels
    elif data.load_inputs:
        if data.iterations is not None:
            raise ConflictError("--iterations conflicts with --load-inputs; use one of them")
        for loaded, source in _loaded(data.load_inputs):
            inputs, labels = _without_labels(infos, loaded)
            yield validate_sample(infos, inputs, source), labels
    else:
        yield from ((sample, None) for sample in _random_samples(infos, data))


def given_samples(data: Data) -> list[Values]:
    """Return the samples of a script or of files as they are, whether or not they fit the model.

    Raises:
        UsageError: A file or script is invalid.
    """
    if data.data_loader_script is not None:
        return [sample for sample, _ in each_sample(data.data_loader_script, data.iterations)]
    return [sample for sample, _ in _loaded(data.load_inputs)]


def _without_labels(infos: Sequence[TensorInfo], sample: Plain) -> tuple[Plain, Any]:
    """Return a sample's inputs, and the labels among them."""
    if LABELS not in sample or any(info.name == LABELS for info in infos):
        return sample, None
    return {name: values for name, values in sample.items() if name != LABELS}, sample[LABELS]


def validate_sample(infos: Sequence[TensorInfo], sample: Values, source: str) -> Sample:
    """Return values in the order of a model's inputs, after checking that they fit; a free dimension takes any size.

    Raw bytes, which plain NumPy makes of saved bfloat16 or float8 values, are converted.

    Args:
        infos: The model's inputs.
        sample: Arrays by input name.
        source: The origin of the sample, which begins the message.

    Raises:
        UsageError: Inputs are missing or unknown, or differ in shape or type; the message names
            every one of them.
    """
    expected = {info.name: info for info in infos}
    problems = []
    if missing := [name for name in expected if name not in sample]:
        problems.append(f"{quoted(missing)} missing")
    if unknown := [name for name in sample if name not in expected]:
        problems.append(f"{quoted(unknown)} unknown")
    if problems:
        problems.append(f"the model's inputs are {quoted(expected)}")
    checked = {}
    for name, info in expected.items():
        if name in sample:
            checked[name] = values = _in_type(sample[name], info.dtype)
            problems += _misfit(info, values)
    if problems:
        raise InputValuesError(f"{source} does not fit the model: {'; '.join(problems)}")
    return checked


def resized(value: Array, shape: Sequence[int]) -> Array:
    """Return the elements in another shape of the same rank: repeated along a longer axis, cut along a shorter one."""
    for axis, size in enumerate(shape):
        if size != value.shape[axis]:
            # An empty axis has nothing to repeat, so zeros take its place.
            if not value.shape[axis]:
                value = np.zeros_like(
                    value, shape=(*value.shape[:axis], 1, *value.shape[axis + 1 :])
                )
            value = value.take(np.arange(size) % value.shape[axis], axis=axis)
    return value


def _misfit(info: TensorInfo, values: Array) -> list[str]:
    problems = []
    # NumPy's types of strings differ in width; ONNX has one type.
    is_text = info.dtype.kind == values.dtype.kind == "U"
    if info.dtype != values.dtype and not is_text:
        problems.append(f"'{info.name}' is {values.dtype.name} and must be {info.dtype.name}")
    if info.shape is not None and (
        len(info.shape) != values.ndim
        or any(
            isinstance(dim, int) and dim != size
            for dim, size in zip(info.shape, values.shape, strict=True)
        )
    ):
        problems.append(
            f"'{info.name}' has shape {list(values.shape)} and must have {shape_text(info.shape)}"
        )
    return problems


def shape_text(shape: Sequence[int | str | None]) -> str:
    """Return a shape as text, ``?`` for a free dimension."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _in_type(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in the type of an input where they are stored otherwise: as raw bytes, bits, or objects that are text."""
    if dtype.kind == "U" and values.dtype.kind == "O":
        return values.astype(np.str_)
    # Plain NumPy saves ml_dtypes values as raw bytes (V2), this package as unsigned integers.
    bits = is_raw(values.dtype) or (is_extension(dtype) and values.dtype == storage_dtype(dtype))
    if bits and is_extension(dtype) and values.itemsize == dtype.itemsize:
        return values.view(dtype)
    return values


def of_width(infos: Sequence[TensorInfo], sample: Values) -> Sample:
    """Return a script's values in the width of the model's inputs where the numbers fit, all else unchanged.

    NumPy makes float64 and int64 of numbers without a type; the types in a file are kept.
    """
    types = {info.name: info.dtype for info in infos}
    return {
        name: _as_wide(values, types.get(name, values.dtype)) for name, values in sample.items()
    }


def _as_wide(values: Array, dtype: np.dtype[Any]) -> Array:
    kinds = {values.dtype.kind, dtype.kind}
    if values.dtype == dtype or not (kinds == {"f"} or kinds <= {"i", "u"}):
        return values
    with np.errstate(over="ignore"):
        fitted = values.astype(dtype)
    if dtype.kind == "f":
        lossless = np.array_equal(np.isfinite(fitted), np.isfinite(values))
    else:
        # Some widths turn integers of one sign into the other.
        lossless = np.array_equal(fitted, values) and np.array_equal(fitted < 0, values < 0)
    return fitted if lossless else values


def _loaded(paths: Sequence[Path]) -> Iterator[tuple[Plain, str]]:
    """Yield the samples in files, each with its origin."""
    files = [(path, run.samples) for path in paths for run in load_runs(path)]
    samples_of_all = [sample for _, samples in files for sample in samples]
    names = [name for sample in samples_of_all for name in sample]
    # Files without a common input are parts of one sample.
    if len(files) > 1 and len(set(names)) == len(names):
        merged = {name: values for sample in samples_of_all for name, values in sample.items()}
        yield merged, f"The inputs from {', '.join(map(str, paths))} together"
        return
    for path, samples in files:
        for number, sample in enumerate(samples):
            yield sample, str(path) if len(samples) == 1 else f"Sample {number} of {path}"


def loaded_names(data: Data) -> set[str]:
    """Return the names of all values in the files of ``--load-inputs``.

    Raises:
        UsageError: A file cannot be read.
    """
    return {
        name
        for path in data.load_inputs
        for run in load_runs(path)
        for sample in run.samples
        for name in sample
    }


def _random_samples(infos: Sequence[TensorInfo], data: Data) -> list[Sample]:
    names = [info.name for info in infos]
    if unknown := [name for name in data.val_range if name and name not in names]:
        raise UnknownNameError(
            f"A value range is given for {quoted(unknown)}; the model's inputs are {quoted(names)}.",
            unknown[0],
            names,
        )
    if free := [
        f"'{info.name}' {shape_text(info.shape or ())}" for info in infos if not info.is_static
    ]:
        raise InputValuesError(
            f"Random values need known shapes, and {', '.join(free)} is not; give --input-shapes"
        )
    if texts := [info.name for info in infos if info.dtype.kind == "U"]:
        raise InputValuesError(
            f"Random values are numbers, and {quoted(texts)} takes strings; give --load-inputs or --data-loader-script"
        )
    # NumPy's message about a negative seed names no option.
    if data.seed < 0:
        raise ValueRefusedError(f"The seed {data.seed} is negative; give a number from 0 up")
    _check_memory(infos, data.iterations or 1)
    rng = np.random.default_rng(data.seed)
    default = data.val_range.get("", (0.0, 1.0))
    return [
        {
            info.name: _random_values(rng, info, *data.val_range.get(info.name, default))
            for info in infos
        }
        for _ in range(data.iterations or 1)
    ]


def _check_memory(infos: Sequence[TensorInfo], samples: int) -> None:
    """Refuse random values that take over a quarter of the free memory: a comparison holds several copies of them."""
    sizes = [math.prod(info.sizes or ()) for info in infos]
    # NumPy draws in float64.
    needed = samples * (sum(sizes) * np.dtype(np.float64).itemsize + _SAMPLE_BYTES)
    free = _ASSUMED_FREE if (measured := free_bytes()) is None else measured
    if 4 * needed > free:
        shapes = ", ".join(f"'{info.name}' {shape_text(info.shape or ())}" for info in infos)
        raise InputValuesError(
            f"{samples} samples of random values for {shapes} take {needed / (1 << 30):,.1f} GiB, and a comparison needs four "
            f"times as much; {free / (1 << 30):,.1f} GiB are free. Give smaller --input-shapes, or fewer --iterations"
        )


def _random_values(rng: np.random.Generator, info: TensorInfo, low: float, high: float) -> Array:
    """Return uniform values within [low, high] and the type's range."""
    shape = info.sizes or ()
    if info.dtype.kind in "biu" or (is_extension(info.dtype) and "int" in info.dtype.name):
        smallest, largest = (0, 1) if info.dtype.kind == "b" else _limits(info.dtype)
        first = max(math.ceil(low), int(smallest))
        last = min(math.floor(high), int(largest))
        _check_range(info, first, last)
        # Generator.integers draws int64 by default, which lacks the upper half of uint64.
        drawn = np.uint64 if last > np.iinfo(np.int64).max else np.int64
        integers = np.asarray(rng.integers(first, last, size=shape, dtype=drawn, endpoint=True))
        return integers.astype(info.dtype)
    smallest, largest = _limits(info.dtype)
    low = max(low, smallest)
    high = min(high, largest)
    _check_range(info, low, high)
    # Scaled here, for Generator.uniform refuses a range that is wider than float64's largest
    # number.
    share = rng.random(shape)
    return np.asarray(low * (1 - share) + high * share).astype(info.dtype)


def _check_range(info: TensorInfo, low: float, high: float) -> None:
    if low > high:
        raise ValueRefusedError(
            f"Input '{info.name}': its value range holds no {info.dtype.name} number; give another with --val-range"
        )


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest and largest finite number of a type; exact, as int, for integers."""
    integer = "int" in dtype.name
    source: Any = importlib.import_module("ml_dtypes") if is_extension(dtype) else np
    limits = source.iinfo(dtype) if integer else source.finfo(dtype)
    convert = int if integer else float
    return convert(limits.min), convert(limits.max)


def each_sample(script: str, max_samples: int | None = None) -> Iterator[tuple[Sample, Any]]:
    """Run a script and yield its samples, at least one, each with its labels.

    The function takes no arguments and returns or yields samples, each a mapping of input name to
    array, or a pair of that and the labels. A variable that holds them works as well. ``max_samples`` is
    the most samples to take, of a function that may yield without end.

    Raises:
        UsageError: There is no such file or function, the script raises, or it returns no samples.
    """
    path, function = split_script(script, _DEFAULT_FUNCTION, _LOADER_KIND)
    number = 0
    with user_code(path, _LOADER_KIND):
        loader = script_attribute(path, function, _LOADER_KIND)
        loaded = loader() if callable(loader) else loader
        if isinstance(loaded, Mapping) or not hasattr(loaded, "__iter__"):
            raise ScriptError(
                f"'{function}' of {path} gives a {type(loaded).__name__}; it must yield or return a list of samples, "
                "each a dict of input name to array"
            )
        for entry in islice(loaded, max_samples):
            # A list of two samples is no sample with labels.
            pair = (
                isinstance(entry, (tuple, list))
                and len(entry) == 2
                and isinstance(entry[0], Mapping)
            )
            sample, labels = entry if pair else (entry, None)
            if not isinstance(sample, Mapping):
                raise ScriptError(
                    f"'{function}' of {path} gives a {type(sample).__name__} as sample {number}; "
                    "each must be a dict of input name to array"
                )
            yield _arrays(sample), labels if labels is None else _arrays(labels)
            number += 1
    if not number:
        raise ScriptError(f"'{function}' of {path} gives no sample; it must yield at least one")


def _arrays(content: Any) -> Any:  # noqa: ANN401 - whatever the script gives
    if isinstance(content, Mapping):
        return {str(name): np.asarray(values) for name, values in content.items()}
    return np.asarray(content)
