"""Tensors in files: one ``.npz`` a sample, or Polygraphy's JSON for all; and files that are replaced atomically.

``numpy.savez`` takes names as keyword arguments (so none may be ``file``), and loses ``ml_dtypes``
types. The ``.npz`` files written here are still ordinary: ``numpy.load`` opens them. bfloat16 and
similar types become unsigned integers of the same size; the comment of the zip entry has their true
type.

``polygraphy run --save-inputs`` writes a list of samples, each a mapping of name to array;
``--save-outputs`` a ``RunResults``: runs by the runner's name, each a list of iterations. An array
is a ``.npy`` file in Base64. Types that NumPy lacks are written as the raw bytes that
``numpy.save`` makes of them, with their name beside (``polygraphy/json/serde.py``,
``comparator/struct.py`` of 0.53.6, Apache-2.0).

Files may be a stranger's: how far a compressed file grows is checked before anything is read.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import re
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from bisect_trt.aliases import Fields, Sizes
from bisect_trt.errors import (
    BisectError,
    InputValuesError,
    OutputFileError,
    UsageError,
)
from bisect_trt.tensors.info import Array, ByName, dtype_from_name, is_extension

Values = Mapping[str, Array]
Arrays = dict[str, Array]
"""Arrays by the names of their tensors, to read and to change."""
_KINDS = "biufUV"
"""Real numbers, strings, and raw bytes (``ml_dtypes`` types, as plain NumPy saves them)."""


def shapes_of(values: Values) -> dict[str, Sizes]:
    """Return the shapes of arrays by name."""
    return {name: value.shape for name, value in values.items()}


def common_shapes(samples: Sequence[Values]) -> dict[str, tuple[int | None, ...]]:
    """Return the shape of each tensor by name; ``None`` for a dimension that is not the same in all samples.

    A tensor with samples of different ranks is left out.
    """
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, value in samples[0].items():
        sizes = [sample[name].shape for sample in samples]
        if all(len(shape) == value.ndim for shape in sizes):
            shapes[name] = tuple(
                dims[0] if len(set(dims)) == 1 else None for dims in zip(*sizes, strict=True)
            )
    return shapes


def read_npy(stream: IO[bytes]) -> Array:
    """Return an array of numbers, strings or raw bytes.

    Raises:
        ValueError: It holds something else.
    """
    values = np.asarray(npy_format.read_array(stream, allow_pickle=False))
    if (
        values.dtype.kind not in _KINDS
        or values.dtype.names is not None
        or not values.dtype.itemsize
    ):
        raise ValueError(
            f"it holds an array of {values.dtype!s:.60}, not of real numbers or strings"
        )
    return values


def viewed(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return stored elements in their true type.

    Raises:
        ValueError: The sizes differ, or the type cannot be stored so.
    """
    if dtype.kind == "O" or values.dtype.kind == "O" or dtype.itemsize != values.dtype.itemsize:
        raise ValueError(f"elements of {values.dtype} are no stored {dtype}")
    return values.view(dtype)


_SUFFIX = ".npy"
_EXPANSION = 100
_EXPANDED_BYTES = 1 << 30
"""The most a compressed file may grow, as a factor and in bytes; zeros could grow a thousand
times."""


def save_npz(path: str | os.PathLike[str], arrays: Values) -> None:
    """Write tensors of numbers, bools, strings or ``ml_dtypes`` types to an uncompressed ``.npz``, replaced when complete.

    Equal arrays give equal bytes: no time stamps are stored.

    Raises:
        UsageError: If the file cannot be written, or a tensor's name or values cannot be stored.
    """
    with replacing(Path(path)) as file:
        write_npz(file, arrays)


def write_npz(file: IO[bytes], arrays: Values) -> None:
    """Write tensors to an open file; see :func:`save_npz`.

    Raises:
        UsageError: If a tensor's name or values cannot be stored.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = _entry(name)
            values = np.asarray(array)
            if values.dtype.kind not in _KINDS:
                raise OutputFileError(
                    f"Cannot write '{name}' to an .npz file: it holds {values.dtype}, neither numbers nor strings; leave it out"
                )
            if is_extension(values.dtype):
                entry.comment = values.dtype.name.encode()
                values = values.view(f"u{values.dtype.itemsize}")
            # The size is unknown to the archive while it is written, so it allows for over 4 GiB.
            with archive.open(entry, "w", force_zip64=True) as stream:
                npy_format.write_array(stream, values, allow_pickle=False)


def load_npz(path: str | os.PathLike[str]) -> Arrays:
    """Return every tensor of an ``.npz`` file, written by :func:`save_npz` or ``numpy.savez``, in the file's order.

    Raises:
        UsageError: If the file is missing, unreadable, no ``.npz``, damaged, or holds pickled
            objects.
        UnavailableError: If a tensor's type needs ``ml_dtypes``, which is not installed.
    """
    # Not numpy.load: with tensors named 'x' and 'x.npy' in one file it returns the first for both.
    with _reading(path):
        return read_npz(Path(path))


def read_npz(file: IO[bytes] | Path) -> Arrays:
    """Return every tensor of an ``.npz`` file; see :func:`load_npz`, which reports errors."""
    with _opened(file) as archive:
        return dict(_read_entry(archive, entry) for entry in archive.infolist())


@contextmanager
def _opened(file: IO[bytes] | Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive in a file, after reading in its directory that it does not become much larger than the file.

    Raises:
        ValueError: It would.
    """
    with zipfile.ZipFile(file) as archive:
        assert archive.fp is not None
        size = archive.fp.seek(0, os.SEEK_END)
        # The sizes are read before anything is expanded: the file may be a stranger's.
        promised = sum(entry.file_size for entry in archive.infolist())
        if promised > max(_EXPANDED_BYTES, _EXPANSION * size):
            raise ValueError(f"{size:,} bytes of compressed arrays become {promised:,}")
        yield archive


_NPZ = "an .npz file as numpy.savez writes it, of numbers or strings (NumPy type str)"


@contextmanager
def _reading(path: str | os.PathLike[str], form: str = _NPZ) -> Iterator[None]:
    """Report any error of reading a file in a sentence, with the form that it should have."""
    try:
        yield
    except BisectError:
        raise
    except Exception as err:
        # Each compression has errors of its own, and a damaged archive can cause any.
        reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
        raise InputValuesError(f"Cannot read {path}: {reason}; give {form}") from err


class NpzFile(ByName[Array]):
    """The tensors of an ``.npz`` file, each read on access.

    Raises:
        UsageError: As :func:`load_npz`, on construction or when a tensor is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _reading(path), _opened(path) as archive:
            self._index = {
                entry.filename.removesuffix(_SUFFIX): entry for entry in archive.infolist()
            }

    def __getitem__(self, name: str) -> Array:
        entry = self._index[name]
        with _reading(self._path), _opened(self._path) as archive:
            return _read_entry(archive, entry)[1]


def open_inside(folder: Path, name: str | Path, max_bytes: int) -> IO[bytes]:
    """Open a file of a folder that may be a stranger's.

    Args:
        folder: The folder.
        name: The file's path below it.
        max_bytes: The most bytes that the file may have.

    Raises:
        OSError: It does not exist, is no regular file, is too large, or a symbolic link leads to
            it.
    """
    path = folder / name
    if os.path.realpath(path) != os.path.join(os.path.realpath(folder), name):  # noqa: PTH118 - ``..`` stays in it
        raise OSError(
            errno.ELOOP, "a symbolic link leads to it, or it is outside of the folder", str(path)
        )
    # Without O_NONBLOCK a FIFO would be waited for.
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115 - see above
    # Of the open file, not of the path: that may lead elsewhere by now.
    state = os.fstat(file.fileno())
    reason = "it is no regular file" if not stat.S_ISREG(state.st_mode) else "it is too large"
    if not stat.S_ISREG(state.st_mode) or state.st_size > max_bytes:
        file.close()
        raise OSError(errno.EINVAL, reason, str(path))
    return file


def read_inside(folder: Path, name: str | Path, max_bytes: int) -> bytes:
    """Return the content of a file of a folder that may be a stranger's; see :func:`open_inside`.

    Args:
        folder: The folder.
        name: The file's path below it.
        max_bytes: The largest size of the file, in bytes.

    Raises:
        OSError: As :func:`open_inside`.
    """
    with open_inside(folder, name, max_bytes) as file:
        return file.read(max_bytes)


_written: ContextVar[Callable[[Path, Path], object] | None] = ContextVar("_written", default=None)


@contextmanager
def observed_writes(observe: Callable[[Path, Path], object]) -> Iterator[None]:
    """Call a function with the path of each file of :func:`written_whole`, and with the file that is about to go there."""
    token = _written.set(observe)
    try:
        yield
    finally:
        _written.reset(token)


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing.

    A regular file is replaced after the block, if there was no error; it keeps its mode, and a
    symbolic link stays a link. Everything else (a device, a FIFO, standard output) is opened and
    written.

    Raises:
        OSError: If the folder is missing or not writable, or the disk is full.
    """
    stream = _standard_stream(path)
    if stream is not None or (path.exists() and not path.is_file()):
        # A buffer has positions, which ZIP archives need and a stream lacks.
        buffer = io.BytesIO()
        yield buffer
        with open(path if stream is None else os.dup(stream), "wb") as file:  # noqa: PTH123 - it may be a descriptor
            file.write(buffer.getbuffer())
        return
    path = Path(os.path.realpath(path))
    # In the same folder: a rename is atomic only within a file system.
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
        if (observe := _written.get()) is not None:
            observe(path, temporary)
        temporary.replace(path)
    finally:
        # Gone already if all went well; never made if its folder is missing.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor of standard output or error, if the path is that stream: opened anew, it would be truncated."""
    with suppress(OSError):
        status = path.stat()
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if os.path.samestat(os.fstat(number), status):
                stream.flush()
                return number
    return None


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as :func:`written_whole` does, and report errors in a sentence.

    Raises:
        UsageError: If the folder is missing or not writable, or the disk is full.
    """
    try:
        with written_whole(path) as file:
            yield file
    except OSError as err:
        raise cannot_write(path, err) from err


def cannot_write(path: Path, err: OSError) -> UsageError:
    """Return the error for a path that cannot be written."""
    return OutputFileError(
        f"Cannot write {path}: {err.strerror or err}; choose a folder that exists, is writable and has space"
    )


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name + _SUFFIX)
    # A zip entry's name ends at a NUL, is UTF-8, and its length a 16-bit number.
    stored = name.encode(errors="replace")
    if (
        entry.filename != name + _SUFFIX
        or len(stored) + len(_SUFFIX) > 0xFFFF
        or stored.decode() != name
    ):
        raise OutputFileError(
            f"Cannot write the tensor {name[:80]!r} to an .npz file, which cannot hold this name; "
            "rename the tensor in the model"
        )
    return entry


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[str, Array]:
    if not entry.filename.endswith(_SUFFIX):
        raise ValueError(f"its entry '{entry.filename}' is not an array")
    with archive.open(entry) as stream:
        values = read_npy(stream)
    if entry.comment:
        values = viewed(values, dtype_from_name(entry.comment.decode()))
    return entry.filename[: -len(_SUFFIX)], values


_SAFETENSORS = ".safetensors"
_LENGTH = 8
"""The bytes of the length of its header."""
_TYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""NumPy's names of its types."""
_STEP = re.compile(r"(?:round|step)_?(\d+)[./](.+)")
_SUFFIXES = (".json", ".npz", _SAFETENSORS)


@dataclass(frozen=True)
class SavedRun:
    """The saved values of one run, by sample; its name is the file's, and the runner's where the file holds several."""

    name: str
    samples: Sequence[Values]


def load_runs(path: Path) -> list[SavedRun]:
    """Return the runs in a file, in several numbered files, or in a folder with a file for each iteration.

    Args:
        path: ``x.npz``, or if there is none ``x-1.npz``, ``x-2.npz`` and so on, a sample each;
            ``x.json``; a folder.

    Raises:
        UsageError: There is no such file, or it cannot be read.
    """
    if path.is_dir():
        parts = [load_runs(file) for file in files_of(path)]
        if not parts:
            raise InputValuesError(
                f"{path} is a folder without .json, .npz or .safetensors files; name a file of saved values"
            )
        # The n-th run of each file belongs to the same runner.
        sides = zip(*parts, strict=False)
        return [
            SavedRun(str(path), [sample for run in side for sample in run.samples])
            for side in sides
        ]
    if path.suffix == ".json":
        return read_json(path)
    tensors = map(_tensors_of, numbered(path))
    return [SavedRun(str(path), [step for each in tensors for step in _steps_of(each)])]


def _steps_of(tensors: Values) -> list[Values]:
    """Return the tensors of each step, where one file has all steps: ``round_3.logits`` is ``logits`` of step 3."""
    steps: dict[int, Arrays] = {}
    for name in tensors:
        place = _STEP.fullmatch(name)
        if place is None:
            return [tensors]
        steps.setdefault(int(place[1]), {})[place[2]] = tensors[name]
    return [steps[number] for number in sorted(steps)] or [tensors]


def _tensors_of(path: Path) -> Values:
    """Return the tensors of an ``.npz`` or a ``.safetensors`` file."""
    if path.suffix != _SAFETENSORS:
        return NpzFile(path)
    with _reading(path):
        return _read_safetensors(path)


def _read_safetensors(path: Path) -> Arrays:
    content = bytearray(path.read_bytes())
    start = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    entries = json.loads(content[_LENGTH:start])
    entries.pop("__metadata__", None)
    arrays: Arrays = {}
    for name, entry in entries.items():
        first, last = (start + offset for offset in entry["data_offsets"])
        values = np.frombuffer(content[first:last], dtype_from_name(_TYPES[entry["dtype"]]))
        arrays[name] = values.reshape(entry["shape"])
    return arrays


def _safetensors(arrays: Values) -> bytes:
    """Return the content of a ``.safetensors`` file.

    Raises:
        UsageError: A tensor has a type that such a file cannot hold.
    """
    codes = {dtype: code for code, dtype in _TYPES.items()}
    header: Fields = {}
    content = b""
    for name, values in arrays.items():
        code = codes.get(values.dtype.name)
        if code is None:
            raise OutputFileError(
                f"Cannot write '{name}' to a .safetensors file: it holds {values.dtype}; write an .npz file"
            )
        offsets = [len(content), len(content) + values.nbytes]
        header[name] = {"dtype": code, "shape": values.shape, "data_offsets": offsets}
        content += values.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(_LENGTH, "little") + text + content


def files_of(path: Path) -> list[Path]:
    """Return the files that :func:`load_runs` reads."""
    return (
        [file for file in sorted(path.iterdir(), key=_by_number) if file.suffix in _SUFFIXES]
        if path.is_dir()
        else numbered(path)
    )


def _by_number(path: Path) -> list[tuple[str, int]]:
    """Return a key by which step-2 comes before step-10."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", path.name)]


def numbered(path: Path) -> list[Path]:
    """Return the file, or if there is none the numbered ones of :func:`save_samples`."""
    if not path.exists():
        names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
        if files := list(takewhile(Path.exists, names)):
            return files
    return [path]


def same_samples(run: SavedRun, number: int, source: str) -> None:
    """Refuse a saved run that has not as many samples as another.

    Args:
        run: The saved run.
        number: The number of samples that it must have.
        source: The origin of that number, for the message.

    Raises:
        UsageError: It has not.
    """
    if len(run.samples) != number:
        raise InputValuesError(
            f"{run.name} holds {len(run.samples)} sample(s) where {source} {number}; save both from the same inputs."
        )


def sample_files(path: Path, samples: int) -> list[Path]:
    """Return the files that :func:`save_samples` writes for this number of samples."""
    if path.suffix == ".json" or samples == 1:
        return [path]
    return [
        path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(1, samples + 1)
    ]


def save_samples(path: Path, samples: Sequence[Values], runner: str | None = None) -> None:
    """Write samples as ``polygraphy run`` reads them.

    ``x.json`` holds them all; else ``x.npz`` or ``x.safetensors`` holds one, and several go to
    ``x-1.npz``, ``x-2.npz`` and so on.

    Args:
        path: The file to write, ``.json``, ``.safetensors`` or ``.npz``.
        samples: Arrays by tensor name, for each sample.
        runner: The name of the runner, for outputs; ``None`` for inputs.

    Raises:
        UsageError: A file cannot be written.
    """
    if path.suffix != ".json":
        for part, sample in zip(sample_files(path, len(samples)), samples, strict=True):
            if path.suffix == _SAFETENSORS:
                tensors = _safetensors(sample)
                with replacing(part) as file:
                    file.write(tensors)
            else:
                save_npz(part, sample)
        return
    content: Any = [{name: _encode(value) for name, value in sample.items()} for sample in samples]
    if runner is not None:
        runs = [
            {
                "outputs": {
                    name: {"values": value, _CLASS: "LazyArray"} for name, value in sample.items()
                },
                "runtime": 0.0,
                "runner_name": runner,
                _CLASS: "IterationResult",
            }
            for sample in content
        ]
        content = {"lst": [[runner, runs]], _CLASS: "RunResults"}
    with replacing(path) as file:
        file.write(json.dumps(content, indent=4).encode())


_CLASS = "polygraphy_class"


def read_json(path: Path) -> list[SavedRun]:
    """Return the runs in a file; a file of inputs holds one, and one sample may stand alone."""
    with _reading(path, "JSON as polygraphy run saves it"):
        content = json.loads(path.read_bytes(), object_hook=_decode)
        runs = (
            content
            if isinstance(content, tuple)
            else (("", content if isinstance(content, list) else [content]),)
        )
        names = [f"{path} ({name})" if len(runs) > 1 else str(path) for name, _ in runs]
        samples_of_runs = [[_sample(path, sample) for sample in samples] for _, samples in runs]
    if not all(samples_of_runs) or not samples_of_runs:
        raise InputValuesError(f"{path} holds no values; save it again")
    return [SavedRun(name, samples) for name, samples in zip(names, samples_of_runs, strict=True)]


def _encode(values: Array) -> dict[str, str]:
    values = np.asarray(values)
    extension = {"dtype": values.dtype.name} if is_extension(values.dtype) else {}
    stream = io.BytesIO()
    npy_format.write_array(
        stream, values.view(f"V{values.itemsize}") if extension else values, allow_pickle=False
    )
    return {"array": base64.b64encode(stream.getvalue()).decode(), **extension, _CLASS: "ndarray"}


def _decode(entry: Fields) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the value that an object of JSON encodes; a tuple for runs."""
    kind = entry.get(_CLASS)
    if kind == "ndarray":
        values = read_npy(io.BytesIO(base64.b64decode(entry["array"])))
        # bfloat16 and 8-bit floats are stored as integers, which every NumPy reads.
        if "dtype" in entry:
            return viewed(values, dtype_from_name(str(entry["dtype"])))
        return values
    if kind in ("LazyArray", "LazyNumpyArray"):
        return entry["values"]
    if kind == "IterationResult":
        return entry["outputs"]
    if kind == "RunResults":
        return tuple((str(name), samples) for name, samples in entry["lst"])
    if kind == "Tensor":
        raise ValueError("it holds PyTorch tensors, not NumPy arrays")
    return entry


def _sample(path: Path, sample: object) -> Values:
    if (
        not isinstance(sample, dict)
        or not sample
        or not all(isinstance(v, np.ndarray) for v in sample.values())
    ):
        raise InputValuesError(
            f"{path} holds something else than arrays by tensor name; save it with polygraphy run"
        )
    for name in sample:
        # JSON can hold lone surrogates, which are no text.
        name.encode()
    return sample


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
