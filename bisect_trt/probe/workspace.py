"""A run's folder: the files of each candidate in it, and the weights that candidates share."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import count
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import OutputFileError, UsageError
from bisect_trt.onnxlib.load import external_files, folder_with, load_model, model_tensors, place_of
from bisect_trt.onnxlib.save import (
    EMBED_LIMIT_BYTES,
    copy_file,
    inner_bytes,
    refer_to,
    save_model,
    share_weights,
)
from bisect_trt.probe.candidate import Candidate, Probe, Setup
from bisect_trt.targets.runtime import ELSEWHERE
from bisect_trt.tensors.files import Values, replacing, save_npz
from bisect_trt.worker.protocol import Sample

RUNS_FOLDER = ".bisect-trt"
FIXED_PATH = Path("bisect_trt_debug.onnx")
POLYGRAPHYS_PATH = Path("polygraphy_debug.onnx")
_NAME_LENGTH = 60
"""Most characters of a model's name in the name of a run's folder; a character has at most four
bytes."""
_SCRATCH = "scratch-"
KEY_LENGTH = 12
"""Digits of a candidate's key that name its folder."""
_MARK = "bisect-trt.candidate"
"""Metadata key of a file at the fixed path, so that no other program's file is ever written
over."""


@dataclass(frozen=True)
class CandidateFiles(Setup):
    """The files of one candidate.

    Attributes:
        folder: Its own folder.
        model: The model.
        samples: Its inputs and the reference's values of its outputs, ``.npz``, of each input
            sample.
        log: What the check printed.
        kept: Where the model stays, if ``model`` is a fixed path that the next candidate is written
            to.
        sample: The number of the only input sample, from 1, if there are several.
        python: The interpreter that has its packages, where there is one.
        weights: The folder with its weights, where that is not the model's own.
        shapes: The shapes of its inputs, a text for each input sample.
        renew: Writes it again, as a check may have changed it; to be called before it is used
            again.
    """

    folder: Path
    model: Path
    samples: tuple[Sample, ...]
    log: Path
    kept: Path | None = None
    sample: int | None = None
    python: Path | None = None
    weights: Path | None = None
    shapes: tuple[str, ...] = ()
    renew: Callable[[], object] = field(default=bool, compare=False, repr=False)

    @property
    def inputs(self) -> Path:
        """The inputs of the first sample."""
        return self.samples[0].inputs

    @property
    def golden(self) -> Path:
        """The reference's values for the first sample."""
        return self.samples[0].golden

    def each_sample(self) -> Iterator[CandidateFiles]:
        """Yield copies with one input sample each."""
        for number, sample in enumerate(self.samples, 1):
            shapes = self.shapes[number - 1 : number]
            of_several = number if len(self.samples) > 1 else None
            yield replace(self, samples=(sample,), sample=of_several, shapes=shapes)

    def note(self, reason: str) -> None:
        """Append the outcome's reason to the log."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"{reason}\n")

    def placeholders(self) -> dict[str, str]:
        """The values of ``{model}`` and the other placeholders: absolute paths, and the inputs' ``{shapes}``."""
        paths = {
            "model": self.model,
            "inputs": self.inputs,
            "golden": self.golden,
            "dir": self.folder,
        }
        optional = {"engine": self.engine, "python": self.python}
        shapes = {"shapes": self.shapes[0]} if self.shapes else {}
        return {
            name: str(path.absolute())
            for name, path in {**paths, **optional}.items()
            if path is not None
        } | shapes

    def environment(self) -> dict[str, str]:
        """Return the placeholders as environment variables (``BISECT_TRT_MODEL``), and the sample's number."""
        sample = {} if self.sample is None else {"BISECT_TRT_SAMPLE": str(self.sample)}
        return {
            f"BISECT_TRT_{name.upper()}": path for name, path in self.placeholders().items()
        } | sample


CANDIDATES = "candidates"
"""The folder of candidates, in the folder of a run."""


def make_run_folder(folder: Path) -> None:
    """Make the folder of a run, and in it the folder of candidates.

    Raises:
        UsageError: It cannot be made.
    """
    try:
        (folder / CANDIDATES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(folder, error) from error


class Workspace:
    """The folder of one run.

    A candidate's folder is named by its content. Candidates that share one file of weights have to
    lie in one folder with it (see ``onnxlib.save``): then the model of candidate 1f0c is
    ``candidates/1f0c.onnx``, else ``candidates/1f0c/model.onnx``.
    """

    def __init__(self, folder: Path, fixed_path: Path | None = None) -> None:
        """Make the folder; every candidate goes to ``fixed_path`` too, if the check reads one.

        Raises:
            UsageError: The folder cannot be made, or the fixed path holds another program's file.
        """
        self.folder = folder
        self.candidates = folder / CANDIDATES
        self.weights = Weights(self.candidates)
        self.fixed_path = fixed_path
        # Weights beside the fixed path, and whether they were copied there.
        self._beside: dict[Path, bool] = {}
        make_run_folder(folder)
        if fixed_path is not None:
            _refuse_foreign(fixed_path)

    @classmethod
    def new_folder(cls, command: str, model: Path) -> Path:
        """Make a fresh folder for a run under ``.bisect-trt`` in the current directory; no two processes get the same one."""
        stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
        # A model's name may be as long as a name can be, need not be text, which runtimes cannot
        # open, and may be a command.
        name = re.sub(r"[^\w.-]+", "-", model.stem[:_NAME_LENGTH])
        first = folder = Path(RUNS_FOLDER) / f"{stamp}-{command}-{name}"
        for number in count(1):
            try:
                folder.mkdir(parents=True)
                break
            except OSError as error:
                # Another process may have taken the name in the same second: the next number is
                # tried.
                if not os.path.lexists(folder):
                    raise _cannot_make(folder, error) from error
            folder = first.with_name(f"{first.name}-{number}")
        return folder

    def scratch(self, name: str) -> Path:
        """A path for a file of this session only; beside the candidates, where the shared weights lie."""
        return self.candidates / f"{_SCRATCH}{name}"

    def files(self, key: str, *, shared_weights: bool = False) -> CandidateFiles:
        """The files of the candidate with this key."""
        folder = self.candidates / key[:KEY_LENGTH]
        model = folder.with_suffix(".onnx") if shared_weights else folder / "model.onnx"
        return CandidateFiles(folder, model, (), folder / "output.log")

    def write(self, probe: Probe, values: Sequence[tuple[Values, Values]]) -> CandidateFiles:
        """Write a candidate into the folder of a question about it.

        Args:
            probe: The question.
            values: The inputs and the reference's outputs of each sample.

        Raises:
            UsageError: The disk is full or the folder is gone.
        """
        candidate = probe.candidate
        shared = candidate.has_external_data
        files = self.files(probe.key, shared_weights=shared)
        folder = files.folder
        path = files.model
        ends = ("", *(f"-{number}" for number in range(2, len(values) + 1)))
        samples = tuple(
            Sample(folder / f"inputs{end}.npz", folder / f"golden{end}.npz") for end in ends
        )

        def write() -> None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_bytes(candidate.content())
                for sample, (fed, expected) in zip(samples, values, strict=True):
                    save_npz(sample.inputs, fed)
                    save_npz(sample.golden, expected)
                if self.fixed_path is not None:
                    self._write_fixed(candidate, self.fixed_path)
            except OSError as error:
                raise OutputFileError(
                    f"a candidate cannot be written to {self.folder}: {error.strerror}; make room and run again."
                ) from error

        write()
        return replace(
            files,
            model=self.fixed_path or path,
            kept=None if self.fixed_path is None else path,
            samples=samples,
            **{entry.name: getattr(candidate, entry.name) for entry in fields(Setup)},
            weights=self.weights.away(candidate.proto) if shared else None,
            shapes=tuple(_said_shapes(fed) for fed, _ in values),
            renew=write,
        )

    def _write_fixed(self, candidate: Candidate, path: Path) -> None:
        """Write a candidate to the fixed path, and the shared weights beside it, once."""
        for location in external_files(candidate.proto) if candidate.has_external_data else ():
            source = self.weights.folder_of(candidate.proto) / location
            target = path.parent / location
            if target in self._beside:
                continue
            self._beside[target] = not target.exists()
            if self._beside[target]:
                target.parent.mkdir(parents=True, exist_ok=True)
                copy_file(source, target)
            # Size and time do not show that weights are the same, so their bytes are compared.
            elif not filecmp.cmp(source, target, shallow=False):
                raise OutputFileError(
                    f"{target} exists and holds other weights than the model's, which have to lie there for candidates at "
                    f"{path}; move it away, or put {{model}} into the check command."
                )
        mark = onnx.ModelProto()
        mark.metadata_props.add(key=_MARK, value="rewritten for each probe")
        temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
        # A message's bytes behind another's add its fields to that, so none of a search's
        # candidates is parsed for this.
        with temporary.open("wb") as file:
            file.writelines((candidate.content(), mark.SerializeToString()))
        # On ext4 what is renamed over a file is written out at once: 10 ms.
        path.unlink(missing_ok=True)
        temporary.replace(path)

    def save(self, model: onnx.ModelProto, path: Path) -> None:
        """Write a candidate's model with its weights; see :func:`~bisect_trt.onnxlib.save.save_model`."""
        save_model(model, self.weights.folder_of(model), path)

    def read_back(self, path: Path) -> onnx.ModelProto:
        """Return a model that was written, to probe that; its weights are found where they were written."""
        model = load_model(path)
        self.weights.take_in(model, path.parent)
        return model

    def close(self) -> None:
        """Remove the files of this session, also the one at the fixed path and the weights beside it."""
        if self.fixed_path is not None:
            self.fixed_path.unlink(missing_ok=True)
        for file, copied in self._beside.items():
            if copied:
                file.unlink(missing_ok=True)
        self.clear()

    def clear(self) -> None:
        """Remove the files of a session, this one or an earlier one that was killed."""
        for path in self.candidates.glob(f"{_SCRATCH}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _cannot_make(folder: Path, error: OSError) -> UsageError:
    return OutputFileError(
        f"the run's folder {folder} cannot be made: {error.strerror}; run in a folder you can write to (and check the umask)."
    )


def _said_shapes(inputs: Values) -> str:
    """The shapes of inputs as ``trtexec --shapes`` has them: ``x:5x3,mask:5x8``; names with its signs in quotes."""
    quoted = {name: f"'{name}'" if set(name) & set(":,=") else name for name in inputs}
    return ",".join(
        f"{quoted[name]}:{'x'.join(map(str, value.shape))}"
        for name, value in inputs.items()
        if value.ndim
    )


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    try:
        ours = any(
            entry.key == _MARK
            for entry in onnx.load(str(path), load_external_data=False).metadata_props
        )
    # Whatever cannot be read as a model was not written here.
    except Exception:
        ours = False
    if not ours:
        raise OutputFileError(
            f"{path} exists and was not written by bisect-trt, which would write each candidate over it; "
            "move it away, name another with --candidate, or put {model} into the check command."
        )


class Weights:
    """The weights of the candidates in one folder.

    ONNX wants them beside the model, under no other name and behind no link. A hard link in the
    run's folder would make the user's own file one with two names, which ONNX's loader refuses to
    read from then on; so it is the file itself that is read, by runtimes that take its path, or a
    copy, which is made for the first one that does not, such as a check command.
    """

    def __init__(self, folder: Path) -> None:
        """``folder`` is the folder of the candidates."""
        self._folder = folder
        self._lock = threading.Lock()
        self._homes: dict[str, Path] = {}

    def refer(self, model: onnx.ModelProto, weights: Path) -> None:
        """Have candidates of a model find its weights, in the folder ``weights``; large ones inside it go into a file."""
        files = external_files(model)
        inside = sum(map(inner_bytes, model.graph.initializer))
        # Small weights beside a file stay where they are; copies for each candidate would cost as
        # much as the model.
        if (
            files
            and inside <= EMBED_LIMIT_BYTES
            and all(_is_plain(weights, location) for location in files)
        ):
            self._note(files, weights.absolute())
        elif files or inside > EMBED_LIMIT_BYTES:
            share_weights(model, weights, self._folder)
            self._homes |= dict.fromkeys(external_files(model), self._folder)

    def take_in(self, model: onnx.ModelProto, folder: Path) -> None:
        """Have a model that was written elsewhere find its weights too, to probe what was written.

        It is changed in place where its files are called as others are that candidates read.
        """
        folder = folder.resolve()
        files = external_files(model)
        if any(self._homes.get(location, folder).resolve() != folder for location in files):
            for tensor in filter(uses_external_data, model_tensors(model)):
                place = place_of(tensor)
                refer_to(tensor, f"{folder.name}/{place.location}", place.offset, place.length)
            files = external_files(model)
            folder = folder.parent
        self._note(files, folder)

    def _note(self, files: Iterable[str], folder: Path) -> None:
        """Keep where some files are, for runtimes that look for it too."""
        new = dict.fromkeys(files, folder)
        if new.items() <= self._homes.items():
            return
        self._homes |= new
        homes = dict.fromkeys(home for home in self._homes.values() if home != self._folder)
        with replacing(self._folder / ELSEWHERE) as note:
            note.write(b"\0".join(map(os.fsencode, homes)))

    def bring(self, model: onnx.ModelProto | Path) -> None:
        """Copy the files that a candidate, or its file, refers to, and that are not beside the candidates yet.

        Raises:
            UsageError: They cannot be copied.
        """
        if not self._homes:
            return
        if isinstance(model, Path):
            try:
                model = onnx.load(str(model), load_external_data=False)
            except Exception:
                # Each of ONNX's formats raises its own; whoever reads it says what is wrong.
                return
        # Parallel probes may bring the same weights.
        with self._lock:
            for location in self._homes.keys() & external_files(model):
                home = self._homes[location]
                place = self._folder / location
                if home == self._folder:
                    continue
                try:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy_file(home / location, place)
                except OSError as error:
                    raise OutputFileError(
                        f"the weights in {home} cannot be copied to {self._folder}: {error.strerror}; make room, or run "
                        "elsewhere."
                    ) from error

    def folder_of(self, model: onnx.ModelProto) -> Path:
        """The folder in which all files of a candidate's weights are."""
        homes = {
            self._homes[location] for location in external_files(model) if location in self._homes
        }
        return folder_with(model, [self._folder, *homes]) or next(iter(homes), self._folder)

    def away(self, model: onnx.ModelProto) -> Path | None:
        """Return the folder of the weights, where it differs from the folder of the candidates."""
        folder = self.folder_of(model)
        return None if folder == self._folder else folder


def _is_plain(folder: Path, location: str) -> bool:
    """Whether a file is where it seems to be; runtimes refuse what a link leads out of the folder."""
    return (folder / location).resolve() == folder.resolve() / location
